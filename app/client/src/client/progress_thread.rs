//! Runs the progress thread.
//!
//! It sleeps until a peer kicks, the daemon tells something, or a timer is due. While no polls
//! serve it asks for kicks before it waits. After any activity it takes a turn every millisecond;
//! after two quiet ones, by when no peer can have missed that kicks are wanted, it sleeps without a
//! limit. It waits for nothing else: what needs an answer of the daemon is done in
//! `deferred_daemon_calls.rs`, and what the daemon has no room for waits in
//! `unsent_event_replies.rs`.

use super::Client;
use crate::daemon_caller_trait::DaemonCaller;
use crate::deferred_daemon_calls::DeferredCall;
use omniverb_device::background_progress::ProgressReport;
use omniverb_sys::clock;
use omniverb_terms::Errno;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long to wait between turns while there is activity.
const TICK: Duration = Duration::from_millis(1);
/// How often bells that have links, or have none any more, are looked for, in nanoseconds, by a
/// thread that is awake.
const HEAR_EVERY: u64 = 100_000_000;
/// How often to look whether there is room for the descriptors of a message.
const ROOM: Duration = Duration::from_millis(5);
/// How often to look for a daemon that went away.
const RECONNECT: Duration = Duration::from_millis(100);

fn run(client: &Weak<Client>) {
    let Some(life) = client.upgrade().map(|client| client.bells.life()) else { return };
    // From here on peers see if the process ends: before there is anything to be linked with.
    let _told = life.begin();
    let (mut quiet, mut deadline) = (0, None);
    let (mut reconnect_at, mut hear_at) = (0, 0);
    loop {
        let Some(client) = client.upgrade() else { return };
        let progress = client.progress.clone();
        let connected = client.listen();
        if quiet >= 2 {
            progress.fall_asleep();
            // A thread that came before that saw an awake one and left its work to this turn, a
            // timer that began included.
            let turn = client.shared.progress();
            deadline = turn.deadline;
            if turn.is_busy {
                progress.awake();
                quiet = 0;
            }
        }
        let mut timeout = match (quiet, deadline) {
            (0 | 1, _) => Some(TICK),
            (_, None) => None,
            (_, Some(due)) => Some(Duration::from_nanos(due_in(due)).max(TICK)),
        };
        if !connected {
            timeout = Some(timeout.map_or(RECONNECT, |timeout| timeout.min(RECONNECT)));
        }
        if progress.comes_back() {
            timeout = Some(timeout.map_or(ROOM, |timeout| timeout.min(ROOM)));
        }
        if quiet >= 2 && client.bells.are_some_unheard() {
            let look = Duration::from_nanos(HEAR_EVERY);
            timeout = Some(timeout.map_or(look, |timeout| timeout.min(look)));
        }
        // The client is not kept alive by its own sleeping thread... but contexts never go away
        // while the process lives, so holding it costs nothing.
        let mut active = progress.sleep.wait(timeout);
        progress.awake();
        if active {
            client.shared.rung();
        }
        if progress.hears() {
            client.take_events();
            if !progress.comes_back() {
                progress.listen_on();
            }
        }
        client.watches.call();
        for task in progress.take_tasks() {
            client.defer(task);
            active = true;
        }
        if clock::now() >= hear_at {
            hear_at = clock::now() + HEAR_EVERY;
            client.bells.hear_all(&client.shared, &progress.sleep);
        }
        let mut turn = client.shared.progress();
        if !turn.is_polled && client.shared.bells.want_kicks() {
            // A peer that rang just before that left no kick.
            let again = client.shared.progress();
            turn = ProgressReport { is_busy: turn.is_busy | again.is_busy, ..again };
        }
        deadline = turn.deadline;
        quiet = if active || turn.is_busy { 0 } else { quiet + 1 };
        if !connected && clock::now() >= reconnect_at {
            reconnect_at = clock::now() + RECONNECT.as_nanos() as u64;
            client.defer(DeferredCall::Reconnect);
        }
    }
}

fn due_in(due: u64) -> u64 {
    due.saturating_sub(clock::now())
}

impl Client {
    /// Starts the progress thread, if it does not run.
    pub(super) fn start_progress(self: &Arc<Self>) -> Result<(), Errno> {
        let weak = Arc::downgrade(self);
        self.progress.start(move || run(&weak))
    }

    /// Listens to the daemon's present events socket. Says whether there is one.
    pub(crate) fn listen(&self) -> bool {
        let events = self.session.events();
        let listening = self.progress.listening();
        let same = match (&listening, &events) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        if !same {
            if let Some(old) = listening {
                self.progress.stop_listening(&old);
                self.daemon_lost();
                self.subscribers.tell(None);
            }
            self.progress.listen_to(events);
            if self.progress.listening().is_some() {
                self.pages.take_older_back(self.bells.era());
            }
        }
        self.progress.listening().is_some()
    }
}
