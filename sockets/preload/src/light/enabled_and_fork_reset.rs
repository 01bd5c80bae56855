//! Tells whether this process may have light connections, and starts anew in a child of `fork`.
//!
//! A child finds by itself that it is one, however it was made: a page is wiped on fork. What its
//! parent has is not its own.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{broker, connect_accept, descriptors, sleepers, state};
use crate::anonymous_mappings::WipedPage;
use crate::errno::keeping_errno;
use crate::{library_fds, vfork_check};

/// This process has a state: not 0. A child of `fork` finds it wiped.
static HERE: WipedPage<AtomicU64> = WipedPage::new(AtomicU64::new(0));
static IS_ON: AtomicBool = AtomicBool::new(false);

/// There may be light connections in this process.
#[inline(always)]
pub(super) fn is_on() -> bool {
    HERE.load(Ordering::Relaxed) != 0
        || IS_ON.load(Ordering::Relaxed) && vfork_check::is_this_process() && is_child()
}

/// At the start of the program. `false`: there are none, ever.
pub(super) fn begin() -> bool {
    let is_begun = HERE.wipe_on_fork()
        && library_fds::makes_room()
        && connect_accept::begin()
        && state::begin();
    HERE.store(u64::from(is_begun), Ordering::Relaxed);
    IS_ON.store(is_begun, Ordering::Release);
    is_begun
}

/// There may be light connections in this process, or in what it is a child of.
pub(crate) fn is_begun() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// A child, which has come here for the first time. (One of `vfork` is in its parent's memory, and
/// finds nothing wiped.)
#[cold]
fn is_child() -> bool {
    HERE.store(1, Ordering::Relaxed);
    keeping_errno(|| {
        library_fds::close_inherited();
        sleepers::begin_anew();
        descriptors::each(0, u32::MAX).for_each(|fd| _ = descriptors::put(fd, None));
        let is_begun = state::begin_anew() && connect_accept::begin();
        state::with(|state| broker::begin_anew(state));
        if !is_begun {
            IS_ON.store(false, Ordering::Relaxed);
            HERE.store(0, Ordering::Relaxed);
        }
        is_begun
    })
}
