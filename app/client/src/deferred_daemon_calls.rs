//! Makes calls to the daemon that no thread of the application waits for.
//!
//! In: tasks. A thread of its own makes the calls, because a call may take until its limit: the
//! data path goes on meanwhile. The thread is started when there is something to do and ends when
//! there was nothing for a second.

use crate::pending_datagram_links::{LinkReply, LinkRequests};
use crate::signal_free_thread::spawn_quietly;
use omniverb_device::AsyncEvent;
use omniverb_device::send_work_request::Destination;
use omniverb_sys::clock;
use omniverb_sys::lock;
use omniverb_terms::{Qpn, Rkey};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

/// How long the thread stays without work.
const IDLE: Duration = Duration::from_secs(1);
/// Before a link of a group is asked for anew, in nanoseconds.
const ATTACH_PAUSE: u64 = 300_000_000;
/// The longest pause, where a quota is used up or there is no address.
const ATTACH_PAUSE_MAX: u64 = 10_000_000_000;

/// Something to call the daemon for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeferredCall {
    /// Mappings of a peer's region are wanted.
    Grant {
        /// Our queue pair, which would use them.
        qpn: Qpn,
        peer_qpn: Qpn,
        rkey: Rkey,
        /// Address and length of what is wanted of it.
        range: (u64, u64),
    },
    /// A region's pages are worth a mapping of our own.
    OwnPages { rkey: Rkey },
    /// A link for datagrams is wanted.
    DatagramLink {
        /// Our queue pair, which sends them.
        qpn: Qpn,
        destination: Destination,
    },
    /// A queue pair of an XRC domain has requests for another part of it.
    HandOver { qpn: Qpn, part: u32 },
    /// This has happened to a queue pair that others may have open.
    Tell { qpn: Qpn, event: AsyncEvent },
    /// Another process that has a queue pair of ours open asks something, or has ended.
    Opened { opener: u64 },
    /// A hidden queue pair is of no use any more.
    Discard { qpn: Qpn },
    /// What was granted by way of a queue pair's links is to end.
    Failed { qpn: Qpn },
    /// A queue pair lacks links of groups that it is attached to. Asked for after a pause: what it
    /// lacks them for may not be over yet.
    Attach { qpn: Qpn },
    /// The daemon has made a link of a group that the queue pair is not attached to any more: it is
    /// to end. After a pause, too: a thread may be attaching it just now.
    Leave { qpn: Qpn, peer_qpn: Qpn },
    /// The port of a link that this process carries.
    TellPort { qpn: Qpn },
    /// Links that were carried are the engine's from now on, or have failed.
    SettleCarried,
    /// Asks why a queue pair reaches no peer.
    Explain { qpn: Qpn },
    /// Look for a daemon, as often as this is asked for.
    Reconnect,
    /// A call was given up: hear what became of it.
    Settle,
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// It is done, or cannot be.
    Done,
    /// It is to be made once more.
    Again,
    /// The same, but after a longer pause each time: what it lacks it may lack for long.
    Later,
}

/// Makes the calls: has the connection to the daemon.
pub(crate) trait Caller: Send + Sync + 'static {
    /// Makes a call, which may take until its limit. Datagram links are [asked
    /// for](Self::ask_for_link).
    fn make(&self, call: DeferredCall) -> CallOutcome;
    /// Asks for a link of our queue pair to this destination.
    fn ask_for_link(&self, qpn: Qpn, destination: Destination) -> LinkReply;
}

/// Calls to be made, and the thread that makes them, while there is one.
#[derive(Default)]
pub(crate) struct DeferredCalls {
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    running: bool,
    open: VecDeque<DeferredCall>,
}

impl DeferredCalls {
    /// Has this done. What is asked for again and again is done once.
    pub(crate) fn ask(self: &Arc<Self>, caller: &Weak<impl Caller>, call: DeferredCall) {
        let mut state = lock(&self.state);
        let once = matches!(call, DeferredCall::Reconnect | DeferredCall::Settle);
        if once && state.open.contains(&call) {
            return;
        }
        state.open.push_back(call);
        if state.running {
            drop(state);
            self.more.notify_one();
            return;
        }
        let (calls, caller) = (self.clone(), caller.clone());
        // Without a thread it is left for the next one.
        state.running = spawn_quietly("omniverb-calls", move || calls.run(&caller)).is_ok();
    }

