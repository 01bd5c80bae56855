//! Defines commands of the control plane to the engine, and events back.

use crate::capture_recorder::packet_queue::PacketQueue;
use crate::kept_memory_limits::HolderPath;
use crate::network::tenants_by_address::TenantsByAddress;
use crate::network::virtual_network_senders::NetworkPlaces;
use omniverb_link::page_grant_pacing::Denial;
use omniverb_pacer::{Limit, SharedLimiter};
use omniverb_psp::TenantKey;
use omniverb_psp::tunnel::Refusal;
use omniverb_ring::Window;
use omniverb_sys::udp_socket::UdpPort;
use omniverb_sys::{Access, Extent};
use omniverb_terms::{Operations, Qpn, Rkey, Service, UnderlayRoute, VnicId};
use omniverb_transport::Status;
use omniverb_transport::fault_injection::Faults;
use omniverb_wire::PortNotice;
use std::any::Any;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Memory of a link or of a doorbell.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Where it is.
    pub extent: Extent,
    /// A value that is kept as long as the memory is mapped.
    pub keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl Row {
    /// How many bytes these are.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.length).sum()
    }
}

impl Memory {
    pub(crate) fn map_exactly(&self, bytes: usize) -> io::Result<Window> {
        self.extent.map_exactly_and_keep(bytes, Access::ReadWrite, self.keep.clone())
    }
}

/// A link whose far end (side 1) is the engine.
#[derive(Debug)]
pub struct Attach {
    /// The vNIC of the application's QP.
    pub vnic: VnicId,
    /// The application's QP.
    pub qpn: Qpn,
    /// The QP at the other side of the network.
    pub peer_qpn: Qpn,
    /// Transport service of both.
    pub service: Service,
    /// The way to the peer.
    pub underlay: UnderlayRoute,
    /// The link's memory.
    pub link: Memory,
    /// Bytes of a request ring.
    pub request_bytes: usize,
    /// Bytes of a response ring.
    pub response_bytes: usize,
    /// The doorbell the link belongs to.
    pub bell: u64,
    /// The doorbell's memory, if it is new: two pages, of which ours is the second.
    pub bell_memory: Option<Memory>,
    /// Our bit in our page of the doorbell.
    pub local_slot: u32,
    /// The application's bit in its page.
    pub peer_slot: u32,
    /// The peer's vNIC, if it is one of this engine: packets are handed over without the network.
    pub within: Option<VnicId>,
    /// Features of the other Omniverb; zero for plain RoCE v2.
    pub features: u32,
    /// Operations that the application may not request of the peer.
    pub refused: Operations,
    /// The UDP port of the peer that packets go to.
    pub peer_port: u16,
    /// The application's process has carried the link: the state of its connection, as that
    /// process says; empty: no packet was sent or taken. `None`: the link is new.
    pub handover: Option<Box<[u8]>>,
}

/// How packets of a vNIC are encrypted.
#[derive(Clone, Debug)]
pub struct Encryption {
    /// The port of PSP in its network namespace. `None`: it could not be opened, and nothing
    /// passes.
    pub port: Option<Arc<UdpPort>>,
    /// The keys of its tenant, the newest first.
    pub keys: Vec<TenantKey>,
    /// The lifetime of a master key.
    pub lifetime: Duration,
}

/// The right of one link to a part of a region, and the pages that hold it.
#[derive(Debug)]
pub struct Grant {
    /// The vNIC of the application's QP.
    pub vnic: VnicId,
    /// The application's QP.
    pub qpn: Qpn,
    /// The QP at the other side of the network.
    pub peer_qpn: Qpn,
    /// R_Key of the region, as the peer names it.
    pub key: Rkey,
    /// `IBV_ACCESS_*`: what it may be used for.
    pub access: u32,
    /// The application's address of the region, and its bytes.
    pub region: (u64, u64),
    /// The application's address of the first page in `memory`.
    pub start: u64,
    /// Low half of the application's EPOCH when it gave them.
    pub epoch: u32,
    /// The pages, some of the region's whole ones.
    pub memory: Pages,
}

