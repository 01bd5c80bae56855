//! Types for the sets of `select`, of which a program may have made as many words as it needs.

use core::ffi::c_int;

use super::pointers::During;
use super::slices::UserSliceMut;

/// The sets of a call: to read, to write, for the rest. Each may be null.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserFdSets<'a> {
    end: c_int,
    sets: [UserSliceMut<'a, u64>; 3],
}

impl<'a> UserFdSets<'a> {
    /// # Safety
    /// Each is null, or has a bit for all descriptors below `end`, which may be written.
    #[inline(always)]
    pub(crate) unsafe fn given(
        during: During<'a>,
        end: c_int,
        read: *mut libc::fd_set,
        write: *mut libc::fd_set,
        except: *mut libc::fd_set,
    ) -> Self {
        let words = end.max(0).unsigned_abs().div_ceil(u64::BITS);
        // SAFETY: as the caller says: `FD_SETSIZE` or not, they are in whole words.
        let set =
            |set: *mut libc::fd_set| unsafe { UserSliceMut::given(during, set.cast(), words) };
        Self { end, sets: [set(read), set(write), set(except)] }
    }

    /// A set of ours, to read.
    pub(crate) fn of_readers(words: &'a mut [u64]) -> Self {
        let end = words.len() as c_int * u64::BITS as c_int;
        let null = UserSliceMut::null(0);
        Self { end, sets: [UserSliceMut::of(words), null, null] }
    }

    /// One more than the last descriptor.
    #[inline(always)]
    pub(crate) fn end(self) -> c_int {
        self.end
    }

    /// The address of the set to read, for C.
    #[inline(always)]
    pub(crate) fn read(self) -> *mut libc::fd_set {
        self.sets[0].as_ptr().cast()
    }

    /// The address of the set to write, for C.
    #[inline(always)]
    pub(crate) fn write(self) -> *mut libc::fd_set {
        self.sets[1].as_ptr().cast()
    }

    /// The address of the set for the rest, for C.
    #[inline(always)]
    pub(crate) fn except(self) -> *mut libc::fd_set {
        self.sets[2].as_ptr().cast()
    }

    /// All words that each has.
    pub(crate) fn words(self) -> [UserSliceMut<'a, u64>; 3] {
        self.sets
    }
}
