//! Formats text into a caller's buffer, and cuts it off at the end.

use core::fmt::{self, Write};

/// Text, and how much of it there is.
pub(crate) struct Words<'a> {
    bytes: &'a mut [u8],
    used: usize,
}

impl<'a> Words<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, used: 0 }
    }

    /// A zero behind it. How long it is without that.
    pub(crate) fn end(&mut self) -> usize {
        self.bytes[self.used] = 0;
        self.used
    }

    /// What was written so far.
    pub(crate) fn written(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

impl Write for Words<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - 1 - self.used;
        let text = text.as_bytes();
        let fits = text.len().min(room);
        self.bytes[self.used..self.used + fits].copy_from_slice(&text[..fits]);
        self.used += fits;
        if fits == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}
