//! A datagram queue pair, with room for what it sends and receives.

use core::ops::Range;

use libc::{sockaddr, sockaddr_storage};
use omniverb_abi::*;
use omniverb_session::cm::CmIdResolved;
use omniverb_terms::{Errno, Gid};

use super::peer_table::PeerRoute;
use super::wire_format::{NAME_MAX, ROUTE_BYTES};
use crate::id_state::{IdShell, ResolutionState, attach};
use crate::rsocket::buffer_settings::Settings;
use crate::rsocket::iovec::IovecCursor;
use crate::rsocket::queue_pair::{QpDemands, Queues};
use crate::rsocket::registered_memory::Memory;
use crate::rsocket::stream_socket::OwnedCmId;
use crate::{address_calls, c_sockaddr, device};

/// Bytes of a datagram, its header included; as rdma-core has it.
pub(crate) const DATAGRAM_MAX: usize = 2048;
/// Bytes of room for each; what comes in front of it ends where a cache line begins.
const ROOM: usize = DATAGRAM_MAX + FRONT;
const FRONT: usize = 64;
/// In the number of a send.
const SEND: u64 = 1 << 32;

/// What a completion of the queue pair was of.
pub(crate) enum UdCompletion {
    /// A datagram of so many bytes is in this room, sent by that queue pair.
    Received(u32, usize, u32),
    Sent,
    /// The queue pair is of no use any more.
    Failed,
}

/// A queue pair that is ready.
pub(crate) struct UdPort {
    queues: Queues,
    send: Memory,
    receive: Memory,
    /// Rooms of what is to be sent.
    free: Vec<u32>,
    sends: usize,
    receives: usize,
    // The queue pair is its: it goes last.
    id: OwnedCmId,
}

impl UdPort {
    /// At one of our addresses.
    pub(crate) fn new(source: &sockaddr_storage, settings: &Settings) -> Result<UdPort, Errno> {
        let settings = settings.within_bounds();
        let fits = |queue: u16, bytes: u32| {
            queue.min((bytes as usize / DATAGRAM_MAX).try_into().unwrap_or(u16::MAX)).max(16)
        };
        let send = fits(settings.send_queue, settings.send_bytes);
        let receive = fits(settings.receive_queue, settings.receive_bytes);
        let id = OwnedCmId::new(RDMA_PS_UDP, IBV_QPT_UD)?;
        let wanted = QpDemands { service: IBV_QPT_UD, send, receive, inline: settings.inline };
        // SAFETY: live; an address of the length its family has; the queues go first.
        let (queues, pd) = unsafe {
            address_calls::bind(id.0, (&raw const *source).cast::<sockaddr>())?;
            // A loopback address alone gives it none.
            attach(id.0)?;
            (Queues::new(id.0, &wanted)?, (*id.0).pd)
        };
        let bytes = |rooms: u16| usize::from(rooms) * ROOM;
        // SAFETY: the identifier's protection domain is there as long as it.
        let (out, room) = unsafe {
            (
                Memory::new(pd, bytes(send), IBV_ACCESS_LOCAL_WRITE)?,
                Memory::new(pd, bytes(receive), IBV_ACCESS_LOCAL_WRITE)?,
            )
        };
        let free = (0..u32::from(send)).collect();
        let (sends, receives) = (usize::from(send), usize::from(receive));
        let port = UdPort { queues, send: out, receive: room, free, sends, receives, id };
        for room in 0..u32::from(receive) {
            port.take(room)?;
        }
        Ok(port)
    }

    pub(crate) fn qpn(&self) -> u32 {
        // SAFETY: it has a queue pair.
        unsafe { (*(*self.id.0).qp).qp_num }
    }

    pub(crate) fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Whether it is in a virtual network: its GID does not contain its address.
    pub(crate) fn has_virtual_gid(&self) -> bool {
        // SAFETY: live, and bound, so the address is as long as its family says.
        let (gid, own) = unsafe {
            let address = &raw const (*self.id.0).route.addr;
            let own = c_sockaddr::from_c((&raw const (*address).src_storage).cast());
            (Gid::new((*address).ibaddr.sgid.raw), own)
        };
        own.is_ok_and(|own| gid != Gid::ZERO && gid != Gid::from(c_sockaddr::ip(&own)))
    }

