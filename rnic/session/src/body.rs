//! The message bodies. Field order is wire order; there is no implicit padding.
//!
//! Naming: a message from the process is an imperative (`CreateQp`), the answer or event a
//! participle (`QpCreated`). A call that fails is answered with the errno in the header and no
//! body.

use crate::limits::{GIDS_MAX, MESSAGE_BYTES_MAX};
use crate::message_macros::bodies;
use crate::page_rights::PeerTrust;
use omniverb_terms::{Errno, Gid, Qpn, Rkey, Service};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `Hello::role`: a process that wants a device.
pub const ROLE_VERBS: u32 = 1;

/// `ConnectQp::resume`: a link to the peer queue pair's process survived a restart of the daemon.
pub const RESUME_LINK: u32 = 1;
/// `ConnectQp::resume`: the link led to the daemon's engine (`LinkReady::engine`) and is dead. The
/// daemon answers with a `LinkClosed` event whose reason is `CLOSED_BY_DEATH`.
pub const RESUME_WIRE: u32 = 2;

/// `ConnectQp::resume`: the link led to another host, and the process has carried it
/// ([`crate::carried_links`]). It goes on carrying it, or gets a `LinkClosed` event whose reason is
/// `CLOSED_BY_DEATH`. The new daemon's engine cannot be given it.
pub const RESUME_CARRIED: u32 = 3;

/// `Connected::ready`: the network is being asked where the destination is. Datagram queue pairs
/// only, whose destinations are many: nobody else of the process waits for that. Ask again in a
/// moment; how the network has answered is kept for a second at least.
pub const CONNECT_AGAIN: u32 = 2;

/// `LinkClosed::reason`: the peer destroyed or reset its QP.
pub const CLOSED_BY_PEER: u32 = 1;
/// `LinkClosed::reason`: the peer's process is gone.
pub const CLOSED_BY_DEATH: u32 = 2;
/// `LinkClosed::reason`: the network no longer lets the two reach each other, or an operator ended
/// the link. The memory both ends share would carry them on, so a connected QP fails at once, as
/// when its retries are over.
pub const CLOSED_BY_NETWORK: u32 = 3;

/// `TakeBack::what`: what was set for a vNIC forbids that pages stay granted. All of them, and no
/// others' are to be used any more.
pub const TAKE_ALL: u32 = 1;
/// `TakeBack::what`: somebody has lost the last link that he was granted this extent by. The daemon
/// has forgotten the extent; others who had it ask for another.
pub const TAKE_EXTENT: u32 = 2;

