//! Type for an `iovec` of a caller of a hook.

use core::marker::PhantomData;

use omniverb_ring::UserMemory;

use super::pointers::During;
use super::slices::UserSlice;

/// A part of a call, as C describes it: its bytes are there for as long as the call.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct UserPart<'a>(libc::iovec, During<'a>);

impl<'a> UserPart<'a> {
    /// A part without bytes.
    pub(crate) const EMPTY: Self =
        Self(libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }, PhantomData);

    /// The same without its first bytes, and no more than `most` of the others.
    pub(crate) fn part(&self, from: usize, most: usize) -> Self {
        let from = from.min(self.0.iov_len);
        let iov_len = (self.0.iov_len - from).min(most);
        let iov_base = self.0.iov_base.wrapping_byte_add(from);
        Self(libc::iovec { iov_base, iov_len }, PhantomData)
    }

    /// The one part of a call that has one.
    #[inline(always)]
    pub(crate) fn of(bytes: UserSlice<'a, u8>) -> Self {
        let iov_base = bytes.as_ptr().cast_mut().cast();
        Self(libc::iovec { iov_base, iov_len: bytes.len() }, PhantomData)
    }

    /// How many bytes the caller says it has.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.0.iov_len
    }

    /// It has none, or they are somewhere.
    #[inline(always)]
    pub(crate) fn is_there(&self) -> bool {
        !self.0.iov_base.is_null() || self.0.iov_len == 0
    }

    /// Its bytes from one on, no more than `most`.
    #[inline(always)]
    pub(crate) fn piece(&self, from: usize, most: usize) -> UserMemory {
        let Self(part, _) = self.part(from, most);
        // SAFETY: the program's own memory, as the maker of this has promised.
        unsafe { UserMemory::new(part.iov_base.expose_provenance(), part.iov_len) }
    }
}
