//! The C entry points, as `include/omniverb/dma.h` declares them.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::null_mut;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use libc::sockaddr_storage;
use omniverb_sys::lock;
use omniverb_terms::Errno;

use crate::buffer_handle::{BufferHandle, wanted};
use crate::cm_id::CmId;
use crate::condition_wait::limit;
use crate::device::Device;
use crate::dma_context::{Events, Program};
use crate::errno::{EINPROGRESS, call, outcome, pointer, set};
use crate::event_thread;
use crate::limits::LIST_MAX;
use crate::node::{ConnectionOrigin, Node};
use crate::node_state::CheckedTransfer;
use crate::resolve_address;
use crate::transfer::{TransferPlace, omv_dma_transfer};
use crate::wakes_and_callbacks::WaitMode;

const LISTEN: u32 = 1;
const SPIN: u32 = 2;
const SLEEP: u32 = 4;

/// # Safety
/// `text` is null or a string.
unsafe fn place(text: *const c_char, port: u16) -> Result<Option<sockaddr_storage>, Errno> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    resolve_address::find(unsafe { CStr::from_ptr(text) }, port).map(Some)
}

fn begin(bound: Option<sockaddr_storage>, port: u16, flags: u32) -> Result<*mut Program, Errno> {
    let waits = match flags & (SPIN | SLEEP) {
        // A thread that spins on the only processor keeps all others from it.
        0 if std::thread::available_parallelism().is_ok_and(|count| count.get() == 1) => {
            WaitMode::Sleeps
        }
        0 => WaitMode::Mixed,
        SPIN => WaitMode::Spins,
        SLEEP => WaitMode::Sleeps,
        _ => return Err(Errno::EINVAL),
    };
    if flags & !(LISTEN | SPIN | SLEEP) != 0 || (port != 0 && flags & LISTEN == 0) {
        return Err(Errno::EINVAL);
    }
    let events = Events::new()?;
    // SAFETY: an open channel.
    unsafe { do_not_wait((*events.0).fd) }?;
    let mut context = null_mut();
    let mut listener = None;
    if bound.is_some() || flags & LISTEN != 0 {
        let mut to = bound.map_or_else(|| resolve_address::any(port), Ok)?;
        let id = CmId::new(events.0, 0)?;
        id.bind(&mut to)?;
        context = id.device();
        if flags & LISTEN != 0 {
            let port = id.listen()?;
            listener = Some((id, port));
        }
    }
    if context.is_null() {
        context = Device::first()?;
    }
    let source = bound.map(|bound| resolve_address::with_port(bound, 0)).transpose()?;
    let program = Arc::new(Program::new(events, context, listener, source, waits)?);
    // SAFETY: an open channel.
    unsafe { do_not_wait((*program.device.channel).fd) }?;
    event_thread::start(&program)?;
    Ok(Arc::into_raw(program).cast_mut())
}

/// # Safety
/// An open descriptor, of our own.
unsafe fn do_not_wait(fd: c_int) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        call(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK))
    }
}

/// Begins.
///
/// # Safety
/// `address` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omv_dma_init(
    address: *const c_char,
    port: u16,
    flags: u32,
) -> *mut Program {
    // SAFETY: the caller's promise.
    let bound = unsafe { place(address, port) };
    pointer(bound.and_then(|bound| begin(bound, port, flags)))
}

/// Ends everything.
///
/// # Safety
/// `dma` is live, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omv_dma_cleanup(dma: *mut Program) -> c_int {
    // SAFETY: the caller's promise.
    let program = unsafe { &*dma };
    if program.shared.in_callback() {
        return outcome(Err(Errno::EDEADLK));
    }
    program.stops.store(true, Ordering::Release);
    program.shared.wake();
    let thread = lock(&program.thread).take();
    // What is destroyed waits for callbacks that were not acknowledged: there are none when that
    // thread has ended.
    if let Some(thread) = thread {
        thread.join().ok();
    }
    // What is left is called back here, and must not wait either.
    program.shared.set_cleanup_thread();
    program.end();
    // SAFETY: what `begin` returned; the thread's share is gone.
    drop(unsafe { Arc::from_raw(dma) });
    0
}

