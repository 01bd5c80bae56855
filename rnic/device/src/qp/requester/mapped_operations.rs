//! Executes one-sided operations on pages that are mapped here: the requester does them itself.
//!
//! Order: requests of a QP take effect in the order they were posted. A mapped operation takes
//! effect at once, so it may only be used when everything sent before it has been consumed (and
//! answered, if it brings something back). Until then a short WRITE follows the others through the
//! ring; everything else waits: the ring drains once, and the rest of a pipeline is mapped. Memory
//! order is the CPU's: what was written by earlier mapped operations is visible before anything
//! published afterwards.

use super::{CompletionCondition, RequestHeader, TryOutcome, WaitReason};
use crate::granted_peer_pages::{ExtentOffset, GrantLookup, Grants};
use crate::qp::link_table::Links;
use crate::qp::statistics::Meter;
use crate::qp::{Inner, Qp};
use crate::scatter_gather::pieces;
use crate::verbs_constants::{access, opcode};
use omniverb_link::Broken;
use omniverb_link::Credit;
use omniverb_ring::{UserMemory, Window, WordMemory};
use omniverb_terms::{Qpn, Rkey, Service};

/// Where bytes of the peer are mapped here.
enum MappedRange {
    /// In one extent.
    Whole(ExtentOffset),
    /// In several extents, which have to be looked up one after the other.
    Spread,
}

/// What is mapped of an access, if it wholly is. Pages that may be had are asked for.
#[inline(always)]
fn mapped(qp: &Qp, peer: Qpn, rkey: Rkey, reach: GrantLookup) -> Option<MappedRange> {
    match reach {
        GrantLookup::Mapped(place) => Some(MappedRange::Whole(place)),
        GrantLookup::Spread => Some(MappedRange::Spread),
        GrantLookup::Ask(at, length) => {
            qp.shared.host.request_grant(qp.number, peer, rkey, (at, length));
            None
        }
        GrantLookup::Mediated => None,
    }
}

/// What an operation on mapped pages uses.
pub(super) struct MappedPages<'q> {
    links: &'q mut Links,
    grants: &'q mut Grants,
    meter: &'q mut Meter,
}

impl Inner {
    #[inline(always)]
    pub(super) fn mapped_pages(&mut self) -> MappedPages<'_> {
        let Inner { links, grants, meter, .. } = self;
        MappedPages { links, grants, meter }
    }
}

