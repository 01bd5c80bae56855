//! Encodes what two stream sockets send each other: private data of the connection, immediate data
//! of WRITEs, and entries of lists that one writes into the other's memory.
//!
//! In: bytes from the peer, each checked here. Out: values. The format is that of rdma-core
//! (`librdmacm/docs/rsocket` there), whose sockets are peers like ours.

/// Bytes of the private data.
pub(crate) const HELLO_BYTES: usize = 40;
/// Bytes of an entry of the list of targets.
pub(crate) const PLACE_BYTES: usize = 16;
/// Entries of the list of targets.
pub(crate) const PLACES: usize = 2;
/// Bytes of an entry of the list of mapped buffers.
pub(crate) const MAP_BYTES: usize = 24;
/// The one version that there is.
const VERSION: u8 = 1;
/// The sender is a big-endian machine.
const BIG_ENDIAN: u8 = 1;
/// The sender has a list of mapped buffers.
const HAS_MAPS: u8 = 2;
/// Bits of an immediate that say how much.
const AMOUNT_BITS: u32 = 29;
/// The most bytes that one message tells of.
pub(crate) const AMOUNT_MAX: u32 = (1 << AMOUNT_BITS) - 1;

const DATA: u32 = 0;
const CREDITS: u32 = 4;
const MAPPED: u32 = 6;
const CONTROL: u32 = 7;

/// How a machine has numbers of several bytes in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteOrder {
    /// The highest byte first; so are numbers in private data.
    Big,
    Little,
}

/// That of this machine.
pub(crate) const BYTE_ORDER: ByteOrder =
    if cfg!(target_endian = "big") { ByteOrder::Big } else { ByteOrder::Little };

/// Memory of one side that the other may write to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemoteBuffer {
    pub(crate) address: u64,
    /// What the other side's WRITEs name it by.
    pub(crate) key: u32,
    /// Bytes; of a list in a [`Hello`], entries.
    pub(crate) length: u32,
}

impl RemoteBuffer {
    /// In memory of a machine of that byte order.
    pub(crate) fn encode(self, order: ByteOrder) -> [u8; PLACE_BYTES] {
        let mut bytes = [0; PLACE_BYTES];
        let (address, rest) = bytes.split_at_mut(8);
        let (key, length) = rest.split_at_mut(4);
        address.copy_from_slice(&eight(self.address, order));
        key.copy_from_slice(&four(self.key, order));
        length.copy_from_slice(&four(self.length, order));
        bytes
    }

    fn decode(bytes: &[u8; PLACE_BYTES], order: ByteOrder) -> RemoteBuffer {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *bytes;
        let (address, key, length) = ([a, b, c, d, e, f, g, h], [i, j, k, l], [m, n, o, p]);
        match order {
            ByteOrder::Big => RemoteBuffer {
                address: u64::from_be_bytes(address),
                key: u32::from_be_bytes(key),
                length: u32::from_be_bytes(length),
            },
            ByteOrder::Little => RemoteBuffer {
                address: u64::from_le_bytes(address),
                key: u32::from_le_bytes(key),
                length: u32::from_le_bytes(length),
            },
        }
    }

    /// From our own memory.
    pub(crate) fn here(bytes: &[u8; PLACE_BYTES]) -> RemoteBuffer {
        RemoteBuffer::decode(bytes, BYTE_ORDER)
    }
}

fn four(value: u32, order: ByteOrder) -> [u8; 4] {
    match order {
        ByteOrder::Big => value.to_be_bytes(),
        ByteOrder::Little => value.to_le_bytes(),
    }
}

fn eight(value: u64, order: ByteOrder) -> [u8; 8] {
    match order {
        ByteOrder::Big => value.to_be_bytes(),
        ByteOrder::Little => value.to_le_bytes(),
    }
}

/// A buffer of the program's that the peer may write to by its offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemoteMap {
    pub(crate) offset: u64,
    pub(crate) place: RemoteBuffer,
}

impl RemoteMap {
    /// In memory of a machine of that byte order.
    pub(crate) fn encode(self, order: ByteOrder) -> [u8; MAP_BYTES] {
        let mut bytes = [0; MAP_BYTES];
        let (offset, place) = bytes.split_at_mut(8);
        offset.copy_from_slice(&eight(self.offset, order));
        place.copy_from_slice(&self.place.encode(order));
        bytes
    }

