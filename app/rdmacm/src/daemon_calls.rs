//! The way to the daemon: the process's one connection, which is `libibverbs.so.1`'s.
//!
//! In: a message of `rnic/session`. Out: its answer. What the daemon tells by itself goes to the
//! [`id_registry`](crate::id_registry).

use core::ffi::c_void;
use core::ptr::null_mut;
use std::sync::Mutex;

use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::{DESCRIPTORS_MAX, Message, VERSION, decode, encode};
use omniverb_sys::lock;
use omniverb_terms::Errno;

use crate::errno::verb;
use crate::private_abi::{PrivateAnswer, PrivateClient};
use crate::{ibverbs_imports, id_registry, process_id_across_fork};

/// A hold on the connection.
#[derive(Clone, Copy)]
struct ClientHold {
    opened: *mut PrivateClient,
    /// Whose: a child of fork() takes one of its own.
    process: i32,
}

// SAFETY: the functions that take it are for any thread.
unsafe impl Send for ClientHold {}

static HOLD: Mutex<Option<ClientHold>> = Mutex::new(None);

fn hold() -> Result<ClientHold, Errno> {
    let mut slot = lock(&HOLD);
    let process = process_id_across_fork::this();
    if let Some(hold) = *slot
        && hold.process == process
    {
        return Ok(hold);
    }
    let mut opened = null_mut();
    // SAFETY: a place for a pointer.
    verb(unsafe {
        ibverbs_imports::omniverb_private_open(u32::from(VERSION), null_mut(), &mut opened)
    })?;
    // SAFETY: open; `hear` needs nothing of its cookie.
    verb(unsafe { ibverbs_imports::omniverb_private_listen(opened, Some(hear), null_mut()) })?;
    let hold = ClientHold { opened, process };
    *slot = Some(hold);
    Ok(hold)
}

/// Called by the progress thread for each message that is for us, and once with none when the
/// daemon is gone.
unsafe extern "C" fn hear(_cookie: *mut c_void, message: *const c_void, bytes: usize) {
    if message.is_null() {
        return id_registry::daemon_is_gone();
    }
    // SAFETY: the owner's promise: so many bytes, for the length of the call.
    let bytes = unsafe { core::slice::from_raw_parts(message.cast::<u8>(), bytes) };
    if let Ok((_, Message::CmHappened(happened))) = decode(bytes) {
        id_registry::happened(&happened);
    }
}

/// Asks the daemon.
pub(crate) fn ask(message: &Message) -> Result<Message, Errno> {
    let hold = hold()?;
    let mut question = [0; MESSAGE_BYTES_MAX];
    let length = encode(0, message, &mut question);
    let mut answer = PrivateAnswer {
        bytes: 0,
        descriptors: 0,
        descriptor: [-1; DESCRIPTORS_MAX],
        message: [0; MESSAGE_BYTES_MAX / 8],
    };
    // SAFETY: open; so many bytes; a place for an answer.
    verb(unsafe {
        let question = question.as_ptr().cast();
        ibverbs_imports::omniverb_private_call(hold.opened, question, length, &mut answer)
    })?;
    // No answer to us comes with descriptors.
    // SAFETY: plain numbers, as many bytes as they have.
    let bytes = unsafe {
        core::slice::from_raw_parts(answer.message.as_ptr().cast::<u8>(), MESSAGE_BYTES_MAX)
    };
    let said = bytes.get(..answer.bytes).ok_or(Errno::EPROTO)?;
    match decode(said) {
        Ok((_, Message::Failed(errno))) => Err(errno),
        Ok((_, answer)) => Ok(answer),
        Err(_) => Err(Errno::EPROTO),
    }
}

/// Asks for something that is answered with nothing but success.
pub(crate) fn tell(message: &Message) -> Result<(), Errno> {
    match ask(message)? {
        Message::Done(_) => Ok(()),
        _ => Err(Errno::EPROTO),
    }
}
