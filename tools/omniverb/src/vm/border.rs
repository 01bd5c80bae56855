//! Wakes in pair windows: a futex of one kernel wakes nobody of another, and nobody but the two
//! processes of a link knows what they share.
//!
//! The same at both ends of a machine's port. In: the pair windows. The bells in them have places
//! that never change ([`omniverb_session::pair`]): so nobody need say which are in use, and who is
//! started afresh goes on with those that were. A thread sleeps on the pages whose owners are on
//! the other side; which of them were rung it says by the port itself, where there is room, or has
//! who serves that say a word without contents. In the machine who hears the former wakes who
//! sleeps on the same page; that takes a look at nothing in it. Who hears the latter, or is on the
//! host, has another thread look at the pages of his side, and wake who sleeps on those that have
//! changed. So who serves the port touches none of this memory: a neighbour has the file, and can
//! make that take long, even to find the page.

use super::relay::Voice;
use omniverb_ring::{BellPage, Window};
use omniverb_session::body::Extent as Part;
use omniverb_session::machine::{BELL_NAMES_MAX, BellName, Frame, FrameKind};
use omniverb_session::pair::{self, Whose};
use omniverb_sys::{Access, EventFd, Extent, Listener, futex, lock};
use std::collections::BTreeMap;
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
    far: Arc<Far>,
    near: Arc<Near>,
    /// Pages of this side, by what their bells are called.
    named: BTreeMap<BellName, BellPage<Window>>,
    /// Somebody looks at them.
    begun: bool,
    side: Side,
}

/// Who says what was rung for the other side.
struct Far {
    /// What bells are called, by the listener's numbers.
    names: Mutex<BTreeMap<u64, BellName>>,
    /// What it is said by at once.
    voice: Mutex<Option<Arc<Voice>>>,
    /// Who serves the port is to say it.
    rung: EventFd,
}

impl Far {
    /// These were rung; none: any may have been.
    fn tell(&self, numbers: &[u64]) {
        if !self.say_now(numbers) {
            self.rung.signal();
        }
    }

    fn say_now(&self, numbers: &[u64]) -> bool {
        let voice = lock(&self.voice);
        let Some(voice) = &*voice else { return false };
        if numbers.is_empty() || numbers.len() > BELL_NAMES_MAX {
            return false;
        }
        let names = lock(&self.names);
        let named: Option<Vec<BellName>> =
            numbers.iter().map(|number| names.get(number).copied()).collect();
        let bytes = named.map(|named| named.concat());
        bytes
            .is_some_and(|bytes| voice.say_now(&Frame { kind: FrameKind::Rung, session: 0, bytes }))
    }
}

