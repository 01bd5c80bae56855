//! Where the drop-in library is.

use anyhow::{Context, bail};
use std::path::{Path, PathBuf};

/// File name of the drop-in library.
pub(crate) const VERBS: &str = "libibverbs.so.1";
/// File name of its companion for connection management; not there in every build.
pub(crate) const CONNECTION_MANAGER: &str = "librdmacm.so.1";

/// Where a distribution's package has it.
const SYSTEM_FOLDER: &str = "/usr/lib/omniverb";

/// The folder with the library: beside this program's own folder, or the system's.
pub(crate) fn folder() -> anyhow::Result<PathBuf> {
    let ours = std::env::current_exe().context("cannot find this program's own folder")?;
    let bin = ours.parent().unwrap_or(Path::new("/"));
    let candidates = [bin.join("../lib"), bin.join("../lib/omniverb"), SYSTEM_FOLDER.into()];
    for candidate in &candidates {
        if candidate.join(VERBS).exists() && !is_stock(candidate) {
            return Ok(candidate.canonicalize()?);
        }
    }
    bail!("{VERBS} is neither in {} nor in {SYSTEM_FOLDER}", candidates[0].display())
}

/// `/usr/lib` itself belongs to the distribution: a library found there is not ours.
fn is_stock(folder: &Path) -> bool {
    let real = folder.canonicalize().unwrap_or_else(|_| folder.into());
    ["/usr/lib", "/lib", "/usr/lib64", "/lib64"].iter().any(|stock| real == Path::new(stock))
}

/// `first`, then whatever the variable `name` holds, joined as a search path.
pub(crate) fn before(first: &Path, name: &str) -> std::ffi::OsString {
    let mut value = first.as_os_str().to_owned();
    // An empty element would mean the current directory.
    if let Some(rest) = std::env::var_os(name).filter(|rest| !rest.is_empty()) {
        value.push(":");
        value.push(rest);
    }
    value
}
