//! The maker's side: a process that has a queue pair of ours open, and what it asks.

use super::{OnProcessEnd, WatchedProcess, hang_up, take};
use crate::device_import::{PeerSocket, PeerSocketThread};
use omniverb_device::{AsyncEvent, Qp};
use omniverb_session::shared_qp_messages::{self, Ask, Attributes, Notice};
use omniverb_sys::{lock, process_is_dead, seqpacket};
use omniverb_terms::{Errno, Qpn};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Openers of this process's queue pairs, all together.
const OPENERS_MAX: usize = 1024;
/// Of so many descriptors that the program may have there is one opener. Each takes two, so most
/// are left to the program.
const DESCRIPTORS_EACH: usize = 8;
/// Questions that wait: an honest opener has one at a time, and may have given up some.
const WAITING_MAX: usize = 16;

/// Queue pairs of this process that others may open.
pub trait SharedQueuePairs: Send + Sync {
    /// Another process has the queue pair of this number open from now on. False: there is none.
    fn hold(&self, number: Qpn) -> bool;

    /// It has no longer, once. Gives the queue pair if no process has it open any more: it is to be
    /// destroyed.
    fn let_go(&self, number: Qpn) -> Option<Arc<Qp>>;

    /// What its attributes are.
    fn query(&self, number: Qpn) -> Attributes;

    /// Changes it, as a program of this process would. Any values.
    ///
    /// # Errors
    /// As of `ibv_modify_qp`.
    fn modify(&self, number: Qpn, mask: u32, to: &Attributes) -> Result<(), Errno>;
}

/// Has openers served where no thread waits for that: what they ask may take a call to the daemon.
pub(crate) trait OpenerService: Send + Sync {
    /// The opener of this key has asked something, or is gone.
    fn attend_to(&self, key: u64);
}

/// A process that has a queue pair open.
pub(crate) struct Opener {
    /// Among all of them.
    key: u64,
    socket: OwnedFd,
    number: Qpn,
    receivers: Weak<dyn SharedQueuePairs>,
    attendant: Weak<dyn OpenerService>,
    inbox: Mutex<Inbox>,
    /// It has asked something, or is over: it knows by now that it is connected, or need not.
    settled: Arc<AtomicBool>,
    /// Its place among all of them, until the socket is closed: so it comes after that.
    _seat: Arc<()>,
}

#[derive(Default)]
struct Inbox {
    asked: VecDeque<Ask>,
    over: bool,
    /// By which numbers it is listened to.
    parties: Vec<u64>,
}

impl PeerSocket for Opener {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn hear(&self) -> bool {
        let mut bytes = [0; shared_qp_messages::BYTES_MAX];
        let taken = take(self.socket.as_fd(), &mut bytes);
        if taken == Some(0) {
            return true;
        }
        let goes_on = taken.is_some_and(|length| self.take(&bytes[..length]));
        if !goes_on {
            self.be_over();
        }
        self.request_service();
        goes_on
    }
}

impl OnProcessEnd for Opener {
    fn process_ended(&self) {
        self.be_over();
        self.request_service();
    }
}

impl Opener {
    /// At the other end of this socket, with its key and seat among all of them.
    pub(crate) fn new(
        (key, _seat): (u64, Arc<()>),
        socket: OwnedFd,
        number: Qpn,
        receivers: Weak<dyn SharedQueuePairs>,
        attendant: Weak<dyn OpenerService>,
    ) -> Opener {
        let (inbox, settled) = (Mutex::default(), Arc::default());
        Opener { key, socket, number, receivers, attendant, inbox, settled, _seat }
    }

    /// What it says is to be answered, if it is something to be.
    pub(crate) fn take(&self, datagram: &[u8]) -> bool {
        let Some(ask) = Ask::read(datagram) else { return false };
        self.settled.store(true, Ordering::Release);
        let mut inbox = lock(&self.inbox);
        inbox.asked.push_back(ask);
        inbox.asked.len() <= WAITING_MAX
    }

    fn be_over(&self) {
        self.settled.store(true, Ordering::Release);
        lock(&self.inbox).over = true;
    }

    fn request_service(&self) {
        if let Some(attendant) = self.attendant.upgrade() {
            attendant.attend_to(self.key);
        }
    }

