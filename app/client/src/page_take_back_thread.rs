//! Takes pages back from peers, where no thread of the application waits for it.
//!
//! In: extents that the daemon says no peer has a right to any more, or that must not stay. A
//! thread of its own moves their pages, since copying takes as long as there is to copy: the data
//! path goes on meanwhile. What cannot be moved now is tried again every second, for as long as it
//! is there. A call that ended a link may wait, but not for long, until what that takes back is
//! back.
//!
//! A process may be out of threads when a link ends. So the thread runs before the first extent is
//! made, without it there is none, and it stays while there are any.

use crate::daemon_messages_with_fds::MessageWithFiles;
use crate::signal_free_thread::spawn_quietly;
use omniverb_session::body::Adopt;
use omniverb_sys::clock;
use omniverb_sys::lock;
use omniverb_terms::{Errno, Rkey};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

/// How long the thread stays without work.
const IDLE: Duration = Duration::from_secs(1);
/// How long until what could not be moved is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// Questions for pages that are left for later.
const QUESTIONS_MAX: usize = 1024;
/// How long a call that ended a link waits at most. Small extents take a few milliseconds.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// The process, which pages come back to.
pub(crate) trait PageOwner: Send + Sync + 'static {
    /// Takes extents back: by region and first page.
    ///
    /// # Errors
    /// errno: some could not be, and are to be tried again.
    fn take_back(&self, which: &BTreeSet<(Rkey, usize)>) -> Result<(), Errno>;
    /// Answers a question that was left.
    fn answer(&self, question: PageQuestion);
}

/// Starts a thread of this name; tests have one that fails.
type Spawn = fn(&str, Box<dyn FnOnce() + Send>) -> Result<(), Errno>;

/// What is to be taken back, and how far that is.
pub(crate) struct PageRevocation {
    state: Mutex<State>,
    change: Condvar,
    /// Extents that are, or are about to be. Grows with the state locked.
    stays: AtomicUsize,
    spawn: Spawn,
}

impl Default for PageRevocation {
    fn default() -> PageRevocation {
        let spawn: Spawn = |name, work| spawn_quietly(name, work);
        PageRevocation {
            state: Mutex::default(),
            change: Condvar::new(),
            stays: AtomicUsize::new(0),
            spawn,
        }
    }
}

/// The thread that takes extents back stays for as long as this is there.
pub(crate) struct RevokerStay(Arc<PageRevocation>);

impl Drop for RevokerStay {
    fn drop(&mut self) {
        // Takes no lock: a forked child, too, drops those of its parent.
        self.0.stays.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Default)]
struct State {
    running: bool,
    /// Extents to be taken back, by region and first page.
    open: BTreeSet<(Rkey, usize)>,
    /// Pages are on their way back at this moment.
    busy: bool,
    /// Questions for pages that came meanwhile: as many as the daemon has for one process.
    questions: Vec<PageQuestion>,
    /// They could not be moved; try again at this time, in nanoseconds of the clock.
    again_at: Option<u64>,
    /// Number of the latest question, and of the latest that was done.
    asked: u64,
    done: u64,
}

/// A question for pages.
pub(crate) struct PageQuestion {
    pub(crate) ask: MessageWithFiles<Adopt>,
    /// The events socket of the daemon that asked: the answer goes there.
    pub(crate) to: Arc<OwnedFd>,
}

impl PageRevocation {
    /// Leaves a question for pages to the thread, if it has something to do.
    pub(crate) fn leave(&self, question: PageQuestion) -> Option<PageQuestion> {
        let mut state = lock(&self.state);
        let busy =
            state.running && (state.busy || state.again_at.is_none() && !state.open.is_empty());
        if !busy || state.questions.len() >= QUESTIONS_MAX {
            return Some(question);
        }
        state.questions.push(question);
        None
    }

    /// Makes sure that there is a thread that can take back what is granted next.
    ///
    /// # Errors
    /// `EAGAIN`: none can be started at present.
    pub(crate) fn stay(
        self: &Arc<Self>,
        owner: &Weak<impl PageOwner>,
    ) -> Result<RevokerStay, Errno> {
        let mut state = lock(&self.state);
        self.start(&mut state, owner).map_err(|_| Errno::EAGAIN)?;
        self.stays.fetch_add(1, Ordering::AcqRel);
        Ok(RevokerStay(self.clone()))
    }

    /// Extents are gone: perhaps the thread need not stay.
    pub(crate) fn left(&self) {
        drop(lock(&self.state));
        self.change.notify_all();
    }

    fn start(
        self: &Arc<Self>,
        state: &mut State,
        owner: &Weak<impl PageOwner>,
    ) -> Result<(), Errno> {
        if !state.running {
            let (taking, owner) = (self.clone(), owner.clone());
            (self.spawn)("omniverb-pages", Box::new(move || taking.run(&owner)))?;
            state.running = true;
        }
        Ok(())
    }

    /// Has extents taken back: regions and first pages. `number`: what the daemon calls that, or 0.
    pub(crate) fn ask(
        self: &Arc<Self>,
        owner: &Weak<impl PageOwner>,
        number: u64,
        what: &[(Rkey, usize)],
    ) {
        let mut state = lock(&self.state);
        state.asked = state.asked.max(number);
        state.open.extend(what);
        if !what.is_empty() {
            state.again_at = None;
        }
        if !state.open.is_empty() && self.start(&mut state, owner).is_err() {
            // There would be a thread if any of these were there still.
            state.open.clear();
        }
        if state.open.is_empty() {
            state.done = state.asked;
        }
        drop(state);
        self.change.notify_all();
    }

