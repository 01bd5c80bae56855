//! The memory two processes share, made by the daemon and kept by it only until it is sent.

use crate::outbox::Parcel;
use omniverb_link::layout::link_bytes;
use omniverb_session::body::LinkReady;
use omniverb_sys::memfd;
use std::io;
use std::sync::Arc;

/// A bell: one page per side.
const BELL_BYTES: u64 = 0x2000;

/// Makes what goes to the ends of the link that `ready` (either end's) describes: the link's memory
/// and, if the bell between these two processes is new, that.
pub(crate) fn make(ready: &LinkReady) -> io::Result<Vec<Parcel>> {
    let bytes = link_bytes(ready.request_bytes as usize, ready.response_bytes as usize);
    let mut files: Vec<Parcel> = vec![Arc::new(memfd::create("omniverb-link", bytes as u64)?)];
    if ready.bell_new != 0 {
        files.push(Arc::new(memfd::create("omniverb-bell", BELL_BYTES)?));
    }
    Ok(files)
}
