//! The maker's side: a process that has a queue pair of ours open, and what it asks.

use super::{Mortal, Watched, take};
use crate::imports::{Party, Service};
use omniverb_device::{AsyncEvent, Qp};
use omniverb_session::opened::{self, Ask, Attributes, Told};
use omniverb_sys::{lock, socket};
use omniverb_terms::{Errno, Qpn};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

/// Openers of this process's queue pairs, all together.
const OPENERS_MAX: usize = 1024;
/// Questions that wait: an honest opener has one at a time, and may have given up some.
const WAITING_MAX: usize = 16;

/// Queue pairs of this process that others may open.
pub trait Receivers: Send + Sync {
    /// Another process has the queue pair of this number open from now on. False: there is none.
    fn hold(&self, number: Qpn) -> bool;

    /// It has no longer, once. Gives the queue pair if nobody has it open any more: it is to be
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

/// Has openers served where nobody waits for that: what they ask may take a call to the daemon.
pub(crate) trait Attendant: Send + Sync {
    /// The opener of this key has asked something, or is gone.
    fn attend_to(&self, key: u64);
}

/// A process that has a queue pair open.
pub(crate) struct Opener {
    /// Among all of them.
    key: u64,
    socket: OwnedFd,
    number: Qpn,
    receivers: Weak<dyn Receivers>,
    attendant: Weak<dyn Attendant>,
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    asked: VecDeque<Ask>,
    /// It has asked something.
    spoken: bool,
    over: bool,
    /// What it is listened to by.
    heard: Vec<u64>,
}

impl Party for Opener {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn hear(&self) -> bool {
        let mut bytes = [0; opened::BYTES_MAX];
        let taken = take(self.socket.as_fd(), &mut bytes);
        if taken == Some(0) {
            return true;
        }
        let goes_on = taken.is_some_and(|length| self.take(&bytes[..length]));
        if !goes_on {
            lock(&self.inbox).over = true;
        }
        self.have_served();
        goes_on
    }
}

impl Mortal for Opener {
    fn has_ended(&self) {
        lock(&self.inbox).over = true;
        self.have_served();
    }
}

impl Opener {
    /// What it says is to be answered, if it is something to be.
    pub(super) fn take(&self, datagram: &[u8]) -> bool {
        let Some(ask) = Ask::read(datagram) else { return false };
        let mut inbox = lock(&self.inbox);
        inbox.spoken = true;
        inbox.asked.push_back(ask);
        inbox.asked.len() <= WAITING_MAX
    }

    fn have_served(&self) {
        if let Some(attendant) = self.attendant.upgrade() {
            attendant.attend_to(self.key);
        }
    }

    pub(super) fn answer(&self, ask: &Ask) -> Told {
        let receivers = self.receivers.upgrade();
        let done = match (&receivers, ask.what) {
            (Some(_), opened::QUERY) => Ok(()),
            (Some(receivers), opened::MODIFY) => {
                receivers.modify(self.number, ask.mask, &ask.attributes)
            }
            (Some(_), _) => Err(Errno::EINVAL),
            (None, _) => Err(Errno::EIO),
        };
        let known = receivers.map(|receivers| receivers.query(self.number));
        Told {
            tag: ask.tag,
            what: opened::ANSWER,
            errno: done.err().unwrap_or(Errno::NONE),
            event: 0,
            reserved: 0,
            attributes: known.unwrap_or(Attributes::NONE),
        }
    }

    /// False: it does not take what it is told.
    fn say(&self, told: &Told) -> bool {
        socket::try_send(self.socket.as_fd(), told.bytes(), &[]).is_ok()
    }

    /// Answers what it has asked. False: it is over.
    pub(crate) fn serve(&self) -> bool {
        loop {
            let ask = {
                let mut inbox = lock(&self.inbox);
                if inbox.over {
                    return false;
                }
                inbox.asked.pop_front()
            };
            match ask {
                None => return true,
                Some(ask) if self.say(&self.answer(&ask)) => {}
                Some(_) => return false,
            }
        }
    }
}

impl Opener {
    /// Listens to it, until its end.
    ///
    /// # Errors
    /// errno: no descriptors or threads are left.
    pub(crate) fn listen(self: &Arc<Self>, service: &Arc<Service>) -> Result<(), Errno> {
        let mut heard = vec![service.add(self.clone())?];
        if let Some(watched) = Watched::of(self.socket.as_fd(), self) {
            heard.extend(service.add(watched));
        }
        lock(&self.inbox).heard.extend(heard);
        Ok(())
    }

