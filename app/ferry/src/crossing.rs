//! One trunk to another host: a thread, a connection of RDMA to the ferry there, and one to the
//! broker here, which takes it for a process.
//!
//! In: what the process of this host writes into the trunk's memory, what the other ferry writes
//! there, and its letters. Out: the same over there. Before that the other ferry is asked whether
//! the process's connection of TCP has arrived ([`Letter::Prove`]), and whenever it is to be known
//! again.

use crate::broker::Broker;
use crate::fleet::{Fleet, Mailbox};
use crate::id::Id;
use crate::limits::{ARRIVAL, ASKS, LOOKS, OFTEN, PATIENCE, WATCH};
use crate::queues::{Queues, Region};
use core::ops::Range;
use omniverb_abi::ibv_send_wr_rdma;
use omniverb_carry::letter::Letter;
use omniverb_carry::message::{Reply, Request, Wanted};
use omniverb_carry::mirror::Mirror;
use omniverb_carry::trunk::{BYTES, Names};
use omniverb_ring::Window;
use omniverb_sys::{Access, Extent, clock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Which of the two ends this is.
pub(crate) enum Part {
    /// Somebody here wants to go to another host; who asks for more says so by the mailbox.
    Goes(Arc<Mailbox>),
    /// Somebody of another host comes.
    Comes,
}

/// The trunk, as it is here.
struct Trunk {
    mirror: Mirror<Window>,
    region: Region,
    /// By which the process is woken, and wakes.
    bell: OwnedFd,
}

/// Why it has ended.
#[derive(Debug)]
enum End {
    /// The process here has ended, or its part was taken back.
    Here { is_cut: bool },
    /// The same over there.
    There { is_cut: bool },
    /// The way is lost, or somebody has said what makes no sense.
    Lost,
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        End::Lost
    }
}

/// What is asked of the broker until it is so.
struct Arrival {
    names: Names,
    until: u64,
    /// When it is asked again; `None`: it was asked.
    next: Option<u64>,
}

/// See the file's head. The trunk goes before the queues.
pub(crate) struct Crossing {
    fleet: Arc<Fleet>,
    part: Part,
    trunk: Option<Trunk>,
    theirs: Option<ibv_send_wr_rdma>,
    broker: Option<Broker>,
    /// What the other ferry was asked to prove.
    asked: Option<Wanted>,
    arrival: Option<Arrival>,
    began: u64,
    /// When it was looked last who is gone.
    looked: u64,
    letters: Vec<Letter>,
    /// What is to be said, besides news.
    outbox: VecDeque<Letter>,
    pieces: Vec<Range<usize>>,
    queues: Queues,
}

