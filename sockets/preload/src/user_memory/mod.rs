//! Types for memory that a caller of a hook names: values, lists, messages, sets.
//!
//! A hook gets raw pointers of C. `functions!` turns them into these types once, by their `given`,
//! and what is behind that is safe: a value is copied out or in, at any alignment, and nothing is
//! held beyond the call. A null pointer is one that leads to nothing. Only the kernel can tell
//! whether another address is mapped. Lists, messages, names and times are asked about
//! (`is_readable`) before they are read, and a call of others is left to the kernel, which says
//! `EFAULT`. Bytes that are moved are not asked about.

mod arguments;
mod buffers;
mod fd_sets;
mod files;
mod lists;
mod messages;
mod parts;
mod pointers;
mod readable_pages;

pub(crate) use arguments::{UserCommand, UserRequest, UserSystemCall};
pub(crate) use buffers::{Length, UserBuffer};
pub(crate) use fd_sets::UserFdSets;
pub(crate) use files::UserFile;
pub(crate) use lists::{UserPointers, UserSlice, UserSliceMut};
pub(crate) use messages::{UserMessage, UserMessageMut, UserMessages};
pub use parts::UserPart;
pub(crate) use pointers::{CallFrame, UserPtr, UserPtrMut};
