//! Serves one channel to another host: a thread, an RDMA connection and a broker connection.
//!
//! In: what the process of this host writes into the channel's memory, what the other gateway
//! writes there, and its letters. Out: the same over there. How the two ends begin is in
//! [`crate::channel_handshake`].

use crate::broker_connection::BrokerConnection;
use crate::channel_handshake::Role;
use crate::cm_id::CmId;
use crate::letter_outbox::{EndReason, Outbox};
use crate::limits::{
    ANSWER, ARRIVAL, ARRIVAL_POLL, CHECK_NS, CLIENT_TIMEOUT, DOORBELLS_MAX, OUTBOX, RECEIVES,
    SILENCE, SPIN_NS, WATCH_PAUSES,
};
use crate::queue_pair::{MemoryRegion, QueuePair};
use core::ops::Range;
use omniverb_abi::ibv_send_wr_rdma;
use omniverb_formats::broker_message::Reply;
use omniverb_formats::channel_layout::BYTES;
use omniverb_formats::channel_mirror::{Mirror, Scope};
use omniverb_formats::gateway_message::GatewayMessage;
use omniverb_ring::Window;
use omniverb_sys::{Access, Extent, clock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

/// The channel, as it is here.
struct LocalEnd {
    mirror: Mirror<Window>,
    region: MemoryRegion,
    /// By which the process is woken, and wakes.
    doorbell: OwnedFd,
}

/// See the file's head. The channel goes before the queue pair.
pub(crate) struct RemoteChannel {
    role: Role,
    channel: Option<LocalEnd>,
    remote_memory: Option<ibv_send_wr_rdma>,
    outbox: Outbox,
    began: u64,
    /// When its peers were last looked at, and when a message was last sent.
    checked: u64,
    sent: u64,
    /// How long is slept while the process has something to take out.
    watch: Duration,
    letters: Vec<GatewayMessage>,
    pieces: Vec<Range<usize>>,
    queue_pair: QueuePair,
}

impl RemoteChannel {
    /// Over a connection that is about to be.
    ///
    /// # Errors
    /// There is no room, or no gateway.
    pub(crate) fn new(role: Role, id: CmId) -> io::Result<Self> {
        let began = clock::now();
        let queue_pair = QueuePair::new(id)?;
        match role {
            Role::Outgoing(_) => queue_pair.id().connect()?,
            Role::Incoming(_) => queue_pair.id().accept(role.wake_fd())?,
        }
        Ok(Self {
            role,
            channel: None,
            remote_memory: None,
            outbox: Outbox::default(),
            began,
            checked: 0,
            sent: clock::now(),
            watch: WATCH_PAUSES.0,
            letters: Vec::new(),
            pieces: Vec::new(),
            queue_pair,
        })
    }

    /// Runs until the channel ends. What has come is delivered to the process before that.
    pub(crate) fn run(mut self) {
        let mut end = loop {
            if let Err(end) = self.poll_then_sleep() {
                break end;
            }
        };
        if matches!(end, EndReason::Lost) {
            end = self.drain_received();
        }
        self.role.finish();
        if let EndReason::Local { is_reset } = end {
            self.send_end(is_reset);
        }
        if let (Some(channel), EndReason::Remote { is_reset: false }) = (&self.channel, end) {
            channel.mirror.ends_well();
        }
        self.queue_pair.id().disconnect();
    }

    /// Polls as long as there is something to do, and a while longer; then sleeps.
    fn poll_then_sleep(&mut self) -> Result<(), EndReason> {
        let mut idle = None;
        loop {
            let now = clock::now();
            if now.saturating_sub(self.checked) > CHECK_NS {
                self.checked = now;
                self.check_liveness(now)?;
            }
            let is_idle = idle.is_some_and(|since| now.saturating_sub(since) > SPIN_NS / 4);
            let what = if is_idle { Scope::All } else { Scope::Due };
            if self.progress(what)? {
                (idle, self.watch) = (None, WATCH_PAUSES.0);
                continue;
            }
            match idle {
                None => idle = Some(now),
                Some(since) if now.saturating_sub(since) > SPIN_NS => break,
                Some(_) => thread::yield_now(),
            }
        }
        self.queue_pair.request_notification();
        if let Some(channel) = &self.channel {
            channel.mirror.sleeps();
        }
        if self.progress(Scope::All)? {
            return Ok(());
        }
        self.sleep()?;
        self.checked = clock::now();
        self.check_liveness(self.checked)
    }

    /// The connection is no more, or of no use: what had come by it before is the process's still,
    /// and may say how it has ended.
    fn drain_received(&mut self) -> EndReason {
        // A peer that still says something has its connection.
        for _ in 0..RECEIVES {
            match self.take() {
                Ok(true) => {}
                Ok(false) => return EndReason::Lost,
                Err(end) => return end,
            }
        }
        EndReason::Lost
    }

    /// What has come. Whether there was anything.
    fn take(&mut self) -> Result<bool, EndReason> {
        let is_any = self.queue_pair.poll(&mut self.letters)?;
        let mut letters = core::mem::take(&mut self.letters);
        let outcome = letters.drain(..).try_for_each(|letter| self.read(letter));
        self.letters = letters;
        outcome.map(|()| is_any)
    }

    /// Takes what has come, sends what is due. Whether there was anything.
    fn progress(&mut self, what: Scope) -> Result<bool, EndReason> {
        let mut is_any = self.take()?;
        if self.outbox.letters.len() > OUTBOX {
            return Err(EndReason::Lost);
        }
        while !self.outbox.letters.is_empty() && self.queue_pair.has_room() {
            self.outbox
                .letters
                .pop_front()
                .map_or(Ok(()), |letter| self.queue_pair.send(letter))?;
            is_any = true;
        }
        Ok(self.send_news(what)? || is_any)
    }

    /// Sends what the process has written: bytes, then words.
    fn send_news(&mut self, what: Scope) -> Result<bool, EndReason> {
        let (Some(channel), Some(theirs)) = (&mut self.channel, self.remote_memory) else {
            return Ok(false);
        };
        if !self.queue_pair.has_room() {
            return Ok(false);
        }
        let news = channel.mirror.look(what, &mut self.pieces).map_err(|_| EndReason::Lost)?;
        let Some(news) = news else { return Ok(false) };
        for piece in self.pieces.drain(..) {
            self.queue_pair.write(piece, &channel.region, theirs)?;
        }
        self.queue_pair.send(GatewayMessage::Update(news))?;
        Ok(true)
    }

    fn read(&mut self, letter: GatewayMessage) -> Result<(), EndReason> {
        match letter {
            GatewayMessage::Update(news) => {
                let channel = self.channel.as_ref().ok_or(EndReason::Lost)?;
                if channel.mirror.apply(&news) {
                    _ = send(&channel.doorbell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                }
                if news.has_left() {
                    self.role.listener_left();
                }
                Ok(())
            }
            GatewayMessage::Memory { address, rkey } if self.remote_memory.is_none() => {
                self.remote_memory = Some(ibv_send_wr_rdma { remote_addr: address, rkey });
                Ok(())
            }
            GatewayMessage::Over { is_cut: is_reset } => Err(EndReason::Remote { is_reset }),
            letter => {
                let addresses = self.queue_pair.id().addresses();
                self.role.read(letter, addresses, &mut self.outbox)?;
                // Connections of the channel go on, even if no further ones may come.
                let is_of_use = self.channel.is_some() || !self.role.is_refused();
                if is_of_use { Ok(()) } else { Err(EndReason::Local { is_reset: false }) }
            }
        }
    }

    /// Handles the broker's replies, and ends if the process or the other gateway has gone.
    fn check_liveness(&mut self, now: u64) -> Result<(), EndReason> {
        self.role.poll(now, &mut self.outbox)?;
        if self.channel.is_none() && self.role.is_refused() {
            return Err(EndReason::Local { is_reset: false });
        }
        while let Some((reply, files)) = self.receive_reply()? {
            self.handle_reply(reply, files)?;
        }
        let Some(channel) = &self.channel else {
            let is_over = self.time_left(now) == 0 || self.role.is_evicted();
            return if is_over { Err(EndReason::Local { is_reset: false }) } else { Ok(()) };
        };
        if !drain_doorbell(channel) {
            // What it has written last is the other one's, too.
            let until = now + ARRIVAL;
            while self.progress(Scope::All)? || !self.queue_pair.has_room() {
                if clock::now() > until {
                    return Err(EndReason::Lost);
                }
            }
            let is_reset = self.channel.as_ref().is_some_and(|channel| channel.mirror.is_cut());
            return Err(EndReason::Local { is_reset });
        }
        let is_late = now.saturating_sub(self.began) > CLIENT_TIMEOUT + ANSWER;
        if self.remote_memory.is_none() && (is_late || channel.mirror.has_left()) {
            // A process that is about to come has to ask anew.
            return Err(EndReason::Local { is_reset: false });
        }
        if now.saturating_sub(self.sent) > SILENCE && self.queue_pair.has_room() {
            self.sent = now;
            self.queue_pair.send(GatewayMessage::Read)?;
        }
        Ok(())
    }

    /// How long an end without memory is waited for yet.
    fn time_left(&self, now: u64) -> u64 {
        let patience = if self.role.is_unproven() { ANSWER } else { CLIENT_TIMEOUT };
        patience.saturating_sub(now.saturating_sub(self.began))
    }

    fn receive_reply(&self) -> io::Result<Option<(Reply, Vec<OwnedFd>)>> {
        self.outbox.broker.as_ref().map_or(Ok(None), BrokerConnection::try_receive)
    }

    fn handle_reply(&mut self, reply: Reply, files: Vec<OwnedFd>) -> Result<(), EndReason> {
        match reply {
            Reply::Channel { side, .. } if self.channel.is_none() => {
                let [memory, doorbell] =
                    <[OwnedFd; 2]>::try_from(files).map_err(|_| EndReason::Lost)?;
                let window = Extent::new(memory.as_fd(), 0, BYTES as u64).map(Access::ReadWrite)?;
                let region = self.queue_pair.register(window.clone())?;
                let ibv_send_wr_rdma { remote_addr: address, rkey } = region.remote();
                let mirror = Mirror::new(window, side.other().number());
                self.channel = Some(LocalEnd { mirror, region, doorbell });
                self.outbox.letter(GatewayMessage::Memory { address, rkey });
            }
            // One channel each.
            Reply::Channel { .. } | Reply::Ended { .. } => {
                return Err(EndReason::Local { is_reset: true });
            }
            Reply::ChannelKnown { until, .. } => {
                self.role.arrival_confirmed(until, &mut self.outbox)
            }
            Reply::NoChannel { .. } => self.role.arrival_unconfirmed(),
            _ => {}
        }
        Ok(())
    }

    /// Sleeps until something has happened.
    fn sleep(&mut self) -> Result<(), EndReason> {
        let mut files = vec![self.queue_pair.completion_fd(), self.queue_pair.id().event_fd()];
        files.extend(self.outbox.broker.as_ref().map(AsFd::as_fd));
        files.extend(self.channel.as_ref().map(|channel| channel.doorbell.as_fd()));
        files.extend(self.role.wake_fd());
        let mut wanted: Vec<_> =
            files.iter().map(|file| PollFd::new(file, PollFlags::IN)).collect();
        let is_watched =
            self.channel.as_ref().is_some_and(|channel| channel.mirror.is_to_be_watched());
        let limit = match () {
            () if is_watched => self.watch,
            () if self.role.is_asking() => ARRIVAL_POLL,
            () if self.channel.is_none() => {
                Duration::from_nanos(self.time_left(clock::now()).min(SILENCE)) + WATCH_PAUSES.0
            }
            () => Duration::from_nanos(SILENCE),
        };
        self.watch = (2 * self.watch).min(WATCH_PAUSES.1);
        let limit =
            Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        match poll(&mut wanted, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return Err(EndReason::Lost),
        }
        // Something has happened to a connection that is there: it ends.
        if wanted[1].revents().is_empty() { Ok(()) } else { Err(EndReason::Lost) }
    }

    /// Tells the other gateway that the channel is over, behind all that was written.
    fn send_end(&mut self, is_reset: bool) {
        let until = clock::now() + ARRIVAL;
        let mut letters = Vec::new();
        let mut is_said = false;
        while clock::now() < until && self.queue_pair.poll(&mut letters).is_ok() {
            if !is_said && self.queue_pair.has_room() {
                is_said = self.queue_pair.send(GatewayMessage::Over { is_cut: is_reset }).is_ok();
            } else if is_said && self.queue_pair.is_done() {
                return;
            }
            letters.clear();
            thread::yield_now();
        }
    }
}

/// Empties the doorbell. `false`: the process is gone, or rings without end.
fn drain_doorbell(channel: &LocalEnd) -> bool {
    let mut bytes = [0; DOORBELLS_MAX];
    match recv(&channel.doorbell, &mut bytes[..], RecvFlags::DONTWAIT) {
        Ok((0 | DOORBELLS_MAX, _)) => false,
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => true,
        Err(_) => false,
    }
}
