//! Keeps the presented files of a user true in a network namespace, by one process for all
//! programs.
//!
//! In: `omniverb run`, which needs the folder. Out: the folder, for as long as a program runs that
//! was shown it.
//!
//! Locks decide. The *supervisor's* is held by the process that keeps the folder. The *entry* is
//! shared by each `omniverb run` from the moment it looks whether there is a supervisor until it
//! has become the program; the supervisor ends only when it has the entry lock to itself and no
//! program is left. Programs are found by the variable in their environment that names the folder.
//! The files of the locks go with the folder.

use super::current_device_values::Source;
use super::folder_writer::Folder;
use super::sysfs_tree::{self, Tree};
use anyhow::{Context, bail};
use omniverb_session::{PRESENTED_VARIABLE, SOCKET_VARIABLE};
use omniverb_sys::{fd_inheritance, netns, pidfd, user_daemon_socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Seconds between two looks while something changes, and when nothing has for a while.
const BUSY_SECONDS: i64 = 1;
const QUIET_SECONDS: i64 = 5;
/// Programs whose end is waited for at a time; when they have ended, others are looked for.
const WATCHED_MAX: usize = 64;
/// How often, and how far apart, it is looked whether another process completes the folder.
const LOOKS: usize = 1000;
const LOOK: Duration = Duration::from_millis(10);
/// The prefix of kept folders' names.
const PREFIX: &str = "presented-";
/// A supervisor's message when the folder is complete.
const READY: &[u8] = b"ready\n";

/// Where root's folders are, if that can be.
const SYSTEM_FOLDER: &str = "/run/omniverb-presented";

/// A folder that is kept at least until this is dropped or the process has become a program that
/// names the folder.
#[derive(Debug)]
pub(super) struct PresentedFolder {
    pub(super) folder: PathBuf,
    _entry: File,
}

/// The folder for programs like us, kept.
pub(super) fn obtain(socket: &Path) -> anyhow::Result<PresentedFolder> {
    let mut refused = None;
    for base in bases() {
        match obtain_in(&base, socket) {
            Ok(kept) => return Ok(kept),
            Err(error) => {
                refused.get_or_insert(error.context(format!("{}", base.display())));
            }
        }
    }
    Err(refused.unwrap_or_else(|| {
        anyhow::anyhow!("no folder is usable for presented files: set XDG_RUNTIME_DIR")
    }))
}

/// Folders that are ours, or can be made so: another user who could write there could mislead our
/// programs.
fn bases() -> Vec<PathBuf> {
    let system = geteuid().is_root().then(|| PathBuf::from(SYSTEM_FOLDER));
    let own = user_daemon_socket::path().and_then(|path| path.parent().map(Path::to_owned));
    let memory = format!("/dev/shm/omniverb-{}", geteuid().as_raw());
    system.into_iter().chain(own).chain([memory.into()]).collect()
}

fn obtain_in(base: &Path, socket: &Path) -> anyhow::Result<PresentedFolder> {
    sysfs_tree::make_folder(base)
        .and_then(|()| user_daemon_socket::check_folder(base))
        .context("belongs to another user or is writable by others")?;
    let name = name(socket)?;
    let folder = base.join(&name);
    let entry = locked(&folder.with_extension("entry"), FlockOperation::LockShared)?;
    // Of several processes at once one starts a supervisor.
    let _first = locked(&folder.with_extension("first"), FlockOperation::LockExclusive)?;
    let supervisor = lock_file(&folder.with_extension("supervisor"))?;
    for _ in 0..LOOKS {
        if flock(&supervisor, FlockOperation::NonBlockingLockShared).is_ok() {
            flock(&supervisor, FlockOperation::Unlock)?;
            // A supervisor would become the child of the first process of a container, and that is
            // to be the program, which may wait until it has no children.
            if std::process::id() == 1 {
                replace(&folder, &mut Source::default(), &mut Tree::default(), socket)?;
            } else {
                start(&folder, socket)?;
            }
            return Ok(PresentedFolder { folder, _entry: entry });
        }
        if sysfs_tree::is_complete(&folder) {
            return Ok(PresentedFolder { folder, _entry: entry });
        }
        // It has begun and lost its starter, or it is just ending.
        std::thread::sleep(LOOK);
    }
    bail!("{} was not filled in time: its supervisor does not answer", folder.display())
}

/// A folder that a supervisor of ours made for others than us: another user's, or for another
/// network namespace or daemon. (A folder of `omniverb present` has the name that the user chose.)
pub(super) fn is_for_others(folder: &Path, socket: &Path) -> bool {
    let given = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    given.starts_with(PREFIX) && name(socket).ok().as_deref() != Some(given)
}

/// One folder for all processes that are to see the same, and whose end one supervisor can see.
fn name(socket: &Path) -> anyhow::Result<String> {
    let network = netns::Namespace::current()?.identity().inode;
    let processes = std::fs::metadata("/proc/self/ns/pid")?.ino();
    let mut hasher = DefaultHasher::new();
    socket.as_os_str().as_bytes().hash(&mut hasher);
    Ok(format!("{PREFIX}{network}-{processes}-{:08x}", hasher.finish() as u32))
}

fn lock_file(path: &Path) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true).mode(0o600);
    options.custom_flags(0o400_000); // O_NOFOLLOW
    options.open(path).with_context(|| path.display().to_string())
}

