//! Entry point for fuzzers: bytes in, nothing out, never a panic.

use crate::{IpHeader, Mad, Message, ServiceId};

/// Parses arbitrary bytes; what is understood survives being written and read again.
pub fn message(bytes: &[u8]) {
    let Ok(mad) = Mad::parse(bytes) else { return };
    assert_eq!(Mad::parse(&mad.to_bytes()).as_ref(), Ok(&mad));
    if let Message::Request(request) = &mad.message {
        let _ = (IpHeader::read(&request.private), ServiceId::from_u64(request.service));
    }
}