    pub(crate) fn answer(&self, ask: &Ask) -> Notice {
        let receivers = self.receivers.upgrade();
        let done = match (&receivers, ask.what) {
            (Some(_), shared_qp_messages::QUERY) => Ok(()),
            (Some(receivers), shared_qp_messages::MODIFY) => {
                receivers.modify(self.number, ask.mask, &ask.attributes)
            }
            (Some(_), _) => Err(Errno::EINVAL),
            (None, _) => Err(Errno::EIO),
        };
        let known = receivers.map(|receivers| receivers.query(self.number));
        Notice {
            tag: ask.tag,
            what: shared_qp_messages::ANSWER,
            errno: done.err().unwrap_or(Errno::NONE),
            event: 0,
            reserved: 0,
            attributes: known.unwrap_or(Attributes::NONE),
        }
    }

    /// False: it takes no notices any more.
    fn say(&self, notice: &Notice) -> bool {
        seqpacket::try_send(self.socket.as_fd(), notice.bytes(), &[]).is_ok()
    }

    /// Answers one question: the attendant has heard of each, and others have their turn between
    /// two of one that asks on and on. False: it is over.
    pub(crate) fn serve(&self) -> bool {
        if lock(&self.inbox).over {
            return false;
        }
        self.asked().is_none_or(|ask| self.say(&self.answer(&ask)))
    }

    /// Takes the oldest question that waits.
    pub(crate) fn asked(&self) -> Option<Ask> {
        lock(&self.inbox).asked.pop_front()
    }
}

impl Opener {
    /// Listens to it, until its end.
    ///
    /// # Errors
    /// errno: no descriptors or threads are left.
    pub(crate) fn listen(self: &Arc<Self>, service: &Arc<PeerSocketThread>) -> Result<(), Errno> {
        let mut parties = vec![service.add(self.clone())?];
        if let Some(watched) = WatchedProcess::of(self.socket.as_fd(), self) {
            parties.extend(service.add(watched));
        }
        lock(&self.inbox).parties.extend(parties);
        Ok(())
    }

    /// Listens to it no longer.
    pub(crate) fn ignore(&self, service: &PeerSocketThread) {
        self.be_over();
        let parties = std::mem::take(&mut lock(&self.inbox).parties);
        parties.into_iter().for_each(|number| service.remove(number));
    }

    /// Ends the connection. What it had open, and of what; to be let go of.
    pub(crate) fn end(self: Arc<Self>) -> (Qpn, Option<Arc<dyn SharedQueuePairs>>) {
        let found = (self.number, self.receivers.upgrade());
        hang_up(self);
        found
    }

    /// Says whether it has asked something, or is over. The opener itself is not kept by it: its
    /// last owner may have to wait (`hang_up`).
    pub(crate) fn settled(&self) -> Arc<AtomicBool> {
        self.settled.clone()
    }

    /// Says what has happened to the queue pair. False: it takes no notices any more.
    pub(crate) fn report(&self, event: AsyncEvent) -> bool {
        let known = self.receivers.upgrade().map(|receivers| receivers.query(self.number));
        self.say(&Notice {
            tag: 0,
            what: shared_qp_messages::EVENT,
            errno: Errno::NONE,
            event: event as u32,
            reserved: 0,
            attributes: known.unwrap_or(Attributes::NONE),
        })
    }
}

/// All openers of this process's queue pairs.
#[derive(Default)]
pub(crate) struct Openers(Mutex<OpenerTable>);

#[derive(Default)]
struct OpenerTable {
    latest: u64,
    here: HashMap<u64, Arc<Opener>>,
    /// Each opener whose socket is open has it, too.
    seats: Arc<()>,
}

/// How many there may be at a time.
fn openers_max() -> usize {
    OPENERS_MAX.min(process_is_dead::files_max() / DESCRIPTORS_EACH).max(1)
}

impl Openers {
    /// One more, which the queue pair has counted already. `None`: there are too many.
    pub(crate) fn add(
        &self,
        socket: OwnedFd,
        number: Qpn,
        receivers: Weak<dyn SharedQueuePairs>,
        attendant: Weak<dyn OpenerService>,
    ) -> Option<Arc<Opener>> {
        let mut all = lock(&self.0);
        if Arc::strong_count(&all.seats) > openers_max() {
            return None;
        }
        all.latest += 1;
        let (key, seat) = (all.latest, all.seats.clone());
        let opener = Arc::new(Opener::new((key, seat), socket, number, receivers, attendant));
        all.here.insert(key, opener.clone());
        Some(opener)
    }

