//! Wakes in pair windows: a futex of one kernel wakes nobody of another, and nobody but the two
//! processes of a link knows what they share.
//!
//! The same at both ends of a machine's port. In: the pair windows. The bells in them have places
//! that never change ([`omniverb_session::pair`]): so nobody need say which are in use, and who is
//! started afresh goes on with those that were. A thread sleeps on the pages whose owners are on
//! the other side; what it hears is said by the port, as a word without contents. Who hears that
//! has another thread look at the pages of his side, and wake who sleeps on those that have
//! changed. So who serves the port touches none of this memory: a neighbour has the file, and can
//! make that take long.

use omniverb_ring::{BellPage, Window};
use omniverb_session::body::Extent as Part;
use omniverb_session::pair::{self, Whose};
use omniverb_sys::{Access, EventFd, Extent, Listener, futex, lock};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const PAGE: usize = omniverb_ring::bell::PAGE_BYTES;

/// Where we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Host,
    Machine,
}

/// The pages of a bell: first the one whose owner is on this side of the border, then that of who
/// is beyond. The second page is the process's in the machine whose window it is.
fn near_and_far<T>(side: Side, whose: Whose, pages: [T; 2]) -> [T; 2] {
    let [first, second] = pages;
    match (side, whose) {
        (Side::Host, Whose::Own) | (Side::Machine, Whose::Another) => [first, second],
        (Side::Machine, Whose::Own) | (Side::Host, Whose::Another) => [second, first],
    }
}

/// The bells of all pair windows, as one side has them.
pub(super) struct Border {
    listener: Listener,
    rung: Arc<EventFd>,
    near: Arc<Near>,
    /// Somebody looks at them.
    begun: bool,
    side: Side,
}

/// Pages of this side.
struct Near {
    /// With their counters when they were looked at last.
    pages: Mutex<Vec<(BellPage<Window>, u32)>>,
    /// They are to be looked at.
    asked: EventFd,
    /// Whoever sleeps on any is to be woken.
    all: AtomicBool,
    over: AtomicBool,
}

impl Near {
    fn serve(&self) {
        while !self.over.load(Ordering::SeqCst) {
            // Interrupted: it is waited again.
            if self.asked.wait(None).unwrap_or(false) && self.asked.take().is_some() {
                self.wake(self.all.swap(false, Ordering::SeqCst));
            }
        }
    }

    fn wake(&self, all: bool) {
        for (page, seen) in lock(&self.pages).iter_mut() {
            let before = std::mem::replace(seen, futex::low(page.rung()));
            if all || before != *seen {
                futex::wake(page.rung(), 1);
            }
        }
    }
}

impl Border {
    /// A border that no window is known at yet.
    pub(super) fn new(side: Side) -> io::Result<Border> {
        let rung = Arc::new(EventFd::new()?);
        let signal = rung.clone();
        let listener = Listener::new(super::wakes::spawn, move || signal.signal());
        let (pages, asked) = (Mutex::default(), EventFd::new()?);
        let (all, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let near = Arc::new(Near { pages, asked, all, over });
        Ok(Border { listener, rung, near, begun: false, side })
    }

    /// With this one, too. `data`: which part of the file the machine sees. `whose`: which
    /// machine's it is.
    pub(super) fn add(&mut self, file: impl AsFd, data: Part, whose: Whose) -> io::Result<()> {
        let bells = pair::bell_pages(data.length);
        let memory = Extent::new(file, data.offset + bells.offset, bells.length);
        let memory = memory.map(Access::ReadWrite)?;
        for at in (0..memory.len()).step_by(2 * PAGE) {
            let page = |side: usize| {
                let part = memory.part(at + side * PAGE, PAGE);
                part.map(BellPage::new).ok_or(io::ErrorKind::InvalidData)
            };
            let [near, far] = near_and_far(self.side, whose, [page(0)?, page(1)?]);
            self.listener.add(far)?;
            let seen = futex::low(near.rung());
            lock(&self.near.pages).push((near, seen));
        }
        if !self.begun {
            let near = self.near.clone();
            super::wakes::spawn("omniverb-wakes", Box::new(move || near.serve()))?;
            self.begun = true;
        }
        Ok(())
    }

    /// Readable when somebody on the other side is to be woken.
    pub(super) fn rung(&self) -> BorrowedFd<'_> {
        self.rung.as_fd()
    }

