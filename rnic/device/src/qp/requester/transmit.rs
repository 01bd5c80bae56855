//! Puts requests into the ring.

use super::mapped_operations::eight;
use super::payload_source::PayloadOrigin;
use super::{CompletionCondition, RequestHeader, TryOutcome, WaitReason};
use crate::limits::{SGE_MAX, SOURCE_MIN};
use crate::memory_region::RegionCache;
use crate::qp::link_table::LinkEnd;
use crate::qp::statistics::Meter;
use crate::qp::{Inner, Qp};
use crate::scatter_gather::pieces;
use crate::send_work_request::flushes;
use crate::verbs_constants::{opcode, send_flags};
use omniverb_link::Credit;
use omniverb_link::record::{FIRST, IMMEDIATE, INVALIDATE, LAST, PLACED, SOLICITED};
use omniverb_link::{Broken, Request};
use omniverb_ring::UserMemory;
use omniverb_terms::Service;

impl Inner {
    #[inline(always)]
    pub(super) fn transmit(
        &mut self,
        qp: &Qp,
        order: &mut RequestHeader,
        parts: &[UserMemory],
    ) -> Result<TryOutcome, Broken> {
        match self.path.is_plain() {
            true => self.transmit_untraced(qp, order, parts),
            false => self.transmit_watched(qp, order, parts),
        }
    }

    #[inline(always)]
    pub(super) fn transmit_untraced(
        &mut self,
        qp: &Qp,
        order: &mut RequestHeader,
        parts: &[UserMemory],
    ) -> Result<TryOutcome, Broken> {
        if qp.service == Service::Ud {
            let Inner { links, unresolved, machine, .. } = self;
            let attributes = machine.attributes();
            return Ok(links.transmit_datagram(unresolved, attributes, qp, order, parts));
        }
        let Some(link) = self.links.first_mut() else {
            return Ok(TryOutcome::Wait(WaitReason::Peer));
        };
        if !link.takes_requests(qp.service) {
            return Ok(TryOutcome::Wait(WaitReason::Peer));
        }
        if qp.service.is_extended()
            && !order.has_begun
            && !self.extended.name_srq(link, order.srq)?
        {
            return Ok(TryOutcome::Wait(WaitReason::Room));
        }
        // Whose memory a request is for, its SRQ says, which the grants do not know.
        let mappable = !link.peer.is_beyond_engine() && !qp.service.is_extended();
        match order.opcode {
            opcode::SEND | opcode::SEND_WITH_IMM | opcode::SEND_WITH_INV if mappable => {
                send(link, order, parts, None, qp.service)
            }
            opcode::SEND | opcode::SEND_WITH_IMM | opcode::SEND_WITH_INV => {
                let origin = origin(qp, &self.send_cache, link, parts);
                send(link, order, parts, origin, qp.service)
            }
            opcode::RDMA_WRITE | opcode::RDMA_WRITE_WITH_IMM => {
                if mappable
                    && !order.has_begun
                    && let Some(step) = self.mapped_pages().write(qp, order, parts)?
                {
                    return Ok(step);
                }
                let Some(link) = self.links.first_mut() else {
                    return Ok(TryOutcome::Wait(WaitReason::Peer));
                };
                let to_engine = link.peer.is_beyond_engine();
                let origin =
                    if to_engine { origin(qp, &self.send_cache, link, parts) } else { None };
                write(link, &mut self.meter, order, parts, origin, qp.service)
            }
            // What was mapped is visible already; whether a peer may ask is the owner's to say.
            opcode::FLUSH => request(link, &mut self.meter, order, parts),
            _ => {
                let outstanding = self.sends.outstanding();
                if mappable
                    && let Some(step) = self.mapped_pages().fetch(qp, order, parts, outstanding)?
                {
                    return Ok(step);
                }
                let Some(link) = self.links.first_mut() else {
                    return Ok(TryOutcome::Wait(WaitReason::Peer));
                };
                request(link, &mut self.meter, order, parts)
            }
        }
    }
}

