//! The errors a client gets, by their Linux numbers.
//!
//! No call is answered with an errno that the socket itself can give (EPIPE, ECONNRESET,
//! ENOTCONN): a client takes those for the end of its connection.

/// Not yours to ask.
pub const EPERM: u32 = 1;
/// No such object.
pub const ENOENT: u32 = 2;
/// Not yet.
pub const EAGAIN: u32 = 11;
/// Over a quota.
pub const ENOMEM: u32 = 12;
/// The object is there, but not for this use.
pub const EACCES: u32 = 13;
/// The previous call of this client is not answered yet.
pub const EBUSY: u32 = 16;
/// A field has no sense.
pub const EINVAL: u32 = 22;
/// No part of a region that can be granted.
pub const ERANGE: u32 = 34;
/// Not a message for this place.
pub const EPROTO: u32 = 71;
/// A kind of object that is not offered.
pub const EOPNOTSUPP: u32 = 95;
/// The number to keep belongs to somebody else.
pub const EADDRINUSE: u32 = 98;
/// The other process is gone. Only in events.
pub const ECONNRESET: u32 = 104;
/// The other process did not answer in time.
pub const ETIMEDOUT: u32 = 110;
/// No neighbour there, or the network does not let us through.
pub const EHOSTUNREACH: u32 = 113;
