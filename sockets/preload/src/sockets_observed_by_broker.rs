//! Marks sockets that the broker observes to learn where the network brings connections
//! (`light/observed_connections.rs`), though no link may be worth it.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::socket_facts_by_fd::{Marks, word};
use crate::{descriptor_tables, vfork_check};

static WANTED: Marks = Marks::new();
/// The one that is being offered since it was accepted just now, and by which thread: another one's
/// may be overlooked. (A child of `fork` is another thread.)
static ACCEPTED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

fn id(fd: c_int) -> u32 {
    descriptor_tables::look(fd).id()
}

/// This one is to be seen.
pub(crate) fn wants(fd: c_int) {
    WANTED.put(fd, id(fd));
}

/// That was said.
pub(crate) fn is_wanted(fd: c_int) -> bool {
    WANTED.has(fd, id(fd))
}

/// One that was accepted just now is offered.
pub(crate) fn accepted(fd: c_int, offers: impl FnOnce(c_int)) {
    wants(fd);
    ACCEPTED[1].store(vfork_check::this_thread(), Ordering::Relaxed);
    ACCEPTED[0].store(word(fd, id(fd)), Ordering::Relaxed);
    offers(fd);
    ACCEPTED[0].store(0, Ordering::Relaxed);
}

/// This one is.
pub(crate) fn was_just_accepted(fd: c_int) -> bool {
    let [one, thread] = [0, 1].map(|which: usize| ACCEPTED[which].load(Ordering::Relaxed));
    one == word(fd, id(fd)) && thread == vfork_check::this_thread()
}
