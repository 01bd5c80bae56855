//! Where QEMU finds a machine's window, and where it listens for its porter: a folder for each
//! machine, beside the operators' socket.

use anyhow::{Context, bail};
use omniverb_session::machine::MachineName;
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Stat, Uid, chownat, fstat, open, openat, statat,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

/// The folder beside the socket.
const FOLDER: &str = "machines";
const WINDOW: &str = "window";
const PORT: &str = "port";
/// Bytes that a socket's path may have.
const PATH_BYTES_MAX: usize = 107;

/// Who runs QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

impl User {
    /// Whoever runs us.
    pub(super) fn ourselves() -> User {
        use rustix::process::{getegid, geteuid};
        User { uid: geteuid().as_raw(), gid: getegid().as_raw() }
    }
}

/// `UID:GID`, or the name of a user in `/etc/passwd`, with whose group it goes.
impl std::str::FromStr for User {
    type Err = String;

    fn from_str(text: &str) -> Result<User, String> {
        if let Some((uid, gid)) = text.split_once(':')
            && let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse())
        {
            return Ok(User { uid, gid });
        }
        let list = std::fs::read_to_string("/etc/passwd").map_err(|error| error.to_string())?;
        named(text, &list).ok_or_else(|| format!("no user is {text:?}; UID:GID will do, too"))
    }
}

fn named(name: &str, list: &str) -> Option<User> {
    let line = list.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2).map(str::parse);
    Some(User { uid: fields.next()?.ok()?, gid: fields.next()?.ok()? })
}

/// A machine's folder. It is gone with this, unless another has taken its place: the next machine
/// of that name may be there before the last one's keeper has ended.
pub(super) struct Place {
    path: PathBuf,
    folder: OwnedFd,
}

impl Place {
    /// Makes it, in `beside`, for this user of QEMU's. What somebody left there is gone.
    pub(super) fn make(
        beside: &Path,
        name: MachineName,
        user: Option<User>,
    ) -> anyhow::Result<Place> {
        let all = beside.join(FOLDER);
        let folder = all.join(name.text());
        let make = || -> std::io::Result<()> {
            if !all.exists() {
                std::fs::DirBuilder::new().mode(0o755).create(&all)?;
            }
            if folder.exists() {
                std::fs::remove_dir_all(&folder)?;
            }
            std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
            let user = user.filter(|user| *user != User::ourselves());
            if let Some(user) = user {
                let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
                chownat(CWD, &folder, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Ok(())
        };
        make().with_context(|| folder.display().to_string())?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = Place { folder: open(&folder, flags, Mode::empty())?, path: folder };
        if place.port().len() > PATH_BYTES_MAX {
            bail!("{} is too long for a socket's path", place.port());
        }
        Ok(place)
    }

    /// A path of the folder that does not lead to another.
    pub(super) fn folder(&self) -> String {
        format!("/proc/self/fd/{}", self.folder.as_raw_fd())
    }

    /// Whether somebody has made a socket there.
    pub(super) fn has_port(&self) -> bool {
        statat(&self.folder, PORT, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Where QEMU listens.
    pub(super) fn port(&self) -> String {
        self.path.join(PORT).display().to_string()
    }

    /// Where it finds the window.
    pub(super) fn window(&self) -> String {
        self.path.join(WINDOW).display().to_string()
    }

    /// The window is there.
    pub(super) fn show(&self, at: &str) -> anyhow::Result<()> {
        symlink(at, self.window()).with_context(|| self.window())
    }

    /// Connects to QEMU. The folder is its user's, who may have put something else there: what is
    /// no socket, or leads to another one, is refused.
    pub(super) fn connect(&self) -> std::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = openat(&self.folder, PORT, flags, Mode::empty())?;
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &address)?;
        Ok(socket)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let numbers = |status: Stat| (status.st_dev, status.st_ino);
        let ours = fstat(&self.folder).map(numbers);
        let there = statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW).map(numbers);
        if ours.is_ok() && ours == there {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_and_numbers() {
        let list = "root:x:0:0:root:/:/bin/sh\nqemu:x:107:64055::/none:/bin/false\nx:x:y:1\n";
        assert_eq!(named("qemu", list), Some(User { uid: 107, gid: 64055 }));
        assert_eq!(named("root", list), Some(User { uid: 0, gid: 0 }));
        for nobody in ["", "qem", "x", "107"] {
            assert_eq!(named(nobody, list), None, "{nobody}");
        }
        assert_eq!("1:2".parse(), Ok(User { uid: 1, gid: 2 }));
        assert_eq!(User { uid: 1, gid: 2 }.to_string(), "1:2");
        assert!("1:".parse::<User>().is_err());
    }

    #[test]
    fn a_place_is_there_for_a_while_and_leads_to_sockets_only() {
        let name = MachineName::new("web-1").unwrap();
        let beside = std::env::temp_dir().join(format!("omniverb-place-{}", std::process::id()));
        std::fs::create_dir(&beside).unwrap();
        let place = Place::make(&beside, name, None).unwrap();
        assert!(place.connect().is_err());
        let other = beside.join("other");
        let _listener = std::os::unix::net::UnixListener::bind(&other).unwrap();
        symlink(&other, place.port()).unwrap();
        assert!(place.connect().is_err(), "another's");
        std::fs::remove_file(place.port()).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(place.port()).unwrap();
        place.connect().unwrap();
        let again = Place::make(&beside, name, None).unwrap();
        assert!(again.connect().is_err(), "what was left is gone");
        let _listener = std::os::unix::net::UnixListener::bind(again.port()).unwrap();
        assert!(place.connect().is_err(), "the next one's");
        drop(place);
        again.connect().unwrap();
        drop(again);
        std::fs::remove_dir(beside.join(FOLDER)).unwrap();
        std::fs::remove_dir_all(&beside).unwrap();
    }
}
