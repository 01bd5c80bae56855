//! The program's buffers: several, as one row of bytes.

use libc::iovec;

/// How far a row of buffers has been gone through.
pub(crate) struct IovecCursor<'a> {
    parts: &'a [iovec],
    /// Bytes of the first part that are done.
    done: usize,
    left: usize,
}

impl<'a> IovecCursor<'a> {
    /// From the beginning.
    ///
    /// # Safety
    /// Each part has its bytes for as long as this is used.
    pub(crate) unsafe fn new(parts: &'a [iovec]) -> IovecCursor<'a> {
        let left = parts.iter().fold(0_usize, |sum, part| sum.saturating_add(part.iov_len));
        IovecCursor { parts, done: 0, left }
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Goes on by `count` bytes, piece by piece: `each` is given where a piece is, and its length.
    fn go(&mut self, count: usize, mut each: impl FnMut(*mut u8, usize)) {
        let mut count = count.min(self.left);
        self.left -= count;
        while let Some((part, rest)) = self.parts.split_first() {
            let bytes = count.min(part.iov_len - self.done);
            if bytes > 0 {
                each(part.iov_base.cast::<u8>().wrapping_add(self.done), bytes);
            }
            self.done += bytes;
            count -= bytes;
            if self.done < part.iov_len {
                return;
            }
            (self.parts, self.done) = (rest, 0);
        }
    }

    /// Copies the next bytes out of the program's buffers.
    ///
    /// # Safety
    /// `to` has room for them.
    pub(crate) unsafe fn copy_to(&mut self, mut to: *mut u8, count: usize) {
        self.go(count, |from, bytes| {
            // SAFETY: the promises of the caller and of `new`; a program may well receive into
            // what it sends from.
            unsafe { omniverb_ring::copy_many(from, to, bytes) };
            to = to.wrapping_add(bytes);
        });
    }

    /// Copies bytes into the program's buffers, as far as there is room.
    ///
    /// # Safety
    /// `from` has so many bytes.
    pub(crate) unsafe fn copy_from(&mut self, mut from: *const u8, count: usize) {
        self.go(count, |to, bytes| {
            // SAFETY: as above.
            unsafe { omniverb_ring::copy_many(from, to, bytes) };
            from = from.wrapping_add(bytes);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_buffers_are_one_row() {
        let mut given = [*b"abc", *b"def", *b"ghi"];
        let [first, second, third] = given.each_mut().map(|part| part.as_mut_ptr().cast());
        let part = |iov_base, iov_len| iovec { iov_base, iov_len };
        let parts = [part(first, 3), part(second, 0), part(second, 2), part(third, 3)];
        // SAFETY: buffers of these lengths.
        unsafe {
            let mut vector = IovecCursor::new(&parts);
            let mut out = [0; 8];
            vector.copy_to(out.as_mut_ptr(), 4);
            assert_eq!((&out[..4], vector.left()), (&b"abcd"[..], 4));
            vector.copy_to(out.as_mut_ptr(), 100);
            assert_eq!((&out[..4], vector.left()), (&b"eghi"[..], 0));
            let mut vector = IovecCursor::new(&parts);
            vector.copy_from(b"12345".as_ptr(), 5);
            vector.copy_from(b"6789".as_ptr(), 4);
        }
        assert_eq!(given.concat(), b"12345f678");
    }
}
