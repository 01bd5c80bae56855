//! Takes pages back from peers, where nobody of the application waits for it.
//!
//! In: extents that the daemon says nobody has a right to any more, or that must not stay. A thread
//! of its own moves their pages, since copying takes as long as there is to copy: the data path
//! goes on meanwhile. What cannot be moved now is tried again every second, for as long as it
//! is there. Who ended a link may wait, but not for long, until what that takes back is back.

use crate::progress::spawn_quietly;
use crate::{Client, lock};
use omniverb_session::body::{Adopt, TAKE_ALL, TAKE_EXTENT, TakeBack};
use omniverb_sys::clock;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

/// How long the thread stays without work.
const IDLE: Duration = Duration::from_secs(1);
/// How long until what could not be moved is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// Questions for pages that are left for later.
const QUESTIONS_MAX: usize = 1024;
/// How long somebody who ended a link waits at most. Small extents take a few milliseconds.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// What is to be taken back, and how far that is.
#[derive(Default)]
pub(crate) struct Taking {
    state: Mutex<State>,
    change: Condvar,
}

#[derive(Default)]
struct State {
    running: bool,
    /// Regions and first pages.
    open: BTreeSet<(u32, usize)>,
    /// Pages are on their way back at this moment.
    busy: bool,
    /// Questions for pages that came meanwhile: as many as the daemon has for one process.
    questions: Vec<Question>,
    /// They could not be moved; try again then.
    again_at: Option<u64>,
    /// Number of the latest question, and of the latest that was done.
    asked: u64,
    done: u64,
}

/// A question for pages, the files that came along, and where the answer goes.
type Question = (Adopt, Vec<OwnedFd>, Arc<OwnedFd>);

impl Taking {
    /// Leaves a question for pages to the thread, if it has something to do.
    pub(crate) fn leave(&self, question: Question) -> Option<Question> {
        let mut state = lock(&self.state);
        let busy =
            state.running && (state.busy || state.again_at.is_none() && !state.open.is_empty());
        if !busy || state.questions.len() >= QUESTIONS_MAX {
            return Some(question);
        }
        state.questions.push(question);
        None
    }

    fn ask(self: &Arc<Self>, client: &Weak<Client>, number: u64, what: &[(u32, usize)]) {
        let mut state = lock(&self.state);
        state.asked = state.asked.max(number);
        state.open.extend(what);
        if !what.is_empty() {
            state.again_at = None;
        }
        if !state.running && !state.open.is_empty() {
            let (taking, client) = (self.clone(), client.clone());
            // Without a thread it is left for the next question.
            state.running = spawn_quietly("omniverb-pages", move || taking.run(&client)).is_ok();
        } else if state.open.is_empty() {
            state.done = state.asked;
        }
        drop(state);
        self.change.notify_all();
    }

    /// Waits until what was asked for by this number is back, for a bounded time.
    fn wait(&self, number: u64) {
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

    /// The daemon counts anew.
    fn restart(&self) {
        let mut state = lock(&self.state);
        (state.asked, state.done) = (0, 0);
    }

    fn run(self: &Arc<Self>, client: &Weak<Client>) {
        while let Some((what, number)) = self.next() {
            let failed = client.upgrade().is_some_and(|client| {
                let chosen = |rkey, start| what.contains(&(rkey, start));
                let outcome = client.withdraw(|rkey, pages| chosen(rkey, pages.page_start()), true);
                outcome.is_err()
            });
            let mut state = lock(&self.state);
            if failed {
                state.open.extend(&what);
                state.again_at = Some(clock::now() + AGAIN.as_nanos() as u64);
            }
            // A daemon that was restarted counts anew: then nobody waits for the old number.
            state.done = state.done.max(number.min(state.asked));
            self.change.notify_all();
            while !state.questions.is_empty() {
                let questions = std::mem::take(&mut state.questions);
                drop(state);
                if let Some(client) = client.upgrade() {
                    questions.into_iter().for_each(|question| client.answer_adopt(question));
                }
                state = lock(&self.state);
            }
            state.busy = false;
        }
    }

    /// Waits for work. `None`: there was none for long, and the thread counts as ended.
    fn next(&self) -> Option<(BTreeSet<(u32, usize)>, u64)> {
        let idle_at = clock::now() + IDLE.as_nanos() as u64;
        let mut state = lock(&self.state);
        loop {
            let until = match (state.again_at, state.open.is_empty()) {
                (None, false) => {
                    state.busy = true;
                    return Some((std::mem::take(&mut state.open), state.asked));
                }
                (Some(at), false) => at,
                (_, true) => idle_at,
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

impl Client {
    /// The daemon says what is to be taken back.
    pub(crate) fn take_back(&self, ask: &TakeBack) {
        match ask.what {
            TAKE_EXTENT => {
                let chosen = |rkey, start| (rkey, start as u64) == (ask.rkey, ask.start);
                self.take_back_those(ask.number, |rkey, start, _| chosen(rkey, start));
            }
            TAKE_ALL => {
                // For this once: who asks anew is judged by the daemon.
                let qps: Vec<_> = lock(&self.qps).values().map(|r| r.qp.clone()).collect();
                qps.iter().for_each(|qp| qp.forget_grants());
                self.take_all_back();
            }
            _ => {}
        }
    }

    pub(crate) fn answer_adopt(&self, (ask, files, to): Question) {
        let answer = self.adopt(&ask, files);
        self.progress.answer(&to, answer.into());
    }

    /// What was granted must not stay so, and nobody knows what exactly.
    pub(crate) fn take_all_back(&self) {
        self.take_back_those(0, |_, _, _| true);
    }

    /// Another daemon is there, which does not know the extents that were made for the one before:
    /// nor whether the links are there still by which they were granted.
    pub(crate) fn take_older_back(&self, era: u64) {
        self.taking.restart();
        self.take_back_those(0, |_, _, made| made < era);
    }

    /// By region, first page and era.
    pub(crate) fn take_back_those(&self, number: u64, which: impl Fn(u32, usize, u64) -> bool) {
        let mut what = Vec::new();
        for (rkey, key) in &lock(&self.keys).list {
            let all = key.adopted.iter().map(|extent| (extent.pages.page_start(), extent.era));
            let chosen = all.filter(|(start, era)| which(*rkey, *start, *era));
            what.extend(chosen.map(|(start, _)| (*rkey, start)));
        }
        self.taking.ask(&self.me, number, &what);
    }

    /// The answer to a call that may have ended a link. Without one nobody says what was granted by
    /// it.
    pub(crate) fn link_ended(&self, answer: Result<omniverb_session::Message, i32>) {
        match answer {
            Ok(omniverb_session::Message::Done(done)) => self.taking.wait(done.take_back),
            Ok(_) => {}
            // Somebody else's by now, or unknown: nothing was granted by it.
            Err(libc::ENOENT) => {}
            Err(_) => self.take_all_back(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_does_so_until_it_is_done_and_never_for_long() {
        let taking = Arc::new(Taking::default());
        taking.wait(0);
        let begun = clock::now();
        taking.wait(7);
        let waited = clock::now() - begun;
        assert!((400_000_000..20_000_000_000).contains(&waited), "{waited}");
        taking.ask(&Weak::new(), 7, &[(1, 4096)]);
        taking.wait(7);
        assert_eq!(lock(&taking.state).done, 7);
        // Nothing of that is there: done at once.
        taking.ask(&Weak::new(), 8, &[]);
        taking.wait(8);
        taking.restart();
        taking.ask(&Weak::new(), 1, &[]);
        taking.wait(1);
        assert_eq!(lock(&taking.state).done, 1);
    }
}