impl Crossing {
    /// Over a connection that is there, or about to be.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn new(fleet: Arc<Fleet>, part: Part, id: Id) -> io::Result<Self> {
        let queues = Queues::new(id)?;
        match part {
            Part::Goes(_) => queues.id().connect()?,
            Part::Comes => queues.id().accept()?,
        }
        Ok(Self {
            fleet,
            part,
            trunk: None,
            theirs: None,
            broker: None,
            asked: None,
            arrival: None,
            began: clock::now(),
            looked: 0,
            letters: Vec::new(),
            outbox: VecDeque::new(),
            pieces: Vec::new(),
            queues,
        })
    }

    /// Until it ends. What has come is the process's before it hears that.
    pub(crate) fn run(mut self) {
        let end = self.carry_on();
        if let Some(wanted) = self.asked.take() {
            self.fleet.fails(wanted);
        }
        if let End::Here { is_cut } = end {
            self.say_over(is_cut);
        }
        if let (Some(trunk), End::There { is_cut: false }) = (&self.trunk, end) {
            trunk.mirror.ends_well();
        }
        self.queues.id().disconnect();
    }

    fn carry_on(&mut self) -> End {
        loop {
            if let Err(end) = self.look_and_sleep() {
                return end;
            }
        }
    }

    /// Looks as long as there is something to do, and a while longer; then sleeps until there is.
    fn look_and_sleep(&mut self) -> Result<(), End> {
        let mut idle = None;
        loop {
            let now = clock::now();
            if now.saturating_sub(self.looked) > OFTEN {
                self.looked = now;
                self.look_around(now)?;
            }
            let is_idle = idle.is_some_and(|since| now.saturating_sub(since) > LOOKS / 4);
            if self.move_some(is_idle)? {
                idle = None;
                continue;
            }
            match idle {
                None => idle = Some(now),
                Some(since) if now.saturating_sub(since) > LOOKS => break,
                Some(_) => thread::yield_now(),
            }
        }
        self.queues.notify();
        if let Some(trunk) = &self.trunk {
            trunk.mirror.sleeps();
        }
        if self.move_some(true)? {
            return Ok(());
        }
        self.sleep()?;
        self.looked = clock::now();
        self.look_around(self.looked)
    }

    /// What has come and what is to go. Whether there was anything.
    fn move_some(&mut self, insists: bool) -> Result<bool, End> {
        let mut is_any = self.queues.poll(&mut self.letters)?;
        let mut letters = core::mem::take(&mut self.letters);
        let outcome = letters.drain(..).try_for_each(|letter| self.read(letter));
        self.letters = letters;
        outcome?;
        while !self.outbox.is_empty() && self.queues.has_room() {
            self.outbox.pop_front().map_or(Ok(()), |letter| self.queues.send(letter))?;
            is_any = true;
        }
        Ok(self.tell(insists)? || is_any)
    }

    /// What the process has written is the other one's: bytes, then words.
    fn tell(&mut self, insists: bool) -> Result<bool, End> {
        let (Some(trunk), Some(theirs)) = (&mut self.trunk, self.theirs) else { return Ok(false) };
        if !self.queues.has_room() {
            return Ok(false);
        }
        let news = trunk.mirror.look(insists, &mut self.pieces).map_err(|_| End::Lost)?;
        let Some(news) = news else { return Ok(false) };
        for piece in self.pieces.drain(..) {
            self.queues.write(piece, &trunk.region, theirs)?;
        }
        self.queues.send(Letter::News(news))?;
        Ok(true)
    }

    fn read(&mut self, letter: Letter) -> Result<(), End> {
        match (letter, &self.part) {
            (Letter::News(news), _) => {
                let trunk = self.trunk.as_ref().ok_or(End::Lost)?;
                if trunk.mirror.apply(&news) {
                    _ = send(&trunk.bell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                }
            }
            (Letter::Memory { address, rkey }, _) if self.theirs.is_none() => {
                self.theirs = Some(ibv_send_wr_rdma { remote_addr: address, rkey });
            }
            (Letter::Prove(names), Part::Comes) => {
                let [own, others] = self.queues.id().addresses().ok_or(End::Lost)?;
                let [from, to] = names.addresses.map(|one| Ipv6Addr::from(one).to_canonical());
                // Nobody speaks for others than those whose packets the network brings.
                if from != others || to != own || self.arrival.is_some() {
                    self.outbox.push_back(Letter::Refused);
                    return Ok(());
                }
                let now = clock::now();
                self.arrival = Some(Arrival { names, until: now + ARRIVAL, next: Some(now) });
                self.ask(now)?;
            }
            (Letter::Proven, Part::Goes(_)) => {
                let wanted = self.asked.take().ok_or(End::Lost)?;
                let token = self.fleet.token();
                self.broker()?.say(Request::Leads { token, wanted })?;
            }
            (Letter::Refused, Part::Goes(_)) => {
                self.fleet.fails(self.asked.take().ok_or(End::Lost)?);
                if self.trunk.is_none() {
                    return Err(End::Here { is_cut: false });
                }
            }
            (Letter::Over { is_cut }, _) => return Err(End::There { is_cut }),
            _ => return Err(End::Lost),
        }
        Ok(())
    }

    fn broker(&mut self) -> io::Result<&Broker> {
        match &mut self.broker {
            Some(broker) => Ok(broker),
            none => Ok(none.insert(Broker::new()?)),
        }
    }

    /// Asks the broker whether somebody has arrived, if it is time.
    fn ask(&mut self, now: u64) -> Result<(), End> {
        let Some(arrival) = &mut self.arrival else { return Ok(()) };
        if arrival.next.is_none_or(|next| next > now) {
            return Ok(());
        }
        if arrival.until < now {
            self.arrival = None;
            self.outbox.push_back(Letter::Refused);
            return Ok(());
        }
        arrival.next = None;
        let names = arrival.names;
        let (tag, token) = (0, self.fleet.token());
        self.broker()?.say(Request::Comes { tag, token, names })?;
        Ok(())
    }

    /// What the broker and the mailbox have, and who is gone.
    fn look_around(&mut self, now: u64) -> Result<(), End> {
        self.ask(now)?;
        while let Some((reply, files)) = self.heard()? {
            self.hear(reply, files)?;
        }
        if let Part::Goes(mailbox) = &self.part
            && self.asked.is_none()
            && let Some(wanted) = mailbox.take()
        {
            self.asked = Some(wanted);
            self.outbox.push_back(Letter::Prove(wanted.names));
        }
        if let Some(trunk) = &self.trunk {
            let is_there = is_there(trunk);
            if !is_there {
                // What it has written last is the other one's, too.
                let until = now + ARRIVAL;
                while self.move_some(true)? || !self.queues.has_room() {
                    if clock::now() > until {
                        return Err(End::Lost);
                    }
                }
                let is_cut = self.trunk.as_ref().is_some_and(|trunk| trunk.mirror.is_cut());
                return Err(End::Here { is_cut });
            }
        } else if now.saturating_sub(self.began) > PATIENCE {
            return Err(End::Here { is_cut: false });
        }
        Ok(())
    }

    fn heard(&self) -> io::Result<Option<(Reply, Vec<OwnedFd>)>> {
        self.broker.as_ref().map_or(Ok(None), Broker::take)
    }

    fn hear(&mut self, reply: Reply, files: Vec<OwnedFd>) -> Result<(), End> {
        match reply {
            Reply::Trunk { side, .. } if self.trunk.is_none() => {
                let [memory, bell] = <[OwnedFd; 2]>::try_from(files).map_err(|_| End::Lost)?;
                let window = Extent::new(memory.as_fd(), 0, BYTES as u64).map(Access::ReadWrite)?;
                let region = self.queues.register(window.clone())?;
                let ibv_send_wr_rdma { remote_addr: address, rkey } = region.remote();
                let mirror = Mirror::new(window, 1 - (side as usize & 1));
                self.trunk = Some(Trunk { mirror, region, bell });
                self.outbox.push_back(Letter::Memory { address, rkey });
            }
            // One trunk each.
            Reply::Trunk { .. } | Reply::Over { .. } => return Err(End::Here { is_cut: true }),
            Reply::Known { .. } if self.arrival.take().is_some() => {
                self.outbox.push_back(Letter::Proven);
            }
            Reply::Nobody { .. } => {
                if let Some(arrival) = &mut self.arrival {
                    arrival.next = Some(clock::now() + ASKS.as_nanos() as u64);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn sleep(&self) -> io::Result<()> {
        let mut files = vec![self.queues.news(), self.queues.id().ends()];
        files.extend(self.broker.as_ref().map(AsFd::as_fd));
        files.extend(self.trunk.as_ref().map(|trunk| trunk.bell.as_fd()));
        if let Part::Goes(mailbox) = &self.part {
            files.push(mailbox.as_fd());
        }
        let mut wanted: Vec<_> =
            files.iter().map(|file| PollFd::new(file, PollFlags::IN)).collect();
        let watches = self.trunk.as_ref().is_some_and(|trunk| trunk.mirror.is_to_be_watched());
        let limit = match () {
            () if watches => Some(WATCH.0),
            () if self.arrival.is_some() => Some(ASKS),
            () if self.trunk.is_none() => Some(Duration::from_nanos(PATIENCE)),
            () => None,
        };
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: limit.subsec_nanos().into(),
        });
        match poll(&mut wanted, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        // Something has happened to a connection that is there: it ends.
        if wanted[1].revents().is_empty() {
            Ok(())
        } else {
            Err(io::ErrorKind::NotConnected.into())
        }
    }

    /// The other ferry hears that it is over, behind all that was written.
    fn say_over(&mut self, is_cut: bool) {
        let until = clock::now() + ARRIVAL;
        let mut letters = Vec::new();
        let mut is_said = false;
        while clock::now() < until && self.queues.poll(&mut letters).is_ok() {
            if !is_said && self.queues.has_room() {
                is_said = self.queues.send(Letter::Over { is_cut }).is_ok();
            } else if is_said && self.queues.is_done() {
                return;
            }
            letters.clear();
            thread::yield_now();
        }
    }
}

/// Takes what has rung. `false`: the process is gone.
fn is_there(trunk: &Trunk) -> bool {
    let mut bytes = [0; 64];
    loop {
        match recv(&trunk.bell, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return false,
            Ok((count, _)) if count == bytes.len() => {}
            Ok(_) | Err(Errno::AGAIN) => return true,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Where the other ferry is.
pub(crate) fn ends(names: &Names) -> [IpAddr; 2] {
    names.addresses.map(|one| Ipv6Addr::from(one).to_canonical())
}
