//! What is ready, as a token of the poller: a kind in the top byte, a number below.

pub(crate) const LISTENER: u64 = 1;
pub(crate) const NAMESPACES: u64 = 2;
pub(crate) const TERMINATION: u64 = 3;
pub(crate) const CALLS: u64 = 4;
pub(crate) const EVENTS: u64 = 5;
pub(crate) const PROCESS: u64 = 6;
pub(crate) const ENGINE: u64 = 7;
pub(crate) const RECORDER: u64 = 8;
pub(crate) const DISPOSAL: u64 = 9;
pub(crate) const OPERATORS: u64 = 10;
pub(crate) const OPERATOR: u64 = 11;

pub(crate) const fn new(kind: u64, number: u64) -> u64 {
    kind << 56 | number
}

pub(crate) const fn parts(token: u64) -> (u64, u64) {
    (token >> 56, token & ((1 << 56) - 1))
}
