//! The thread that listens to the other processes with which a device is shared. What they send is
//! received here and nowhere else: a descriptor that comes along may be one whose end never comes
//! (a file of FUSE), and then nothing hangs but imports.

use crate::errno_conversion::errno_of;
use crate::signal_free_thread::spawn_quietly;
use omniverb_sys::epoll::Poller;
use omniverb_sys::lock;
use omniverb_terms::Errno;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// How long to wait for the end of a peer's turn. It may take for ever: a file of FUSE is closed in
/// it.
const PATIENCE: Duration = Duration::from_millis(500);

/// A peer that is listened to.
pub(crate) trait PeerSocket: Send + Sync {
    /// What the thread waits at: one of its own for each party, open as long as the party is.
    fn socket(&self) -> BorrowedFd<'_>;
    /// There is something in the socket, or its end. Says whether to listen on.
    fn hear(&self) -> bool;
}

/// All peers that are listened to.
#[derive(Default)]
pub(crate) struct PeerSocketThread {
    running: OnceLock<ThreadId>,
    state: Mutex<State>,
    /// A peer was heard for whose end a thread waits.
    over: Condvar,
}

#[derive(Default)]
struct State {
    poller: Option<Arc<Poller>>,
    latest: u64,
    parties: HashMap<u64, Arc<dyn PeerSocket>>,
    /// The peer that is being heard.
    hearing: Option<u64>,
}

impl PeerSocketThread {
    /// Listens to a peer; the number to end that by.
    ///
    /// # Errors
    /// errno: no descriptors or threads are left.
    pub(crate) fn add(self: &Arc<Self>, party: Arc<dyn PeerSocket>) -> Result<u64, Errno> {
        let mut state = lock(&self.state);
        let poller = self.started(&mut state)?;
        state.latest += 1;
        let number = state.latest;
        poller.add(party.socket(), number).map_err(|error| errno_of(&error))?;
        state.parties.insert(number, party);
        Ok(number)
    }

    /// Listens to it no longer: it has let go of it when this returns, unless it hears it just now
    /// and that takes long.
    pub(crate) fn remove(&self, number: u64) {
        let mut state = lock(&self.state);
        let party = state.parties.remove(&number);
        if let (Some(party), Some(poller)) = (&party, &state.poller) {
            // A forked child may have the socket as well: closing it would not end this.
            let _ = poller.remove(party.socket());
        }
        if !self.is_me() {
            let is_heard = |state: &mut State| state.hearing == Some(number);
            drop(self.over.wait_timeout_while(state, PATIENCE, is_heard));
        }
    }

    /// Whether this is the thread that listens.
    pub(crate) fn is_me(&self) -> bool {
        self.running.get() == Some(&thread::current().id())
    }

    fn started(self: &Arc<Self>, state: &mut State) -> Result<Arc<Poller>, Errno> {
        if let Some(poller) = &state.poller {
            return Ok(poller.clone());
        }
        let poller = Arc::new(Poller::new().map_err(|error| errno_of(&error))?);
        let (service, listens) = (self.clone(), poller.clone());
        spawn_quietly("omniverb-imports", move || service.run(&listens))?;
        state.poller = Some(poller.clone());
        Ok(poller)
    }

    fn enter(&self, number: u64) -> Option<Arc<dyn PeerSocket>> {
        let mut state = lock(&self.state);
        let party = state.parties.get(&number).cloned()?;
        state.hearing = Some(number);
        Some(party)
    }

    fn run(&self, poller: &Poller) {
        let _ = self.running.set(thread::current().id());
        let mut ready = Vec::new();
        while poller.wait(None, &mut ready).is_ok() {
            for number in ready.iter().copied() {
                let Some(party) = self.enter(number) else { continue };
                let goes_on = party.hear();
                drop(party);
                lock(&self.state).hearing = None;
                self.over.notify_all();
                if !goes_on {
                    self.remove(number);
                }
            }
        }
    }
}