    /// From our own memory.
    pub(crate) fn here(bytes: &[u8; MAP_BYTES]) -> RemoteMap {
        let (mut offset, mut place) = ([0; 8], [0; PLACE_BYTES]);
        offset.copy_from_slice(&bytes[..8]);
        place.copy_from_slice(&bytes[8..]);
        RemoteMap { offset: u64::from_ne_bytes(offset), place: RemoteBuffer::here(&place) }
    }

    /// Where an offset lies in it, and how many bytes there are from there on.
    pub(crate) fn find(self, offset: u64) -> Option<RemoteBuffer> {
        let within = offset.checked_sub(self.offset)?;
        let left = u64::from(self.place.length).checked_sub(within).filter(|&left| left > 0)?;
        let address = self.place.address.wrapping_add(within);
        Some(RemoteBuffer { address, key: self.place.key, length: u32::try_from(left).ok()? })
    }
}

/// What each side says of itself when a connection is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// In which it wants entries of its lists.
    pub(crate) byte_order: ByteOrder,
    /// Messages that may be sent before more are allowed.
    pub(crate) credits: u16,
    /// Entries of its list of mapped buffers, which lies behind the list of targets.
    pub(crate) maps: u16,
    /// Its list of targets: the peer writes there where it may be written to.
    pub(crate) list: RemoteBuffer,
    /// The half of its receive buffer that we write to first; others come by the list.
    pub(crate) buffer: RemoteBuffer,
}

impl Hello {
    /// As the private data of a REQ or REP, in network byte order.
    pub(crate) fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[0] = VERSION;
        bytes[1] = match self.byte_order {
            ByteOrder::Big => HAS_MAPS | BIG_ENDIAN,
            ByteOrder::Little => HAS_MAPS,
        };
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = to_scale(self.maps);
        bytes[8..24].copy_from_slice(&self.list.encode(ByteOrder::Big));
        bytes[24..40].copy_from_slice(&self.buffer.encode(ByteOrder::Big));
        bytes
    }

    /// `None`: not from such a socket, or with a list that no socket has.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Hello> {
        let bytes: &[u8; HELLO_BYTES] = bytes.get(..HELLO_BYTES)?.try_into().ok()?;
        let [version, flags, high, low, _, _, _, scale, places @ ..] = bytes;
        let place = |at: usize| {
            let bytes: Option<&[u8; PLACE_BYTES]> = places.get(at..)?.first_chunk();
            Some(RemoteBuffer::decode(bytes?, ByteOrder::Big))
        };
        let hello = Hello {
            byte_order: match flags & BIG_ENDIAN {
                0 => ByteOrder::Little,
                _ => ByteOrder::Big,
            },
            credits: u16::from_be_bytes([*high, *low]),
            maps: if flags & HAS_MAPS == 0 { 0 } else { from_scale(*scale) },
            list: place(0)?,
            buffer: place(PLACE_BYTES)?,
        };
        (*version == VERSION && hello.list.length > 0).then_some(hello)
    }
}

/// A size in a byte: up to 128 as it is, more in units of 256.
fn to_scale(value: u16) -> u8 {
    if value <= 128 { value as u8 } else { 128 | (value >> 8) as u8 }
}

/// The size that such a byte stands for.
fn from_scale(scale: u8) -> u16 {
    if scale <= 128 { u16::from(scale) } else { u16::from(scale & 127) << 8 }
}

/// The size that a peer is told, for one that was asked for.
pub(crate) fn scaled(value: u32) -> u16 {
    let most = from_scale(u8::MAX);
    from_scale(to_scale(u16::try_from(value).map_or(most, |value| value.min(most))))
}

/// What the immediate data of a WRITE says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// So many bytes of the stream have been written.
    Data(u32),
    /// Messages may be sent up to this one; the list of targets may have changed.
    Credits(u16),
    /// This entry of the list of mapped buffers has changed.
    Mapped(u16),
    /// It neither sends nor receives any more.
    Disconnect,
    /// It is there.
    Alive,
    /// It sends nothing any more.
    Shutdown,
    /// Nothing that is known.
    Other,
}

impl Message {
    /// As a number, in this machine's order.
    pub(crate) fn encode(self) -> u32 {
        let (kind, amount) = match self {
            Message::Data(bytes) => (DATA, bytes & AMOUNT_MAX),
            Message::Credits(until) => (CREDITS, u32::from(until)),
            Message::Mapped(index) => (MAPPED, u32::from(index)),
            Message::Disconnect => (CONTROL, 0),
            Message::Alive => (CONTROL, 1),
            Message::Shutdown => (CONTROL, 2),
            Message::Other => (CONTROL, AMOUNT_MAX),
        };
        kind << AMOUNT_BITS | amount
    }

