//! Holds the lock that names the daemon which serves a socket.
//!
//! It is an flock on a file in a folder that only the daemon's user may write to, so it ends with
//! its holder, unless that is dead but stuck in the kernel with its files: then a new daemon puts a
//! new lock file in the place of the old one. A guard lets only one of two new daemons do so.
//!
//! The file names the holder's pid, and says whether it was started on demand: such a one makes way
//! for a permanent one, as the host's service, and its programs go on with that.

use crate::start_errors::StartError;
use omniverb_sys::process_is_dead;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open, rename, stat};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Times the file is opened anew because another newcomer has replaced it.
const TRIES: usize = 50;
const PAUSE: Duration = Duration::from_millis(10);
/// How long a daemon that was started on demand may take to end.
const END_SECONDS: i64 = 10;

/// The word behind the pid in the lock file of a daemon that was started on demand.
const ON_DEMAND: &str = "on-demand";

/// How long a daemon is to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonLifetime {
    /// Until its last program has ended, or a permanent daemon wants its place.
    OnDemand,
    /// Until it is told to end.
    Permanent,
}

/// The state of the last holder of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastHolder {
    /// It is dead, though the kernel may not have let go of its files yet.
    Dead,
    /// There was none, or its pid is not in the file.
    Unknown,
}

/// Takes the lock of the socket at `path`, a file whose name begins with `files`; also returns the
/// state of the last holder. A permanent daemon has one that was started on demand end.
///
/// # Errors
/// [`StartError::InUse`] if a living process holds it.
pub(crate) fn take(
    path: &Path,
    files: &Path,
    lifetime: DaemonLifetime,
) -> Result<(File, LastHolder), StartError> {
    let name = with(files, ".lock");
    let failed = |source: io::Error| StartError::Listen { path: name.clone(), source };
    for _ in 0..TRIES {
        let mut file = open_file(&name).map_err(failed)?;
        let (pid, its_lifetime) = holder(&mut file);
        let dead = pid.is_some_and(process_is_dead::is_dead);
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // Another process may have put a new file in its place while we opened it.
            if is_at(&file, &name) {
                sign(&mut file, lifetime).map_err(failed)?;
                let last = if dead { LastHolder::Dead } else { LastHolder::Unknown };
                return Ok((file, last));
            }
        } else if dead && pid.is_some_and(|pid| is_held_by(&file, pid)) {
            if let Some(file) = replace(files, &name, &file, lifetime).map_err(failed)? {
                return Ok((file, LastHolder::Dead));
            }
        } else if lifetime == DaemonLifetime::Permanent
            && its_lifetime == DaemonLifetime::OnDemand
            && pid.is_some_and(|pid| is_held_by(&file, pid) && end(pid).is_ok())
        {
            // Its lock went with it. Another one may have been started on demand meanwhile.
            continue;
        } else if is_at(&file, &name) {
            return Err(StartError::InUse { path: path.into(), pid });
        }
        std::thread::sleep(PAUSE);
    }
    Err(StartError::InUse { path: path.into(), pid: None })
}

fn with(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn open_file(name: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(File::from(open(name, flags, Mode::from_raw_mode(0o600))?))
}

/// The process that wrote its pid into the file, and how long it is to serve.
fn holder(file: &mut File) -> (Option<i32>, DaemonLifetime) {
    let mut text = String::new();
    let _ = file.take(32).read_to_string(&mut text);
    let mut words = text.split_ascii_whitespace();
    let pid = words.next().and_then(|word| word.parse().ok());
    let lifetime = match words.next() {
        Some(ON_DEMAND) => DaemonLifetime::OnDemand,
        _ => DaemonLifetime::Permanent,
    };
    (pid, lifetime)
}

fn sign(file: &mut File, lifetime: DaemonLifetime) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    let pid = getpid().as_raw_nonzero();
    match lifetime {
        DaemonLifetime::OnDemand => writeln!(file, "{pid} {ON_DEMAND}"),
        DaemonLifetime::Permanent => writeln!(file, "{pid}"),
    }
}

/// Has a daemon end, and waits until it has.
fn end(pid: i32) -> io::Result<()> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    pidfd_send_signal(&process, Signal::TERM)?;
    let limit = Timespec { tv_sec: END_SECONDS, tv_nsec: 0 };
    match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

