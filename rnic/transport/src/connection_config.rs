//! Holds what the two ends agreed on, and what this end decided.

use crate::Time;
use omniverb_terms::{Psn, Qpn, Service};

/// A thread of a busy machine waits for a processor for so long, now and then.
const WAIT_MAX: Time = 200_000_000;

/// Everything a connection is made with; the names of the verbs where verbs has one.
#[derive(Clone, Debug)]
pub struct Config {
    /// The peer's QP number.
    pub destination: Qpn,
    /// RC, or that of either end of XRC.
    pub service: Service,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub path_mtu: usize,
    /// First PSN we send.
    pub sq_psn: Psn,
    /// First PSN we expect.
    pub rq_psn: Psn,
    /// READs and atomics we may have under way.
    pub max_rd_atomic: usize,
    /// READs and atomics the peer may have under way here.
    pub max_dest_rd_atomic: usize,
    /// Code of the timer that we ask a peer to wait for when a receive is missing.
    pub min_rnr_timer: u8,
    /// Local ACK timeout, a code: 4.096 us times two to this; 0: never.
    pub timeout: u8,
    /// Timeouts and sequence errors without progress before we give up.
    pub retry_count: u8,
    /// Receiver-not-ready answers without progress before we give up; 7: never.
    pub rnr_retry: u8,
    /// A missing receive is waited for so long at least, whatever `rnr_retry` allows.
    pub receiver_late: Time,
    /// PSNs under way at most. 128 is what Linux rxe has itself.
    pub window: u64,
    /// Requests queued at most.
    pub requests_max: usize,
    /// Packets delivered to the layer above and not answered by it at most.
    pub unanswered_max: usize,
    /// An acknowledgement that is this late is asked for anew, without spending a retry.
    pub early_timeout: Time,
    /// Delay above the smallest round trip that counts as congestion, and shrinks the window;
    /// `None`: none does. Loss and notifications always do.
    pub delay_target: Option<Time>,
    /// How many packets the window has at least.
    pub window_floor: u64,
    /// Which packets of a message say where its bytes belong.
    pub naming: AddressedPackets,
    /// Packets that are worth a system call: a burst begins when there is room for so many, or for
    /// all there are.
    pub burst: u64,
    /// An acknowledgement is asked for after so many packets at the latest, and at the end of what
    /// there is to send. `None`: at the end of every message.
    pub ask_every: Option<u64>,
    /// Packets taken after which an acknowledgement leaves, asked for or not.
    pub acknowledge_every: u32,
    /// Where an acknowledgement goes when a request is ready, too.
    pub acknowledgements: Acknowledgements,
    /// Whether the ends say how long something will take.
    pub delay_notices: DelayNotices,
    /// What becomes of a READ that is asked for again, and cannot be answered any more
    /// ([`crate::Answer::Gone`]).
    pub gone_reads: GoneReads,
}

/// Which packets of a message that we send say where its bytes belong. What the peer's may say does
/// not hang on it: each end has asked for itself who the other is, and one may have had no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressedPackets {
    /// As the specification has it: of a WRITE the first has an address (9.7.4.1.2), of what
    /// answers a READ the first and the last have a syndrome (9.4.4).
    First,
    /// Every packet of a WRITE names the address and the length of what is left of the message
    /// (9.6.1 knows no such packets in the middle); every packet that answers a READ has a
    /// syndrome. All but the last are equally long then: the kernel takes many
    /// of them, of several messages, in one call.
    Every,
}

/// Where an acknowledgement goes when a request is ready, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledgements {
    /// In front of it: programs rely on that.
    First,
    /// Right behind one request packet, which the peer takes in after it. See
    /// [`crate::Connection::may_wait`].
    Behind,
}

/// Whether the ends say how long something will take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelayNotices {
    /// The peer does not know of them, as far as we know: none are sent, and those that come are
    /// not looked at, unless the peer has named what is left of a WRITE
    /// ([`AddressedPackets::Every`]), or is waited for in vain: then it says that it is there.
    Unknown,
    /// The peer is told when answers to it wait for a rate limit, and when there is a receive that
    /// it was told is missing. See [`crate::Connection::poll_delay`],
    /// [`crate::Connection::receive_came`].
    Agreed,
}

/// What becomes of a READ that is asked for again, and cannot be answered any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoneReads {
    /// Nothing is said: rdma_rxe in the middle of a READ takes a refusal of what is over for one of
    /// that.
    Unanswered,
    /// It is refused, and nothing else is. The peer must take a refusal of what is over for
    /// nothing.
    Refused,
}

/// What cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not one of the five.
    #[error("path MTU {0} is not one of 256, 512, 1024, 2048, 4096")]
    PathMtu(usize),
    /// None, or so many that PSNs become ambiguous.
    #[error("a window of {0} packets is not between 1 and 2^22")]
    Window(u64),
}

impl Config {
    /// What most connections use, to a QP that has the given number.
    pub fn new(destination: Qpn) -> Config {
        Config {
            destination,
            service: Service::Rc,
            path_mtu: 1024,
            sq_psn: Psn::default(),
            rq_psn: Psn::default(),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            receiver_late: 0,
            window: 128,
            requests_max: 4096,
            unanswered_max: 256,
            early_timeout: 2_000_000,
            delay_target: Some(500_000),
            window_floor: 16,
            naming: AddressedPackets::First,
            burst: 1,
            ask_every: None,
            acknowledge_every: 32,
            acknowledgements: Acknowledgements::First,
            delay_notices: DelayNotices::Unknown,
            gone_reads: GoneReads::Unanswered,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if !matches!(self.path_mtu, 256 | 512 | 1024 | 2048 | 4096) {
            return Err(ConfigError::PathMtu(self.path_mtu));
        }
        if !(1..=1 << 22).contains(&self.window) {
            return Err(ConfigError::Window(self.window));
        }
        Ok(())
    }

    /// The local ACK timeout; `None`: wait for ever (9.9.2.1.1).
    pub(crate) fn ack_timeout(&self) -> Option<Time> {
        (self.timeout != 0).then(|| 4096 << (self.timeout & 0x1f))
    }

    /// How long to wait for an answer before that costs a retry. A requester may take up to four
    /// times the timeout (9.9.2.1.1). Peers here are threads that wait for a processor, which has
    /// nothing to do with the timeout: of that much, as long as such a wait may well be.
    pub(crate) fn patience(&self) -> Option<Time> {
        self.ack_timeout().map(|timeout| timeout + (2 * timeout).min(WAIT_MAX))
    }
}
