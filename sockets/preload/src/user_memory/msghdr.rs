//! Types for `msghdr` of a caller of a hook, alone or in a list: its parts, its control data, and
//! what a receiver is told there.

use core::ffi::c_int;
use core::marker::PhantomData;

use super::iovec::UserPart;
use super::pointers::{During, UserPtr};
use super::slices::{Count, UserSlice, UserSliceMut};

/// A message that a call reads, or null.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserMessage<'a>(*const libc::msghdr, During<'a>);

/// A message that a call reads, and says there what has come; or null.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserMessageMut<'a>(*mut libc::msghdr, During<'a>);

/// A list of messages, with a length for each that a call writes; or null.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserMessages<'a>(UserSliceMut<'a, libc::mmsghdr>);

/// Bytes before the data of a control message; messages begin at multiples of a word.
const HEADER: usize = size_of::<libc::cmsghdr>();
const WORD: usize = size_of::<usize>();
const NUMBER: usize = size_of::<c_int>();

impl<'a> UserMessage<'a> {
    /// # Safety
    /// The pointer is null, or to a message that is there for the call, with all that it names.
    #[inline(always)]
    pub(crate) unsafe fn given(_: During<'a>, message: *const libc::msghdr) -> Self {
        Self(message, PhantomData)
    }

    /// There is no message.
    #[cfg(test)]
    pub(crate) const NULL: Self = Self(core::ptr::null(), PhantomData);

    /// Calls with a message of ours that has these parts and nothing else.
    #[cfg(test)]
    pub(crate) fn lend<R>(parts: &[UserPart<'_>], to: impl FnOnce(UserMessage<'_>) -> R) -> R {
        UserMessageMut::lend(parts, |message| to(message.as_const()))
    }

    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The address, for C.
    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *const libc::msghdr {
        self.0
    }

    #[inline(always)]
    fn header(self) -> Option<libc::msghdr> {
        // SAFETY: it is there, as the maker of this has promised.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// It is null, or can be read with the list of its parts, of which there may be so many.
    #[inline(always)]
    pub(crate) fn is_readable(self, most: usize) -> bool {
        UserPtr(self.0, PhantomData).is_readable() && self.parts().is_readable(most)
    }

    /// The list of its parts: it may be null, or longer than lists may be.
    #[inline(always)]
    pub(crate) fn parts(self) -> UserSlice<'a, UserPart<'a>> {
        let (start, count) =
            self.header().map_or((core::ptr::null_mut(), 0), |all| (all.msg_iov, all.msg_iovlen));
        // They are there, as the maker of this has promised.
        UserSlice { start: start.cast_const().cast(), count, of: PhantomData }
    }

    /// Bytes of the name, if it has one.
    #[inline(always)]
    pub(crate) fn name_length(self) -> Option<u32> {
        self.header().filter(|all| !all.msg_name.is_null()).map(|all| all.msg_namelen)
    }

    /// Bytes of control data, or of room for them.
    #[inline(always)]
    pub(crate) fn control_length(self) -> usize {
        self.header().map_or(0, |all| all.msg_controllen)
    }

    fn control(self) -> UserSlice<'a, u8> {
        let (start, count) = self
            .header()
            .map_or((core::ptr::null_mut(), 0), |all| (all.msg_control, all.msg_controllen));
        // They are there, as the maker of this has promised.
        UserSlice { start: start.cast_const().cast(), count, of: PhantomData }
    }

    /// Calls with each descriptor that its control data carry (`SCM_RIGHTS`).
    pub(crate) fn each_descriptor(self, mut with: impl FnMut(c_int)) {
        let (control, mut at) = (self.control(), 0);
        if !control.is_readable(usize::MAX) {
            return;
        }
        while let Some(length) = control.array(at).map(usize::from_ne_bytes)
            && let Some(level) = control.array(at + WORD).map(c_int::from_ne_bytes)
            && let Some(kind) = control.array(at + WORD + NUMBER).map(c_int::from_ne_bytes)
            && length >= HEADER
        {
            let end = at.saturating_add(length).min(control.len());
            if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let numbers = (at + HEADER..end.saturating_sub(NUMBER - 1)).step_by(NUMBER);
                numbers
                    .filter_map(|at| control.array(at))
                    .map(c_int::from_ne_bytes)
                    .for_each(&mut with);
            }
            at = end.next_multiple_of(WORD);
        }
    }
}

impl<'a> UserMessageMut<'a> {
    /// # Safety
    /// As of [`UserMessage::given`]; and what a receiver writes may be written.
    #[inline(always)]
    pub(crate) unsafe fn given(_: During<'a>, message: *mut libc::msghdr) -> Self {
        Self(message, PhantomData)
    }

