//! Memory that the daemon hands over: what it says of it and the descriptor that came along become
//! an extent here, which is verified before it is mapped. A daemon may be hostile.

use omniverb_ring::Window;
use omniverb_session::body;
use omniverb_sys::{Access, Extent};
use omniverb_terms::Errno;
use std::io;
use std::os::fd::OwnedFd;

/// What came along with a message, as the message describes it.
pub(crate) fn extent(file: OwnedFd, said: body::Extent) -> Extent<OwnedFd> {
    Extent::new(file, said.offset, said.length)
}

/// Maps what has to have just so many bytes, for both to write.
pub(crate) fn map(extent: &Extent<OwnedFd>, bytes: usize) -> Result<Window, Errno> {
    extent.map_exactly(bytes, Access::ReadWrite).map_err(|error| errno(&error))
}

/// Why memory cannot be mapped; `EPROTO`: it is not what it should be.
pub(crate) fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EPROTO, crate::errno_conversion::from_raw)
}
