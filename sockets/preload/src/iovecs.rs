//! Wraps the program's `iovec` lists: where bytes come from, or go to.

use omniverb_ring::UserMemory;

use crate::user_memory::{UserMessageMut, UserPart, UserSlice};

/// Parts of a call by a link: one with more is the kernel's.
pub(crate) const MOST: usize = 64;
/// Parts of any call (`IOV_MAX`).
pub(crate) const IOV_MAX: usize = 1024;

/// A list of parts, and how many bytes they have.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a> {
    all: &'a [UserPart<'a>],
    total: usize,
    has_control: bool,
}

impl<'a> Parts<'a> {
    /// `None` if only the kernel knows what is wrong with them.
    pub(crate) fn new(all: &'a [UserPart<'a>]) -> Option<Self> {
        let mut total = 0_usize;
        for part in all {
            if !part.is_there() {
                return None;
            }
            total = total.checked_add(part.len())?;
        }
        let is_some = all.len() <= IOV_MAX && isize::try_from(total).is_ok();
        is_some.then_some(Self { all, total, has_control: false })
    }

    /// Of a list of the program's.
    pub(crate) fn of(all: UserSlice<'a, UserPart<'a>>) -> Option<Self> {
        Parts::new(all.as_slice(IOV_MAX)?)
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
        (part.len() > 0).then_some(part.piece(0, usize::MAX))
    }

    /// Calls with each piece of `length` bytes from `from` on, and how many were before it.
    #[inline(always)]
    pub(crate) fn each(&self, from: usize, length: usize, mut with: impl FnMut(usize, UserMemory)) {
        let (mut skip, mut left, mut done) = (from, length, 0);
        for part in self.all {
            if left == 0 {
                return;
            }
            let begin = skip.min(part.len());
            skip -= begin;
            let piece = part.piece(begin, left);
            if !piece.is_empty() {
                with(done, piece);
                (left, done) = (left - piece.len(), done + piece.len());
            }
        }
    }

    /// Calls with a message of what is left behind `from` bytes, but no more than `most`, of a list
    /// that a link can move.
    pub(crate) fn lend_rest<R>(
        &self,
        from: usize,
        most: usize,
        to: impl FnOnce(UserMessageMut<'_>) -> R,
    ) -> R {
        let (mut list, mut count) = ([UserPart::EMPTY; MOST], 0);
        let mut skip = from;
        let mut left = most;
        for part in self.all {
            let rest = part.part(skip, left);
            skip -= skip.min(part.len());
            left -= rest.len();
            if rest.len() > 0
                && let Some(place) = list.get_mut(count)
            {
                (*place, count) = (rest, count + 1);
            }
        }
        UserMessageMut::lend(&list[..count], to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user_memory::CallFrame;

    /// Parts of so many bytes each.
    fn parts<'a>(bytes: &'a [u8], lengths: &[usize]) -> Vec<UserPart<'a>> {
        let mut rest = bytes;
        let mut next = |length: usize| {
            let (part, behind) = rest.split_at(length);
            rest = behind;
            UserPart::of(UserSlice::of(part))
        };
        lengths.iter().map(|length| next(*length)).collect()
    }

    fn described(base: usize, length: usize) -> libc::iovec {
        libc::iovec { iov_base: core::ptr::without_provenance_mut(base), iov_len: length }
    }

    /// What is made of a list that C describes so, of which no byte is looked at.
    fn is_list(all: &[libc::iovec]) -> bool {
        let frame = CallFrame::begin();
        // SAFETY: so many, whose bytes are not used.
        let all = unsafe { UserSlice::given(frame.during(), all.as_ptr().cast(), all.len()) };
        Parts::of(all).is_some()
    }

    #[test]
    fn what_only_the_kernel_can_judge_is_no_list() {
        assert!(is_list(&[]) && is_list(&[described(0, 0)]) && is_list(&[described(8, 8)]));
        assert!(!is_list(&[described(8, 8), described(0, 1)]), "at no address");
        assert!(!is_list(&[described(8, usize::MAX), described(8, 1)]), "more than can be counted");
        assert!(!is_list(&[described(8, isize::MAX as usize), described(8, 1)]), "or returned");
        assert!(is_list(&[described(8, isize::MAX as usize)]));
    }

    #[test]
    fn a_list_has_no_more_parts_than_the_kernel_takes() {
        assert!(is_list(&vec![described(8, 1); IOV_MAX]));
        assert!(!is_list(&vec![described(8, 1); IOV_MAX + 1]));
    }

    #[test]
    fn a_null_list_and_one_of_a_count_below_zero_are_none() {
        assert!(Parts::of(UserSlice::null(1_usize)).is_none());
        assert!(Parts::of(UserSlice::null(-1)).is_none());
    }

    #[test]
    fn a_link_moves_few_parts_only() {
        let few = vec![UserPart::of(UserSlice::of(&[])); MOST + 1];
        assert!(Parts::new(&few[..MOST]).is_some_and(|parts| parts.are_few()));
        assert!(Parts::new(&few).is_some_and(|parts| !parts.are_few()));
    }

    #[test]
    fn the_only_piece_is_one_with_something_in_it() {
        let bytes = [1, 2, 3];
        let only =
            |all: &[UserPart<'_>]| Parts::new(all).and_then(|all| all.only().map(|one| one.len()));
        assert_eq!(only(&parts(&bytes, &[3])), Some(3));
        assert_eq!(only(&parts(&bytes, &[0])), None);
        assert_eq!(only(&parts(&bytes, &[1, 2])), None);
    }

    #[test]
    fn pieces_cover_a_stretch_once_in_order() {
        let bytes: Vec<u8> = (0..30).collect();
        let all = parts(&bytes, &[0, 7, 1, 0, 20, 2]);
        let all = Parts::new(&all).unwrap();
        assert_eq!(all.total(), 30);
        for from in 0..=31 {
            for length in 0..=31 {
                let mut seen = Vec::new();
                all.each(from, length, |done, piece| {
                    assert_eq!(done, seen.len());
                    let mut copy = vec![0; piece.len()];
                    piece.read(&mut copy);
                    seen.extend(copy);
                });
                let end = (from + length).min(30);
                assert_eq!(seen, bytes[from.min(30)..end.max(from.min(30))], "{from} {length}");
            }
        }
    }

    #[test]
    fn the_rest_is_a_message_of_what_is_left_and_wanted() {
        let bytes = [0; 12];
        let all = parts(&bytes, &[4, 4, 4]);
        let all = Parts::new(&all).unwrap();
        let lengths = |from, most| {
            all.lend_rest(from, most, |message| {
                let parts = message.as_const().parts();
                (0..parts.len())
                    .filter_map(|index| parts.get(index))
                    .map(|part| part.len())
                    .collect()
            })
        };
        let none: Vec<usize> = lengths(12, 4);
        assert_eq!(lengths(0, usize::MAX), [4, 4, 4]);
        assert_eq!(lengths(5, 4), [3, 1]);
        assert_eq!(lengths(5, 0), none);
        assert_eq!(lengths(13, usize::MAX), none);
    }
}
