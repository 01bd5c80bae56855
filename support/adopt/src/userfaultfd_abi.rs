//! Declares the ioctls of userfaultfd that all its uses share (`linux/userfaultfd.h`).
#![expect(unsafe_code)]
// UNSAFETY: ioctls of userfaultfd, none of which changes the contents of pages.

use rustix::fd::{AsFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::ioctl::{Setter, Updater, ioctl, opcode};

#[repr(C)]
struct Api {
    version: u64,
    features: u64,
    ioctls: u64,
}

/// Pages, from an address on.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) length: u64,
}

#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

/// The type of the ioctls.
pub(crate) const GROUP: u8 = 0xAA;
const API_VERSION: u64 = 0xAA;

const IOC_API: u32 = opcode::read_write::<Api>(GROUP, 0x3F);
const IOC_REGISTER: u32 = opcode::read_write::<Register>(GROUP, 0x00);
const IOC_UNREGISTER: u32 = opcode::read::<Range>(GROUP, 0x01);

/// What pages are registered for: faults of pages that are not there.
pub(crate) const REGISTER_MODE_MISSING: u64 = 1 << 0;
/// The like: writes to protected pages.
pub(crate) const REGISTER_MODE_WRITE_PROTECT: u64 = 1 << 1;

/// A userfaultfd with a number that is no standard stream's, which programs close and open anew.
pub(crate) fn above_standard_streams(file: OwnedFd) -> Option<OwnedFd> {
    const ABOVE_STANDARD_STREAMS: RawFd = 3;
    rustix::io::fcntl_dupfd_cloexec(file, ABOVE_STANDARD_STREAMS).ok()
}

/// Begins the use of a new userfaultfd. False: the kernel lacks one of these features.
pub(crate) fn enable(file: impl AsFd, features: u64) -> bool {
    let mut api = Api { version: API_VERSION, features, ioctls: 0 };
    // SAFETY: the structure the call expects; it changes nothing outside the descriptor.
    unsafe { ioctl(file, Updater::<IOC_API, Api>::new(&mut api)) }.is_ok()
}

/// Has faults in the range come to the descriptor.
pub(crate) fn register(file: impl AsFd, range: Range, mode: u64) -> Result<(), Errno> {
    let mut register = Register { range, mode, ioctls: 0 };
    // SAFETY: registering changes no contents.
    unsafe { ioctl(file, Updater::<IOC_REGISTER, Register>::new(&mut register)) }
}

/// Faults in the range do not come to the descriptor any more.
pub(crate) fn unregister(file: impl AsFd, range: Range) -> Result<(), Errno> {
    // SAFETY: only takes this descriptor's hands off the range.
    unsafe { ioctl(file, Setter::<IOC_UNREGISTER, Range>::new(range)) }
}
