//! Asks the kernel about more descriptors than one `ppoll` may have.
//!
//! The kernel refuses lists that are longer than the limit of descriptors (`RLIMIT_NOFILE`). A list
//! of ours may be, though the program's call is right: `select` has no such limit, and a sleeper
//! adds doorbells.

use core::ffi::c_int;

use libc::{pollfd, sigset_t, timespec};
use rustix::process::{Resource, getrlimit};

use crate::errno::errno;
use crate::next_library;
use crate::user_memory::{UserPtr, UserSliceMut};

/// The `ppoll` that has just failed was refused for the length of its list.
pub(crate) fn is_too_long(count: usize) -> bool {
    errno() == libc::EINVAL && count > limit()
}

fn limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Looks at all of a list, part by part. If none is ready it waits for `pause` with this mask, and
/// for nothing but signals. As of `ppoll`.
#[cold]
pub(crate) fn poll_in_parts(
    all: &mut [pollfd],
    pause: &timespec,
    mask: UserPtr<'_, sigset_t>,
) -> c_int {
    static ZERO: timespec = timespec { tv_sec: 0, tv_nsec: 0 };
    let mut found = 0;
    for part in all.chunks_mut(limit().max(1)) {
        let got = next_library::ppoll(UserSliceMut::of(part), UserPtr::of(&ZERO), UserPtr::NULL);
        if got < 0 {
            return got;
        }
        found += got;
    }
    if found != 0 {
        return found;
    }
    next_library::ppoll(UserSliceMut::of(&mut []), UserPtr::of(pause), mask)
}
