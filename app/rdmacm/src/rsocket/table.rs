//! The sockets of the process, by what the program calls them.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use omniverb_terms::Errno;

use super::socket::Socket;

static SOCKETS: RwLock<BTreeMap<c_int, Arc<Socket>>> = RwLock::new(BTreeMap::new());

/// A new one; its number.
pub(crate) fn add(socket: Socket) -> c_int {
    let number = socket.number;
    let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    sockets.insert(number, Arc::new(socket));
    number
}

/// The socket of a number, if it is one.
pub(crate) fn find(number: c_int) -> Option<Arc<Socket>> {
    SOCKETS.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
}

/// The socket of a number.
///
/// # Errors
/// `EBADF`: none of ours.
pub(crate) fn of(number: c_int) -> Result<Arc<Socket>, Errno> {
    find(number).ok_or(Errno::EBADF)
}

/// Forgets one.
///
/// # Errors
/// `EBADF`: none of ours.
pub(crate) fn remove(number: c_int) -> Result<Arc<Socket>, Errno> {
    let removed = SOCKETS.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
    removed.ok_or(Errno::EBADF)
}
