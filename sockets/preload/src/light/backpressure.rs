//! Lets a sender wait for the reader of a full lane, as long as that one reads.
//!
//! To return the connection to the channel at once would be right, and slow: what comes by the
//! channel costs its reader several times as much, so that the lane, which the sender gets again
//! after a few calls, is full before the reader comes to it. But a peer that does not read at all,
//! perhaps since it sends itself, is not waited for: then there is the channel's room.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

use omniverb_connection::readiness::Deadline;

use super::descriptors::Token;
use super::lanes::{self, FullLaneSend};
use super::state::{State, with};
use super::waiting::is_over;
use crate::carry::spin_budget::SpinBudget;
use crate::iovecs::Parts;
use crate::tsc_clock;

/// For how long a reader may do something else: a millisecond or two. (A call waits in this way
/// twice as long at most, as [`SpinBudget`] has it: then it sleeps, and hears signals.)
const PAUSE: u64 = tsc_clock::SECOND >> 9;
/// The last wait was in vain, so the next full lane is not waited for: a reader that does not read
/// costs less so. No more than that one: what is taken back is read slowly, and a reader that is
/// busy with that looks as if it did not read.
static WAS_IN_VAIN: AtomicBool = AtomicBool::new(false);

/// How a call has waited for readers of full lanes.
#[derive(Default)]
pub(super) struct ReaderWait(Option<(SpinBudget, Option<u64>)>);

/// Sends when there is room in a lane that was full. Before it waits for longer than a moment
/// `about_to_wait` is called. `by_state` sends what it can without waiting, and tells whether there
/// is a lane still. `None`: the call is to sleep, since the reader does not read, or has
/// taken long, or others need the processor; or there is no such lane any more.
pub(super) fn send_when_read(
    token: Token,
    (parts, from): (&Parts<'_>, usize),
    (limit, waited): (Deadline, &mut ReaderWait),
    about_to_wait: impl Fn(),
    by_state: impl Fn(&mut State) -> (Option<Result<usize, c_int>>, bool),
) -> Option<Result<usize, c_int>> {
    let (mut since, mut has_given_way) = (None, false);
    loop {
        let read = match lanes::send_soon(token, parts, from) {
            FullLaneSend::Sent(bytes) => {
                if let Some((budget, _)) = waited.0.as_ref().filter(|_| has_given_way) {
                    budget.was_in_time();
                }
                return Some(Ok(bytes));
            }
            FullLaneSend::Full(read) => {
                // Others may wait for what this process owes them.
                with(|state| state.progress())?;
                Some(read)
            }
            FullLaneSend::Otherwise => {
                let (sent, has_lane) = with(&by_state)?;
                if sent.is_some() || !has_lane {
                    return sent;
                }
                None
            }
        };
        let Some((budget, seen)) = &mut waited.0 else {
            if WAS_IN_VAIN.swap(false, Ordering::Relaxed) {
                return None;
            }
            about_to_wait();
            waited.0 = Some((SpinBudget::of(PAUSE, u64::MAX), read));
            continue;
        };
        if read.is_some() && read != *seen {
            (*seen, since) = (read, None);
            budget.renew(PAUSE);
        }
        let since = *since.get_or_insert_with(tsc_clock::now);
        if budget.is_over() || is_over(limit) {
            if tsc_clock::is_over(since, PAUSE) {
                WAS_IN_VAIN.store(true, Ordering::Relaxed);
            }
            return None;
        }
        budget.yield_now();
        has_given_way = true;
    }
}
