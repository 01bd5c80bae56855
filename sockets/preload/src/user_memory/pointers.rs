//! Types for one value at an address, and for the call that it is given to.

use core::marker::PhantomData;

use super::readable_pages::can_read;

/// A call of the program's that is under way.
pub(crate) struct CallFrame(());

/// What a call gave stays as long as the call.
pub(crate) type During<'a> = PhantomData<&'a CallFrame>;

impl CallFrame {
    #[inline(always)]
    pub(crate) fn begin() -> Self {
        Self(())
    }

    #[inline(always)]
    pub(crate) fn during(&self) -> During<'_> {
        PhantomData
    }
}

/// They are addresses, whatever is there.
macro_rules! copied {
    ($($name:ident)*) => {
        $(
            impl<T> Clone for $name<'_, T> {
                #[inline(always)]
                fn clone(&self) -> Self {
                    *self
                }
            }
            impl<T> Copy for $name<'_, T> {}
        )*
    };
}
pub(super) use copied;

/// Where a value is that a call reads, or null.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct UserPtr<'a, T>(pub(super) *const T, pub(super) During<'a>);

/// Where a value is that a call reads and writes, or null.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct UserPtrMut<'a, T>(pub(super) *mut T, pub(super) During<'a>);

copied!(UserPtr UserPtrMut);

impl<'a, T: Copy> UserPtr<'a, T> {
    /// There is no value.
    pub(crate) const NULL: Self = Self(core::ptr::null(), PhantomData);

    /// # Safety
    /// The pointer is null, or a `T` is there for the call, at any alignment.
    #[inline(always)]
    pub(crate) unsafe fn given(_: During<'a>, pointer: *const T) -> Self {
        Self(pointer, PhantomData)
    }

    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// It is null, or can be read.
    #[inline(always)]
    pub(crate) fn is_readable(self) -> bool {
        self.0.is_null() || can_read(self.0.addr(), size_of::<T>())
    }

    /// One of ours.
    #[inline(always)]
    pub(crate) fn of(value: &'a T) -> Self {
        Self(value, PhantomData)
    }

    /// The address, for C.
    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *const T {
        self.0
    }

    /// A copy of the value, if there is one.
    #[inline(always)]
    pub(crate) fn read(self) -> Option<T> {
        // SAFETY: there is one, as the maker of this has promised.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }
}

impl<'a, T: Copy> UserPtrMut<'a, T> {
    /// There is no value.
    #[cfg(test)]
    pub(crate) const NULL: Self = Self(core::ptr::null_mut(), PhantomData);

    /// # Safety
    /// As of [`UserPtr::given`]; and it may be written.
    #[inline(always)]
    pub(crate) unsafe fn given(_: During<'a>, pointer: *mut T) -> Self {
        Self(pointer, PhantomData)
    }

    /// One of ours.
    #[inline(always)]
    pub(crate) fn of(value: &'a mut T) -> Self {
        Self(value, PhantomData)
    }

    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The address, for C.
    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *mut T {
        self.0
    }

    /// The same, for what only reads.
    #[inline(always)]
    pub(crate) fn as_const(self) -> UserPtr<'a, T> {
        UserPtr(self.0, PhantomData)
    }

    /// A copy of the value, if there is one.
    #[inline(always)]
    pub(crate) fn read(self) -> Option<T> {
        self.as_const().read()
    }

    /// Puts a value there, if there is a place for it.
    #[inline(always)]
    pub(crate) fn write(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: there is, as the maker of this has promised.
            unsafe { self.0.write_unaligned(value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_leads_to_nothing_and_takes_nothing() {
        let none = UserPtrMut::<u64>::NULL;
        none.write(1);
        assert!(none.is_null() && none.read().is_none() && none.as_const().read().is_none());
        assert_eq!(UserPtr::<u64>::NULL.read(), None);
    }

    #[test]
    fn a_value_is_read_and_written_at_any_alignment() {
        let (frame, mut bytes) = (CallFrame::begin(), [0_u8; 9]);
        let odd = bytes[1..].as_mut_ptr().cast::<u64>();
        // SAFETY: eight bytes.
        let place = unsafe { UserPtrMut::given(frame.during(), odd) };
        place.write(u64::MAX - 1);
        assert_eq!(place.read(), Some(u64::MAX - 1));
        assert_eq!(bytes[0], 0);
    }

    #[test]
    fn a_value_of_ours_is_lent_as_it_is() {
        let mut value = 3;
        UserPtrMut::of(&mut value).write(4);
        assert_eq!(UserPtr::of(&value).read(), Some(4));
    }
}
