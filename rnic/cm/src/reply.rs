//! Encodes REP, which accepts a connection (12.6.8).

use crate::Private;
use crate::big_endian_fields::Fields;
use crate::connection_kind::Kind;
use omniverb_terms::{Psn, Qkey, Qpn};

/// What REP says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The sender's name for the connection.
    pub communication: u32,
    /// The receiver's name for it.
    pub remote: u32,
    /// Q_Key, for datagrams.
    pub queue_key: Qkey,
    /// The sender's QP.
    pub queue_pair: Qpn,
    /// Vendor of the options, 24 bits; zero: there are none.
    pub vendor: u32,
    /// Options of "enhanced connection establishment"; they travel in the header's modifier.
    pub options: u32,
    /// End-to-end context; the target QP of an extended connection.
    pub context: u32,
    /// The first PSN that the *receiver* of this is to use: what the sender's queue pair
    /// expects (12.6.8, "starting PSN").
    pub psn: Psn,
    /// READs and atomics the sender can serve at a time.
    pub responder_resources: u8,
    /// READs and atomics the sender wants to have under way.
    pub initiator_depth: u8,
    /// How long the sender's device takes to acknowledge, 5 bits.
    pub ack_delay: u8,
    /// What became of the alternate path, 2 bits.
    pub failover: u8,
    /// Whether end-to-end credits are used.
    pub has_flow_control: bool,
    /// How often the receiver of this may send again when there is no receive, 3 bits; 7: without
    /// end.
    pub rnr_retry: u8,
    /// The sender's receives are in an SRQ.
    pub has_srq: bool,
    /// The sender's device.
    pub device: u64,
    /// For the application.
    pub private: Private<196>,
}

impl Reply {
    /// The queue pair that the receiver is connected with.
    pub fn peer(&self, kind: Kind) -> Qpn {
        match kind {
            Kind::Plain => self.queue_pair,
            Kind::Extended => Qpn(self.context),
        }
    }

    pub(crate) fn read(fields: &Fields) -> Reply {
        let [high, middle, low] = [fields.u8(15), fields.u8(19), fields.u8(23)];
        Reply {
            communication: fields.u32(0),
            remote: fields.u32(4),
            queue_key: Qkey(fields.u32(8)),
            queue_pair: Qpn(fields.u24(12)),
            vendor: u32::from_be_bytes([0, high, middle, low]),
            options: 0,
            context: fields.u24(16),
            psn: Psn::new(fields.u24(20)),
            responder_resources: fields.u8(24),
            initiator_depth: fields.u8(25),
            ack_delay: fields.u8(26) >> 3,
            failover: fields.u8(26) >> 1 & 3,
            has_flow_control: fields.u8(26) & 1 != 0,
            rnr_retry: fields.u8(27) >> 5,
            has_srq: fields.u8(27) & 0x10 != 0,
            device: fields.u64(28),
            private: fields.array(36),
        }
    }

    pub(crate) fn write(&self, fields: &mut Fields) {
        let [_, high, middle, low] = self.vendor.to_be_bytes();
        fields.set_u32(0, self.communication);
        fields.set_u32(4, self.remote);
        fields.set_u32(8, self.queue_key.0);
        fields.set_u24(12, self.queue_pair.0);
        fields.set_u8(15, high);
        fields.set_u24(16, self.context);
        fields.set_u8(19, middle);
        fields.set_u24(20, self.psn.number());
        fields.set_u8(23, low);
        fields.set_u8(24, self.responder_resources);
        fields.set_u8(25, self.initiator_depth);
        let flow_control = u8::from(self.has_flow_control);
        fields.set_u8(26, self.ack_delay << 3 | (self.failover & 3) << 1 | flow_control);
        fields.set_u8(27, self.rnr_retry << 5 | u8::from(self.has_srq) << 4);
        fields.set_u64(28, self.device);
        fields.set(36, self.private);
    }
}
