//! Makes a machine's folder, where QEMU finds its window and listens for its proxy.
//!
//! `NAME/window` is a link of the supervisor's own, and so are `pair-1` and so on; `NAME/mapped` is
//! a socket of its own, to which QEMU's user may connect. `NAME/qemu`, where QEMU makes `port` (and
//! `monitor`, if windows may be plugged in later), belongs to QEMU's user, who may put anything
//! there, and keep it there: so leftovers are moved aside, and starting a machine does not depend
//! on their removal.

#[cfg(test)]
mod tests;

use anyhow::{Context, bail, ensure};
use omniverb_session::vm::MachineName;
use omniverb_sys::random;
use rustix::fs::{
    AtFlags, CWD, Dir, Gid, Mode, OFlags, Stat, Uid, chmodat, chownat, fchmod, fchown, fstat,
    mkdirat, open, openat, renameat, stat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with,
};
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const WINDOW: &str = "window";
const PAIR: &str = "pair-";
const QEMU: &str = "qemu";
const PORT: &str = "port";
const MONITOR: &str = "monitor";
const MAPPED: &str = "mapped";
/// How a folder is opened that is to be itself, and no link to another.
const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// All users may pass and look into it.
const FOR_ALL: Mode = Mode::from_raw_mode(0o755);
/// Levels of folders that are removed; QEMU makes none.
const DEPTH: usize = 8;
/// Bytes that a socket's path may have.
const PATH_BYTES_MAX: usize = 107;

