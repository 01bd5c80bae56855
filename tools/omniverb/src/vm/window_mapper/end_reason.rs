//! Marks the end of a mapper.

use crate::vm::vhost_user::Nonsense;
use rustix::io::Errno;
use std::io;

/// The mapper ends: a peer is gone, or sent a malformed message.
#[derive(Debug)]
pub(crate) struct MapperEnd;

impl From<Nonsense> for MapperEnd {
    fn from(_: Nonsense) -> MapperEnd {
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
