//! Pins pages of a process by io_uring's registered buffers, which needs no privilege
//! (`RLIMIT_MEMLOCK`).
//!
//! In: some pages of this process. Out: a [`Pin`], a ring that has them registered and can do
//! nothing, nor let go of them before it is closed by all that have it open. A process that may
//! look into this one can have it open as well, and then the pages stay also when this one is gone.
//! The other half of the file is for that: what can be checked of a ring that another process
//! names.
// UNSAFETY: the three system calls of io_uring, which rustix offers with more than is needed, and
// pidfd_getfd and kcmp for numbers of another process's.
#![expect(unsafe_code)]

use rustix::fs::readlink;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Of the kernel's `include/uapi/linux/io_uring.h`.
const SETUP_R_DISABLED: u32 = 1 << 6;
const REGISTER_BUFFERS: u32 = 0;
const UNREGISTER_BUFFERS: u32 = 1;
const REGISTER_RESTRICTIONS: u32 = 11;
const REGISTER_ENABLE_RINGS: u32 = 12;
/// Of `struct io_uring_params`: its bytes, and where the flags are.
const PARAMETER_WORDS: usize = 30;
const FLAGS_WORD: usize = 2;
/// What a ring that is restricted may do at all: the opcode that allows a request, and a request
/// that does nothing.
const RESTRICTION_SQE_OP: u16 = 1;
const OP_NOP: u8 = 0;

/// Pages that stay where they are until this is dropped, and all others that have it open let go.
#[derive(Debug)]
pub struct Pin(OwnedFd);

/// `struct io_uring_restriction`.
#[repr(C)]
struct Restriction {
    opcode: u16,
    what: u8,
    reserved: [u8; 13],
}

/// A ring with one entry that is not enabled.
fn ring() -> io::Result<OwnedFd> {
    let mut parameters = [0_u32; PARAMETER_WORDS];
    parameters[FLAGS_WORD] = SETUP_R_DISABLED;
    // SAFETY: the kernel reads and writes a struct of 120 bytes, which the array has.
    let made = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1_u32, parameters.as_mut_ptr()) };
    let raw = i32::try_from(made).ok().filter(|raw| *raw >= 0);
    let raw = raw.ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just made it for us; it is close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// # Safety
/// `argument` is what the kernel wants with this opcode.
unsafe fn register(
    ring: BorrowedFd<'_>,
    opcode: u32,
    argument: *const libc::c_void,
    count: u32,
) -> io::Result<()> {
    // SAFETY: the caller's promise; the descriptor is open.
    let done = unsafe {
        libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), opcode, argument, count)
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Pin {
    /// Pins these bytes of this process, whole pages. Those that are not there are made.
    ///
    /// # Errors
    /// What the kernel says: `ENOSYS` or `EPERM` where there is no io_uring, `ENOMEM` over
    /// `RLIMIT_MEMLOCK`, `EFAULT` where the process itself may not write, `EOPNOTSUPP` for a file's
    /// pages.
    pub fn new(address: usize, length: usize) -> io::Result<Pin> {
        use std::os::fd::AsFd;
        let ring = ring()?;
        let range =
            libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: length };
        let only = Restriction { opcode: RESTRICTION_SQE_OP, what: OP_NOP, reserved: [0; 13] };
        // SAFETY: one iovec, and one restriction, which the kernel copies. It pins the pages, or
        // finds none, and reads and writes nothing there.
        unsafe {
            register(ring.as_fd(), REGISTER_BUFFERS, (&raw const range).cast(), 1)?;
            register(ring.as_fd(), REGISTER_RESTRICTIONS, (&raw const only).cast(), 1)?;
            register(ring.as_fd(), REGISTER_ENABLE_RINGS, std::ptr::null(), 0)?;
        }
        Ok(Pin(ring))
    }

    /// The number of the ring's descriptor.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.0.as_raw_fd().unsigned_abs()
    }
}

/// A copy of another process's descriptor.
///
/// # Errors
/// `EPERM` without the right to look into that process, `EBADF` if it has no such descriptor,
/// `ESRCH` if it has ended.
pub fn descriptor_of(process: BorrowedFd<'_>, number: u32) -> io::Result<OwnedFd> {
    // SAFETY: three numbers; the descriptor that comes back is new, ours and close-on-exec.
    unsafe {
        let made = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0_u32);
        let raw = i32::try_from(made).ok().filter(|raw| *raw >= 0);
        Ok(OwnedFd::from_raw_fd(raw.ok_or_else(io::Error::last_os_error)?))
    }
}

/// Whether a descriptor of ours is of the same open file as this one of the process `pid`'s
/// (`KCMP_FILE` of kcmp(2)): as long as either is open the file is.
///
/// # Errors
/// `EPERM` without the right to look into that process, `EBADF` if it has no such descriptor,
/// `ESRCH` if it has ended, `ENOSYS` from a kernel without this call.
pub fn is_same_file(ours: BorrowedFd<'_>, pid: i32, theirs: u32) -> io::Result<bool> {
    const KCMP_FILE: libc::c_int = 0;
    let (own, ours) = (std::process::id(), ours.as_raw_fd());
    // SAFETY: five numbers, of which the kernel changes nothing.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, own, pid, KCMP_FILE, ours, theirs) };
    if order < 0 { Err(io::Error::last_os_error()) } else { Ok(order == 0) }
}

