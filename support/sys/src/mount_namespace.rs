//! Makes a mount namespace for this process and its children.

// UNSAFETY: `unshare`, which rustix calls so because of descriptors.
#![expect(unsafe_code)]

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, write};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::io;

/// Has this process mounts of its own: by its privileges, or else in a user namespace in which only
/// its user is known. What is mounted outside still comes in; nothing gets out. It must have one
/// thread only.
///
/// # Errors
/// EPERM where neither is allowed, and what else the kernel says.
pub fn unshare() -> io::Result<()> {
    match apart(UnshareFlags::NEWNS) {
        Ok(()) => {}
        Err(Errno::PERM) => {
            let (user, group) = (geteuid(), getegid());
            apart(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
            // Groups cannot be given up that deny a process something.
            say(c"/proc/self/setgroups", "deny")?;
            say(c"/proc/self/uid_map", &format!("{0} {0} 1", user.as_raw()))?;
            say(c"/proc/self/gid_map", &format!("{0} {0} 1", group.as_raw()))?;
        }
        Err(errno) => return Err(errno.into()),
    }
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(())
}

fn apart(flags: UnshareFlags) -> Result<(), Errno> {
    // SAFETY: descriptors stay shared.
    unsafe { unshare_unsafe(flags) }
}

fn say(path: &core::ffi::CStr, text: &str) -> io::Result<()> {
    let file = openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    write(&file, text.as_bytes())?;
    Ok(())
}