impl MappedPages<'_> {
    /// Whether nothing we sent is still on its way.
    #[inline(always)]
    fn ring_is_drained(&mut self) -> Result<bool, Broken> {
        let Some(link) = self.links.first_mut() else { return Ok(false) };
        let position = link.endpoint.request_position();
        link.endpoint.request_consumed(position)
    }

    /// WRITE. `None`: not this way.
    #[inline(always)]
    pub(super) fn write(
        &mut self,
        qp: &Qp,
        order: &mut RequestHeader,
        parts: &[UserMemory],
    ) -> Result<Option<TryOutcome>, Broken> {
        let drained = self.ring_is_drained()?;
        let Some(link) = self.links.first_mut() else { return Ok(None) };
        let with_immediate = order.opcode == opcode::RDMA_WRITE_WITH_IMM;
        let epoch = link.endpoint.peer_epoch();
        let range = (order.address, order.length);
        let reach = self.grants.reach(epoch, order.rkey, range, access::REMOTE_WRITE);
        let Some(mapped) = mapped(qp, link.peer.qpn, order.rkey, reach) else { return Ok(None) };
        if !drained {
            let detour = self.grants.take_detour(order.length);
            return Ok((!detour).then_some(TryOutcome::Wait(WaitReason::Order)));
        }
        self.grants.end_detours();
        if with_immediate && link.endpoint.credit() == Credit::None {
            return Ok(None);
        }
        let MappedRange::Whole(place) = mapped else {
            if !self.write_spread(qp, order, parts, epoch) {
                return Ok(None);
            }
            return self.written(qp, order);
        };
        let outside = (qp.shared.toll(), &*qp.shared.host);
        let at_hand = self.grants.at_hand(outside, place, order.length as usize);
        let Some((window, offset)) = at_hand else { return Ok(None) };
        if !link.endpoint.enter_pages(epoch) {
            return Ok(None);
        }
        match parts {
            [part] => window.fill_last_byte_last(offset, *part),
            _ => {
                let mut at = offset;
                for part in parts {
                    window.fill_last_byte_last(at, *part);
                    at += part.len();
                }
            }
        }
        if !link.endpoint.leave_pages(epoch) {
            return Ok(None);
        }
        self.written(qp, order)
    }

    /// The bytes of a WRITE are in their place.
    #[inline(always)]
    fn written(
        &mut self,
        qp: &Qp,
        order: &mut RequestHeader,
    ) -> Result<Option<TryOutcome>, Broken> {
        self.meter.mapped();
        if order.opcode == opcode::RDMA_WRITE_WITH_IMM {
            return Ok(Some(
                match self
                    .links
                    .first_mut()
                    .map_or(Ok(TryOutcome::Wait(WaitReason::Peer)), |link| {
                        link.write_placed(order)
                    })? {
                    // A peer that closes never consumes; UC does not wait for it.
                    TryOutcome::Started(_) if qp.service == Service::Uc => {
                        TryOutcome::Started(CompletionCondition::Done)
                    }
                    step => step,
                },
            ));
        }
        Ok(Some(TryOutcome::Started(CompletionCondition::Done)))
    }

    /// READ and atomics, those included that find nothing; `outstanding`: how many are under way.
    /// `None`: not this way.
    #[inline(always)]
    pub(super) fn fetch(
        &mut self,
        qp: &Qp,
        order: &mut RequestHeader,
        parts: &[UserMemory],
        outstanding: usize,
    ) -> Result<Option<TryOutcome>, Broken> {
        let drained = self.ring_is_drained()?;
        let Some(link) = self.links.first_mut() else { return Ok(None) };
        let epoch = link.endpoint.peer_epoch();
        let is_read = order.opcode == opcode::RDMA_READ;
        let (needed, length) = match order.opcode {
            opcode::RDMA_READ => (access::REMOTE_READ, order.length),
            opcode::ATOMIC_WRITE => (access::REMOTE_WRITE, 8),
            _ => (access::REMOTE_ATOMIC, 8),
        };
        let range = (order.address, length);
        let reach = self.grants.reach(epoch, order.rkey, range, needed);
        let Some(mapped) = mapped(qp, link.peer.qpn, order.rkey, reach) else { return Ok(None) };
        // What was asked for earlier may be on its way to the same place of ours.
        if !drained || outstanding > 0 {
            return Ok(Some(TryOutcome::Wait(WaitReason::Order)));
        }
        let MappedRange::Whole(place) = mapped else {
            // An atomic that lies in two extents is misaligned.
            let done = is_read && self.read_spread(qp, order, parts, epoch);
            if done {
                self.meter.mapped();
            }
            return Ok(done.then_some(TryOutcome::Started(CompletionCondition::Done)));
        };
        let outside = (qp.shared.toll(), &*qp.shared.host);
        let at_hand = self.grants.at_hand(outside, place, length as usize);
        let Some((window, offset)) = at_hand else { return Ok(None) };
        let enter = || link.endpoint.enter_pages(epoch);
        if is_read {
            if !enter() {
                return Ok(None);
            }
            pieces(parts, 0, order.length, |at, piece| {
                window.drain(offset + at as usize, piece);
            });
            if !link.endpoint.leave_pages(epoch) {
                return Ok(None);
            }
        } else {
            // Misaligned atomics are the responder's to refuse.
            let aligned = order.address.is_multiple_of(8);
            let Some(cell) = window.cell(offset).filter(|_| aligned) else {
                return Ok(None);
            };
            if !enter() {
                return Ok(None);
            }
            let original = match order.opcode {
                opcode::ATOMIC_CMP_AND_SWP => cell.compare_swap(order.compare_add, order.swap),
                opcode::ATOMIC_WRITE => cell.store(eight(parts)).map(|()| 0),
                _ => cell.fetch_add(order.compare_add),
            };
            // Even if the owner did not wait: once more would be once too often.
            link.endpoint.leave_pages(epoch);
            let Some(original) = original else { return Ok(None) };
            if order.brings_back() {
                scatter_number(parts, original);
            }
        }
        self.meter.mapped();
        Ok(Some(TryOutcome::Started(CompletionCondition::Done)))
    }

    /// A WRITE to several extents. False: nothing was written.
    #[cold]
    fn write_spread(
        &mut self,
        qp: &Qp,
        order: &RequestHeader,
        parts: &[UserMemory],
        epoch: u64,
    ) -> bool {
        self.each_extent(qp, order, epoch, |window, offset, (done, length)| {
            pieces(parts, done, length, |at, piece| {
                window.fill_last_byte_last(offset + at as usize, piece);
            });
        })
    }

    /// A READ of several extents. False: nothing was read.
    #[cold]
    fn read_spread(
        &mut self,
        qp: &Qp,
        order: &RequestHeader,
        parts: &[UserMemory],
        epoch: u64,
    ) -> bool {
        self.each_extent(qp, order, epoch, |window, offset, (done, length)| {
            pieces(parts, done, length, |at, piece| window.drain(offset + at as usize, piece));
        })
    }

    /// Does something to each extent that an access lies in, in order, if all its pages are in
    /// memory: with the bytes of the access before those in it, and their number.
    fn each_extent(
        &mut self,
        qp: &Qp,
        order: &RequestHeader,
        epoch: u64,
        mut act: impl FnMut(&Window, usize, (u64, u64)),
    ) -> bool {
        let spread = self.grants.spread(order.rkey, (order.address, order.length));
        let outside = (qp.shared.toll(), &*qp.shared.host);
        for (place, length) in &spread {
            if self.grants.at_hand(outside, *place, *length).is_none() {
                return false;
            }
        }
        let Some(link) = self.links.first() else { return false };
        if !link.endpoint.enter_pages(epoch) {
            return false;
        }
        let mut done = 0;
        for (place, length) in &spread {
            if let Some((window, offset)) = self.grants.extent(*place) {
                act(window, offset, (done, *length as u64));
            }
            done += *length as u64;
        }
        link.endpoint.leave_pages(epoch) && !spread.is_empty()
    }
}

/// The eight bytes of an atomic WRITE; its length was checked.
pub(super) fn eight(parts: &[UserMemory]) -> [u8; 8] {
    let mut bytes = [0; 8];
    pieces(parts, 0, 8, |at, piece| piece.read(&mut bytes[at as usize..]));
    bytes
}

/// Stores what an atomic found into the requester's memory.
pub(super) fn scatter_number(parts: &[UserMemory], number: u64) {
    let bytes = number.to_ne_bytes();
    pieces(parts, 0, 8, |at, piece| piece.write(&bytes[at as usize..]));
}
