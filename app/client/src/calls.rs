//! What needs a call to the daemon and nobody of the application waits for.
//!
//! In: errands. A thread of its own makes the calls, because a call may take until its limit: the
//! data path goes on meanwhile. The thread is started when there is something to do and ends when
//! there was nothing for a second.

use crate::Client;
use crate::asking::Asking;
use crate::lock::lock;
use crate::progress::spawn_quietly;
use omniverb_device::work::Destination;
use omniverb_sys::clock;
use omniverb_terms::{Qpn, Rkey};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

/// How long the thread stays without work.
const IDLE: Duration = Duration::from_secs(1);

/// Something to call the daemon for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Grant {
        qpn: Qpn,
        peer_qpn: Qpn,
        rkey: Rkey,
        /// Address and length of what is wanted of it.
        range: (u64, u64),
    },
    DatagramLink {
        qpn: Qpn,
        destination: Destination,
    },
    /// What was granted by way of a queue pair's links is to end.
    Failed {
        qpn: Qpn,
    },
    /// Look for a daemon, as often as this is asked for.
    Reconnect,
    /// A call was given up: hear what became of it.
    Settle,
}

/// The thread's work.
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
    pub(crate) fn ask(self: &Arc<Self>, client: &Weak<Client>, call: Call) {
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
        let (calls, client) = (self.clone(), client.clone());
        // Without a thread it is left for the next one.
        state.running = spawn_quietly("omniverb-calls", move || calls.run(&client)).is_ok();
    }

    fn run(self: &Arc<Self>, client: &Weak<Client>) {
        let mut asking = Asking::default();
        while let Some(next) = self.next(asking.next_at()) {
            let Some(client) = client.upgrade() else { continue };
            match next {
                Some(Call::Grant { qpn, peer_qpn, rkey, range }) => {
                    client.request_grant(qpn, peer_qpn, rkey, range);
                }
                Some(Call::DatagramLink { qpn, destination }) => asking.add(qpn, destination),
                Some(Call::Failed { qpn }) => client.qp_failed(qpn),
                Some(Call::Reconnect) => drop(client.reconnect()),
                Some(Call::Settle) if !client.session.settle() => {
                    self.ask(&Arc::downgrade(&client), Call::Settle);
                }
                Some(Call::Settle) | None => {}
            }
            asking.go_on(&client);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_ends_when_there_was_nothing_to_do_and_comes_again() {
        let calls = Arc::new(Calls::default());
        let running = || lock(&calls.state).running;
        for _ in 0..2 {
            (0..3).for_each(|_| calls.ask(&Weak::new(), Call::Reconnect));
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
