//! Maps memory of the kernel's for tables, and for lists of one call too long for the stack.

pub(super) use omniverb_connection::light::budgets::{CHANNELS, SLOTS};
use omniverb_connection::light::{Block, Slot};

use crate::anonymous_mappings::{Mapping, Sharing, Zeros};

/// So many entries are on the stack.
const FEW: usize = 64;

// SAFETY: numbers, and enumerations that have a zero.
unsafe impl Zeros for Slot {}
// SAFETY: numbers.
unsafe impl Zeros for Block {}

/// Calls with a list of so many, unless there is no memory for it. A call that is left in the
/// middle, by `longjmp` or cancellation, leaves them there.
pub(crate) fn with_list(count: usize, act: impl FnOnce(&mut [libc::pollfd])) {
    let empty = libc::pollfd { fd: -1, events: 0, revents: 0 };
    if count <= FEW {
        return act(&mut [empty; FEW][..count]);
    }
    if let Some(mut list) = Mapping::new(count, Sharing::Private) {
        act(&mut list);
    }
}

/// So many of what may be all zeros, of which the kernel gives memory when they are touched.
pub(super) fn zeros<T: Zeros>(count: usize) -> Option<&'static mut [T]> {
    Mapping::new(count, Sharing::Sparse).map(Mapping::leak)
}
