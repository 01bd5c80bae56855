//! The sockets of the process, by what the program calls them.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use omniverb_terms::Errno;

use super::datagram::calls::Datagrams;
use super::stream_socket::Socket;

/// What a number stands for: each caller has a share of it.
#[derive(Clone)]
pub(crate) enum Entry {
    Stream(Arc<Socket>),
    Datagrams(Arc<Datagrams>),
}

static SOCKETS: RwLock<BTreeMap<c_int, Entry>> = RwLock::new(BTreeMap::new());

/// A new one; its number.
pub(crate) fn add(socket: Socket) -> c_int {
    insert(socket.number, Entry::Stream(Arc::new(socket)))
}

/// A new one of datagrams; its number.
pub(crate) fn add_datagrams(socket: Datagrams) -> c_int {
    insert(socket.number, Entry::Datagrams(Arc::new(socket)))
}

fn insert(number: c_int, socket: Entry) -> c_int {
    let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    sockets.insert(number, socket);
    number
}

/// The socket of a number, if it is one.
pub(crate) fn find(number: c_int) -> Option<Entry> {
    SOCKETS.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
}

/// The socket of a number.
///
/// # Errors
/// `EBADF`: none of ours.
pub(crate) fn of(number: c_int) -> Result<Entry, Errno> {
    find(number).ok_or(Errno::EBADF)
}

/// The socket of a number, for what only streams can.
///
/// # Errors
/// `EBADF`: none of ours. `EOPNOTSUPP`: one of datagrams.
pub(crate) fn stream(number: c_int) -> Result<Arc<Socket>, Errno> {
    match of(number)? {
        Entry::Stream(socket) => Ok(socket),
        Entry::Datagrams(_) => Err(Errno::EOPNOTSUPP),
    }
}

/// Forgets one.
///
/// # Errors
/// `EBADF`: none of ours.
pub(crate) fn remove(number: c_int) -> Result<Entry, Errno> {
    let removed = SOCKETS.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
    removed.ok_or(Errno::EBADF)
}
