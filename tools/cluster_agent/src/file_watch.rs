//! Follows the objects of a host in a file, where there is no etcd.

use crate::log::{Level, log};
use crate::newest_objects_for_applier::{Input, InputSender};
use anyhow::bail;
use omniverb_cluster::object_file::{FILE_BYTES_MAX, parse};
use omniverb_cluster::object_name::{Scope, Wanted};
use omniverb_cluster::sealed_field::{self, SealKey};
use std::convert::Infallible;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// The time between two looks at the file.
const LOOK: Duration = Duration::from_secs(1);

/// What tells a file from what it was before.
type Mark = (u64, i64, i64, u64);

fn mark_of(path: &Path) -> Option<Mark> {
    std::fs::metadata(path).ok().map(|s| (s.ino(), s.mtime(), s.mtime_nsec(), s.len()))
}

/// Follows the file, for ever. One that is gone or cannot be parsed changes nothing. Nor does one
/// that has changed since the last look: half of it may be written, and what is not there yet
/// would be deleted.
///
/// A secret in it is sealed, as in etcd: `omniverb cluster get` writes such a file.
pub(crate) async fn watch(
    path: &Path,
    host: &str,
    key: Option<&SealKey>,
    input: &InputSender,
) -> Infallible {
    let (mut last, mut seen, mut said) = (None, None, None);
    loop {
        let mark = mark_of(path);
        let is_settled = mark == std::mem::replace(&mut seen, mark);
        if is_settled && (mark != last || mark.is_none()) {
            let problem = match read(path, host, key) {
                Ok(all) => {
                    // It has not changed while it was read.
                    if mark_of(path) == mark {
                        input.send(all);
                    }
                    None
                }
                Err(error) => Some(format!("{}: {error:#}", path.display())),
            };
            if problem != said {
                if let Some(text) = &problem {
                    log(Level::Error, &format!("{text}; what this host has stays as it is"));
                }
                said = problem;
            }
            last = mark;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The text of a file of objects.
pub(crate) fn text_of(from: impl Read) -> anyhow::Result<String> {
    let mut text = String::new();
    from.take(FILE_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    if text.len() > FILE_BYTES_MAX {
        bail!("it has more than {} MiB", FILE_BYTES_MAX >> 20);
    }
    Ok(text)
}

fn read(path: &Path, host: &str, key: Option<&SealKey>) -> anyhow::Result<Input> {
    let entries = parse(&text_of(File::open(path)?)?).map_err(anyhow::Error::msg)?;
    // A host's own object comes after the one for all.
    let ours = entries.into_iter().filter(|((_, scope), _)| match scope {
        Scope::All => true,
        Scope::Host(name) => name == host,
    });
    let mut all = Input::default();
    for ((id, _), fields) in ours {
        let object = match sealed_field::open(&id, &fields, key) {
            Ok(fields) => {
                all.problems.remove(&id.to_string());
                Wanted::Fields(fields)
            }
            Err(problem) => {
                all.problems.insert(id.to_string(), format!("{problem}; it stays as it is"));
                Wanted::Held
            }
        };
        all.wanted.insert(id, object);
    }
    Ok(all)
}