bodies! {
    /// Memory that two parties share: these bytes of the file whose descriptor comes along. Whole
    /// pages; whoever gets it checks that the file has them and can never lose them.
    Extent { offset: u64, length: u64 }

    /// The first message of a connection: nothing else is done before it is answered.
    Hello {
        /// `ROLE_*`.
        role: u32,
        /// Non-zero: a reconnection after the daemon went away; announcements follow.
        resume: u32,
        /// `comm` of the process, NUL-padded; shown by `omniverb status`, never trusted.
        name: [u8; 16],
    }
    /// Answer to `Hello`. Descriptors, for `ROLE_VERBS` only: this process's end of the events
    /// socket; the file of the statistics area (`STATISTICS_SLOTS * STATISTICS_SLOT_BYTES`), which
    /// the process writes and the daemon reads.
    Welcome {
        /// Unique while the daemon lives.
        session: u64,
        /// The device's node GUID, in network byte order; unique per vNIC and stable for the
        /// life of the vNIC.
        node_guid: [u8; 8],
        /// Quota: queue pairs this vNIC may hold.
        qp_max: u32,
        /// Quota: memory regions with remote access.
        mr_max: u32,
        /// Quota: links (a UD QP uses one per destination, an RC or UC QP one).
        link_max: u32,
        /// A number that the daemon has drawn when it began; zero: one that does not say.
        daemon: u32,
        /// vNIC name for people, NUL-padded.
        vnic: [u8; 32],
        /// The statistics area.
        area: Extent,
    }
    /// Ask for the GID table.
    QueryGids { reserved: u64 }
    /// Answer to `QueryGids`: a dense table.
    Gids {
        /// Entries that there are; the others are all zeros.
        count: u32,
        reserved: u32,
        entries: [GidEntry; GIDS_MAX],
    }
    /// One RoCE v2 GID.
    GidEntry {
        gid: Gid,
        /// The interface that has the address, by its number in the network namespace.
        ifindex: u32,
        /// The interface's MTU in bytes; zero if there is none to name.
        mtu: u32,
    }
    /// Ask for a queue pair number.
    CreateQp {
        /// A `Service::qp_type`; any other is refused with `EOPNOTSUPP`.
        qp_type: u32,
        /// The process's own number of the protection domain.
        pd: u32,
        /// Which statistics slot this QP writes.
        statistics_slot: u32,
        /// Zero, or with `resume`: the number to keep. Refused with `EPERM` without a valid ticket,
        /// with `EADDRINUSE` if taken.
        qpn: Qpn,
        /// With `qpn`: as in the answer that brought this number.
        issued: u64,
        /// With `qpn`: the ticket of that answer.
        ticket: [u8; 16],
    }
    /// Answer to `CreateQp`.
    QpCreated {
        qpn: Qpn,
        reserved: u32,
        /// When the number was given out: of two who were given the same, the later one has it.
        issued: u64,
        /// Proves to the next daemon that the number is this process's: only a daemon can make it,
        /// and it holds for this number and type, this network namespace and this user.
        ticket: [u8; 16],
    }
    /// Give a queue pair number back; closes its links.
    DestroyQp { qpn: Qpn, reserved: u32 }
    /// RC, UC: this QP names its peer (modify to RTR). The link exists once both name each other.
    /// UD: ask for a link to a destination. Answered with `Connected`.
    ConnectQp {
        qpn: Qpn,
        /// The peer's number, as the peer says it is.
        dest_qpn: Qpn,
        /// The GID at `sgid_index`; must be one of the vNIC's own.
        sgid: Gid,
        /// What the peer is called.
        dgid: Gid,
        /// Zero, or `RESUME_*`: there was a link to the same peer QP before the daemon was
        /// restarted; only record it, or what became of it.
        resume: u32,
        /// Non-zero: this process can carry the link ([`crate::carried_links`]).
        carries: u32,
    }
    /// Answer to `ConnectQp`: accepted. The link itself always comes as a `LinkReady` event, which
    /// may already be in the events socket. UD to nobody: `ENOENT`. A destination beyond this
    /// network namespace, where the daemon has no access to the network: `EHOSTUNREACH`.
    Connected {
        qpn: Qpn,
        /// 1: the link is there. 0: not yet. Or [`CONNECT_AGAIN`].
        ready: u32,
    }
    /// Attach a queue pair to a multicast group; answered with `GroupAttached`. What is sent to the
    /// group comes by a link of its own, a `LinkReady` event, to a peer that is no queue pair.
    /// If it is attached already that link ends, untold, and there is another. `LinkReady` says
    /// that the group is joined, `LinkClosed` that it could not be. `EINVAL` if the GID is that of
    /// no group or the queue pair not one for datagrams; `ENOMEM` over a quota; `EADDRNOTAVAIL`
    /// without an address of the group's kind at an interface that leads to others, if there is
    /// one. To detach it, close that link.
    AttachGroup { qpn: Qpn, reserved: u32, gid: Gid }
    /// Answer to `AttachGroup`.
    GroupAttached {
        qpn: Qpn,
        /// What the far end of the link is called.
        peer_qpn: Qpn,
    }
    /// Close the link to `peer_qpn` (`ENOENT` if there is none, because the peer was quicker), or
    /// all links of the QP if that is 0 (modify to RESET or ERR).
    DisconnectQp { qpn: Qpn, peer_qpn: Qpn }
    /// Register memory for remote access.
    RegMr {
        /// The process's own number of the protection domain.
        pd: u32,
        /// `IBV_ACCESS_*` bits.
        access: u32,
        /// First address, as peers name it (the IOVA).
        addr: u64,
        /// Bytes from there on.
        length: u64,
        /// Zero, or with `resume`: the key to keep.
        rkey: Rkey,
        reserved: u32,
    }
    /// Answer to `RegMr`.
    MrRegistered { rkey: Rkey, reserved: u32 }
    /// Forget a key.
    DeregMr { rkey: Rkey, reserved: u32 }
    /// The initiator wants to reach these bytes of `rkey` of `peer_qpn`'s process by mapping.
    /// Answered with `Connected`; the outcome comes as `Granted` or `GrantDenied` event.
    RequestGrant {
        qpn: Qpn,
        peer_qpn: Qpn,
        rkey: Rkey,
        reserved: u32,
        /// First byte that no grant of the initiator's covers.
        address: u64,
        /// Bytes wanted from there on. A grant covers the first of them, and not always all.
        length: u64,
    }
    /// Success. If that ended links, and with them what peers were granted: the number of the last
    /// `TakeBack` that follows from it, else zero.
    Done { take_back: u64 }
    /// The queue pair is in ERR: what was granted by way of its links ends, as when they do.
    /// Nothing else happens to them, and nothing is granted through it before it has another.
    QpFailed { qpn: Qpn, reserved: u32 }

    /// Event: a link is there. Descriptors: the file of the link's memory; if `bell_new`, then also
    /// that of the bell's.
    LinkReady {
        qpn: Qpn,
        peer_qpn: Qpn,
        /// 0 or 1: which half of the link is ours.
        side: u32,
        /// Bytes of each request ring.
        request_bytes: u32,
        /// Bytes of each response ring.
        response_bytes: u32,
        /// Non-zero: the descriptor of the bell comes along.
        bell_new: u32,
        /// Identifies the bell between these two processes.
        bell: u64,
        /// 0 or 1: which page of the bell memory is ours (peers set bits there). The peer's page
        /// is the other one, or the same one when both ends are this process.
        bell_side: u32,
        /// Non-zero: both ends are in this process.
        loopback: u32,
        /// Bit of this link in our page.
        local_slot: u32,
        /// Bit of this link in the peer's page.
        peer_slot: u32,
        sgid: Gid,
        dgid: Gid,
        /// Non-zero: the far end is the daemon's engine, and the link ends with the daemon.
        engine: u32,
        /// Non-zero: what happens on it is to be written, as after `TraceLink`.
        traced: u32,
        /// Operations that the peer may not ask of us, as in `LinkRefuses`.
        refused: u32,
        /// Non-zero: the engine does not serve the link, the process carries it, and has both ends
        /// ([`crate::carried_links`]).
        carried: u32,
        /// The link's memory.
        memory: Extent,
        /// The bell's, if `bell_new`.
        bell_memory: Extent,
    }
    /// Event: from now on the peer may not ask for these operations on a link that is there, and
    /// for all others. `refused`: bits of [`omniverb_terms::Operations`].
    LinkRefuses { qpn: Qpn, peer_qpn: Qpn, refused: u32, reserved: u32 }
    /// Event: a link is closed. `reason` is `CLOSED_*`.
    LinkClosed { qpn: Qpn, peer_qpn: Qpn, reason: u32, reserved: u32 }
    /// Event to the owner of an MR: move these of its pages to a place in the memory file that
    /// comes along, which is empty and nobody else's yet, and answer `Adopted`.
    Adopt {
        /// Names the question in its answer.
        token: u64,
        rkey: Rkey,
        /// The owner's QP through which the pages will be reached: its access flags count too.
        qpn: Qpn,
        /// First page. There are as many as go into `memory`.
        start: u64,
        /// Non-zero: a descriptor comes along. Zero: they are there already; are they still?
        fresh: u32,
        /// Non-zero: for somebody who may be able to read what it may only write: the engine,
        /// which keeps to the flags, or a peer that is trusted with that.
        trusted: u32,
        /// The part of the file that the pages go to, with the number of a pair window
        /// ([`crate::pair`]) if it is one; if they are there, only its length counts.
        memory: Extent,
    }
    /// The owner's answer, on the events socket. `epoch` is the low half of the EPOCH word of its
    /// link then: when that has moved, the pages may have gone back. `EAGAIN`: not yet.
    Adopted {
        /// The number of the `Adopt` that this answers.
        token: u64,
        /// None: the pages are there.
        errno: Errno,
        epoch: u32,
    }
    /// Event to the owner of an MR, a process of a virtual machine whose memory the daemon has:
    /// keep these of its pages where they are ([`crate::pinned_pages`]), for the engine, and answer
    /// `Pinned`, or `Adopted` with an errno. Whether they are kept still is asked by an `Adopt` as
    /// for others.
    Pin {
        /// Names the question in its answer.
        token: u64,
        rkey: Rkey,
        /// As in `Adopt`.
        qpn: Qpn,
        /// Where the first page is, as the owner has it.
        start: u64,
        /// Bytes from there on, whole pages.
        length: u64,
    }
    /// The owner's answer, which its machine's agent hears: it looks where the pages are, and sees
    /// to it that they stay there ([`crate::vm::TellPinned`]). No daemon hears it.
    Pinned {
        /// The number of the `Pin` that this answers.
        token: u64,
        /// As in `Adopted`.
        epoch: u32,
        /// The descriptor of the ring that keeps the pages, as the process numbers it.
        ring: u32,
        /// As in `Pin`.
        start: u64,
        /// As in `Pin`.
        length: u64,
    }
    /// The owner, on the events socket: no pages of this region are on files any more.
    Released { rkey: Rkey, reserved: u32 }
    /// On the events socket: this process has nothing mapped any more of this piece of a window,
    /// which it was told of so many times by `Adopt` (with a descriptor) and `Granted`. Of memory
    /// that is a file of its own nothing is said.
    LetGo {
        /// As it was said, with the number of a pair window ([`crate::pair`]).
        memory: Extent,
        times: u32,
        reserved: u32,
    }
    /// Event to the initiator: the right to a part of a region, and the memory that holds it.
    /// Descriptor: the memory's file, sealed against writing unless the MR allows remote write.
    /// `access` says what a mapping may be used for ([`crate::page_rights`]).
    Granted {
        qpn: Qpn,
        peer_qpn: Qpn,
        rkey: Rkey,
        access: u32,
        /// The whole region, as it was registered: its first address.
        addr: u64,
        /// The region's length in bytes.
        length: u64,
        /// First address that is granted; as many bytes follow as `memory` has.
        page_start: u64,
        /// The owner's epoch when it answered; an older one voids the grant.
        epoch: u32,
        reserved: u32,
        /// With the number of a pair window ([`crate::pair`]), if it is in one.
        memory: Extent,
    }
    /// Event to the initiator: stay with mediated operations for this key, if `errno` is `EAGAIN`
    /// until about as many bytes have been moved by them as have until now.
    GrantDenied { qpn: Qpn, peer_qpn: Qpn, rkey: Rkey, errno: Errno }
    /// Event to the initiator: the right to this part of a region has ended. What is mapped of it
    /// is of no use, and somebody may be paying for it: let go of it.
    GrantEnded {
        qpn: Qpn,
        peer_qpn: Qpn,
        rkey: Rkey,
        reserved: u32,
        /// As in `Granted`.
        page_start: u64,
    }
    /// Event: take pages back that were granted to others; who asks anew is judged anew.
    TakeBack {
        /// `TAKE_*`.
        what: u32,
        /// Of `TAKE_EXTENT`: the region.
        rkey: Rkey,
        /// Its first page, or zero.
        start: u64,
        /// Counts those of `TAKE_EXTENT` that this process was told; else zero.
        number: u64,
    }
    /// Event: the other process of this bell is gone. All links on it have been closed by earlier
    /// events and no new one will name it: drop its memory and descriptors.
    BellClosed { bell: u64 }
    /// Event: somebody captures packets of links that this process has an end of. Descriptor: the
    /// file of the memory to write traces into (`rnic/link/src/captured_operations_ring.rs`),
    /// instead of any before.
    TraceBegin { memory: Extent }
    /// Event: what this queue pair requests of that peer is to be written into the trace.
    TraceLink {
        qpn: Qpn,
        peer_qpn: Qpn,
        /// Zero: no longer.
        on: u32,
        reserved: u32,
    }
    /// Event: the capture is over, the memory is not read any more.
    TraceEnd { reserved: u64 }
    /// Event: the vNIC's GID table changed.
    GidsChanged { reserved: u64 }

    /// Between processes that have parts of an XRC domain, by the sockets that stand for these, and
    /// never to the daemon: requests to a queue pair of ours are for SRQs of yours; take them from
    /// this one. Counts as long as whoever sent it [states](HandOver::statement) so. Answered with
    /// `HandedOver`, and sent again until then.
    HandOver {
        /// The hidden queue pair of the asking process that sends.
        from: Qpn,
        /// The queue pair whose connection it is.
        front: Qpn,
        /// Who sends to that.
        sender: Qpn,
        /// The part of the asking process: where to answer.
        part: u32,
        /// The part that has the SRQs.
        to: u32,
        reserved: u32,
        /// What both call their port.
        gid: Gid,
    }
    /// Between the same: a hidden queue pair waits to be connected with `from`. Counts as long as
    /// whoever sent it [states](HandedOver::statement) so.
    HandedOver {
        from: Qpn,
        /// The one that receives. Zero: there is none, and will not be.
        by: Qpn,
    }
    /// Between the same: has your process made the queue pair of this number, which receives in the
    /// domain? Then connect to this socket, and answer by what. Counts as long as whoever sent it
    /// [states](OpenQp::statement) so. Answered with `QpOpened`, and sent again until then.
    OpenQp {
        qpn: Qpn,
        /// Number of a socket of the asking process (`support/sys/src/autobind_socket.rs`).
        door: u32,
        /// The part of the asking process: where to answer.
        part: u32,
        reserved: u32,
    }
    /// Between the same. That the process has it counts only as long as whoever sent it
    /// [states](QpOpened::statement) so.
    QpOpened {
        qpn: Qpn,
        /// The number that the question had.
        door: u32,
        /// Number of the socket that is connected there.
        by: u32,
        /// None; `EINVAL`: it has no such queue pair; `ENOMEM`: too many have it open.
        errno: Errno,
    }

    /// Ask for what there is to see of this process's own vNIC, from a place on. Needs no `Hello`.
    QueryStatus { from: Cursor }
    /// Ask what holds for this process's own vNIC. Answered with `Status`; needs no `Hello`.
    QueryVnic { reserved: u64 }
    /// A place in the list of everything. The daemon keeps none: who asks says where to go on. All
    /// zeros is the beginning; any other bytes are a place, too.
    Cursor {
        /// The vNIC to begin with.
        vnic: u64,
        /// The process to begin with, by the number of its connection.
        session: u64,
        qpn: Qpn,
        /// Which of the lists that belong to what the above name.
        stage: u32,
        peer: Qpn,
        reserved: u32,
        gid: Gid,
    }
    /// What there is to see, from a place on, as far as one message goes: lines of JSON, each an
    /// object of one member whose name says what it is. What belongs to something comes after it.
    Status {
        /// Bytes of `text`.
        length: u32,
        /// Non-zero: there is more, from `next` on.
        more: u32,
        next: Cursor,
        text: [u8; STATUS_TEXT_BYTES],
    }
}

