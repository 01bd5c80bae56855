//! One connection that is carried: which way bytes go, and what calls answer.
//!
//! The kernel's socket at each end, the *shadow*, stays connected. A direction begins in the
//! kernel. Its writer switches it at a *fence*, so many bytes after its beginning, and its bytes go
//! into a ring from there on; and carrying ends at another such point, after which they are the
//! kernel's again:
//!
//! ```text
//! kernel: N bytes | ring: E bytes | kernel
//!                 fence           end, or where the reader left
//! ```
//!
//! What is not about bytes in the middle part is the kernel's own answer: who closes, shuts down or
//! dies does it with the shadow, and so end, reset and hang-up are seen there. Of that, two things
//! have to be added, which the kernel cannot know: bytes that nobody took out of the ring when
//! their reader closed make a reset ([`Closing`], or [`reset()`] where it was killed), and who can
//! take nothing any more gets what is sent by the kernel, which answers it ([`Direction::sink`]).
//!
//! In: words of the shared memory, copied once, and the shadow's events. Out: decisions. What a
//! peer wrote is believed as far as it makes sense ([`Direction::is_sound`]).

mod direction;
mod events;

pub use direction::{Direction, Sink, Source};
pub use events::{Events, readiness};

/// What one side says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Side {
    /// It has been shut down so far; see [`Shut`].
    pub shut: Shut,
    /// Whoever closed the last descriptor knew that it was.
    pub has_closed: bool,
}

impl Side {
    /// Bytes for it would be answered by a reset: nobody is there, or it was shut down both ways.
    #[must_use]
    pub fn takes_nothing(self) -> bool {
        self.has_closed || self.shut == Shut::all()
    }
}

bitflags::bitflags! {
    /// How far a side was shut down.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Shut: u32 {
        /// `SHUT_RD`.
        const RECEIVE = 1;
        /// `SHUT_WR`.
        const SEND = 2;
    }
}

/// How the last descriptor of a side is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// As it is: the kernel knows of all that was not read.
    Plain,
    /// With a reset (`SO_LINGER`, zero seconds): there are bytes in the ring that nobody read.
    Reset,
}

/// How to close, with the direction that leads here.
#[must_use]
pub fn closing(inward: &Direction) -> Closing {
    if inward.waiting() > 0 { Closing::Reset } else { Closing::Plain }
}

/// What the shadow shows of its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FarEnd {
    /// It may send.
    Open,
    /// It sends no more: the state of TCP is `CLOSE_WAIT`, or one behind it. (`POLLRDHUP` is no
    /// proof: it shows where a side was shut down by itself, too.)
    Ended,
}

/// Nobody is there any more, whether or not it was said.
#[must_use]
pub fn has_gone(far: FarEnd, peer: Side) -> bool {
    peer.has_closed || far == FarEnd::Ended && !peer.shut.contains(Shut::SEND)
}

/// Whether this side was reset, which is settled once, when it first sees that its peer has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reset {
    /// Nobody has gone, or the kernel knows all about it.
    #[default]
    No,
    /// The kernel would have reset it, and knows nothing of that: the next call that fails says so,
    /// and until then it has an error.
    Pending,
    /// Somebody was told.
    Told,
}

/// What to settle on: the peer has gone, and left bytes in the ring that it had not read. If the
/// kernel had some of its own it has told (`shadow` shows an error).
#[must_use]
pub fn reset(shadow: Events, peer: Side, outward: &Direction) -> Reset {
    let is_untold = !peer.has_closed && !shadow.contains(Events::ERROR);
    if is_untold && outward.waiting() > 0 { Reset::Pending } else { Reset::No }
}
