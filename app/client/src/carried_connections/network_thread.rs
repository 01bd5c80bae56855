//! Runs the network thread: it serves carried connections while no polls do.
//!
//! It sleeps on the sockets, on a descriptor by which queue pairs wake it, and until an alarm of a
//! connection is due. While something is under way it looks every millisecond. After some quiet
//! looks it asks to be woken, looks once more a millisecond later, since a queue pair may have
//! missed that (decision 0001), and then sleeps without a limit. It ends when nothing was carried
//! for a second.

use super::network_thread_sleep::Sleep;
use super::poll_precedence::{PAUSE_FIRST, PollPrecedence};
use super::served_links::{Driver, TurnReport};
use omniverb_datapath::hosted_links::Next;
use omniverb_sys::clock;
use std::num::NonZeroU64;
use std::time::Duration;

/// How long it sleeps while something goes on.
const TICK: Duration = Duration::from_millis(1);
/// Quiet looks after which it asks to be woken; one more, and it sleeps without a limit.
const QUIET_LOOKS: u32 = 10;
/// How much later than asked for it may be woken, in nanoseconds.
const TIMER_SLACK: u64 = 1_000;
/// How long it stays while nothing is carried.
const IDLE: Duration = Duration::from_secs(1);

/// How long to sleep after a look. `quiet`: looks at which nothing happened.
fn limit(report: Option<TurnReport>, quiet: u32, now: u64) -> Option<Duration> {
    let Some(report) = report else { return Some(TICK) };
    let tick = (report.is_busy || quiet <= QUIET_LOOKS).then_some(TICK);
    let alarm = match report.next {
        Next::Now => Some(Duration::ZERO),
        Next::At(at) => Some(Duration::from_nanos(at.saturating_sub(now))),
        Next::Never => None,
    };
    tick.into_iter().chain(alarm).min()
}

/// The queue pairs of carried links, as the thread sees them.
pub(crate) trait QueuePairServer: Send {
    /// Serves those that were rung.
    fn serve(&self);
    /// Whether the program waits for an event of one of their CQs, or is about to: its last poll
    /// says nothing of the next one then.
    fn is_awaited(&self) -> bool;
}

/// The connections, as the thread sees them.
pub(super) trait NetworkTurns {
    /// Whether something is carried.
    fn are_some(&self) -> bool;
    /// Polls so far, and when the last one was, in nanoseconds.
    fn polls(&self) -> (u64, u64);
    /// A turn; `None`: another thread is at it.
    fn turn(&self, driver: Driver) -> Option<TurnReport>;
    /// Does some work, whether queue pairs were rung by it, which no other thread hears.
    fn is_rung_for(&self, work: impl FnOnce()) -> bool;
    /// The thread is about to sleep for long: queue pairs are to wake it.
    fn want_wakes(&self);
    /// Nothing has a turn until then, if nothing happens.
    fn sleeps(&self, until: Option<u64>);
    /// Whether the thread may end: nothing is carried, and the next link starts another one.
    fn let_thread_end(&self) -> bool;
}

/// Serves `carried` until there is nothing to serve.
pub(super) fn run(carried: &impl NetworkTurns, sleep: &Sleep, queue_pairs: &impl QueuePairServer) {
    // Pauses are short; a kernel that does not know this makes them longer.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK));
    let (mut precedence, mut quiet, mut ready) = (PollPrecedence::default(), 0, Vec::new());
    let mut idle_since = None;
    loop {
        let now = clock::now();
        let (polls, polled_at) = carried.polls();
        let pause = precedence.pause(polls, now.saturating_sub(polled_at));
        if let Some(pause) = pause.filter(|_| !queue_pairs.is_awaited()) {
            quiet = 0;
            std::thread::sleep(pause);
            continue;
        }
        if carried.are_some() {
            idle_since = None;
        } else {
            let since = *idle_since.get_or_insert(now);
            if now - since > IDLE.as_nanos() as u64 && carried.let_thread_end() {
                return;
            }
        }
        if quiet == QUIET_LOOKS {
            carried.want_wakes();
        }
        let mut report = None;
        let is_due = carried.is_rung_for(|| report = carried.turn(Driver::Thread));
        let Some(TurnReport { has_received: came, .. }) = report else {
            // A poll or a post is at it.
            std::thread::sleep(PAUSE_FIRST);
            continue;
        };
        if is_due || came {
            queue_pairs.serve();
        }
        // What they did leaves now, and acknowledgements that have waited for it.
        let now = clock::now();
        let report = carried.turn(Driver::Last);
        let mut until = limit(report, quiet, now);
        if idle_since.is_some() {
            until = Some(until.map_or(IDLE, |until| until.min(IDLE)));
        }
        carried.sleeps(until.map(|until| now.saturating_add(until.as_nanos() as u64)));
        let woken = sleep.wait(until, &mut ready);
        let busy = report.is_none_or(|report| report.is_busy);
        quiet = if came || is_due || woken || busy { 0 } else { quiet.saturating_add(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_without_a_limit_only_when_all_is_quiet() {
        let report = |next, is_busy| Some(TurnReport { next, has_received: false, is_busy });
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(limit(None, 99, 0), ms(1));
        assert_eq!(limit(report(Next::Never, false), QUIET_LOOKS, 0), ms(1));
        assert_eq!(limit(report(Next::Never, false), QUIET_LOOKS + 1, 0), None);
        assert_eq!(limit(report(Next::Never, true), QUIET_LOOKS + 1, 0), ms(1));
        assert_eq!(limit(report(Next::At(7_000_000), false), 99, 2_000_000), ms(5));
        assert_eq!(limit(report(Next::At(1), false), 99, 2), ms(0));
        assert_eq!(limit(report(Next::Now, true), 0, 0), ms(0));
    }
}
