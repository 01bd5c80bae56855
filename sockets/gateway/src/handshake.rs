//! How the two ends of a channel begin, and learn anew that more connections may come.
//!
//! The one that *goes* has heard of the broker that somebody wants to go to another host, and asks
//! the gateway there whether his connection of TCP has arrived ([`Letter::Prove`]). The one that
//! *comes* asks its broker that, which tells who listens.

use crate::gateway_state::{CountGuard, GatewayState, Mailbox, ends};
use crate::limits::{ANSWER, ARRIVAL, ARRIVAL_POLL, REMOTE_CHANNELS, REMOTE_CHANNELS_OF};
use crate::outbox::{EndReason, Outbox};
use crate::unproven_peers::{UnprovenPeer, holder};
use omniverb_formats::channel::{Names, WAY_KEPT};
use omniverb_formats::letter::Letter;
use omniverb_formats::message::{Failure, Request, Wanted};
use omniverb_sys::clock;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Which of the two this is.
pub(crate) enum Role {
    /// Somebody here wants to go to another host.
    Outgoing(Outgoing),
    /// Somebody of another host incoming.
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
    /// The process over there has left a socket that listens since.
    has_left: bool,
    /// Nobody else may come by this one, as it was said last.
    is_refused: bool,
}

/// What the other gateway was asked to prove, and when.
struct Question {
    wanted: Wanted,
    at: u64,
    /// Somebody has left a socket there since: it proves nothing any more.
    is_void: bool,
}

impl Outgoing {
    pub(crate) fn new(state: Arc<GatewayState>, mailbox: Arc<Mailbox>) -> Self {
        let (has_left, is_refused) = (false, false);
        Self { state, mailbox, asked: None, late: 0, proven: None, has_left, is_refused }
    }

    fn read(&mut self, letter: Letter, outbox: &mut Outbox) -> Result<(), EndReason> {
        if matches!(letter, Letter::Proven { .. } | Letter::Refused) && self.late > 0 {
            self.late -= 1;
            return Ok(());
        }
        let Question { mut wanted, is_void, .. } = self.asked.take().ok_or(EndReason::Lost)?;
        match letter {
            Letter::Proven { .. } if is_void => {
                self.state.report_failure(wanted, Failure::NotThere)
            }
            Letter::Proven { left } => {
                // Not for longer than the other host says.
                let latest = clock::now().saturating_add(left.min(WAY_KEPT));
                wanted.at = wanted.at.min(latest.saturating_sub(WAY_KEPT));
                (self.proven, self.has_left, self.is_refused) = (Some(wanted), false, false);
                self.state.log(&wanted.names, "proven");
                let token = self.state.token();
                outbox.broker()?.send(Request::Leads { token, wanted })?;
            }
            Letter::Refused => self.refused(wanted),
            _ => return Err(EndReason::Lost),
        }
        Ok(())
    }

    /// Nobody else may come by this one for now. What goes by it goes on.
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
            outbox.letter(Letter::Prove(wanted.names));
        }
    }
}

/// See [`Role`].
pub(crate) struct Incoming {
    state: Arc<GatewayState>,
    /// It has proved nothing so far.
    unproven: Option<UnprovenPeer>,
    /// One of those with its address, which it is since it has asked.
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
        letter: Letter,
        addresses: Option<[IpAddr; 2]>,
        outbox: &mut Outbox,
    ) -> Result<(), EndReason> {
        let Letter::Prove(names) = letter else { return Err(EndReason::Lost) };
        let ([own, others], [from, to]) = (addresses.ok_or(EndReason::Lost)?, ends(&names));
        // Nobody speaks for others than those whose packets the network brings.
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

    /// Asks the broker whether somebody has arrived, if it is time.
    fn poll(&mut self, now: u64, outbox: &mut Outbox) -> Result<(), EndReason> {
        let Some(arrival) = &mut self.arrival else { return Ok(()) };
        if arrival.until < now {
            self.state.log(&arrival.names, "it has not come, or to nobody who listens");
            self.arrival = None;
            if self.unproven.is_some() {
                self.counted = None;
            }
            outbox.letter(Letter::Refused);
            return Ok(());
        }
        if arrival.next.is_none_or(|next| next > now) {
            return Ok(());
        }
        arrival.next = None;
        let names = arrival.names;
        let (tag, token) = (0, self.state.token());
        outbox.broker()?.send(Request::Comes { tag, token, names })?;
        Ok(())
    }
}

impl Role {
    /// What the other gateway says of this. `addresses`: this end's and the other one's.
    pub(crate) fn read(
        &mut self,
        letter: Letter,
        addresses: Option<[IpAddr; 2]>,
        outbox: &mut Outbox,
    ) -> Result<(), EndReason> {
        match self {
            Role::Outgoing(outgoing) => outgoing.read(letter, outbox),
            Role::Incoming(incoming) => incoming.read(letter, addresses, outbox),
        }
    }

    /// What is to be asked by now.
    pub(crate) fn poll(&mut self, now: u64, outbox: &mut Outbox) -> Result<(), EndReason> {
        match self {
            Role::Outgoing(outgoing) => {
                outgoing.poll(now, outbox);
                Ok(())
            }
            Role::Incoming(incoming) => incoming.poll(now, outbox),
        }
    }

    /// The broker says that somebody may come until then.
    pub(crate) fn arrival_confirmed(&mut self, until: u64, outbox: &mut Outbox) {
        if let Role::Incoming(incoming) = self
            && let Some(arrival) = incoming.arrival.take()
        {
            incoming.state.log(&arrival.names, "it has come");
            incoming.unproven = None;
            let left = until.saturating_sub(clock::now());
            outbox.letter(Letter::Proven { left });
        }
    }

    /// It says that nobody has arrived, so far.
    pub(crate) fn arrival_unconfirmed(&mut self) {
        if let Role::Incoming(Incoming { arrival: Some(arrival), .. }) = self {
            arrival.next = Some(clock::now() + ARRIVAL_POLL.as_nanos() as u64);
        }
    }

    /// The process over there has left a socket that listens: who wants to go there asks anew.
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

    /// It is over: what was asked is not to be answered any more.
    pub(crate) fn finish(&mut self) {
        if let Role::Outgoing(outgoing) = self
            && let Some(asked) = outgoing.asked.take()
        {
            outgoing.state.report_failure(asked.wanted, Failure::NotThere);
        }
    }

    /// By which more is wanted, unless something was asked, or a unproven is told to make way.
    pub(crate) fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Role::Outgoing(outgoing) if outgoing.asked.is_none() => Some(outgoing.mailbox.as_fd()),
            Role::Incoming(incoming) => incoming.unproven.as_ref().map(AsFd::as_fd),
            Role::Outgoing(_) => None,
        }
    }

    /// A unproven that is to make way for others.
    pub(crate) fn is_evicted(&self) -> bool {
        match self {
            Role::Incoming(Incoming { unproven: Some(unproven), .. }) => unproven.is_evicted(),
            _ => false,
        }
    }

    /// Something was asked: of the broker, or of the other gateway.
    pub(crate) fn is_asking(&self) -> bool {
        match self {
            Role::Outgoing(outgoing) => outgoing.asked.is_some(),
            Role::Incoming(incoming) => incoming.arrival.is_some(),
        }
    }

    /// It goes, and nobody else may come by it.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Role::Outgoing(Outgoing { is_refused: true, .. }))
    }

    /// It has come, and proved nothing so far.
    pub(crate) fn is_unproven(&self) -> bool {
        matches!(self, Role::Incoming(Incoming { unproven: Some(_), .. }))
    }
}
