//! Entry points for fuzzers: bytes in, nothing out, never a panic.

use crate::local_addresses::{messages, parse_address, parse_link};
use crate::proc_maps::{BUFFER_BYTES, lines};
use core::ops::ControlFlow;
use std::collections::BTreeMap;

/// An answer of the kernel about interfaces and their addresses, whatever it may be.
pub fn addresses(bytes: &[u8]) {
    let mut links = BTreeMap::new();
    let _ = messages(bytes, |_, body| links.extend(parse_link(body)));
    let _ = messages(bytes, |_, body| {
        let _ = parse_address(body, &links);
    });
}

/// Any text in place of `/proc/self/maps`, in pieces whose sizes the bytes say as well.
pub fn maps(bytes: &[u8]) {
    let mut rest = bytes;
    let piece = 1 + usize::from(bytes.first().copied().unwrap_or(0)) * 40;
    let mut seen = 0;
    let _ = lines(
        |buffer| {
            let (now, after) = rest.split_at(rest.len().min(piece).min(buffer.len()));
            buffer[..now.len()].copy_from_slice(now);
            rest = after;
            Ok(now.len())
        },
        |mapping| {
            seen += 1;
            assert!(mapping.name.len() <= BUFFER_BYTES && seen <= bytes.len());
            ControlFlow::Continue(())
        },
    );
}
