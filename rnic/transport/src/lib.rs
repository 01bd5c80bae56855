//! RoCEv2 transport without I/O.
#![forbid(unsafe_code)]
