//! Sockets that the broker is to see, though no link may be worth it: by them it finds out where
//! the network brings connections (`light/proving.rs`).

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::{place, table};

/// Those, by number and identity: of so many the latest.
static WANTED: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
/// The one that is being offered since it was accepted just now, and by which thread: another one's
/// may be overlooked. (A child of `fork` is another thread.)
static ACCEPTED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// A word that no other socket has.
fn word(number: c_int) -> u64 {
    u64::from(number.unsigned_abs()) << 32 | u64::from(table::look(number).id())
}

fn wanted(number: c_int) -> &'static AtomicU64 {
    &WANTED[number.unsigned_abs() as usize % WANTED.len()]
}

/// This one is to be seen.
pub(crate) fn wants(number: c_int) {
    wanted(number).store(word(number), Ordering::Relaxed);
}

/// That was said.
pub(crate) fn is_wanted(number: c_int) -> bool {
    wanted(number).load(Ordering::Relaxed) == word(number)
}

/// One that was accepted just now is offered.
pub(crate) fn accepted(number: c_int, offers: impl FnOnce(c_int)) {
    wants(number);
    ACCEPTED[1].store(place::this_thread(), Ordering::Relaxed);
    ACCEPTED[0].store(word(number), Ordering::Relaxed);
    offers(number);
    ACCEPTED[0].store(0, Ordering::Relaxed);
}

/// This one is.
pub(crate) fn was_just_accepted(number: c_int) -> bool {
    let [one, thread] = [0, 1].map(|which: usize| ACCEPTED[which].load(Ordering::Relaxed));
    one == word(number) && thread == place::this_thread()
}
