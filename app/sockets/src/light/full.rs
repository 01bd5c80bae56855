//! Who finds his lane full waits for its reader, as long as that one reads.
//!
//! To take the connection home to the trunk at once would be right, and slow: what comes by the
//! trunk costs its reader several times as much, so that the lane, which the sender has again
//! after a few calls, is full before the reader comes to it. But who does not read at all, since he
//! sends himself perhaps, is not waited for: then there is the trunk's room.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};

use super::lanes::{self, Soon};
use super::numbers::Token;
use super::state::{State, with};
use super::waiting::Waits;
use crate::carry::clock;
use crate::carry::parts::Parts;
use crate::carry::patience::Patience;

/// For how long a reader may do something else: a millisecond or two. (A call waits in this way
/// twice as long at most, as [`Patience`] has it: then it sleeps, and hears signals.)
const PAUSE: u64 = clock::SECOND >> 9;
/// So many full lanes are left at once at most behind one whose reader did not read.
const SKIP_MAX: u32 = 127;

/// Waits in a row that were in vain, and full lanes that are left at once for that.
static VAIN: AtomicU32 = AtomicU32::new(0);
static SKIP: AtomicU32 = AtomicU32::new(0);

/// How a call has waited for readers of full lanes.
#[derive(Default)]
pub(super) struct Waited(Option<(Patience, Option<u64>)>);

/// Sends when there is room in a lane that was full. Before it waits for longer than a moment
/// `about_to_wait` is called. `by_state` sends what it can without waiting, and tells whether there
/// is a lane still. `None`: the call is to sleep, since the reader does not read, or has
/// taken long, or others need the processor; or there is no such lane any more.
pub(super) fn send_when_read(
    token: Token,
    (parts, from): (&Parts<'_>, usize),
    (limit, waited): (Waits, &mut Waited),
    about_to_wait: impl Fn(),
    by_state: impl Fn(&mut State) -> (Option<Result<usize, c_int>>, bool),
) -> Option<Result<usize, c_int>> {
    if limit.is_over() || is_left_out() {
        return None;
    }
    let mut since = clock::now();
    loop {
        let read = match lanes::send_soon(token, parts, from) {
            Soon::Sent(bytes) => {
                if let Some((patience, _)) = &waited.0 {
                    patience.has_come();
                    VAIN.store(0, Ordering::Relaxed);
                }
                return Some(Ok(bytes));
            }
            Soon::Full(read) => {
                // Others may wait for what this process owes them.
                with(|state| state.pump())?;
                Some(read)
            }
            Soon::Otherwise => {
                let (sent, has_lane) = with(&by_state)?;
                if sent.is_some() || !has_lane {
                    return sent;
                }
                None
            }
        };
        let Some((patience, seen)) = &mut waited.0 else {
            about_to_wait();
            waited.0 = Some((Patience::of(PAUSE, u64::MAX), read));
            continue;
        };
        if read.is_some() && read != *seen {
            *seen = read;
            since = clock::now();
            patience.renew(PAUSE);
        }
        if patience.is_over() || limit.is_over() {
            if clock::is_over(since, PAUSE) {
                is_in_vain();
            }
            return None;
        }
        patience.give_way();
    }
}

/// The last waits were in vain, so that this one is not begun.
fn is_left_out() -> bool {
    let skip = SKIP.load(Ordering::Relaxed);
    if skip > 0 {
        SKIP.store(skip - 1, Ordering::Relaxed);
    }
    skip > 0
}

fn is_in_vain() {
    let vain = VAIN.fetch_add(1, Ordering::Relaxed) + 1;
    SKIP.store((1 << vain.min(7)).min(SKIP_MAX), Ordering::Relaxed);
}