/// Where the payload of a request is, if it may stay there, now or later.
#[inline]
fn origin(
    qp: &Qp,
    cache: &RegionCache,
    link: &LinkEnd,
    parts: &[UserMemory],
) -> Option<PayloadOrigin> {
    let [part] = parts else { return None };
    // Inline data is shorter: what is long is in the region that was looked up for it.
    if part.len() < SOURCE_MIN || qp.service != Service::Rc {
        return None;
    }
    PayloadOrigin::of(cache.latest()?, part, |key| link.endpoint.peer_reaches(key))
}

/// WRITE through the ring. One with immediate data needs a receive at the other end.
fn write(
    link: &mut LinkEnd,
    meter: &mut Meter,
    order: &mut RequestHeader,
    parts: &[UserMemory],
    origin: Option<PayloadOrigin>,
    service: Service,
) -> Result<TryOutcome, Broken> {
    let with_immediate = order.opcode == opcode::RDMA_WRITE_WITH_IMM;
    let reliable = service.is_reliable();
    if with_immediate && reliable && !order.has_begun && link.endpoint.credit() == Credit::None {
        return Ok(TryOutcome::Wait(WaitReason::Receive));
    }
    loop {
        let chunk = (order.length - order.done).min(chunk_max(link));
        let last = order.done + chunk == order.length;
        let flags = ending(order, last);
        let immediate = order.immediate;
        let request = if order.has_begun {
            Request::WriteMore { flags, immediate }
        } else {
            let (address, rkey, total) = (order.address, order.rkey, order.length);
            Request::WriteFirst { flags, address, rkey, immediate, total }
        };
        if !send_chunk(link, &request, order, chunk, parts, origin)? {
            return Ok(TryOutcome::Wait(WaitReason::Room));
        }
        // Once, however often there was no room for it.
        if matches!(request, Request::WriteFirst { .. }) {
            meter.mediated();
        }
        if last {
            break;
        }
    }
    if with_immediate && link.endpoint.credit() != Credit::Unpromised {
        link.endpoint.use_credit();
    }
    Ok(TryOutcome::Started(match reliable || link.peer.is_beyond_engine() {
        true => CompletionCondition::Consumed(0, link.endpoint.request_position()),
        false => CompletionCondition::Done,
    }))
}

impl LinkEnd {
    /// Tells the peer that a WRITE with immediate data, already placed, is complete.
    pub(super) fn write_placed(&mut self, order: &RequestHeader) -> Result<TryOutcome, Broken> {
        let request = Request::WriteFirst {
            flags: last_flags(order.opcode, order.flags) | PLACED,
            address: order.address,
            rkey: order.rkey,
            immediate: order.immediate,
            total: order.length,
        };
        if !self.endpoint.send_request(&request, 0, [])? {
            return Ok(TryOutcome::Wait(WaitReason::Room));
        }
        if self.endpoint.credit() != Credit::Unpromised {
            self.endpoint.use_credit();
        }
        Ok(TryOutcome::Started(CompletionCondition::Consumed(0, self.endpoint.request_position())))
    }
}

/// READ, atomic or FLUSH through the ring.
fn request(
    link: &mut LinkEnd,
    meter: &mut Meter,
    order: &mut RequestHeader,
    parts: &[UserMemory],
) -> Result<TryOutcome, Broken> {
    let RequestHeader { address, rkey, compare_add, swap, length, .. } = *order;
    let request = match order.opcode {
        opcode::RDMA_READ => Request::Read { address, rkey, length },
        opcode::ATOMIC_CMP_AND_SWP => {
            Request::CompareSwap { address, rkey, compare: compare_add, swap }
        }
        opcode::ATOMIC_WRITE => Request::AtomicWrite { address, rkey, value: eight(parts) },
        opcode::FLUSH => {
            // It was checked when it was posted.
            let Some((placement, selectivity)) = flushes(swap) else { return Err(Broken) };
            let length = compare_add;
            Request::Flush { address, rkey, length, placement, selectivity }
        }
        _ => Request::FetchAdd { address, rkey, add: compare_add },
    };
    if !link.endpoint.send_request(&request, 0, [])? {
        return Ok(TryOutcome::Wait(WaitReason::Room));
    }
    order.has_begun = true;
    meter.mediated();
    Ok(TryOutcome::Started(CompletionCondition::Response))
}

