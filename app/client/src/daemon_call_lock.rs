//! Admits one thread at a time to calls of the daemon.
//!
//! The lock is held for moments only; the turn, from question to answer. So threads that call wait
//! for each other, up to a time, and those that only look at the state of things do not wait.

use omniverb_session::Message;
use omniverb_sys::clock;
use omniverb_sys::lock;
use omniverb_terms::Errno;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// The connection to the daemon, for the thread that has the turn.
pub(crate) struct CallLock {
    state: Mutex<State>,
    free: Condvar,
}

struct State {
    /// While there is a daemon.
    socket: Option<Arc<OwnedFd>>,
    /// A thread has the turn; the rest is as the last one left it, see [`CallGuard`].
    taken: bool,
    /// Threads that wait for the turn.
    waiting: u32,
    tag: u64,
    owed: u32,
    unwanted: Vec<Message>,
}

/// The right to call, until it is dropped.
pub(crate) struct CallGuard<'a> {
    turns: &'a CallLock,
    /// The calls socket of the daemon that there was when the turn began; `None`: there is none.
    pub(crate) socket: Option<Arc<OwnedFd>>,
    /// Of the newest question; those of a connection count up from 1.
    pub(crate) tag: u64,
    /// Questions without an answer: their callers may have given up.
    pub(crate) owed: u32,
    /// What tells the daemon that something it made is not wanted any more.
    pub(crate) unwanted: Vec<Message>,
}

impl CallLock {
    pub(crate) fn new(socket: OwnedFd) -> CallLock {
        let socket = Some(Arc::new(socket));
        let state =
            State { socket, taken: false, waiting: 0, tag: 1, owed: 0, unwanted: Vec::new() };
        CallLock { state: Mutex::new(state), free: Condvar::new() }
    }

    /// Waits for other calls.
    pub(crate) fn take(&self, deadline: u64) -> Result<CallGuard<'_>, Errno> {
        let mut state = lock(&self.state);
        while state.taken {
            let left = deadline.saturating_sub(clock::now());
            if left == 0 {
                return Err(Errno::ETIMEDOUT);
            }
            state.waiting += 1;
            let waited = self.free.wait_timeout(state, Duration::from_nanos(left));
            state = waited.unwrap_or_else(|e| e.into_inner()).0;
            state.waiting -= 1;
        }
        state.taken = true;
        Ok(CallGuard {
            turns: self,
            socket: state.socket.clone(),
            tag: state.tag,
            owed: state.owed,
            unwanted: std::mem::take(&mut state.unwanted),
        })
    }

    /// Whether there is a daemon to call, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        lock(&self.state).socket.is_some()
    }

    /// The daemon is gone. A thread that is calling it finds out by itself.
    pub(crate) fn close(&self) {
        lock(&self.state).socket = None;
    }
}

impl CallGuard<'_> {
    /// The daemon called until now is gone.
    pub(crate) fn lost(&mut self) {
        let mut state = lock(&self.turns.state);
        let same = |now: &Arc<OwnedFd>| self.socket.as_ref().is_some_and(|s| Arc::ptr_eq(s, now));
        if state.socket.as_ref().is_some_and(same) {
            state.socket = None;
        }
        drop(state);
        (self.socket, self.owed) = (None, 0);
        self.unwanted.clear();
    }

    /// Calls another daemon from now on; the others still know of none.
    pub(crate) fn renew(&mut self, socket: OwnedFd) {
        self.lost();
        (self.socket, self.tag) = (Some(Arc::new(socket)), 1);
    }

    /// The others may call it, too.
    pub(crate) fn publish(&self) {
        lock(&self.turns.state).socket = self.socket.clone();
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.turns.state);
        (state.taken, state.tag, state.owed) = (false, self.tag, self.owed);
        state.unwanted = std::mem::take(&mut self.unwanted);
        let is_awaited = state.waiting > 0;
        drop(state);
        // A system call, needed or not.
        if is_awaited {
            self.turns.free.notify_one();
        }
    }
}
