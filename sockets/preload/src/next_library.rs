//! Calls the next library's functions with arguments whose types promise what C only says.
//!
//! A call by a descriptor is good for any number: at worst it fails. What its pointers lead to is
//! there, since [`crate::user_memory`] and its like are made of nothing else: either the program
//! has passed it to the function of the same name, or it is borrowed.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::user_memory::{
    UserBuffer, UserCommand, UserFdSets, UserMessage, UserMessageMut, UserMessages, UserPart,
    UserPtr, UserPtrMut, UserRequest, UserSlice, UserSliceMut, UserSystemCall,
};

/// Functions from their slots (`symbol_lookup.rs`): what each is given, and how C takes that. They
/// may be left by `longjmp`, or by cancellation, which unwinds: there is nothing to be cleaned up,
/// and as the library is built, to abort, no frame of it has anything that unwinding would stop at.
/// (With `C-unwind` it would abort.)
macro_rules! native {
    ($(
        $name:ident($($argument:ident: $kind:ty),*) -> $out:ty
            = $slot:ident($($value:expr => $c:ty),* $(,)?);
    )*) => {
        #[cfg(not(test))]
        unsafe extern "C" {
            $(safe static $slot: AtomicPtr<c_void>;)*
        }
        $(
            #[cfg(test)]
            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals, reason = "as the entry points have it")]
            static $slot: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
        )*
        /// Has tests call the C library.
        #[cfg(test)]
        pub(crate) fn fill() {
            $(
                let name = concat!(stringify!($slot), "\0");
                if let Ok(name) = core::ffi::CStr::from_bytes_with_nul(name.as_bytes()) {
                    crate::test_entry_points::fill(&$slot, name);
                }
            )*
        }
        $(
            #[inline(always)]
            pub(crate) fn $name($($argument: $kind),*) -> $out {
                type Function = unsafe extern "C" fn($($c),*) -> $out;
                let function = $slot.load(Ordering::Relaxed);
                // SAFETY: the slot holds a function of this name, whose arguments are these; one
                // that takes any number finds them where it looks for them. What they lead to is
                // there for the call, by their types.
                unsafe { core::mem::transmute::<*mut c_void, Function>(function)($($value),*) }
            }
        )*
    };
}

