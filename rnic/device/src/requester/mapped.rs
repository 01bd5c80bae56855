//! One-sided operations on pages that are mapped here: the requester does them itself.
//!
//! Order: requests of a QP take effect in the order they were posted. A mapped operation takes
//! effect at once, so it may only be used when everything sent before it has been consumed. Until
//! then a short WRITE follows the others through the ring; everything else waits: the ring drains
//! once, and the rest of a pipeline is mapped. Memory order is the CPU's: what was written by
//! earlier mapped operations is visible before anything published afterwards.

use super::{Finish, Order, Step, Why};
use crate::constants::{access, opcode, qp_type};
use crate::gather::pieces;
use crate::grants::Reach;
use crate::limits::{DETOURS_MAX, MEDIATED_MAX};
use crate::qp::{Inner, Qp};
use omniverb_link::Broken;
use omniverb_link::endpoint::Credit;
use omniverb_ring::{UserMemory, WordMemory};

impl Inner {
    /// Whether nothing we sent is still on its way.
    #[inline(always)]
    fn ring_is_drained(&mut self) -> Result<bool, Broken> {
        let Some(link) = self.links.first_mut() else { return Ok(false) };
        let position = link.endpoint.request_position();
        link.endpoint.request_consumed(position)
    }

    /// WRITE. `None`: not this way.
    #[inline(always)]
    pub(super) fn write_mapped(
        &mut self,
        qp: &Qp,
        order: &mut Order,
        parts: &[UserMemory],
    ) -> Result<Option<Step>, Broken> {
        let drained = self.ring_is_drained()?;
        let Some(link) = self.links.first_mut() else { return Ok(None) };
        let with_immediate = order.opcode == opcode::RDMA_WRITE_WITH_IMM;
        let epoch = link.endpoint.peer_epoch();
        let reach =
            self.grants.reach(epoch, order.rkey, order.address, order.length, access::REMOTE_WRITE);
        let (grant, offset) = match reach {
            Reach::Mapped(grant, offset) => (grant, offset),
            Reach::Ask => {
                qp.shared.host.request_grant(qp.number, link.peer.qpn, order.rkey);
                return Ok(None);
            }
            Reach::Mediated => return Ok(None),
        };
        if !drained {
            // A few short ones may overtake the wait; a pipeline of them must not go on for ever.
            let detour = order.length <= MEDIATED_MAX && self.detours < DETOURS_MAX;
            self.detours += u32::from(detour);
            return Ok((!detour).then_some(Step::Wait(Why::Order)));
        }
        self.detours = 0;
        if with_immediate && link.endpoint.credit() == Credit::None {
            return Ok(None);
        }
        match parts {
            [part] => grant.window.fill_last_byte_last(offset, *part),
            _ => {
                let mut at = offset;
                for part in parts {
                    grant.window.fill_last_byte_last(at, *part);
                    at += part.len();
                }
            }
        }
        self.meter.mapped();
        if with_immediate {
            return Ok(Some(match self.write_placed(order)? {
                // A peer that closes never consumes; UC does not wait for it.
                Step::Started(_) if qp.kind == qp_type::UC => Step::Started(Finish::Done),
                step => step,
            }));
        }
        Ok(Some(Step::Started(Finish::Done)))
    }

    /// READ and atomics. `None`: not this way.
    #[inline(always)]
    pub(super) fn fetch_mapped(
        &mut self,
        qp: &Qp,
        order: &mut Order,
        parts: &[UserMemory],
    ) -> Result<Option<Step>, Broken> {
        let drained = self.ring_is_drained()?;
        let Some(link) = self.links.first_mut() else { return Ok(None) };
        let epoch = link.endpoint.peer_epoch();
        let is_read = order.opcode == opcode::RDMA_READ;
        let (needed, length) =
            if is_read { (access::REMOTE_READ, order.length) } else { (access::REMOTE_ATOMIC, 8) };
        let reach = self.grants.reach(epoch, order.rkey, order.address, length, needed);
        let (grant, offset) = match reach {
            Reach::Mapped(grant, offset) => (grant, offset),
            Reach::Ask => {
                qp.shared.host.request_grant(qp.number, link.peer.qpn, order.rkey);
                return Ok(None);
            }
            Reach::Mediated => return Ok(None),
        };
        if !drained {
            return Ok(Some(Step::Wait(Why::Order)));
        }
        if is_read {
            pieces(parts, 0, order.length, |at, piece| {
                grant.window.drain(offset + at as usize, piece);
            });
        } else {
            // Misaligned atomics are the responder's to refuse.
            let aligned = order.address.is_multiple_of(8);
            let Some(cell) = grant.window.cell(offset).filter(|_| aligned) else {
                return Ok(None);
            };
            let original = match order.opcode {
                opcode::ATOMIC_CMP_AND_SWP => cell.compare_swap(order.compare_add, order.swap),
                _ => cell.fetch_add(order.compare_add),
            };
            let Some(original) = original else { return Ok(None) };
            scatter_number(parts, original);
        }
        self.meter.mapped();
        Ok(Some(Step::Started(Finish::Done)))
    }
}

/// Stores what an atomic found into the requester's memory.
pub(super) fn scatter_number(parts: &[UserMemory], number: u64) {
    let bytes = number.to_ne_bytes();
    pieces(parts, 0, 8, |at, piece| piece.write(&bytes[at as usize..]));
}
