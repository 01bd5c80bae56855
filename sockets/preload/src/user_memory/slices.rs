//! Types for so many values, or bytes, one after another.

use core::ffi::c_int;
use core::marker::PhantomData;

use omniverb_ring::UserMemory;

use super::pointers::{During, UserPtr, UserPtrMut, copied};
use super::readable_pages::can_read;

/// So many values, one after another, that a call reads; or null.
#[derive(Debug)]
pub(crate) struct UserSlice<'a, T> {
    pub(super) start: *const T,
    pub(super) count: usize,
    pub(super) of: During<'a>,
}

/// So many values that a call reads and writes, or null.
#[derive(Debug)]
pub(crate) struct UserSliceMut<'a, T> {
    pub(super) start: *mut T,
    pub(super) count: usize,
    pub(super) of: During<'a>,
}

copied!(UserSlice UserSliceMut);

/// A list of pointers, as [`UserPtr`]s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserPointers<'a, T>(UserSlice<'a, *const T>);

impl<'a, T: Copy> UserPointers<'a, T> {
    /// # Safety
    /// As of [`UserSlice::given`], and each is null or leads to a value that is there for the call.
    pub(crate) unsafe fn given(
        during: During<'a>,
        start: *const *const T,
        count: impl Count,
    ) -> Self {
        // SAFETY: as the caller says.
        Self(unsafe { UserSlice::given(during, start, count) })
    }

    /// Calls with all that there are.
    pub(crate) fn each(self, with: impl Fn(UserPtr<'a, T>)) {
        let pointers = (0..self.0.len()).map_while(|index| self.0.get(index));
        pointers.for_each(|pointer| with(UserPtr(pointer, PhantomData)));
    }
}

/// How C says how many there are.
pub(crate) trait Count {
    /// `None`: it is no count.
    fn count(self) -> Option<usize>;
}

/// Wider types lose nothing on the platforms there are.
macro_rules! counts {
    ($($name:ident)*) => {
        $(
            impl Count for $name {
                #[inline(always)]
                fn count(self) -> Option<usize> {
                    usize::try_from(self).ok()
                }
            }
        )*
    };
}
counts!(usize u64 u32 c_int);

impl<'a, T: Copy> UserSlice<'a, T> {
    /// So many at no address, as C may say.
    #[cfg(test)]
    pub(crate) fn null(count: impl Count) -> Self {
        let count = count.count().unwrap_or(usize::MAX);
        Self { start: core::ptr::null(), count, of: PhantomData }
    }

    /// # Safety
    /// The pointer is null, or so many are there for the call, at any alignment. (A count below
    /// zero makes a list of more than there can be, at no address.)
    #[inline(always)]
    pub(crate) unsafe fn given(_: During<'a>, start: *const T, count: impl Count) -> Self {
        match count.count() {
            Some(count) => Self { start, count, of: PhantomData },
            // The kernel is to say that.
            None => Self { start: core::ptr::null(), count: usize::MAX, of: PhantomData },
        }
    }

    /// Some of ours.
    #[inline(always)]
    pub(crate) fn of(values: &'a [T]) -> Self {
        Self { start: values.as_ptr(), count: values.len(), of: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.start.is_null()
    }

    /// It is null, or the first of them can be read, at most so many.
    #[inline(always)]
    pub(crate) fn is_readable(self, most: usize) -> bool {
        let bytes = self.count.min(most).saturating_mul(size_of::<T>());
        self.start.is_null() || can_read(self.start.addr(), bytes)
    }

    /// How many the caller says there are.
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.count
    }

    /// The address, for C.
    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *const T {
        self.start
    }

    /// A copy of the one of this index, if it is there.
    #[inline(always)]
    pub(crate) fn get(self, index: usize) -> Option<T> {
        let is_there = index < self.count && !self.start.is_null();
        is_there.then(|| UserPtr(self.start.wrapping_add(index), PhantomData).read()).flatten()
    }

    /// All of them, if they are there, aligned, and no more than `most`. The program may change
    /// them meanwhile, which its call would not survive either.
    #[inline(always)]
    pub(crate) fn as_slice(self, most: usize) -> Option<&'a [T]> {
        let is_list = !self.start.is_null() && self.start.is_aligned() && self.count <= most;
        // SAFETY: they are, as the maker of this has promised.
        is_list.then(|| unsafe { core::slice::from_raw_parts(self.start, self.count) })
    }
}