/// SEND through the ring.
#[inline(always)]
fn send(
    link: &mut LinkEnd,
    order: &mut RequestHeader,
    parts: &[UserMemory],
    origin: Option<PayloadOrigin>,
    service: Service,
) -> Result<TryOutcome, Broken> {
    let reliable = service.is_reliable();
    let credit = if reliable { link.endpoint.credit() } else { Credit::Unpromised };
    if !order.has_begun {
        match credit {
            Credit::None => return Ok(TryOutcome::Wait(WaitReason::Receive)),
            // What is to be invalidated may be no key that can be: the peer has the last word.
            Credit::Promised { floor } => {
                order.is_promised = order.length <= floor && order.opcode != opcode::SEND_WITH_INV;
            }
            Credit::Unpromised => order.is_promised = false,
        }
    }
    // What is complete when it is in the ring must be there.
    let origin = origin.filter(|_| !order.is_promised);
    loop {
        let chunk = (order.length - order.done).min(chunk_max(link));
        let last = order.done + chunk == order.length;
        let first = if order.has_begun { 0 } else { FIRST };
        let flags = ending(order, last) | first;
        let request = Request::Send { flags, immediate: order.immediate };
        let begins = !order.has_begun;
        if !send_chunk(link, &request, order, chunk, parts, origin)? {
            return Ok(TryOutcome::Wait(WaitReason::Room));
        }
        if begins && credit != Credit::Unpromised {
            link.endpoint.use_credit();
        }
        if last {
            break;
        }
    }
    // On a network an unreliable message is complete when it has left, as at any NIC: a program
    // that ends then leaves nothing behind.
    Ok(TryOutcome::Started(if order.is_promised || !reliable && !link.peer.is_beyond_engine() {
        CompletionCondition::Done
    } else {
        CompletionCondition::Consumed(0, link.endpoint.request_position())
    }))
}

/// Flags of a record that ends its message, or does not.
#[inline(always)]
fn ending(order: &RequestHeader, last: bool) -> u32 {
    if last { last_flags(order.opcode, order.flags) } else { 0 }
}

/// Flags of the record that ends the message of a request.
#[inline(always)]
pub(super) fn last_flags(code: u32, flags: u32) -> u32 {
    let solicited = if flags & send_flags::SOLICITED != 0 { SOLICITED } else { 0 };
    let carries = match code {
        opcode::SEND_WITH_IMM | opcode::RDMA_WRITE_WITH_IMM => IMMEDIATE,
        opcode::SEND_WITH_INV => INVALIDATE,
        _ => 0,
    };
    LAST | solicited | carries
}

#[inline(always)]
fn chunk_max(link: &LinkEnd) -> u64 {
    link.peer.chunk_max(link.endpoint.request_payload_max()) as u64
}

/// One record with the next `chunk` bytes, or with the place where they are.
#[inline(always)]
fn send_chunk(
    link: &mut LinkEnd,
    request: &Request,
    order: &mut RequestHeader,
    chunk: u64,
    parts: &[UserMemory],
    origin: Option<PayloadOrigin>,
) -> Result<bool, Broken> {
    let sent =
        if let (Some(PayloadOrigin { source, is_reached: true, .. }), [part]) = (origin, parts) {
            link.send_from(request, source, part.skip(order.done as usize).first(chunk as usize))?
        } else if chunk == order.length {
            link.endpoint.send_request(request, chunk as usize, parts)?
        } else {
            send_piece(link, request, order.done, chunk, parts)?
        };
    if sent {
        order.has_begun = true;
        order.done += chunk;
        if let Some(origin) = origin.filter(|origin| !origin.is_reached) {
            link.note_copied(&origin, chunk);
        }
    }
    Ok(sent)
}

#[inline(never)]
fn send_piece(
    link: &mut LinkEnd,
    request: &Request,
    from: u64,
    chunk: u64,
    parts: &[UserMemory],
) -> Result<bool, Broken> {
    let mut list = [UserMemory::EMPTY; SGE_MAX as usize];
    let mut count = 0;
    pieces(parts, from, chunk, |_, piece| {
        list[count] = piece;
        count += 1;
    });
    link.endpoint.send_request(request, chunk as usize, &list[..count])
}
