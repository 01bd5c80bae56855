//! Reads and writes QEMU's sockets: byte streams with descriptors.

use super::end_reason::MapperEnd;
use crate::vm::vhost_user::{HEAD_BYTES, Head};
use omniverb_sys::seqpacket;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A message of QEMU's: its head, what is behind that, descriptors.
pub(super) type Heard = (Head, Vec<u8>, Vec<OwnedFd>);

/// A socket by which bytes come, of which so many belong together.
pub(super) struct Stream {
    pub(super) socket: OwnedFd,
    /// Bytes received of it.
    bytes: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl Stream {
    pub(super) fn new(socket: OwnedFd) -> Stream {
        Stream { socket, bytes: Vec::new(), files: Vec::new() }
    }

    /// Nothing of a message has come.
    pub(super) fn is_at_rest(&self) -> bool {
        self.bytes.is_empty() && self.files.is_empty()
    }

    /// So many bytes, once they are there. Nothing behind them is read, so that no descriptors come
    /// that belong beside others.
    fn fill(&mut self, length: usize) -> Result<bool, MapperEnd> {
        while self.bytes.len() < length {
            let mut piece = vec![0; length - self.bytes.len()];
            match receive(self.socket.as_fd(), &mut piece)? {
                None => return Ok(false),
                Some((0, _)) => return Err(MapperEnd),
                Some((length, files)) => {
                    self.bytes.extend_from_slice(&piece[..length]);
                    self.files.extend(files);
                }
            }
        }
        Ok(true)
    }

    pub(super) fn read(&mut self, length: usize) -> Result<Option<Vec<u8>>, MapperEnd> {
        if !self.fill(length)? {
            return Ok(None);
        }
        self.files.clear();
        Ok(Some(std::mem::take(&mut self.bytes)))
    }

    /// A message, and the descriptors beside it.
    pub(super) fn message(&mut self) -> Result<Option<Heard>, MapperEnd> {
        if !self.fill(HEAD_BYTES)? {
            return Ok(None);
        }
        let head = Head::read(self.bytes.first_chunk().ok_or(MapperEnd)?)?;
        if !self.fill(HEAD_BYTES + head.length)? {
            return Ok(None);
        }
        let bytes = std::mem::take(&mut self.bytes);
        Ok(Some((head, bytes[HEAD_BYTES..].to_vec(), std::mem::take(&mut self.files))))
    }
}

/// Nothing, if there is nothing now.
fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> Result<Option<(usize, Vec<OwnedFd>)>, MapperEnd> {
    match seqpacket::receive(socket, bytes, seqpacket::BlockingMode::NonBlocking) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        heard => Ok(Some(heard?)),
    }
}
