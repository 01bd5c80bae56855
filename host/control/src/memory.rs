//! The memory two processes share, made by the daemon and kept by it only until it is sent.

use crate::outbox::Parcel;
use omniverb_link::layout::link_bytes;
use omniverb_session::body::LinkReady;
use omniverb_sys::memfd;
use omniverb_sys::payers::Payers;
use omniverb_sys::wake;
use omniverb_tenancy::SessionId;
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

/// Makes what `ready` (either end's) describes, for these two. Without a session an end is the
/// engine's.
pub(crate) fn make(
    ready: &LinkReady,
    ends: [Option<SessionId>; 2],
    payers: Option<&Payers>,
) -> io::Result<Shared> {
    let bytes = link_bytes(ready.request_bytes as usize, ready.response_bytes as usize);
    let link: Parcel = Arc::new(memfd::create("omniverb-link", bytes as u64)?);
    let (mut first, mut second) = (vec![link.clone()], vec![link]);
    if ready.bell_new != 0 {
        let bell: Parcel = Arc::new(memfd::create("omniverb-bell", BELL_BYTES)?);
        // Within one process there is one direction, from its second end to its first, and both
        // ends have both ends of it.
        let one = Direction::towards(ends[0], payers)?;
        let other =
            if ready.loopback != 0 { one.clone() } else { Direction::towards(ends[1], payers)? };
        first.extend([&bell, &one.sleeper, &other.waker].map(Arc::clone));
        second.extend([&bell, &other.sleeper, &one.waker].map(Arc::clone));
    }
    Ok(Shared { first, second })
}

/// A way to wake.
#[derive(Clone)]
struct Direction {
    waker: Parcel,
    sleeper: Parcel,
}

impl Direction {
    fn towards(sleeper: Option<SessionId>, payers: Option<&Payers>) -> io::Result<Direction> {
        // What the engine holds is ours to pay for.
        let (payers, who) = sleeper.map_or((None, 0), |session| (payers, session.0));
        let (waker, sleeper) = wake::direction(payers, who)?;
        Ok(Direction {
            waker: Arc::new(OwnedFd::from(waker)),
            sleeper: Arc::new(OwnedFd::from(sleeper)),
        })
    }
}
