//! A connection, from the first message about it to the last (12.9.5 to 12.9.7): on the side that
//! asks, and on the side that is asked.
//!
//! In: what its user wants, messages, the time. Out: messages to send, and what to tell the user.
//! Who the messages come from and where they go its owner knows; each belongs to this connection
//! by the names in it, and may all the same be lost, late, doubled or forged.

use crate::mad::Mad;
use crate::message::{
    Disconnect, Message, Received, Reject, Rejected, Wait, reject_reason as reason,
};
use crate::negotiated_parameters::NegotiatedParameters;
use crate::reply::Reply;
use crate::request::Request;
use crate::retransmit::{Retransmit, RetransmitDue};
use crate::{Private, WrongState};
use omniverb_terms::{Psn, Qpn};

/// Time that is asked for when a program has not decided yet, 5 bits, as kernels ask.
const SERVICE_TIMEOUT: u8 = 24;
/// The longest that a connection that is over is kept in mind, in nanoseconds.
const TIME_WAIT_MAX: u64 = 60_000_000_000;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // short-lived, a few at a time
pub enum CmAction {
    /// Send this to the peer.
    Send(Mad),
    /// Tell the user.
    Tell(Event),
}

/// What happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // short-lived, a few at a time
pub enum Event {
    /// The peer has taken it, and waits for a word of ours: [`Connection::establish`].
    Answered(Reply),
    /// Both sides are ready.
    Established,
    /// The peer does not want it.
    Rejected {
        /// Why: one of [`reject_reason`](crate::reject_reason).
        reason: u16,
        /// What the peer's user says beside that.
        private: Private<148>,
    },
    /// The peer does not answer.
    Unreachable,
    /// It has ended.
    Disconnected,
    /// Nothing of it is under way any more.
    Over,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// We have asked.
    RequestSent,
    /// We were answered, and our user has to go on.
    Answered,
    /// We were asked, and our user has to answer.
    Asked,
    /// We have answered.
    ReplySent,
    /// It is there.
    Established,
    /// We end it.
    DisconnectSent,
    /// It has ended, but packets may be under way.
    TimeWait,
    /// Nothing is left of it.
    Closed,
}

/// A connection, at either end: how far it is, and what was said last.
#[derive(Clone, Debug)]
pub struct Connection {
    state: State,
    /// Our name for it, and the peer's; zero while we do not know.
    names: (u32, u32),
    /// Of the messages that brought it about.
    transaction: u64,
    /// The node GUID of our device, which a REQ says.
    device: u64,
    /// What both said about it.
    terms: NegotiatedParameters,
    /// What is sent until it is answered.
    repeat: Option<Retransmit>,
    /// Our last word, if the peer may have missed it.
    last: Option<Mad>,
    /// When it is over, in `TimeWait`.
    over: u64,
}

impl Connection {
    /// Asks for a connection: `out` has the REQ to send.
    pub fn ask(
        request: Request,
        transaction: u64,
        now: u64,
        out: &mut Vec<CmAction>,
    ) -> Connection {
        let terms = NegotiatedParameters::of_asker(&request);
        let names = (request.communication, 0);
        let mut connection = Connection::new(State::RequestSent, names, transaction, terms);
        connection.device = request.device;
        connection.send_until_answered(Message::Request(request), now, out);
        connection
    }

    /// We were asked for one; our name for it is `local`.
    pub fn asked(request: &Request, transaction: u64, local: u32) -> Connection {
        let names = (local, request.communication);
        Connection::new(State::Asked, names, transaction, NegotiatedParameters::of_asked(request))
    }

    fn new(
        state: State,
        names: (u32, u32),
        transaction: u64,
        terms: NegotiatedParameters,
    ) -> Connection {
        let (device, repeat, last, over) = (0, None, None, 0);
        Connection { state, names, transaction, device, terms, repeat, last, over }
    }

    /// How far it is.
    pub fn state(&self) -> State {
        self.state
    }

    /// It is there, or on its way.
    pub fn is_live(&self) -> bool {
        !matches!(self.state, State::TimeWait | State::Closed)
    }

    /// What both said about it, as far as they have.
    pub fn terms(&self) -> &NegotiatedParameters {
        &self.terms
    }

    /// Our name for it, and the peer's; zero while we do not know.
    pub fn names(&self) -> (u32, u32) {
        self.names
    }