impl Extent {
    /// No memory comes along, or it is not made yet.
    pub const NONE: Extent = Extent { offset: 0, length: 0 };
}

impl CreateQp {
    /// Asks for a number of the daemon's choice. `pd` and `statistics_slot` are the process's own.
    #[must_use]
    pub fn new(service: Service, pd: u32, statistics_slot: u32) -> CreateQp {
        let (qp_type, ticket) = (service.qp_type(), [0; 16]);
        CreateQp { qp_type, pd, statistics_slot, qpn: Qpn(0), issued: 0, ticket }
    }
}

impl Adopt {
    /// What whoever the pages are for may be able to do beyond what it is allowed.
    #[must_use]
    pub fn trust(&self) -> PeerTrust {
        if self.trusted == 0 { PeerTrust::Exact } else { PeerTrust::Trusting }
    }
}

impl HandOver {
    /// The number of the statement (`support/sys/src/record_lock_proofs.rs`) that goes with it:
    /// which part asks which, for what. The rest is the word of who has the socket of that part.
    /// `None`: it says what cannot be.
    #[must_use]
    pub fn statement(&self) -> Option<u64> {
        const PART_BITS: u32 = 12;
        let known = [self.from, self.front].iter().all(|qpn| *qpn <= Qpn::MAX);
        let parts = (self.part | self.to) >> PART_BITS == 0;
        let between = u64::from(self.part) << PART_BITS | u64::from(self.to);
        let is = known && parts && self.from != Qpn(0);
        is.then_some(u64::from(self.from.0) << (2 * PART_BITS) | between)
    }
}

