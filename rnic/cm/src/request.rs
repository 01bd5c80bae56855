//! Encodes REQ, which asks for a connection (12.6.5).

use crate::Private;
use crate::big_endian_fields::Fields;
use crate::connection_kind::Kind;
use crate::request_path::Path;
use omniverb_terms::{Psn, Qkey, Qpn, Service};

/// What kind of connection: transport services, and what no queue pair here has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Of queue pairs with this service, at the end that asks: of XRC that is the one that sends.
    /// (Datagrams need no connection; a REQ for them says that it is for something newer.)
    Of(Service),
    /// Reliable datagrams.
    ReliableDatagram,
    /// Something newer, by its number.
    Extended(u8),
}

/// The newer kind that is an extended reliable connection.
const EXTENDED_RELIABLE: u8 = 1;

/// What REQ says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The sender's name for the connection.
    pub communication: u32,
    /// Vendor of the options, 24 bits; zero: there are none.
    pub vendor: u32,
    /// Options of "enhanced connection establishment"; they travel in the header's modifier.
    pub options: u32,
    /// Whom to talk to.
    pub service: u64,
    /// The sender's device.
    pub device: u64,
    /// Q_Key, for datagrams.
    pub queue_key: Qkey,
    /// The sender's QP.
    pub queue_pair: Qpn,
    /// READs and atomics the sender can serve at a time.
    pub responder_resources: u8,
    /// READs and atomics the sender wants to have under way.
    pub initiator_depth: u8,
    /// The sender's and the receiver's end-to-end contexts.
    pub contexts: (u32, u32),
    /// How long the sender waits for the receiver's manager, 5 bits.
    pub remote_timeout: u8,
    /// How long the sender's manager takes to answer, 5 bits.
    pub local_timeout: u8,
    /// Kind of connection.
    pub transport: Transport,
    /// Whether end-to-end credits are used.
    pub has_flow_control: bool,
    /// The first PSN that the *receiver* of this is to use: what the sender's queue pair
    /// expects (12.6.5, "starting PSN").
    pub psn: Psn,
    /// How often the receiver of this may send again what is not answered, 3 bits.
    pub retry_count: u8,
    /// P_Key of the connection.
    pub partition_key: u16,
    /// Path MTU as the verbs' enumeration, 4 bits: 1 is 256, 5 is 4096.
    pub path_mtu: u8,
    /// Reliable datagram channels exist.
    pub has_datagram_channels: bool,
    /// How often the receiver of this may send again when there is no receive, 3 bits; 7: without
    /// end.
    pub rnr_retry: u8,
    /// How often managers repeat themselves, 4 bits.
    pub manager_retries: u8,
    /// The sender's receives are in an SRQ.
    pub has_srq: bool,
    /// The path to use.
    pub primary: Path,
    /// The path to migrate to; absent if its remote LID is zero.
    pub alternate: Path,
    /// Whether the alternate path may be proposed by the receiver.
    pub may_propose_path: bool,
    /// For the application; RDMA-CM puts an [`crate::IpHeader`] first.
    pub private: Private<92>,
}

impl Request {
    /// What it is for. What no queue pair here has is nothing special.
    pub(crate) fn kind(&self) -> Kind {
        match self.transport {
            Transport::Of(service) => Kind::of(service),
            _ => Kind::Plain,
        }
    }

    pub(crate) fn read(fields: &Fields) -> Request {
        let (timeouts, retries, mtu, last) =
            (fields.u8(43), fields.u8(47), fields.u8(50), fields.u8(51));
        let transport = match (timeouts >> 1 & 3, last & 7) {
            (0, _) => Transport::Of(Service::Rc),
            (1, _) => Transport::Of(Service::Uc),
            (2, _) => Transport::ReliableDatagram,
            (_, EXTENDED_RELIABLE) => Transport::Of(Service::XrcSend),
            (_, extended) => Transport::Extended(extended),
        };
        Request {
            communication: fields.u32(0),
            vendor: fields.u24(5),
            options: 0,
            service: fields.u64(8),
            device: fields.u64(16),
            queue_key: Qkey(fields.u32(28)),
            queue_pair: Qpn(fields.u24(32)),
            responder_resources: fields.u8(35),
            initiator_depth: fields.u8(39),
            contexts: (fields.u24(36), fields.u24(40)),
            remote_timeout: timeouts >> 3,
            local_timeout: retries >> 3,
            transport,
            has_flow_control: timeouts & 1 != 0,
            psn: Psn::new(fields.u24(44)),
            retry_count: retries & 7,
            partition_key: fields.u16(48),
            path_mtu: mtu >> 4,
            has_datagram_channels: mtu & 8 != 0,
            rnr_retry: mtu & 7,
            manager_retries: last >> 4,
            has_srq: last & 8 != 0,
            primary: Path::read(fields, 52),
            alternate: Path::read(fields, 96),
            may_propose_path: fields.u8(139) & 4 != 0,
            private: fields.array(140),
        }
    }

    pub(crate) fn write(&self, fields: &mut Fields) {
        let flag = |set: bool, bit: u8| u8::from(set) << bit;
        let (transport, extended) = match self.transport {
            Transport::Of(Service::Rc) => (0, 0),
            Transport::Of(Service::Uc) => (1, 0),
            Transport::ReliableDatagram => (2, 0),
            Transport::Of(Service::Ud) => (3, 0),
            Transport::Of(Service::XrcSend | Service::XrcRecv) => (3, EXTENDED_RELIABLE),
            Transport::Extended(extended) => (3, extended & 7),
        };
        fields.set_u32(0, self.communication);
        fields.set_u24(5, self.vendor);
        fields.set_u64(8, self.service);
        fields.set_u64(16, self.device);
        fields.set_u32(28, self.queue_key.0);
        fields.set_u24(32, self.queue_pair.0);
        fields.set_u8(35, self.responder_resources);
        fields.set_u24(36, self.contexts.0);
        fields.set_u8(39, self.initiator_depth);
        fields.set_u24(40, self.contexts.1);
        fields
            .set_u8(43, self.remote_timeout << 3 | transport << 1 | flag(self.has_flow_control, 0));
        fields.set_u24(44, self.psn.number());
        fields.set_u8(47, self.local_timeout << 3 | self.retry_count & 7);
        fields.set_u16(48, self.partition_key);
        let channels = flag(self.has_datagram_channels, 3);
        fields.set_u8(50, self.path_mtu << 4 | channels | self.rnr_retry & 7);
        let shared = flag(self.has_srq, 3);
        fields.set_u8(51, self.manager_retries << 4 | shared | extended);
        self.primary.write(fields, 52);
        self.alternate.write(fields, 96);
        fields.set_u8(139, fields.u8(139) | flag(self.may_propose_path, 2));
        fields.set(140, self.private);
    }
}