    /// Listens to it no longer.
    pub(crate) fn ignore(&self, service: &Service) {
        let heard = {
            let mut inbox = lock(&self.inbox);
            inbox.over = true;
            std::mem::take(&mut inbox.heard)
        };
        heard.into_iter().for_each(|number| service.remove(number));
    }

    /// Ends the connection. What it had open, and of what; to be let go of.
    pub(crate) fn end(self: Arc<Self>) -> (Qpn, Option<Arc<dyn Receivers>>) {
        let found = (self.number, self.receivers.upgrade());
        super::line::hang_up(self);
        found
    }

    /// Whether it knows by now that it is connected, or never will.
    pub(crate) fn is_settled(&self) -> bool {
        let inbox = lock(&self.inbox);
        inbox.spoken || inbox.over
    }

    /// Tells it what has happened. False: it does not take that.
    pub(crate) fn tell(&self, event: AsyncEvent) -> bool {
        let known = self.receivers.upgrade().map(|receivers| receivers.query(self.number));
        self.say(&Told {
            tag: 0,
            what: opened::EVENT,
            errno: Errno::NONE,
            event: event as u32,
            reserved: 0,
            attributes: known.unwrap_or(Attributes::NONE),
        })
    }
}

/// All openers of this process's queue pairs.
#[derive(Default)]
pub(crate) struct Openers(Mutex<All>);

#[derive(Default)]
struct All {
    latest: u64,
    here: HashMap<u64, Arc<Opener>>,
}

impl Openers {
    /// One more, which the queue pair has counted already. `None`: there are too many.
    pub(crate) fn add(
        &self,
        socket: OwnedFd,
        number: Qpn,
        receivers: Weak<dyn Receivers>,
        attendant: Weak<dyn Attendant>,
    ) -> Option<Arc<Opener>> {
        let mut all = lock(&self.0);
        if all.here.len() >= OPENERS_MAX {
            return None;
        }
        all.latest += 1;
        let (key, inbox) = (all.latest, Mutex::default());
        let opener = Arc::new(Opener { key, socket, number, receivers, attendant, inbox });
        all.here.insert(key, opener.clone());
        Some(opener)
    }

    pub(crate) fn get(&self, key: u64) -> Option<Arc<Opener>> {
        lock(&self.0).here.get(&key).cloned()
    }

    /// Those who have this queue pair open.
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

/// Does nothing for anybody.
#[cfg(any(test, feature = "fuzz"))]
struct Idle;

#[cfg(any(test, feature = "fuzz"))]
impl Attendant for Idle {
    fn attend_to(&self, _: u64) {}
}

/// No queue pairs at all.
#[cfg(test)]
pub(crate) enum Nobody {}

#[cfg(test)]
impl Receivers for Nobody {
    fn hold(&self, _: Qpn) -> bool {
        match *self {}
    }

    fn let_go(&self, _: Qpn) -> Option<Arc<Qp>> {
        match *self {}
    }

    fn query(&self, _: Qpn) -> Attributes {
        match *self {}
    }

    fn modify(&self, _: Qpn, _: u32, _: &Attributes) -> Result<(), Errno> {
        match *self {}
    }
}

#[cfg(any(test, feature = "fuzz"))]
impl Opener {
    pub(super) fn alone(socket: OwnedFd, number: Qpn, receivers: Weak<dyn Receivers>) -> Opener {
        let attendant: Weak<dyn Attendant> = Weak::<Idle>::new();
        let inbox = Mutex::default();
        Opener { key: 0, socket, number, receivers, attendant, inbox }
    }

    pub(super) fn asked(&self) -> Option<Ask> {
        lock(&self.inbox).asked.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle() -> Weak<dyn Attendant> {
        Weak::<Idle>::new()
    }

    /// Too many hold queue pairs; who has one and goes makes room.
    #[test]
    fn there_are_only_so_many() {
        let (openers, receivers) = (Openers::default(), Weak::<Nobody>::new());
        let far: Vec<_> = (0..OPENERS_MAX)
            .map(|_| {
                let (ours, theirs) = socket::pair().unwrap();
                openers.add(ours, Qpn(7), receivers.clone(), idle()).unwrap();
                theirs
            })
            .collect();
        let (ours, _theirs) = socket::pair().unwrap();
        assert!(openers.add(ours, Qpn(8), receivers.clone(), idle()).is_none());
        assert_eq!((openers.of(Qpn(7)).len(), openers.of(Qpn(8)).len()), (OPENERS_MAX, 0));
        let one = openers.of(Qpn(7)).pop().unwrap();
        assert!(openers.remove(&one) && !openers.remove(&one));
        let (ours, _theirs) = socket::pair().unwrap();
        assert!(openers.add(ours, Qpn(8), receivers, idle()).is_some());
        drop(far);
    }
}