    /// Calls with a message of ours that has these parts and nothing else.
    pub(crate) fn lend<R>(parts: &[UserPart<'_>], to: impl FnOnce(UserMessageMut<'_>) -> R) -> R {
        let mut message = libc::msghdr {
            msg_name: core::ptr::null_mut(),
            msg_namelen: 0,
            msg_iov: parts.as_ptr().cast_mut().cast(),
            msg_iovlen: parts.len(),
            msg_control: core::ptr::null_mut(),
            msg_controllen: 0,
            msg_flags: 0,
        };
        to(Self(&raw mut message, PhantomData))
    }

    /// The address, for C.
    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *mut libc::msghdr {
        self.0
    }

    /// The same, for what only reads.
    #[inline(always)]
    pub(crate) fn as_const(self) -> UserMessage<'a> {
        UserMessage(self.0, PhantomData)
    }

    /// Says what the kernel says of bytes of a stream: no name, and no control data but how many
    /// bytes are `left` (`TCP_INQ`), if that is asked for.
    pub(crate) fn finish_stream(self, flags: c_int, left: Option<c_int>) {
        let (Some(asked), room) = (self.as_const().header(), self.as_const().control()) else {
            return;
        };
        let (mut length, mut flags) = (0, flags & libc::MSG_CMSG_CLOEXEC);
        if let Some(left) = left {
            if room.is_null() || room.len() < HEADER + NUMBER {
                flags |= libc::MSG_CTRUNC;
            } else {
                let (start, count) = (asked.msg_control.cast(), room.len());
                let to = UserSliceMut { start, count, of: PhantomData };
                to.put(0, &(HEADER + NUMBER).to_ne_bytes());
                to.put(WORD, &libc::IPPROTO_TCP.to_ne_bytes());
                to.put(WORD + NUMBER, &libc::TCP_INQ.to_ne_bytes());
                to.put(HEADER, &left.to_ne_bytes());
                length = room.len().min(HEADER + NUMBER.next_multiple_of(WORD));
            }
        }
        // SAFETY: it is there, as the maker of this has promised; at any alignment.
        unsafe {
            (&raw mut (*self.0).msg_namelen).write_unaligned(0);
            (&raw mut (*self.0).msg_controllen).write_unaligned(length);
            (&raw mut (*self.0).msg_flags).write_unaligned(flags);
        }
    }
}

impl<'a> UserMessages<'a> {
    /// # Safety
    /// The pointer is null, or so many are there for the call, as of [`UserMessageMut::given`].
    #[inline(always)]
    pub(crate) unsafe fn given(
        during: During<'a>,
        messages: *mut libc::mmsghdr,
        count: impl Count,
    ) -> Self {
        // SAFETY: as the caller says.
        Self(unsafe { UserSliceMut::given(during, messages, count) })
    }

    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// It is null, or the first of the list can be read, at most so many; not what these name.
    #[inline(always)]
    pub(crate) fn is_readable(self, most: usize) -> bool {
        self.0.as_const().is_readable(most)
    }

    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    /// The address, for C.
    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *mut libc::mmsghdr {
        self.0.as_ptr()
    }

