//! Finds a program before it is started, and checks whether our libraries can be loaded into it.

use crate::elf;
use anyhow::bail;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Bytes at the beginning of a program that name its interpreter or its dynamic linker.
const BEGINNING: u64 = 4096;

/// Where a program is, by its path or by `PATH`.
pub(crate) fn locate(program: &OsStr) -> Option<PathBuf> {
    let direct = Path::new(program);
    if direct.components().count() > 1 {
        return direct.exists().then(|| direct.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Whether this dynamic linker is musl's.
pub(crate) fn is_musl(loader: &str) -> bool {
    loader.contains("/ld-musl-")
}

/// The remedy for a program that is built for musl.
pub(crate) const FOR_MUSL: &str = "Omniverb's libraries need glibc 2.28 or newer: use an image of \
                                   Debian 10, Ubuntu 18.10, RHEL 8 or newer instead of Alpine";

/// Refuses what is built for musl: its loader would end it with errors about symbols.
pub(crate) fn refuse_musl(program: &OsStr) -> anyhow::Result<()> {
    let Some(path) = locate(program) else { return Ok(()) };
    let bytes = beginning(&path);
    let interpreter = bytes.strip_prefix(b"#!").map(|line| {
        let mut words = line.split(|byte| matches!(byte, b' ' | b'\t' | b'\n'));
        let word = words.find(|word| !word.is_empty()).unwrap_or_default();
        beginning(Path::new(OsStr::from_bytes(word)))
    });
    let loader = elf::loader(&interpreter.unwrap_or(bytes));
    if let Some(loader) = loader.filter(|loader| is_musl(loader)) {
        bail!("{} is built for musl ({loader}); {FOR_MUSL}", path.display());
    }
    Ok(())
}

/// Empty if it cannot be read: starting it reports why.
fn beginning(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(BEGINNING).read_to_end(&mut bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_this_system_are_not_refused() {
        for program in ["true", "/bin/sh", "/nowhere/at/all", "ldd"] {
            assert!(refuse_musl(OsStr::new(program)).is_ok(), "{program}");
        }
        assert!(is_musl("/lib/ld-musl-x86_64.so.1") && !is_musl("/lib64/ld-linux-x86-64.so.2"));
    }
}