    /// Any number is a message.
    pub(crate) fn decode(number: u32) -> Message {
        let amount = number & AMOUNT_MAX;
        match (number >> AMOUNT_BITS, amount) {
            (DATA, bytes) => Message::Data(bytes),
            // Those that send more than 16 bits mean the lower ones.
            (CREDITS, until) => Message::Credits(until as u16),
            (MAPPED, index) => Message::Mapped(index as u16),
            (CONTROL, 0) => Message::Disconnect,
            (CONTROL, 1) => Message::Alive,
            (CONTROL, 2) => Message::Shutdown,
            _ => Message::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HELLO: Hello = Hello {
        byte_order: ByteOrder::Little,
        credits: 384,
        maps: 1,
        list: RemoteBuffer { address: 0x1122_3344_5566_7788, key: 0x99aa_bbcc, length: 2 },
        buffer: RemoteBuffer { address: 0x10, key: 0x20, length: 0x10000 },
    };

    #[test]
    fn private_data_is_as_rdma_core_has_it() {
        let bytes = HELLO.encode();
        assert_eq!(bytes[..8], [1, 2, 1, 0x80, 0, 0, 0, 1]);
        assert_eq!(bytes[8..16], 0x1122_3344_5566_7788_u64.to_be_bytes());
        assert_eq!(bytes[16..24], [0x99, 0xaa, 0xbb, 0xcc, 0, 0, 0, 2]);
        assert_eq!(bytes[24..], [0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0x20, 0, 1, 0, 0]);
        // Private data is longer on the wire than what was given.
        let mut longer = bytes.to_vec();
        longer.extend([0; 16]);
        assert_eq!(Hello::decode(&longer), Some(HELLO));
    }

    #[test]
    fn foreign_peers_are_recognised_by_their_private_data() {
        let bytes = HELLO.encode();
        assert_eq!(Hello::decode(&bytes[..39]), None);
        assert_eq!(Hello::decode(&[]), None);
        let mut other_version = bytes;
        other_version[0] = 2;
        assert_eq!(Hello::decode(&other_version), None);
        let no_list = Hello { list: RemoteBuffer { length: 0, ..HELLO.list }, ..HELLO };
        assert_eq!(Hello::decode(&no_list.encode()), None);
        let mut without_maps = bytes;
        without_maps[1] = 0;
        assert_eq!(Hello::decode(&without_maps).unwrap().maps, 0);
    }

    #[test]
    fn messages_are_as_rdma_core_has_them() {
        assert_eq!(Message::Data(5).encode(), 5);
        assert_eq!(Message::Credits(7).encode(), 0x8000_0007);
        assert_eq!(Message::Mapped(3).encode(), 0xc000_0003);
        assert_eq!(Message::Disconnect.encode(), 0xe000_0000);
        assert_eq!(Message::Shutdown.encode(), 0xe000_0002);
        assert_eq!(Message::decode(0x8001_0002), Message::Credits(2));
        for reserved in [1_u32, 2, 3, 5] {
            assert_eq!(Message::decode(reserved << 29), Message::Other);
        }
    }

    #[test]
    fn sizes_in_a_byte() {
        assert_eq!(
            [0, 1, 128, 129, 256, 600, u32::MAX].map(scaled),
            [0, 1, 128, 128, 256, 512, 32512]
        );
    }

    #[test]
    fn an_offset_is_found_where_it_lies() {
        let map =
            RemoteMap { offset: 100, place: RemoteBuffer { address: 1000, key: 1, length: 10 } };
        assert_eq!(map.find(103), Some(RemoteBuffer { address: 1003, key: 1, length: 7 }));
        assert_eq!((map.find(99), map.find(110)), (None, None));
        let last = RemoteMap { offset: u64::MAX, ..map };
        assert_eq!((last.find(0), last.find(u64::MAX).map(|at| at.length)), (None, Some(10)));
    }

    proptest! {
        #[test]
        fn every_immediate_value_survives_decoding_and_encoding(number: u32) {
            let message = Message::decode(number);
            prop_assert_eq!(Message::decode(message.encode()), message);
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some(hello) = Hello::decode(&bytes) {
                prop_assert!(hello.maps <= 32512 && hello.list.length > 0);
            }
        }

        #[test]
        fn entries_are_read_as_they_were_written(offset: u64, address: u64, key: u32, length: u32) {
            let map = RemoteMap { offset, place: RemoteBuffer { address, key, length } };
            prop_assert_eq!(RemoteMap::here(&map.encode(BYTE_ORDER)), map);
        }
    }
}