impl<'a, T: Copy> UserSliceMut<'a, T> {
    /// So many at no address, as C may say.
    pub(crate) fn null(count: impl Count) -> Self {
        let count = count.count().unwrap_or(usize::MAX);
        Self { start: core::ptr::null_mut(), count, of: PhantomData }
    }

    /// # Safety
    /// As of [`UserSlice::given`]; and they may be written.
    #[inline(always)]
    pub(crate) unsafe fn given(_: During<'a>, start: *mut T, count: impl Count) -> Self {
        match count.count() {
            Some(count) => Self { start, count, of: PhantomData },
            // The kernel is to say that.
            None => Self { start: core::ptr::null_mut(), count: usize::MAX, of: PhantomData },
        }
    }

    /// Some of ours.
    #[inline(always)]
    pub(crate) fn of(values: &'a mut [T]) -> Self {
        Self { start: values.as_mut_ptr(), count: values.len(), of: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.start.is_null()
    }

    /// How many the caller says there are.
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.count
    }

    /// The address, for C.
    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *mut T {
        self.start
    }

    /// The same, for what only reads.
    #[inline(always)]
    pub(crate) fn as_const(self) -> UserSlice<'a, T> {
        UserSlice { start: self.start, count: self.count, of: PhantomData }
    }

    /// Where the one of this index is.
    pub(crate) fn at(self, index: usize) -> Option<UserPtrMut<'a, T>> {
        let is_there = index < self.count && !self.start.is_null();
        is_there.then(|| UserPtrMut(self.start.wrapping_add(index), PhantomData))
    }

    /// A copy of the one of this index, if it is there.
    #[inline(always)]
    pub(crate) fn get(self, index: usize) -> Option<T> {
        self.as_const().get(index)
    }

    /// Puts a value at this index, if there is a place for it.
    #[inline(always)]
    pub(crate) fn set(self, index: usize, value: T) {
        if let Some(place) = self.at(index) {
            place.write(value);
        }
    }

    /// The first of them, at most so many.
    #[inline(always)]
    pub(crate) fn first(self, count: usize) -> Self {
        Self { count: self.count.min(count), ..self }
    }

    /// All of them, if they are there, aligned, and no more than `most`.
    ///
    /// # Safety
    /// Nothing else in here uses them meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn as_mut_slice(self, most: usize) -> Option<&'a mut [T]> {
        let is_list = !self.start.is_null() && self.start.is_aligned() && self.count <= most;
        // SAFETY: they are, as the maker of this has promised; nothing else of ours has them.
        is_list.then(|| unsafe { core::slice::from_raw_parts_mut(self.start, self.count) })
    }
}

impl<'a> UserSliceMut<'a, u8> {
    /// As many bytes, at an address that is none of the program's.
    ///
    /// # Safety
    /// Nothing is read or written there.
    pub(crate) unsafe fn nowhere(self) -> UserSlice<'a, u8> {
        UserSlice { start: core::ptr::dangling(), count: self.count, of: PhantomData }
    }

    /// Copies bytes to a place behind the first ones, as many as there is room for.
    pub(crate) fn put(self, offset: usize, bytes: &[u8]) {
        let Some(room) = self.as_const().memory().map(|all| all.skip(offset)) else { return };
        room.write(bytes);
    }
}

