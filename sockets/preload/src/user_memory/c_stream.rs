//! Type for a stream of the C library.

use core::ffi::c_int;
use core::marker::PhantomData;

use super::pointers::During;

/// A stream that is open for the call, or null.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserFile<'a>(*mut libc::FILE, During<'a>);

impl<'a> UserFile<'a> {
    /// # Safety
    /// It is one, or null.
    pub(crate) unsafe fn given(_: During<'a>, stream: *mut libc::FILE) -> Self {
        Self(stream, PhantomData)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Its descriptor; -1, and `errno`, if it has none.
    pub(crate) fn fd(self) -> c_int {
        // SAFETY: one is there, as the maker of this has promised.
        if self.is_null() { -1 } else { unsafe { libc::fileno(self.0) } }
    }
}