/// The port that it listens at, or 0.
///
/// # Safety
/// `dma` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omv_dma_port(dma: *mut Program) -> u16 {
    // SAFETY: the caller's promise.
    unsafe { &*dma }.port
}

fn connect(program: &Program, to: sockaddr_storage, limit_ms: c_int) -> Result<Arc<Node>, Errno> {
    if program.shared.in_callback() {
        return Err(Errno::EDEADLK);
    }
    let node = program.add_node(ConnectionOrigin::Ours)?;
    let id = CmId::new(program.events.0, node.number);
    node.set_connection(id.inspect_err(|_| program.forget_node(&node))?);
    node.with(|id| id.resolve(program.source, to));
    let look = || match node.check_ready() {
        Ok(false) => None,
        Ok(true) => Some(Ok(())),
        Err(errno) => Some(Err(errno)),
    };
    let ready = program.shared.gate.wait(limit(limit_ms), look).unwrap_or(Err(Errno::ETIMEDOUT));
    ready.inspect_err(|_| program.give_up(&node)).map(|()| node)
}

/// Connects.
///
/// # Safety
/// `dma` is live, `address` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omv_dma_connect(
    dma: *mut Program,
    address: *const c_char,
    port: u16,
    milliseconds: c_int,
) -> *mut Node {
    // SAFETY: the caller's promise.
    let (program, to) = unsafe { (&*dma, place(address, port)) };
    let to = to.and_then(|to| to.ok_or(Errno::EINVAL));
    let node = to.and_then(|to| connect(program, to, milliseconds));
    // The program's tables have it.
    pointer(node.map(|node| Arc::as_ptr(&node).cast_mut()))
}

/// The next that has connected to us.
///
/// # Safety
/// `dma` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omv_dma_accept(dma: *mut Program, milliseconds: c_int) -> *mut Node {
    // SAFETY: the caller's promise.
    let program = unsafe { &*dma };
    let node = if program.port == 0 {
        Err(Errno::EINVAL)
    } else if program.shared.in_callback() {
        Err(Errno::EDEADLK)
    } else {
        let look = || program.take_arrived().transpose();
        program.shared.gate.wait(limit(milliseconds), look).unwrap_or(Err(Errno::ETIMEDOUT))
    };
    pointer(node.map(|node| Arc::as_ptr(&node).cast_mut()))
}

/// Whether a node is there.
///
/// # Safety
/// `dma` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omv_dma_connected(dma: *mut Program, node: *mut Node) -> c_int {
    // SAFETY: the caller's promise.
    let node = unsafe { &*dma }.node_at(node);
    c_int::from(node.is_ok_and(|node| !node.is_gone()))
}

/// Ends a connection.
///
/// # Safety
/// `dma` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omv_dma_disconnect(dma: *mut Program, node: *mut Node) -> c_int {
    // SAFETY: the caller's promise.
    let program = unsafe { &*dma };
    outcome(program.node_at(node).map(|node| {
        node.end(Errno::ECONNRESET);
        program.forget_node(&node);
    }))
}

/// New memory.
///
/// # Safety
/// `dma` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omv_dma_alloc(
    dma: *mut Program,
    id: u64,
    bytes: usize,
    rights: u32,
) -> *mut BufferHandle {
    // SAFETY: the caller's promise.
    let found = unsafe { &*dma }.allocate(id, bytes, rights);
    pointer(found.map(|address| address as *mut BufferHandle))
}

