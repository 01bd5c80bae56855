//! Types for memory that a caller of a hook names: values, lists, messages, sets.
//!
//! A hook gets raw pointers of C. `functions!` turns them into these types once, by their `given`,
//! and what is behind that is safe: a value is copied out or in, at any alignment, and nothing is
//! held beyond the call. A null pointer is one that leads to nothing. Only the kernel can tell
//! whether another address is mapped. Lists, messages, names and times are asked about
//! (`is_readable`) before they are read, and a call of others is left to the kernel, which says
//! `EFAULT`. Bytes that are moved are not asked about.

mod c_stream;
mod fd_sets;
mod ioctl_fcntl_argument;
mod iovec;
mod msghdr;
mod pointers;
mod readable_pages;
mod slices;
mod value_result_buffer;

pub(crate) use c_stream::UserFile;
pub(crate) use fd_sets::UserFdSets;
pub(crate) use ioctl_fcntl_argument::{UserCommand, UserRequest, UserSystemCall};
pub use iovec::UserPart;
pub(crate) use msghdr::{UserMessage, UserMessageMut, UserMessages};
pub(crate) use pointers::{CallFrame, UserPtr, UserPtrMut};
pub(crate) use slices::{UserPointers, UserSlice, UserSliceMut};
pub(crate) use value_result_buffer::{Length, UserBuffer};
