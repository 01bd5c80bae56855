//! Finds users in the kernel that may write to this process's pages past the page tables.
//!
//! In: nothing. Out: yes, also where it cannot be known. Reads `/proc` with raw system calls and
//! without allocating, as `proc_maps.rs` does.
//!
//! A mapping shows a ring or a device only while it is mapped; a ring can be made without
//! (`IORING_SETUP_NO_MMAP`). So every descriptor counts, of every table of descriptors that the
//! process has, and so does every page that is pinned (`VmPin`): registered buffers of io_uring and
//! memory regions of real RDMA devices stay pinned after the descriptor was closed. And so does
//! every thread that waits for a ring, whichever way it knows it.
//!
//! What this does not see is at the end of `docs/decisions/0021-adoption-between-tenants.md`.
#![expect(unsafe_code)]
// UNSAFETY: borrows descriptors of the program by number, only to ask what they are; compares
// tables of descriptors by a system call that rustix does not have.

use crate::pinning_devices;
use crate::proc_task_files::{self, number, open_directory};
use core::mem::MaybeUninit;
use omniverb_sys::proc_maps;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use rustix::fs::{CWD, RawDir, readlinkat_raw};
use rustix::io::{Errno, read};
use rustix::thread::gettid;

/// `getsockopt`'s answer for a socket whose packets lie in the program's own pages.
const AF_XDP: libc::c_int = 44;
/// `kcmp`: the tables of descriptors.
const KCMP_FILES: libc::c_long = 2;
/// Larger than any name that matters: a longer one is cut, and its beginning decides.
const NAME_BYTES: usize = 256;

/// Whether the kernel, or a device, may hold pages of this process; yes where that is not known.
pub(crate) fn present() -> bool {
    pinned_pages() || tasks_hold().unwrap_or(true)
}

/// Pages that stay where they are: io_uring's registered buffers, regions of RDMA devices, vDPA,
/// iommufd. The kernel counts them, whichever process pays for them.
pub(crate) fn pinned_pages() -> bool {
    let mut text = [0u8; 4096];
    let Ok(file) = proc_maps::open_read(c"/proc/self/status") else { return true };
    let mut filled = 0;
    while let Ok(count @ 1..) = read(&file, &mut text[filled..]) {
        filled += count;
    }
    pinned_in(&text[..filled])
}

fn pinned_in(status: &[u8]) -> bool {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"VmPin:"));
    let amount = line.map(<[u8]>::trim_ascii).and_then(|line| line.split(|&b| b == b' ').next());
    // A kernel that does not count (before 3.2) has none of them either.
    amount.is_some_and(|amount| amount != b"0")
}

/// Goes through the threads: each may have descriptors of its own (`unshare(CLONE_FILES)`), and
/// the kernel's workers for io_uring are among them.
fn tasks_hold() -> Result<bool, Errno> {
    let list = open_directory(CWD, format_args!("/proc/self/task"))?;
    let own = gettid().as_raw_nonzero().get();
    let ours = open_directory(&list, format_args!("{own}/fd"))?;
    if descriptors_hold(&ours, &ours)? {
        return Ok(true);
    }
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&list, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let Some(task) = number(entry.file_name()) else { continue };
        if task == own {
            continue;
        }
        if is_worker(list.as_fd(), task) || waits_for_a_ring(task) {
            return Ok(true);
        }
        if !shares_files(own, task) {
            let outcome = open_directory(&list, format_args!("{task}/fd"))
                .and_then(|theirs| descriptors_hold(&theirs, &ours));
            match outcome {
                Ok(false) | Err(Errno::NOENT | Errno::SRCH) => {} // or it has ended meanwhile
                outcome => return outcome,
            }
        }
    }
    Ok(false)
}

/// The kernel's threads for a ring, which they outlive by seconds at most (`iou-wrk-N`), or which
/// lives as long as they do (`iou-sqp-N`), whether or not it has a descriptor.
fn is_worker(list: BorrowedFd<'_>, task: i32) -> bool {
    let mut name = [0u8; 16];
    let name = proc_task_files::read_start(list, format_args!("{task}/comm"), &mut name);
    name.is_ok_and(|name| name.starts_with(b"iou-"))
}

/// A thread that waits for what a ring does, which may be in no table of descriptors.
fn waits_for_a_ring(task: i32) -> bool {
    let calls = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    proc_task_files::system_call(task).flatten().is_some_and(|call| calls.contains(&call))
}

/// False also if it cannot be known: then its descriptors are looked at.
pub(crate) fn shares_files(one: i32, other: i32) -> bool {
    let (one, other) = (libc::c_long::from(one), libc::c_long::from(other));
    // SAFETY: a comparison of two numbers' objects in the kernel; no memory is passed.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILES, 0, 0) == 0 }
}

