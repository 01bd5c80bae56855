//! Stands for what is outside a device on the bench: notes what it is asked for, and counts.

use omniverb_device::send_work_request::Destination;
use omniverb_device::{AsyncEvent, CompletionEvents, Host, ToleratedMismatch};
use omniverb_link::Doorbell;
use omniverb_ring::{DoorbellPage, UserMemory, Window};
use omniverb_terms::{Qpn, Rkey};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The world outside one device. Notes what it is asked for.
#[derive(Default)]
pub struct World {
    pub clock: Arc<AtomicU64>,
    pub grants: Mutex<Vec<(Qpn, Qpn, Rkey)>>,
    /// What of them was asked for.
    pub ranges: Mutex<Vec<(u64, u64)>>,
    /// Addresses of pages that are not in memory.
    pub holes: Mutex<BTreeSet<usize>>,
    /// How often that was asked for.
    pub looks: AtomicUsize,
    /// Addresses of bytes of the program's that may be read only, and of those that may not even
    /// be read.
    pub read_only: Mutex<BTreeSet<usize>>,
    pub unreachable: Mutex<BTreeSet<usize>>,
    /// How often it placed something, be it one piece or several.
    pub places: AtomicUsize,
    pub failed: Mutex<Vec<Qpn>>,
    /// XRC: the parts of domains that were asked for.
    pub hand_overs: Mutex<Vec<(Qpn, u32)>>,
    pub discarded: Mutex<Vec<Qpn>>,
    /// Called when the kernel is asked about pages.
    pub on_look: Mutex<Option<Box<dyn Fn() + Send>>>,
    /// Called once, when the time is asked for.
    pub on_now: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    pub links: Mutex<Vec<(Qpn, Destination)>>,
    pub events: Mutex<Vec<(AsyncEvent, usize)>>,
    pub attended: AtomicUsize,
    /// Whether its direct links forgive no more than a wire.
    pub is_strict: AtomicBool,
    /// What they did not.
    pub forgiven: Mutex<Vec<ToleratedMismatch>>,
}

/// What a device has of it.
pub struct WorldHandle(pub Arc<World>);

fn has_any(bytes: &Mutex<BTreeSet<usize>>, memory: UserMemory) -> bool {
    let range = memory.address()..memory.address() + memory.len();
    bytes.lock().unwrap().range(range).next().is_some()
}

impl Host for WorldHandle {
    fn place(&self, ours: UserMemory, program: UserMemory) -> bool {
        self.0.places.fetch_add(1, Ordering::Relaxed);
        let places = self.bears_atomics(program);
        if places {
            program.copy_from(ours);
        }
        places
    }
    fn place_all(&self, pieces: &[(UserMemory, UserMemory)]) -> usize {
        let before = self.0.places.load(Ordering::Relaxed);
        let placed = pieces.iter().take_while(|piece| self.place(piece.0, piece.1)).count();
        self.0.places.store(before + 1, Ordering::Relaxed);
        placed
    }
    fn fetch(&self, program: UserMemory, ours: UserMemory) -> bool {
        let fetches = !has_any(&self.0.unreachable, program);
        if fetches {
            ours.copy_from(program);
        }
        fetches
    }
    fn bears_atomics(&self, program: UserMemory) -> bool {
        !has_any(&self.0.unreachable, program) && !has_any(&self.0.read_only, program)
    }
    fn nap(&self, _: &AtomicU64, _: u32) {
        std::thread::yield_now();
    }

    fn now(&self) -> u64 {
        let act = self.0.on_now.lock().unwrap().take();
        act.into_iter().for_each(|act| act());
        self.0.clock.load(Ordering::Relaxed)
    }
    fn attend(&self) {
        self.0.attended.fetch_add(1, Ordering::Relaxed);
    }
    fn request_grant(&self, qpn: Qpn, peer_qpn: Qpn, rkey: Rkey, range: (u64, u64)) {
        self.0.ranges.lock().unwrap().push(range);
        self.0.grants.lock().unwrap().push((qpn, peer_qpn, rkey));
    }
    fn qp_failed(&self, qpn: Qpn) {
        self.0.failed.lock().unwrap().push(qpn);
    }
    fn hand_over(&self, qpn: Qpn, part: u32) {
        self.0.hand_overs.lock().unwrap().push((qpn, part));
    }
    fn discard(&self, qpn: Qpn) {
        self.0.discarded.lock().unwrap().push(qpn);
    }
    fn request_datagram_link(&self, qpn: Qpn, destination: Destination) {
        self.0.links.lock().unwrap().push((qpn, destination));
    }
    fn resident(&self, window: &Window, start: usize, found: &mut [u8]) -> bool {
        assert!(start + found.len() * 4096 <= window.len().next_multiple_of(4096));
        self.0.looks.fetch_add(1, Ordering::Relaxed);
        if let Some(hook) = &*self.0.on_look.lock().unwrap() {
            hook();
        }
        let holes = self.0.holes.lock().unwrap();
        for (index, byte) in found.iter_mut().enumerate() {
            let at = window.address() + start + index * 4096;
            *byte = u8::from(!holes.contains(&at));
        }
        true
    }
    fn is_strict(&self) -> bool {
        self.0.is_strict.load(Ordering::Relaxed)
    }
    fn forgiven(&self, _: Qpn, what: ToleratedMismatch) {
        self.0.forgiven.lock().unwrap().push(what);
    }
    fn async_event(&self, event: AsyncEvent, cookie: usize) {
        self.0.events.lock().unwrap().push((event, cookie));
    }
}

/// A completion channel that counts.
#[derive(Default)]
pub struct Channel {
    pub events: Mutex<Vec<usize>>,
}

impl CompletionEvents for Channel {
    fn completion(&self, cookie: usize) {
        self.events.lock().unwrap().push(cookie);
    }
}

/// Rings the page of one side; counts kicks.
pub struct Ringer {
    pub page: DoorbellPage<Window>,
    pub kicks: AtomicUsize,
    /// What the kicked peer does before the other goes on.
    pub at_once: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Ringer {
    /// Rings this page.
    pub fn new(page: DoorbellPage<Window>) -> Arc<Ringer> {
        Arc::new(Ringer { page, kicks: AtomicUsize::new(0), at_once: Mutex::default() })
    }
}

impl Doorbell for Ringer {
    fn page(&self) -> &DoorbellPage<Window> {
        &self.page
    }
    fn kick(&self) {
        self.kicks.fetch_add(1, Ordering::Relaxed);
        if let Some(act) = &*self.at_once.lock().unwrap() {
            act();
        }
    }
}
