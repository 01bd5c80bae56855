//! Defines the messages (12.6), and encodes the short ones among them.

use crate::Private;
use crate::big_endian_fields::Fields;
use crate::reply::Reply;
use crate::request::Request;
use omniverb_terms::{Qkey, Qpn};

/// What a management datagram says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // they live on the stack, one at a time
pub enum Message {
    /// REQ.
    Request(Request),
    /// MRA: "I got it, give me time".
    Wait(Wait),
    /// REJ.
    Reject(Reject),
    /// REP.
    Reply(Reply),
    /// RTU: "ready to use".
    Ready(Received),
    /// DREQ.
    Disconnect(Disconnect),
    /// DREP.
    Disconnected(Disconnected),
    /// SIDR_REQ: "which QP serves this?".
    Resolve(Resolve),
    /// SIDR_REP.
    Resolved(Resolved),
}

/// Which message another one is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// A REQ, which asks for a connection.
    Request,
    /// A REP, which answers one.
    Reply,
    /// None in particular.
    Other(u8),
}

impl Rejected {
    fn from_bits(bits: u8) -> Rejected {
        match bits & 3 {
            0 => Rejected::Request,
            1 => Rejected::Reply,
            other => Rejected::Other(other),
        }
    }
    fn bits(self) -> u8 {
        match self {
            Rejected::Request => 0,
            Rejected::Reply => 1,
            Rejected::Other(other) => other & 3,
        }
    }
}

/// MRA (12.6.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The sender's name for the connection.
    pub communication: u32,
    /// The receiver's name for it.
    pub remote: u32,
    /// What it is about.
    pub about: Rejected,
    /// How long, 5 bits.
    pub service_timeout: u8,
    /// For the application.
    pub private: Private<222>,
}

/// REJ (12.6.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The sender's name for the connection; 0 if it has none.
    pub communication: u32,
    /// The receiver's name for it.
    pub remote: u32,
    /// What is rejected.
    pub rejected: Rejected,
    /// Bytes of `information` that count, 7 bits.
    pub information_length: u8,
    /// Why: see [`reject_reason`].
    pub reason: u16,
    /// What would have been right.
    pub information: [u8; 72],
    /// For the application.
    pub private: Private<148>,
}

impl Reject {
    /// One that says nothing.
    pub const NONE: Reject = Reject {
        communication: 0,
        remote: 0,
        rejected: Rejected::Other(2),
        information_length: 0,
        reason: 0,
        information: [0; 72],
        private: [0; 148],
    };
}

/// RTU (12.6.9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The sender's name for the connection.
    pub communication: u32,
    /// The receiver's name for it.
    pub remote: u32,
    /// For the application.
    pub private: Private<224>,
}

/// DREQ (12.6.10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnect {
    /// The sender's name for the connection.
    pub communication: u32,
    /// The receiver's name for it.
    pub remote: u32,
    /// The receiver's QP.
    pub queue_pair: Qpn,
    /// For the application.
    pub private: Private<220>,
}

/// DREP (12.6.11) has the form of an RTU.
pub type Disconnected = Received;

/// SIDR_REQ (12.11.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolve {
    /// The sender's name for the question.
    pub request: u32,
    /// P_Key of the QP that is asked for.
    pub partition_key: u16,
    /// Whom to talk to.
    pub service: u64,
    /// For the application.
    pub private: Private<216>,
}

/// SIDR_REP (12.11.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The asker's name for the question.
    pub request: u32,
    /// 0: here it is; otherwise why not.
    pub status: u8,
    /// Bytes of `information` that count.
    pub information_length: u8,
    /// Vendor of the options in the modifier; its low byte lies apart.
    pub vendor: u32,
    /// The queue pair that serves datagrams.
    pub queue_pair: Qpn,
    /// The service that it serves.
    pub service: u64,
    /// The Q_Key that its datagrams must have.
    pub queue_key: Qkey,
    /// What would have been right.
    pub information: [u8; 72],
    /// For the application.
    pub private: Private<136>,
}

/// Reasons of a [`Reject`] (12.6.7.2).
#[allow(missing_docs)]
pub mod reject_reason {
    pub const NO_QUEUE_PAIR: u16 = 1;
    pub const NO_RESOURCES: u16 = 3;
    pub const TIMEOUT: u16 = 4;
    pub const UNSUPPORTED: u16 = 5;
    pub const INVALID_COMMUNICATION: u16 = 6;
    pub const INVALID_SERVICE: u16 = 8;
    pub const INVALID_TRANSPORT: u16 = 9;
    pub const STALE_CONNECTION: u16 = 10;
    pub const INVALID_GID: u16 = 12;
    pub const INVALID_MTU: u16 = 26;
    pub const TOO_FEW_RESOURCES: u16 = 27;
    pub const CONSUMER: u16 = 28;
    pub const INVALID_RNR_RETRY: u16 = 29;
    pub const DUPLICATE_COMMUNICATION: u16 = 30;
    pub const CLASS_VERSION: u16 = 31;
}

impl Message {
    /// The sender's name for its end of the exchange, by which answers name it; `None`: there is no
    /// answer to this.
    pub fn sender(&self) -> Option<u32> {
        match self {
            Message::Request(request) => Some(request.communication),
            Message::Wait(wait) => Some(wait.communication),
            Message::Reject(reject) => Some(reject.communication),
            Message::Reply(reply) => Some(reply.communication),
            Message::Ready(received) => Some(received.communication),
            Message::Disconnect(disconnect) => Some(disconnect.communication),
            Message::Resolve(resolve) => Some(resolve.request),
            Message::Disconnected(_) | Message::Resolved(_) => None,
        }
    }

