//! Describes descriptors in words, by functions that tests look up by name.

use core::ffi::{c_char, c_int};
use core::fmt::{self, Write};

use crate::descriptor_tables::{self, DESCRIPTORS, MEMBERS};
use crate::text_buffer::Words;
use crate::{fork_refcount, library_fds, vfork_check};

/// Writes what is known of a descriptor, as a string of at most `size` bytes; asks the kernel where
/// nothing is. Returns the length.
///
/// # Safety
/// `text` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_omniverb_sockets_describe(
    fd: c_int,
    text: *mut c_char,
    size: usize,
) -> c_int {
    if size == 0 {
        return -1;
    }
    // SAFETY: as the caller has promised.
    let bytes = unsafe { core::slice::from_raw_parts_mut(text.cast::<u8>(), size) };
    let mut words = Words::new(bytes);
    _ = describe(fd, &mut words);
    words.end() as c_int
}

fn describe(fd: c_int, out: &mut Words<'_>) -> fmt::Result {
    if vfork_check::are_fd_tables_apart() {
        return out.write_str("nothing is sure");
    }
    let entry = descriptor_tables::look(fd);
    write!(out, "{} id={} why={}", entry.kind().name(), entry.id(), entry.why().name())?;
    if entry.is_duplicated() {
        out.write_str(" duplicated")?;
    }
    if entry.is_shared() {
        out.write_str(if fork_refcount::is_sole_holder(fd, entry, None) {
            " alone"
        } else {
            " shared"
        })?;
    }
    if entry.was_found() {
        out.write_str(" found")?;
    }
    if let Some(way) = crate::carry::describe(fd) {
        out.write_str(" ")?;
        out.write_str(way)?;
    }
    if crate::light::token_of(fd).is_some() {
        out.write_str(" light")?;
    }
    if descriptor_tables::has_rings() {
        out.write_str(" rings")?;
    }
    let mut result = Ok(());
    MEMBERS.of_fd(fd, entry.id(), |member| {
        if let Some(set) = DESCRIPTORS.fds_of(member.set).next()
            && result.is_ok()
        {
            result = write!(out, " in={set}:{:#x}:{:#x}", member.events, member.data);
        }
    });
    result
}

/// Has the library keep a duplicate of a descriptor as one of its own; returns that duplicate.
#[unsafe(no_mangle)]
pub extern "C" fn ov_omniverb_sockets_keep(fd: c_int) -> c_int {
    library_fds::keep(fd).and_then(library_fds::fd).unwrap_or(-1)
}
