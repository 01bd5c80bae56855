//! Wraps the program's `iovec` lists: where bytes come from, or go to.

use core::ffi::{c_int, c_void};

use omniverb_ring::UserMemory;

/// Parts of a call by a link: one with more is the kernel's.
pub(crate) const MOST: usize = 64;
/// Parts of any call (`IOV_MAX`).
pub(crate) const IOV_MAX: usize = 1024;

/// A list of parts, and how many bytes they have.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a> {
    all: &'a [libc::iovec],
    total: usize,
    has_control: bool,
}

/// The one part of a call that has one.
pub(crate) fn one(bytes: *const c_void, length: usize) -> [libc::iovec; 1] {
    [libc::iovec { iov_base: bytes.cast_mut(), iov_len: length }]
}

/// The list of a call that has one part. `place` lives as long as the call.
pub(crate) fn one_part(
    bytes: *const c_void,
    length: usize,
    place: &mut [libc::iovec; 1],
) -> Option<Parts<'static>> {
    *place = one(bytes, length);
    // SAFETY: the caller keeps it for as long as its call.
    unsafe { Parts::of(place.as_ptr(), 1) }
}

impl<'a> Parts<'a> {
    /// `None` if only the kernel knows what is wrong with them.
    pub(crate) fn new(all: &'a [libc::iovec]) -> Option<Self> {
        let mut total = 0_usize;
        for part in all {
            if part.iov_base.is_null() && part.iov_len > 0 {
                return None;
            }
            total = total.checked_add(part.iov_len)?;
        }
        let is_some = all.len() <= IOV_MAX && isize::try_from(total).is_ok();
        is_some.then_some(Self { all, total, has_control: false })
    }

    /// Of a pointer and a count.
    ///
    /// # Safety
    /// So many are there, if the count makes sense.
    pub(crate) unsafe fn of(all: *const libc::iovec, count: usize) -> Option<Parts<'a>> {
        let is_list = !all.is_null() && all.is_aligned() && count <= IOV_MAX;
        // SAFETY: as the caller says.
        let all = is_list.then(|| unsafe { core::slice::from_raw_parts(all, count) })?;
        Parts::new(all)
    }

    /// The same with a count of C.
    ///
    /// # Safety
    /// As [`Self::of`].
    pub(crate) unsafe fn of_count(all: *const libc::iovec, count: c_int) -> Option<Parts<'a>> {
        // SAFETY: as the caller says.
        usize::try_from(count).ok().and_then(|count| unsafe { Parts::of(all, count) })
    }

    /// A link can move them.
    pub(super) fn are_few(&self) -> bool {
        self.all.len() <= MOST
    }

    /// The call has room for what the kernel says of the bytes that it gives.
    pub(crate) fn and_control(self, bytes: usize) -> Self {
        Self { has_control: bytes > 0, ..self }
    }

    pub(super) fn has_control(&self) -> bool {
        self.has_control
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// The only piece there is, if it is one, with something in it.
    #[inline(always)]
    pub(crate) fn only(&self) -> Option<UserMemory> {
        let [part] = self.all else { return None };
        // SAFETY: the program's own memory, as it said.
        let piece = unsafe { UserMemory::new(part.iov_base as usize, part.iov_len) };
        (part.iov_len > 0).then_some(piece)
    }

    /// Calls with each piece of `length` bytes from `from` on, and how many were before it.
    #[inline(always)]
    pub(crate) fn each(&self, from: usize, length: usize, mut with: impl FnMut(usize, UserMemory)) {
        let (mut skip, mut left, mut done) = (from, length, 0);
        for part in self.all {
            if left == 0 {
                return;
            }
            let begin = skip.min(part.iov_len);
            skip -= begin;
            let bytes = (part.iov_len - begin).min(left);
            if bytes > 0 {
                // SAFETY: the program's own memory, as it said.
                let piece = unsafe { UserMemory::new(part.iov_base as usize + begin, bytes) };
                with(done, piece);
                (left, done) = (left - bytes, done + bytes);
            }
        }
    }

    /// What is left behind `from` bytes, but no more than `most`, as a list.
    pub(super) fn rest(&self, from: usize, most: usize, list: &mut [libc::iovec; MOST]) -> usize {
        let mut count = 0;
        self.each(from, most.min(self.total - from.min(self.total)), |_, piece| {
            list[count] =
                libc::iovec { iov_base: piece.address() as *mut c_void, iov_len: piece.len() };
            count += 1;
        });
        count
    }
}

/// An empty list.
pub(super) fn list() -> [libc::iovec; MOST] {
    [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; MOST]
}

/// A message of such a list.
pub(super) fn message(list: &mut [libc::iovec; MOST], count: usize) -> libc::msghdr {
    // SAFETY: integers and pointers, which may be zero.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = list.as_mut_ptr();
    message.msg_iovlen = count;
    message
}