/// A buffer of a node.
///
/// # Safety
/// `dma` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omv_dma_lookup(
    dma: *mut Program,
    node: *mut Node,
    id: u64,
    milliseconds: c_int,
) -> *mut BufferHandle {
    // SAFETY: the caller's promise.
    let program = unsafe { &*dma };
    let found = program.node_at(node).and_then(|node| {
        let look = || program.find(&node, id).transpose();
        // In a callback nothing comes meanwhile.
        let limit = if program.shared.in_callback() { limit(0) } else { limit(milliseconds) };
        program.shared.gate.wait(limit, look).unwrap_or(Err(Errno::ETIMEDOUT))
    });
    pointer(found.map(|address| address as *mut BufferHandle))
}

/// Gives a buffer back.
///
/// # Safety
/// `dma` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omv_dma_free(dma: *mut Program, buffer: *mut BufferHandle) -> c_int {
    // SAFETY: the caller's promise.
    outcome(unsafe { &*dma }.free(buffer as usize))
}

/// Where a buffer is, if it is ours.
///
/// # Safety
/// `buffer` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omv_dma_address(buffer: *mut BufferHandle) -> *mut c_void {
    // SAFETY: the caller's promise.
    match unsafe { &*buffer } {
        BufferHandle::Own(own) => own.memory.start(),
        BufferHandle::Remote(..) => null_mut(),
    }
}

/// How many bytes a buffer has.
///
/// # Safety
/// `buffer` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omv_dma_length(buffer: *mut BufferHandle) -> usize {
    // SAFETY: the caller's promise.
    unsafe { &*buffer }.what().length as usize
}

/// What a buffer is looked up by.
///
/// # Safety
/// `buffer` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omv_dma_id(buffer: *mut BufferHandle) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { &*buffer }.what().id
}

/// Starts transfers.
///
/// # Safety
/// `dma` is live, and `count` transfers are, until they are done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omv_dma_start(
    dma: *mut Program,
    transfers: *mut omv_dma_transfer,
    count: c_uint,
) -> c_int {
    // SAFETY: the caller's promise.
    let program = unsafe { &*dma };
    let (pd, shared) = (program.device.pd, &program.shared);
    let count = c_int::try_from(count).unwrap_or(c_int::MAX) as usize;
    let mut started = 0;
    let mut why_not = Errno::EINVAL;
    let mut list: Vec<CheckedTransfer> = Vec::with_capacity(count.min(LIST_MAX));
    let mut of: Option<Arc<Node>> = None;
    while started < count {
        // As many as are with the same node, and are right.
        let mut fault = None;
        while started + list.len() < count && list.len() < LIST_MAX {
            // SAFETY: the caller's promise.
            match unsafe { wanted(pd, shared, transfers.add(started + list.len())) } {
                Err(errno) => {
                    fault = Some(errno);
                    break;
                }
                Ok((node, _)) if of.as_ref().is_some_and(|of| !Arc::ptr_eq(of, &node)) => break,
                Ok((node, wanted)) => {
                    of = Some(node);
                    list.push(wanted);
                }
            }
        }
        let Some(node) = of.take() else {
            why_not = fault.unwrap_or(Errno::EINVAL);
            break;
        };
        match node.start(&list) {
            Ok(some) if some == list.len() && fault.is_none() => started += some,
            Ok(some) => {
                started += some;
                break;
            }
            Err(errno) => {
                why_not = errno;
                break;
            }
        }
        list.clear();
    }
    if started == 0 {
        set(why_not);
        return -1;
    }
    c_int::try_from(started).unwrap_or(c_int::MAX)
}

/// How far a transfer is.
///
/// # Safety
/// `dma` is live, and the transfer was started.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omv_dma_query(
    dma: *mut Program,
    transfer: *mut omv_dma_transfer,
) -> c_int {
    // SAFETY: the caller's promise.
    let (program, place) = unsafe { (&*dma, TransferPlace::new(transfer)) };
    let mut status = place.read();
    if status == EINPROGRESS {
        if let Some(node) = program.node(place.node()) {
            node.look();
        }
        status = place.read();
    }
    status.raw()
}
