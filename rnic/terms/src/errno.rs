//! Defines the error numbers that an application finds in `errno`.

use crate::newtype::name;
use core::fmt;

name! {
    /// A Linux error number, or zero: none.
    Errno(pub u32)
}

macro_rules! numbers {
    ($($name:ident $number:literal $doc:literal)*) => {
        impl Errno {
            $(#[doc = $doc] pub const $name: Errno = Errno($number);)*

            /// Its name, if it has one here.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

numbers! {
    EPERM 1 "Not yours to ask."
    ENOENT 2 "No such object."
    EIO 5 "An error without a known cause."
    E2BIG 7 "Too much for one message."
    EBADF 9 "No open file of that number."
    EAGAIN 11 "Not yet."
    ENOMEM 12 "Over a quota."
    EACCES 13 "The object is there, but not for this use."
    EFAULT 14 "No memory there."
    EBUSY 16 "Something else is under way, or holds it."
    ENODEV 19 "No device."
    EINVAL 22 "A value has no sense."
    EMFILE 24 "Too many at a time."
    EPIPE 32 "No process listens any more."
    ERANGE 34 "Not of that size."
    EDEADLK 35 "It would wait for itself."
    ENAMETOOLONG 36 "The name is too long."
    ENODATA 61 "An empty entry."
    EPROTO 71 "Not a message for this place."
    EOPNOTSUPP 95 "A kind of object, or an operation, that is not offered."
    EAFNOSUPPORT 97 "An address of another kind."
    EADDRINUSE 98 "The number is in use."
    EADDRNOTAVAIL 99 "Not an address that is ours."
    ECONNRESET 104 "The other process is gone."
    ENOTCONN 107 "Not connected."
    ETIMEDOUT 110 "No answer in time."
    EHOSTUNREACH 113 "No neighbour there, or the network does not let us through."
}

impl Errno {
    /// Zero: nothing went wrong.
    pub const NONE: Errno = Errno(0);

    /// As the C library has it.
    #[must_use]
    pub const fn raw(self) -> i32 {
        self.0.cast_signed()
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn numbers_have_names() {
        assert_eq!(std::format!("{} {:?}", Errno::ENOMEM, Errno(3)), "ENOMEM errno 3");
        assert_eq!((Errno::ENOMEM.raw(), Errno::NONE.raw()), (12, 0));
    }
}
