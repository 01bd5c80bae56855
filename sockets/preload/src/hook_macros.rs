//! Defines `functions!`, which makes the functions that replace the C library's.

use crate::descriptor_changes_by_calls::Call;

/// Does a call, and what it means for descriptors before and after it.
#[inline(always)]
pub(crate) fn watched<R: Copy + Into<i64>>(call: Call<'_>, make: impl FnOnce() -> R) -> R {
    let was = call.before();
    let result = make();
    call.after(was, result.into() as isize);
    result
}

/// What each kind of argument is for the library, and what C's functions are given for it. That is
/// a number; or a type, the functions of that which give C's arguments, and what these are. Its
/// `given` is made of the same.
macro_rules! arguments {
    (int $then:ident $with:tt) => {
        $then! { $with c_int }
    };
    (u32 $then:ident $with:tt) => {
        $then! { $with u32 }
    };
    (usize $then:ident $with:tt) => {
        $then! { $with usize }
    };
    (room $then:ident $with:tt) => {
        $then! { $with $crate::user_memory::UserSliceMut<'_, u8>: as_ptr *mut u8, len usize }
    };
    (bytes $then:ident $with:tt) => {
        $then! { $with $crate::user_memory::UserSlice<'_, u8>: as_ptr *const u8, len usize }
    };
    (value $then:ident $with:tt) => {
        $then! { $with $crate::user_memory::UserSlice<'_, u8>: as_ptr *const u8, len u32 }
    };
    (buffer $then:ident $with:tt) => {
        $then! { $with $crate::user_memory::UserBuffer<'_>: place *mut u8, size *mut u32 }
    };
    (parts $then:ident $with:tt) => {
        $then! {
            $with $crate::user_memory::UserSlice<'_, $crate::user_memory::UserPart<'_>>:
            as_ptr *const $crate::user_memory::UserPart<'_>, len c_int
        }
    };
    (message $then:ident $with:tt) => {
        $then! { $with $crate::user_memory::UserMessage<'_>: as_ptr *const libc::msghdr }
    };
    (message_mut $then:ident $with:tt) => {
        $then! { $with $crate::user_memory::UserMessageMut<'_>: as_ptr *mut libc::msghdr }
    };
    (messages $then:ident $with:tt) => {
        $then! { $with $crate::user_memory::UserMessages<'_>: as_ptr *mut libc::mmsghdr, len u32 }
    };
    (pollfds $then:ident $with:tt) => {
        $then! {
            $with $crate::user_memory::UserSliceMut<'_, libc::pollfd>:
            as_ptr *mut libc::pollfd, len u64
        }
    };
    (events $then:ident $with:tt) => {
        $then! {
            $with $crate::user_memory::UserSliceMut<'_, libc::epoll_event>:
            as_ptr *mut libc::epoll_event, len c_int
        }
    };
    (event $then:ident $with:tt) => {
        $then! {
            $with $crate::user_memory::UserPtrMut<'_, libc::epoll_event>:
            as_ptr *mut libc::epoll_event
        }
    };
    (time $then:ident $with:tt) => {
        $then! {
            $with $crate::user_memory::UserPtr<'_, libc::timespec>:
            as_ptr *const libc::timespec
        }
    };
    (time_mut $then:ident $with:tt) => {
        $then! {
            $with $crate::user_memory::UserPtrMut<'_, libc::timespec>:
            as_ptr *mut libc::timespec
        }
    };
    (timeval $then:ident $with:tt) => {
        $then! {
            $with $crate::user_memory::UserPtrMut<'_, libc::timeval>:
            as_ptr *mut libc::timeval
        }
    };
    (mask $then:ident $with:tt) => {
        $then! {
            $with $crate::user_memory::UserPtr<'_, libc::sigset_t>:
            as_ptr *const libc::sigset_t
        }
    };
    (pair $then:ident $with:tt) => {
        $then! { $with $crate::user_memory::UserPtrMut<'_, [c_int; 2]>: as_ptr *mut [c_int; 2] }
    };
    (offset $then:ident $with:tt) => {
        $then! { $with $crate::user_memory::UserPtrMut<'_, i64>: as_ptr *mut i64 }
    };
    (sets $then:ident $with:tt) => {
        $then! {
            $with $crate::user_memory::UserFdSets<'_>:
            end c_int, read *mut libc::fd_set, write *mut libc::fd_set,
            except *mut libc::fd_set
        }
    };
    (command $then:ident $with:tt) => {
        $then! { $with $crate::user_memory::UserCommand<'_>: command c_int, argument usize }
    };
    (request $then:ident $with:tt) => {
        $then! { $with $crate::user_memory::UserRequest<'_>: request u64, argument usize }
    };
    (system_call $then:ident $with:tt) => {
        $then! {
            $with $crate::user_memory::UserSystemCall<'_>:
            number i64, a usize, b usize, c usize, d usize, e usize, f usize
        }
    };
    (aiocb $then:ident $with:tt) => {
        $then! { $with $crate::user_memory::UserPtr<'_, libc::aiocb>: as_ptr *const libc::aiocb }
    };
    (aiocbs $then:ident $with:tt) => {
        $then! {
            $with $crate::user_memory::UserPointers<'_, libc::aiocb>:
            as_ptr *const *const libc::aiocb, len c_int
        }
    };
    (stream $then:ident $with:tt) => {
        $then! { $with $crate::user_memory::UserFile<'_>: as_ptr *mut libc::FILE }
    };
}

/// Functions of C: the safety of each is that of the function of this name.
macro_rules! functions {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident($($argument:ident: $kind:ident),* $(,)?) -> $out:ty $body:block
    )*) => {
        $(hook! { [[$($doc)*] $name frame $body () () $out] $($argument: $kind,)* })*
    };
}

/// One of them: `given` is made of the arguments `of_c`.
macro_rules! hook {
    ([[$($doc:literal)*] $name:ident $frame:ident $body:block
        ($($of_c:ident: $c:ty,)*) ($($given:ident: $type:ty = ($($part:ident),*),)*) $out:ty]) => {
        /// Stands before the C library's function of this name.
        $(#[doc = $doc])*
        ///
        /// # Safety
        /// As of that function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($of_c: $c),*) -> $out {
            let $frame = $crate::user_memory::CallFrame::begin();
            // Where no argument is an address.
            _ = &$frame;
            $(
                // SAFETY: the caller's arguments are what the function of this name takes.
                let $given = unsafe { <$type>::given($frame.during(), $($part),*) };
            )*
            $body
        }
    };
    ([$($so_far:tt)*] $argument:ident: $kind:ident, $($rest:tt)*) => {
        arguments! { $kind hook_with [[$($so_far)*] $argument [$($rest)*]] }
    };
}

/// Adds an argument.
macro_rules! hook_with {
    ([[$doc:tt $name:ident $frame:ident $body:block ($($of_c:tt)*) $given:tt $out:ty]
        $argument:ident [$($rest:tt)*]] $number:ty) => {
        hook! { [$doc $name $frame $body ($($of_c)* $argument: $number,) $given $out] $($rest)* }
    };
    ([[$doc:tt $name:ident $frame:ident $body:block ($($of_c:tt)*) ($($given:tt)*) $out:ty]
        $argument:ident [$($rest:tt)*]] $type:ty: $($part:ident $c:ty),*) => {
        hook! {
            [$doc $name $frame $body ($($of_c)* $($part: $c,)*)
                ($($given)* $argument: $type = ($($part),*),) $out] $($rest)*
        }
    };
}
