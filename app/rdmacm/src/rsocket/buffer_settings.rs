//! Keeps how large the buffers and queues of a socket are to be.

use core::ffi::c_int;

use omniverb_terms::Errno;

use super::wire_format::scaled;

const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
/// Paths to the peer: not a number.
pub(crate) const RDMA_ROUTE: c_int = 4;

/// The least entries of a queue.
const QUEUE_MIN: u16 = 16;
/// The most; also what a 16-bit count of messages can tell apart.
const QUEUE_MAX: u16 = 0x7ffe;
/// The least bytes of a buffer.
const BYTES_MIN: u32 = 4096;
/// The most, so that half of one can be told of in one message.
const BYTES_MAX: u32 = 1 << 29;

/// Bytes of the longest inline data.
pub(crate) const INLINE_MAX: usize = 1024;

/// What the program has chosen, or did not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) send_bytes: u32,
    pub(crate) receive_bytes: u32,
    pub(crate) send_queue: u16,
    pub(crate) receive_queue: u16,
    /// Data up to this length go within the request.
    pub(crate) inline: u32,
    /// Entries of our list of the peer's buffers.
    pub(crate) maps: u16,
}

impl Default for Settings {
    /// As rdma-core has them.
    fn default() -> Settings {
        Settings {
            send_bytes: 1 << 17,
            receive_bytes: 1 << 17,
            send_queue: 384,
            receive_queue: 384,
            inline: 64,
            maps: 0,
        }
    }
}

impl Settings {
    /// What is possible of it. Buffers have an even number of bytes.
    pub(crate) fn within_bounds(self) -> Settings {
        let bytes = |bytes: u32| bytes.clamp(BYTES_MIN, BYTES_MAX) & !1;
        Settings {
            send_bytes: bytes(self.send_bytes),
            receive_bytes: bytes(self.receive_bytes),
            send_queue: self.send_queue.clamp(QUEUE_MIN, QUEUE_MAX),
            receive_queue: self.receive_queue.clamp(QUEUE_MIN, QUEUE_MAX),
            inline: self.inline.min(INLINE_MAX as u32),
            maps: self.maps,
        }
    }

    /// Sets an option of the level `SOL_RDMA`.
    ///
    /// # Errors
    /// `EINVAL`: no size. `EOPNOTSUPP`: no such option.
    pub(crate) fn set(&mut self, name: c_int, number: c_int) -> Result<(), Errno> {
        let size = u32::try_from(number).map_err(|_| Errno::EINVAL)?;
        let entries = u16::try_from(size).unwrap_or(u16::MAX);
        match name {
            RDMA_SQSIZE => self.send_queue = entries,
            RDMA_RQSIZE => self.receive_queue = entries,
            RDMA_INLINE => self.inline = size,
            RDMA_IOMAPSIZE => self.maps = scaled(size),
            // There is one way to each address.
            RDMA_ROUTE => {}
            _ => return Err(Errno::EOPNOTSUPP),
        }
        Ok(())
    }

    /// What such an option is.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: no such option.
    pub(crate) fn get(&self, name: c_int) -> Result<c_int, Errno> {
        Ok(match name {
            RDMA_SQSIZE => c_int::from(self.send_queue),
            RDMA_RQSIZE => c_int::from(self.receive_queue),
            RDMA_INLINE => c_int::try_from(self.inline).unwrap_or(c_int::MAX),
            RDMA_IOMAPSIZE => c_int::from(self.maps),
            _ => return Err(Errno::EOPNOTSUPP),
        })
    }
}
