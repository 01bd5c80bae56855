//! Messages between a process that has opened a device and one that imports it.
//!
//! The command file of a context is one end of a pair of sockets, and the process that opened it
//! listens at the other: who has the file, or a duplicate, can send into it. What lies in the file
//! for everybody to look at, and for nobody to take, is a [`Card`]. Who imports sends an [`Ask`]
//! to [`OPEN`] into it with a descriptor, the end of a pair of its own, on which the two talk: it
//! asks, one question at a time, and gets a [`Notice`] of what it asked, or of what has happened.
//! Fixed-size and native-endian, one datagram a message.

use crate::body::Extent;
use crate::message_macros::bodies;
use omniverb_terms::{Errno, Rkey};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `Card::magic`.
pub const MAGIC: [u8; 8] = *b"omniverb";
/// `Card::version`: of these messages.
pub const VERSION: u32 = 1;

/// `Ask::what`: the first message, into the command file, with a descriptor.
pub const OPEN: u32 = 1;
/// `Ask::what`: what the object is; it is used from now on.
pub const IMPORT: u32 = 2;
/// `Ask::what`: the memory of the object, from the byte `at` of its pages on.
pub const PAGES: u32 = 3;
/// `Ask::what`: the object is to be destroyed, for everybody.
pub const DESTROY: u32 = 4;
/// `Ask::what`: the object is not used any more. Not answered.
pub const LEAVE: u32 = 5;
/// `Ask::what`: the object that was [`GONE`] is not used any more; with that message's tag. Not
/// answered.
pub const SEEN: u32 = 6;

/// `Notice::what`: an answer, with the tag of the question.
pub const ANSWER: u32 = 1;
/// `Notice::what`: this object has been destroyed, or is another one now.
pub const GONE: u32 = 2;

/// `object`: a protection domain.
pub const DOMAIN: u32 = 1;
/// `object`: a memory region.
pub const REGION: u32 = 2;
/// `object`: device memory.
pub const DEVICE_MEMORY: u32 = 3;

bodies! {
    /// What a command file shows.
    Card {
        magic: [u8; 8],
        /// Of the vNIC, whose device this is.
        node_guid: [u8; 8],
        version: u32,
        reserved: u32,
    }
    /// From who imports.
    Ask {
        what: u32,
        object: u32,
        /// The number that the owner gave the object.
        handle: u32,
        reserved: u32,
        tag: u64,
        at: u64,
    }
    /// From who opened the device. With pages: their file comes along.
    Notice {
        what: u32,
        errno: Errno,
        tag: u64,
        object: u32,
        handle: u32,
        /// Of a region: its protection domain's handle.
        pd: u32,
        /// `IBV_ACCESS_*`.
        access: u32,
        /// What peers name it by, or what looks like that.
        rkey: Rkey,
        reserved: u32,
        /// What requests name the first byte by.
        iova: u64,
        /// Bytes of the object.
        length: u64,
        /// Where in its first page it begins.
        begin: u64,
        /// The pages' place in their file.
        memory: Extent,
    }
}

macro_rules! datagram {
    ($($name:ident)*) => {$(
        impl $name {
            /// The message as it is sent.
            #[must_use]
            pub fn bytes(&self) -> &[u8] {
                self.as_bytes()
            }

            /// What a datagram says; `None` if it is not as long. Any fields.
            #[must_use]
            pub fn read(datagram: &[u8]) -> Option<$name> {
                $name::read_from_bytes(datagram).ok()
            }
        }
    )*};
}

datagram! { Card Ask Notice }

impl Ask {
    /// All fields zero.
    pub const NONE: Ask = Ask { what: 0, object: 0, handle: 0, reserved: 0, tag: 0, at: 0 };
}

impl Notice {
    /// All fields zero.
    pub const NONE: Notice = Notice {
        what: 0,
        errno: Errno::NONE,
        tag: 0,
        object: 0,
        handle: 0,
        pd: 0,
        access: 0,
        rkey: Rkey(0),
        reserved: 0,
        iova: 0,
        length: 0,
        begin: 0,
        memory: Extent::NONE,
    };
}

/// Bytes of the longest of these messages.
pub const BYTES_MAX: usize = size_of::<Notice>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_is_one_message_and_no_other_length_is() {
        let ask = Ask { what: PAGES, handle: 7, at: 4096, ..Ask::NONE };
        assert_eq!(Ask::read(ask.bytes()), Some(ask));
        let notice = Notice { what: GONE, length: u64::MAX, ..Notice::NONE };
        assert_eq!(Notice::read(notice.bytes()), Some(notice));
        for length in 0..BYTES_MAX + 8 {
            let bytes = vec![0xa5; length];
            assert_eq!(Ask::read(&bytes).is_some(), length == size_of::<Ask>());
            assert_eq!(Notice::read(&bytes).is_some(), length == size_of::<Notice>());
        }
    }
}
