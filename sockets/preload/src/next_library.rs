//! Calls the next library's functions with arguments whose types promise what C only says.
//!
//! A call by a descriptor is good for any number: at worst it fails. What its pointers lead to is
//! there, since [`crate::user_memory`] and its like are made of nothing else: either the program
//! has passed it to the function of the same name, or it is borrowed.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// Functions from their slots (`symbol_lookup.rs`), with what each is given (`hook_macros.rs`).
/// They may be left by `longjmp`, or by cancellation, which unwinds: there is nothing to be cleaned
/// up, and as the library is built, to abort, no frame of it has anything that unwinding would stop
/// at. (With `C-unwind` it would abort.)
macro_rules! native {
    ($($name:ident($($argument:ident: $kind:ident),*) -> $out:ty = $slot:ident;)*) => {
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
                    crate::unit_test_entry_stubs::fill(&$slot, name);
                }
            )*
        }
        $(next_function! { [$name $slot () () $out] $($argument: $kind,)* })*
    };
}

/// One of them: `given` are its arguments, of which `passed` are made, as C has them.
macro_rules! next_function {
    ([$name:ident $slot:ident
        ($($given:ident: $type:ty,)*) ($($passed:expr => $c:ty,)*) $out:ty]) => {
        #[inline(always)]
        #[allow(clippy::ptr_as_ptr, reason = "a count becomes C's, an address stays")]
        pub(crate) fn $name($($given: $type),*) -> $out {
            type Function = unsafe extern "C" fn($($c),*) -> $out;
            let function = $slot.load(Ordering::Relaxed);
            // SAFETY: the slot holds a function of this name, whose arguments are these; one
            // that takes any number finds them where it looks for them. What they lead to is
            // there for the call, by their types.
            unsafe { core::mem::transmute::<*mut c_void, Function>(function)($($passed as $c),*) }
        }
    };
    ([$($so_far:tt)*] $argument:ident: $kind:ident, $($rest:tt)*) => {
        arguments! { $kind next_function_with [[$($so_far)*] $argument [$($rest)*]] }
    };
}

/// Adds an argument.
macro_rules! next_function_with {
    ([[$name:ident $slot:ident ($($given:tt)*) ($($passed:tt)*) $out:ty]
        $argument:ident [$($rest:tt)*]] $number:ty) => {
        next_function! {
            [$name $slot ($($given)* $argument: $number,) ($($passed)* $argument => $number,) $out]
            $($rest)*
        }
    };
    ([[$name:ident $slot:ident ($($given:tt)*) ($($passed:tt)*) $out:ty]
        $argument:ident [$($rest:tt)*]] $type:ty: $($part:ident $c:ty),*) => {
        next_function! {
            [$name $slot ($($given)* $argument: $type,)
                ($($passed)* $($argument.$part() => $c,)*) $out] $($rest)*
        }
    };
}

native! {
    read(fd: int, bytes: room) -> isize = ov_next_read;
    read_chk(fd: int, bytes: room, room: usize) -> isize = ov_next___read_chk;
    readv(fd: int, parts: parts) -> isize = ov_next_readv;
    recv(fd: int, bytes: room, flags: int) -> isize = ov_next_recv;
    recv_chk(fd: int, bytes: room, room: usize, flags: int) -> isize = ov_next___recv_chk;
    recvfrom(fd: int, bytes: room, flags: int, address: buffer) -> isize = ov_next_recvfrom;
    recvfrom_chk(fd: int, bytes: room, room: usize, flags: int, address: buffer) -> isize
        = ov_next___recvfrom_chk;
    recvmsg(fd: int, message: message_mut, flags: int) -> isize = ov_next_recvmsg;
    recvmmsg(fd: int, messages: messages, flags: int, timeout: time_mut) -> c_int
        = ov_next_recvmmsg;
    write(fd: int, bytes: bytes) -> isize = ov_next_write;
    writev(fd: int, parts: parts) -> isize = ov_next_writev;
    send(fd: int, bytes: bytes, flags: int) -> isize = ov_next_send;
    sendto(fd: int, bytes: bytes, flags: int, address: value) -> isize = ov_next_sendto;
    sendmsg(fd: int, message: message, flags: int) -> isize = ov_next_sendmsg;
    sendmmsg(fd: int, messages: messages, flags: int) -> c_int = ov_next_sendmmsg;
    sendfile(to: int, from: int, offset: offset, count: usize) -> isize = ov_next_sendfile;
    getsockopt(fd: int, level: int, name: int, value: buffer) -> c_int = ov_next_getsockopt;
    setsockopt(fd: int, level: int, name: int, value: value) -> c_int = ov_next_setsockopt;
    getsockname(fd: int, address: buffer) -> c_int = ov_next_getsockname;
    getpeername(fd: int, address: buffer) -> c_int = ov_next_getpeername;
    poll(all: pollfds, timeout: int) -> c_int = ov_next_poll;
    poll_chk(all: pollfds, timeout: int, room: usize) -> c_int = ov_next___poll_chk;
    ppoll(all: pollfds, timeout: time, mask: mask) -> c_int = ov_next_ppoll;
    ppoll_chk(all: pollfds, timeout: time, mask: mask, room: usize) -> c_int = ov_next___ppoll_chk;
    select(sets: sets, timeout: timeval) -> c_int = ov_next_select;
    pselect(sets: sets, timeout: time, mask: mask) -> c_int = ov_next_pselect;
    fork() -> c_int = ov_next_fork;
    raw_fork() -> c_int = ov_next__Fork;
    socket(family: int, of: int, protocol: int) -> c_int = ov_next_socket;
    socketpair(family: int, of: int, protocol: int, pair: pair) -> c_int = ov_next_socketpair;
    listen(fd: int, backlog: int) -> c_int = ov_next_listen;
    connect(fd: int, address: value) -> c_int = ov_next_connect;
    accept(fd: int, address: buffer) -> c_int = ov_next_accept;
    accept4(fd: int, address: buffer, flags: int) -> c_int = ov_next_accept4;
    shutdown(fd: int, how: int) -> c_int = ov_next_shutdown;
    close(fd: int) -> c_int = ov_next_close;
    close_range(first: u32, last: u32, flags: int) -> c_int = ov_next_close_range;
    closefrom(first: int) -> () = ov_next_closefrom;
    dup(fd: int) -> c_int = ov_next_dup;
    dup2(from: int, to: int) -> c_int = ov_next_dup2;
    dup3(from: int, to: int, flags: int) -> c_int = ov_next_dup3;
    fcntl(fd: int, command: command) -> c_int = ov_next_fcntl;
    ioctl(fd: int, request: request) -> c_int = ov_next_ioctl;
    epoll_create(size: int) -> c_int = ov_next_epoll_create;
    epoll_create1(flags: int) -> c_int = ov_next_epoll_create1;
    epoll_ctl(set: int, operation: int, fd: int, event: event) -> c_int = ov_next_epoll_ctl;
    epoll_wait(set: int, events: events, timeout: int) -> c_int = ov_next_epoll_wait;
    epoll_pwait(set: int, events: events, timeout: int, mask: mask) -> c_int = ov_next_epoll_pwait;
    epoll_pwait2(set: int, events: events, timeout: time, mask: mask) -> c_int
        = ov_next_epoll_pwait2;
    syscall(call: system_call) -> i64 = ov_next_syscall;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::errno;
    use crate::user_memory::{
        CallFrame, UserBuffer, UserFdSets, UserMessage, UserMessageMut, UserPart, UserPtrMut,
        UserRequest, UserSlice, UserSliceMut,
    };

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