/// Where pages are that a link is granted.
#[derive(Clone, Debug)]
pub enum Pages {
    /// In a file to which they were moved, side by side.
    Moved(Extent),
    /// Where they were, in a virtual machine's memory.
    InPlace(Arc<Row>),
}

/// Pages that stay where they are, in their owner's order. Each mapping keeps this, and no other
/// process gets the pages as long as one does.
#[derive(Debug)]
pub struct Row {
    /// Parts of the machine's memory.
    pub parts: Vec<Extent>,
    /// A value that is dropped after them.
    pub keep: Option<Arc<dyn Any + Send + Sync>>,
}

/// The recipient of a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// A peer of one of our ids.
    Known,
    /// A sender whose message no id waits for: the rate of answers is limited.
    Stranger,
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitUnit {
    /// Bytes of Ethernet frames.
    Bytes,
    /// Operations: messages, READs and atomics. Each counts once, when its first packet leaves, and
    /// as [`omniverb_pacer::OPERATION`] bytes.
    Operations,
}

/// One for each [`LimitUnit`].
#[derive(Clone, Copy, Debug, Default)]
pub struct PerUnit<T> {
    /// That of bytes.
    pub bytes: T,
    /// That of operations.
    pub operations: T,
}

impl<T> PerUnit<T> {
    /// That of a unit.
    pub fn of(&mut self, unit: LimitUnit) -> &mut T {
        match unit {
            LimitUnit::Bytes => &mut self.bytes,
            LimitUnit::Operations => &mut self.operations,
        }
    }
}

/// A group of vNICs that share a limit: a tenant, or a policy whose limit is for all together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitGroup(pub u64);