    /// Forgets that he was to be.
    pub(super) fn take(&self) {
        self.rung.take();
    }

    /// Somebody on the other side has rung: who sleeps on what has changed is woken.
    pub(super) fn wake(&self) {
        self.near.asked.signal();
    }

    /// Nobody has listened for a while: whoever sleeps looks for himself.
    pub(super) fn wake_all(&self) {
        self.near.all.store(true, Ordering::SeqCst);
        self.near.asked.signal();
        self.rung.signal();
    }
}

impl Drop for Border {
    fn drop(&mut self) {
        self.near.over.store(true, Ordering::SeqCst);
        self.near.asked.signal();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_sys::{listener, memfd};
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    const LIMIT: Duration = Duration::from_secs(20);
    const DATA: Part = Part { offset: 8192, length: (4 << 20) - 8192 };

    fn border(file: &OwnedFd, side: Side) -> Border {
        let mut border = Border::new(side).unwrap();
        border.add(file, DATA, Whose::Own).unwrap();
        // Once at the beginning it tells.
        assert!(omniverb_sys::event::readable(border.rung(), Some(LIMIT)).unwrap());
        border.take();
        border
    }

    fn bell(file: &OwnedFd, number: u64) -> [BellPage<Window>; 2] {
        let at = DATA.offset + pair::bell_pages(DATA.length).offset + number * pair::BELL_BYTES;
        let memory = Extent::new(file, at, pair::BELL_BYTES).map(Access::ReadWrite).unwrap();
        [0, PAGE].map(|at| BellPage::new(memory.part(at, PAGE).unwrap()))
    }

    /// What is rung for the other side is heard; what is rung for this one wakes who sleeps, and he
    /// only, when a word comes.
    #[test]
    fn who_sleeps_across_the_border_is_woken_by_a_word() {
        let file = memfd::create("pair", DATA.offset + DATA.length).unwrap();
        let host = border(&file, Side::Host);
        let last = pair::bells(DATA.length) - 1;
        for number in [0, last] {
            let [ours, theirs] = bell(&file, number);
            listener::ring(&theirs);
            assert!(omniverb_sys::event::readable(host.rung(), Some(LIMIT)).unwrap());
            host.take();
            let (seen, woken) = (futex::low(ours.rung()), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while futex::low(ours.rung()) == seen {
                        futex::wait(ours.rung(), seen, LIMIT);
                    }
                    woken.store(true, Ordering::SeqCst);
                });
                // As another kernel rings: nobody here is woken by that.
                ours.count_ring();
                let end = std::time::Instant::now() + LIMIT / 2;
                host.wake();
                while !woken.load(Ordering::SeqCst) {
                    assert!(std::time::Instant::now() < end, "not in time");
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
    }

    /// Two machines with one window: what a process of the one rings, its agent hears; that one's
    /// porter wakes the other's porter, and that one's agent who sleeps there.
    #[test]
    fn a_word_passes_two_borders() {
        let file = memfd::create("pair", DATA.offset + DATA.length).unwrap();
        let of = |side, whose| {
            let mut border = Border::new(side).unwrap();
            border.add(&file, DATA, whose).unwrap();
            assert!(omniverb_sys::event::readable(border.rung(), Some(LIMIT)).unwrap());
            border.take();
            border
        };
        let [first, second] = bell(&file, 3);
        for (page, from, to) in
            [(&first, Whose::Own, Whose::Another), (&second, Whose::Another, Whose::Own)]
        {
            let agent = of(Side::Machine, from);
            let (porter, others) = (of(Side::Host, from), of(Side::Host, to));
            let there = of(Side::Machine, to);
            let _ = futex::low(page.rung());
            // One kernel here stands for three: only this listener is woken by a ring.
            listener::ring(page);
            assert!(omniverb_sys::event::readable(agent.rung(), Some(LIMIT)).unwrap());
            porter.wake();
            assert!(omniverb_sys::event::readable(others.rung(), Some(LIMIT)).unwrap());
            there.wake();
        }
    }

    #[test]
    fn what_is_too_short_is_refused() {
        let file = memfd::create("pair", 8192).unwrap();
        assert!(Border::new(Side::Host).unwrap().add(&file, DATA, Whose::Own).is_err());
    }
}
