//! Tests io_uring without mappings, by raw system calls: a process with a ring has no pages moved,
//! however the ring is hidden, and what the ring stores is not lost.
#![expect(unsafe_code)]
// UNSAFETY: raw system calls.

use crate::raw_syscall_helpers::{Memory, PAGE, kill, reap, start_child};
use crate::{Outcome, cycles};
use omniverb_adopt::{Access, AdoptError, Strategy, adopt};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

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
    Ok(set_up(flags)?.0)
}

fn set_up(flags: u32) -> Result<(i32, Parameters), String> {
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
        Ok(number @ 0..) => Ok((number, parameters)),
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

const READ_FIXED: u8 = 4;
const RECV: u8 = 27;

/// A ring that requests are made of, one at a time.
struct Ring {
    number: OwnedFd,
    parameters: Parameters,
    made: u32,
}

impl Ring {
    fn new() -> Result<Ring, String> {
        let (number, parameters) = set_up(0)?;
        // SAFETY: the descriptor is ours.
        Ok(Ring { number: unsafe { OwnedFd::from_raw_fd(number) }, parameters, made: 0 })
    }

    /// Hands a request over: it stores into `to` what comes from a descriptor.
    fn request(&mut self, operation: u8, from: &impl AsRawFd, to: Memory) {
        let [_, tail, mask, _, _, _, array, _] = self.parameters.submission;
        let rings = self.parameters.completion_memory as usize;
        let index = self.made & 7;
        let mut entry = [0u64; 8];
        entry[0] = u64::from(operation) | (from.as_raw_fd() as u64) << 32;
        (entry[2], entry[3]) = (to.address as u64, to.length as u64);
        self.made += 1;
        // SAFETY: the ring's own memory, whose places the kernel told.
        unsafe {
            let word = |at| std::ptr::with_exposed_provenance_mut::<u32>(rings + at as usize);
            assert_eq!(word(mask).read_volatile(), 7);
            let entries = self.parameters.submission_memory as usize;
            std::ptr::with_exposed_provenance_mut::<[u64; 8]>(entries)
                .add(index as usize)
                .write_volatile(entry);
            word(array + index * 4).write_volatile(index);
            word(tail).write_volatile(self.made);
        }
        assert_eq!(self.enter(1, 0, 0), 1, "{}", std::io::Error::last_os_error());
    }

    /// Waits for the request; what became of it.
    fn result(&self) -> i32 {
        const GET_EVENTS: u32 = 1;
        let [head, tail, _, _, _, entries, _, _] = self.parameters.completion;
        let rings = self.parameters.completion_memory as usize;
        // SAFETY: as above; entries have 16 bytes.
        unsafe {
            let word = |at| std::ptr::with_exposed_provenance_mut::<i32>(rings + at as usize);
            while word(tail).read_volatile() != self.made as i32 {
                self.enter(0, 1, GET_EVENTS);
            }
            let index = (self.made - 1) & 15;
            word(head).write_volatile(self.made as i32);
            word(entries + index * 16 + 8).read_volatile()
        }
    }

    fn enter(&self, submit: u32, wait: u32, flags: u32) -> i64 {
        let ring = self.number.as_raw_fd();
        // SAFETY: no pointers.
        unsafe { libc::syscall(libc::SYS_io_uring_enter, ring, submit, wait, flags, 0, 0) }
    }
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
        // SAFETY: the thread gets a table of its own, and uses no descriptors of others.
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

/// A ring has some of the pages as a buffer since they were adopted: they stay on their file, and
/// what the ring stores arrives, until it has given up the buffer.
pub fn buffers_registered_since() -> Outcome {
    let memory = Memory::anonymous(16 * PAGE);
    memory.fill(1);
    let pages = adopt(memory.address, memory.length, Access::ReadWrite).unwrap();
    let mut ring = Ring::new()?;
    let buffer = memory.part(4 * PAGE, 2 * PAGE);
    register(ring.number.as_raw_fd(), REGISTER_BUFFERS, Some(&buffer));
    let begun = Instant::now();
    let failed = pages.release().expect_err("the ring's stores would be lost");
    assert_eq!(failed.error, AdoptError::Registered);
    assert!(begun.elapsed() < Duration::from_millis(800), "it is waited for in vain");
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(&[9; PAGE]).unwrap();
    ring.request(READ_FIXED, &ours, memory.part(5 * PAGE, PAGE));
    assert_eq!(ring.result(), PAGE as i32);
    assert_eq!(memory.part(5 * PAGE, PAGE).bytes(), [9; PAGE]);
    register(ring.number.as_raw_fd(), UNREGISTER_BUFFERS, None);
    // One that lies elsewhere is not in the way.
    register(ring.number.as_raw_fd(), REGISTER_BUFFERS, Some(&Memory::anonymous(PAGE)));
    crate::give_back(failed.pages, &Strategy::ALL);
    assert_eq!(memory.part(5 * PAGE, PAGE).bytes(), [9; PAGE]);
    assert_eq!(memory.part(0, 5 * PAGE).bytes(), [1; 5 * PAGE]);
    Ok(())
}

/// A thread registers a buffer while pages go back, in several steps: either it has the new pages,
/// or those that it has stay where they are.
pub fn buffers_registered_meanwhile() -> Outcome {
    const BYTES: usize = 96 << 20;
    let ring = Ring::new()?;
    drop(ring);
    let (mut stayed, mut registered) = (0, 0);
    for _ in 0..cycles(4).min(10) {
        let memory = Memory::anonymous(BYTES);
        memory.fill(1);
        let pages = adopt(memory.address, memory.length, Access::ReadWrite).unwrap();
        let mut ring = Ring::new()?;
        let number = ring.number.as_raw_fd();
        let buffer = memory.part(4 * PAGE, 2 * PAGE);
        let registers = std::thread::spawn(move || {
            // The last pages go first.
            while is_on_file(memory.address + BYTES - PAGE) {}
            let meanwhile = is_on_file(buffer.address);
            register(number, REGISTER_BUFFERS, Some(&buffer));
            meanwhile
        });
        let released = pages.release();
        registered += usize::from(registers.join().unwrap());
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[9; PAGE]).unwrap();
        ring.request(READ_FIXED, &ours, memory.part(5 * PAGE, PAGE));
        assert_eq!(ring.result(), PAGE as i32);
        assert_eq!(memory.part(5 * PAGE, PAGE).bytes(), [9; PAGE], "what the ring stored is lost");
        register(number, UNREGISTER_BUFFERS, None);
        if let Err(failed) = released {
            assert_eq!(failed.error, AdoptError::Registered);
            stayed += 1;
            crate::give_back(failed.pages, &Strategy::ALL);
        }
        assert_eq!(memory.part(5 * PAGE, PAGE).bytes(), [9; PAGE]);
        assert_eq!(memory.part(0, 5 * PAGE).bytes(), [1; 5 * PAGE]);
        memory.unmap();
    }
    println!("{registered} registered while pages moved, of {stayed} the pages stayed");
    if registered == 0 { Err("never while pages moved".into()) } else { Ok(()) }
}

fn is_on_file(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (range, _) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(start)..number(end)).contains(&address) && line.contains("omniverb-mr")
    })
}

