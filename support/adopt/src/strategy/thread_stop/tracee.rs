//! Traces one thread of the program, or of a process in its memory.
#![expect(unsafe_code)]
// UNSAFETY: ptrace. libc's wrapper is avoided: it is variadic and touches errno on success.

use super::refusal_code;
use crate::proc_task_files::{belongs, is_dead};
use core::ffi::{c_int, c_void};
use core::ptr;
use rustix::io::Errno;

/// A thread, seized by the helper.
pub(super) struct Tracee {
    pub thread: i32,
    state: State,
}

enum State {
    Seized,
    Stopped { deliver: c_int },
    Gone,
}

const EVENT_STOP: c_int = 128;

fn ptrace(request: u32, thread: i32, address: usize, data: *mut c_void) -> Result<(), Errno> {
    // SAFETY: each request below passes what it expects.
    let outcome = unsafe { libc::syscall(libc::SYS_ptrace, request, thread, address, data) };
    if outcome < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(())
}

impl Tracee {
    /// Takes hold of a thread and asks it to stop. `None`: there is nothing to stop.
    pub(super) fn seize(process: i32, thread: i32) -> Result<Option<Tracee>, i32> {
        // The number came from a directory; make sure that it means one of our threads here too.
        if !belongs(process, thread) {
            return Ok(None);
        }
        match ptrace(libc::PTRACE_SEIZE, thread, 0, ptr::null_mut()) {
            Ok(()) => {}
            Err(Errno::SRCH) => return Ok(None),
            Err(_) if is_dead(thread) => return Ok(None),
            Err(_) => return Err(refusal_code::NOT_PERMITTED),
        }
        // Fails only if the thread is gone, which the wait will tell.
        let _ = ptrace(libc::PTRACE_INTERRUPT, thread, 0, ptr::null_mut());
        Ok(Some(Tracee { thread, state: State::Seized }))
    }

    /// True once the thread stands still or is gone.
    pub(super) fn poll_stopped(&mut self) -> Result<bool, i32> {
        if !matches!(self.state, State::Seized) {
            return Ok(true);
        }
        let mut status: c_int = 0;
        let flags = libc::__WALL | libc::WNOHANG;
        // SAFETY: waits for our own tracee.
        let found =
            unsafe { libc::syscall(libc::SYS_wait4, self.thread, &raw mut status, flags, 0) };
        if found == 0 {
            return Ok(false);
        }
        self.state = if found < 0 {
            // ECHILD: gone, and reaped by a thread that executed another program.
            State::Gone
        } else if libc::WIFSTOPPED(status) {
            // Besides the stop that was asked for, the thread may be about to take a signal. That
            // is a stop too; the signal is passed on when the thread is let go.
            let event = status >> 16;
            State::Stopped { deliver: if event == 0 { libc::WSTOPSIG(status) } else { 0 } }
        } else if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            State::Gone
        } else {
            return Err(refusal_code::BUSY);
        };
        debug_assert!(status >> 16 == 0 || status >> 16 == EVENT_STOP);
        self.restart_interrupted_call();
        Ok(true)
    }

    /// True once the thread has ended.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone)
    }

    /// Lets a stopped thread go on.
    pub(super) fn let_go(&mut self) {
        if let State::Stopped { deliver } = self.state {
            let signal = ptr::without_provenance_mut(deliver.unsigned_abs() as usize);
            let _ = ptrace(libc::PTRACE_DETACH, self.thread, 0, signal);
            self.state = State::Gone;
        }
    }

    /// The stack pointer of a stopped thread, where the kernel tells it (Linux 5.3).
    pub(super) fn stack_pointer(&self) -> Option<usize> {
        /// `struct ptrace_syscall_info`; the part after the stack pointer is not used.
        #[repr(C)]
        struct Info {
            operation: u8,
            padding: [u8; 3],
            architecture: u32,
            instruction_pointer: u64,
            stack_pointer: u64,
            rest: [u64; 8],
        }
        const GET_SYSCALL_INFO: u32 = 0x420e;
        if !matches!(self.state, State::Stopped { .. }) {
            return None;
        }
        let mut info = Info {
            operation: 0,
            padding: [0; 3],
            architecture: 0,
            instruction_pointer: 0,
            stack_pointer: 0,
            rest: [0; 8],
        };
        let to = (&raw mut info).cast();
        ptrace(GET_SYSCALL_INFO, self.thread, size_of::<Info>(), to).ok()?;
        usize::try_from(info.stack_pointer).ok().filter(|&pointer| pointer != 0)
    }

    /// Some system calls return EINTR when they are disturbed, even without a signal. For those
    /// that did nothing yet, EINTR is replaced by the kernel's own word for "restart unless a
    /// signal handler runs", so that neither the stop is noticed nor a signal missed.
    #[cfg(target_arch = "x86_64")]
    fn restart_interrupted_call(&self) {
        const EINTR: i64 = -(libc::EINTR as i64);
        const RESTART_UNLESS_HANDLED: i64 = -514;
        const RESTARTABLE: [i64; 15] = [
            libc::SYS_epoll_wait,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_pwait2,
            libc::SYS_rt_sigtimedwait,
            libc::SYS_semop,
            libc::SYS_semtimedop,
            libc::SYS_msgrcv,
            libc::SYS_read,
            libc::SYS_readv,
            libc::SYS_recvfrom,
            libc::SYS_recvmsg,
            libc::SYS_recvmmsg,
            libc::SYS_accept,
            libc::SYS_accept4,
            libc::SYS_io_getevents,
        ];
        if !matches!(self.state, State::Stopped { deliver: 0 }) {
            return;
        }
        let mut registers = core::mem::MaybeUninit::<libc::user_regs_struct>::uninit();
        if ptrace(libc::PTRACE_GETREGS, self.thread, 0, registers.as_mut_ptr().cast()).is_err() {
            return;
        }
        // SAFETY: filled by the kernel.
        let registers = unsafe { registers.assume_init() };
        let call = registers.orig_rax.cast_signed();
        if registers.rax.cast_signed() == EINTR && RESTARTABLE.contains(&call) {
            let at = core::mem::offset_of!(libc::user_regs_struct, rax);
            let value =
                ptr::without_provenance_mut(RESTART_UNLESS_HANDLED.cast_unsigned() as usize);
            let _ = ptrace(libc::PTRACE_POKEUSER, self.thread, at, value);
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn restart_interrupted_call(&self) {}
}
