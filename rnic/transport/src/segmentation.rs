//! Cuts messages into packets (9.2.1, 9.7.1): all but the last are as long as the path MTU.

use crate::Operation;
use crate::work_request::Request;
use omniverb_terms::Service;
use omniverb_wire::{
    Bth, Builder, Ieth, ImmDt, Opcode, Operation as Code, PacketPosition, Reth, XrcEth,
};

/// Packets, and so PSNs, that `length` bytes take; at least one.
pub(crate) fn packets(length: u64, path_mtu: usize) -> u64 {
    length.div_ceil(path_mtu as u64).max(1)
}

/// Bytes in packet `index`.
pub(crate) fn payload(length: u64, path_mtu: usize, index: u64) -> usize {
    (length - index * path_mtu as u64).min(path_mtu as u64) as usize
}

/// Packet `index` of a SEND or WRITE, to be filled with payload. `naming`: each packet names what
/// is left of the WRITE, in which the piece stands at this offset; so each is a first one, or the
/// only one. `None`: not such a request, or the buffer is too small.
pub(crate) fn begin<'a>(
    datagram: &'a mut [u8],
    service: Service,
    request: &Request,
    (index, count): (u64, u64),
    path_mtu: usize,
    naming: Option<u64>,
    header: impl FnOnce(u8) -> Bth,
) -> Option<Builder<'a>> {
    let begins = naming.is_some() || index == 0 && request.place.begins();
    let ends = index + 1 == count && request.place.ends();
    let bytes = payload(request.length, path_mtu, index);
    let place = PacketPosition::new(begins, ends);
    let at_end = |immediate: Option<[u8; 4]>| immediate.filter(|_| ends).map(ImmDt);
    let (operation, immediate, invalidated, address, solicited) = match request.operation {
        Operation::Send { immediate, invalidate, solicited } => {
            let immediate = at_end(immediate);
            let invalidate = invalidate.filter(|_| ends && immediate.is_none()).map(Ieth::new);
            let send = Code::Send {
                place,
                immediate: immediate.is_some(),
                invalidate: invalidate.is_some(),
            };
            (send, immediate, invalidate, None, solicited)
        }
        Operation::Write { address, key, total, immediate, solicited } => {
            let immediate = at_end(immediate);
            let write = Code::Write { place, immediate: immediate.is_some() };
            let before = naming.map_or(0, |offset| offset + index * path_mtu as u64);
            let (from, left) = (address.wrapping_add(before), total.saturating_sub(before));
            let address = begins.then(|| Reth::new(from, key, left as u32));
            (write, immediate, None, address, solicited && immediate.is_some())
        }
        _ => return None,
    };
    let opcode = Opcode::new(service, operation);
    let bth = header(opcode.to_byte()).solicited(solicited && ends);
    let srq = service.is_extended().then(|| XrcEth::new(request.srq));
    let builder = Builder::new(datagram, opcode, bth, bytes)?.maybe(srq);
    Some(builder.maybe(address).maybe(immediate).maybe(invalidated))
}
