//! The raw system interface of the scenarios: memory that is read and written as a foreign program
//! would, processes, and a few calls that std does not have.
#![expect(unsafe_code)]
// UNSAFETY: the tests stand for arbitrary C programs.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, RawFd};

pub const PAGE: usize = 4096;

/// Memory of the "program", accessed with volatile loads and stores from any thread.
#[derive(Clone, Copy)]
pub struct Memory {
    pub address: usize,
    pub length: usize,
}

impl Memory {
    /// From malloc, at any alignment; never freed.
    pub fn heap(length: usize) -> Memory {
        // SAFETY: plain allocation.
        let at = unsafe { libc::malloc(length) };
        assert!(!at.is_null());
        let memory = Memory { address: at.expose_provenance(), length };
        memory.fill(0);
        memory
    }

    pub fn mapped(length: usize, protection: i32, flags: i32, file: Option<&File>) -> Memory {
        let fd = file.map_or(-1, AsRawFd::as_raw_fd);
        // SAFETY: a new mapping where the kernel likes it.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        Memory { address: at.expose_provenance(), length }
    }

    pub fn anonymous(length: usize) -> Memory {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Memory::mapped(length, libc::PROT_READ | libc::PROT_WRITE, flags, None)
    }

    /// A shared mapping of a memfd, as a peer makes it; `None` if it is refused.
    pub fn of_file(file: &impl AsFd, length: usize, writable: bool) -> Option<Memory> {
        Memory::of_file_at(file, 0, length, writable)
    }