    /// Waits until what was asked for by this number is back, for a bounded time.
    pub(crate) fn wait(&self, number: u64) {
        let until = clock::now() + WAIT_MAX.as_nanos() as u64;
        let mut state = lock(&self.state);
        while state.done < number {
            let left = until.saturating_sub(clock::now());
            if left == 0 {
                return;
            }
            let waited = self.change.wait_timeout(state, Duration::from_nanos(left));
            state = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    /// Another daemon is there, which counts what it asks for anew.
    pub(crate) fn restart(&self) {
        let mut state = lock(&self.state);
        (state.asked, state.done) = (0, 0);
    }

    fn run(self: &Arc<Self>, owner: &Weak<impl PageOwner>) {
        while let Some((what, number)) = self.next() {
            let failed = owner.upgrade().is_some_and(|owner| owner.take_back(&what).is_err());
            let mut state = lock(&self.state);
            if failed {
                state.open.extend(&what);
                state.again_at = Some(clock::now() + AGAIN.as_nanos() as u64);
            }
            // A daemon that was restarted counts anew: then no call waits for the old number.
            state.done = state.done.max(number.min(state.asked));
            self.change.notify_all();
            while !state.questions.is_empty() {
                let questions = std::mem::take(&mut state.questions);
                drop(state);
                if let Some(owner) = owner.upgrade() {
                    questions.into_iter().for_each(|question| owner.answer(question));
                }
                state = lock(&self.state);
            }
            state.busy = false;
        }
    }

    /// Waits for work. `None`: there was none for long, nor can there be any, and the thread counts
    /// as ended.
    fn next(&self) -> Option<(BTreeSet<(Rkey, usize)>, u64)> {
        let mut idle_at = None;
        let mut state = lock(&self.state);
        loop {
            let until = match (state.again_at, state.open.is_empty()) {
                (None, false) => {
                    state.busy = true;
                    return Some((std::mem::take(&mut state.open), state.asked));
                }
                (Some(at), false) => at,
                (_, true) if self.stays.load(Ordering::Acquire) > 0 => {
                    idle_at = None;
                    state = self.change.wait(state).unwrap_or_else(|e| e.into_inner());
                    continue;
                }
                (_, true) => *idle_at.get_or_insert_with(|| clock::now() + IDLE.as_nanos() as u64),
            };
            let left = until.saturating_sub(clock::now());
            if left == 0 {
                state.again_at = None;
                if state.open.is_empty() {
                    state.running = false;
                    return None;
                }
                continue;
            }
            let waited = self.change.wait_timeout(state, Duration::from_nanos(left));
            state = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoPageOwner;

    impl PageOwner for NoPageOwner {
        fn take_back(&self, _: &BTreeSet<(Rkey, usize)>) -> Result<(), Errno> {
            Ok(())
        }

        fn answer(&self, _: PageQuestion) {}
    }

    const NOBODY: Weak<NoPageOwner> = Weak::new();

    #[test]
    fn a_wait_ends_when_done_and_never_takes_long() {
        let taking = Arc::new(PageRevocation::default());
        taking.wait(0);
        let begun = clock::now();
        taking.wait(7);
        let waited = clock::now() - begun;
        assert!((400_000_000..20_000_000_000).contains(&waited), "{waited}");
        taking.ask(&NOBODY, 7, &[(Rkey(1), 4096)]);
        taking.wait(7);
        assert_eq!(lock(&taking.state).done, 7);
        // Nothing of that is there: done at once.
        taking.ask(&NOBODY, 8, &[]);
        taking.wait(8);
        taking.restart();
        taking.ask(&NOBODY, 1, &[]);
        taking.wait(1);
        assert_eq!(lock(&taking.state).done, 1);
    }

    #[test]
    fn nothing_is_granted_without_a_thread_that_can_take_it_back() {
        let spawn: Spawn = |_, _| Err(Errno::EAGAIN);
        let taking = Arc::new(PageRevocation { spawn, ..PageRevocation::default() });
        assert_eq!(taking.stay(&NOBODY).err(), Some(Errno::EAGAIN));
        assert_eq!(taking.stays.load(Ordering::Relaxed), 0);
        assert!(!lock(&taking.state).running);
    }

    #[test]
    fn the_thread_stays_while_something_may_have_to_be_taken_back() {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        // As if there were a free thread only once.
        let spawn: Spawn = |name, work| match STARTED.fetch_add(1, Ordering::Relaxed) {
            0 => spawn_quietly(name, work),
            _ => Err(Errno::EAGAIN),
        };
        let taking = Arc::new(PageRevocation { spawn, ..PageRevocation::default() });
        let first = taking.stay(&NOBODY).ok();
        let second = taking.stay(&NOBODY).ok();
        assert!(first.is_some() && second.is_some());
        drop(first);
        taking.left();
        std::thread::sleep(2 * IDLE);
        taking.ask(&NOBODY, 1, &[(Rkey(1), 4096)]);
        taking.wait(1);
        assert_eq!(lock(&taking.state).done, 1, "nobody took it back");
        drop(second);
        taking.left();
        let late = clock::now() + 20_000_000_000;
        while lock(&taking.state).running {
            assert!(clock::now() < late, "it stays for nothing");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(STARTED.load(Ordering::Relaxed), 1);
    }
}
