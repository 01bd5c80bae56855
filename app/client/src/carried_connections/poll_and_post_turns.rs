//! Keeps the carried links behind a lock that polls and posts only try, and starts the thread that
//! serves while nothing polls.

use super::carried_link::{CarriedLink, Outcome};
use super::doorbells::{NetworkBell, QueuePairBell, ServedByThread};
use super::network_thread::{self, NetworkTurns, QueuePairServer};
use super::network_thread_sleep::Sleep;
use super::served_links::{Driver, ServedLinks, TurnReport};
use crate::errno_conversion::errno_of;
use crate::fork;
use crate::signal_free_thread::spawn_quietly;
use omniverb_link::Doorbell;
use omniverb_sys::{clock, lock, try_lock};
use omniverb_terms::{Errno, Qpn};
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Posted requests that are worth a turn while others are under way.
const POSTS: u32 = 64;
/// Turns in a row that one thread takes because others were refused the lock meanwhile.
const TURNS_FOR_OTHERS: u32 = 4;
/// Turns that read what came before a certain moment, in spite of peers that send on.
const TURNS_TO_READ_ALL: u32 = 64;

/// All connections that this process carries.
pub(crate) struct CarriedConnections {
    /// How many; looked at by every poll.
    count: AtomicUsize,
    /// Which process they are of; see [`fork::generation`].
    generation: u64,
    /// Polls so far, and when the last one was, in nanoseconds.
    polls: AtomicU64,
    polled_at: AtomicU64,
    /// Requests posted since the last turn.
    posts: AtomicU32,
    /// Requests are under way.
    is_busy: AtomicBool,
    /// A post was refused the lock: the thread that has it is to take another turn.
    was_refused: AtomicBool,
    served: Mutex<Option<ServedLinks>>,
    by_thread: Arc<ServedByThread>,
    sleep: OnceLock<Arc<Sleep>>,
    /// Whether the thread runs; changed with `served` locked.
    is_running: AtomicBool,
    outcomes: Mutex<Vec<Outcome>>,
    /// Tells that there are outcomes. Does not wait.
    tell: Box<dyn Fn() + Send + Sync>,
}

impl CarriedConnections {
    /// None yet. `tell` is called when there are outcomes, by any thread.
    pub(crate) fn new(tell: impl Fn() + Send + Sync + 'static) -> Arc<CarriedConnections> {
        Arc::new(CarriedConnections {
            count: AtomicUsize::new(0),
            generation: fork::generation(),
            polls: AtomicU64::new(0),
            polled_at: AtomicU64::new(0),
            posts: AtomicU32::new(0),
            is_busy: AtomicBool::new(false),
            was_refused: AtomicBool::new(false),
            served: Mutex::default(),
            by_thread: Arc::default(),
            sleep: OnceLock::new(),
            is_running: AtomicBool::new(false),
            outcomes: Mutex::default(),
            tell: Box::new(tell),
        })
    }

