//! What needs a call to the daemon and nobody of the application waits for.
//!
//! In: errands. A thread of its own makes the calls, because a call may take until its limit: the
//! data path goes on meanwhile. The thread is started when there is something to do and ends when
//! there was nothing for a second.

use crate::asking::{Asking, Reply};
use crate::thread::spawn_quietly;
use omniverb_device::work::Destination;
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

/// Something to call the daemon for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Mappings of a peer's region are wanted.
    Grant {
        /// Our queue pair, which would use them.
        qpn: Qpn,
        peer_qpn: Qpn,
        rkey: Rkey,
        /// Address and length of what is wanted of it.
        range: (u64, u64),
    },
    /// A link for datagrams is wanted.
    DatagramLink {
        /// Our queue pair, which sends them.
        qpn: Qpn,
        destination: Destination,
    },
    /// What was granted by way of a queue pair's links is to end.
    Failed { qpn: Qpn },
    /// A queue pair lacks links of groups that it is attached to. Asked for after a pause: what it
    /// lacks them for may not be over yet.
    Attach { qpn: Qpn },
    /// Look for a daemon, as often as this is asked for.
    Reconnect,
    /// A call was given up: hear what became of it.
    Settle,
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// It is done, or cannot be.
    Done,
    /// It is to be made once more.
    Again,
}

/// Who makes the calls: has the connection to the daemon.
pub(crate) trait Caller: Send + Sync + 'static {
    /// Makes a call, which may take until its limit. Datagram links are [asked
    /// for](Self::ask_for_link).
    fn make(&self, call: Call) -> Made;
    /// Asks for a link of our queue pair to this destination.
    fn ask_for_link(&self, qpn: Qpn, destination: Destination) -> Reply;
}

/// Calls to be made, and the thread that makes them, while there is one.
#[derive(Default)]
pub(crate) struct Calls {
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    running: bool,
    open: VecDeque<Call>,
}

impl Calls {
    /// Has this done. What is asked for again and again is done once.
    pub(crate) fn ask(self: &Arc<Self>, caller: &Weak<impl Caller>, call: Call) {
        let mut state = lock(&self.state);
        let once = matches!(call, Call::Reconnect | Call::Settle);
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
        let mut asking = Asking::default();
        // Those of groups, by when they are due.
        let mut later: VecDeque<(u64, Call)> = VecDeque::new();
        while let Some(next) = self.next(earlier(asking.next_at(), later.front())) {
            let Some(caller) = caller.upgrade() else {
                later.clear();
                continue;
            };
            match next {
                Some(Call::DatagramLink { qpn, destination }) => asking.add(qpn, destination),
                Some(call @ Call::Attach { .. }) => {
                    if !later.iter().any(|(_, other)| *other == call) {
                        later.push_back((clock::now() + ATTACH_PAUSE, call));
                    }
                }
                Some(call) if caller.make(call) == Made::Again => {
                    self.ask(&Arc::downgrade(&caller), call);
                }
                Some(_) | None => {}
            }
            while let Some((_, call)) = later.pop_front_if(|(at, _)| *at <= clock::now()) {
                if caller.make(call) == Made::Again {
                    later.push_back((clock::now() + ATTACH_PAUSE, call));
                }
            }
            asking.go_on(|qpn, destination| caller.ask_for_link(qpn, destination));
        }
    }

    /// Waits for work: an errand, or `Some(None)` at the time given. `None`: there was none for
    /// long, and the thread counts as ended.
    fn next(&self, at: Option<u64>) -> Option<Option<Call>> {
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

fn earlier(at: Option<u64>, later: Option<&(u64, Call)>) -> Option<u64> {
    at.into_iter().chain(later.map(|(at, _)| *at)).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Caller for Nobody {
        fn make(&self, _: Call) -> Made {
            Made::Done
        }

        fn ask_for_link(&self, _: Qpn, _: Destination) -> Reply {
            Reply::Over
        }
    }

    #[test]
    fn the_thread_ends_when_there_was_nothing_to_do_and_comes_again() {
        let calls = Arc::new(Calls::default());
        let running = || lock(&calls.state).running;
        for _ in 0..2 {
            (0..3).for_each(|_| calls.ask(&Weak::<Nobody>::new(), Call::Reconnect));
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