    /// The first PSN that the peer's queue pair is to send, on the side that is asked.
    pub fn set_remote_psn(&mut self, psn: Psn) {
        self.terms.remote_psn = psn;
    }

    /// When [`tick`](Self::tick) wants to be called.
    pub fn deadline(&self) -> Option<u64> {
        match self.state {
            State::TimeWait => Some(self.over),
            _ => self.repeat.as_ref().map(Retransmit::due),
        }
    }

    /// Our user takes it. `reply` has what is said to the peer; the names are ours to fill in.
    ///
    /// # Errors
    /// Nobody has asked, or has been answered.
    pub fn accept(
        &mut self,
        reply: Reply,
        now: u64,
        out: &mut Vec<CmAction>,
    ) -> Result<(), WrongState> {
        if self.state != State::Asked {
            return Err(WrongState);
        }
        let (communication, remote) = self.names;
        let reply = Reply { communication, remote, ..reply };
        self.device = reply.device;
        self.terms.accept(&reply);
        self.state = State::ReplySent;
        self.send_until_answered(Message::Reply(reply), now, out);
        Ok(())
    }

    /// Our user does not want it.
    ///
    /// # Errors
    /// There is nothing to refuse: only what was asked, or answered, and is not established.
    pub fn reject(
        &mut self,
        reason: u16,
        private: Private<148>,
        out: &mut Vec<CmAction>,
    ) -> Result<(), WrongState> {
        let rejected = match self.state {
            State::Asked => Rejected::Request,
            State::Answered => Rejected::Reply,
            State::ReplySent => Rejected::Other(2),
            _ => return Err(WrongState),
        };
        self.refuse(rejected, reason, private, out);
        Ok(())
    }

    /// Our user's queue pair is ready, on the side that asked; on the other, something has come
    /// from the peer's, so that it is ready whatever became of its word.
    ///
    /// # Errors
    /// It is not the time for that.
    pub fn establish(&mut self, out: &mut Vec<CmAction>) -> Result<(), WrongState> {
        match self.state {
            State::Answered => {
                let ready = self.mad(Message::Ready(self.received()));
                self.last = Some(ready.clone());
                self.state = State::Established;
                out.push(CmAction::Send(ready));
                Ok(())
            }
            State::ReplySent => {
                self.set_established(out);
                Ok(())
            }
            State::Established => Ok(()),
            _ => Err(WrongState),
        }
    }

    /// Our user ends it.
    ///
    /// # Errors
    /// It was never there.
    pub fn disconnect(&mut self, now: u64, out: &mut Vec<CmAction>) -> Result<(), WrongState> {
        match self.state {
            State::Established | State::Answered | State::ReplySent => {
                self.end(now, out);
                Ok(())
            }
            State::DisconnectSent | State::TimeWait => Ok(()),
            _ => Err(WrongState),
        }
    }

    /// What the peer is to hear some more times once this is destroyed, unless it answers: that it
    /// ends. Other last words need no repeating, as whoever has missed one asks.
    pub fn farewell(&self) -> Option<Mad> {
        use State::{DisconnectSent, Established, ReplySent};
        let unheard = matches!(self.state, ReplySent | Established | DisconnectSent);
        unheard.then(|| self.mad(self.disconnection()))
    }

    /// Our user has forgotten it, or is no more. The peer is told so, once; see
    /// [`farewell`](Self::farewell).
    pub fn destroy(&mut self, out: &mut Vec<CmAction>) {
        match self.state {
            State::RequestSent => {
                self.send_reject(Rejected::Request, reason::TIMEOUT, [0; 148], out);
            }
            State::Asked => self.send_reject(Rejected::Request, reason::CONSUMER, [0; 148], out),
            State::Answered => self.send_reject(Rejected::Reply, reason::CONSUMER, [0; 148], out),
            State::ReplySent => {
                self.send_reject(Rejected::Other(2), reason::CONSUMER, [0; 148], out);
            }
            State::Established => out.push(CmAction::Send(self.mad(self.disconnection()))),
            State::DisconnectSent | State::TimeWait | State::Closed => {}
        }
        self.close();
    }