    /// Whether there are some.
    #[inline(always)]
    pub(crate) fn are_some(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Whether this one is carried.
    pub(crate) fn has(&self, qpn: Qpn) -> bool {
        self.all().iter().any(|(carried, _, _)| *carried == qpn)
    }

    /// The queue pairs, their peers', and the ports that the peers are to send to.
    pub(crate) fn all(&self) -> Vec<(Qpn, Qpn, u16)> {
        if !self.are_some() {
            return Vec::new();
        }
        lock(&self.served).iter().flat_map(ServedLinks::ports).collect()
    }

    /// The queue pairs.
    pub(crate) fn qpns(&self) -> BTreeSet<Qpn> {
        self.all().into_iter().map(|(qpn, _, _)| qpn).collect()
    }

    /// The doorbell by which a queue pair is to tell what it does, and its bit there: it is about
    /// to get a link that is carried.
    ///
    /// # Errors
    /// errno: `ENOSPC` if as many are carried as have bits, `EMFILE` and the like.
    pub(crate) fn bell_of(&self, qpn: Qpn) -> Result<(Arc<dyn Doorbell>, u32), Errno> {
        self.forget_outcomes(qpn);
        let sleep = self.sleep()?;
        let mut guard = lock(&self.served);
        let served = guard.get_or_insert_with(|| ServedLinks::new(clock::now()));
        let slot = served.take_slot(qpn).ok_or(Errno(libc::ENOSPC.unsigned_abs()))?;
        let (page, waker) = (served.page().clone(), sleep.waker.clone());
        Ok((Arc::new(NetworkBell { page, waker }), slot))
    }

    fn sleep(&self) -> Result<Arc<Sleep>, Errno> {
        if let Some(sleep) = self.sleep.get() {
            return Ok(sleep.clone());
        }
        let made = Sleep::new().map_err(|error| errno_of(&error))?;
        Ok(self.sleep.get_or_init(|| Arc::new(made)).clone())
    }

    /// Carries a link, whose queue pair has a [bell](Self::bell_of). The port that its peer is to
    /// send to; `None`: it cannot be carried, and is given to the engine, by an outcome.
    pub(crate) fn carry(
        self: &Arc<Self>,
        link: CarriedLink,
        queue_pairs: impl QueuePairServer + 'static,
    ) -> Option<u16> {
        let (qpn, peer_qpn, engine) = (link.qpn, link.peer_qpn, link.engine.clone());
        let carried = self.try_carry(link, queue_pairs);
        if carried.is_err() {
            self.end(qpn);
            self.tell_outcomes([Outcome::Given { qpn, peer_qpn, state: Vec::new(), engine }]);
        }
        carried.ok()
    }

    fn try_carry(
        self: &Arc<Self>,
        link: CarriedLink,
        queue_pairs: impl QueuePairServer + 'static,
    ) -> Result<u16, Errno> {
        let sleep = self.sleep()?;
        let mut guard = lock(&self.served);
        let served = guard.get_or_insert_with(|| ServedLinks::new(clock::now()));
        let opened = served.open_socket(link.local).and_then(|new| match new {
            Some(socket) => sleep.add(socket.as_fd()),
            None => Ok(()),
        });
        opened.map_err(|error| errno_of(&error))?;
        if !self.is_running.swap(true, Ordering::Relaxed) {
            let (carried, sleep) = (self.clone(), sleep.clone());
            let work = move || network_thread::run(&*carried, &sleep, &queue_pairs);
            let begun = spawn_quietly("omniverb-wire", work);
            self.is_running.store(begun.is_ok(), Ordering::Relaxed);
            begun?;
        }
        let page = link.parts.page.clone();
        let bell = QueuePairBell { page, by_thread: self.by_thread.clone() };
        let port = served.add(link, bell, clock::now())?;
        self.note(served);
        drop(guard);
        sleep.waker.wake();
        Ok(port)
    }

    /// Packets for this peer are to go to this port.
    pub(crate) fn set_peer_port(&self, qpn: Qpn, peer_qpn: Qpn, port: u16) {
        self.with_links(|served| served.set_peer_port(qpn, peer_qpn, port));
    }

    /// The engine is to serve this link; the outcome tells when it can.
    pub(crate) fn give(&self, qpn: Qpn, peer_qpn: Qpn) {
        self.with_links(|served| served.give(qpn, peer_qpn, clock::now()));
    }

    /// The queue pair is going: what its peer waits for is said, then nothing of it is left here.
    pub(crate) fn end(&self, qpn: Qpn) {
        self.with_links(|served| served.end(qpn, clock::now()));
        self.forget_outcomes(qpn);
    }

    /// As [`CarriedConnections::end`], if the queue pair's link leads to this peer.
    pub(crate) fn end_link(&self, qpn: Qpn, peer_qpn: Qpn) {
        self.with_links(|served| {
            if served.has(qpn, peer_qpn) {
                served.end(qpn, clock::now());
            }
        });
    }

    /// What became of an earlier link of this queue pair is of no interest any more.
    fn forget_outcomes(&self, qpn: Qpn) {
        lock(&self.outcomes).retain(|outcome| outcome.qpn() != qpn);
    }

    /// Reads what has come until now.
    pub(crate) fn read_all(&self) {
        if !self.are_some() {
            return;
        }
        for _ in 0..TURNS_TO_READ_ALL {
            let mut came = false;
            self.with_links(|served| {
                came = served.turn(clock::now(), Driver::Poll).has_received;
            });
            if !came {
                break;
            }
        }
    }

    /// Does something with the links, after which the thread looks at them.
    fn with_links(&self, work: impl FnOnce(&mut ServedLinks)) {
        let Some(sleep) = self.sleep.get() else { return };
        let mut guard = lock(&self.served);
        if let Some(served) = guard.as_mut() {
            work(served);
            self.note(served);
            drop(guard);
            sleep.waker.wake();
        }
    }

    /// After something was done with the links.
    fn note(&self, served: &ServedLinks) {
        self.count.store(served.count(), Ordering::Relaxed);
    }

    fn tell_outcomes(&self, outcomes: impl IntoIterator<Item = Outcome>) {
        lock(&self.outcomes).extend(outcomes);
        (self.tell)();
    }

    /// What became of links since the last call.
    pub(crate) fn take_outcomes(&self) -> Vec<Outcome> {
        std::mem::take(&mut *lock(&self.outcomes))
    }

    /// A poll looks for news.
    #[inline(always)]
    pub(crate) fn poll(&self) {
        if self.are_some() {
            self.poll_sockets();
        }
    }

    fn poll_sockets(&self) {
        if self.generation == fork::generation() {
            // A lost count does no harm.
            self.polls.store(self.polls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            self.polled_at.store(clock::now(), Ordering::Relaxed);
            self.turn(Driver::Poll);
        }
    }

    /// A request was posted: it leaves at once if nothing is under way, else with others.
    #[inline(always)]
    pub(crate) fn posted(&self) {
        if self.are_some() {
            let posts = self.posts.load(Ordering::Relaxed) + 1;
            self.posts.store(posts, Ordering::Relaxed);
            if posts >= POSTS || !self.is_busy.load(Ordering::Relaxed) {
                self.send_posted();
            }
        }
    }

    fn send_posted(&self) {
        if self.generation == fork::generation() {
            // If a thread has the lock it sees this when it gives it back.
            self.was_refused.store(true, Ordering::SeqCst);
            self.turn(Driver::Post);
        }
    }

    /// A turn, unless another thread is at it.
    fn turn(&self, driver: Driver) -> Option<TurnReport> {
        let mut report = None;
        for _ in 0..TURNS_FOR_OTHERS {
            let Some(mut guard) = try_lock(&self.served) else { break };
            self.was_refused.store(false, Ordering::SeqCst);
            let Some(served) = guard.as_mut() else { break };
            self.posts.store(0, Ordering::Relaxed);
            // A clock that is read before may be older than what the last turn saw.
            let turn = served.turn(clock::now(), driver);
            self.is_busy.store(turn.is_busy, Ordering::Relaxed);
            let outcomes = served.take_outcomes();
            if !outcomes.is_empty() {
                self.note(served);
                drop(guard);
                self.tell_outcomes(outcomes);
            } else {
                drop(guard);
            }
            let came =
                turn.has_received || report.is_some_and(|before: TurnReport| before.has_received);
            report = Some(TurnReport { has_received: came, ..turn });
            if !self.was_refused.load(Ordering::SeqCst) {
                break;
            }
        }
        if driver == Driver::Poll
            && report.is_some_and(|report| report.has_received)
            && let Some(sleep) = self.sleep.get()
        {
            // Alarms may be due earlier than it knows.
            sleep.waker.wake_from_long_sleep();
        }
        report
    }
}

impl NetworkTurns for CarriedConnections {
    fn are_some(&self) -> bool {
        self.are_some()
    }

    fn is_rung_for(&self, work: impl FnOnce()) -> bool {
        self.by_thread.work(work)
    }

    fn turn(&self, driver: Driver) -> Option<TurnReport> {
        self.turn(driver)
    }

    fn polls(&self) -> (u64, u64) {
        (self.polls.load(Ordering::Relaxed), self.polled_at.load(Ordering::Relaxed))
    }

    fn want_wakes(&self) {
        if let Some(served) = &*lock(&self.served) {
            served.page().want_kick();
        }
    }

    fn sleeps(&self, until: Option<u64>) {
        if let Some(mut guard) = try_lock(&self.served)
            && let Some(served) = guard.as_mut()
        {
            served.sleeps(until);
        }
    }

    fn let_thread_end(&self) -> bool {
        let guard = lock(&self.served);
        let ends = guard.as_ref().is_none_or(|served| served.count() == 0);
        if ends {
            self.is_running.store(false, Ordering::Relaxed);
        }
        ends
    }
}
