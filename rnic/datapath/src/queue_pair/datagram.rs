//! Serves a UD queue pair and one destination: a link on one side, single packets on the other.

use crate::pacing::sender_throttle::Throttle;
use crate::pacing::unreliable_message_window::PacketRoute;
use crate::queue_pair::unreliable_backlog::Backlog;
use crate::queue_pair::unreliable_flow_control::{Leaves, MessagePacing};
use crate::vnic_memory_allowance::Allowance;
use omniverb_link::record::{FIRST, IMMEDIATE, LAST, SOLICITED};
use omniverb_link::{Broken, Endpoint, Request};
use omniverb_ring::{Record, UserMemory};
use omniverb_terms::{Operations, Psn, Qpn};
use omniverb_transport::OperationPermit;
use omniverb_transport::unreliable_datagram::{Address, Message, write};
use omniverb_wire::{GRH_BYTES, Packet, receive_area};
use std::net::IpAddr;
use std::sync::Arc;

/// Bytes of the longest datagram.
const MESSAGE_MAX: usize = 4096;
/// Bytes of a UDP packet beside the message.
const UDP_BTH_DETH_ICRC: usize = 8 + 12 + 8 + 4;
/// The hop limit in the header in front of a message, since the socket does not report it.
const HOP_LIMIT: u8 = 64;

/// The far end of a UD link: one of the queue pair's destinations, or a group that it is attached
/// to.
pub struct Datagrams {
    endpoint: Endpoint,
    qpn: Qpn,
    peer_qpn: Qpn,
    psn: Psn,
    allowance: Allowance,
    backlog: Backlog,
    pacing: MessagePacing,
    operations: OperationPermit,
    closed: bool,
    /// Messages of the application are dropped.
    is_mute: bool,
    /// The application is to ring since [`Self::take_rings_since`].
    rings_since: bool,
}

impl Datagrams {
    /// The destination `peer_qpn` of a UD queue pair. `features`: bits of
    /// [`crate::peer_features`] that the peer has; `throttle`: of all links of the queue pair to
    /// that address.
    #[must_use]
    pub fn new(
        mut endpoint: Endpoint,
        qpn: Qpn,
        peer_qpn: Qpn,
        features: u32,
        allowance: Allowance,
        throttle: Arc<Throttle>,
    ) -> Datagrams {
        endpoint.publish_no_credits();
        endpoint.set_watched(false);
        endpoint.open(0);
        Datagrams {
            endpoint,
            qpn,
            peer_qpn,
            psn: Psn::default(),
            backlog: Backlog::new(&allowance),
            allowance,
            pacing: MessagePacing::throttled((qpn, peer_qpn), features, throttle),
            operations: OperationPermit::default(),
            closed: false,
            is_mute: false,
            rings_since: false,
        }
    }

    /// The application may not ask the peer for these.
    pub fn refuse(&mut self, refused: Operations) {
        self.is_mute = refused.contains(Operations::DATAGRAM);
    }

    /// The application may have made room.
    pub fn serve(&mut self, now: u64) {
        if !self.closed && self.backlog.flush(&mut self.endpoint, now).is_err() {
            self.close();
        }
        // It does not ring for what it did before it saw that it is to ring.
        if self.endpoint.set_blocked(!self.backlog.is_empty()) {
            self.rings_since = true;
            if !self.closed && self.backlog.flush(&mut self.endpoint, now).is_err() {
                self.close();
            }
        }
    }

    /// Whether the application is to ring only since the last call.
    pub fn take_rings_since(&mut self) -> bool {
        std::mem::take(&mut self.rings_since)
    }

    /// Whether messages wait for the application.
    pub fn waits(&self) -> bool {
        !self.closed && !self.backlog.is_empty()
    }

    /// When something may be sent again, if it is too early now, or is too old.
    pub fn next_timeout(&self) -> Option<u64> {
        self.pacing.due().into_iter().chain(self.backlog.due()).min()
    }

    /// The time that was asked for has come.
    pub fn timeout(&mut self, now: u64) {
        self.backlog.expire(now);
    }

    /// Drops what is kept here while the vNIC keeps more than it may.
    pub fn give_way(&mut self) {
        self.backlog.give_way(&self.allowance);
    }

    /// The application is going.
    pub fn leave(&mut self) {
        self.pacing.leave();
    }

    /// Whether the next message may leave.
    pub fn operations(&mut self) -> &mut OperationPermit {
        &mut self.operations
    }

    /// Packets from now on take this route.
    pub fn take_way(&mut self, way: PacketRoute) {
        self.pacing.take_way(way);
    }