/// Whether this is the file of that name.
fn is_at(file: &File, name: &Path) -> bool {
    match (fstat(file), stat(name)) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

/// Whether this process, as we see it, has the lock by the kernel's word: a pid from another pid
/// namespace names another process here.
fn is_held_by(file: &File, pid: i32) -> bool {
    let inode = fstat(file).map(|status| status.st_ino).unwrap_or_default();
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    locks.lines().any(|line| says(line, inode, pid))
}

/// Whether a line of `/proc/locks` says so.
fn says(line: &str, inode: u64, pid: i32) -> bool {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, "FLOCK", _, _, owner, place, ..] = fields[..] else { return false };
    owner.parse() == Ok(pid)
        && place.rsplit(':').next().and_then(|text| text.parse().ok()) == Some(inode)
}

/// Puts a new lock file, locked by us, in the place of `old`, unless another process has done so.
fn replace(
    files: &Path,
    name: &Path,
    old: &File,
    lifetime: DaemonLifetime,
) -> io::Result<Option<File>> {
    let guard = open_file(&with(files, ".guard"))?;
    // Held for a moment only, by a process that is about to have the lock.
    if flock(&guard, FlockOperation::NonBlockingLockExclusive).is_err() || !is_at(old, name) {
        return Ok(None);
    }
    let fresh = with(files, ".lock.new");
    let _ = std::fs::remove_file(&fresh);
    let mut file = open_file(&fresh)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    sign(&mut file, lifetime)?;
    rename(&fresh, name)?;
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Audience;

    #[test]
    fn the_kernels_lock_list_is_parsed() {
        let line = "3: FLOCK  ADVISORY  WRITE 1234 00:1a:56789 0 EOF";
        assert!(says(line, 56789, 1234));
        assert!(!says(line, 5678, 1234) && !says(line, 56789, 123));
        assert!(!says("3: POSIX  ADVISORY  WRITE 1234 00:1a:56789 0 EOF", 56789, 1234));
        assert!(!says("", 0, 0));
    }

    /// A process whose main thread has ended while another thread lives, as one whose thread is
    /// stuck in the kernel: a zombie that keeps its files.
    #[test]
    fn the_lock_of_a_dead_process_keeps_no_daemon_out() {
        let folder = std::env::temp_dir().join(format!("omniverb-lock-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("socket");
        let program = "import ctypes, fcntl, os, socket, sys, threading, time\n\
            path = sys.argv[1]\n\
            lock = open(path + '.lock', 'w')\n\
            fcntl.flock(lock, fcntl.LOCK_EX)\n\
            print(os.getpid(), file=lock, flush=True)\n\
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
            s.bind(path)\n\
            s.listen(1)\n\
            threading.Thread(target=time.sleep, args=(60,)).start()\n\
            print('ready', flush=True)\n\
            sys.stdin.readline()\n\
            ctypes.CDLL(None).pthread_exit(0)\n";
        let mut holder = std::process::Command::new("python3")
            .args(["-c", program])
            .arg(&path)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        holder.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        let pid = i32::try_from(holder.id()).unwrap();
        match crate::runtime_folder::RuntimeFolder::take(&path, Audience::Owner).unwrap_err() {
            StartError::InUse { pid: Some(by), .. } => assert_eq!(by, pid),
            other => panic!("{other:?}"),
        }
        writeln!(holder.stdin.as_mut().unwrap()).unwrap();
        while !process_is_dead::is_dead(pid) {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(holder.try_wait().unwrap().is_none(), "it cannot be reaped");
        // Of many newcomers one wins.
        let newcomers: Vec<_> = (0..8)
            .map(|_| {
                let path = path.clone();
                std::thread::spawn(move || {
                    crate::runtime_folder::RuntimeFolder::take(&path, Audience::Owner)
                })
            })
            .collect();
        let results: Vec<_> = newcomers.into_iter().map(|one| one.join().unwrap()).collect();
        assert_eq!(results.iter().filter(|one| one.is_ok()).count(), 1, "{results:?}");
        assert!(omniverb_sys::seqpacket::is_alive(&path));
        drop(results);
        crate::runtime_folder::RuntimeFolder::take(&path, Audience::Owner).unwrap();
        holder.kill().unwrap();
        holder.wait().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
