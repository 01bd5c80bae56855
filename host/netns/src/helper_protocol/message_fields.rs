//! Writes and reads the numbers that messages of the helper are made of.

pub(crate) const MARK: u32 = u32::from_ne_bytes(*b"ovh1");
pub(crate) const HEADER_BYTES: usize = 24;

/// The beginning of an answer, and of what is said unasked.
pub(super) fn header(kind: u32, id: u64, errno: i32, count: usize) -> Writer {
    let mut bytes = Writer::default();
    bytes.number(MARK);
    bytes.number(kind);
    bytes.long(id);
    bytes.number(errno.cast_unsigned());
    bytes.number(u32::try_from(count).unwrap_or(u32::MAX));
    bytes
}

/// A message that is being written.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn number(&mut self, value: u32) {
        self.0.extend(value.to_ne_bytes());
    }

    pub(super) fn long(&mut self, value: u64) {
        self.0.extend(value.to_ne_bytes());
    }
}

/// The unread rest of a message.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn number(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    pub(super) fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }
}
