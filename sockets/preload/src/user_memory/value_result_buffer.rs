//! Type for room that says itself how large it is.

use core::marker::PhantomData;

use super::pointers::{During, UserPtrMut};
use super::slices::UserSliceMut;

/// Room for bytes with its size beside it, which then says how many there are; or null. As
/// `getsockopt` and `accept` have it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserBuffer<'a> {
    to: *mut u8,
    length: UserPtrMut<'a, u32>,
}

/// What is said of bytes that had not all room.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// How many were copied.
    Copied,
    /// How many there are.
    Whole,
}

impl<'a> UserBuffer<'a> {
    /// # Safety
    /// Each is null, or there for the call; and as many bytes as the size says may be written.
    #[inline(always)]
    pub(crate) unsafe fn given(_: During<'a>, to: *mut u8, length: *mut u32) -> Self {
        Self { to, length: UserPtrMut(length, PhantomData) }
    }

    /// Room of ours, all of it.
    pub(crate) fn of(bytes: &'a mut [u8], length: &'a mut u32) -> Self {
        *length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        Self { to: bytes.as_mut_ptr(), length: UserPtrMut::of(length) }
    }

    /// There is a place for bytes.
    #[inline(always)]
    pub(crate) fn has_place(self) -> bool {
        !self.to.is_null()
    }

    /// Nothing can be written, or nothing said of it.
    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.to.is_null() || self.length.is_null()
    }

    /// The address of the room, for C.
    #[inline(always)]
    pub(crate) fn place(self) -> *mut u8 {
        self.to
    }

    /// The address of its size, for C.
    #[inline(always)]
    pub(crate) fn size(self) -> *mut u32 {
        self.length.as_ptr()
    }

    /// The size, as it is now.
    pub(crate) fn length(self) -> usize {
        self.length.read().unwrap_or(0) as usize
    }

    fn room(self) -> UserSliceMut<'a, u8> {
        UserSliceMut { start: self.to, count: self.length(), of: PhantomData }
    }

    /// Copies bytes there, as many as there is room for, and nothing else.
    pub(crate) fn put(self, bytes: &[u8]) {
        self.room().put(0, bytes);
    }

    /// The same, and says how many.
    pub(crate) fn give(self, bytes: &[u8], says: Length) {
        if self.is_null() {
            return;
        }
        self.put(bytes);
        let length = match says {
            Length::Copied => self.length().min(bytes.len()),
            Length::Whole => bytes.len(),
        };
        self.length.write(length as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user_memory::CallFrame;

    #[test]
    fn a_short_buffer_gets_the_beginning_and_hears_the_length() {
        for (says, length) in [(Length::Whole, 5), (Length::Copied, 3)] {
            let (mut bytes, mut said) = ([0; 4], 0);
            UserBuffer::of(&mut bytes[..3], &mut said).give(&[1, 2, 3, 4, 5], says);
            assert_eq!((bytes, said), ([1, 2, 3, 0], length));
        }
    }

    #[test]
    fn a_long_buffer_keeps_what_is_behind() {
        let (mut bytes, mut said) = ([9; 4], 0);
        UserBuffer::of(&mut bytes, &mut said).give(&[1, 2], Length::Copied);
        assert_eq!((bytes, said), ([1, 2, 9, 9], 2));
    }

    #[test]
    fn a_buffer_without_a_size_or_a_place_gets_nothing() {
        let (frame, mut bytes, mut said) = (CallFrame::begin(), [9_u8; 4], 4_u32);
        let (to, length) = (bytes.as_mut_ptr(), &raw mut said);
        for (to, length) in [(core::ptr::null_mut(), length), (to, core::ptr::null_mut())] {
            // SAFETY: null, or as many as the size says.
            let buffer = unsafe { UserBuffer::given(frame.during(), to, length) };
            assert!(buffer.is_null());
            buffer.give(&[1], Length::Whole);
            buffer.put(&[1]);
        }
        assert_eq!((bytes, said), ([9; 4], 4));
    }

    #[test]
    fn what_is_put_changes_no_length() {
        let (mut bytes, mut said) = ([0; 2], 0);
        UserBuffer::of(&mut bytes, &mut said).put(&[1, 2, 3]);
        assert_eq!((bytes, said), ([1, 2], 2));
    }
}
