//! The node that Omniverb's other libraries reach this one through: `OMNIVERB_PRIVATE_1`.
//!
//! In: C calls of those libraries, as `include/omniverb_private.h` describes them. Out: calls of
//! the process's one client. Nothing here is for programs.

use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use core::ptr::null;
use std::sync::{Arc, Mutex};

use omniverb_abi::{ibv_context, ibv_qp};
use omniverb_client::{Client, Interest, lock};
use omniverb_session::DESCRIPTORS_MAX;
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_terms::Errno;
use rustix::fd::{BorrowedFd, IntoRawFd};

use crate::errno::outcome;
use crate::verbs::context::ContextShell;
use crate::verbs::qp_handle::QpShell;

/// A library's hold on the client.
pub struct PrivateClient {
    client: Arc<Client>,
    watches: Mutex<Vec<u64>>,
    listeners: Mutex<Vec<u64>>,
}

/// `struct omniverb_private_answer`.
#[repr(C)]
pub struct PrivateAnswer {
    bytes: usize,
    descriptors: u32,
    descriptor: [c_int; DESCRIPTORS_MAX],
    message: [u64; MESSAGE_BYTES_MAX / 8],
}

// As a C compiler lays it out.
const _: () = assert!(DESCRIPTORS_MAX == 4 && MESSAGE_BYTES_MAX == 4096);
const _: () =
    assert!(offset_of!(PrivateAnswer, message) == 32 && size_of::<PrivateAnswer>() == 32 + 4096);

/// `OMNIVERB_PRIVATE_INPUT`.
const INPUT: u32 = 1;
/// `OMNIVERB_PRIVATE_ROOM`.
const ROOM: u32 = 2;

/// What a library gave to be called with.
#[derive(Clone, Copy)]
struct CallbackContext(*mut c_void);

// SAFETY: it is only handed back, to a function that is said to take it in any thread.
unsafe impl Send for CallbackContext {}
// SAFETY: as above.
unsafe impl Sync for CallbackContext {}

impl CallbackContext {
    fn get(self) -> *mut c_void {
        self.0
    }
}

/// The version of the messages.
#[unsafe(no_mangle)]
pub extern "C" fn ov_omniverb_private_version() -> u32 {
    u32::from(omniverb_session::VERSION)
}

/// Takes hold of the connection.
///
/// # Safety
/// `context` is null or open; `opened` is valid for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omniverb_private_open(
    version: u32,
    context: *mut ibv_context,
    opened: *mut *mut PrivateClient,
) -> c_int {
    if version != ov_omniverb_private_version() {
        return Errno::EPROTO.raw();
    }
    let client = if context.is_null() {
        Client::get().map_err(|_| Errno::ENODEV)
    } else {
        // SAFETY: the caller's promise.
        let client = unsafe { ContextShell::of(context) }.client.clone();
        if client.is_ours() { Ok(client) } else { Err(Errno::EIO) }
    };
    outcome(client.map(|client| {
        let (watches, listeners) = Default::default();
        let fresh = Box::new(PrivateClient { client, watches, listeners });
        // SAFETY: the caller's promise.
        unsafe { opened.write(Box::into_raw(fresh)) };
    }))
}

/// Lets go of the connection: watches of this library end, and it is told nothing any more.
///
/// # Safety
/// `opened` came from [`ov_omniverb_private_open`] and is not used any more, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omniverb_private_close(opened: *mut PrivateClient) -> c_int {
    if opened.is_null() {
        return Errno::EINVAL.raw();
    }
    // SAFETY: the caller's promise; it was leaked by `open`.
    let PrivateClient { client, watches, listeners } = *unsafe { Box::from_raw(opened) };
    if client.is_ours() {
        let watches = watches.into_inner().unwrap_or_else(|e| e.into_inner());
        for watch in watches {
            let _ = client.unwatch(watch);
        }
        for listener in listeners.into_inner().unwrap_or_else(|e| e.into_inner()) {
            let _ = client.stop_listening_for_another(listener);
        }
    } else {
        // A forked child: the numbers of its files may be in use for something else by now.
        core::mem::forget(client);
    }
    0
}

