//! Descriptors of other libraries in this process that the progress thread looks after, so that
//! they need no thread of their own.
//!
//! In: a descriptor, and what to call when there is something in it. The thread beside
//! (`ears.rs`) waits for it, the progress thread calls, one at a time and with no lock held. How
//! many there are is limited by the process's descriptors: each holds one.

use crate::{Client, lock};
use omniverb_sys::epoll::Interest;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};

/// Called with the watch's number.
pub type Ready = Box<dyn Fn(u64) + Send + Sync>;

struct Watch {
    /// A duplicate: what happens to the number that the library knows it by is no matter.
    file: OwnedFd,
    interest: Interest,
    ready: Ready,
}

#[derive(Default)]
pub(crate) struct Watches {
    state: Mutex<State>,
    /// A call has returned that somebody waits for.
    over: Condvar,
}

#[derive(Default)]
struct State {
    /// The latest number given out.
    latest: u64,
    open: HashMap<u64, Arc<Watch>>,
    /// Whose call is under way, and in which thread.
    calling: Option<(u64, ThreadId)>,
}

impl State {
    fn calls_me(&self) -> bool {
        self.calling.is_some_and(|(_, thread)| thread == thread::current().id())
    }
}

impl Client {
    /// Has the progress thread call `ready` whenever there is something in `file`, or room, for as
    /// long as that is so. It must not block, and may watch and unwatch. Returns the watch's
    /// number.
    ///
    /// # Errors
    /// errno: `EPERM` if such a file is never waited for, `EIO` in a forked child.
    pub fn watch(
        self: &Arc<Self>,
        file: OwnedFd,
        interest: Interest,
        ready: Ready,
    ) -> Result<u64, i32> {
        if !self.is_ours() {
            return Err(libc::EIO);
        }
        self.progress.start(self)?;
        let watch = Arc::new(Watch { file, interest, ready });
        let number = {
            let mut state = lock(&self.watches.state);
            state.latest += 1;
            let number = state.latest;
            state.open.insert(number, watch.clone());
            number
        };
        let listens = self.progress.ears.watch(&watch.file, number, interest);
        listens.inspect_err(|_| drop(lock(&self.watches.state).open.remove(&number)))?;
        Ok(number)
    }

    /// Ends a watch. Its call is not made any more once this has returned; only within that call
    /// itself this does not wait for its end.
    ///
    /// # Errors
    /// errno: `ENOENT` if there is none of this number, `EIO` in a forked child.
    pub fn unwatch(&self, number: u64) -> Result<(), i32> {
        if !self.is_ours() {
            return Err(libc::EIO);
        }
        let mut state = lock(&self.watches.state);
        let ended = state.open.remove(&number);
        if let Some(watch) = &ended {
            self.progress.ears.remove(&watch.file);
        }
        while !state.calls_me() && state.calling.is_some_and(|(of, _)| of == number) {
            state = self.watches.over.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        drop(state);
        ended.map(drop).ok_or(libc::ENOENT)
    }

    /// Whether this is the progress thread, in a call that somebody asked for.
    pub(crate) fn is_in_watch(&self) -> bool {
        lock(&self.watches.state).calls_me()
    }

    /// Calls those who have something to see to.
    pub(crate) fn call_watchers(&self) {
        for number in self.progress.ears.take_watched() {
            let Some(watch) = self.begin(number) else { continue };
            (watch.ready)(number);
            let mut state = lock(&self.watches.state);
            state.calling = None;
            if state.open.contains_key(&number) {
                self.progress.ears.watch_on(&watch.file, number, watch.interest);
            }
            drop(state);
            self.watches.over.notify_all();
        }
    }

    fn begin(&self, number: u64) -> Option<Arc<Watch>> {
        let mut state = lock(&self.watches.state);
        let watch = state.open.get(&number).cloned()?;
        state.calling = Some((number, thread::current().id()));
        Some(watch)
    }
}
