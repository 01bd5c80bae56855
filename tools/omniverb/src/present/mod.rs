//! Presents the device's files to programs: `/sys/class/infiniband`, `/dev/infiniband`, the answers
//! of `rdma`.
//!
//! In: a program about to be run, or a folder. Out: the program's environment, in which a preloaded
//! library (`app/presented_files`) leads those paths to a folder that is kept true.
//! docs/decisions/0031-programs-see-sysfs-and-device-files.md says why it is done so.

mod current_device_values;
mod folder_writer;
mod mounts;
pub(crate) mod rdma_stand_in;
mod shown_folder;
mod supervisor;
mod sysfs_tree;

use crate::{find_daemon, find_drop_in_library};
use anyhow::Context;
use current_device_values::Source;
use folder_writer::Folder;
use omniverb_arguments::PresentMode;
use omniverb_session::PRESENTED_VARIABLE;
use omniverb_sys::user_daemon_socket;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use supervisor::PresentedFolder;
use sysfs_tree::Tree;

/// Held by `run` until it has become the program.
#[derive(Debug, Default)]
pub(crate) struct Presented {
    preloaded: Option<OsString>,
    _kept: Option<PresentedFolder>,
}

impl Presented {
    /// The libraries preloaded into the program.
    pub(crate) fn preloaded(&self) -> OsString {
        let inherited = || std::env::var_os("LD_PRELOAD").unwrap_or_default();
        self.preloaded.clone().unwrap_or_else(inherited)
    }
}

/// Adds to the environment of `command` the variables that show the device's files to a program of
/// the daemon at `socket`. If that is impossible the user is told so, once: otherwise programs that
/// look there fall back to something slower silently.
pub(crate) fn to(command: &mut Command, socket: &Path, mode: PresentMode) -> Presented {
    // Without a daemon there is no device to show; the library reports that to a program that asks
    // for one.
    let inherited = presented(socket);
    // A program with both already may have them from another installation.
    let nothing_to_do = inherited.is_some()
        && match mode {
            PresentMode::Mounts => mounts::are_shown(),
            PresentMode::Preload | PresentMode::Off => find_drop_in_library::is_preloaded(),
        };
    if mode == PresentMode::Off
        || nothing_to_do
        || inherited.is_none() && find_daemon::connect(socket).is_err()
    {
        return Presented::default();
    }
    let kept = || if inherited.is_some() { Ok(None) } else { supervisor::obtain(socket).map(Some) };
    let shown = kept().and_then(|kept| {
        let folder = kept.as_ref().map(|kept| &kept.folder).or(inherited.as_ref());
        let is_mounted =
            mode == PresentMode::Mounts && folder.is_some_and(|folder| mounted(folder));
        Ok((kept, if is_mounted { None } else { Some(find_drop_in_library::paths()?) }))
    });
    match shown {
        Ok((kept, library)) => {
            if let Some(kept) = &kept {
                command.env(PRESENTED_VARIABLE, &kept.folder);
            }
            let preloaded =
                library.map(|library| find_drop_in_library::first(&library, "LD_PRELOAD"));
            if let Some(preloaded) = &preloaded {
                command.env("LD_PRELOAD", preloaded);
                forgive_sanitizers(command);
            }
            // Without a PATH programs are found in the C library's own, which a PATH would replace.
            let has_path = std::env::var_os("PATH").is_some_and(|path| !path.is_empty());
            if let Some(stand_ins) = find_drop_in_library::stand_ins().filter(|_| has_path) {
                command.env("PATH", find_drop_in_library::first(&stand_ins, "PATH"));
            }
            Presented { preloaded, _kept: kept }
        }
        Err(error) => {
            eprintln!(
                "omniverb: programs that look for /dev/infiniband or /sys/class/infiniband will \
                 not see omv0: {error:#}; see omniverb doctor"
            );
            Presented::default()
        }
    }
}

/// Shows the folder by mounts. False: that cannot be, and the user knows.
fn mounted(folder: &Path) -> bool {
    match mounts::show(folder) {
        Ok(()) => true,
        Err(error) => {
            eprintln!(
                "omniverb: no mounts for this program, which sees /dev/infiniband and \
                 /sys/class/infiniband by a preloaded library: {error:#}"
            );
            false
        }
    }
}

/// A folder is shown to this process, and so to the program, and no other process writes there.
fn presented(socket: &Path) -> Option<PathBuf> {
    shown_folder::folder().filter(|folder| {
        user_daemon_socket::check_folder(folder).is_ok()
            && sysfs_tree::is_complete(folder)
            && !supervisor::is_for_others(folder, socket)
    })
}

/// AddressSanitizer refuses to work where another library comes before it, since that may have its
/// own malloc. Ours has none.
fn forgive_sanitizers(command: &mut Command) {
    let mut options = std::env::var_os("ASAN_OPTIONS").unwrap_or_default();
    if options.as_bytes().windows(17).any(|part| part == b"verify_asan_link_") {
        return;
    }
    if !options.is_empty() {
        options.push(":");
    }
    options.push("verify_asan_link_order=0");
    command.env("ASAN_OPTIONS", options);
}

/// Whether programs can be shown them: where they would be, or why not.
pub(crate) fn possible(socket: &Path) -> anyhow::Result<PathBuf> {
    find_drop_in_library::paths()?;
    match presented(socket) {
        Some(folder) => Ok(folder),
        None => Ok(supervisor::obtain(socket)?.folder),
    }
}

/// The task of `omniverb present`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// To say what is true now.
    Once,
    /// To keep it true.
    Always,
    /// To start a process that does, for this program.
    Start(i32),
    /// To be that process.
    Keep(i32),
}

/// `omniverb present`.
pub(crate) fn present(folder: &Path, task: Task) -> anyhow::Result<ExitCode> {
    let socket = find_daemon::serving()?;
    let folder = std::path::absolute(folder)?;
    match task {
        Task::Start(pid) => supervisor::launch(&folder, pid)?,
        Task::Keep(pid) => supervisor::keep(&folder, &socket, pid)?,
        Task::Once | Task::Always => {
            let (mut source, mut tree) = (Source::default(), Tree::default());
            let values = source.look(&socket)?;
            // Another user that may write there, or where it lies, could have us write elsewhere.
            let opened = sysfs_tree::make_folder(&folder).and_then(|()| Folder::open(&folder));
            let opened = opened.and_then(|opened| {
                user_daemon_socket::check_folder(&opened.path())?;
                Ok(opened)
            });
            let opened = opened.with_context(|| {
                format!("{} has to be a folder that only you can write to", folder.display())
            })?;
            tree.show(&opened, values)?;
            sysfs_tree::complete(&opened)?;
            if task == Task::Once {
                return Ok(ExitCode::SUCCESS);
            }
            loop {
                std::thread::sleep(std::time::Duration::from_secs(1));
                // A daemon that is gone may come back.
                if let Ok(values) = source.look(&socket) {
                    tree.show(&opened, values)?;
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
