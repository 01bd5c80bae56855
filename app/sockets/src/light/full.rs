//! Who finds his lane full waits for its reader, as long as that one reads.
//!
//! To take the connection home to the trunk at once would be right, and slow: what comes by the
//! trunk costs its reader several times as much, so that the lane, which the sender has again
//! after a few calls, is full before the reader comes to it. But who does not read at all, since he
//! sends himself perhaps, is not waited for: then there is the trunk's room.

use core::ffi::c_int;

use super::lanes::{self, Soon};
use super::moving::IfFull;
use super::numbers::Token;
use super::state::with;
use crate::carry::clock;
use crate::carry::parts::Parts;
use crate::carry::patience::Patience;

/// For how long a reader may do something else: a millisecond or two.
const PAUSE: u64 = clock::SECOND >> 9;
/// And how long it takes at most.
const LONGEST: u64 = 8 * PAUSE;

/// Sends when there is room in a lane that was full. Before it waits for longer than a moment
/// `about_to_wait` is called. `None`: its reader does not read, or it is no lane of this
/// connection's any more.
pub(super) fn send_when_read(
    token: Token,
    parts: &Parts<'_>,
    from: usize,
    about_to_wait: impl Fn(),
) -> Option<Result<usize, c_int>> {
    let mut waiting: Option<(Patience, u64)> = None;
    loop {
        let read = match lanes::send_soon(token, parts, from) {
            Soon::Sent(bytes) => {
                if let Some((patience, _)) = waiting {
                    patience.has_come();
                }
                return Some(Ok(bytes));
            }
            Soon::Full(read) => {
                // Others may wait for what this process owes them.
                with(|state| state.pump())?;
                Some(read)
            }
            Soon::Otherwise => {
                let (sent, has_lane) = with(|state| {
                    let sent = state.send(token, parts, (from, IfFull::Stays));
                    (sent, state.has_lane(token))
                })?;
                if sent.is_some() || !has_lane {
                    return sent;
                }
                None
            }
        };
        let Some((patience, seen)) = &mut waiting else {
            about_to_wait();
            waiting = Some((Patience::of(PAUSE, LONGEST), read.unwrap_or_default()));
            continue;
        };
        if let Some(read) = read.filter(|read| read != seen) {
            *seen = read;
            patience.renew(PAUSE);
        }
        if patience.is_over() {
            return None;
        }
        patience.give_way();
    }
}
