//! Lists the actions that the tables tell the daemon to take, and the daemon's inputs beside
//! messages.

use crate::links::socket_relation_refusal::RelationRefusal;
use crate::memory::extent_file_allocator::{FileId, FileRange, PageHome};
use crate::qp_data_path::Path;
use crate::row_keys::{ProbeId, SessionId};
use crate::rules::vnic_rules::Refusal;
use omniverb_session::Message;
use omniverb_session::body::{Adopt, GrantDenied, Granted, LinkReady, Pin, Welcome};
use omniverb_terms::{Operations, Qpn, RouteKey, Service, UnderlayRoute, VnicId};
use omniverb_wire::PortNotice;
use std::net::IpAddr;

/// Which of a client's two sockets a message came on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// The client asks, the daemon answers.
    Calls,
    /// The daemon tells, the client answers `Adopted`.
    Events,
}

/// The daemon's findings about a memory file that came with a message, or about its own that an
/// owner was to move pages onto.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFacts {
    /// It cannot be resized, and its seals are final.
    pub is_final: bool,
    /// No writable mapping of it can be made any more.
    pub is_write_sealed: bool,
}

/// A message as it arrived.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// The socket that it came on.
    pub channel: Channel,
    /// The caller's number for it.
    pub tag: u64,
    /// The decoded message; it is not trusted yet.
    pub message: Message,
    /// Of an `Adopted`: how the file is now that the owner was given. `None` for all others.
    pub memory: Option<MemoryFacts>,
}

/// One end of a new link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkEnd {
    /// The process that has this end.
    pub session: SessionId,
    /// The event for it, but for the places of the memory, which the daemon makes.
    pub ready: LinkReady,
}

/// A new link between a queue pair and the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineEnd {
    /// The queue pair's process.
    pub session: SessionId,
    /// The vNIC of that process.
    pub vnic: VnicId,
    /// The queue pair's transport service.
    pub service: Service,
    /// The way to the peer.
    pub underlay: UnderlayRoute,
    /// The peer's vNIC, if that is on this host and reached without the network.
    pub within: Option<VnicId>,
    /// The features that the other Omniverb has announced; 0: it is none, as far as is known.
    pub features: u32,
    /// Operations that the queue pair may not request of the peer.
    pub refused: Operations,
    /// The event for the process, which has side 0; the engine has side 1. Without the places of
    /// the memory, which the daemon makes.
    pub ready: LinkReady,
}

/// One end of a link that writes a trace of its requests, for the reader of traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedEnd {
    /// The process that writes.
    pub session: SessionId,
    /// Its queue pair, the requester.
    pub qpn: Qpn,
    /// The queue pair that they are for.
    pub peer_qpn: Qpn,
    /// Transport service of both.
    pub service: Service,
    /// The vNIC of this end, then that of the peer.
    pub vnics: [VnicId; 2],
    /// The way to the peer, if it led through the network.
    pub underlay: UnderlayRoute,
}

/// An event of a link for the audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// Data can travel on it from now on.
    Made,
    /// For whatever reason: the death of an end is one.
    Ended,
    /// A rule of a policy denies it, or a request of rdma_cm for it.
    Denied,
}

/// A link, for the audit. Of fields for both ends the first is that of the queue pair with the
/// smaller number, or of the one on this side of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audited {
    /// Whether it was made or ended.
    pub event: LinkEvent,
    /// What denies it, if a rule does.
    pub refusal: Option<Refusal>,
    /// Transport service of both.
    pub service: Service,
    /// How data travels on it.
    pub path: Path,
    /// The numbers of its queue pairs.
    pub qpns: [Qpn; 2],
    /// Their vNICs, if they are on this host.
    pub vnics: [Option<VnicId>; 2],
    /// Pid and user of their processes, if they are on this host.
    pub clients: [Option<(i32, u32)>; 2],
    /// The addresses that people call them by, if the link was made by this daemon.
    pub addresses: [Option<IpAddr>; 2],
}

/// The recipient of a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// The peer of an id of the vNIC's.
    Known,
    /// A sender that no id here leads to, and that may be forged: the rate of such answers is
    /// limited.
    Stranger,
}

/// Whether a process was granted anything in the same extent by the same link before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantOccasion {
    /// Nothing: if it does not hear of this it has nothing there.
    First,
    /// Something, which it keeps.
    Again,
}