/// Whether this is a ring that keeps just these bytes of the process that made it, and cannot be
/// made to let go of them but by closing it. Which pages these were when it took them, and that
/// they are the process's still, does not show. If it could let go, it has done so.
#[must_use]
pub fn keeps(ring: BorrowedFd<'_>, address: u64, length: u64) -> bool {
    let own = format!("/proc/self/fd/{}", ring.as_raw_fd());
    let named =
        readlink(own, Vec::new()).is_ok_and(|name| name.as_bytes() == b"anon_inode:[io_uring]");
    // The kernel leaves lines out if a thread uses the ring at this moment; nothing can be done
    // with ours.
    let path = format!("/proc/self/fdinfo/{}", ring.as_raw_fd());
    named
        && std::fs::read_to_string(path).is_ok_and(|said| has(&said, address, length))
        // SAFETY: takes no argument.
        && unsafe { register(ring, UNREGISTER_BUFFERS, std::ptr::null(), 0) }
            .is_err_and(|error| error.raw_os_error() == Some(libc::EACCES))
}

/// Whether that is said of a ring which has one buffer, with this address and length.
fn has(said: &str, address: u64, length: u64) -> bool {
    let mut lines = said.lines().skip_while(|line| !line.starts_with("UserBufs:"));
    let count = lines.next().and_then(|line| line.strip_prefix("UserBufs:"));
    let only = count.is_some_and(|count| count.trim() == "1");
    let first = lines.next().and_then(|line| line.trim_start().strip_prefix("0: 0x"));
    let found = first.and_then(|first| {
        let (address, length) = first.split_once('/')?;
        Some((u64::from_str_radix(address, 16).ok()?, length.trim().parse::<u64>().ok()?))
    });
    only && found == Some((address, length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const PAGE: usize = 4096;

    /// Two pages and a way to pin them; none where io_uring is forbidden.
    fn pinned() -> Option<(Vec<u8>, usize, Pin)> {
        let memory = vec![1_u8; 4 * PAGE];
        let address = memory.as_ptr().addr().next_multiple_of(PAGE);
        match Pin::new(address, 2 * PAGE) {
            Ok(pin) => Some((memory, address, pin)),
            Err(error) => {
                let known = [libc::EPERM, libc::ENOSYS, libc::ENOMEM];
                assert!(
                    error.raw_os_error().is_some_and(|errno| known.contains(&errno)),
                    "{error}"
                );
                None
            }
        }
    }

    #[test]
    fn a_pin_is_distinguished_from_other_files() {
        let Some((_memory, address, pin)) = pinned() else { return };
        let (address, length) = (address as u64, 2 * PAGE as u64);
        assert!(keeps(pin.0.as_fd(), address, length));
        let wrong = [(address + 4096, length), (address, 4096), (0, 0)];
        assert!(wrong.iter().all(|(at, length)| !keeps(pin.0.as_fd(), *at, *length)));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(!keeps(null.as_fd(), address, length));
        // One that could let go has done so.
        let open = ring().unwrap();
        let range = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(address as usize),
            iov_len: 2 * PAGE,
        };
        // SAFETY: as in `Pin::new`.
        unsafe { register(open.as_fd(), REGISTER_BUFFERS, (&raw const range).cast(), 1) }.unwrap();
        assert!(!keeps(open.as_fd(), address, length));
    }

    #[test]
    fn a_copy_keeps_the_pages_as_well() {
        let Some((_memory, address, pin)) = pinned() else { return };
        let this = crate::pidfd::of(std::process::id().cast_signed()).unwrap();
        let copy = descriptor_of(this.as_fd(), pin.number()).unwrap();
        drop(pin);
        assert!(keeps(copy.as_fd(), address as u64, 2 * PAGE as u64));
        assert!(descriptor_of(this.as_fd(), u32::MAX).is_err());
    }

    #[test]
    fn a_duplicate_is_distinguished_from_another_file() {
        let open = || std::fs::File::open("/dev/null").unwrap();
        let (one, other) = (open(), open());
        let copy = one.try_clone().unwrap();
        let own = std::process::id().cast_signed();
        let number = |file: &std::fs::File| file.as_raw_fd().unsigned_abs();
        assert!(is_same_file(one.as_fd(), own, number(&copy)).unwrap());
        assert!(!is_same_file(one.as_fd(), own, number(&other)).unwrap());
        let none = is_same_file(one.as_fd(), own, u32::MAX).unwrap_err();
        assert_eq!(none.raw_os_error(), Some(libc::EBADF));
        let nobody = is_same_file(one.as_fd(), i32::MAX, number(&copy)).unwrap_err();
        assert_eq!(nobody.raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn unwritable_memory_is_not_pinned() {
        assert!(Pin::new(0, PAGE).is_err());
        assert!(Pin::new(usize::MAX & !(PAGE - 1), PAGE).is_err());
    }

    #[test]
    fn what_the_kernel_says_of_a_ring_is_read() {
        let said = |count: u32, first: &str| {
            format!("pos:\t0\nUserFiles:\t0\nUserBufs:\t{count}\n{first}\nPollList:\n")
        };
        let right = said(1, "    0: 0x7f0000001000/8192");
        assert!(has(&right, 0x7f00_0000_1000, 8192));
        assert!(!has(&right, 0x7f00_0000_1000, 4096) && !has(&right, 0x7f00_0000_0000, 8192));
        for wrong in ["", "PollList:", "    0: 0xzz/1", "    0: 0x1", "    1: 0x7f0000001000/8192"]
        {
            assert!(!has(&said(1, wrong), 0x7f00_0000_1000, 8192), "{wrong}");
        }
        assert!(!has(&said(2, "    0: 0x7f0000001000/8192"), 0x7f00_0000_1000, 8192));
        assert!(!has("", 0, 0));
    }
}