/// What comes by a ring while pages go back is stored in the course of the program's own system
/// calls, which are ours at that moment: none of it is lost.
pub fn receives_while_pages_move() -> Outcome {
    const BYTES: usize = 2 << 20;
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    // Sends what it is told to after some time, in a process of its own.
    let child = start_child(|| {
        // SAFETY: the child's copy: it ends when its parent has.
        unsafe { libc::close(ours.as_raw_fd()) };
        let mut delay = [0u8; 2];
        while theirs.read_exact(&mut delay).is_ok() {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_micros(u64::from(u16::from_ne_bytes(delay))) {}
            theirs.write_all(&[7; 8]).unwrap();
        }
    });
    let mut took = Duration::from_millis(2);
    for round in 0..cycles(60) {
        let memory = Memory::anonymous(BYTES);
        memory.fill(1);
        let pages = adopt(memory.address, memory.length, Access::ReadWrite).unwrap();
        let mut ring = Ring::new()?;
        // The first step that goes back is the last of the pages.
        let to = memory.part(BYTES - PAGE, 8);
        ring.request(RECV, &ours, to);
        let delay = took.as_micros() as usize * (round % 32) / 32;
        (&ours).write_all(&(delay as u16).to_ne_bytes()).unwrap();
        let begin = Instant::now();
        crate::give_back(pages, &Strategy::ALL);
        took = begin.elapsed().min(Duration::from_millis(20));
        assert_eq!(ring.result(), 8);
        assert_eq!(to.bytes(), [7; 8], "what came in round {round} is lost");
        memory.unmap();
    }
    kill(child);
    reap(child);
    Ok(())
}
