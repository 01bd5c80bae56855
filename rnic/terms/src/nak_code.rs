//! Names the reasons for which a responder refuses a request, and their codes.

use core::fmt;

/// The NAK codes of a responder that will not (9.7.5.2.8, table 46), by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The request cannot be right: length, alignment, operation not allowed on this QP.
    InvalidRequest = 1,
    /// R_Key, range, access rights.
    RemoteAccess = 2,
    /// The responder's own receive was malformed.
    RemoteOperation = 3,
}

impl Refusal {
    /// All that there are.
    pub const ALL: [Refusal; 3] =
        [Refusal::InvalidRequest, Refusal::RemoteAccess, Refusal::RemoteOperation];

    /// The refusal of a code, if it is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Refusal> {
        Refusal::ALL.into_iter().find(|refusal| refusal.code() == code)
    }

    /// Its number in a syndrome.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Refusal {
    /// In words, as a journal has them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::InvalidRequest => "invalid request",
            Refusal::RemoteAccess => "remote access",
            Refusal::RemoteOperation => "remote operation",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_specification() {
        for (refusal, code) in Refusal::ALL.into_iter().zip(1..) {
            assert_eq!(refusal.code(), code);
            assert_eq!(Refusal::from_code(code), Some(refusal));
        }
        assert_eq!(Refusal::from_code(0), None);
        assert_eq!(Refusal::from_code(4), None);
    }
}
