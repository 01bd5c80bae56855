//! Keeps objects that were set at run time in a file, which the next daemon reads.
//!
//! The file is replaced as a whole: a new one is written beside it, synchronised, and takes its
//! name. A file that cannot be parsed is left as it is, and nothing is written until an operator
//! has moved it away: its contents are not guessed. The tenants of vNICs that nothing else
//! describes are unknown then, so each of these is alone.

use super::object_set::ObjectSet;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The version of the format that this daemon writes, and the only one that it reads.
const VERSION: u32 = 1;
/// Bytes of a file that is read.
const BYTES_MAX: u64 = 16 << 20;

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    #[serde(default)]
    objects: ObjectSet,
}

/// The file, and whether it may be written.
#[derive(Debug)]
pub(crate) struct StateFile {
    /// `None`: nothing outlives this daemon.
    path: Option<PathBuf>,
    /// The fault of the existing file.
    damage: Option<String>,
    /// Its contents come from elsewhere again: a damaged file is moved away.
    is_rebuilt: bool,
}

impl StateFile {
    /// Opens the file at `path` and reads its objects, without those of the configuration.
    pub(crate) fn open(path: Option<PathBuf>, configured: &ObjectSet) -> (StateFile, ObjectSet) {
        let found = path.as_deref().map_or(Ok(None), read).and_then(|found| {
            let all = found.as_ref().map(|objects| configured.overlaid(objects));
            let checked = all.map_or(Ok(()), |all| all.check());
            checked.map(|()| found).map_err(|error| error.to_string())
        });
        match found {
            Ok(objects) => {
                (StateFile { path, damage: None, is_rebuilt: false }, objects.unwrap_or_default())
            }
            Err(problem) => {
                let state = StateFile { path, damage: Some(problem), is_rebuilt: false };
                (state, ObjectSet::default())
            }
        }
    }

    /// Records that its contents come from elsewhere again: then a damaged file may be replaced.
    pub(crate) fn rebuilt(self) -> StateFile {
        StateFile { is_rebuilt: true, ..self }
    }

    /// The fault of the file, for an operator.
    pub(crate) fn problem(&self) -> Option<String> {
        let (path, damage) = self.path.as_ref().zip(self.damage.as_ref())?;
        let until = match self.is_rebuilt {
            true => "until an agent brings the cluster's objects again",
            false => "and nothing can be set until it is moved away (then: omniverb reload)",
        };
        Some(format!(
            "the state file {} is damaged ({damage}): nothing in it is used, vNICs that nothing \
             else describes do not reach each other, {until}",
            path.display()
        ))
    }

    /// Looks whether a damaged file has been moved away.
    pub(crate) fn look_again(&mut self) {
        let is_there = |path: &PathBuf| path.symlink_metadata().is_ok();
        if self.damage.is_some() && !self.path.as_ref().is_some_and(is_there) {
            self.damage = None;
        }
    }

    /// Replaces the contents of the file.
    ///
    /// # Errors
    /// The reason, for an operator. The file is as it was.
    pub(crate) fn write(&mut self, objects: &ObjectSet) -> Result<(), String> {
        let Some(path) = self.path.clone() else { return Ok(()) };
        self.look_again();
        if self.damage.is_some() && self.is_rebuilt {
            let away = path.with_added_extension("damaged");
            std::fs::rename(&path, &away)
                .map_err(|error| format!("cannot move {} away: {error}", path.display()))?;
            self.damage = None;
        }
        if let Some(problem) = self.problem() {
            return Err(problem);
        }
        let written = Written { version: VERSION, objects: objects.clone() };
        let mut text = serde_json::to_string_pretty(&written).map_err(|error| error.to_string())?;
        text.push('\n');
        // The next daemon would not read it.
        if text.len() as u64 > BYTES_MAX {
            let most = BYTES_MAX >> 20;
            return Err(format!("there are too many objects: they take more than {most} MiB"));
        }
        replace(&path, text.as_bytes())
            .map_err(|error| format!("cannot write the state file {}: {error}", path.display()))
    }
}

/// The contents of a file; `None`: it does not exist.
fn read(path: &Path) -> Result<Option<ObjectSet>, String> {
    // Not blocking, should it be a pipe.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match open(path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(io::Error::from(error).to_string()),
    };
    let status = fstat(&file).map_err(|error| io::Error::from(error).to_string())?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Err("it is not a regular file".into());
    }
    if status.st_uid != geteuid().as_raw() || status.st_mode & 0o022 != 0 {
        return Err("others may write it".into());
    }
    let mut text = String::new();
    let read = File::from(file).take(BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    if text.len() as u64 > BYTES_MAX {
        return Err(format!("it has more than {} MiB", BYTES_MAX >> 20));
    }
    let version = serde_json::from_str::<serde_json::Value>(&text)
        .map_err(|error| error.to_string())?["version"]
        .as_u64();
    if version != Some(u64::from(VERSION)) {
        return Err(format!("its version is not {VERSION}"));
    }
    let written: Written = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    Ok(Some(written.objects))
}

/// Gives a file new contents: either all of them or none.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = write_beside(path, bytes)?;
    take_name(&new, path)
}

/// Writes the new contents of a file beside it: the path of that. Only this daemon's user can read
/// it.
pub(crate) fn write_beside(path: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    let new = path.with_added_extension("new");
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(open(&new, flags, Mode::from_raw_mode(0o600))?);
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(new)
}

/// A file takes the name of another.
pub(crate) fn take_name(new: &Path, path: &Path) -> io::Result<()> {
    std::fs::rename(new, path)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests;
