//! Sockets that the broker is to see, though no link may be worth it: by them it finds out where
//! the network brings connections (`light/proving.rs`).

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::table;

/// Those, by number and identity: of so many the latest.
static WANTED: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
/// The one that is being offered since it was accepted just now: one thread's, and another one's
/// may be overlooked.
static ACCEPTED: AtomicU64 = AtomicU64::new(0);

/// A word that no other socket has.
fn word(number: c_int) -> u64 {
    u64::from(number.unsigned_abs()) << 32 | u64::from(table::look(number).id())
}

fn place(number: c_int) -> &'static AtomicU64 {
    &WANTED[number.unsigned_abs() as usize % WANTED.len()]
}

/// This one is to be seen.
pub(crate) fn wants(number: c_int) {
    place(number).store(word(number), Ordering::Relaxed);
}

/// That was said.
pub(crate) fn is_wanted(number: c_int) -> bool {
    place(number).load(Ordering::Relaxed) == word(number)
}

/// One that was accepted just now is offered.
pub(crate) fn accepted(number: c_int, offers: impl FnOnce(c_int)) {
    wants(number);
    ACCEPTED.store(word(number), Ordering::Relaxed);
    offers(number);
    ACCEPTED.store(0, Ordering::Relaxed);
}

/// This one is.
pub(crate) fn was_just_accepted(number: c_int) -> bool {
    ACCEPTED.load(Ordering::Relaxed) == word(number)
}
