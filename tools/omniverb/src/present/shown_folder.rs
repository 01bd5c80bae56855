//! Reads the folder that this process is shown.

use anyhow::{Context, bail};
use omniverb_session::PRESENTED_VARIABLE;
use std::path::PathBuf;

/// The folder that the environment names.
pub(super) fn folder() -> Option<PathBuf> {
    std::env::var_os(PRESENTED_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The contents of a file of the device.
pub(super) fn read(name: &str) -> anyhow::Result<String> {
    let Some(folder) = folder() else { bail!("no device is shown here; use omniverb run") };
    let path = folder.join("sys/class/infiniband/omv0").join(name);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text.trim_end().to_owned())
}