/// The user that runs QEMU.
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
    /// The user that runs this process.
    pub(super) fn ourselves() -> User {
        use rustix::process::getegid;
        User { uid: geteuid().as_raw(), gid: getegid().as_raw() }
    }

    /// The first folder on the way into this one that the user may not pass, by its mode.
    fn is_stopped_at(self, folder: &Path) -> Option<&Path> {
        let closed = |folder: &&Path| {
            let Ok(status) = stat(*folder) else { return true };
            let who = match (status.st_uid == self.uid, status.st_gid == self.gid) {
                (true, _) => 0o100,
                (_, true) => 0o010,
                _ => 0o001,
            };
            self.uid != 0 && status.st_mode & who == 0
        };
        let way: Vec<&Path> = folder.ancestors().collect();
        way.into_iter().rev().find(closed)
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
/// of that name may be there before the last one's supervisor has ended.
pub(super) struct MachineFolder {
    path: PathBuf,
    name: MachineName,
    /// That of all machines, of this one, and what of it is QEMU's.
    all: OwnedFd,
    folder: OwnedFd,
    qemu: OwnedFd,
    /// Links that were made.
    shown: Vec<String>,
}

impl MachineFolder {
    /// Makes it, in the folder `all`, for this user of QEMU's. Leftovers of an earlier one are
    /// moved aside, and removed as soon as possible.
    pub(super) fn make(
        all: &Path,
        name: MachineName,
        user: Option<User>,
    ) -> anyhow::Result<MachineFolder> {
        let path = all.join(name.text());
        let place =
            MachineFolder::made(all, name, user).with_context(|| path.display().to_string())?;
        if place.monitor_path().len() > PATH_BYTES_MAX {
            bail!("{} is too long for a socket's path", place.port());
        }
        if let Some(user) = user
            && let Some(folder) = user.is_stopped_at(all)
        {
            bail!(
                "the user {user} may not pass {}, where its QEMU is to find the window: \
                 `chmod o+x` would let it",
                folder.display()
            );
        }
        Ok(place)
    }

    fn made(all: &Path, name: MachineName, user: Option<User>) -> anyhow::Result<MachineFolder> {
        let path = all.join(name.text());
        let all = folder_of_all(all)?;
        // Under a name that no machine has, until it is complete: removing an older place of our
        // name removes nothing of it.
        let [new, old] = [(); 2].map(|()| format!("+{:016x}", random::number()));
        mkdirat(&all, &new, Mode::RWXU)?;
        let folder = openat(&all, &new, FOLDER, Mode::empty())?;
        mkdirat(&folder, QEMU, Mode::RWXU)?;
        let qemu = openat(&folder, QEMU, FOLDER, Mode::empty())?;
        if let Some(user) = user.filter(|user| *user != User::ourselves()) {
            fchown(&qemu, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?;
        }
        // Whatever mask our starter has.
        fchmod(&folder, FOR_ALL)?;
        match renameat(&all, name.text(), &all, &old) {
            Ok(()) => remove_aside(&all, old)?,
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        renameat(&all, &new, &all, name.text())?;
        Ok(MachineFolder { path, name, all, folder, qemu, shown: Vec::new() })
    }

    /// A path of QEMU's part that does not lead to another.
    pub(super) fn qemu(&self) -> String {
        format!("/proc/self/fd/{}", self.qemu.as_raw_fd())
    }

    /// Whether QEMU has made a socket there.
    pub(super) fn has_port(&self) -> bool {
        statat(&self.qemu, PORT, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Where QEMU listens.
    pub(super) fn port(&self) -> String {
        self.path.join(QEMU).join(PORT).display().to_string()
    }

    /// Where it has a monitor for us, if it is to have one.
    pub(super) fn monitor_path(&self) -> String {
        self.path.join(QEMU).join(MONITOR).display().to_string()
    }

    /// The monitor's socket, to connect to.
    pub(super) fn monitor(&self) -> std::io::Result<Monitor> {
        Ok(Monitor(self.qemu.try_clone()?))
    }

    /// Where QEMU connects that windows are mapped into.
    pub(super) fn mapped_path(&self) -> String {
        self.path.join(MAPPED).display().to_string()
    }

    /// Listens at the mapper's socket, which lasts as long as this place.
    pub(super) fn listen(&mut self, user: Option<User>) -> std::io::Result<OwnedFd> {
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // By way of what is open, so it is ours that it is in.
        let path = format!("/proc/self/fd/{}/{MAPPED}", self.folder.as_raw_fd());
        bind(&listener, &SocketAddrUnix::new(path)?)?;
        self.shown.push(MAPPED.to_owned());
        if let Some(User { uid, gid }) = user.filter(|user| *user != User::ourselves()) {
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            chownat(&self.folder, MAPPED, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        chmodat(&self.folder, MAPPED, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        rustix::net::listen(&listener, 1)?;
        Ok(listener)
    }

    /// Where it finds the window.
    pub(super) fn window(&self) -> String {
        self.path.join(WINDOW).display().to_string()
    }

    /// The path of a pair window.
    pub(super) fn pair(&self, number: usize) -> String {
        self.path.join(format!("{PAIR}{number}")).display().to_string()
    }

    /// The window is there, and behind it the pair windows.
    pub(super) fn show(&mut self, at: &[String]) -> anyhow::Result<()> {
        let pairs = (1..).map(|number| format!("{PAIR}{number}"));
        for (name, at) in std::iter::once(WINDOW.to_owned()).chain(pairs).zip(at) {
            symlinkat(at, &self.folder, &name).with_context(|| self.window())?;
            self.shown.push(name);
        }
        Ok(())
    }

    /// They are not any more: QEMU tries without end to open a link that leads nowhere.
    pub(super) fn hide(&self) {
        for name in &self.shown {
            let _ = unlinkat(&self.folder, name, AtFlags::empty());
        }
    }

    /// Connects to where QEMU listens for the proxy.
    pub(super) fn connect(&self) -> std::io::Result<OwnedFd> {
        connect_in(&self.qemu, PORT)
    }
}

/// Where QEMU has its monitor: its part of a machine's folder.
pub(super) struct Monitor(pub(super) OwnedFd);

impl Monitor {
    pub(super) fn connect(&self) -> std::io::Result<OwnedFd> {
        connect_in(&self.0, MONITOR)
    }
}

/// Connects to QEMU. The folder is its user's, who may have put another entry there: one that is no
/// socket, or leads to another, is refused.
fn connect_in(folder: &OwnedFd, name: &str) -> std::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = openat(folder, name, flags, Mode::empty())?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &address)?;
    Ok(socket)
}

impl Drop for MachineFolder {
    fn drop(&mut self) {
        self.hide();
        // By way of what is open, so it is ours that is emptied. One that is not is left.
        remove(&self.folder, OsStr::new(QEMU), DEPTH);
        let numbers = |status: Stat| (status.st_dev, status.st_ino);
        let ours = fstat(&self.folder).map(numbers);
        let there = statat(&self.all, self.name.text(), AtFlags::SYMLINK_NOFOLLOW).map(numbers);
        if ours.is_ok() && ours == there {
            let _ = unlinkat(&self.all, self.name.text(), AtFlags::REMOVEDIR);
        }
    }
}

/// The folder of all machines, which is made if need be. In one where all users may make entries,
/// as /tmp, it may be another user's.
fn folder_of_all(path: &Path) -> anyhow::Result<OwnedFd> {
    let made = match mkdirat(CWD, path, Mode::RWXU) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(errno) => return Err(errno.into()),
    };
    let folder = open(path, FOLDER, Mode::empty())?;
    let status = fstat(&folder)?;
    let known = [0, geteuid().as_raw()].contains(&status.st_uid);
    ensure!(known, "the folder {} belongs to another user", path.display());
    ensure!(status.st_mode & 0o022 == 0, "others may write to {}", path.display());
    if made {
        fchmod(&folder, FOR_ALL)?;
    }
    Ok(folder)
}

/// Removes what was moved aside, in no hurry: there may be much of it.
fn remove_aside(all: &OwnedFd, name: String) -> anyhow::Result<()> {
    let all = all.try_clone()?;
    let work = move || remove(&all, OsStr::new(&name), DEPTH);
    std::thread::Builder::new().name("omni:remove".into()).spawn(work)?;
    Ok(())
}

/// Removes a folder, as well as can be: its owner may have made it deep (each level costs a
/// descriptor), and a file system may hang in it.
fn remove(at: &OwnedFd, name: &OsStr, depth: usize) {
    if unlinkat(at, name, AtFlags::empty()).is_ok() {
        return;
    }
    let Ok(folder) = openat(at, name, FOLDER, Mode::empty()) else { return };
    if depth > 0
        && let Ok(entries) = Dir::read_from(&folder)
    {
        for entry in entries.flatten() {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                remove(&folder, name, depth - 1);
            }
        }
    }
    let _ = unlinkat(at, name, AtFlags::REMOVEDIR);
}
