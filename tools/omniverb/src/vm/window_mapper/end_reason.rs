//! Marks the end of a mapper.

use crate::vm::vhost_user::Malformed;
use rustix::io::Errno;
use std::io;

/// The mapper ends: a peer is gone, or sent a malformed message.
#[derive(Debug)]
pub(crate) struct MapperEnd;

impl From<Malformed> for MapperEnd {
    fn from(_: Malformed) -> MapperEnd {
        MapperEnd
    }
}

impl From<io::Error> for MapperEnd {
    fn from(_: io::Error) -> MapperEnd {
        MapperEnd
    }
}

impl From<Errno> for MapperEnd {
    fn from(_: Errno) -> MapperEnd {
        MapperEnd
    }
}
