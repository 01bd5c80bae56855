//! Entry point for fuzzers: bytes in, nothing out, never a panic.

use crate::addresses::{messages, parse_address, parse_link};
use std::collections::BTreeMap;

/// An answer of the kernel about interfaces and their addresses, whatever it may be.
pub fn addresses(bytes: &[u8]) {
    let mut links = BTreeMap::new();
    let _ = messages(bytes, |_, body| links.extend(parse_link(body)));
    let _ = messages(bytes, |_, body| {
        let _ = parse_address(body, &links);
    });
}