impl UserSlice<'_, u8> {
    /// Copies the first bytes, as many as there is room for: those.
    pub(crate) fn copy_to(self, room: &mut [u8]) -> &[u8] {
        let length = self.memory().map_or(0, |all| all.len().min(room.len()));
        if let Some(all) = self.memory() {
            all.read(room);
        }
        &room[..length]
    }

    /// Copies of so many bytes, if all of them are there.
    pub(crate) fn array<const N: usize>(self, offset: usize) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.memory()?.part(offset, N)?.read(&mut bytes);
        Some(bytes)
    }

    /// The bytes, if there are any, as what copies them takes them.
    #[inline(always)]
    pub(crate) fn memory(self) -> Option<UserMemory> {
        let is_some =
            !self.start.is_null() && self.count > 0 && isize::try_from(self.count).is_ok();
        // SAFETY: they are there, as the maker of this has promised.
        is_some.then(|| unsafe { UserMemory::new(self.start.expose_provenance(), self.count) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user_memory::CallFrame;

    fn list<T: Copy>(frame: &CallFrame, start: *const T, count: impl Count) -> UserSlice<'_, T> {
        // SAFETY: the tests below give lists of their own, or null.
        unsafe { UserSlice::given(frame.during(), start, count) }
    }

    #[test]
    fn a_null_list_has_nothing_however_long_it_is() {
        let frame = CallFrame::begin();
        let list = list::<u32>(&frame, core::ptr::null(), 7_u64);
        assert!(list.is_null() && list.len() == 7, "the kernel is to see both");
        assert_eq!(list.get(0), None);
        assert!(list.as_slice(usize::MAX).is_none());
    }

    #[test]
    fn a_count_below_zero_is_more_than_there_can_be_at_no_address() {
        let (frame, numbers) = (CallFrame::begin(), [1_u8, 2]);
        let list = list(&frame, numbers.as_ptr(), -1 as c_int);
        assert!(list.is_null() && list.len() == usize::MAX);
        assert_eq!((list.get(0), list.memory().is_none()), (None, true));
        assert_eq!(list.array::<1>(0), None);
    }

    #[test]
    fn an_index_behind_the_end_is_not_read_nor_written() {
        let mut numbers = [1_u16, 2, 3];
        let all = UserSliceMut::of(&mut numbers[..2]);
        all.set(1, 7);
        all.set(2, 9);
        assert_eq!((all.get(0), all.get(1), all.get(2)), (Some(1), Some(7), None));
        assert_eq!(numbers, [1, 7, 3]);
    }

    #[test]
    fn values_are_read_at_any_alignment_and_lists_only_at_theirs() {
        let frame = CallFrame::begin();
        let bytes = [0_u32, 0x0403_0201, 0x0807_0605].map(u32::to_le_bytes);
        let odd = bytes.as_flattened()[1..].as_ptr().cast::<u32>();
        let list = list(&frame, odd, 2_usize);
        assert_eq!(list.get(1), Some(u32::from_le_bytes([2, 3, 4, 5])));
        assert!(list.as_slice(2).is_none());
    }

    #[test]
    fn a_list_longer_than_asked_for_is_no_slice() {
        let numbers = [1, 2, 3];
        assert_eq!(UserSlice::of(&numbers).as_slice(3), Some(&numbers[..]));
        assert_eq!(UserSlice::of(&numbers).as_slice(2), None);
    }

    #[test]
    fn the_first_of_a_list_are_no_more_than_there_are() {
        let mut numbers = [10_u64, 11, 12];
        let all = UserSliceMut::of(&mut numbers);
        let first = all.first(2);
        assert_eq!((first.len(), first.get(1), first.get(2)), (2, Some(11), None));
        assert_eq!(all.first(4).len(), 3);
        let none = UserSliceMut::<u64>::null(8_u32).first(4);
        assert!(none.is_null() && none.len() == 4);
    }

    #[test]
    fn bytes_that_no_object_can_have_are_none() {
        let (frame, byte) = (CallFrame::begin(), [0_u8]);
        assert!(list(&frame, byte.as_ptr(), 0_usize).memory().is_none());
        assert!(list(&frame, byte.as_ptr(), usize::MAX).memory().is_none());
        assert!(list::<u8>(&frame, core::ptr::null(), 1_usize).memory().is_none());
        let memory = UserSlice::of(&byte).memory().map(|memory| (memory.address(), memory.len()));
        assert_eq!(memory, Some((byte.as_ptr().addr(), 1)));
    }

    #[test]
    fn an_array_is_whole_or_nothing() {
        let bytes = UserSlice::of(&[1, 2, 3, 4, 5]);
        assert_eq!(bytes.array(1), Some([2, 3, 4, 5]));
        assert_eq!(bytes.array::<4>(2), None);
        assert_eq!(bytes.array::<1>(usize::MAX), None);
    }

    #[test]
    fn as_many_bytes_are_copied_as_both_have() {
        let mut room = [9; 4];
        assert_eq!(UserSlice::of(&[1, 2]).copy_to(&mut room), [1, 2]);
        assert_eq!(room, [1, 2, 9, 9]);
        assert_eq!(UserSlice::of(&[1, 2, 3, 4, 5]).copy_to(&mut room), [1, 2, 3, 4]);
        let mut bytes = [0; 4];
        UserSliceMut::of(&mut bytes).put(2, &[7, 8, 9]);
        UserSliceMut::of(&mut bytes).put(5, &[1]);
        assert_eq!(bytes, [0, 0, 7, 8]);
    }
}
