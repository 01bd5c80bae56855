//! Opens a channel between two gateways, and proves that more connections may come by it.
//!
//! The *outgoing* end has heard of the broker that a process wants to reach another host. It asks
//! the gateway there whether the process's connection of TCP has arrived
//! ([`GatewayMessage::Prove`]). The *incoming* end asks its broker that, which names the process
//! that listens.

use crate::gateway_state::{CountGuard, GatewayState, Mailbox, ends};
use crate::letter_outbox::{EndReason, Outbox};
use crate::limits::{ANSWER, ARRIVAL, ARRIVAL_POLL, REMOTE_CHANNELS, REMOTE_CHANNELS_OF};
use crate::unproven_peers::{UnprovenPeer, holder};
use omniverb_formats::broker_message::{Failure, Request, Wanted};
use omniverb_formats::channel_layout::{Names, PORT_ALLOWED_FOR};
use omniverb_formats::gateway_message::GatewayMessage;
use omniverb_sys::clock;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Which end of a channel this is.
pub(crate) enum Role {
    /// A process here wants to reach another host.
    Outgoing(Outgoing),
    /// A client of another host comes in.
    Incoming(Incoming),
}

/// See [`Role`].
pub(crate) struct Outgoing {
    state: Arc<GatewayState>,
    mailbox: Arc<Mailbox>,
    asked: Option<Question>,
    /// Questions that were given up: their answers may come yet.
    late: usize,
    /// What it has proved last.
    proven: Option<Wanted>,
    /// The process over there has closed a listening socket since.
    has_left: bool,
    /// No further connection may come by this one, as the other gateway said last.
    is_refused: bool,
}

/// What the other gateway was asked to prove, and when.
struct Question {
    wanted: Wanted,
    at: u64,
    /// A listening socket was closed there since: the answer proves nothing.
    is_void: bool,
}

impl Outgoing {
    pub(crate) fn new(state: Arc<GatewayState>, mailbox: Arc<Mailbox>) -> Self {
        let (has_left, is_refused) = (false, false);
        Self { state, mailbox, asked: None, late: 0, proven: None, has_left, is_refused }
    }

    fn read(&mut self, letter: GatewayMessage, outbox: &mut Outbox) -> Result<(), EndReason> {
        if matches!(letter, GatewayMessage::Proven { .. } | GatewayMessage::Refused)
            && self.late > 0
        {
            self.late -= 1;
            return Ok(());
        }
        let Question { mut wanted, is_void, .. } = self.asked.take().ok_or(EndReason::Lost)?;
        match letter {
            GatewayMessage::Proven { .. } if is_void => {
                self.state.report_failure(wanted, Failure::NotThere)
            }
            GatewayMessage::Proven { left } => {
                // Not for longer than the other host says.
                let latest = clock::now().saturating_add(left.min(PORT_ALLOWED_FOR));
                wanted.at = wanted.at.min(latest.saturating_sub(PORT_ALLOWED_FOR));
                (self.proven, self.has_left, self.is_refused) = (Some(wanted), false, false);
                self.state.log(&wanted.names, "proven");
                let token = self.state.token();
                outbox.broker()?.send(Request::GatewayAccepts { token, wanted })?;
            }
            GatewayMessage::Refused => self.refused(wanted),
            _ => return Err(EndReason::Lost),
        }
        Ok(())
    }

    /// Refuses further connections for now. Those that go by this channel go on.
    fn refused(&mut self, wanted: Wanted) {
        self.state.report_failure(wanted, Failure::NotThere);
        self.is_refused = true;
        if self.has_left {
            // Another process may listen there now, which has another channel.
            self.state.remove_outgoing(&self.mailbox);
        }
    }

    fn poll(&mut self, now: u64, outbox: &mut Outbox) {
        if let Some(asked) = self.asked.take_if(|asked| now.saturating_sub(asked.at) > ANSWER) {
            self.late += 1;
            self.refused(asked.wanted);
        }
        if self.asked.is_none()
            && let Some(wanted) = self.mailbox.take()
        {
            self.asked = Some(Question { wanted, at: now, is_void: false });
            self.state.log(&wanted.names, "wanted");
            outbox.letter(GatewayMessage::Prove(wanted.names));
        }
    }
}

/// See [`Role`].
pub(crate) struct Incoming {
    state: Arc<GatewayState>,
    /// Set until it has proved something.
    unproven: Option<UnprovenPeer>,
    /// Counted for its address since its first question.
    counted: Option<CountGuard<IpAddr>>,
    arrival: Option<ArrivalQuery>,
}

/// What is asked of the broker until it is so.
struct ArrivalQuery {
    names: Names,
    until: u64,
    /// When it is asked again; `None`: it was asked.
    next: Option<u64>,
}

impl Incoming {
    pub(crate) fn new(state: Arc<GatewayState>, unproven: UnprovenPeer) -> Self {
        Self { state, unproven: Some(unproven), counted: None, arrival: None }
    }

