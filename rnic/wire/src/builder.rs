//! Builds a packet to send: headers one after the other, payload, padding, room for the ICRC.

use crate::{Bth, Opcode, SUFFIX_BYTES};
use zerocopy::{Immutable, IntoBytes};

/// Writes one packet into a buffer. The opcode decides where the payload begins; the caller pushes
/// exactly the headers that the opcode has.
pub struct Builder<'a> {
    datagram: &'a mut [u8],
    /// Where the next header goes.
    at: usize,
    /// Where the payload begins, and where it ends.
    payload: (usize, usize),
}

impl<'a> Builder<'a> {
    /// Begins a packet whose payload will have `payload` bytes. `None`: the buffer is too small.
    #[inline]
    pub fn new(
        datagram: &'a mut [u8],
        opcode: Opcode,
        bth: Bth,
        payload: usize,
    ) -> Option<Builder<'a>> {
        let padding = payload.wrapping_neg() & 3;
        let begin = opcode.header_bytes();
        let length = begin + payload + padding + SUFFIX_BYTES;
        let datagram = datagram.get_mut(..length)?;
        bth.padded(padding).write_to_prefix(datagram).ok()?;
        let end = begin + payload;
        datagram[end..].fill(0);
        Some(Builder { datagram, at: Bth::BYTES, payload: (begin, end) })
    }

    /// Adds a header.
    #[inline]
    pub fn header<H: IntoBytes + Immutable>(mut self, header: H) -> Builder<'a> {
        let bytes = header.as_bytes();
        let end = self.at + bytes.len();
        debug_assert!(end <= self.payload.0);
        if let Some(target) = self.datagram.get_mut(self.at..end) {
            target.copy_from_slice(bytes);
        }
        self.at = end;
        self
    }

    /// Adds a header if there is one.
    #[inline]
    pub fn maybe<H: IntoBytes + Immutable>(self, header: Option<H>) -> Builder<'a> {
        match header {
            Some(header) => self.header(header),
            None => self,
        }
    }

    /// Where the payload goes.
    #[inline]
    pub fn payload(&mut self) -> &mut [u8] {
        let (begin, end) = self.payload;
        &mut self.datagram[begin..end]
    }

    /// Length of the datagram, ICRC included.
    #[inline]
    pub fn finish(self) -> usize {
        debug_assert_eq!(self.at, self.payload.0, "headers that the opcode has");
        self.datagram.len()
    }
}
