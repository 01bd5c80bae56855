//! The daemon's place in the file system: a folder, a lock, a socket.
//!
//! The lock is held while the daemon lives and goes with it however it dies, so "is somebody
//! serving this socket" has one answer, and two daemons started at once cannot both win.

use crate::errors::{PATH_BYTES_MAX, StartError};
use crate::lock;
use omniverb_sys::socket::{self, Listener};
use rustix::fs::{FileType, lstat};
use rustix::process::geteuid;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// A listening socket that nobody else serves.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    listener: OwnedFd,
    closed: bool,
    _lock: std::fs::File,
}

impl Place {
    /// Nobody finds this place any more, and nobody can connect to it.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        let _ = std::fs::remove_file(&self.path);
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }

    /// Takes the place at `path`. `shared`: every user of the host may connect; otherwise only
    /// the owner, and the folder must be the owner's alone.
    ///
    /// # Errors
    /// [`StartError`] says what is in the way.
    pub fn take(path: &Path, shared: bool) -> Result<Place, StartError> {
        if path.as_os_str().len() > PATH_BYTES_MAX {
            return Err(StartError::TooLong { path: path.into() });
        }
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        make_folder(folder, shared)?;
        let (lock, succeeds) = lock::take(path)?;
        remove_stale(path, succeeds)?;
        let mode = if shared { 0o666 } else { 0o600 };
        let listener = socket::listen(path, mode)
            .map_err(|source| StartError::Listen { path: path.into(), source })?;
        Ok(Place { path: path.into(), listener, closed: false, _lock: lock })
    }

    /// The socket's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn listener(&self) -> &OwnedFd {
        &self.listener
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The lock is still held, so the socket is ours. The lock file stays: removing it would
        // let two daemons hold locks on different files of the same name.
        if !self.closed {
            self.close();
        }
    }
}

fn folder_error(path: &Path, problem: impl Into<String>) -> StartError {
    StartError::Folder { path: path.into(), problem: problem.into() }
}

fn make_folder(folder: &Path, shared: bool) -> Result<(), StartError> {
    use std::os::unix::fs::DirBuilderExt;
    let mode = if shared { 0o755 } else { 0o700 };
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

/// `succeeds`: the last daemon here is known to be dead.
fn remove_stale(path: &Path, succeeds: bool) -> Result<(), StartError> {
    let Ok(status) = lstat(path) else { return Ok(()) };
    if FileType::from_raw_mode(status.st_mode) != FileType::Socket {
        return Err(StartError::NotASocket { path: path.into() });
    }
    // We hold the lock, so no daemon of ours lives; somebody else's server may. A dead process
    // that cannot let go of its files still listens.
    let alive = match socket::listener(path) {
        Listener::Alive => true,
        Listener::Full => !succeeds,
        Listener::None | Listener::Dead => false,
    };
    if alive {
        return Err(StartError::InUse { path: path.into(), pid: None });
    }
    std::fs::remove_file(path).map_err(|source| StartError::Listen { path: path.into(), source })
}