    fn read(
        &mut self,
        letter: GatewayMessage,
        addresses: Option<[IpAddr; 2]>,
        outbox: &mut Outbox,
    ) -> Result<(), EndReason> {
        let GatewayMessage::Prove(names) = letter else { return Err(EndReason::Lost) };
        let ([own, others], [from, to]) = (addresses.ok_or(EndReason::Lost)?, ends(&names));
        // A gateway speaks only for addresses whose packets the network brings from it.
        if from != others || to != own || self.arrival.is_some() {
            return Err(EndReason::Lost);
        }
        if let Some(unproven) = &self.unproven {
            unproven.mark_spoken();
        }
        if self.counted.is_none() {
            let counts = &self.state.per_address;
            let counted =
                CountGuard::new(counts, holder(others), REMOTE_CHANNELS_OF, REMOTE_CHANNELS);
            self.counted = Some(counted.ok_or(EndReason::Lost)?);
        }
        let now = clock::now();
        self.arrival = Some(ArrivalQuery { names, until: now + ARRIVAL, next: Some(now) });
        self.poll(now, outbox)
    }

    /// Asks the broker whether the connection has arrived, if it is time.
    fn poll(&mut self, now: u64, outbox: &mut Outbox) -> Result<(), EndReason> {
        let Some(arrival) = &mut self.arrival else { return Ok(()) };
        if arrival.until < now {
            self.state
                .log(&arrival.names, "it has not arrived, or no process with the library listens");
            self.arrival = None;
            if self.unproven.is_some() {
                self.counted = None;
            }
            outbox.letter(GatewayMessage::Refused);
            return Ok(());
        }
        if arrival.next.is_none_or(|next| next > now) {
            return Ok(());
        }
        arrival.next = None;
        let names = arrival.names;
        let (tag, token) = (0, self.state.token());
        outbox.broker()?.send(Request::RemoteConnects { tag, token, names })?;
        Ok(())
    }
}

impl Role {
    /// Handles a letter. `addresses`: this end's and the other one's.
    pub(crate) fn read(
        &mut self,
        letter: GatewayMessage,
        addresses: Option<[IpAddr; 2]>,
        outbox: &mut Outbox,
    ) -> Result<(), EndReason> {
        match self {
            Role::Outgoing(outgoing) => outgoing.read(letter, outbox),
            Role::Incoming(incoming) => incoming.read(letter, addresses, outbox),
        }
    }

    /// Asks what is due by now.
    pub(crate) fn poll(&mut self, now: u64, outbox: &mut Outbox) -> Result<(), EndReason> {
        match self {
            Role::Outgoing(outgoing) => {
                outgoing.poll(now, outbox);
                Ok(())
            }
            Role::Incoming(incoming) => incoming.poll(now, outbox),
        }
    }

    /// The broker says that connections may come until then.
    pub(crate) fn arrival_confirmed(&mut self, until: u64, outbox: &mut Outbox) {
        if let Role::Incoming(incoming) = self
            && let Some(arrival) = incoming.arrival.take()
        {
            incoming.state.log(&arrival.names, "it has arrived");
            incoming.unproven = None;
            let left = until.saturating_sub(clock::now());
            outbox.letter(GatewayMessage::Proven { left });
        }
    }

    /// The broker says that the connection has not arrived so far.
    pub(crate) fn arrival_unconfirmed(&mut self) {
        if let Role::Incoming(Incoming { arrival: Some(arrival), .. }) = self {
            arrival.next = Some(clock::now() + ARRIVAL_POLL.as_nanos() as u64);
        }
    }

    /// The process over there has closed a listening socket: proofs so far are void.
    pub(crate) fn listener_left(&mut self) {
        let Role::Outgoing(outgoing) = self else { return };
        outgoing.has_left = true;
        if let Some(asked) = &mut outgoing.asked {
            asked.is_void = true;
        }
        if let Some(wanted) = outgoing.proven.take() {
            outgoing.state.report_failure(wanted, Failure::NotThere);
        }
    }

    /// Ends it: an open question fails.
    pub(crate) fn finish(&mut self) {
        if let Role::Outgoing(outgoing) = self
            && let Some(asked) = outgoing.asked.take()
        {
            outgoing.state.report_failure(asked.wanted, Failure::NotThere);
        }
    }

    /// Readable when there is a new request, or when this end is evicted.
    pub(crate) fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Role::Outgoing(outgoing) if outgoing.asked.is_none() => Some(outgoing.mailbox.as_fd()),
            Role::Incoming(incoming) => incoming.unproven.as_ref().map(AsFd::as_fd),
            Role::Outgoing(_) => None,
        }
    }

    /// Whether this end was evicted before it proved anything.
    pub(crate) fn is_evicted(&self) -> bool {
        match self {
            Role::Incoming(Incoming { unproven: Some(unproven), .. }) => unproven.is_evicted(),
            _ => false,
        }
    }

    /// Whether a question is open: to the broker, or to the other gateway.
    pub(crate) fn is_asking(&self) -> bool {
        match self {
            Role::Outgoing(outgoing) => outgoing.asked.is_some(),
            Role::Incoming(incoming) => incoming.arrival.is_some(),
        }
    }

    /// Whether it is outgoing, and refuses further connections.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Role::Outgoing(Outgoing { is_refused: true, .. }))
    }

    /// Whether it is incoming, and has proved nothing so far.
    pub(crate) fn is_unproven(&self) -> bool {
        matches!(self, Role::Incoming(Incoming { unproven: Some(_), .. }))
    }
}
