//! Protects pages against writes by userfaultfd. A thread that writes to the stretch waits in the
//! page fault, in user mode or inside a system call, until the pages were replaced; then the fault
//! is tried again and finds the new pages. No other thread notices anything.
//!
//! Needs the full form that also catches faults of the kernel (root, `CAP_SYS_PTRACE`, the sysctl
//! `vm.unprivileged_userfaultfd`, or access to `/dev/userfaultfd`): the form that all users may
//! use turns a `read()` into the pages into EFAULT. Write protection of file pages, needed for the
//! way back, came with Linux 5.19. It holds for every process in this memory, known or not, but
//! not for devices that were given pages before: see `direct_io_detection.rs`.
//!
//! What changes the mappings themselves (`mprotect`, `madvise`) is not held up: it is looked at
//! before and after the copy, but what comes between the last look and the replacement is lost. So
//! this is for releases only, where threads cannot be stopped.
//!
//! Between protecting and waking, the calling thread must not write to the pages itself: it runs
//! on a stack that is not among them, with signals blocked, and neither allocates nor frees.
#![expect(unsafe_code)]
// UNSAFETY: userfaultfd ioctls on the program's memory.

use super::direct_io_detection::{self, DirectIoDescriptors};
use super::move_necessity_and_obstacles::{DescriptorScanTime, KnownObstacle, MoveNecessity};
use crate::address_space_sharers::SharingProcesses;
use crate::error::AdoptError;
use crate::stretch_move::{PAGE_BYTES, StretchMove};
use crate::userfaultfd_abi::{
    GROUP, REGISTER_MODE_WRITE_PROTECT, Range, above_standard_streams, enable, register, unregister,
};
use core::cell::UnsafeCell;
use rustix::fd::{FromRawFd, OwnedFd, RawFd};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::ioctl::{Setter, Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use rustix::process::{Pid, getpid};
use rustix::thread::gettid;

#[repr(C)]
struct Protect {
    range: Range,
    mode: u64,
}

const FEATURE_WRITE_PROTECT: u64 = 1 << 0;
const FEATURE_WRITE_PROTECT_FILES: u64 = 1 << 12;
const FEATURE_WRITE_PROTECT_UNPOPULATED: u64 = 1 << 13;
const PROTECT_MODE_ON: u64 = 1 << 0;

const IOC_WAKE: u32 = opcode::read::<Range>(GROUP, 0x02);
const IOC_PROTECT: u32 = opcode::read_write::<Protect>(GROUP, 0x06);

struct Userfault {
    file: OwnedFd,
    /// Protection also holds where no page was ever touched.
    covers_unpopulated: bool,
    /// The process whose memory it governs: not that of a forked child that inherited it.
    process: Pid,
}

/// Opened at the first use and kept: a program that gives up its privileges could not open it
/// again to take back what was granted before.
struct OpenUserfaultfd(UnsafeCell<Option<Userfault>>);

// SAFETY: used only with crate::move_lock::MOVES held.
unsafe impl Sync for OpenUserfaultfd {}

static KEPT: OpenUserfaultfd = OpenUserfaultfd(UnsafeCell::new(None));

/// What is known of direct I/O, whose stores no protection sees.
#[derive(Clone, Copy)]
pub(super) struct DirectIoContext<'a> {
    /// Other processes in this memory.
    pub sharers: Option<&'a SharingProcesses>,
    pub need: MoveNecessity,
    pub despite: KnownObstacle,
    pub look: DescriptorScanTime,
}

