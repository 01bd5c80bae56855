//! Descriptors of other libraries in this process that the progress thread looks after, so that
//! they need no thread of their own.
//!
//! In: a descriptor, and what to call when there is something in it. The thread beside
//! (`fd_readiness_thread.rs`) waits for it, the progress thread calls, one at a time and with no
//! lock held. How many there are is limited by the process's descriptors: each holds one.

use crate::fd_readiness_thread::FdReadinessThread;
use omniverb_sys::epoll::Interest;
use omniverb_sys::lock;
use omniverb_terms::Errno;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};

/// Called with the watch's number.
pub type ReadyCallback = Box<dyn Fn(u64) + Send + Sync>;

struct Watch {
    /// A duplicate: what happens to the number that the library knows it by is no matter.
    file: Arc<OwnedFd>,
    interest: Interest,
    ready: ReadyCallback,
}

/// All watches of the process.
pub(crate) struct Watches {
    daemon_listener: Arc<FdReadinessThread>,
    state: Mutex<State>,
    /// A call has returned that a thread waits for.
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

impl Watches {
    pub(crate) fn new(daemon_listener: Arc<FdReadinessThread>) -> Watches {
        Watches { daemon_listener, state: Mutex::default(), over: Condvar::new() }
    }

    /// Begins a watch; its number, which is not 0.
    pub(crate) fn begin(
        &self,
        file: impl Into<Arc<OwnedFd>>,
        interest: Interest,
        ready: ReadyCallback,
    ) -> Result<u64, Errno> {
        let watch = Arc::new(Watch { file: file.into(), interest, ready });
        let number = {
            let mut state = lock(&self.state);
            state.latest += 1;
            let number = state.latest;
            state.open.insert(number, watch.clone());
            number
        };
        let listens = self.daemon_listener.watch(&watch.file, number, interest);
        listens.inspect_err(|_| drop(lock(&self.state).open.remove(&number)))?;
        Ok(number)
    }

    /// Ends one, when its call has returned; within that call itself at once.
    pub(crate) fn end(&self, number: u64) -> Result<(), Errno> {
        let mut state = lock(&self.state);
        let ended = state.open.remove(&number);
        if let Some(watch) = &ended {
            self.daemon_listener.remove(&watch.file);
        }
        while !state.calls_me() && state.calling.is_some_and(|(of, _)| of == number) {
            state = self.over.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        drop(state);
        ended.map(drop).ok_or(Errno::ENOENT)
    }

    /// Whether this thread is in a call that was asked for.
    pub(crate) fn is_calling_me(&self) -> bool {
        lock(&self.state).calls_me()
    }

    /// Calls the watches that have something to see to. Only the progress thread does.
    pub(crate) fn call(&self) {
        for number in self.daemon_listener.take_watched() {
            let Some(watch) = self.enter(number) else { continue };
            (watch.ready)(number);
            self.leave(number, watch);
            self.over.notify_all();
        }
    }

    fn enter(&self, number: u64) -> Option<Arc<Watch>> {
        let mut state = lock(&self.state);
        let watch = state.open.get(&number).cloned()?;
        state.calling = Some((number, thread::current().id()));
        Some(watch)
    }

    /// Its descriptor is let go of before a thread that waits for the end of the call goes on.
    fn leave(&self, number: u64, watch: Arc<Watch>) {
        let state = lock(&self.state);
        if state.open.contains_key(&number) {
            self.daemon_listener.watch_on(&watch.file, number, watch.interest);
        }
        drop(state);
        drop(watch);
        lock(&self.state).calling = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_sys::{EventFd, eventfd};
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    /// Watches, a thread that calls for them, and a file with something in it.
    fn served() -> (Arc<Watches>, OwnedFd) {
        let daemon_listener = FdReadinessThread::new().unwrap();
        let watches = Arc::new(Watches::new(daemon_listener.clone()));
        let (nudge, nudged) = mpsc::channel();
        daemon_listener.start(move || _ = nudge.send(())).unwrap();
        let serving = Arc::downgrade(&watches);
        thread::spawn(move || {
            while let (Ok(()), Some(watches)) = (nudged.recv(), serving.upgrade()) {
                watches.call();
            }
        });
        let full = EventFd::new().unwrap();
        full.signal();
        assert!(eventfd::readable(full.as_fd(), None).unwrap());
        (watches, full.into())
    }

    #[test]
    fn no_call_comes_after_a_watch_and_its_end_waits_for_the_last() {
        let (watches, full) = served();
        let (entered, has_entered) = mpsc::channel();
        let left = Arc::new(AtomicBool::new(false));
        let leaves = left.clone();
        let ready = Box::new(move |_| {
            leaves.store(false, Ordering::SeqCst);
            let _ = entered.send(());
            thread::sleep(Duration::from_millis(50));
            leaves.store(true, Ordering::SeqCst);
        });
        let number = watches.begin(full, Interest::Input, ready).unwrap();
        has_entered.recv().unwrap();
        watches.end(number).unwrap();
        assert!(left.load(Ordering::SeqCst));
        while has_entered.try_recv().is_ok() {}
        assert!(has_entered.recv_timeout(Duration::from_millis(20)).is_err());
        assert_eq!(watches.end(number), Err(Errno::ENOENT));
    }

    #[test]
    fn an_ended_watch_gives_its_descriptor_back() {
        let (watches, full) = served();
        let full = Arc::new(full);
        for _ in 0..1000 {
            let (entered, has_entered) = mpsc::channel();
            let ready = Box::new(move |_| _ = entered.send(()));
            let number = watches.begin(full.clone(), Interest::Input, ready).unwrap();
            has_entered.recv().unwrap();
            watches.end(number).unwrap();
            assert_eq!(Arc::strong_count(&full), 1);
        }
    }

    #[test]
    fn a_callback_repeats_while_input_remains_and_may_end_its_watch() {
        let (watches, full) = served();
        let (me, calls) = (watches.clone(), AtomicU32::new(0));
        let (over, is_over) = mpsc::channel();
        let ready = Box::new(move |number| {
            assert!(me.is_calling_me());
            if calls.fetch_add(1, Ordering::SeqCst) == 2 {
                let _ = over.send(me.end(number));
            }
        });
        watches.begin(full, Interest::Input, ready).unwrap();
        assert_eq!(is_over.recv().unwrap(), Ok(()));
        assert!(is_over.recv().is_err(), "called for the last time, and let go of");
        assert!(!watches.is_calling_me());
    }
}