/// One of the descriptors in `directory` may keep pages. `ours`: the directory of this thread's
/// own.
fn descriptors_hold(directory: &OwnedFd, ours: &OwnedFd) -> Result<bool, Errno> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let mut name = [MaybeUninit::uninit(); NAME_BYTES];
        let target = match readlinkat_raw(directory, entry.file_name(), &mut name[..]) {
            Ok((target, _)) => &*target,
            Err(Errno::NOENT | Errno::INVAL) => continue, // closed meanwhile; `.` and `..`
            Err(errno) => return Err(errno),
        };
        if target.starts_with(b"socket:") {
            // What is only in another thread's table cannot be asked from here.
            let mut name = [MaybeUninit::uninit(); NAME_BYTES];
            let same = readlinkat_raw(ours, entry.file_name(), &mut name[..])
                .is_ok_and(|(own, _)| *own == *target);
            let Some(number) = number(entry.file_name()).filter(|_| same) else { return Ok(true) };
            if is_packet_memory(number) {
                return Ok(true);
            }
        } else if stores_behind_page_tables(target) {
            return Ok(true);
        } else if target.starts_with(b"/") {
            match pinning_devices::may_store(directory, entry.file_name()) {
                Ok(false) | Err(Errno::NOENT) => {}
                outcome => return outcome,
            }
        }
    }
    Ok(false)
}

/// A socket of AF_XDP.
fn is_packet_memory(number: RawFd) -> bool {
    let mut domain: libc::c_int = 0;
    let mut length = size_of_val(&domain) as libc::socklen_t;
    // SAFETY: one question about a number; a descriptor closed meanwhile yields an error. The
    // answer goes into a local of the length given.
    let answered = unsafe {
        libc::getsockopt(
            number,
            libc::SOL_SOCKET,
            libc::SO_DOMAIN,
            (&raw mut domain).cast(),
            &raw mut length,
        )
    };
    answered == 0 && domain == AF_XDP
}

/// Whether what a descriptor leads to, by its name, may keep pages of this process and store into
/// them later. What is not known to be harmless may.
///
/// These are io_uring (registered and provided buffers, the rings themselves), KVM (guests
/// whose memory is encrypted have it pinned), VFIO and the events of RDMA devices; harmless are
/// those that only count, wait, or store in the course of a system call.
fn stores_behind_page_tables(name: &[u8]) -> bool {
    const ANONYMOUS: [&[u8]; 18] = [
        b"[eventpoll]",
        b"[eventfd]",
        b"[timerfd]",
        b"[signalfd]",
        b"[perf_event]",
        b"inotify",
        b"[fanotify]",
        b"[pidfd]",
        b"[userfaultfd]",
        b"[fscontext]",
        b"[landlock",
        b"bpf",
        b"[bpf",
        b"btf",
        b"seccomp notify",
        b"sync_file",
        b"[mount",
        b"[pidfs]",
    ];
    let harmless = |name: &[u8], known: &[&[u8]]| known.iter().any(|one| name.starts_with(one));
    if let Some(kind) = name.strip_prefix(b"anon_inode:") {
        !harmless(kind, &ANONYMOUS)
    } else {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinning_devices_are_known_by_name() {
        for name in [
            &b"anon_inode:[io_uring]"[..],
            b"anon_inode:kvm-vm",
            b"anon_inode:[vfio-device]",
            b"anon_inode:[something new]",
        ] {
            assert!(stores_behind_page_tables(name), "{name:?}");
        }
        for name in [
            &b"anon_inode:[eventpoll]"[..],
            b"anon_inode:inotify",
            b"pipe:[7]",
            b"/tmp/dev/infiniband",
            b"/memfd:x (deleted)",
        ] {
            assert!(!stores_behind_page_tables(name), "{name:?}");
        }
    }

    #[test]
    fn pinned_pages_are_read() {
        assert!(!pinned_in(b"VmLck:\t 4 kB\nVmPin:\t       0 kB\nVmHWM:\t 8 kB\n"));
        assert!(pinned_in(b"VmLck:\t 0 kB\nVmPin:\t      16 kB\nVmHWM:\t 8 kB\n"));
        assert!(!pinned_in(b"Name:\tx\n"));
    }

    #[test]
    fn an_ordinary_process_has_none() {
        // Not beside a test that opens devices.
        let _alone = crate::move_lock::MOVES.guard();
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || receiver.recv().is_err());
        assert_eq!(tasks_hold(), Ok(false));
        drop(sender);
        thread.join().unwrap();
    }
}
