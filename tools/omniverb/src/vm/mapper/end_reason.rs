//! The end of a mapper.

use crate::vm::vhost_user::Nonsense;
use rustix::io::Errno;
use std::io;

/// It is over: somebody is gone, or says what makes no sense.
#[derive(Debug)]
pub(crate) struct Over;

impl From<Nonsense> for Over {
    fn from(_: Nonsense) -> Over {
        Over
    }
}

impl From<io::Error> for Over {
    fn from(_: io::Error) -> Over {
        Over
    }
}

impl From<Errno> for Over {
    fn from(_: Errno) -> Over {
        Over
    }
}
