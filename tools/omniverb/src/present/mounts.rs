//! Mounts the device's files in a mount namespace, for programs that no preloaded library reaches.
//!
//! In: a folder that is kept true. Out: a mount namespace of our own, in which the program will be,
//! where `/sys/class` and `/dev` have what they had a moment ago and the device's files besides.
//!
//! Neither of the two takes a folder of ours, so each becomes a file system of its own that has the
//! entries of the old one: links as they were, all else mounted from there. Entries that appear
//! later outside are not seen inside. All of it is done by system calls of our own, since a library
//! may be preloaded here that shows these files already.

use anyhow::{Context, bail};
use omniverb_sys::mount_namespace;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{
    Access, AtFlags, CWD, Dir, FileType, Mode, OFlags, accessat, mkdirat, openat, readlinkat,
    statat, symlinkat,
};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind_recursive, unmount};
use std::ffi::{CStr, CString};
use std::path::Path;

/// Folders, and what programs look for in them.
const PLACES: [(&str, &[&str]); 3] = [
    ("/sys/class", &["infiniband", "infiniband_verbs", "infiniband_mad"]),
    ("/sys/class/misc", &["rdma_cm"]),
    ("/dev", &["infiniband"]),
];
/// Entries of a folder at most.
const ENTRIES_MAX: usize = 1 << 16;

/// Has this process, and so the program that it becomes, see what is in `kept` where programs look.
pub(super) fn show(kept: &Path) -> anyhow::Result<()> {
    mount_namespace::unshare().context("cannot have mounts of its own")?;
    let mut covered = Vec::new();
    for (place, names) in PLACES {
        if let Err(error) = add(kept, place, names, &mut covered) {
            // All as it was.
            for place in covered.iter().rev() {
                let _ = unmount(*place, UnmountFlags::DETACH);
            }
            return Err(error.context(format!("cannot mount in {place}")));
        }
    }
    Ok(())
}

/// Whether they are there already, without a library's help.
pub(super) fn are_shown() -> bool {
    accessat(CWD, "/sys/class/infiniband/omv0", Access::EXISTS, AtFlags::empty()).is_ok()
        && accessat(CWD, "/dev/infiniband/uverbs0", Access::EXISTS, AtFlags::empty()).is_ok()
}

/// Adds what `kept` has of these names to a folder. `covered`: where it mounted something over what
/// was there.
fn add(
    kept: &Path,
    place: &'static str,
    names: &[&str],
    covered: &mut Vec<&'static str>,
) -> anyhow::Result<()> {
    let ours = |name: &&&str| exists(&kept.join(&place[1..]).join(name));
    let names: Vec<&str> = names.iter().filter(ours).copied().collect();
    if names.iter().any(|name| !exists(&Path::new(place).join(name))) {
        make_anew(place)?;
        covered.push(place);
    }
    for name in names {
        let at = Path::new(place).join(name);
        if !exists(&at) {
            mkdirat(CWD, &at, Mode::from_raw_mode(0o755))?;
        }
        mount_bind_recursive(kept.join(&place[1..]).join(name), &at)?;
    }
    Ok(())
}

fn exists(path: &Path) -> bool {
    accessat(CWD, path, Access::EXISTS, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// Mounts a file system over a folder that has what the folder had.
fn make_anew(place: &'static str) -> anyhow::Result<()> {
    let folder = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let old = openat(CWD, place, folder, Mode::empty())?;
    let entries = entries(&old)?;
    let options = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("tmpfs", place, "tmpfs", options, c"mode=0755")?;
    let copied = copy(&old, &entries, place);
    if copied.is_err() {
        let _ = unmount(place, UnmountFlags::DETACH);
    }
    copied
}

/// The entries of a folder, with their types.
fn entries(folder: &OwnedFd) -> anyhow::Result<Vec<(CString, FileType)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if found.len() == ENTRIES_MAX {
            bail!("it has more than {ENTRIES_MAX} entries");
        }
        // An entry that has gone meanwhile is left out.
        if let Ok(status) = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            found.push((name.to_owned(), FileType::from_raw_mode(status.st_mode)));
        }
    }
    Ok(found)
}

fn copy(old: &OwnedFd, entries: &[(CString, FileType)], place: &str) -> anyhow::Result<()> {
    let new = openat(CWD, place, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for (name, kind) in entries {
        match one(old, &new, name, *kind) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => {
                return Err(errno).with_context(|| format!("{}", name.to_string_lossy()));
            }
        }
    }
    Ok(())
}

fn one(old: &OwnedFd, new: &OwnedFd, name: &CStr, kind: FileType) -> Result<(), Errno> {
    match kind {
        FileType::Symlink => return symlinkat(readlinkat(old, name, Vec::new())?, new, name),
        FileType::Directory => mkdirat(new, name, Mode::from_raw_mode(0o755))?,
        _ => {
            let options = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            openat(new, name, options, Mode::from_raw_mode(0o644)).map(drop)?;
        }
    }
    let path = |folder: &OwnedFd| {
        [format!("/proc/self/fd/{}/", folder.as_raw_fd()).as_bytes(), name.to_bytes()].concat()
    };
    mount_bind_recursive(path(old), path(new))
}