/// Pages of this side.
struct Near {
    /// With the numbers of their windows, and their counters when they were looked at last.
    pages: Mutex<Vec<(u8, BellPage<Window>, u32)>>,
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
        for (_, page, seen) in lock(&self.pages).iter_mut() {
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
        let (names, voice, rung) = (Mutex::default(), Mutex::default(), EventFd::new()?);
        let far = Arc::new(Far { names, voice, rung });
        let theirs = far.clone();
        let spawn = super::wakes::spawn;
        let listener = Listener::naming(spawn, move |numbers| theirs.tell(numbers));
        let (pages, asked) = (Mutex::default(), EventFd::new()?);
        let (all, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let near = Arc::new(Near { pages, asked, all, over });
        Ok(Border { listener, far, near, named: BTreeMap::new(), begun: false, side })
    }

    /// With this one, too, of this number. `data`: which part of the file the machine sees.
    /// `whose`: which machine's it is.
    pub(super) fn add(
        &mut self,
        number: u8,
        file: impl AsFd,
        data: Part,
        whose: Whose,
    ) -> io::Result<()> {
        let bells = pair::bell_pages(data.length);
        let memory = Extent::new(file, data.offset + bells.offset, bells.length);
        let memory = memory.map(Access::ReadWrite)?;
        for (at, bell) in (0..memory.len()).step_by(2 * PAGE).zip(0..) {
            let name = [number, bell];
            let page = |side: usize| {
                let part = memory.part(at + side * PAGE, PAGE);
                part.map(BellPage::new).ok_or(io::ErrorKind::InvalidData)
            };
            let [near, far] = near_and_far(self.side, whose, [page(0)?, page(1)?]);
            let heard_as = self.listener.add(far)?;
            lock(&self.far.names).insert(heard_as, name);
            self.named.insert(name, near.clone());
            let seen = futex::low(near.rung());
            lock(&self.near.pages).push((number, near, seen));
        }
        if !self.begun {
            let near = self.near.clone();
            super::wakes::spawn("omniverb-wakes", Box::new(move || near.serve()))?;
            self.begun = true;
        }
        Ok(())
    }

    /// Without this one any more: nothing of it is looked at, and soon nothing of it is mapped.
    pub(super) fn remove(&mut self, number: u8) {
        let is_of = |name: &BellName| name[0] == number;
        self.named.retain(|name, _| !is_of(name));
        lock(&self.near.pages).retain(|(of, _, _)| *of != number);
        let mut names = lock(&self.far.names);
        for (heard_as, _) in names.extract_if(.., |_, name| is_of(name)) {
            self.listener.remove(heard_as);
        }
    }

    /// Has what is rung be said by this, at once; `None`: by who serves the port.
    pub(super) fn speak_by(&self, voice: Option<Arc<Voice>>) {
        *lock(&self.far.voice) = voice;
    }

    /// Readable when who serves the port is to say that somebody on the other side is to be woken.
    pub(super) fn rung(&self) -> BorrowedFd<'_> {
        self.far.rung.as_fd()
    }

    /// Forgets that he was to be.
    pub(super) fn take(&self) {
        self.far.rung.take();
    }

    /// Somebody on the other side has rung: who sleeps on what has changed is woken.
    pub(super) fn wake(&self) {
        self.near.asked.signal();
    }

    /// Somebody on the other side has rung these: who sleeps on them is woken now. The kernel finds
    /// the pages by what is mapped; on the host a neighbour could make that take long.
    pub(super) fn wake_named(&self, names: &[u8]) {
        for name in names.chunks_exact(size_of::<BellName>()) {
            if let Some(page) = name.first_chunk().and_then(|name| self.named.get(name)) {
                futex::wake(page.rung(), 1);
            }
        }
    }