    /// Writes the next packet. `buffer`: for the message.
    pub fn transmit(
        &mut self,
        now: u64,
        datagram: &mut [u8],
        buffer: &mut Vec<u8>,
    ) -> Option<usize> {
        if self.closed {
            return None;
        }
        match self.pacing.next(now, &mut self.backlog, datagram) {
            Leaves::Message => {}
            Leaves::Notice(length) => return Some(length),
            Leaves::Nothing => return None,
        }
        match self.next(datagram, buffer) {
            Ok(length) => {
                if let Some(length) = length {
                    self.pacing.on_send(&mut datagram[..length]);
                }
                length
            }
            Err(Broken) => {
                self.close();
                None
            }
        }
    }

    fn next(&mut self, datagram: &mut [u8], buffer: &mut Vec<u8>) -> Result<Option<usize>, Broken> {
        let Some((request, record)) = self.endpoint.next_request()? else {
            self.endpoint.publish_requests();
            return Ok(None);
        };
        if self.is_mute {
            return self.drop_requests(&record);
        }
        let Request::Datagram { flags, immediate, qkey } = request else { return Err(Broken) };
        // A queue pair that is attached to a group sends to it by another link.
        if self.peer_qpn.is_group() {
            return Err(Broken);
        }
        if record.length > MESSAGE_MAX {
            return Err(Broken);
        }
        if !self.operations.may_begin() {
            // The next may be long in coming: the application knows what has left.
            self.endpoint.publish_requests();
            return Ok(None);
        }
        buffer.resize(record.length, 0);
        UserMemory::lend_mut(buffer, |memory| self.endpoint.request_payload(&record, 0, memory));
        self.endpoint.pass_request(&record);
        self.operations.note_begun();
        let address = Address { destination: self.peer_qpn, queue_key: qkey, source: self.qpn };
        let immediate = (flags & IMMEDIATE != 0).then(|| immediate.to_ne_bytes());
        let psn = self.psn;
        self.psn = psn.next();
        let message = Message { immediate, is_solicited: flags & SOLICITED != 0, data: buffer };
        Ok(write(datagram, &address, psn, &message))
    }

    /// Drops the message at the head, and those behind it.
    #[cold]
    fn drop_requests(&mut self, first: &Record) -> Result<Option<usize>, Broken> {
        self.endpoint.pass_request(first);
        while let Some((_, record)) = self.endpoint.next_request()? {
            self.endpoint.pass_request(&record);
        }
        self.endpoint.publish_requests();
        Ok(None)
    }

    /// A packet from the peer; the application looks at the Q_Key.
    pub fn packet(&mut self, now: u64, packet: &Packet<'_>) {
        if packet.opcode().is_notification() {
            return self.pacing.on_notification(now, packet);
        }
        let Some(deth) = packet.deth() else { return };
        if self.closed || !packet.bth().is_in_default_partition() || self.peer_qpn.is_group() {
            return;
        }
        self.pacing.on_packet(packet.bth());
        let (flags, immediate) = carried(packet);
        let request = Request::Datagram { flags, immediate, qkey: deth.queue_key() };
        match self.backlog.send(&mut self.endpoint, &request, packet.payload(), now) {
            Ok(_) => {}
            Err(Broken) => self.close(),
        }
    }

    /// A packet to the group, from any sender: the application gets the header that names the
    /// sender.
    pub fn copy(
        &mut self,
        now: u64,
        packet: &Packet<'_>,
        (from, source): (IpAddr, Qpn),
        to: IpAddr,
    ) {
        let Some(deth) = packet.deth() else { return };
        let data = packet.payload();
        let fits = data.len() <= MESSAGE_MAX && packet.bth().is_in_default_partition();
        if self.closed || !fits || !self.peer_qpn.is_group() {
            return;
        }
        let (flags, immediate) = carried(packet);
        let qkey = deth.queue_key();
        let request = Request::Grouped { flags, immediate, qkey, source };
        let length = (UDP_BTH_DETH_ICRC + data.len().next_multiple_of(4)) as u16;
        let mut bytes = Vec::with_capacity(GRH_BYTES + data.len());
        bytes.extend(receive_area(from, to, 0, HOP_LIMIT, length));
        bytes.extend(data);
        match self.backlog.send(&mut self.endpoint, &request, &bytes, now) {
            Ok(_) => {}
            Err(Broken) => self.close(),
        }
    }

    /// Nothing is taken or sent any more.
    pub fn close(&mut self) {
        self.closed = true;
        self.backlog = Backlog::new(&self.allowance);
        self.endpoint.close();
    }
}

/// Flags and immediate data of the record that a packet becomes.
fn carried(packet: &Packet<'_>) -> (u32, u32) {
    let immediate = packet.immediate().map(|immediate| u32::from_ne_bytes(immediate.0));
    let with = |set: bool, flag: u32| if set { flag } else { 0 };
    let flags = FIRST
        | LAST
        | with(packet.bth().is_solicited(), SOLICITED)
        | with(immediate.is_some(), IMMEDIATE);
    (flags, immediate.unwrap_or_default())
}
