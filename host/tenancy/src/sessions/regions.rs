//! Keeps the regions with remote access of one process.

use super::memory_region::Mr;
use crate::accounts::{Paid, Receipt};
use omniverb_terms::{Errno, Rkey};
use std::collections::HashMap;

/// By their keys, which are the process's own: another's may be the same.
#[derive(Debug, Default)]
pub(crate) struct Regions(HashMap<Rkey, Paid<Mr>>);

impl Regions {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// One of them has this key.
    pub(crate) fn has(&self, rkey: Rkey) -> bool {
        self.0.contains_key(&rkey)
    }

    /// The region of a key.
    pub(crate) fn get(&self, rkey: Rkey) -> Option<Mr> {
        self.0.get(&rkey).map(|mr| **mr)
    }

    /// One more, which this was paid for.
    ///
    /// # Errors
    /// `EADDRINUSE`: another one has the key.
    pub(crate) fn add(&mut self, rkey: Rkey, mr: Mr, receipt: Receipt) -> Result<(), Errno> {
        if self.has(rkey) {
            return Err(Errno::EADDRINUSE);
        }
        self.0.insert(rkey, receipt.pays_for(mr));
        Ok(())
    }

    /// One less.
    ///
    /// # Errors
    /// `ENOENT`: none has the key.
    pub(crate) fn remove(&mut self, rkey: Rkey) -> Result<(), Errno> {
        self.0.remove(&rkey).map(drop).ok_or(Errno::ENOENT)
    }

    /// All, with what they pay.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &Paid<Mr>> {
        self.0.values()
    }
}
