//! Combines what both sides have said about a connection to what their queue pairs need to know.

use crate::connection_kind::Kind;
use crate::reply::Reply;
use crate::request::Request;
use omniverb_terms::{Psn, Qpn};

/// The terms of a connection, as one side sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NegotiatedParameters {
    /// Our queue pair.
    pub local_qpn: Qpn,
    /// The first PSN that it sends; the peer says which.
    pub local_psn: Psn,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The first PSN that it sends; we say which.
    pub remote_psn: Psn,
    /// What is connected.
    pub kind: Kind,
    /// READs and atomics of the peer's that we serve at a time.
    pub responder_resources: u8,
    /// READs and atomics that we have under way at a time.
    pub initiator_depth: u8,
    /// Path MTU as the verbs' enumeration.
    pub path_mtu: u8,
    /// Local ACK timeout, 5 bits.
    pub ack_timeout: u8,
    /// How often we send again what is not answered.
    pub retry_count: u8,
    /// How often we send again what there was no receive for; 7: without end.
    pub rnr_retry: u8,
}

impl NegotiatedParameters {
    /// What a REQ of ours says.
    pub(crate) fn of_asker(request: &Request) -> NegotiatedParameters {
        NegotiatedParameters {
            local_qpn: request.queue_pair,
            kind: request.kind(),
            remote_psn: request.psn,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            path_mtu: request.path_mtu,
            ack_timeout: request.primary.ack_timeout,
            retry_count: request.retry_count,
            rnr_retry: request.rnr_retry,
            ..NegotiatedParameters::default()
        }
    }

    /// What a REQ to us says. What the peer wants under way we have to serve, and the other way
    /// round (12.7.29, 12.7.30).
    pub(crate) fn of_asked(request: &Request) -> NegotiatedParameters {
        NegotiatedParameters {
            remote_qpn: request.queue_pair,
            kind: request.kind(),
            local_psn: request.psn,
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            path_mtu: request.path_mtu,
            ack_timeout: request.primary.ack_timeout,
            retry_count: request.retry_count,
            rnr_retry: request.rnr_retry,
            ..NegotiatedParameters::default()
        }
    }

    /// What our answer says.
    pub(crate) fn accept(&mut self, reply: &Reply) {
        self.local_qpn = reply.peer(self.kind);
        self.remote_psn = reply.psn;
        self.responder_resources = reply.responder_resources;
        self.initiator_depth = reply.initiator_depth;
    }

    /// What the peer's answer says.
    pub(crate) fn answered(&mut self, reply: &Reply) {
        self.remote_qpn = reply.peer(self.kind);
        self.local_psn = reply.psn;
        self.responder_resources = reply.initiator_depth;
        self.initiator_depth = reply.responder_resources;
        self.rnr_retry = reply.rnr_retry;
    }
}
