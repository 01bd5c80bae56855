//! Sockets that the broker is to see, though no link may be worth it: by them it finds out where
//! the network brings connections (`light/proving.rs`).

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::marks::{Marks, word};
use crate::{place, table};

static WANTED: Marks = Marks::new();
/// The one that is being offered since it was accepted just now, and by which thread: another one's
/// may be overlooked. (A child of `fork` is another thread.)
static ACCEPTED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

fn id(number: c_int) -> u32 {
    table::look(number).id()
}

/// This one is to be seen.
pub(crate) fn wants(number: c_int) {
    WANTED.put(number, id(number));
}

/// That was said.
pub(crate) fn is_wanted(number: c_int) -> bool {
    WANTED.has(number, id(number))
}

/// One that was accepted just now is offered.
pub(crate) fn accepted(number: c_int, offers: impl FnOnce(c_int)) {
    wants(number);
    ACCEPTED[1].store(place::this_thread(), Ordering::Relaxed);
    ACCEPTED[0].store(word(number, id(number)), Ordering::Relaxed);
    offers(number);
    ACCEPTED[0].store(0, Ordering::Relaxed);
}

/// This one is.
pub(crate) fn was_just_accepted(number: c_int) -> bool {
    let [one, thread] = [0, 1].map(|which: usize| ACCEPTED[which].load(Ordering::Relaxed));
    one == word(number, id(number)) && thread == place::this_thread()
}