    /// The way to a peer.
    pub(crate) fn way(
        &self,
        from: &sockaddr_storage,
        to: &sockaddr_storage,
        traffic_class: u8,
    ) -> Result<PeerRoute, Errno> {
        let asks = OwnedCmId::new(RDMA_PS_UDP, IBV_QPT_UD)?;
        let (from, to): (*const sockaddr, *const sockaddr) =
            ((&raw const *from).cast(), (&raw const *to).cast());
        // SAFETY: live; addresses of the lengths their families have.
        let state = unsafe {
            address_calls::resolve_address(asks.0, from, to)?;
            IdShell::of(asks.0).state().resolved
        };
        let ResolutionState::Address(CmIdResolved {
            ifindex,
            sgid,
            dgid,
            path_mtu,
            flow_label,
            hop_limit,
            traffic_class: usual,
            ..
        }) = state
        else {
            return Err(Errno::ENODEV);
        };
        // SAFETY: it has a device, and outlives the way.
        unsafe {
            let sgid_index = device::gid_index((*self.id.0).verbs, sgid, ifindex)?;
            let mut attr = ibv_ah_attr {
                grh: ibv_global_route {
                    dgid: ibv_gid { raw: dgid.bytes() },
                    flow_label,
                    sgid_index,
                    hop_limit,
                    traffic_class: if traffic_class == 0 { usual } else { traffic_class },
                },
                is_global: 1,
                port_num: 1,
                ..ibv_ah_attr::default()
            };
            let longest = 128_usize << path_mtu.min(5);
            PeerRoute::new((*self.id.0).pd, &mut attr, longest.min(DATAGRAM_MAX))
        }
    }

    /// How much can have completed at a time.
    pub(crate) fn rooms(&self) -> usize {
        self.sends + self.receives
    }

    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.sends
    }

    /// Sends, where there is [room](Self::has_room): a header, and what is left of the program's
    /// buffers, which together are not too long.
    ///
    /// # Safety
    /// As [`Memory::take_from`].
    pub(crate) unsafe fn send(
        &mut self,
        way: &PeerRoute,
        qpn: u32,
        header: &[u8],
        data: &mut IovecCursor<'_>,
    ) -> Result<(), Errno> {
        let room = self.free.pop().ok_or(Errno::EAGAIN)?;
        let start = room as usize * ROOM + FRONT;
        let length = header.len() + data.left();
        for (at, byte) in header.iter().enumerate() {
            self.send.write(start + at, &[*byte]);
        }
        // SAFETY: the caller's promise.
        unsafe { self.send.take_from(&(start + header.len()..start + length), data) };
        let mut list = [self.send.entry(&(start..start + length))];
        // SAFETY: numbers, pointers and unions of them: zero is valid.
        let mut request: ibv_send_wr = unsafe { core::mem::zeroed() };
        request.wr_id = SEND | u64::from(room);
        request.sg_list = list.as_mut_ptr();
        request.num_sge = 1;
        request.opcode = IBV_WR_SEND;
        if length <= self.queues.inline as usize {
            request.send_flags = IBV_SEND_INLINE;
        }
        let ah = way.handle();
        request.wr.ud = ibv_send_wr_ud { ah, remote_qpn: qpn, remote_qkey: RDMA_UDP_QKEY };
        // SAFETY: a valid list, of registered memory.
        let sent = unsafe { self.queues.send(&mut request) };
        sent.inspect_err(|_| self.free.push(room))
    }

    /// Has a room filled by what comes next.
    pub(crate) fn take(&self, room: u32) -> Result<(), Errno> {
        let start = room as usize * ROOM + FRONT;
        let range = start - ROUTE_BYTES..start + DATAGRAM_MAX;
        self.queues.receive(u64::from(room), &mut [self.receive.entry(&range)])
    }

    /// Takes the oldest completion, if there is one.
    pub(crate) fn poll(&mut self) -> Option<UdCompletion> {
        let completion = self.queues.poll()?;
        let is_well = completion.status == IBV_WC_SUCCESS;
        let room = completion.wr_id as u32;
        if completion.wr_id & SEND != 0 {
            self.free.push(room);
            return Some(if is_well { UdCompletion::Sent } else { UdCompletion::Failed });
        }
        let bytes = (completion.byte_len as usize).saturating_sub(ROUTE_BYTES);
        Some(if is_well {
            UdCompletion::Received(room, bytes.min(DATAGRAM_MAX), completion.src_qp)
        } else {
            UdCompletion::Failed
        })
    }

    /// What is in front of a datagram: the route header, and the longest header there is.
    pub(crate) fn front(&self, room: u32) -> ([u8; ROUTE_BYTES], [u8; NAME_MAX]) {
        let start = room as usize * ROOM + FRONT;
        (self.receive.read(start - ROUTE_BYTES), self.receive.read(start))
    }

    /// Copies some of a datagram into the program's buffers.
    ///
    /// # Safety
    /// As [`Memory::give_to`].
    pub(crate) unsafe fn give(&self, room: u32, range: Range<usize>, to: &mut IovecCursor<'_>) {
        let start = room as usize * ROOM + FRONT;
        let most = |at: usize| start + at.min(DATAGRAM_MAX);
        // SAFETY: the caller's promise.
        unsafe { self.receive.give_to(&(most(range.start)..most(range.end)), to) };
    }
}
