//! Entry point for fuzzers: bytes in, nothing out, never a panic.

use crate::{IpHeader, MAD_BYTES, Mad, Message, ServiceId};

/// Parses arbitrary bytes, and the same as the fields of a message whose kind the first byte says;
/// what is understood survives being written and read again.
pub fn message(bytes: &[u8]) {
    parse(bytes);
    let Some((kind, rest)) = bytes.split_first() else { return };
    let mut mad = [0; MAD_BYTES];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]); // of the communication manager, sent
    mad[17] = 0x10 + kind % 16;
    let fields = &mut mad[24..];
    let length = rest.len().min(fields.len());
    fields[..length].copy_from_slice(&rest[..length]);
    parse(&mad);
}

fn parse(bytes: &[u8]) {
    let Ok(mad) = Mad::parse(bytes) else { return };
    assert_eq!(Mad::parse(&mad.to_bytes()).as_ref(), Ok(&mad));
    if let Message::Request(request) = &mad.message {
        let _ = (IpHeader::read(&request.private), ServiceId::from_u64(request.service));
    }
}