    fn run(self: &Arc<Self>, caller: &Weak<impl Caller>) {
        let mut asking = LinkRequests::default();
        let mut later = PausedCalls::default();
        while let Some(next) = self.next(asking.next_at().into_iter().chain(later.next_at()).min())
        {
            let Some(caller) = caller.upgrade() else {
                later = PausedCalls::default();
                continue;
            };
            match next {
                Some(DeferredCall::DatagramLink { qpn, destination }) => {
                    asking.add(qpn, destination)
                }
                Some(call @ (DeferredCall::Attach { .. } | DeferredCall::Leave { .. })) => {
                    later.add(call, clock::now());
                }
                Some(call) if caller.make(call) == CallOutcome::Again => {
                    self.ask(&Arc::downgrade(&caller), call);
                }
                Some(_) | None => {}
            }
            for due in later.take_due(clock::now()) {
                let made = caller.make(due.call);
                later.put_back(due, made, clock::now());
            }
            asking.go_on(|qpn, destination| caller.ask_for_link(qpn, destination));
        }
    }

    /// Waits for work: a task, or `Some(None)` at the time given. `None`: there was none for
    /// long, and the thread counts as ended.
    fn next(&self, at: Option<u64>) -> Option<Option<DeferredCall>> {
        let idle_at = clock::now() + IDLE.as_nanos() as u64;
        let mut state = lock(&self.state);
        loop {
            if let Some(call) = state.open.pop_front() {
                return Some(Some(call));
            }
            let left = at.unwrap_or(idle_at).saturating_sub(clock::now());
            if left == 0 {
                state.running = at.is_some();
                return at.map(|_| None);
            }
            let waited = self.more.wait_timeout(state, Duration::from_nanos(left));
            state = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
    }
}

/// Calls about links of groups, which are made after a pause.
#[derive(Default)]
struct PausedCalls(Vec<PausedCall>);

/// One of them, and how long the pause is that ends then, in nanoseconds.
struct PausedCall {
    call: DeferredCall,
    at: u64,
    pause: u64,
}

impl PausedCalls {
    /// One more; once is enough.
    fn add(&mut self, call: DeferredCall, now: u64) {
        if !self.0.iter().any(|other| other.call == call) {
            self.0.push(PausedCall { call, at: now + ATTACH_PAUSE, pause: ATTACH_PAUSE });
        }
    }

    /// When the next is due.
    fn next_at(&self) -> Option<u64> {
        self.0.iter().map(|paused| paused.at).min()
    }

    /// Those that are to be made now.
    fn take_due(&mut self, now: u64) -> Vec<PausedCall> {
        self.0.extract_if(.., |paused| paused.at <= now).collect()
    }

    /// This became of one.
    fn put_back(&mut self, due: PausedCall, made: CallOutcome, now: u64) {
        let pause = match made {
            CallOutcome::Done => return,
            CallOutcome::Again => ATTACH_PAUSE,
            CallOutcome::Later => ATTACH_PAUSE_MAX.min(due.pause * 2),
        };
        self.0.push(PausedCall { at: now + pause, pause, ..due });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoCaller;

    impl Caller for NoCaller {
        fn make(&self, _: DeferredCall) -> CallOutcome {
            CallOutcome::Done
        }

        fn ask_for_link(&self, _: Qpn, _: Destination) -> LinkReply {
            LinkReply::Over
        }
    }

    #[test]
    fn a_process_at_a_quota_pauses_longer_each_time() {
        let call = DeferredCall::Attach { qpn: Qpn(7) };
        let mut later = PausedCalls::default();
        later.add(call, 5);
        later.add(call, 6);
        let mut pauses = Vec::new();
        let outcomes =
            [CallOutcome::Again, CallOutcome::Later, CallOutcome::Later, CallOutcome::Later];
        for made in outcomes
            .into_iter()
            .chain([CallOutcome::Later; 4])
            .chain([CallOutcome::Again, CallOutcome::Done])
        {
            let at = later.next_at().unwrap();
            assert!(later.take_due(at - 1).is_empty());
            let due = later.take_due(at).pop().unwrap();
            pauses.push(due.pause / 1_000_000);
            later.put_back(due, made, at);
        }
        assert_eq!(pauses, [300, 300, 600, 1200, 2400, 4800, 9600, 10_000, 10_000, 300]);
        assert_eq!(later.next_at(), None);
    }

    #[test]
    fn an_idle_thread_ends_and_a_new_call_starts_another() {
        let calls = Arc::new(DeferredCalls::default());
        let running = || lock(&calls.state).running;
        for _ in 0..2 {
            (0..3).for_each(|_| calls.ask(&Weak::<NoCaller>::new(), DeferredCall::Reconnect));
            assert!(running());
            let begun = clock::now();
            while running() {
                assert!(clock::now() - begun < 20_000_000_000);
                std::thread::sleep(Duration::from_millis(20));
            }
            assert!(lock(&calls.state).open.is_empty());
        }
    }
}