/// Something for the daemon to do, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Accept a hello: with the answer go the process's events socket and its statistics area.
    Welcome {
        /// The process that said hello.
        session: SessionId,
        /// The number that it gave the call.
        tag: u64,
        /// The answer, without the place of the area.
        welcome: Welcome,
    },
    /// Answer a call.
    Reply {
        /// The process that called.
        session: SessionId,
        /// The number that the caller gave the call.
        tag: u64,
        /// The answer, or `Failed` with an errno.
        message: Message,
    },
    /// Tell a process something that has no descriptors, on its events socket.
    Event {
        /// The session that gets it.
        session: SessionId,
        /// The event, as it is sent.
        message: Message,
    },
    /// Something was kept from a session that is behind: is it still? See [`Tenancy::set_pace`].
    ///
    /// [`Tenancy::set_pace`]: crate::Tenancy::set_pace
    LookAgain {
        /// Of which the tables believe that it is behind.
        session: SessionId,
    },
    /// Make link memory (and bell memory and wakes if `bell_new`) and tell both ends. If that
    /// fails, call `Tenancy::link_failed`.
    CreateLink {
        /// The end on side 0.
        first: LinkEnd,
        /// The end on side 1.
        second: LinkEnd,
    },
    /// Make link memory (and bell memory and wakes if `bell_new`), give one end to the engine
    /// and tell the other. If that fails, call `Tenancy::engine_link_failed`.
    AttachEngine(Box<EngineEnd>),
    /// Have the engine serve a link that its process carried, with this state of its connection;
    /// empty: it is new. If that fails, call `Tenancy::carried_link_lost`.
    AttachCarried {
        /// The queue pair on this side.
        qpn: Qpn,
        /// The number of the peer beyond.
        peer_qpn: Qpn,
        /// The UDP port that the peer's packets go to.
        peer_port: u16,
        /// As its process gave it; any bytes.
        state: Box<[u8]>,
    },
    /// Packets of a link that the engine serves go to this UDP port of its peer's from now on.
    SetPeerPort {
        /// The vNIC of its queue pair.
        vnic: VnicId,
        /// The queue pair on this side.
        qpn: Qpn,
        /// The number of the peer beyond.
        peer_qpn: Qpn,
        /// The port of the peer's process, or 4791.
        port: u16,
    },
    /// Send a notice of ports from port 4791 of a vNIC to port 4791. It may be lost.
    SendNotice {
        /// One with processes, or that had some a moment ago.
        vnic: VnicId,
        /// The way to the peer.
        underlay: UnderlayRoute,
        /// As it is sent.
        datagram: [u8; PortNotice::BYTES],
    },
    /// A link to the engine has ended.
    DetachEngine {
        /// The vNIC of its queue pair, by which the engine finds it.
        vnic: VnicId,
        /// The queue pair on this side.
        qpn: Qpn,
        /// The number of the peer beyond: all links for that end.
        peer_qpn: Qpn,
    },
    /// The operations that a link to the engine refuses have changed. Its process was told.
    RefuseEngine {
        /// The vNIC of its queue pair, by which the engine finds it.
        vnic: VnicId,
        /// The queue pair on this side.
        qpn: Qpn,
        /// The number of the peer beyond: all links for that end.
        peer_qpn: Qpn,
        /// Operations that the peer may not request of the queue pair.
        inbound: Operations,
        /// Operations that the queue pair may not request of the peer.
        outbound: Operations,
    },
    /// Make memory for a session to write traces into, have it read, and give it to the session.
    BeginTrace {
        /// The process that is to write.
        session: SessionId,
    },
    /// Read that memory to its end, and no longer.
    EndTrace {
        /// The process that wrote.
        session: SessionId,
    },
    /// The session's traces of this end of a link count from now on.
    Trace(Box<TracedEnd>),
    /// They count no longer, once the written ones are read.
    Untrace {
        /// The process that wrote.
        session: SessionId,
        /// The end's queue pair.
        qpn: Qpn,
        /// The queue pair that it is linked with.
        peer_qpn: Qpn,
    },
    /// Ask an owner to move pages onto a memory file, which is kept until `ForgetFile`. If it
    /// cannot be made, call `Tenancy::memory_failed`.
    Adopt {
        /// The owner of the pages.
        session: SessionId,
        /// The event for it; its token names the question.
        adopt: Adopt,
        /// The kind of memory that the pages go to.
        home: PageHome,
        /// The file that the pages go to: of its kind.
        file: FileId,
        /// `Some`: make the file first, of so many bytes. `None`: it is there.
        new_file: Option<u64>,
    },
    /// Ask an owner to keep pages where they are, in its machine's memory. A number names them as
    /// it names a file, until `ForgetFile`. If the owner cannot be asked, call
    /// `Tenancy::memory_failed`.
    Pin {
        /// The owner of the pages.
        session: SessionId,
        /// The name of what holds them.
        file: FileId,
        /// The event for it; its token names the question.
        pin: Pin,
    },
    /// No client will be granted any of this memory file any more: close it, on a thread that may
    /// block.
    ForgetFile {
        /// The file of one or more `Adopt`s before.
        file: FileId,
        /// Call `Tenancy::file_gone` when no process has it open or mapped any more. If that cannot
        /// be known, never.
        watch: bool,
    },
    /// It does not matter any more whether a process has this file, which was closed before.
    Unwatch {
        /// The file of a `ForgetFile` before.
        file: FileId,
    },
    /// No client will be granted this part of a memory file any more, but other parts: empty it for
    /// its next owner.
    EmptyPlace {
        /// Where the extent of an `Adopt` before was.
        place: FileRange,
    },
    /// Pass on a grant, and the memory file that holds the pages.
    Grant {
        /// The process that may map it.
        session: SessionId,
        /// The file that holds the memory.
        file: FileId,
        /// The event for it, with the place in the file.
        granted: Granted,
        /// If it cannot be told, call `Tenancy::grant_failed` with all of this.
        occasion: GrantOccasion,
    },
    /// Map some of a memory file in the engine, for a link that it has. `qpn` of it is the owner's
    /// queue pair, `peer_qpn` the one beyond the engine.
    GrantEngine {
        /// The file that holds the memory.
        file: FileId,
        /// The vNIC of the owner, by which the engine finds the link.
        vnic: VnicId,
        /// The right, and the place in the file.
        granted: Granted,
    },
    /// Tell the engine that its request for pages is refused, or not granted yet.
    DenyEngine {
        /// The vNIC of the owner, by which the engine finds the link.
        vnic: VnicId,
        /// `qpn` of it is the owner's queue pair.
        denied: GrantDenied,
    },
    /// Sockets may be brought together as [`Tenancy::relate`] asked, or may not, or not any more:
    /// then it is over.
    ///
    /// [`Tenancy::relate`]: crate::Tenancy::relate
    Related {
        /// As the tables were asked.
        number: u64,
        /// Whether they may; what stands in the way.
        verdict: Result<(), RelationRefusal>,
    },
    /// Send a handshake datagram, a few times, and report back with `Tenancy::probe_arrived`,
    /// `probe_replied`, `probe_unanswered` or `probe_failed`.
    Probe {
        /// The number in the datagram, and in a reply to it.
        id: ProbeId,
        /// From this vNIC's network namespace.
        vnic: VnicId,
        /// Through this interface if the destination is link-local.
        interface: u32,
        /// From this address of it, and no other; `None`: whichever its kernel takes.
        source: Option<IpAddr>,
        /// The address of the underlay that is asked.
        destination: IpAddr,
        /// In which of several networks with such addresses; `None`: in the vNIC's own.
        key: Option<RouteKey>,
    },
    /// Nothing waits for this probe any more.
    ForgetProbe {
        /// The number that its `Probe` had.
        id: ProbeId,
    },
    /// Read the vNIC's addresses and report with `Tenancy::addresses`.
    ReadAddresses {
        /// The vNIC whose interfaces are to be read.
        vnic: VnicId,
    },
    /// Open the vNIC's handshake sockets if they are not open yet.
    OpenPort {
        /// The vNIC that is to be found from now on.
        vnic: VnicId,
    },
    /// Send a management datagram, from queue pair 1 of a vNIC to queue pair 1 at the other end of
    /// the way, if the vNIC's sockets are open. If not it is lost, as in a network.
    Manage {
        /// The vNIC that it comes from.
        vnic: VnicId,
        /// The route that it takes; the other end of it has the peer.
        underlay: UnderlayRoute,
        /// The number of queue pair 1 there: another one for a vNIC with a virtual address.
        services: Qpn,
        /// All 256 bytes of it, as they are sent.
        datagram: Box<[u8]>,
        /// The kind of recipient.
        to: Recipient,
    },
    /// Write down that a link was made or has ended.
    Audit(Box<Audited>),
    /// Break with a client that does not keep to the protocol.
    Drop {
        /// The session to disconnect.
        session: SessionId,
        /// The reason, for the log.
        reason: &'static str,
    },
    /// The vNIC has no clients any more: release its namespace and sockets.
    VnicGone {
        /// The vNIC, which may come again.
        vnic: VnicId,
    },
}