impl HandedOver {
    /// As of [`HandOver`]; no number is that of both.
    #[must_use]
    pub fn statement(&self) -> Option<u64> {
        let known = [self.from, self.by].iter().all(|qpn| *qpn <= Qpn::MAX);
        let is = known && self.from != Qpn(0);
        is.then_some(1 << 61 | u64::from(self.from.0) << 24 | u64::from(self.by.0))
    }
}

impl OpenQp {
    /// As of [`HandOver`]; no number is that of both.
    #[must_use]
    pub fn statement(&self) -> Option<u64> {
        let (part, door) = (u64::from(self.part), u64::from(self.door));
        let is = self.qpn <= Qpn::MAX && part >> 12 == 0 && door >> 20 == 0;
        is.then_some(1 << 60 | part << 44 | door << 24 | u64::from(self.qpn.0))
    }
}

impl QpOpened {
    /// The number of the statement that goes with it, from who has this part; as of [`HandOver`],
    /// and no number is that of both.
    #[must_use]
    pub fn statement(&self, part: u32) -> Option<u64> {
        let (part, by) = (u64::from(part), u64::from(self.by));
        let is = self.qpn <= Qpn::MAX && part >> 12 == 0 && by >> 20 == 0;
        is.then_some(3 << 60 | part << 44 | by << 24 | u64::from(self.qpn.0))
    }
}

impl Cursor {
    /// The beginning of everything there is to see.
    pub const START: Cursor = Cursor {
        vnic: 0,
        session: 0,
        qpn: Qpn(0),
        stage: 0,
        peer: Qpn(0),
        reserved: 0,
        gid: Gid::ZERO,
    };
}

/// Bytes of status text in one message.
pub const STATUS_TEXT_BYTES: usize = MESSAGE_BYTES_MAX - 16 - 8 - size_of::<Cursor>();