    pub(crate) fn get(&self, key: u64) -> Option<Arc<Opener>> {
        lock(&self.0).here.get(&key).cloned()
    }

    /// Processes that have this queue pair open.
    pub(crate) fn of(&self, number: Qpn) -> Vec<Arc<Opener>> {
        let all = lock(&self.0);
        all.here.values().filter(|opener| opener.number == number).cloned().collect()
    }

    /// One less. False: it was none any more.
    pub(crate) fn remove(&self, opener: &Opener) -> bool {
        lock(&self.0).here.remove(&opener.key).is_some()
    }

    /// Whether it is one still.
    pub(crate) fn has(&self, opener: &Opener) -> bool {
        self.get(opener.key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::hostile_opener::{IdleOpenerService, NoSharedQueuePairs, alone};

    fn idle() -> Weak<dyn OpenerService> {
        Weak::<IdleOpenerService>::new()
    }

    /// Too many hold queue pairs; a process that has one and goes makes room, when its socket is
    /// closed.
    #[test]
    fn openers_are_limited() {
        let (openers, receivers) = (Openers::default(), Weak::<NoSharedQueuePairs>::new());
        let most = openers_max();
        assert!(most <= OPENERS_MAX && most * 2 <= (process_is_dead::files_max() / 4).max(2));
        let add = |number| {
            let (ours, theirs) = seqpacket::pair().unwrap();
            Some((openers.add(ours, Qpn(number), receivers.clone(), idle())?, theirs))
        };
        let mut admitted: Vec<_> = (0..most).map(|_| add(7).unwrap()).collect();
        assert!(add(8).is_none());
        assert_eq!((openers.of(Qpn(7)).len(), openers.of(Qpn(8)).len()), (most, 0));
        let (one, _) = admitted.pop().unwrap();
        assert!(openers.remove(&one) && !openers.remove(&one));
        assert!(add(8).is_none(), "its socket is open");
        drop(one);
        assert!(add(8).is_some());
    }

    fn one() -> (Opener, OwnedFd) {
        let (ours, theirs) = seqpacket::pair().unwrap();
        (alone(ours, Qpn(7), Weak::<NoSharedQueuePairs>::new()), theirs)
    }

    /// The attendant hears of each question: one that asks on and on keeps no other from its turn.
    #[test]
    fn one_question_is_answered_at_a_time() {
        let (opener, theirs) = one();
        for tag in 1..=3 {
            assert!(opener.take(Ask { tag, ..Ask::QUERY }.bytes()));
        }
        let mut bytes = [0; shared_qp_messages::BYTES_MAX];
        for tag in 1..=2 {
            assert!(opener.serve());
            let length = take(theirs.as_fd(), &mut bytes).unwrap();
            assert_eq!(Notice::read(&bytes[..length]).map(|notice| notice.tag), Some(tag));
            assert_eq!(take(theirs.as_fd(), &mut bytes), Some(0));
        }
        assert_eq!(opener.asked().map(|ask| ask.tag), Some(3));
    }

    #[test]
    fn so_many_questions_wait() {
        let (opener, _theirs) = one();
        let taken = (0..).take_while(|_| opener.take(Ask::QUERY.bytes())).count();
        assert_eq!(taken, WAITING_MAX);
    }

    /// A descriptor ends the connection, and the thread that hears others does not let go of it.
    #[test]
    fn an_unsolicited_descriptor_stays_in_its_socket() {
        let (opener, theirs) = one();
        let null = std::fs::File::open("/dev/null").unwrap();
        seqpacket::send(theirs.as_fd(), Ask::QUERY.bytes(), &[null.as_fd()]).unwrap();
        let settled = opener.settled();
        assert!(!settled.load(Ordering::Acquire));
        assert!(!opener.hear() && !opener.serve() && settled.load(Ordering::Acquire));
        assert!(opener.asked().is_none());
        assert!(!omniverb_sys::unsolicited_fds::is_spent(&opener.socket));
        // A thread that hears it at this moment is not the last owner.
        let opener = Arc::new(opener);
        let (heard, left) = (opener.clone(), Arc::downgrade(&opener));
        hang_up(opener);
        assert_eq!(left.strong_count(), 2);
        drop(heard);
        while left.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}
