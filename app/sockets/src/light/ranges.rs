//! Which addresses connections are light to: all, or those in ranges that the administrator has
//! said (`sockets_light` of the daemon's configuration, by which `omniverb run` tells programs).

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use omniverb_carry::range::{self, MOST, Range};
use omniverb_stream::light::frame::Name;

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
/// Nobody else is in here.
pub(super) unsafe fn begin(text: &CStr) -> bool {
    // SAFETY: as the caller says.
    let all = unsafe { &mut *ALL.0.get() };
    let found = range::each(text.to_str().unwrap_or_default()).filter_map(Result::ok);
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

/// Listening sockets that are outside, by number and identity: of so many the latest.
static LEFT_OUT: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];

fn left_out(number: c_int, id: u32) -> (&'static AtomicU64, u64) {
    let number = number.unsigned_abs();
    (&LEFT_OUT[number as usize % LEFT_OUT.len()], u64::from(number) << 32 | u64::from(id))
}

/// What listens at a number is outside all ranges.
pub(super) fn leaves_out(number: c_int, id: u32) {
    let (place, listener) = left_out(number, id);
    place.store(listener, Ordering::Relaxed);
}

/// That was said, of what has this identity.
pub(super) fn has_left_out(number: c_int, id: u32) -> bool {
    let (place, listener) = left_out(number, id);
    place.load(Ordering::Relaxed) == listener
}

/// Connections to this address are light, if they can be.
pub(super) fn has(to: &Name) -> bool {
    any(|range| range.has(to.address, to.port))
}

/// Who listens there may be reached by such an address.
pub(super) fn may_hear(name: &Name) -> bool {
    match name.is_any() {
        true => any(|range| range.has_port(name.port)),
        false => has(name),
    }
}
