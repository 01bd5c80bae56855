//! Writes files below one folder, wherever another process moves parts of it or puts links.
//!
//! The folder is held by its descriptor. Entries below it are reached name by name, each opened
//! without following a link: as by openat2(2) with `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`, which
//! older kernels and sandboxes lack. A file is replaced in one step, so no reader sees half of one.

use anyhow::{Context, bail};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, mkdirat, openat, renameat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The name of a file until it is whole.
const NEW: &str = ".new";
const BELOW: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The entry at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum File {
    Text(String),
    Link(String),
}

/// A folder by its descriptor: another one that takes its path later is not written to.
#[derive(Debug)]
pub(super) struct Folder(OwnedFd);

impl Folder {
    /// Opens what is at a path now, if that is a folder and no link.
    pub(super) fn open(path: &Path) -> std::io::Result<Self> {
        Ok(Self(openat(CWD, path, OFlags::PATH | BELOW, Mode::empty())?))
    }

    /// By which this process reaches it.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}/.", self.0.as_raw_fd()).into()
    }

    /// Replaces or makes a file, and the folders that it lies in.
    pub(super) fn write(&self, name: &str, file: &File) -> anyhow::Result<()> {
        let (within, name) = name.rsplit_once('/').unwrap_or(("", name));
        let parent = self.below(within, OFlags::PATH, true)?;
        match unlinkat(&parent, NEW, AtFlags::empty()) {
            Err(errno) if errno != Errno::NOENT => return Err(errno.into()),
            _ => {}
        }
        match file {
            File::Text(text) => {
                // New, so not through a link.
                let options = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                let file = openat(&parent, NEW, options, Mode::from_raw_mode(0o644))?;
                std::fs::File::from(file).write_all(text.as_bytes())?;
            }
            File::Link(aim) => symlinkat(aim, &parent, NEW)?,
        }
        Ok(renameat(&parent, NEW, &parent, name)?)
    }

    /// Removes a file.
    pub(super) fn remove(&self, name: &str) -> anyhow::Result<()> {
        let (within, name) = name.rsplit_once('/').unwrap_or(("", name));
        Ok(unlinkat(self.below(within, OFlags::PATH, false)?, name, AtFlags::empty())?)
    }

    /// The names in a folder below, and which of them are folders.
    pub(super) fn entries(&self, within: &str) -> anyhow::Result<Vec<(String, bool)>> {
        let mut found = Vec::new();
        for entry in Dir::new(self.below(within, OFlags::RDONLY, false)?)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name != "." && name != ".." {
                found.push((name.to_owned(), entry.file_type() == FileType::Directory));
            }
        }
        Ok(found)
    }

    /// Opens a folder below this one; `make`: makes what is missing.
    fn below(&self, within: &str, access: OFlags, make: bool) -> anyhow::Result<OwnedFd> {
        let mut folder = openat(&self.0, ".", access | BELOW, Mode::empty())?;
        for name in within.split('/').filter(|name| !name.is_empty()) {
            let next = || openat(&folder, name, access | BELOW, Mode::empty());
            folder = match next() {
                Err(Errno::NOENT) if make => {
                    match mkdirat(&folder, name, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => {
                            return Err(errno).with_context(|| format!("cannot make {name:?}"));
                        }
                    }
                    next()
                }
                other => other,
            }
            .or_else(|errno| match errno {
                Errno::NOTDIR | Errno::LOOP => bail!(
                    "{name:?} in {within:?} is a link or no folder, which another process has put \
                     there; use a folder that only this process writes to"
                ),
                errno => Err(errno).with_context(|| format!("cannot open {within:?}")),
            })?;
        }
        Ok(folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, read_dir, read_to_string, remove_dir_all, rename, write};
    use std::os::unix::fs::symlink;

    fn text(text: &str) -> File {
        File::Text(text.into())
    }

    fn top(name: &str) -> PathBuf {
        let top = std::env::temp_dir().join(format!("omniverb-{name}-{}", std::process::id()));
        create_dir_all(&top).unwrap();
        top
    }

    #[test]
    fn another_folder_at_its_path_is_not_written_to() {
        let top = top("pin");
        let (path, moved, others) = (top.join("shown"), top.join("moved"), top.join("others"));
        create_dir_all(&path).unwrap();
        create_dir_all(&others).unwrap();
        let folder = Folder::open(&path).unwrap();
        rename(&path, &moved).unwrap();
        symlink(&others, &path).unwrap();
        assert!(Folder::open(&path).is_err(), "a link");
        folder.write("a/b/c", &text("one")).unwrap();
        assert_eq!(read_to_string(moved.join("a/b/c")).unwrap(), "one");
        assert_eq!(read_dir(&others).unwrap().count(), 0);
        remove_dir_all(&top).unwrap();
    }

    #[test]
    fn a_link_in_the_place_of_a_part_is_not_followed() {
        let top = top("part");
        let (path, victim) = (top.join("shown"), top.join("victim"));
        create_dir_all(&path).unwrap();
        create_dir_all(victim.join("b")).unwrap();
        write(victim.join("b/c"), "whole").unwrap();
        let folder = Folder::open(&path).unwrap();
        folder.write("a/b/c", &text("one")).unwrap();
        for part in ["a", "a/b"] {
            let aside = top.join("aside");
            let aim = if part == "a" { victim.clone() } else { victim.join("b") };
            rename(path.join(part), &aside).unwrap();
            symlink(&aim, path.join(part)).unwrap();
            let refused = folder.write("a/b/c", &text("two")).unwrap_err().to_string();
            assert!(refused.contains("is a link"), "{refused}");
            assert!(folder.remove("a/b/c").is_err());
            assert!(folder.entries("a/b").is_err());
            assert_eq!(read_to_string(victim.join("b/c")).unwrap(), "whole");
            assert_eq!(read_dir(victim.join("b")).unwrap().count(), 1);
            std::fs::remove_file(path.join(part)).unwrap();
            rename(&aside, path.join(part)).unwrap();
        }
        folder.write("a/b/c", &text("three")).unwrap();
        assert_eq!(read_to_string(path.join("a/b/c")).unwrap(), "three");
        remove_dir_all(&top).unwrap();
    }

    #[test]
    fn a_link_is_replaced_and_not_followed() {
        let top = top("link");
        let victim = top.join("victim");
        write(&victim, "whole").unwrap();
        for name in [NEW, "file"] {
            symlink(&victim, top.join(name)).unwrap();
        }
        Folder::open(&top).unwrap().write("file", &text("")).unwrap();
        assert_eq!(read_to_string(&victim).unwrap(), "whole");
        assert!(!top.join("file").is_symlink());
        remove_dir_all(&top).unwrap();
    }
}
