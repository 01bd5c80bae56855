//! Decides to which addresses connections are light: to all, or to configured ranges.
//!
//! Ranges come from `sockets_light` of the daemon's configuration, by which `omniverb run` tells
//! programs.

use core::ffi::{CStr, c_int};
use std::sync::OnceLock;

use omniverb_connection::light::frame::Endpoint;
use omniverb_formats::address_range::{self, MOST, Range};

use crate::socket_facts_by_fd::Marks;

/// Those that there are, without which connections are light to all addresses.
static ALL: OnceLock<[Option<Range>; MOST]> = OnceLock::new();

/// At the start, when there is one thread: takes the ranges of a text. Invalid ones are left out,
/// as the user was told. Whether there are any.
pub(super) fn begin(text: &CStr) -> bool {
    let mut all = [None; MOST];
    let found = address_range::each(text.to_str().unwrap_or_default()).filter_map(Result::ok);
    let mut count = 0;
    for (place, range) in all.iter_mut().zip(found) {
        *place = Some(range);
        count += 1;
    }
    _ = ALL.set(all);
    count > 0
}

fn any(is_one: impl Fn(&Range) -> bool) -> bool {
    ALL.get().is_none_or(|all| all.iter().flatten().any(is_one))
}

/// Listening sockets that are outside.
static LEFT_OUT: Marks = Marks::new();

/// What listens at a descriptor is outside all ranges.
pub(super) fn leaves_out(fd: c_int, id: u32) {
    LEFT_OUT.put(fd, id);
}

/// That was said, of what has this identity.
pub(super) fn has_left_out(fd: c_int, id: u32) -> bool {
    LEFT_OUT.has(fd, id)
}

/// Connections to this address are light, if they can be.
pub(super) fn has(to: &Endpoint) -> bool {
    any(|range| range.has(to.address, to.port))
}

/// Whether a listener at this name may be reached by such an address.
pub(super) fn may_hear(name: &Endpoint) -> bool {
    match name.is_any() {
        true => any(|range| range.has_port(name.port)),
        false => has(name),
    }
}