    /// Nobody has listened for a while: whoever sleeps looks for himself.
    pub(super) fn wake_all(&self) {
        self.near.all.store(true, Ordering::SeqCst);
        self.near.asked.signal();
        self.far.rung.signal();
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
    use crate::vm::relay::{News, Reads, Relay};
    use omniverb_sys::{listener, memfd};
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    const LIMIT: Duration = Duration::from_secs(20);
    const DATA: Part = Part { offset: 8192, length: (4 << 20) - 8192 };

    fn border(file: &OwnedFd, side: Side) -> Border {
        let mut border = Border::new(side).unwrap();
        border.add(1, file, DATA, Whose::Own).unwrap();
        // Once at the beginning it tells.
        assert!(omniverb_sys::event::readable(border.rung(), Some(LIMIT)).unwrap());
        border.take();
        border
    }

    const QUIET: Duration = Duration::from_millis(300);

    /// The last word was that of a change.
    fn until_quiet(border: &Border) {
        while omniverb_sys::event::readable(border.rung(), Some(QUIET)).unwrap() {
            border.take();
        }
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

    /// By the port itself, where that has room; and who hears it looks at nothing in the window.
    #[test]
    fn what_is_rung_is_said_by_name() {
        let file = memfd::create("pair", DATA.offset + DATA.length).unwrap();
        let (host, there) = (border(&file, Side::Host), border(&file, Side::Machine));
        let (port, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let relay = Relay::new(port.into(), Reads::Always).unwrap();
        let mut agent = Relay::new(far.into(), Reads::Always).unwrap();
        host.speak_by(Some(relay.voice()));
        // Whoever begins to hear bells says once, or more often, that any may have been rung. Who
        // has heard one of them twice is through with that: so it is not taken for what follows.
        for number in (0..pair::bells(DATA.length)).chain(0..pair::bells(DATA.length)) {
            listener::ring(&bell(&file, number)[1]);
            let news = agent.wait(&[], Some(20_000)).unwrap();
            let [News::Frame(frame)] = &news[..] else { panic!("{news:?}") };
            let name = [1, u8::try_from(number).unwrap()];
            assert_eq!((frame.kind, &frame.bytes[..]), (FrameKind::Rung, &name[..]));
        }
        host.take();
        let [_, theirs] = bell(&file, 5);
        let (seen, woken) = (futex::low(theirs.rung()), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                futex::wait(theirs.rung(), seen, LIMIT);
                woken.store(true, Ordering::SeqCst);
            });
            // The one that hears it for the other side, and whoever is in this test's kernel.
            theirs.count_ring();
            futex::wake(theirs.rung(), u32::MAX >> 1);
            let news = agent.wait(&[], Some(20_000)).unwrap();
            let [News::Frame(frame)] = &news[..] else { panic!("{news:?}") };
            assert_eq!((frame.kind, &frame.bytes[..]), (FrameKind::Rung, &[1, 5][..]));
        });
        assert!(woken.load(Ordering::SeqCst));
        assert!(!omniverb_sys::event::readable(host.rung(), Some(Duration::ZERO)).unwrap());
        // Its counter does not change: it is woken by what was said.
        let (seen, slept) = (futex::low(theirs.rung()), AtomicBool::new(true));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let begun = std::time::Instant::now();
                futex::wait(theirs.rung(), seen, LIMIT);
                slept.store(begun.elapsed() >= LIMIT, Ordering::SeqCst);
                woken.store(false, Ordering::SeqCst);
            });
            while woken.load(Ordering::SeqCst) {
                there.wake_named(&[9, 9, 1, 77, 1, 5, 1]);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        assert!(!slept.load(Ordering::SeqCst));
        // Nobody says it at once: who serves the port does.
        host.speak_by(None);
        listener::ring(&theirs);
        assert!(omniverb_sys::event::readable(host.rung(), Some(LIMIT)).unwrap());
    }

    /// Two machines with one window: what a process of the one rings, its agent hears; that one's
    /// porter wakes the other's porter, and that one's agent who sleeps there.
    #[test]
    fn a_word_passes_two_borders() {
        let file = memfd::create("pair", DATA.offset + DATA.length).unwrap();
        let of = |side, whose| {
            let mut border = Border::new(side).unwrap();
            border.add(1, &file, DATA, whose).unwrap();
            assert!(omniverb_sys::event::readable(border.rung(), Some(LIMIT)).unwrap());
            // It sleeps before the next one does: a ring wakes who has slept for longest.
            until_quiet(&border);
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

    /// Of a window that is gone nothing is heard and nobody woken, and another one may have its
    /// number.
    #[test]
    fn a_window_can_be_left_out_again() {
        let file = memfd::create("pair", DATA.offset + DATA.length).unwrap();
        let mut host = border(&file, Side::Host);
        host.remove(1);
        let [_, theirs] = bell(&file, 5);
        assert!(host.named.is_empty() && lock(&host.near.pages).is_empty());
        assert!(lock(&host.far.names).is_empty());
        until_quiet(&host);
        listener::ring(&theirs);
        assert!(!omniverb_sys::event::readable(host.rung(), Some(QUIET)).unwrap());
        let other = memfd::create("pair", DATA.offset + DATA.length).unwrap();
        host.add(1, &other, DATA, Whose::Own).unwrap();
        host.take();
        listener::ring(&bell(&other, 5)[1]);
        assert!(omniverb_sys::event::readable(host.rung(), Some(LIMIT)).unwrap());
    }

    #[test]
    fn what_is_too_short_is_refused() {
        let file = memfd::create("pair", 8192).unwrap();
        assert!(Border::new(Side::Host).unwrap().add(1, &file, DATA, Whose::Own).is_err());
    }
}
