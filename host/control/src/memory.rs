//! The memory two processes share, made by the daemon and kept by it only until it is sent.

use crate::outbox::Parcel;
use omniverb_link::layout::link_bytes;
use omniverb_session::body::LinkReady;
use omniverb_sys::{memfd, wake};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A bell: one page per side.
const BELL_BYTES: u64 = 0x2000;

/// What goes to each end of a new link.
pub(crate) struct Shared {
    pub(crate) first: Vec<Parcel>,
    pub(crate) second: Vec<Parcel>,
}

/// Makes what `ready` (either end's) describes.
pub(crate) fn make(ready: &LinkReady) -> io::Result<Shared> {
    let bytes = link_bytes(ready.request_bytes as usize, ready.response_bytes as usize);
    let link: Parcel = Arc::new(memfd::create("omniverb-link", bytes as u64)?);
    let (mut first, mut second) = (vec![link.clone()], vec![link]);
    if ready.bell_new != 0 {
        let bell: Parcel = Arc::new(memfd::create("omniverb-bell", BELL_BYTES)?);
        let (one, other) = wake::pair()?;
        let (one, other): (Parcel, Parcel) =
            (Arc::new(OwnedFd::from(one)), Arc::new(OwnedFd::from(other)));
        // An end of the pair is both: what one waits on, and what one wakes the other with. Within
        // one process waiting is at the first end and waking at the second.
        let loopback = ready.loopback != 0;
        let (second_waits, wakes) =
            if loopback { (&one, [&other, &other]) } else { (&other, [&one, &other]) };
        first.extend([&bell, &one, wakes[0]].map(Arc::clone));
        second.extend([&bell, second_waits, wakes[1]].map(Arc::clone));
    }
    Ok(Shared { first, second })
}