    /// The message of this index; null if there is none.
    pub(crate) fn get(self, index: usize) -> UserMessageMut<'a> {
        let message = self.0.at(index).map(|one| one.as_ptr().cast::<libc::msghdr>());
        UserMessageMut(message.unwrap_or(core::ptr::null_mut()), PhantomData)
    }

    /// Says how many bytes the message of this index has moved.
    pub(crate) fn set_length(self, index: usize, length: u32) {
        if let Some(mut one) = self.0.get(index) {
            one.msg_len = length;
            self.0.set(index, one);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user_memory::CallFrame;

    /// A control message with these data, and what is between it and the next one.
    fn control(level: c_int, kind: c_int, data: &[u8]) -> Vec<u8> {
        let mut bytes = (HEADER + data.len()).to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(WORD), 0);
        bytes
    }

    fn rights(fds: &[c_int]) -> Vec<u8> {
        let data: Vec<u8> = fds.iter().flat_map(|fd| fd.to_ne_bytes()).collect();
        control(libc::SOL_SOCKET, libc::SCM_RIGHTS, &data)
    }

    fn header(control: &mut [u8]) -> libc::msghdr {
        libc::msghdr {
            msg_name: core::ptr::null_mut(),
            msg_namelen: 0,
            msg_iov: core::ptr::null_mut(),
            msg_iovlen: 0,
            msg_control: control.as_mut_ptr().cast(),
            msg_controllen: control.len(),
            msg_flags: 0,
        }
    }

    fn descriptors_in(bytes: &mut [u8]) -> Vec<c_int> {
        let (frame, message) = (CallFrame::begin(), header(bytes));
        let mut found = Vec::new();
        // SAFETY: it is there, with its control data.
        let message = unsafe { UserMessage::given(frame.during(), &raw const message) };
        message.each_descriptor(|fd| found.push(fd));
        found
    }

    #[test]
    fn a_null_message_has_nothing_and_is_told_nothing() {
        let none = UserMessageMut(core::ptr::null_mut(), PhantomData);
        none.finish_stream(0, Some(1));
        let none = none.as_const();
        assert!(none.is_null() && none.parts().is_null());
        assert_eq!((none.name_length(), none.control_length()), (None, 0));
        none.each_descriptor(|_| panic!("there is none"));
    }

    #[test]
    fn descriptors_of_several_control_messages_are_seen() {
        let others = control(libc::SOL_SOCKET, libc::SCM_CREDENTIALS, &[1; 12]);
        let mut bytes = [rights(&[3]), others, rights(&[7, 8, 9])].concat();
        assert_eq!(descriptors_in(&mut bytes), [3, 7, 8, 9]);
    }

    #[test]
    fn control_data_that_end_in_the_middle_are_read_no_further() {
        let whole = rights(&[3, 4, 5]);
        for length in 0..whole.len() {
            let count = length.saturating_sub(HEADER) / NUMBER;
            let found = descriptors_in(&mut whole[..length].to_vec());
            assert_eq!(found, [3, 4, 5][..count.min(3)], "{length} bytes");
        }
    }

    #[test]
    fn a_control_message_of_no_possible_length_ends_the_list() {
        for length in [0, 1, HEADER - 1] {
            let mut bytes = [rights(&[3]), rights(&[4])].concat();
            bytes[..WORD].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(descriptors_in(&mut bytes), [0; 0], "{length}");
        }
        let mut bytes = rights(&[3]);
        bytes[..WORD].copy_from_slice(&usize::MAX.to_ne_bytes());
        assert_eq!(descriptors_in(&mut bytes)[0], 3, "what is there of it");
    }

    #[test]
    fn parts_of_a_message_are_those_of_its_list() {
        let bytes = [1_u8, 2, 3];
        let parts = [UserPart::of(UserSlice::of(&bytes)), UserPart::of(UserSlice::of(&bytes[..1]))];
        UserMessage::lend(&parts, |message| {
            let list = message.parts();
            assert_eq!(list.len(), 2);
            assert_eq!(list.get(1).map(|part| part.len()), Some(1));
            assert_eq!((message.name_length(), message.control_length()), (None, 0));
        });
    }

    /// What a receiver with so much room for control data is told of bytes of a stream.
    fn finished(room: usize, flags: c_int, left: Option<c_int>) -> (libc::msghdr, Vec<u8>) {
        let mut bytes = vec![0xff; room];
        let mut message = header(&mut bytes);
        message.msg_namelen = 16;
        let frame = CallFrame::begin();
        // SAFETY: it is there, with its room.
        unsafe { UserMessageMut::given(frame.during(), &raw mut message) }
            .finish_stream(flags, left);
        (message, bytes)
    }

    #[test]
    fn a_receiver_is_told_of_no_name_and_no_control_data() {
        let (message, bytes) = finished(64, libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT, None);
        assert_eq!((message.msg_namelen, message.msg_controllen), (0, 0));
        assert_eq!((message.msg_flags, bytes), (libc::MSG_CMSG_CLOEXEC, vec![0xff; 64]));
    }

    #[test]
    fn a_receiver_that_asked_is_told_how_many_bytes_are_left() {
        let (message, bytes) = finished(24, 0, Some(77));
        assert_eq!((message.msg_controllen, message.msg_flags), (24, 0));
        assert_eq!(
            bytes[..20],
            control(libc::IPPROTO_TCP, libc::TCP_INQ, &77_i32.to_ne_bytes())[..20]
        );
        let (message, _) = finished(20, 0, Some(77));
        assert_eq!(message.msg_controllen, 20, "no more than there is room for");
    }

    #[test]
    fn a_receiver_without_room_is_told_that() {
        for room in [0, HEADER, HEADER + NUMBER - 1] {
            let (message, bytes) = finished(room, 0, Some(77));
            assert_eq!((message.msg_controllen, message.msg_flags), (0, libc::MSG_CTRUNC));
            assert_eq!(bytes, vec![0xff; room]);
        }
    }

    #[test]
    fn messages_of_a_list_have_their_own_lengths() {
        let one = libc::mmsghdr { msg_hdr: header(&mut []), msg_len: 0 };
        let mut list = [one; 2];
        let messages = UserMessages(UserSliceMut::of(&mut list));
        messages.set_length(1, 5);
        messages.set_length(2, 6);
        assert!(!messages.get(1).as_const().is_null() && messages.get(2).as_const().is_null());
        assert_eq!(list.map(|one| one.msg_len), [0, 5]);
    }
}