/// Something to do. Commands take effect in the order they are sent.
#[derive(Debug)]
pub enum Command {
    /// Serve a vNIC with these sockets.
    OpenVnic {
        /// One that is not served yet.
        vnic: VnicId,
        /// Opened in its network namespace.
        port: Arc<UdpPort>,
        /// The holder that memory kept for it counts for.
        holder: HolderPath,
        /// The number of its queue pair 1 in packets.
        services: Qpn,
    },
    /// The vNIC is gone; its links go with it.
    CloseVnic {
        /// One that is served.
        vnic: VnicId,
    },
    /// Limits what the vNIC sends, or no longer does.
    SetLimit {
        /// What it counts. The limits of the two units do not know each other.
        unit: LimitUnit,
        /// One that is served.
        vnic: VnicId,
        /// `None`: as much as it likes.
        limit: Option<Limit>,
        /// A group that it is in, which has a limit of its own. If there is none of this name, the
        /// vNIC sends nothing ([`Event::LimitRefused`]).
        group: Option<LimitGroup>,
    },
    /// There is a group of vNICs, or it has another limit. It holds for all packet threads.
    SetGroup {
        /// What its limit counts. Each unit has groups of its own.
        unit: LimitUnit,
        /// A new one, or one that there is.
        group: LimitGroup,
        /// The group that a new one is in, which there has to be. That does not change.
        within: Option<LimitGroup>,
        /// The common limit of all of them; `None`: unlimited. Several groups may share one. A
        /// changed one is sent again.
        limit: Option<SharedLimiter>,
    },
    /// A group is not used any more. Its limit holds until the last vNIC has left it.
    CloseGroup {
        /// What its limit counts.
        unit: LimitUnit,
        /// One that there is.
        group: LimitGroup,
    },
    /// Does something to packets that arrive for the vNIC, as a bad network would, or no longer.
    SetFaults {
        /// One that is served.
        vnic: VnicId,
        /// The faults, and the seed that decides which packets they hit; `None`: none.
        faults: Option<Box<(Faults, u64)>>,
    },
    /// Encrypts what the vNIC exchanges with other addresses, or no longer.
    SetEncryption {
        /// One that is served.
        vnic: VnicId,
        /// `None`: packets are in plain.
        encryption: Option<Box<Encryption>>,
    },
    /// Copies of what is sent to groups come to a vNIC of a virtual network from these alone.
    SetPlaces {
        /// One that is served.
        vnic: VnicId,
        /// All vNICs of its virtual network.
        places: Arc<NetworkPlaces>,
    },
    /// A vNIC without a virtual network hears only such senders to groups.
    SetGroupSenders {
        /// One that is served.
        vnic: VnicId,
        /// The number of its tenant, and the addresses of all; `None`: anything is heard.
        senders: Option<(u32, Arc<TenantsByAddress>)>,
    },
    /// Serve a link.
    Attach(Box<Attach>),
    /// The application may not ask the peer for these from now on, and for all others.
    Refuse {
        /// The vNIC of the application's QP.
        vnic: VnicId,
        /// The application's QP.
        qpn: Qpn,
        /// The QP it is linked with.
        peer_qpn: Qpn,
        /// Operations that fail as at a QP that lacks the access flag; datagrams are dropped.
        refused: Operations,
    },
    /// Packets of a link go to this UDP port of its peer's from now on.
    SetPeerPort {
        /// The vNIC of the application's QP.
        vnic: VnicId,
        /// The application's QP.
        qpn: Qpn,
        /// The QP it is linked with.
        peer_qpn: Qpn,
        /// The port of the peer's process, or 4791.
        port: u16,
    },
    /// The link is closed.
    Detach {
        /// The application's QP.
        qpn: Qpn,
        /// The QP it was linked with.
        peer_qpn: Qpn,
    },
    /// Pages that a link wanted, if it has not gone meanwhile.
    Grant(Box<Grant>),
    /// These are granted no longer, whatever their owner's EPOCH is, which others may write.
    Withdraw {
        /// Of which vNIC they are.
        vnic: VnicId,
        /// As they were granted.
        row: Arc<Row>,
    },
    /// Nothing of what was wanted for a link is granted.
    Deny {
        /// The vNIC of the application's QP.
        vnic: VnicId,
        /// The application's QP.
        qpn: Qpn,
        /// The QP it is linked with.
        peer_qpn: Qpn,
        /// R_Key of the region.
        key: Rkey,
        /// For how long.
        denied: Denial,
    },
    /// Send a management datagram from queue pair 1 to queue pair 1.
    Manage {
        /// One that is served.
        vnic: VnicId,
        /// Between which addresses, and by which interface, it leaves.
        underlay: UnderlayRoute,
        /// The number of queue pair 1 at the other end.
        services: Qpn,
        /// The datagram to send.
        datagram: Box<[u8]>,
        /// The recipient, which decides its limit.
        recipient: Recipient,
    },
    /// Leave copies of all packets of a vNIC here from now on, or no longer.
    Capture {
        /// One that is served.
        vnic: VnicId,
        /// Takes the packets; `None`: no capture wants them.
        queue: Option<Arc<PacketQueue>>,
    },
    /// Drops the counters of a vNIC's ended links. Those that were told to end before have done so
    /// by then.
    ForgetCounted {
        /// One that is no more, or that another has the name of now.
        vnic: VnicId,
    },
}

