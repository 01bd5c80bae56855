//! Finds the drop-in library.

use anyhow::{Context, bail};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// File name of the drop-in library.
pub(crate) const VERBS: &str = "libibverbs.so.1";
/// File name of its companion for connection management; not there in every build.
pub(crate) const CONNECTION_MANAGER: &str = "librdmacm.so.1";

/// File name of the library that shows programs the files of their device.
const PATHS: &str = "libomniverb_paths.so";
/// File name of the library that stands before calls of sockets.
const SOCKETS: &str = "libomniverb_sockets.so";
/// Programs that stand in for others, beside the folder with the library.
const STAND_INS: [&str; 2] = ["../libexec", "../../libexec/omniverb"];

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

/// The library that shows programs the files of their device.
pub(crate) fn paths() -> anyhow::Result<PathBuf> {
    there(PATHS)
}

/// The library that stands before calls of sockets.
pub(crate) fn sockets() -> anyhow::Result<PathBuf> {
    there(SOCKETS)
}

fn there(name: &str) -> anyhow::Result<PathBuf> {
    let file = folder()?.join(name);
    if !file.exists() {
        bail!("{} does not exist: reinstall the package omniverb", file.display());
    }
    Ok(file)
}

/// It is in the environment already, from wherever.
pub(crate) fn is_preloaded() -> bool {
    let value = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let mut files = value.as_bytes().split(|byte| matches!(byte, b':' | b' '));
    files.any(|file| Path::new(OsStr::from_bytes(file)).file_name() == Some(OsStr::new(PATHS)))
}

/// There is a librdmacm of ours.
pub(crate) fn has_connection_manager() -> bool {
    folder().is_ok_and(|folder| folder.join(CONNECTION_MANAGER).exists())
}

/// The folder of programs that stand in for others, if it is installed.
pub(crate) fn stand_ins() -> Option<PathBuf> {
    let library = folder().ok()?;
    let found = STAND_INS.iter().map(|place| library.join(place)).find(|place| place.is_dir())?;
    found.canonicalize().ok()
}

/// As [`before`], unless it is there already, wherever.
pub(crate) fn first(first: &Path, name: &str) -> std::ffi::OsString {
    match std::env::var_os(name) {
        Some(value) if std::env::split_paths(&value).any(|path| path == first) => value,
        _ => before(first, name),
    }
}