    /// The same, from this byte of the file on.
    pub fn of_file_at(
        file: &impl AsFd,
        offset: u64,
        length: usize,
        writable: bool,
    ) -> Option<Memory> {
        let offset = offset.cast_signed();
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let fd = file.as_fd().as_raw_fd();
        // SAFETY: a new mapping where the kernel likes it.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, fd, offset)
        };
        (at != libc::MAP_FAILED).then(|| Memory { address: at.expose_provenance(), length })
    }

    pub fn part(self, offset: usize, length: usize) -> Memory {
        assert!(offset + length <= self.length);
        Memory { address: self.address + offset, length }
    }

    pub fn get(self, index: usize) -> u64 {
        assert!((index + 1) * 8 <= self.length);
        // SAFETY: inside memory that stays allocated.
        unsafe { std::ptr::with_exposed_provenance::<u64>(self.address).add(index).read_volatile() }
    }

    pub fn set(self, index: usize, value: u64) {
        assert!((index + 1) * 8 <= self.length);
        let words = std::ptr::with_exposed_provenance_mut::<u64>(self.address);
        // SAFETY: inside memory that stays allocated.
        unsafe { words.add(index).write_volatile(value) };
    }

    pub fn words(self) -> usize {
        self.length / 8
    }

    pub fn fill(self, byte: u8) {
        // SAFETY: inside memory that stays allocated.
        unsafe {
            std::ptr::with_exposed_provenance_mut::<u8>(self.address)
                .write_bytes(byte, self.length);
        }
    }

    pub fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        // SAFETY: inside memory that stays allocated.
        unsafe {
            let from = std::ptr::with_exposed_provenance::<u8>(self.address);
            from.copy_to_nonoverlapping(bytes.as_mut_ptr(), self.length);
        }
        bytes
    }

    /// `read()` into this memory: a store made by the kernel.
    pub fn read_from(self, fd: RawFd) -> isize {
        // SAFETY: inside memory that stays allocated.
        unsafe { libc::read(fd, std::ptr::with_exposed_provenance_mut(self.address), self.length) }
    }

    pub fn protect(self, protection: i32) {
        let at = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: memory of the test.
        assert_eq!(unsafe { libc::mprotect(at, self.length, protection) }, 0);
    }

    pub fn want_huge_pages(self) {
        let at = std::ptr::with_exposed_provenance_mut((self.address + PAGE - 1) & !(PAGE - 1));
        // SAFETY: memory of the test. Refused where the kernel has no transparent huge pages.
        unsafe { libc::madvise(at, self.length & !(PAGE - 1), libc::MADV_HUGEPAGE) };
    }

    /// `madvise()`; false if the kernel does not know it.
    pub fn advise(self, advice: i32) -> bool {
        let at = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: memory of the test.
        unsafe { libc::madvise(at, self.length, advice) == 0 }
    }

    /// False where nothing may be locked.
    pub fn lock_on_fault(self) -> bool {
        let at: *const libc::c_void = std::ptr::with_exposed_provenance(self.address);
        // SAFETY: memory of the test.
        unsafe { libc::syscall(libc::SYS_mlock2, at, self.length, 1) == 0 }
    }

    /// `mbind()`; false where there are no nodes.
    pub fn prefer_first_node(self) -> bool {
        const MPOL_PREFERRED: i32 = 1;
        let nodes: libc::c_ulong = 1;
        let at: *const libc::c_void = std::ptr::with_exposed_provenance(self.address);
        // SAFETY: memory of the test, and one word of nodes.
        unsafe {
            let (bits, flags) = (64_usize, 0_usize);
            let nodes = &raw const nodes;
            libc::syscall(libc::SYS_mbind, at, self.length, MPOL_PREFERRED, nodes, bits, flags) == 0
        }
    }

    /// A userfaultfd that fills these pages, of the form that all users may use.
    pub fn watch_missing(self) -> Option<File> {
        const USER_MODE_ONLY: i32 = 1;
        // SAFETY: a new descriptor, and the structures of the two calls.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY);
            if fd < 0 {
                return None;
            }
            let file = File::from_raw_fd(i32::try_from(fd).unwrap());
            let mut api = [0xAA_u64, 0, 0];
            assert_eq!(libc::ioctl(file.as_raw_fd(), 0xC018_AA3F, api.as_mut_ptr()), 0);
            let mut register = [self.address as u64, self.length as u64, 1, 0];
            assert_eq!(libc::ioctl(file.as_raw_fd(), 0xC020_AA00, register.as_mut_ptr()), 0);
            Some(file)
        }
    }

    pub fn unmap(self) {
        let at = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: memory of the test that is not used again.
        assert_eq!(unsafe { libc::munmap(at, self.length) }, 0);
    }

    /// `mremap()` to wherever there is room, the old place not to be reused by the kernel.
    pub fn moved(self) -> Memory {
        let room = Memory::anonymous(self.length);
        // SAFETY: memory of the test.
        let at = unsafe {
            libc::mremap(
                std::ptr::with_exposed_provenance_mut(self.address),
                self.length,
                self.length,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                std::ptr::with_exposed_provenance_mut::<libc::c_void>(room.address),
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        room
    }

    /// `mremap()` to more bytes, wherever there is room.
    pub fn grown(self, length: usize) -> Option<Memory> {
        let from = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: memory of the test.
        let at = unsafe { libc::mremap(from, self.length, length, libc::MREMAP_MAYMOVE) };
        (at != libc::MAP_FAILED).then(|| Memory { address: at.expose_provenance(), length })
    }

    /// Fresh zero pages over this place.
    pub fn overmap(self) {
        // SAFETY: memory of the test.
        let at = unsafe {
            libc::mmap(
                std::ptr::with_exposed_provenance_mut(self.address),
                self.length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
    }
}

/// Runs `body` in a forked child and returns its wait status. A panic is exit status 101.
pub fn in_child(body: impl FnOnce()) -> i32 {
    // SAFETY: the child runs ordinary code; scenarios fork while this process has one thread, or
    // restrict themselves to what glibc allows in practice.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(if outcome.is_ok() { 0 } else { 101 }) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for our own child.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        }
    }
}

/// Ends this process with SIGALRM unless it is done by then.
pub fn set_deadline(seconds: usize) {
    let seconds = u32::try_from(seconds).unwrap();
    // SAFETY: the default action of SIGALRM is to end the process.
    unsafe { libc::alarm(seconds) };
}

/// Becomes an ordinary user for good, as a daemon does: the kernel then protects the process from
/// its new user.
pub fn give_up_privileges() {
    const NOBODY: u32 = 65534;
    // SAFETY: changes only the credentials of this process, of all its threads.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setresgid(NOBODY, NOBODY, NOBODY), 0);
        assert_eq!(libc::setresuid(NOBODY, NOBODY, NOBODY), 0);
    }
}

/// Becomes an ordinary user as by a login.
pub fn become_nobody() {
    give_up_privileges();
    // SAFETY: what executing a program would do.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) }, 0);
}

pub fn pipe() -> (File, File) {
    let mut ends = [0; 2];
    // SAFETY: the two descriptors are new and become owned here.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
    }
}

/// Closes a descriptor behind its owner's back and puts `/dev/null` under its number.
pub fn take_over_descriptor(number: RawFd) {
    let null = File::open("/dev/null").unwrap();
    // SAFETY: what a program does that closes everything it does not know.
    assert_eq!(unsafe { libc::dup2(null.as_raw_fd(), number) }, number);
}

pub fn descriptor_is_open(number: RawFd) -> bool {
    // SAFETY: asks for flags only.
    unsafe { libc::fcntl(number, libc::F_GETFD) >= 0 }
}

/// Makes an AIO context, so that the kernel may store into user pages asynchronously.
pub fn make_aio_context() -> bool {
    let mut context: libc::c_ulong = 0;
    // SAFETY: the context is never used and ends with the process.
    unsafe { libc::syscall(libc::SYS_io_setup, 8, &raw mut context) == 0 }
}

