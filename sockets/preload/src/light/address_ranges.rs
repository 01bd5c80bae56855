//! Decides to which addresses connections are light: to all, or to configured ranges.
//!
//! Ranges come from `sockets_light` of the daemon's configuration, by which `omniverb run` tells
//! programs.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicUsize, Ordering};

use omniverb_connection::light::frame::Endpoint;
use omniverb_formats::address_range::{self, MOST, Range};

use crate::socket_marks::Marks;

struct All(UnsafeCell<[Option<Range>; MOST]>);
// SAFETY: written at the start of the program only, before anybody looks.
unsafe impl Sync for All {}
static ALL: All = All(UnsafeCell::new([None; MOST]));
/// How many there are. [`EVERYWHERE`]: connections are light to all addresses.
static COUNT: AtomicUsize = AtomicUsize::new(EVERYWHERE);
const EVERYWHERE: usize = usize::MAX;

/// At the start: those of a text. What is none is left out: who has written it was told. Whether
/// there are any.
///
/// # Safety
/// No other thread is in here.
pub(super) unsafe fn begin(text: &CStr) -> bool {
    // SAFETY: as the caller says.
    let all = unsafe { &mut *ALL.0.get() };
    let found = address_range::each(text.to_str().unwrap_or_default()).filter_map(Result::ok);
    let mut count = 0;
    for (place, range) in all.iter_mut().zip(found) {
        *place = Some(range);
        count += 1;
    }
    COUNT.store(count, Ordering::Relaxed);
    count > 0
}

fn any(is_one: impl Fn(&Range) -> bool) -> bool {
    match COUNT.load(Ordering::Relaxed) {
        EVERYWHERE => true,
        // SAFETY: written at the start only.
        count => unsafe { &*ALL.0.get() }.iter().take(count).flatten().any(is_one),
    }
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

/// Who listens there may be reached by such an address.
pub(super) fn may_hear(name: &Endpoint) -> bool {
    match name.is_any() {
        true => any(|range| range.has_port(name.port)),
        false => has(name),
    }
}
