//! Observes the arguments of calls that then go on to the next library's function.
//!
//! The entry points keep all registers meanwhile, so that functions with any number of arguments
//! pass as they came.

use core::ffi::{c_int, c_void};

use omniverb_connection::descriptors::Why;

use crate::descriptor_tables;
use crate::errno::keeping_errno;
use crate::holder_count_at_exit::End;
use crate::user_memory::{UserFile, UserPtr};
use crate::{
    carry, fallback_ledger, fork_refcount, light, symbol_lookup, syscall_scan,
    transports_lifecycle, tsc_clock, vfork_check,
};

/// Descriptors that `daemon` and `login_tty` give to something else.
const STANDARD: u32 = 2;

/// Leaves a stream to the kernel before it is used where this library does not see it.
fn keep(fd: c_int, why: Why) {
    if vfork_check::is_this_process() && descriptor_tables::look(fd).kind().is_stream() {
        carry::leave(fd);
        fallback_ledger::keep(fd, why);
    }
}

/// `preadv2`, `pwritev2`: what has no offset is read and written, too.
#[unsafe(no_mangle)]
pub extern "C" fn ov_look_vector(fd: c_int) {
    fork_refcount::may_outlive_close(fd);
    carry::leave(fd);
}

/// What may sleep.
#[unsafe(no_mangle)]
pub extern "C" fn ov_look_sleep() {
    carry::may_sleep();
}

/// `execve` and the like.
#[unsafe(no_mangle)]
pub extern "C" fn ov_look_exec() {
    carry::before_exec();
}

/// `dlopen`: code that may make system calls of its own.
#[unsafe(no_mangle)]
pub extern "C" fn ov_look_load() {
    if (carry::is_on() || light::is_on()) && vfork_check::is_this_process() {
        syscall_scan::loads(tsc_clock::now(), tsc_clock::SECOND);
    }
}

/// What ends the process without what `exit` does.
#[unsafe(no_mangle)]
pub extern "C" fn ov_look_end() {
    transports_lifecycle::finish(End::Now);
}

/// `quick_exit`: calls what the program has asked for first.
#[unsafe(no_mangle)]
pub extern "C" fn ov_look_quick() {
    transports_lifecycle::finish(End::Later);
}

/// `posix_spawn`, `popen` and the like: a child that becomes another program.
#[unsafe(no_mangle)]
pub extern "C" fn ov_look_spawn() {
    carry::before_vfork();
    carry::may_sleep();
}

/// `system`, `popen`: one of which is known what it does.
#[unsafe(no_mangle)]
pub extern "C" fn ov_look_run() {
    carry::before_spawn();
    carry::may_sleep();
}

/// `prctl`: a filter of system calls knows nothing of ours.
#[unsafe(no_mangle)]
pub extern "C" fn ov_look_prctl(option: c_int) {
    if option == libc::PR_SET_SECCOMP {
        carry::stop();
    }
}

/// `fdopen`: the stream reads, writes and closes within the C library.
#[unsafe(no_mangle)]
pub extern "C" fn ov_look_fdopen(fd: c_int) {
    keep(fd, Why::Stdio);
}

/// `dprintf`: the same.
#[unsafe(no_mangle)]
pub extern "C" fn ov_look_dprintf(fd: c_int) {
    keep(fd, Why::Stdio);
}

functions! {
    /// `aio_read`, `aio_write`: helper threads within the C library read and write.
    ov_look_aio(block: aiocb) -> () {
        keep_for_aio(block);
    }

    /// `lio_listio`: many of them.
    ov_look_lio(mode: int, blocks: aiocbs) -> () {
        _ = mode;
        blocks.each(keep_for_aio);
    }

    /// `fclose`: closes within the C library.
    ov_look_fclose(stream: stream) -> () {
        forget(stream);
    }

    /// `freopen`: puts another file at the stream's descriptor.
    ov_look_freopen(path: usize, mode: usize, stream: stream) -> () {
        _ = (path, mode);
        forget(stream);
    }
}

fn keep_for_aio(block: UserPtr<'_, libc::aiocb>) {
    if let Some(block) = block.read() {
        keep(block.aio_fildes, Why::Asynchronous);
    }
}

/// `splice`: bytes that move within the kernel.
#[unsafe(no_mangle)]
pub extern "C" fn ov_look_splice(from: c_int, _: *const c_void, to: c_int) {
    keep(from, Why::Spliced);
    keep(to, Why::Spliced);
}

/// A stream is about to be closed.
fn forget(stream: UserFile<'_>) {
    if stream.is_null() || !vfork_check::is_this_process() {
        return;
    }
    // One without a descriptor is no error of its owner's.
    let fd = keeping_errno(|| stream.fd());
    // It is closed in a moment.
    fork_refcount::mark_escaped(fd);
    carry::forget(fd);
    light::closes(fd);
    descriptor_tables::forget(fd);
    fork_refcount::release_closed(fd);
}

/// `daemon`: goes on in a child, whose standard descriptors are another file's.
#[unsafe(no_mangle)]
pub extern "C" fn ov_look_daemon(_: c_int, keeps_standard: c_int) {
    // It goes on in a child.
    carry::before_unseen_fork();
    light::forks();
    if keeps_standard == 0 && vfork_check::is_this_process() {
        descriptor_tables::forget_range(0, STANDARD);
    }
}

/// `login_tty`: the same, with a descriptor that is closed then.
#[unsafe(no_mangle)]
pub extern "C" fn ov_look_login_tty(fd: c_int) {
    carry::close(fd);
    light::closes(fd);
    light::closes_range(0, STANDARD);
    if vfork_check::is_this_process() {
        fork_refcount::mark_escaped(fd);
        descriptor_tables::forget_range(0, STANDARD);
        descriptor_tables::forget(fd);
        fork_refcount::release_closed(fd);
    }
}

/// `vfork`.
#[unsafe(no_mangle)]
pub extern "C" fn ov_look_vfork() {
    carry::before_vfork();
    vfork_check::begin_vfork();
}

/// `clone`.
#[unsafe(no_mangle)]
pub extern "C" fn ov_look_clone(_: *const c_void, _: *const c_void, flags: c_int) {
    carry::before_clone(flags);
    vfork_check::note_clone(flags);
}

/// `unshare`.
#[unsafe(no_mangle)]
pub extern "C" fn ov_look_unshare(flags: c_int) {
    if flags & libc::CLONE_FILES != 0 {
        carry::stop();
        vfork_check::mark_fd_tables_apart();
    }
}

/// A slot that is not filled yet was jumped from.
#[unsafe(no_mangle)]
pub extern "C" fn ov_sockets_late() {
    symbol_lookup::ov_sockets_find();
}
