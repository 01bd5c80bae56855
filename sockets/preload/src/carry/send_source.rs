//! Supplies the bytes that the program sends: from its memory, or a file (`sendfile`).

use core::ffi::c_int;
use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;

use omniverb_formats::Direction;
use omniverb_formats::carried_direction::Stretch;
use rustix::fs::{FileType, fstat, fstatfs};
use rustix::io::{Errno, ReadWriteFlags};

use super::links::{Link, Memory};
use super::published_bytes;
use crate::borrowed_fd::borrow;
use crate::iovecs::Parts;
use crate::next_library;
use crate::user_memory::UserPtrMut;

/// The kernel sends no more by one call (sendfile(2)).
const MOST: usize = 0x7fff_f000;
/// `linux/magic.h`.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// What a call is to send.
pub(super) trait Source {
    /// So many bytes there are.
    fn total(&self) -> usize;

    /// Copies `length` of them, from the one at `skip` on, into the ring behind `position`. How
    /// many that were: fewer, if there are not as many after all.
    fn fill(
        &self,
        link: Link,
        direction: &Direction<Memory>,
        position: u64,
        skip: usize,
        length: usize,
    ) -> usize;

    /// Has the kernel send those from the one at `skip` on. `flags` are those of messages.
    fn send_rest(&self, fd: c_int, skip: usize, flags: c_int) -> isize;
}

impl Source for Parts<'_> {
    #[inline(always)]
    fn total(&self) -> usize {
        Parts::total(self)
    }

    #[inline(always)]
    fn fill(
        &self,
        _: Link,
        direction: &Direction<Memory>,
        position: u64,
        skip: usize,
        length: usize,
    ) -> usize {
        self.each(skip, length, |done, piece| direction.fill(position, done, piece));
        length
    }

    fn send_rest(&self, fd: c_int, skip: usize, flags: c_int) -> isize {
        self.lend_rest(skip, usize::MAX, |message| {
            next_library::sendmsg(fd, message.as_const(), flags)
        })
    }
}

/// What a `sendfile` is about.
pub(crate) enum SendfileRequest {
    /// This part of a regular file.
    Part(File),
    /// Of a regular file what only the kernel knows: where it should have no more bytes (what it
    /// says of its size is not true of all), or a part that is none.
    Unknown,
    /// No part of a regular file.
    Other,
}

/// A part of a regular file.
pub(crate) struct File {
    fd: c_int,
    offset: i64,
    length: usize,
}

impl File {
    /// What a `sendfile` with an offset is about.
    pub(crate) fn of(fd: c_int, offset: i64, count: usize) -> SendfileRequest {
        let file = borrow(fd);
        let Some(status) = fstat(file).ok().filter(|_| fd >= 0 && offset >= 0) else {
            return SendfileRequest::Other;
        };
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return SendfileRequest::Other;
        }
        let is_part =
            isize::try_from(count).is_ok_and(|count| offset.checked_add(count as i64).is_some());
        let left = usize::try_from(status.st_size.saturating_sub(offset)).unwrap_or(0);
        match left.min(count).min(MOST) {
            length @ 1.. if is_part => SendfileRequest::Part(Self { fd, offset, length }),
            _ => SendfileRequest::Unknown,
        }
    }
}

impl Source for File {
    fn total(&self) -> usize {
        self.length
    }

    /// From where the kernel keeps the file into the ring, without another copy. What it would have
    /// to fetch first it sends itself: others wait for the lock meanwhile.
    fn fill(
        &self,
        link: Link,
        direction: &Direction<Memory>,
        position: u64,
        skip: usize,
        length: usize,
    ) -> usize {
        let Some(memory) = link.memory() else { return 0 };
        let mut done = 0;
        while done < length {
            let stretch = Stretch { from: position, bytes: length };
            let mut pieces =
                direction.pieces(stretch, done).map(|(at, length)| memory.room(at, length));
            let file = borrow(self.fd);
            let from = self.offset as u64 + (skip + done) as u64;
            match read_at_once(file, &mut pieces, from) {
                Ok(0) | Err(_) => break,
                Ok(bytes) => done += bytes.min(length - done),
            }
        }
        done
    }

    fn send_rest(&self, fd: c_int, skip: usize, _: c_int) -> isize {
        let mut offset = self.offset + skip as i64;
        published_bytes::flush_before(fd, 0);
        next_library::sendfile(fd, self.fd, UserPtrMut::of(&mut offset), self.length - skip)
    }
}

/// `preadv`, of what is in memory; else an error.
fn read_at_once(
    file: BorrowedFd<'_>,
    to: &mut [IoSliceMut<'_>],
    from: u64,
) -> Result<usize, Errno> {
    match rustix::io::preadv2(file, to, from, ReadWriteFlags::NOWAIT) {
        // Files that are nowhere else have no such call.
        Err(Errno::OPNOTSUPP) if fstatfs(file)?.f_type == TMPFS_MAGIC => {
            rustix::io::preadv(file, to, from)
        }
        done => done,
    }
}