native! {
    read(fd: c_int, bytes: UserSliceMut<'_, u8>) -> isize
        = ov_next_read(fd => c_int, bytes.as_ptr() => *mut u8, bytes.len() => usize);
    read_chk(fd: c_int, bytes: UserSliceMut<'_, u8>, room: usize) -> isize
        = ov_next___read_chk(
            fd => c_int, bytes.as_ptr() => *mut u8, bytes.len() => usize, room => usize
        );
    readv(fd: c_int, parts: UserSlice<'_, UserPart<'_>>) -> isize
        = ov_next_readv(
            fd => c_int, parts.as_ptr() => *const UserPart<'_>, int(parts.len()) => c_int
        );
    recv(fd: c_int, bytes: UserSliceMut<'_, u8>, flags: c_int) -> isize
        = ov_next_recv(
            fd => c_int, bytes.as_ptr() => *mut u8, bytes.len() => usize, flags => c_int
        );
    recv_chk(fd: c_int, bytes: UserSliceMut<'_, u8>, room: usize, flags: c_int) -> isize
        = ov_next___recv_chk(
            fd => c_int, bytes.as_ptr() => *mut u8, bytes.len() => usize, room => usize,
            flags => c_int,
        );
    recvfrom(
        fd: c_int, bytes: UserSliceMut<'_, u8>, flags: c_int, address: UserBuffer<'_>
    ) -> isize
        = ov_next_recvfrom(
            fd => c_int, bytes.as_ptr() => *mut u8, bytes.len() => usize, flags => c_int,
            address.as_ptrs().0 => *mut u8, address.as_ptrs().1 => *mut u32,
        );
    recvfrom_chk(
        fd: c_int, bytes: UserSliceMut<'_, u8>, room: usize, flags: c_int, address: UserBuffer<'_>
    ) -> isize
        = ov_next___recvfrom_chk(
            fd => c_int, bytes.as_ptr() => *mut u8, bytes.len() => usize, room => usize,
            flags => c_int, address.as_ptrs().0 => *mut u8, address.as_ptrs().1 => *mut u32,
        );
    recvmsg(fd: c_int, message: UserMessageMut<'_>, flags: c_int) -> isize
        = ov_next_recvmsg(fd => c_int, message.as_ptr() => *mut libc::msghdr, flags => c_int);
    recvmmsg(
        fd: c_int, messages: UserMessages<'_>, flags: c_int,
        timeout: UserPtrMut<'_, libc::timespec>
    ) -> c_int
        = ov_next_recvmmsg(
            fd => c_int, messages.as_ptr() => *mut libc::mmsghdr, messages.len() as u32 => u32,
            flags => c_int, timeout.as_ptr() => *mut libc::timespec,
        );
    write(fd: c_int, bytes: UserSlice<'_, u8>) -> isize
        = ov_next_write(fd => c_int, bytes.as_ptr() => *const u8, bytes.len() => usize);
    writev(fd: c_int, parts: UserSlice<'_, UserPart<'_>>) -> isize
        = ov_next_writev(
            fd => c_int, parts.as_ptr() => *const UserPart<'_>, int(parts.len()) => c_int
        );
    send(fd: c_int, bytes: UserSlice<'_, u8>, flags: c_int) -> isize
        = ov_next_send(
            fd => c_int, bytes.as_ptr() => *const u8, bytes.len() => usize, flags => c_int
        );
    sendto(
        fd: c_int, bytes: UserSlice<'_, u8>, flags: c_int, address: UserSlice<'_, u8>
    ) -> isize
        = ov_next_sendto(
            fd => c_int, bytes.as_ptr() => *const u8, bytes.len() => usize, flags => c_int,
            address.as_ptr() => *const u8, address.len() as u32 => u32,
        );
    sendmsg(fd: c_int, message: UserMessage<'_>, flags: c_int) -> isize
        = ov_next_sendmsg(fd => c_int, message.as_ptr() => *const libc::msghdr, flags => c_int);
    sendmmsg(fd: c_int, messages: UserMessages<'_>, flags: c_int) -> c_int
        = ov_next_sendmmsg(
            fd => c_int, messages.as_ptr() => *mut libc::mmsghdr, messages.len() as u32 => u32,
            flags => c_int,
        );
    sendfile(to: c_int, from: c_int, offset: UserPtrMut<'_, i64>, count: usize) -> isize
        = ov_next_sendfile(
            to => c_int, from => c_int, offset.as_ptr() => *mut i64, count => usize
        );
    getsockopt(fd: c_int, level: c_int, name: c_int, value: UserBuffer<'_>) -> c_int
        = ov_next_getsockopt(
            fd => c_int, level => c_int, name => c_int, value.as_ptrs().0 => *mut u8,
            value.as_ptrs().1 => *mut u32,
        );
    setsockopt(fd: c_int, level: c_int, name: c_int, value: UserSlice<'_, u8>) -> c_int
        = ov_next_setsockopt(
            fd => c_int, level => c_int, name => c_int, value.as_ptr() => *const u8,
            value.len() as u32 => u32,
        );
    getsockname(fd: c_int, address: UserBuffer<'_>) -> c_int
        = ov_next_getsockname(
            fd => c_int, address.as_ptrs().0 => *mut u8, address.as_ptrs().1 => *mut u32
        );
    getpeername(fd: c_int, address: UserBuffer<'_>) -> c_int
        = ov_next_getpeername(
            fd => c_int, address.as_ptrs().0 => *mut u8, address.as_ptrs().1 => *mut u32
        );
    poll(all: UserSliceMut<'_, libc::pollfd>, timeout: c_int) -> c_int
        = ov_next_poll(
            all.as_ptr() => *mut libc::pollfd, all.len() as u64 => u64, timeout => c_int
        );
    poll_chk(all: UserSliceMut<'_, libc::pollfd>, timeout: c_int, room: usize) -> c_int
        = ov_next___poll_chk(
            all.as_ptr() => *mut libc::pollfd, all.len() as u64 => u64, timeout => c_int,
            room => usize,
        );
    ppoll(
        all: UserSliceMut<'_, libc::pollfd>, timeout: UserPtr<'_, libc::timespec>,
        mask: UserPtr<'_, libc::sigset_t>
    ) -> c_int
        = ov_next_ppoll(
            all.as_ptr() => *mut libc::pollfd, all.len() as u64 => u64,
            timeout.as_ptr() => *const libc::timespec, mask.as_ptr() => *const libc::sigset_t,
        );
    ppoll_chk(
        all: UserSliceMut<'_, libc::pollfd>, timeout: UserPtr<'_, libc::timespec>,
        mask: UserPtr<'_, libc::sigset_t>, room: usize
    ) -> c_int
        = ov_next___ppoll_chk(
            all.as_ptr() => *mut libc::pollfd, all.len() as u64 => u64,
            timeout.as_ptr() => *const libc::timespec, mask.as_ptr() => *const libc::sigset_t,
            room => usize,
        );
    select(sets: UserFdSets<'_>, timeout: UserPtrMut<'_, libc::timeval>) -> c_int
        = ov_next_select(
            sets.end() => c_int, sets.as_ptrs()[0] => *mut libc::fd_set,
            sets.as_ptrs()[1] => *mut libc::fd_set, sets.as_ptrs()[2] => *mut libc::fd_set,
            timeout.as_ptr() => *mut libc::timeval,
        );
    pselect(
        sets: UserFdSets<'_>, timeout: UserPtr<'_, libc::timespec>,
        mask: UserPtr<'_, libc::sigset_t>
    ) -> c_int
        = ov_next_pselect(
            sets.end() => c_int, sets.as_ptrs()[0] => *mut libc::fd_set,
            sets.as_ptrs()[1] => *mut libc::fd_set, sets.as_ptrs()[2] => *mut libc::fd_set,
            timeout.as_ptr() => *const libc::timespec, mask.as_ptr() => *const libc::sigset_t,
        );
    syscall(call: UserSystemCall<'_>) -> i64
        = ov_next_syscall(
            call.number() => i64, call.arguments()[0] => usize, call.arguments()[1] => usize,
            call.arguments()[2] => usize, call.arguments()[3] => usize,
            call.arguments()[4] => usize, call.arguments()[5] => usize,
        );
    fork() -> c_int = ov_next_fork();
    raw_fork() -> c_int = ov_next__Fork();
    socket(family: c_int, of: c_int, protocol: c_int) -> c_int
        = ov_next_socket(family => c_int, of => c_int, protocol => c_int);
    socketpair(
        family: c_int, of: c_int, protocol: c_int, pair: UserPtrMut<'_, [c_int; 2]>
    ) -> c_int
        = ov_next_socketpair(
            family => c_int, of => c_int, protocol => c_int, pair.as_ptr() => *mut [c_int; 2]
        );
    listen(fd: c_int, backlog: c_int) -> c_int
        = ov_next_listen(fd => c_int, backlog => c_int);
    connect(fd: c_int, address: UserSlice<'_, u8>) -> c_int
        = ov_next_connect(
            fd => c_int, address.as_ptr() => *const u8, address.len() as u32 => u32
        );
    accept(fd: c_int, address: UserBuffer<'_>) -> c_int
        = ov_next_accept(
            fd => c_int, address.as_ptrs().0 => *mut u8, address.as_ptrs().1 => *mut u32
        );
    accept4(fd: c_int, address: UserBuffer<'_>, flags: c_int) -> c_int
        = ov_next_accept4(
            fd => c_int, address.as_ptrs().0 => *mut u8, address.as_ptrs().1 => *mut u32,
            flags => c_int,
        );
    shutdown(fd: c_int, how: c_int) -> c_int
        = ov_next_shutdown(fd => c_int, how => c_int);
    close(fd: c_int) -> c_int = ov_next_close(fd => c_int);
    close_range(first: u32, last: u32, flags: c_int) -> c_int
        = ov_next_close_range(first => u32, last => u32, flags => c_int);
    closefrom(first: c_int) -> () = ov_next_closefrom(first => c_int);
    dup(fd: c_int) -> c_int = ov_next_dup(fd => c_int);
    dup2(from: c_int, to: c_int) -> c_int = ov_next_dup2(from => c_int, to => c_int);
    dup3(from: c_int, to: c_int, flags: c_int) -> c_int
        = ov_next_dup3(from => c_int, to => c_int, flags => c_int);
    fcntl(fd: c_int, command: UserCommand<'_>) -> c_int
        = ov_next_fcntl(
            fd => c_int, command.command() => c_int, command.argument() => usize
        );
    ioctl(fd: c_int, request: UserRequest<'_>) -> c_int
        = ov_next_ioctl(fd => c_int, request.request() => u64, request.argument() => usize);
    epoll_create(size: c_int) -> c_int = ov_next_epoll_create(size => c_int);
    epoll_create1(flags: c_int) -> c_int = ov_next_epoll_create1(flags => c_int);
    epoll_ctl(
        set: c_int, operation: c_int, fd: c_int, event: UserPtrMut<'_, libc::epoll_event>
    ) -> c_int
        = ov_next_epoll_ctl(
            set => c_int, operation => c_int, fd => c_int,
            event.as_ptr() => *mut libc::epoll_event,
        );
    epoll_wait(set: c_int, events: UserSliceMut<'_, libc::epoll_event>, timeout: c_int) -> c_int
        = ov_next_epoll_wait(
            set => c_int, events.as_ptr() => *mut libc::epoll_event,
            int(events.len()) => c_int, timeout => c_int,
        );
    epoll_pwait(
        set: c_int, events: UserSliceMut<'_, libc::epoll_event>, timeout: c_int,
        mask: UserPtr<'_, libc::sigset_t>
    ) -> c_int
        = ov_next_epoll_pwait(
            set => c_int, events.as_ptr() => *mut libc::epoll_event,
            int(events.len()) => c_int, timeout => c_int,
            mask.as_ptr() => *const libc::sigset_t,
        );
    epoll_pwait2(
        set: c_int, events: UserSliceMut<'_, libc::epoll_event>,
        timeout: UserPtr<'_, libc::timespec>, mask: UserPtr<'_, libc::sigset_t>
    ) -> c_int
        = ov_next_epoll_pwait2(
            set => c_int, events.as_ptr() => *mut libc::epoll_event,
            int(events.len()) => c_int, timeout.as_ptr() => *const libc::timespec,
            mask.as_ptr() => *const libc::sigset_t,
        );
}

/// A count of C. What is no count there is more than the kernel takes.
#[inline(always)]
fn int(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::errno;
    use crate::user_memory::CallFrame;

    /// A pair of sockets whose ends are closed with the process.
    fn pair() -> [c_int; 2] {
        fill();
        let mut pair = [-1; 2];
        let made = socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, UserPtrMut::of(&mut pair));
        assert_eq!(made, 0);
        pair
    }

    #[test]
    fn bytes_come_as_they_were_sent() {
        let [a, b] = pair();
        assert_eq!(send(a, UserSlice::of(b"hello"), 0), 5);
        let mut bytes = [0; 8];
        assert_eq!(recv(b, UserSliceMut::of(&mut bytes), libc::MSG_PEEK), 5);
        assert_eq!(read(b, UserSliceMut::of(&mut bytes[..2])), 2);
        assert_eq!(read(b, UserSliceMut::of(&mut bytes[5..])), 3);
        assert_eq!(&bytes, b"hellollo");
    }

    #[test]
    fn parts_go_as_a_message_and_as_a_vector() {
        let [a, b] = pair();
        let parts = [UserPart::of(UserSlice::of(b"ab")), UserPart::of(UserSlice::of(b"c"))];
        assert_eq!(writev(a, UserSlice::of(&parts)), 3);
        assert_eq!(UserMessage::lend(&parts, |message| sendmsg(a, message, 0)), 3);
        let mut bytes = [0; 6];
        let room = [UserPart::of(UserSliceMut::of(&mut bytes).as_const())];
        let got = UserMessageMut::lend(&room, |message| recvmsg(b, message, libc::MSG_WAITALL));
        assert_eq!((got, &bytes), (6, b"abcabc"));
    }

    #[test]
    fn a_descriptor_that_is_none_fails_and_nothing_else() {
        fill();
        let mut bytes = [7; 4];
        for fd in [-1, c_int::MIN, c_int::MAX] {
            assert_eq!((read(fd, UserSliceMut::of(&mut bytes)), errno()), (-1, libc::EBADF));
            assert_eq!((dup(fd), errno()), (-1, libc::EBADF));
        }
        assert_eq!(bytes, [7; 4]);
    }

    #[test]
    fn a_null_address_is_left_to_the_kernel() {
        let [a, b] = pair();
        assert_eq!((send(a, UserSlice::null(4_usize), 0), errno()), (-1, libc::EFAULT));
        assert_eq!((read(b, UserSliceMut::null(0_usize)), errno()), (0, libc::EFAULT));
        assert_eq!((sendmsg(b, UserMessage::NULL, 0), errno()), (-1, libc::EFAULT));
    }

    #[test]
    fn a_count_below_zero_is_no_count_for_the_kernel_either() {
        let [a, _] = pair();
        let parts = UserSlice::null(-1 as c_int);
        assert_eq!((writev(a, parts), errno()), (-1, libc::EINVAL));
        let set = epoll_create1(0);
        for most in [0, -1, c_int::MIN] {
            let events = UserSliceMut::null(most);
            assert_eq!((epoll_wait(set, events, 0), errno()), (-1, libc::EINVAL), "{most}");
        }
    }

    #[test]
    fn an_option_says_how_long_it_is() {
        let [a, _] = pair();
        let (mut value, mut length) = ([0xee; 8], 0);
        let to = UserBuffer::of(&mut value, &mut length);
        assert_eq!(getsockopt(a, libc::SOL_SOCKET, libc::SO_TYPE, to), 0);
        assert_eq!((length, value[..4].to_vec()), (4, libc::SOCK_STREAM.to_ne_bytes().to_vec()));
        assert_eq!(value[4..], [0xee; 4]);
        let short = UserSlice::of(&[1_u8, 0]);
        let set = setsockopt(a, libc::SOL_SOCKET, libc::SO_KEEPALIVE, short);
        assert_eq!((set, errno()), (-1, libc::EINVAL));
    }

    #[test]
    fn sets_of_descriptors_come_back_with_what_is_ready() {
        let [a, b] = pair();
        send(a, UserSlice::of(b"x"), 0);
        let mut list = [a, b].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        assert_eq!(poll(UserSliceMut::of(&mut list), 0), 1);
        assert_eq!(list.map(|one| one.revents), [0, libc::POLLIN]);
        let mut words = [0_u64; libc::FD_SETSIZE / 64];
        [a, b].iter().for_each(|fd| words[*fd as usize / 64] |= 1 << (fd % 64));
        let mut zero = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let sets = UserFdSets::of_readers(&mut words);
        assert_eq!(select(sets, UserPtrMut::of(&mut zero)), 1);
        assert_eq!(words[b as usize / 64], 1 << (b % 64));
    }

    #[test]
    fn a_request_gets_its_number() {
        let [a, b] = pair();
        send(a, UserSlice::of(b"four"), 0);
        let (frame, mut count) = (CallFrame::begin(), 0);
        let address = (&raw mut count).expose_provenance();
        // SAFETY: a place for a number.
        let request = unsafe { UserRequest::given(frame.during(), libc::FIONREAD, address) };
        assert_eq!(ioctl(b, request), 0);
        assert_eq!(request.number().and_then(UserPtrMut::read), Some(4));
    }
}
