//! Lists the reasons for which received memory is not acceptable.

use std::io;
use thiserror::Error;

/// Why an extent, or the file that it is in, is not acceptable.
#[derive(Debug, Error)]
pub enum VerifyError {
    /// The file is neither a memfd on ordinary pages nor a device of memory.
    #[error("the descriptor is not a memory file")]
    NotMemory,
    /// No whole pages, or none at all, or more than addresses there are.
    #[error("{length} bytes from {offset} on are no whole pages of a memory file")]
    Range {
        /// Where it is said to begin.
        offset: u64,
        /// Bytes it is said to have.
        length: u64,
    },
    /// The file ends before it.
    #[error("the memory file has {found} bytes and should have {needed} or more")]
    Short {
        /// Bytes the file has.
        found: u64,
        /// Bytes it should have at least.
        needed: u64,
    },
    /// Another length than what is to be there has.
    #[error("the memory has {found} bytes instead of {expected}")]
    Length {
        /// Bytes it has.
        found: u64,
        /// Bytes it should have.
        expected: u64,
    },
    /// The file could still change its size.
    #[error("the memory file is not sealed against resizing")]
    Resizable,
    /// The kernel would not tell.
    #[error("cannot inspect the memory file: {0}")]
    Os(io::Error),
}

impl From<VerifyError> for io::Error {
    /// An error without an errno, unless the kernel gave one.
    fn from(error: VerifyError) -> io::Error {
        match error {
            VerifyError::Os(error) => error,
            error => io::Error::new(io::ErrorKind::InvalidData, error),
        }
    }
}
