//! What the tables tell the daemon to do, and what the daemon tells them beside a message.

use crate::directory::Underlay;
use crate::ids::{ProbeId, SessionId, VnicId};
use crate::layout::{FileId, Place};
use crate::path::Path;
use omniverb_session::Message;
use omniverb_session::body::{Adopt, GrantDenied, Granted, LinkReady};
use omniverb_terms::{Gid, Qpn, Service};
use std::net::IpAddr;

/// Which of a client's two sockets a message came on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// The client asks, the daemon answers.
    Calls,
    /// The daemon tells, the client answers `Adopted`.
    Events,
}

/// What the daemon found out about a memory file that came with a message, or about its own that
/// an owner was to move pages onto.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFacts {
    /// It cannot be resized, and its seals are final.
    pub sound: bool,
    /// No writable mapping of it can be made any more.
    pub write_sealed: bool,
}

/// A message as it arrived.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// On which socket.
    pub channel: Channel,
    /// The caller's number for it.
    pub tag: u64,
    /// What it says.
    pub message: Message,
    /// What came along, if it is a message that brings memory.
    pub memory: Option<MemoryFacts>,
}

/// One end of a new link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkEnd {
    /// Whom to tell.
    pub session: SessionId,
    /// What to tell.
    pub ready: LinkReady,
}

/// A new link between a queue pair and the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireEnd {
    /// Whom to tell.
    pub session: SessionId,
    /// The queue pair's vNIC.
    pub vnic: VnicId,
    /// Its transport service.
    pub service: Service,
    /// The way to the peer.
    pub underlay: Underlay,
    /// The peer is on this host and reached without the network.
    pub within: bool,
    /// What the other Omniverb said about itself; 0: it is none, as far as we know.
    pub features: u32,
    /// What to tell; the engine has the other side.
    pub ready: LinkReady,
}

/// One end of a link that tells what it requests, as whoever reads it must know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedEnd {
    /// Who tells.
    pub session: SessionId,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The peer.
    pub peer_qpn: Qpn,
    /// Transport service of both.
    pub service: Service,
    /// Its vNIC and the peer's.
    pub vnics: [VnicId; 2],
    /// The way to the peer, if it led through the network.
    pub underlay: Underlay,
}

/// A link, as the audit is told of it; of two ends the first is the one that is told about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audited {
    /// It was made; otherwise it has ended.
    pub linked: bool,
    /// Transport service of both.
    pub service: Service,
    /// How data travels.
    pub path: Path,
    /// The queue pairs.
    pub qpns: [Qpn; 2],
    /// Their vNICs, if they are on this host.
    pub vnics: [Option<VnicId>; 2],
    /// Pid and user of their processes, if they are on this host.
    pub clients: [Option<(i32, u32)>; 2],
    /// Their GIDs, if the link was made by this daemon.
    pub gids: [Option<Gid>; 2],
}

/// Something for the daemon to do, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Answer a call. With `Message::Welcome` goes the new events socket.
    Reply {
        /// To whom.
        session: SessionId,
        /// Of which call.
        tag: u64,
        /// The answer.
        message: Message,
    },
    /// Tell something that has no descriptors.
    Event {
        /// To whom.
        session: SessionId,
        /// What.
        message: Message,
    },
    /// Something was kept from a session that is behind: is it still? See [`Tenancy::behind`].
    ///
    /// [`Tenancy::behind`]: crate::Tenancy::behind
    LookAgain {
        /// The session.
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
    /// and tell the other. If that fails, call `Tenancy::wire_failed`.
    AttachEngine(Box<WireEnd>),
    /// A link to the engine has ended.
    DetachEngine {
        /// Its queue pair's vNIC.
        vnic: VnicId,
        /// Its queue pair.
        qpn: Qpn,
        /// The peer.
        peer_qpn: Qpn,
    },
    /// Make memory for a session to tell through what is captured, have it read, and give it to
    /// the session.
    BeginTrace {
        /// Whose.
        session: SessionId,
    },
    /// Read that memory to its end, and no longer.
    EndTrace {
        /// Whose.
        session: SessionId,
    },
    /// What a session tells of this end of a link is sound.
    Trace(Box<TracedEnd>),
    /// It no longer is, once what it has told is read.
    Untrace {
        /// Whose.
        session: SessionId,
        /// The end's queue pair.
        qpn: Qpn,
        /// Its peer.
        peer_qpn: Qpn,
    },
    /// Ask an owner to move pages onto a memory file, which is kept until `ForgetFile`. If it
    /// cannot be made, call `Tenancy::memory_failed`.
    Adopt {
        /// The owner.
        session: SessionId,
        /// What to ask.
        adopt: Adopt,
        /// The file.
        file: FileId,
        /// Make it first, of so many bytes.
        new_file: Option<u64>,
    },
    /// Nobody will be granted any of this memory file any more: close it, where nobody waits for
    /// that.
    ForgetFile {
        /// Which.
        file: FileId,
    },
    /// Nobody will be granted this part of a memory file any more, but other parts: empty it, since
    /// somebody else gets it.
    EmptyPlace {
        /// Which.
        place: Place,
    },
    /// Pass on a right, and the memory file that holds what it is to.
    Grant {
        /// To whom.
        session: SessionId,
        /// Which.
        file: FileId,
        /// What to say with it.
        granted: Granted,
    },
    /// Map some of a memory file in the engine, for a link that it has. `qpn` of it is the owner's
    /// queue pair, `peer_qpn` the one beyond the engine.
    GrantEngine {
        /// Which.
        file: FileId,
        /// The owner's vNIC.
        vnic: VnicId,
        /// What.
        granted: Granted,
    },
    /// Tell the engine that what it wanted is not granted, or not yet.
    DenyEngine {
        /// The owner's vNIC.
        vnic: VnicId,
        /// `qpn` of it is the owner's queue pair.
        denied: GrantDenied,
    },
    /// Send a handshake datagram, a few times, and report back with `Tenancy::probe_arrived`,
    /// `probe_replied`, `probe_unanswered` or `probe_failed`.
    Probe {
        /// Goes into the datagram.
        id: ProbeId,
        /// From this vNIC's network namespace.
        vnic: VnicId,
        /// Through this interface if the destination is link-local.
        interface: u32,
        /// To this address.
        destination: IpAddr,
    },
    /// Nobody waits for this probe any more.
    ForgetProbe {
        /// Which.
        id: ProbeId,
    },
    /// Read the vNIC's addresses and report with `Tenancy::addresses`.
    ReadAddresses {
        /// Whose.
        vnic: VnicId,
    },
    /// Open the vNIC's handshake sockets if they are not open yet.
    OpenPort {
        /// Whose.
        vnic: VnicId,
    },
    /// Write down that a link was made or has ended.
    Audit(Box<Audited>),
    /// Break with a client that does not keep to the protocol.
    Drop {
        /// Whom.
        session: SessionId,
        /// What it did.
        reason: &'static str,
    },
    /// The vNIC has no clients any more: let go of its namespace and sockets.
    VnicGone {
        /// Which.
        vnic: VnicId,
    },
}