/// `epoll_wait` without events for `milliseconds`: 0, or the errno.
pub fn epoll_nap(milliseconds: i32) -> i32 {
    // SAFETY: an epoll instance of our own.
    unsafe {
        let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let count = libc::epoll_wait(epoll, &raw mut event, 1, milliseconds);
        let errno = *libc::__errno_location();
        libc::close(epoll);
        if count < 0 { errno } else { 0 }
    }
}

/// `poll` on nothing for `milliseconds`: 0, or the errno.
pub fn poll_nap(milliseconds: i32) -> i32 {
    // SAFETY: no descriptors.
    let count = unsafe { libc::poll(std::ptr::null_mut(), 0, milliseconds) };
    if count < 0 { std::io::Error::last_os_error().raw_os_error().unwrap() } else { 0 }
}

/// `nanosleep` for `milliseconds`: 0, or the errno.
pub fn sleep_nap(milliseconds: i32) -> i32 {
    let (tv_sec, rest) = (i64::from(milliseconds / 1000), i64::from(milliseconds % 1000));
    let time = libc::timespec { tv_sec, tv_nsec: rest * 1_000_000 };
    // SAFETY: a valid time.
    let outcome = unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
    if outcome < 0 { std::io::Error::last_os_error().raw_os_error().unwrap() } else { 0 }
}

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

pub fn set_errno(value: i32) {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() = value };
}

pub fn signal_mask() -> Vec<bool> {
    // SAFETY: reads the mask of this thread.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set);
        (1..64).map(|signal| libc::sigismember(&raw const set, signal) == 1).collect()
    }
}

/// As [`in_child`], but the child is made by a bare system call that no fork hook sees.
pub fn in_raw_child(body: impl FnOnce()) -> i32 {
    // SAFETY: like fork(); the child runs only `body` and ends.
    match unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } {
        -1 => panic!("clone: {}", std::io::Error::last_os_error()),
        0 => {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(if outcome.is_ok() { 0 } else { 101 }) }
        }
        child => {
            let mut status = 0;
            let child = i32::try_from(child).unwrap();
            // SAFETY: waits for our own child.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        }
    }
}

/// Moves a descriptor out of the way; returns where it is now.
pub fn put_aside(number: RawFd) -> RawFd {
    // SAFETY: descriptors of this process, put back by `put_back`.
    unsafe {
        let copy = libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 100);
        assert!(copy >= 0);
        libc::close(number);
        copy
    }
}

pub fn put_back(copy: RawFd, number: RawFd) {
    // SAFETY: undoes `put_aside`.
    assert_eq!(unsafe { libc::dup2(copy, number) }, number);
}

static SIGNALS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

extern "C" fn count_signal(_: i32) {
    SIGNALS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}

/// Counts a queued (real-time) signal from now on; returns its number.
pub fn count_signals() -> i32 {
    let signal = libc::SIGRTMIN();
    // SAFETY: the handler only increments.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = (count_signal as extern "C" fn(i32)) as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
    signal
}

pub fn signals_counted() -> usize {
    SIGNALS.load(std::sync::atomic::Ordering::Relaxed)
}

pub fn own_thread() -> i32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() }
}

/// False if too many are queued already.
pub fn send_to_thread(thread: i32, signal: i32) -> bool {
    // SAFETY: a thread of this process.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) == 0 }
}

/// Leaves a child running that does `body`; returns its number.
pub fn start_child(body: impl FnOnce()) -> i32 {
    // SAFETY: as in `in_child`.
    match unsafe { libc::fork() } {
        0 => {
            body();
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) }
        }
        child => child,
    }
}

pub fn kill(process: i32) {
    // SAFETY: a child of the test, or a child's helper.
    unsafe { libc::kill(process, libc::SIGKILL) };
}

pub fn reap(child: i32) {
    reap_status(child);
}

/// Waits for a child; how it ended.
pub fn reap_status(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}

/// Leaves the calling thread in the kernel, where nothing but SIGKILL reaches it, until a byte
/// comes through a pipe, as a `vfork()` does whose child is slow to call exec.
pub fn uninterruptible_until(byte: BorrowedFd<'_>) {
    extern "C" fn child(file: *mut libc::c_void) -> i32 {
        let mut byte = 0_u8;
        // SAFETY: a place for one byte.
        let count = unsafe { libc::read(file.addr() as i32, (&raw mut byte).cast(), 1) };
        i32::from(count != 1)
    }
    let stack = Memory::anonymous(64 * PAGE);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    // SAFETY: the child runs on a stack of its own and only reads; this thread waits for it.
    unsafe {
        let top = std::ptr::with_exposed_provenance_mut(stack.address + stack.length);
        let argument = std::ptr::without_provenance_mut(byte.as_raw_fd() as usize);
        let child = libc::clone(child, top, flags, argument);
        assert!(child > 0);
        assert_eq!(libc::waitpid(child, std::ptr::null_mut(), libc::__WALL), child);
    }
    stack.unmap();
}
