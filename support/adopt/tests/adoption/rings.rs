//! io_uring without mappings, by raw system calls: who has a ring has no pages moved, however the
//! ring is hidden, and what the ring stores is not lost.
#![expect(unsafe_code)]
// UNSAFETY: raw system calls.

use crate::Outcome;
use crate::memory::{Memory, PAGE};
use omniverb_adopt::{Access, AdoptError, adopt};
use std::os::fd::{FromRawFd, OwnedFd};

const NO_MMAP: u32 = 1 << 14;
const REGISTERED_FD_ONLY: u32 = 1 << 15;
const SQPOLL: u32 = 1 << 1;
const USE_REGISTERED_RING: u32 = 1 << 31;
const REGISTER_BUFFERS: u32 = 0;
const UNREGISTER_BUFFERS: u32 = 1;

/// `struct io_uring_params`, as far as it is filled in here.
#[repr(C)]
#[derive(Default)]
struct Parameters {
    entries: [u32; 2],
    flags: u32,
    rest: [u32; 7],
    submission: [u32; 8],
    submission_memory: u64,
    completion: [u32; 8],
    completion_memory: u64,
}

/// A ring whose memory is the program's own; its number, or why there is none.
fn ring(flags: u32) -> Result<i32, String> {
    let (one, other) = (Memory::anonymous(4 * PAGE), Memory::anonymous(4 * PAGE));
    let mut parameters = Parameters {
        flags: flags | NO_MMAP,
        submission_memory: one.address as u64,
        completion_memory: other.address as u64,
        ..Parameters::default()
    };
    // SAFETY: the memory is ours and stays for the life of the process.
    let number = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, &raw mut parameters) };
    match i32::try_from(number) {
        Ok(number @ 0..) => Ok(number),
        _ => Err(format!("no io_uring of this kind: {}", std::io::Error::last_os_error())),
    }
}

fn register(ring: i32, what: u32, memory: Option<&Memory>) {
    let vector = memory.map(|memory| libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(memory.address),
        iov_len: memory.length,
    });
    let pointer = vector.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let count = u32::from(vector.is_some());
    // SAFETY: the memory is ours; the kernel pins it.
    let outcome = unsafe { libc::syscall(libc::SYS_io_uring_register, ring, what, pointer, count) };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
}

fn refused() {
    let memory = Memory::anonymous(4 * PAGE);
    assert_eq!(
        adopt(memory.address, memory.length, Access::ReadWrite).err(),
        Some(AdoptError::KernelStores)
    );
}

fn allowed() {
    let memory = Memory::anonymous(4 * PAGE);
    adopt(memory.address, memory.length, Access::ReadWrite).expect("nothing is in the way");
}

/// No mapping shows it, its descriptor does.
pub fn without_mapping() -> Outcome {
    allowed();
    let ring = ring(0)?;
    refused();
    // SAFETY: the descriptor is ours.
    drop(unsafe { OwnedFd::from_raw_fd(ring) });
    Ok(())
}

/// The descriptor is in the table of another thread only.
pub fn in_another_table() -> Outcome {
    allowed();
    let (told, news) = std::sync::mpsc::channel();
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        // SAFETY: the thread gets a table of its own, and uses nobody's descriptors.
        let alone = unsafe { libc::unshare(libc::CLONE_FILES) } == 0;
        told.send(if alone { ring(0).map(drop) } else { Err("no unshare".into()) }).unwrap();
        let _ = wait.recv();
    });
    let outcome = news.recv().unwrap();
    if outcome.is_ok() {
        refused();
    }
    drop(done);
    thread.join().unwrap();
    outcome
}

/// Neither a mapping nor a descriptor, but buffers: they are pinned, and are counted.
pub fn registered_only_with_buffers() -> Outcome {
    allowed();
    let slot = ring(REGISTERED_FD_ONLY)?;
    let buffers = Memory::anonymous(4 * PAGE);
    register(slot, REGISTER_BUFFERS | USE_REGISTERED_RING, Some(&buffers));
    refused();
    assert_eq!(
        adopt(buffers.address, buffers.length, Access::ReadWrite).err(),
        Some(AdoptError::KernelStores)
    );
    register(slot, UNREGISTER_BUFFERS | USE_REGISTERED_RING, None);
    Ok(())
}

/// The same without either, in another thread, which waits for it.
pub fn registered_only_and_waited_for() -> Outcome {
    const GET_EVENTS: u32 = 1 << 0;
    const REGISTERED_RING: u32 = 1 << 4;
    allowed();
    let (told, news) = std::sync::mpsc::channel();
    // Ends with the process: nothing ever happens to this ring.
    std::thread::spawn(move || {
        let slot = ring(REGISTERED_FD_ONLY);
        told.send(slot.clone().map(drop)).unwrap();
        let flags = GET_EVENTS | REGISTERED_RING;
        // SAFETY: no pointers.
        let call =
            |slot: i32| unsafe { libc::syscall(libc::SYS_io_uring_enter, slot, 0, 1, flags, 0, 0) };
        slot.map(call)
    });
    news.recv().unwrap()?;
    std::thread::sleep(std::time::Duration::from_millis(100));
    refused();
    Ok(())
}

/// The same without buffers, but with a thread of the kernel.
pub fn registered_only_with_thread() -> Outcome {
    allowed();
    ring(REGISTERED_FD_ONLY | SQPOLL)?;
    // It has its name as soon as it has run.
    let named = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.filter_map(|task| std::fs::read(task.path().join("comm")).ok());
        names.into_iter().any(|name| name.starts_with(b"iou-"))
    };
    for _ in 0..5000 {
        if named() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    refused();
    Ok(())
}

/// An AF_XDP socket: its packets lie in pages that are counted nowhere.
pub fn packet_sockets() -> Outcome {
    const AF_XDP: libc::c_int = 44;
    allowed();
    // SAFETY: a socket of our own.
    let socket = unsafe { libc::socket(AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(format!("no AF_XDP: {}", std::io::Error::last_os_error()));
    }
    refused();
    Ok(())
}
