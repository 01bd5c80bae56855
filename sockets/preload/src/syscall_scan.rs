//! Searches the process for instructions that make system calls about sockets.
//! Hooks of C library functions do not see these.
//!
//! Bytes that are sent so overtake those in a ring; a thread that waits so is not woken by a ring.
//! So the code of the program and of its libraries is searched before the first socket is offered,
//! and what was loaded since before the next (`omniverb_formats::syscall_instructions`). Code that
//! is made at run time is not found.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::os::fd::OwnedFd;

use omniverb_formats::syscall_instructions::{self, BEFORE};
use rustix::fs::{Mode, OFlags, fstat, open};

use crate::anonymous_mappings::{self, Sharing};
use crate::errno::keeping_errno;
use crate::vfork_check;

/// Bytes of the list of mappings, and of code, that are read at a time.
const LIST: usize = 1 << 14;
const PATH: usize = 1 << 12;
const CODE: usize = 1 << 18;
const ALL: usize = LIST + PATH + CODE;
/// Mappings that are known to be looked through; others are once more.
const KNOWN: usize = 512;

/// The C library and its loader, whose calls are seen by their names; what waits for threads, or
/// checks memory, and has nothing to do with sockets; and what is Omniverb's own.
const HARMLESS: [&[u8]; 16] = [
    b"libc.so",
    b"libc-2",
    b"ld-linux",
    b"ld-2",
    b"libpthread",
    b"libgomp.so",
    b"libitm.so",
    b"libasan.so",
    b"libhwasan.so",
    b"liblsan.so",
    b"libtsan.so",
    b"libubsan.so",
    b"libomniverb_",
    b"libibverbs.so",
    b"librdmacm.so",
    b"libumem",
];

/// There are such instructions.
static ARE_THERE: AtomicBool = AtomicBool::new(false);
/// How often something was loaded, and how often when all was looked through.
static LOADS: AtomicU64 = AtomicU64::new(1);
static KNOWN_LOADS: AtomicU64 = AtomicU64::new(0);
/// Mappings that were looked through: of which file, from where on.
static LOOKED: [AtomicU64; KNOWN] = [const { AtomicU64::new(0) }; KNOWN];
/// More code may be loaded until the processor counts so far.
static LOADS_UNTIL: AtomicU64 = AtomicU64::new(0);

/// A library is about to be loaded.
pub(crate) fn loads(now: u64, time: u64) {
    LOADS_UNTIL.store(now.wrapping_add(time), Ordering::SeqCst);
    LOADS.fetch_add(1, Ordering::SeqCst);
}

/// What the code of a process, or a part of it, says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Calls {
    /// It makes no such calls, as far as that can be told.
    None,
    /// It makes some.
    Some,
    /// It cannot be read at the moment, as where no descriptor is left.
    Unknown,
}

/// Whether this process makes such calls.
#[inline]
pub(crate) fn calls_past_libraries(now: u64) -> Calls {
    if ARE_THERE.load(Ordering::Relaxed) {
        Calls::Some
    } else if KNOWN_LOADS.load(Ordering::Acquire) == LOADS.load(Ordering::Acquire) {
        Calls::None
    } else {
        look(now)
    }
}

#[cold]
fn look(now: u64) -> Calls {
    if !vfork_check::is_this_process() {
        return Calls::None;
    }
    let loads = LOADS.load(Ordering::SeqCst);
    // While something is being loaded it may not be there yet.
    let is_loading = (LOADS_UNTIL.load(Ordering::SeqCst).wrapping_sub(now) as i64) > 0;
    // What calls this may be a handler with a small stack.
    let room = anonymous_mappings::Mapping::<u8>::new(ALL, Sharing::Private);
    let found = room.map_or(Calls::Unknown, |mut room| {
        let (list, rest) = room.split_at_mut(LIST);
        let (path, code) = rest.split_at_mut(PATH);
        in_mappings(list, |mapping| mapping.calls(path, code))
    });
    match found {
        Calls::Some => ARE_THERE.store(true, Ordering::Release),
        Calls::None if !is_loading => KNOWN_LOADS.store(loads, Ordering::Release),
        _ => {}
    }
    found
}

/// A line of proc_pid_maps(5) that is about code of a file.
struct Mapping<'a> {
    path: &'a [u8],
    begin: u64,
    length: u64,
    offset: u64,
    inode: u64,
}

