//! Finds the socket of the user's own daemon, and checks its owner.
//!
//! In: the environment. Out: a path, or a connection to a process of this user or root. Folders
//! with a known name in `/tmp` can be made by any user, so neither the name nor what is there is
//! believed; and the environment of a setuid program is not its own user's.
// UNSAFETY: reads a word that the kernel gave the process at its start.
#![expect(unsafe_code)]

use crate::{seqpacket, seqpacket_deadline};
use rustix::fs::{FileType, lstat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// True in a program that has rights which whoever started it has not (setuid, setgid, file
/// capabilities): its environment is not to be obeyed.
#[must_use]
pub fn is_secure() -> bool {
    // SAFETY: reads a word of the auxiliary vector, which is there for good.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// An environment variable that says something and may be obeyed.
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    if is_secure() {
        return None;
    }
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The socket of the user's own daemon; `None` where there is none to be believed.
#[must_use]
pub fn path() -> Option<PathBuf> {
    if is_secure() {
        return None;
    }
    Some(match variable("XDG_RUNTIME_DIR") {
        Some(folder) => Path::new(&folder).join("omniverb/omniverbd.sock"),
        None => format!("/tmp/omniverb-{}/omniverbd.sock", geteuid().as_raw()).into(),
    })
}

/// Connects to the user's own daemon at `path`.
///
/// # Errors
/// `EACCES` if its folder is not the user's alone, or if somebody else listens there; `ETIMEDOUT`;
/// as [`seqpacket::connect`].
pub fn connect(path: &Path, deadline: u64) -> io::Result<OwnedFd> {
    check_folder(path.parent().unwrap_or(path))?;
    let daemon = seqpacket_deadline::connect(path, deadline)?;
    let user = seqpacket::peer(daemon.as_fd())?.uid;
    match user == 0 || user == geteuid().as_raw() {
        true => Ok(daemon),
        false => Err(Errno::ACCESS.into()),
    }
}

/// A folder for what is only the user's: a real one, the user's, that nobody else may write to.
///
/// # Errors
/// `EACCES` if it is not; `ENOENT`.
pub fn check_folder(folder: &Path) -> io::Result<()> {
    let status = lstat(folder)?;
    let real = FileType::from_raw_mode(status.st_mode) == FileType::Directory;
    match real && status.st_uid == geteuid().as_raw() && status.st_mode & 0o022 == 0 {
        true => Ok(()),
        false => Err(Errno::ACCESS.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn errno(result: io::Result<OwnedFd>) -> Option<i32> {
        result.err().and_then(|error| error.raw_os_error())
    }

    #[test]
    fn only_a_folder_of_the_users_own_is_believed() {
        let top = std::env::temp_dir().join(format!("omniverb-own-{}", std::process::id()));
        let folder = top.join("omniverb");
        std::fs::create_dir_all(&folder).unwrap();
        let modes = |mode| std::fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
        let path = folder.join("omniverbd.sock");
        let soon = || clock::now() + 1_000_000_000;
        modes(0o700);
        assert_eq!(errno(connect(&path, soon())), Some(libc::ENOENT));
        let _listener = seqpacket::listen(&path, 0o600).unwrap();
        connect(&path, soon()).unwrap();
        for mode in [0o770, 0o702, 0o1777] {
            modes(mode);
            assert_eq!(errno(connect(&path, soon())), Some(libc::EACCES), "{mode:o}");
        }
        modes(0o755);
        connect(&path, soon()).unwrap();
        symlink(&folder, top.join("link")).unwrap();
        let through = connect(&top.join("link/omniverbd.sock"), soon());
        assert_eq!(errno(through), Some(libc::EACCES), "a symbolic link");
        if geteuid().is_root() {
            chown(&folder, Some(12345), None).unwrap();
            assert_eq!(errno(connect(&path, soon())), Some(libc::EACCES), "another user's");
        }
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn an_ordinary_program_obeys_its_environment() {
        assert!(!is_secure());
        assert!(path().is_some_and(|path| path.ends_with("omniverbd.sock")));
        assert_eq!(variable("OMNIVERB_NOBODY_SETS_THIS"), None);
    }
}
