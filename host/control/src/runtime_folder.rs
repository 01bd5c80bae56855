//! Prepares the daemon's folder, sockets and lock file.
//!
//! The lock is held while the daemon lives and goes with it however it dies, so whether a daemon
//! serves this socket has one answer, and two daemons started at once cannot both win.

use crate::instance_lock::{self, DaemonLifetime, LastHolder};
use crate::start_errors::{PATH_BYTES_MAX, StartError};
use omniverb_sys::seqpacket::{self, Listener};
use rustix::fs::{FileType, lstat};
use rustix::process::geteuid;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The users that may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// The daemon's own user (and root).
    Owner,
    /// Every user of the host.
    AllUsers,
}

/// A listening socket that no other process serves.
#[derive(Debug)]
pub struct RuntimeFolder {
    path: PathBuf,
    files: PathBuf,
    listener: OwnedFd,
    closed: bool,
    _lock: std::fs::File,
}

impl RuntimeFolder {
    /// Closes it: no process finds it any more or can connect to it.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        let _ = std::fs::remove_file(&self.path);
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }

    /// Takes the place at `path` for good, with its files beside it; see
    /// [`RuntimeFolder::take_apart`].
    ///
    /// # Errors
    /// [`StartError`] names what is in the way.
    pub fn take(path: &Path, audience: Audience) -> Result<RuntimeFolder, StartError> {
        RuntimeFolder::take_apart(path, path, audience, DaemonLifetime::Permanent)
    }

    /// Takes the place at `path`. `files`: the prefix of the names of the lock and of other files;
    /// root in a container could hold a lock in a folder that the container gets. The folder must
    /// be the owner's, or root's, for every audience. A permanent daemon takes the place of one
    /// that was started on demand, which ends.
    ///
    /// # Errors
    /// [`StartError`] names what is in the way.
    pub fn take_apart(
        path: &Path,
        files: &Path,
        audience: Audience,
        lifetime: DaemonLifetime,
    ) -> Result<RuntimeFolder, StartError> {
        if path.as_os_str().len() > PATH_BYTES_MAX {
            return Err(StartError::TooLong { path: path.into() });
        }
        make_folder(folder_of(path), audience)?;
        if folder_of(files) != folder_of(path) {
            make_folder(folder_of(files), Audience::Owner)?;
        }
        let (lock, last) = instance_lock::take(path, files, lifetime)?;
        remove_stale(path, last)?;
        let mode = match audience {
            Audience::AllUsers => 0o666,
            Audience::Owner => 0o600,
        };
        let listener = seqpacket::listen(path, mode)
            .map_err(|source| StartError::Listen { path: path.into(), source })?;
        Ok(RuntimeFolder {
            path: path.into(),
            files: files.into(),
            listener,
            closed: false,
            _lock: lock,
        })
    }

    /// The socket's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The prefix of the daemon's files.
    pub(crate) fn files(&self) -> &Path {
        &self.files
    }

    pub(crate) fn listener(&self) -> &OwnedFd {
        &self.listener
    }
}

impl Drop for RuntimeFolder {
    fn drop(&mut self) {
        // The lock is still held, so the socket is ours. The lock file stays: removing it would
        // let two daemons hold locks on different files of the same name.
        if !self.closed {
            self.close();
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn folder_error(path: &Path, problem: impl Into<String>) -> StartError {
    StartError::Folder { path: path.into(), problem: problem.into() }
}

fn make_folder(folder: &Path, audience: Audience) -> Result<(), StartError> {
    use std::os::unix::fs::DirBuilderExt;
    let mode = match audience {
        Audience::AllUsers => 0o755,
        Audience::Owner => 0o700,
    };
    match std::fs::DirBuilder::new().mode(mode).create(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(folder_error(folder, format!("cannot be created: {error}"))),
    }
    let status = rustix::fs::stat(folder)
        .map_err(|error| folder_error(folder, format!("cannot be read: {error}")))?;
    if FileType::from_raw_mode(status.st_mode) != FileType::Directory {
        return Err(folder_error(folder, "is not a directory"));
    }
    // In a folder that others may write to, they could replace the socket.
    let others_write = status.st_mode & 0o022 != 0;
    let sticky = status.st_mode & 0o1000 != 0;
    if others_write && !sticky {
        return Err(folder_error(folder, "can be written to by other users"));
    }
    if status.st_uid != geteuid().as_raw() && status.st_uid != 0 {
        let owner = status.st_uid;
        return Err(folder_error(folder, format!("belongs to another user (uid {owner})")));
    }
    Ok(())
}

/// Takes away the socket that the last daemon here left.
fn remove_stale(path: &Path, last: LastHolder) -> Result<(), StartError> {
    let Ok(status) = lstat(path) else { return Ok(()) };
    if FileType::from_raw_mode(status.st_mode) != FileType::Socket {
        return Err(StartError::NotASocket { path: path.into() });
    }
    // We hold the lock, so no daemon of ours lives; another program's server may. A dead process
    // that is stuck with its files still listens.
    let alive = match seqpacket::listener(path) {
        Listener::Alive => true,
        Listener::Full => last == LastHolder::Unknown,
        Listener::None | Listener::Dead => false,
    };
    if alive {
        return Err(StartError::InUse { path: path.into(), pid: None });
    }
    std::fs::remove_file(path).map_err(|source| StartError::Listen { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FlockOperation, flock};

    #[test]
    fn a_holder_of_the_folder_keeps_no_daemon_out() {
        let folder = std::env::temp_dir().join(format!("omniverb-place-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (path, files) = (folder.join("tenants/x.sock"), folder.join("tenants-operator/x.sock"));
        let take = || {
            let lifetime = DaemonLifetime::Permanent;
            RuntimeFolder::take_apart(&path, &files, Audience::AllUsers, lifetime)
        };
        let first = take().unwrap();
        assert!(matches!(take(), Err(StartError::InUse { pid: Some(_), .. })));
        let tenants = || std::fs::read_dir(path.parent().unwrap()).unwrap().map(Result::unwrap);
        let names: Vec<_> = tenants().map(|entry| entry.file_name()).collect();
        assert_eq!(names, ["x.sock"], "nothing but the socket");
        // Another process holds what can be opened there, and the folder itself.
        let opened = tenants().filter_map(|entry| std::fs::File::open(entry.path()).ok());
        let files: Vec<_> = opened.chain(std::fs::File::open(path.parent().unwrap())).collect();
        for file in &files {
            flock(file, FlockOperation::NonBlockingLockExclusive).unwrap();
        }
        drop(first);
        drop(take().unwrap());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