/// Something that happened, as the control plane is told; some are lost when there are too many.
#[derive(Debug)]
pub enum Event {
    /// The number of a question that is under way ([`crate::Engine::expect`]) came.
    Answered {
        /// That of the question.
        number: u128,
        /// At whose sockets it arrived.
        at: VnicId,
        /// The address that it came from.
        from: IpAddr,
        /// Features of the other Omniverb, in a reply; `None`: this is the probe itself.
        features: Option<u32>,
    },
    /// A management datagram for queue pair 1.
    Management {
        /// At whose sockets it arrived.
        vnic: VnicId,
        /// The queue pair that it says it is from: 1, where names are addresses.
        source: Qpn,
        /// The way it came, which is the way back.
        underlay: UnderlayRoute,
        /// The payload; the packet's ICRC and Q_Key are right.
        datagram: Vec<u8>,
        /// It answers what was sent there as [`Recipient::Known`].
        is_answer: bool,
    },
    /// A datagram for a UD QP from a sender it has no link with. It is kept for a moment.
    Stranger {
        /// At whose sockets it arrived.
        vnic: VnicId,
        /// The application's QP, which is UD.
        qpn: Qpn,
        /// The QP that it says it is from.
        source_qpn: Qpn,
        /// The way it came, which is the way back.
        underlay: UnderlayRoute,
    },
    /// A peer names a key of the application. Its accesses go through the application until a grant
    /// comes, if one comes.
    Wanted {
        /// The application's QP.
        qpn: Qpn,
        /// The QP at the other side of the network.
        peer_qpn: Qpn,
        /// R_Key of the region.
        key: Rkey,
        /// From where on, and how many bytes; `u64::MAX`: to its end.
        range: (u64, u64),
    },
    /// Pages that stay where they are were granted for a link, and cannot be mapped: there is no
    /// room for so many places, or the kernel refuses. The link goes on through the application.
    NotMapped {
        /// The application's QP.
        qpn: Qpn,
        /// The QP at the other side of the network.
        peer_qpn: Qpn,
        /// R_Key of the region.
        key: Rkey,
        /// Where the pages begin for the application.
        start: u64,
    },
    /// The limit of a vNIC cannot be put in place: it sends nothing until another one is.
    LimitRefused {
        /// One that is served.
        vnic: VnicId,
        /// What the limit counts.
        unit: LimitUnit,
    },
    /// The process that carries a vNIC's port has sent a message that ends it: one with
    /// descriptors, or an empty one. It is watched no longer.
    PortOver {
        /// The vNIC that has lost its network.
        vnic: VnicId,
    },
    /// An address gets nothing of a vNIC whose packets are encrypted, or does again.
    Encryption {
        /// One whose packets are encrypted.
        vnic: VnicId,
        /// The address of another host.
        remote: IpAddr,
        /// Why it gets nothing; `None`: it has answered.
        refusal: Option<Refusal>,
    },
    /// A notice of ports came from another Omniverb.
    PortNotice {
        /// The vNIC that it came to.
        vnic: VnicId,
        /// The address that it came from.
        from: IpAddr,
        /// What it says.
        notice: PortNotice,
    },
    /// A link that its process gave cannot be served.
    NotServed {
        /// The application's QP.
        qpn: Qpn,
        /// The QP at the other side of the network.
        peer_qpn: Qpn,
    },
    /// A QP's connection failed.
    Failed {
        /// The application's QP.
        qpn: Qpn,
        /// The QP at the other side of the network.
        peer_qpn: Qpn,
        /// The completion status of its requests.
        status: Status,
    },
}

/// The engine's counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCounters {
    /// Packets sent, acknowledgements among them.
    pub sent_packets: u64,
    /// Bytes of UDP payload sent.
    pub sent_bytes: u64,
    /// Packets received whose ICRC was right.
    pub received_packets: u64,
    /// Bytes of UDP payload received.
    pub received_bytes: u64,
    /// Packets sent again, of those above.
    pub resent_packets: u64,
    /// Packets that arrived again, of those above.
    pub duplicate_packets: u64,
    /// Packets that could not be sent, of those sent.
    pub unsent_packets: u64,
    /// Gaps before requests of the peer, each counted once.
    pub out_of_order: u64,
    /// RNR NAKs received.
    pub not_ready_heard: u64,
    /// RNR NAKs sent.
    pub not_ready_said: u64,
    /// NAKs received that told of a gap in what was sent.
    pub gaps_heard: u64,
    /// Times that sending began anew.
    pub retries: u64,
    /// Packets that the congestion window lets be under way now.
    pub window: u64,
    /// WRITEs and READs of the peer that were executed on mapped pages.
    pub mapped_operations: u64,
    /// Requests of the application whose payload was taken from where it was.
    pub in_place: u64,
}

impl QpCounters {
    /// Adds up the packets of two links.
    pub fn add(&mut self, other: &QpCounters) {
        self.sent_packets += other.sent_packets;
        self.sent_bytes += other.sent_bytes;
        self.received_packets += other.received_packets;
        self.received_bytes += other.received_bytes;
        self.resent_packets += other.resent_packets;
        self.duplicate_packets += other.duplicate_packets;
        self.unsent_packets += other.unsent_packets;
        self.out_of_order += other.out_of_order;
        self.not_ready_heard += other.not_ready_heard;
        self.not_ready_said += other.not_ready_said;
        self.gaps_heard += other.gaps_heard;
        self.retries += other.retries;
        self.mapped_operations += other.mapped_operations;
        self.in_place += other.in_place;
    }
}