impl DirectIoContext<'_> {
    /// That no descriptor is open for direct I/O, as far as can be found out in time.
    fn check_descriptors(&self) -> Result<(), AdoptError> {
        if self.despite == KnownObstacle::Descriptors {
            return Ok(());
        }
        match direct_io_detection::descriptors(self.sharers) {
            DirectIoDescriptors::Without => Ok(()),
            DirectIoDescriptors::TooMany if self.need == MoveNecessity::Optional => {
                Err(AdoptError::Busy)
            }
            // What must be done is done in spite of them, if there is no other way.
            DirectIoDescriptors::TooMany | DirectIoDescriptors::Direct => {
                Err(AdoptError::NotPermitted)
            }
        }
    }

    /// Those in this memory, each with one of its threads.
    fn processes(&self) -> impl Iterator<Item = (i32, i32)> {
        let caller = (getpid().as_raw_nonzero().get(), gettid().as_raw_nonzero().get());
        let sharers = self.sharers.into_iter().flat_map(SharingProcesses::iter);
        core::iter::once(caller).chain(sharers.map(|sharer| (sharer.process, sharer.process)))
    }

    /// That no request is under way that began before the pages were protected.
    fn check(&self) -> Result<(), AdoptError> {
        self.check_descriptors()?;
        // Twice, where there may be some: a thread that was about to sleep in one does so by then.
        let looks = if self.despite == KnownObstacle::Descriptors { 2 } else { 1 };
        for _ in 0..looks {
            if !direct_io_detection::has_drained(self.sharers, self.need) {
                return Err(AdoptError::Busy);
            }
        }
        Ok(())
    }
}

/// Does the work under write protection. With [`crate::move_lock::MOVES`] held.
pub(super) fn perform(
    work: &StretchMove<'_>,
    others: DirectIoContext<'_>,
) -> Result<(), AdoptError> {
    // SAFETY: the lock is held.
    let kept = unsafe { &mut *KEPT.0.get() };
    if kept.as_ref().is_some_and(|userfault| userfault.process != getpid()) {
        *kept = None;
    }
    if work.is_under_caller() {
        return Err(AdoptError::NotPermitted);
    }
    for _ in 0..2 {
        if kept.is_none() {
            *kept = Some(prepare().ok_or(AdoptError::NotPermitted)?);
        }
        if others.look == DescriptorScanTime::First {
            others.check_descriptors()?;
        }
        match kept.as_ref().map(|userfault| userfault.perform(work, others)) {
            Some(WorkDone {
                outcome: Err(AdoptError::System(Errno::NOTTY | Errno::BADF)), ..
            }) => {
                // The program closed our descriptor, and the number may mean a file of its own.
                core::mem::forget(kept.take());
            }
            Some(WorkDone { outcome, is_clean }) => {
                if !is_clean {
                    // Closing it ends every registration and wakes every thread that waits.
                    *kept = None;
                }
                return outcome;
            }
            None => {}
        }
    }
    Err(AdoptError::NotPermitted)
}

/// Opens the descriptor while the process may, for releases at a time when it may not any more.
/// With [`crate::move_lock::MOVES`] held.
pub(crate) fn keep() {
    // SAFETY: the lock is held.
    let kept = unsafe { &mut *KEPT.0.get() };
    if kept.is_none() {
        *kept = prepare();
    }
}

/// In a forked child: the descriptor governs the parent's memory.
pub(crate) fn forget_in_child() {
    // SAFETY: the forking thread held the lock.
    unsafe { *KEPT.0.get() = None };
}

/// Opens a userfaultfd that can protect private and file pages against user and kernel stores.
fn prepare() -> Option<Userfault> {
    let file = above_standard_streams(open()?)?;
    let wanted = FEATURE_WRITE_PROTECT | FEATURE_WRITE_PROTECT_FILES;
    let covers_unpopulated = enable(&file, wanted | FEATURE_WRITE_PROTECT_UNPOPULATED);
    if !covers_unpopulated && !enable(&file, wanted) {
        return None;
    }
    Some(Userfault { file, covers_unpopulated, process: getpid() })
}

fn open() -> Option<OwnedFd> {
    // SAFETY: the descriptor stays inside this module.
    if let Ok(file) = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC) } {
        return Some(file);
    }
    let device =
        openat(CWD, c"/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
    NewDescriptor::from(&device)
}

/// `USERFAULTFD_IOC_NEW`: takes flags by value and returns a descriptor.
struct NewDescriptor;

impl NewDescriptor {
    fn from(device: &OwnedFd) -> Option<OwnedFd> {
        // SAFETY: implemented below as the device defines it.
        unsafe { ioctl(device, NewDescriptor) }.ok()
    }
}

// SAFETY: the call takes an integer and returns a new descriptor, which becomes owned once.
unsafe impl rustix::ioctl::Ioctl for NewDescriptor {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> rustix::ioctl::Opcode {
        opcode::none(GROUP, 0x00)
    }

