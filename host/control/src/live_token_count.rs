//! Counts live tokens and their bytes: dropping a token lowers the count.

use omniverb_sys::lock;
use std::sync::{Arc, Mutex};

/// Counts its tokens.
#[derive(Debug, Default)]
pub(crate) struct Tally(Arc<()>);

/// Something is there.
#[derive(Debug)]
#[must_use = "what has no token does not count"]
pub(crate) struct Token(#[expect(dead_code, reason = "that it is there is all it says")] Arc<()>);

impl Tally {
    /// One more, until this is dropped.
    pub(crate) fn token(&self) -> Token {
        Token(self.0.clone())
    }

    /// Tokens that are there.
    pub(crate) fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

/// Counts bytes likewise. Copies are the same count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bytes(Arc<Mutex<usize>>);

/// So many bytes are there.
#[derive(Debug)]
#[must_use = "what is dropped does not count"]
pub(crate) struct CountedBytes(usize, Bytes);

impl Bytes {
    /// So many more, until this is dropped.
    pub(crate) fn take(&self, bytes: usize) -> CountedBytes {
        *lock(&self.0) += bytes;
        CountedBytes(bytes, self.clone())
    }

    /// Bytes that are there.
    pub(crate) fn count(&self) -> usize {
        *lock(&self.0)
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        *lock(&self.1.0) -= self.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_tokens_count() {
        let (tally, other) = (Tally::default(), Tally::default());
        let mut tokens: Vec<Token> = (0..3).map(|_| tally.token()).collect();
        assert_eq!((tally.count(), other.count()), (3, 0));
        drop(tokens.pop());
        assert_eq!(tally.count(), 2);
        tokens.clear();
        assert_eq!(tally.count(), 0);
        let bytes = Bytes::default();
        let (one, _other) = (bytes.take(5), bytes.clone().take(7));
        assert_eq!(bytes.count(), 12);
        drop(one);
        assert_eq!(bytes.count(), 7);
    }
}