/// Asks the daemon.
///
/// # Safety
/// `opened` is open, `question` has so many bytes, `answer` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omniverb_private_call(
    opened: *mut PrivateClient,
    question: *const c_void,
    bytes: usize,
    answer: *mut PrivateAnswer,
) -> c_int {
    if question.is_null() || bytes > MESSAGE_BYTES_MAX {
        return Errno::EINVAL.raw();
    }
    let mut asked = [0; MESSAGE_BYTES_MAX];
    // SAFETY: the caller's promise; there is room for as many.
    unsafe { core::ptr::copy_nonoverlapping(question.cast(), asked.as_mut_ptr(), bytes) };
    // SAFETY: the caller's promise.
    let client = unsafe { &(*opened).client };
    let heard = match client.ask_for_another(&asked[..bytes]) {
        Ok(heard) if heard.files.len() <= DESCRIPTORS_MAX => heard,
        Ok(_) => return Errno::EPROTO.raw(),
        Err(errno) => return errno.raw(),
    };
    let count = heard.files.len() as u32;
    let mut descriptor = [-1; DESCRIPTORS_MAX];
    for (place, file) in descriptor.iter_mut().zip(heard.files) {
        *place = file.into_raw_fd();
    }
    // SAFETY: the caller's promise; the message has as many bytes as are copied.
    unsafe {
        (&raw mut (*answer).bytes).write(heard.bytes);
        (&raw mut (*answer).descriptors).write(count);
        (&raw mut (*answer).descriptor).write(descriptor);
        let message = (&raw mut (*answer).message).cast::<u8>();
        core::ptr::copy_nonoverlapping(heard.message.as_ptr(), message, MESSAGE_BYTES_MAX);
    }
    0
}

/// Has the progress thread call with what the daemon tells of connections.
///
/// # Safety
/// `opened` is open, and `hear` may be called with `cookie` in another thread until it is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omniverb_private_listen(
    opened: *mut PrivateClient,
    hear: Option<unsafe extern "C" fn(*mut c_void, *const c_void, usize)>,
    cookie: *mut c_void,
) -> c_int {
    let Some(hear) = hear else { return Errno::EINVAL.raw() };
    // SAFETY: the caller's promise.
    let opened = unsafe { &*opened };
    let cookie = CallbackContext(cookie);
    let call = Box::new(move |message: Option<&[u8]>| {
        let (place, bytes) =
            message.map_or((null(), 0), |message| (message.as_ptr().cast(), message.len()));
        // SAFETY: the caller's promise.
        unsafe { hear(cookie.get(), place, bytes) }
    });
    outcome(opened.client.listen_for_another(call).map(|number| {
        lock(&opened.listeners).push(number);
    }))
}

/// Has the progress thread call when there is something in a descriptor.
///
/// # Safety
/// `opened` is open, `watch` is valid for a number, and `ready` may be called with `cookie` in
/// another thread until the watch has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omniverb_private_watch(
    opened: *mut PrivateClient,
    descriptor: c_int,
    what: u32,
    ready: Option<unsafe extern "C" fn(*mut c_void, u64)>,
    cookie: *mut c_void,
    watch: *mut u64,
) -> c_int {
    let interest = match what {
        INPUT => Interest::Input,
        ROOM => Interest::Room,
        _ => return Errno::EINVAL.raw(),
    };
    let Some(ready) = ready else { return Errno::EINVAL.raw() };
    if descriptor < 0 {
        return Errno::EBADF.raw();
    }
    // SAFETY: not a lasting use of the number; if it is not open the kernel says so.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let file = match rustix::io::fcntl_dupfd_cloexec(borrowed, 0) {
        Ok(file) => file,
        Err(errno) => return errno.raw_os_error(),
    };
    // SAFETY: the caller's promise.
    let opened = unsafe { &*opened };
    let cookie = CallbackContext(cookie);
    // SAFETY: the caller's promise.
    let call = Box::new(move |number| unsafe { ready(cookie.get(), number) });
    if !opened.client.is_ours() {
        return Errno::EIO.raw();
    }
    // Held until the number is known: the call may come at once, and end its watch.
    let mut watches = lock(&opened.watches);
    outcome(opened.client.watch(file, interest, call).map(|number| {
        watches.push(number);
        // SAFETY: the caller's promise.
        unsafe { watch.write(number) };
    }))
}

/// Ends a watch.
///
/// # Safety
/// `opened` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omniverb_private_unwatch(
    opened: *mut PrivateClient,
    watch: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let opened = unsafe { &*opened };
    if !opened.client.is_ours() {
        return Errno::EIO.raw();
    }
    let known = {
        let mut watches = lock(&opened.watches);
        let place = watches.iter().position(|number| *number == watch);
        place.map(|place| watches.swap_remove(place)).is_some()
    };
    if !known {
        return Errno::ENOENT.raw();
    }
    outcome(opened.client.unwatch(watch))
}

/// Lets what was posted to a queue pair leave.
///
/// # Safety
/// `qp` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omniverb_private_leave(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller's promise.
    let (client, shell) = unsafe { (&ContextShell::of((*qp).context).client, QpShell::of(qp)) };
    client.let_leave(&shell.qp);
    0
}