    fn as_ptr(&mut self) -> *mut core::ffi::c_void {
        core::ptr::without_provenance_mut(UserfaultfdFlags::CLOEXEC.bits() as usize)
    }

    unsafe fn output_from_ptr(
        returned: rustix::ioctl::IoctlOutput,
        _: *mut core::ffi::c_void,
    ) -> Result<OwnedFd, Errno> {
        // SAFETY: the kernel just made this descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(returned as RawFd) })
    }
}

/// True if the kernel did it, or had done so when the program closed our descriptor.
fn is_over(outcome: Result<(), Errno>) -> bool {
    matches!(outcome, Ok(()) | Err(Errno::NOTTY | Errno::BADF))
}

/// What became of a move under protection.
struct WorkDone {
    outcome: Result<(), AdoptError>,
    /// Nothing is registered any more, and no thread waits.
    is_clean: bool,
}

impl Userfault {
    fn perform(&self, work: &StretchMove<'_>, others: DirectIoContext<'_>) -> WorkDone {
        let range =
            Range { start: work.stretch.address as u64, length: work.stretch.length as u64 };
        // Refused when the program uses userfaultfd on these pages itself, or they are gone.
        if let Err(errno) = register(&self.file, range, REGISTER_MODE_WRITE_PROTECT) {
            let error = match errno {
                Errno::NOTTY | Errno::BADF => AdoptError::System(errno),
                _ if work.protection() == Ok(None) => AdoptError::Changed,
                _ => AdoptError::NotPermitted,
            };
            return WorkDone { outcome: Err(error), is_clean: true };
        }
        let outcome = self.replace_protected(work, range, others);
        let mut is_clean = true;
        if outcome.is_err() {
            // The old pages stay: lift the protection. After success they no longer exist.
            let _ = self.protect(range, 0);
            is_clean = is_over(unregister(&self.file, range));
        }
        // SAFETY: wakes threads that wait for this descriptor; they try their fault again.
        let woken = unsafe { ioctl(&self.file, Setter::<IOC_WAKE, Range>::new(range)) };
        WorkDone { outcome, is_clean: is_clean && is_over(woken) }
    }

    fn replace_protected(
        &self,
        work: &StretchMove<'_>,
        range: Range,
        others: DirectIoContext<'_>,
    ) -> Result<(), AdoptError> {
        // What is registered is what the mappings were at that moment, which may be anything, also
        // what this thread is going to write to: the staging pages, where others unmapped
        // something since they were looked for. A thread must never wait for itself.
        work.protection()?.ok_or(AdoptError::Changed)?;
        if !self.covers_unpopulated {
            touch(work);
        }
        self.protect(range, PROTECT_MODE_ON).map_err(|_| AdoptError::Changed)?;
        others.check()?;
        // A thread that registers pages as a buffer from now on waits.
        if work.is_pinned(others.processes()) {
            return Err(AdoptError::Changed);
        }
        // Whatever is mapped there from now on is not registered, so that no store waits.
        work.protection()?.ok_or(AdoptError::Changed)?;
        work.copy()?;
        // A thread that unmapped the pages meanwhile took the registration away with them, and then
        // this fails instead of burying what lives there now.
        self.protect(range, PROTECT_MODE_ON).map_err(|_| AdoptError::Changed)?;
        let protection = work.protection()?.ok_or(AdoptError::Changed)?;
        Ok(work.replace(protection)?)
    }

    fn protect(&self, range: Range, mode: u64) -> Result<(), Errno> {
        loop {
            let mut protect = Protect { range, mode };
            // SAFETY: protection only delays stores; the caller lifts it or replaces the pages.
            match unsafe { ioctl(&self.file, Updater::<IOC_PROTECT, Protect>::new(&mut protect)) } {
                // The mappings are changing under another thread's hands.
                Err(Errno::AGAIN) => rustix::thread::sched_yield(),
                settled => return settled,
            }
        }
    }
}

/// Makes every page present, since older kernels protect only those.
fn touch(work: &StretchMove<'_>) {
    for page in (0..work.stretch.length).step_by(PAGE_BYTES) {
        let at = core::ptr::with_exposed_provenance::<u8>(work.stretch.address + page);
        // SAFETY: readable memory of the program; the value is not used.
        unsafe { at.read_volatile() };
    }
}
