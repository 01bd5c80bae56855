//! Reads and makes files with secrets.

use anyhow::{Context, bail};
use omniverb_agent_arguments::EtcdOptions;
use omniverb_cluster::sealed_field::{SEAL_KEY_BYTES, SealKey, hex};
use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Bytes of the longest file that is read.
const BYTES_MAX: u64 = 64 << 10;

/// The text of a file that others must not read.
fn secret(path: &Path) -> anyhow::Result<Zeroizing<String>> {
    let file = File::open(path)?;
    let status = file.metadata()?;
    if status.mode() & 0o077 != 0 {
        bail!("others may read or write it: chmod 600");
    }
    let mut text = Zeroizing::new(String::new());
    file.take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// The seal key that the options name.
pub(crate) fn seal_key(etcd: &EtcdOptions) -> anyhow::Result<Option<Arc<SealKey>>> {
    let Some(path) = &etcd.seal_key_file else { return Ok(None) };
    let read = || SealKey::from_text(&secret(path)?).map_err(anyhow::Error::msg);
    let key = read().with_context(|| format!("cannot use the seal key {}", path.display()))?;
    Ok(Some(Arc::new(key)))
}

/// The password in a file.
pub(crate) fn password(path: &Path) -> anyhow::Result<Zeroizing<String>> {
    let text =
        secret(path).with_context(|| format!("cannot use the password {}", path.display()))?;
    Ok(Zeroizing::new(text.trim_end_matches('\n').to_owned()))
}

/// `omniverb-agent new-seal-key`.
pub(crate) fn new_seal_key(path: &Path) -> anyhow::Result<ExitCode> {
    let mut key = Zeroizing::new([0; SEAL_KEY_BYTES]);
    random(&mut *key)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let made = open(path, flags, Mode::from_raw_mode(0o600));
    let mut file = File::from(made.with_context(|| format!("cannot make {}", path.display()))?);
    let text = Zeroizing::new(hex(&*key) + "\n");
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all())?;
    Ok(ExitCode::SUCCESS)
}

/// Fills bytes with random ones.
pub(crate) fn random(bytes: &mut [u8]) -> anyhow::Result<()> {
    File::open("/dev/urandom")?.read_exact(bytes).context("no random bytes")
}