/// What mappings say that have code of a file, and were not looked at before.
fn in_mappings(list: &mut [u8], mut with: impl FnMut(&Mapping<'_>) -> Calls) -> Calls {
    let Some(file) = opened(b"/proc/self/maps\0") else { return Calls::Unknown };
    let (mut kept, mut is_any_unknown) = (0, false);
    loop {
        let Ok(got) = rustix::io::read(&file, &mut list[kept..]) else { return Calls::Unknown };
        let end = kept + got;
        let whole = list[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut lines = list[..whole].split(|byte| *byte == b'\n');
        let mut makes_calls = |mapping: Mapping<'_>| {
            let calls = if mapping.is_known() { Calls::None } else { with(&mapping) };
            match calls {
                Calls::Unknown => is_any_unknown = true,
                _ => mapping.gets_known(),
            }
            calls == Calls::Some
        };
        if lines.any(|line| Mapping::of(line).is_some_and(&mut makes_calls)) {
            return Calls::Some;
        }
        // A line that is longer than all of the room is none of a library.
        if got == 0 || whole == 0 && end == list.len() {
            return if is_any_unknown { Calls::Unknown } else { Calls::None };
        }
        list.copy_within(whole..end, 0);
        kept = end - whole;
    }
}

fn opened(path: &[u8]) -> Option<OwnedFd> {
    let path = core::ffi::CStr::from_bytes_until_nul(path).ok()?;
    open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()).ok()
}

fn fd(text: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(core::str::from_utf8(text).ok()?, radix).ok()
}

impl<'a> Mapping<'a> {
    fn of(line: &'a [u8]) -> Option<Self> {
        let mut words = line.splitn(6, |byte| *byte == b' ');
        let (range, access) = (words.next()?, words.next()?);
        let (offset, _device, inode) = (words.next()?, words.next()?, words.next()?);
        let path = words.next()?.trim_ascii_start();
        let name = path.rsplit(|byte| *byte == b'/').next()?;
        let is_harmless = HARMLESS.iter().any(|start| name.starts_with(start));
        if access.get(2) != Some(&b'x') || !path.starts_with(b"/") || is_harmless {
            return None;
        }
        let mut ends = range.split(|byte| *byte == b'-');
        let (begin, end) = (fd(ends.next()?, 16)?, fd(ends.next()?, 16)?);
        let (length, offset) = (end.checked_sub(begin)?, fd(offset, 16)?);
        Some(Self { path, begin, length, offset, inode: fd(inode, 10)? })
    }

    fn word(&self) -> u64 {
        (self.inode << 20 ^ self.offset ^ self.length << 40).max(1)
    }

    /// It was looked through.
    fn is_known(&self) -> bool {
        LOOKED.iter().any(|place| place.load(Ordering::Acquire) == self.word())
    }

    fn gets_known(&self) {
        for place in &LOOKED {
            let (ok, err) = (Ordering::AcqRel, Ordering::Acquire);
            match place.compare_exchange(0, self.word(), ok, err) {
                Err(found) if found != self.word() => {}
                _ => return,
            }
        }
    }

    /// Whether its code makes calls about sockets.
    fn calls(&self, path: &mut [u8], code: &mut [u8]) -> Calls {
        let (mut done, mut kept, mut found) = (0, 0, false);
        while done < self.length && !found {
            let most = usize::try_from(self.length - done).unwrap_or(CODE).min(CODE - kept);
            let got = self.read(done, path, &mut code[kept..kept + most]);
            if got == 0 {
                return Calls::Unknown;
            }
            let end = kept + got;
            // What prepares a call may be in the piece before.
            let from = kept.saturating_sub(3);
            syscall_instructions::calls(&code[..end], from, |fd| {
                found = fd.is_about_sockets();
                !found
            });
            kept = end.min(BEFORE + 3);
            code.copy_within(end - kept..end, 0);
            done += got as u64;
        }
        if found { Calls::Some } else { Calls::None }
    }

    /// Reads what is `done` bytes behind its beginning: how many bytes. By the kernel, since it may
    /// be mapped no more; or from its file, where that is forbidden.
    fn read(&self, done: u64, path: &mut [u8], to: &mut [u8]) -> usize {
        let here = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
        let there = libc::iovec {
            iov_base: ptr::with_exposed_provenance_mut((self.begin + done) as usize),
            iov_len: to.len(),
        };
        // SAFETY: of this process's own memory; the kernel writes to `to` only.
        let got = keeping_errno(|| unsafe {
            libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0)
        });
        match usize::try_from(got) {
            Ok(got) if got > 0 => got,
            _ => self.read_file(done, path, to),
        }
    }

    fn read_file(&self, done: u64, path: &mut [u8], to: &mut [u8]) -> usize {
        // With a zero behind it.
        let Some(name) = path.get_mut(..self.path.len() + 1) else { return 0 };
        name[..self.path.len()].copy_from_slice(self.path);
        name[self.path.len()] = 0;
        let file =
            opened(name).filter(|file| fstat(file).is_ok_and(|status| status.st_ino == self.inode));
        file.map_or(0, |file| rustix::io::pread(&file, to, self.offset + done).unwrap_or(0))
    }
}