    /// The receiver's name for its end, if the message says one: it answers something then.
    pub fn receiver(&self) -> Option<u32> {
        match self {
            Message::Request(_) | Message::Resolve(_) => None,
            Message::Wait(wait) => Some(wait.remote),
            Message::Reject(reject) => Some(reject.remote).filter(|name| *name != 0),
            Message::Reply(reply) => Some(reply.remote),
            Message::Ready(received) | Message::Disconnected(received) => Some(received.remote),
            Message::Disconnect(disconnect) => Some(disconnect.remote),
            Message::Resolved(resolved) => Some(resolved.request),
        }
    }

    /// Options of "enhanced connection establishment": the header's modifier. Only requests for
    /// connections and answers to them have some.
    pub(crate) fn options(&self) -> u32 {
        match self {
            Message::Request(request) => request.options,
            Message::Reply(reply) => reply.options,
            _ => 0,
        }
    }

    pub(crate) fn set_options(&mut self, options: u32) {
        match self {
            Message::Request(request) => request.options = options,
            Message::Reply(reply) => reply.options = options,
            _ => {}
        }
    }

    pub(crate) fn read(attribute: u16, fields: &Fields) -> Option<Message> {
        let names = (fields.u32(0), fields.u32(4));
        let (communication, remote) = names;
        let received = || Received { communication, remote, private: fields.array(8) };
        Some(match attribute {
            0x10 => Message::Request(Request::read(fields)),
            0x11 => Message::Wait(Wait {
                communication,
                remote,
                about: Rejected::from_bits(fields.u8(8) >> 6),
                service_timeout: fields.u8(9) >> 3,
                private: fields.array(10),
            }),
            0x12 => Message::Reject(Reject {
                communication,
                remote,
                rejected: Rejected::from_bits(fields.u8(8) >> 6),
                information_length: fields.u8(9) >> 1,
                reason: fields.u16(10),
                information: fields.array(12),
                private: fields.array(84),
            }),
            0x13 => Message::Reply(Reply::read(fields)),
            0x14 => Message::Ready(received()),
            0x15 => Message::Disconnect(Disconnect {
                communication,
                remote,
                queue_pair: Qpn(fields.u24(8)),
                private: fields.array(12),
            }),
            0x16 => Message::Disconnected(received()),
            0x17 => Message::Resolve(Resolve {
                request: communication,
                partition_key: fields.u16(4),
                service: fields.u64(8),
                private: fields.array(16),
            }),
            0x18 => Message::Resolved(Resolved {
                request: communication,
                status: fields.u8(4),
                information_length: fields.u8(5),
                vendor: u32::from(fields.u16(6)) << 8 | u32::from(fields.u8(11)),
                queue_pair: Qpn(fields.u24(8)),
                service: fields.u64(12),
                queue_key: Qkey(fields.u32(20)),
                information: fields.array(24),
                private: fields.array(96),
            }),
            _ => return None,
        })
    }

    pub(crate) fn write(&self) -> (u16, Fields) {
        let mut fields = Fields::zero();
        let attribute = match self {
            Message::Request(request) => {
                request.write(&mut fields);
                0x10
            }
            Message::Wait(wait) => {
                fields.set_u32(0, wait.communication);
                fields.set_u32(4, wait.remote);
                fields.set_u8(8, wait.about.bits() << 6);
                fields.set_u8(9, wait.service_timeout << 3);
                fields.set(10, wait.private);
                0x11
            }
            Message::Reject(reject) => {
                fields.set_u32(0, reject.communication);
                fields.set_u32(4, reject.remote);
                fields.set_u8(8, reject.rejected.bits() << 6);
                fields.set_u8(9, reject.information_length << 1);
                fields.set_u16(10, reject.reason);
                fields.set(12, reject.information);
                fields.set(84, reject.private);
                0x12
            }
            Message::Reply(reply) => {
                reply.write(&mut fields);
                0x13
            }
            Message::Ready(received) | Message::Disconnected(received) => {
                fields.set_u32(0, received.communication);
                fields.set_u32(4, received.remote);
                fields.set(8, received.private);
                if matches!(self, Message::Ready(_)) { 0x14 } else { 0x16 }
            }
            Message::Disconnect(disconnect) => {
                fields.set_u32(0, disconnect.communication);
                fields.set_u32(4, disconnect.remote);
                fields.set_u24(8, disconnect.queue_pair.0);
                fields.set(12, disconnect.private);
                0x15
            }
            Message::Resolve(resolve) => {
                fields.set_u32(0, resolve.request);
                fields.set_u16(4, resolve.partition_key);
                fields.set_u64(8, resolve.service);
                fields.set(16, resolve.private);
                0x17
            }
            Message::Resolved(resolved) => {
                fields.set_u32(0, resolved.request);
                fields.set_u8(4, resolved.status);
                fields.set_u8(5, resolved.information_length);
                fields.set_u16(6, (resolved.vendor >> 8) as u16);
                fields.set_u24(8, resolved.queue_pair.0);
                fields.set_u8(11, resolved.vendor as u8);
                fields.set_u64(12, resolved.service);
                fields.set_u32(20, resolved.queue_key.0);
                fields.set(24, resolved.information);
                fields.set(96, resolved.private);
                0x18
            }
        };
        (attribute, fields)
    }
}
