//! Types for the last arguments of `ioctl` and `fcntl`, which are what the others say.

use core::ffi::c_int;
use core::marker::PhantomData;

use super::pointers::{During, UserPtrMut};

/// The last argument of `ioctl`: a number, or where what the request is about is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserRequest<'a> {
    request: u64,
    argument: usize,
    of: During<'a>,
}

/// Requests that the crate of libc lacks: what is sent and was not received yet, and whether urgent
/// data come next.
pub(crate) const SIOCOUTQ: u64 = libc::TIOCOUTQ;
pub(crate) const SIOCOUTQNSD: u64 = 0x894b;
pub(crate) const SIOCATMARK: u64 = 0x8905;

impl<'a> UserRequest<'a> {
    /// # Safety
    /// It is what this request takes.
    #[inline(always)]
    pub(crate) unsafe fn given(_: During<'a>, request: u64, argument: usize) -> Self {
        Self { request, argument, of: PhantomData }
    }

    /// One that writes a number of ours, if it is one that does.
    pub(crate) fn for_number(request: u64, number: &'a mut c_int) -> Self {
        debug_assert!(has_number(request));
        let argument = if has_number(request) { (&raw mut *number).expose_provenance() } else { 0 };
        Self { request, argument, of: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn request(self) -> u64 {
        self.request
    }

    /// The address or number, for C.
    #[inline(always)]
    pub(crate) fn argument(self) -> usize {
        self.argument
    }

    /// The number that the request reads or writes, if it is one that does.
    pub(crate) fn number(self) -> Option<UserPtrMut<'a, c_int>> {
        let number = core::ptr::with_exposed_provenance_mut(self.argument);
        has_number(self.request).then_some(UserPtrMut(number, PhantomData))
    }
}

/// A request reads or writes one number.
fn has_number(request: u64) -> bool {
    matches!(
        request,
        libc::FIONREAD | libc::FIONBIO | libc::FIOASYNC | SIOCOUTQ | SIOCOUTQNSD | SIOCATMARK
    )
}

/// The last argument of `fcntl`: a number, or where what the command is about is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserCommand<'a> {
    command: c_int,
    argument: usize,
    of: During<'a>,
}

impl<'a> UserCommand<'a> {
    /// # Safety
    /// It is what this command takes.
    #[inline(always)]
    pub(crate) unsafe fn given(_: During<'a>, command: c_int, argument: usize) -> Self {
        Self { command, argument, of: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn command(self) -> c_int {
        self.command
    }

    /// As a number.
    #[inline(always)]
    pub(crate) fn argument(self) -> usize {
        self.argument
    }
}

macro_rules! argument {
    ($name:ident $place:literal) => {
        #[inline(always)]
        pub(crate) fn $name(self) -> usize {
            self.arguments[$place]
        }
    };
}

/// A call by `syscall()`: its number, and six arguments of which it has some.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserSystemCall<'a> {
    number: i64,
    arguments: [usize; 6],
    of: During<'a>,
}

impl<'a> UserSystemCall<'a> {
    /// # Safety
    /// They are what the call of this number takes.
    #[allow(clippy::too_many_arguments, reason = "as of syscall()")]
    pub(crate) unsafe fn given(
        _: During<'a>,
        number: i64,
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize,
    ) -> Self {
        Self { number, arguments: [a, b, c, d, e, f], of: PhantomData }
    }

    pub(crate) fn number(self) -> i64 {
        self.number
    }

    // One after another, for C.
    argument! { a 0 }
    argument! { b 1 }
    argument! { c 2 }
    argument! { d 3 }
    argument! { e 4 }
    argument! { f 5 }

    /// Numbers, or addresses, as the number of the call says.
    pub(crate) fn arguments(self) -> [usize; 6] {
        self.arguments
    }

    /// For how long what is at those addresses stays.
    pub(crate) fn during(self) -> During<'a> {
        PhantomData
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user_memory::CallFrame;

    fn given(frame: &CallFrame, request: u64, argument: usize) -> UserRequest<'_> {
        // SAFETY: the tests below have a number there, or null.
        unsafe { UserRequest::given(frame.during(), request, argument) }
    }

    #[test]
    fn only_requests_about_a_number_have_one() {
        let (frame, mut number) = (CallFrame::begin(), 5);
        let address = (&raw mut number).expose_provenance();
        let request = |of| given(&frame, of, address);
        assert_eq!(request(libc::FIONREAD).number().and_then(UserPtrMut::read), Some(5));
        assert!(request(libc::FIOCLEX).number().is_none());
        assert!(request(libc::SIOCGIFADDR).number().is_none(), "that is about a structure");
    }

    #[test]
    fn a_number_at_no_address_is_none() {
        let frame = CallFrame::begin();
        let request = given(&frame, libc::FIONBIO, 0);
        assert!(request.number().is_some_and(|number| number.read().is_none()));
    }
}
