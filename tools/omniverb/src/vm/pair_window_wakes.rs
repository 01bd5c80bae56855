//! Carries wakes across pair windows, since a futex of one kernel wakes no thread of another.
//!
//! It runs at both ends of a machine's port. In: the pair windows. The doorbells in them have
//! places that never change ([`omniverb_session::pair_window`]): so none is announced, and a
//! restarted process goes on with the existing ones. A thread sleeps on the pages whose owners are
//! on the other side; it sends the names of rung ones by the port itself, where there is room, or
//! has the port's thread send an empty message. In the machine a message with names wakes sleepers
//! on the same pages, without reading them. After an empty message, or on the host, another thread
//! reads the pages of its side, and wakes sleepers on those that have changed. So the port's thread
//! touches none of this memory: a neighbour has the file, and can make that take long, even to find
//! the page.

#[cfg(test)]
mod tests;

use super::serial_port_multiplexer::Voice;
use omniverb_ring::{DoorbellPage, Window};
use omniverb_session::body::Extent as Part;
use omniverb_session::pair_window::{self, WindowOwner};
use omniverb_session::vm::{BELL_NAMES_MAX, BellName, Frame, FrameKind};
use omniverb_sys::{Access, DoorbellListener, EventFd, Extent, futex, lock};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const PAGE: usize = omniverb_ring::doorbell::PAGE_BYTES;

/// Where we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Host,
    Machine,
}

/// The pages of a doorbell: first the one whose owner is on this side of the bridge, then the other
/// side's. The second page belongs to the process in the machine that owns the window.
fn near_and_far<T>(side: Side, whose: WindowOwner, pages: [T; 2]) -> [T; 2] {
    let [first, second] = pages;
    match (side, whose) {
        (Side::Host, WindowOwner::Own) | (Side::Machine, WindowOwner::Another) => [first, second],
        (Side::Machine, WindowOwner::Own) | (Side::Host, WindowOwner::Another) => [second, first],
    }
}

/// The doorbells of all pair windows, as one side has them.
pub(super) struct WakeBridge {
    listener: DoorbellListener,
    far: Arc<Far>,
    near: Arc<Near>,
    /// Pages of this side, by what their doorbells are called.
    named: BTreeMap<BellName, DoorbellPage<Window>>,
    /// A thread watches them.
    begun: bool,
    side: Side,
}

/// Sends the names of doorbells rung for the other side.
struct Far {
    /// The names of doorbells, by the listener's numbers.
    names: Mutex<BTreeMap<u64, BellName>>,
    /// Sends them at once.
    voice: Mutex<Option<Arc<Voice>>>,
    /// The port's thread is to send a message.
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
    pages: Mutex<Vec<(u8, DoorbellPage<Window>, u32)>>,
    /// They are to be looked at.
    asked: EventFd,
    /// Sleepers on any are to be woken.
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

impl WakeBridge {
    /// A bridge that no window is known at yet.
    pub(super) fn new(side: Side) -> io::Result<WakeBridge> {
        let (names, voice, rung) = (Mutex::default(), Mutex::default(), EventFd::new()?);
        let far = Arc::new(Far { names, voice, rung });
        let theirs = far.clone();
        let spawn = super::engine_wakes::spawn;
        let listener = DoorbellListener::naming(spawn, move |numbers| theirs.tell(numbers));
        let (pages, asked) = (Mutex::default(), EventFd::new()?);
        let (all, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let near = Arc::new(Near { pages, asked, all, over });
        Ok(WakeBridge { listener, far, near, named: BTreeMap::new(), begun: false, side })
    }

    /// With this one, too, of this number. `data`: which part of the file the machine sees.
    /// `whose`: which machine's it is.
    pub(super) fn add(
        &mut self,
        number: u8,
        file: impl AsFd,
        data: Part,
        whose: WindowOwner,
    ) -> io::Result<()> {
        let bells = pair_window::bell_pages(data.length);
        let memory = Extent::new(file, data.offset + bells.offset, bells.length);
        let memory = memory.map(Access::ReadWrite)?;
        for (at, bell) in (0..memory.len()).step_by(2 * PAGE).zip(0..) {
            let name = [number, bell];
            let page = |side: usize| {
                let part = memory.part(at + side * PAGE, PAGE);
                part.map(DoorbellPage::new).ok_or(io::ErrorKind::InvalidData)
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
            super::engine_wakes::spawn("omniverb-wakes", Box::new(move || near.serve()))?;
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

    /// Sends names of rung doorbells by this, at once; `None`: the port's thread sends a message.
    pub(super) fn speak_by(&self, voice: Option<Arc<Voice>>) {
        *lock(&self.far.voice) = voice;
    }

    /// Readable when the port's thread is to send a message that wakes the other side.
    pub(super) fn rung(&self) -> BorrowedFd<'_> {
        self.far.rung.as_fd()
    }

    /// Clears the request for a message.
    pub(super) fn take(&self) {
        self.far.rung.take();
    }

    /// The other side has rung: wakes sleepers on pages that have changed.
    pub(super) fn wake(&self) {
        self.near.asked.signal();
    }

    /// The other side has rung these: wakes sleepers on them now. The kernel finds the pages by
    /// their mappings; on the host a neighbour could make that take long.
    pub(super) fn wake_named(&self, names: &[u8]) {
        for name in names.chunks_exact(size_of::<BellName>()) {
            if let Some(page) = name.first_chunk().and_then(|name| self.named.get(name)) {
                futex::wake(page.rung(), 1);
            }
        }
    }

    /// No wake was passed on for a while: sleepers check for themselves.
    pub(super) fn wake_all(&self) {
        self.near.all.store(true, Ordering::SeqCst);
        self.near.asked.signal();
        self.far.rung.signal();
    }
}

impl Drop for WakeBridge {
    fn drop(&mut self) {
        self.near.over.store(true, Ordering::SeqCst);
        self.near.asked.signal();
    }
}