    /// The peer knows nothing of it any more: its queue pair has another.
    pub fn end_as_stale(&mut self, now: u64, out: &mut Vec<CmAction>) {
        match self.state {
            State::Asked | State::ReplySent => {
                self.close();
                let (reason, private) = (reason::STALE_CONNECTION, [0; 148]);
                out.push(CmAction::Tell(Event::Rejected { reason, private }));
            }
            // Whoever says so may be lying: a peer that has not forgotten it hears that it ends.
            State::Established => self.end(now, out),
            State::DisconnectSent => {
                out.push(CmAction::Tell(Event::Disconnected));
                self.wait_for_packets(now);
            }
            State::RequestSent | State::Answered | State::TimeWait | State::Closed => {}
        }
    }

    /// A message of the peer's about it came.
    pub fn arrived(&mut self, mad: &Mad, now: u64, out: &mut Vec<CmAction>) {
        match &mad.message {
            Message::Request(_) => self.asked_again(out),
            Message::Wait(wait) => self.wait(wait, now),
            Message::Reply(reply) => self.answered(reply, out),
            Message::Ready(_) if self.state == State::ReplySent => self.set_established(out),
            Message::Reject(reject) => self.rejected(reject, now, out),
            Message::Disconnect(disconnect) => self.disconnected(disconnect, mad, now, out),
            Message::Disconnected(_) if self.state == State::DisconnectSent => {
                out.push(CmAction::Tell(Event::Disconnected));
                self.wait_for_packets(now);
            }
            _ => {}
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: u64, out: &mut Vec<CmAction>) {
        if self.state == State::TimeWait {
            if now >= self.over {
                self.close();
                out.push(CmAction::Tell(Event::Over));
            }
            return;
        }
        let Some(repeat) = &mut self.repeat else { return };
        match repeat.tick(now) {
            RetransmitDue::Nothing => {}
            RetransmitDue::Again(mad) => out.push(CmAction::Send(mad)),
            RetransmitDue::Over => self.no_answer(now, out),
        }
    }

    fn no_answer(&mut self, now: u64, out: &mut Vec<CmAction>) {
        let unanswered = match self.state {
            State::RequestSent => Rejected::Request,
            State::ReplySent => Rejected::Reply,
            _ => {
                out.push(CmAction::Tell(Event::Disconnected));
                return self.wait_for_packets(now);
            }
        };
        self.refuse(unanswered, reason::TIMEOUT, [0; 148], out);
        out.push(CmAction::Tell(Event::Unreachable));
    }

    /// The request came once more.
    fn asked_again(&mut self, out: &mut Vec<CmAction>) {
        match self.state {
            State::Asked => self.ask_for_time(Rejected::Request, out),
            State::ReplySent => {
                out.extend(self.repeat.iter().map(|repeat| CmAction::Send(repeat.mad().clone())));
            }
            State::TimeWait => {
                let stale = reason::STALE_CONNECTION;
                self.send_reject(Rejected::Request, stale, [0; 148], out);
            }
            State::Closed => out.extend(self.last.clone().map(CmAction::Send)),
            _ => {}
        }
    }

    fn wait(&mut self, wait: &Wait, now: u64) {
        let about = match self.state {
            State::RequestSent => Rejected::Request,
            State::ReplySent => Rejected::Reply,
            _ => return,
        };
        if about != wait.about {
            return;
        }
        if let Some(repeat) = &mut self.repeat {
            repeat.wait(wait.service_timeout, now);
        }
    }

    fn answered(&mut self, reply: &Reply, out: &mut Vec<CmAction>) {
        match self.state {
            State::RequestSent => {
                self.names.1 = reply.communication;
                self.terms.answered(reply);
                self.state = State::Answered;
                self.repeat = None;
                out.push(CmAction::Tell(Event::Answered(reply.clone())));
            }
            State::Answered if reply.communication == self.names.1 => {
                self.ask_for_time(Rejected::Reply, out);
            }
            State::Established if reply.communication == self.names.1 => {
                out.extend(self.last.clone().map(CmAction::Send));
            }
            State::Closed => out.extend(self.last.clone().map(CmAction::Send)),
            _ => {}
        }
    }

    fn set_established(&mut self, out: &mut Vec<CmAction>) {
        self.state = State::Established;
        self.repeat = None;
        out.push(CmAction::Tell(Event::Established));
    }

    fn rejected(&mut self, reject: &Reject, now: u64, out: &mut Vec<CmAction>) {
        match self.state {
            State::RequestSent | State::Answered | State::Asked | State::ReplySent => {
                self.close();
                let (reason, private) = (reject.reason, reject.private);
                out.push(CmAction::Tell(Event::Rejected { reason, private }));
            }
            // The peer has not heard that we are ready, or knows nothing of us.
            State::Established | State::DisconnectSent => {
                out.push(CmAction::Tell(Event::Disconnected));
                self.wait_for_packets(now);
            }
            State::TimeWait | State::Closed => {}
        }
    }

    fn disconnected(&mut self, of: &Disconnect, mad: &Mad, now: u64, out: &mut Vec<CmAction>) {
        if of.queue_pair != self.terms.local_qpn {
            return;
        }
        let is_there = match self.state {
            State::Established | State::Answered | State::ReplySent | State::DisconnectSent => true,
            State::TimeWait | State::Closed => false,
            State::RequestSent | State::Asked => return,
        };
        let message = Message::Disconnected(self.received());
        out.push(CmAction::Send(Mad { transaction: mad.transaction, modifier: 0, message }));
        if is_there {
            out.push(CmAction::Tell(Event::Disconnected));
            self.wait_for_packets(now);
        }
    }

    fn end(&mut self, now: u64, out: &mut Vec<CmAction>) {
        self.state = State::DisconnectSent;
        let mad = self.mad(self.disconnection());
        out.push(CmAction::Send(mad.clone()));
        self.repeat = Some(Retransmit::farewell(mad, now));
    }

    /// What is under way of it is waited for, for as long as the peer's queue pair may send again.
    fn wait_for_packets(&mut self, now: u64) {
        let time = 4096u64 << u32::from(self.terms.ack_timeout.min(31));
        self.state = State::TimeWait;
        self.repeat = None;
        self.over = now.saturating_add(time.min(TIME_WAIT_MAX));
    }

    fn close(&mut self) {
        self.state = State::Closed;
        self.repeat = None;
        self.last = None;
    }

    fn mad(&self, message: Message) -> Mad {
        Mad { transaction: self.transaction, modifier: message.options(), message }
    }

    fn received(&self) -> Received {
        let (communication, remote) = self.names;
        Received { communication, remote, private: [0; 224] }
    }

    fn disconnection(&self) -> Message {
        let (communication, remote) = self.names;
        let queue_pair: Qpn = self.terms.remote_qpn;
        Message::Disconnect(Disconnect { communication, remote, queue_pair, private: [0; 220] })
    }

    fn send_until_answered(&mut self, message: Message, now: u64, out: &mut Vec<CmAction>) {
        let mad = self.mad(message);
        out.push(CmAction::Send(mad.clone()));
        self.repeat = Some(Retransmit::new(mad, now));
    }

    fn ask_for_time(&self, about: Rejected, out: &mut Vec<CmAction>) {
        let (communication, remote) = self.names;
        let service_timeout = SERVICE_TIMEOUT;
        let wait = Wait { communication, remote, about, service_timeout, private: [0; 222] };
        out.push(CmAction::Send(self.mad(Message::Wait(wait))));
    }

    /// Closes it with a word that who has missed it gets again.
    fn refuse(&mut self, what: Rejected, why: u16, with: Private<148>, out: &mut Vec<CmAction>) {
        let reject = self.rejection(what, why, with);
        self.close();
        self.last = Some(reject.clone());
        out.push(CmAction::Send(reject));
    }

    fn send_reject(
        &self,
        rejected: Rejected,
        why: u16,
        private: Private<148>,
        out: &mut Vec<CmAction>,
    ) {
        out.push(CmAction::Send(self.rejection(rejected, why, private)));
    }

    fn rejection(&self, rejected: Rejected, why: u16, private: Private<148>) -> Mad {
        let (local, remote) = self.names;
        // Whom we have not answered does not know our name for it.
        let known = !matches!(self.state, State::Asked | State::TimeWait);
        let communication = if known { local } else { 0 };
        let mut reject =
            Reject { communication, remote, rejected, reason: why, private, ..Reject::NONE };
        if why == reason::TIMEOUT {
            // Who has not answered is not known by a name: it finds this by ours (12.6.7.2).
            reject.information[..8].copy_from_slice(&self.device.to_be_bytes());
            reject.information_length = 8;
        }
        self.mad(Message::Reject(reject))
    }
}