/// Waits for a lock. A supervisor that ends removes the files: the one that is locked has to be
/// there.
fn locked(path: &Path, operation: FlockOperation) -> anyhow::Result<File> {
    loop {
        let file = lock_file(path)?;
        flock(&file, operation)?;
        let ours = file.metadata()?;
        let there = std::fs::symlink_metadata(path);
        if there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
            return Ok(file);
        }
    }
}

/// Has a supervisor started that is not our child: we are to become a program.
fn start(folder: &Path, socket: &Path) -> anyhow::Result<()> {
    let output = Command::new(std::env::current_exe()?)
        .arg("present")
        .args(["--for", &std::process::id().to_string()])
        .arg(folder)
        .env(SOCKET_VARIABLE, socket)
        .env_remove(PRESENTED_VARIABLE)
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output()
        .context("cannot start the supervisor of presented files")?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let line = text.lines().next().unwrap_or("what keeps it did not say why it ended");
        bail!("{}", line.trim_start_matches("omniverb: "));
    }
    Ok(())
}

/// `omniverb present --for PID FOLDER`: starts the supervisor, and ends when it is ready.
pub(super) fn launch(folder: &Path, pid: i32) -> anyhow::Result<()> {
    fd_inheritance::nothing_but_standard()?;
    let mut supervisor = Command::new(std::env::current_exe()?)
        .arg("present")
        .args(["--keep", &pid.to_string()])
        .arg(folder)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the supervisor of presented files")?;
    let mut said = Vec::new();
    let Some(mut output) = supervisor.stdout.take() else {
        bail!("the supervisor of presented files has no output")
    };
    output.read_to_end(&mut said)?;
    // Why it is not, it has said on standard error.
    if said == READY { Ok(()) } else { std::process::exit(1) }
}

/// `omniverb present --keep PID FOLDER`: the supervisor, for a program and all that come later.
pub(super) fn keep(folder: &Path, socket: &Path, pid: i32) -> anyhow::Result<()> {
    // A signal of its terminal that ends the program is not meant for us.
    let _ = rustix::process::setsid();
    let supervisor = lock_file(&folder.with_extension("supervisor"))?;
    if flock(&supervisor, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!("another process keeps {}", folder.display());
    }
    let (mut source, mut tree) = (Source::default(), Tree::default());
    let opened = replace(folder, &mut source, &mut tree, socket)?;
    let mut watched: Vec<OwnedFd> = pidfd::of(pid).into_iter().collect();
    ready()?;
    let mut seconds = BUSY_SECONDS;
    loop {
        wait(&watched, seconds)?;
        watched.retain(|pidfd| pidfd::is_alive(pidfd.as_fd()));
        if watched.is_empty() {
            watched = shown(folder);
        }
        if watched.is_empty() && end(folder)? {
            return Ok(());
        }
        // A daemon that is gone may come back; a folder that cannot be written may again.
        let changed = source.look(socket).and_then(|values| tree.show(&opened, values));
        let changed = changed.unwrap_or(false);
        seconds = if changed { BUSY_SECONDS } else { (seconds + 1).min(QUIET_SECONDS) };
    }
}

/// Makes a folder true for the first time. Files that a killed supervisor left may be out of date,
/// and programs may be reading them: so the current ones come first.
fn replace(
    folder: &Path,
    source: &mut Source,
    tree: &mut Tree,
    socket: &Path,
) -> anyhow::Result<Folder> {
    sysfs_tree::make_folder(folder)?;
    let opened = Folder::open(folder)?;
    tree.show(&opened, source.look(socket)?)?;
    tree.remove_others(&opened);
    sysfs_tree::complete(&opened)?;
    Ok(opened)
}

fn ready() -> anyhow::Result<()> {
    let mut output = std::io::stdout();
    output.write_all(READY)?;
    output.flush()?;
    let nothing = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    Ok(())
}

/// Until one of them ends, or for so long.
fn wait(watched: &[OwnedFd], seconds: i64) -> anyhow::Result<()> {
    let mut files: Vec<PollFd<'_>> =
        watched.iter().map(|file| PollFd::new(file, PollFlags::IN)).collect();
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    match poll(&mut files, Some(&time)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Programs that are shown the folder; some of them, if there are many.
fn shown(folder: &Path) -> Vec<OwnedFd> {
    let mark = [PRESENTED_VARIABLE.as_bytes(), b"=", folder.as_os_str().as_bytes()].concat();
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let Ok(pidfd) = pidfd::of(pid) else { continue };
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        let is_shown = environment.split(|byte| *byte == 0).any(|variable| variable == mark);
        if is_shown && found.len() < WATCHED_MAX {
            found.push(pidfd);
        }
    }
    found
}

/// Removes the folder, unless a process is just about to use it.
fn end(folder: &Path) -> anyhow::Result<bool> {
    let entry = lock_file(&folder.with_extension("entry"))?;
    if flock(&entry, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(false);
    }
    // A process that shared the entry lock a moment ago is a program by now.
    if !shown(folder).is_empty() {
        return Ok(false);
    }
    let _ = std::fs::remove_dir_all(folder);
    // The entry lock last: a holder of the old one checks whether it is still there.
    for lock in ["first", "supervisor", "entry"] {
        let _ = std::fs::remove_file(folder.with_extension(lock));
    }
    Ok(true)
}
