//! Buffers that one side lends the other, to be written to by offset.

use omniverb_terms::Errno;

use super::registered_memory::LentMemory;
use super::wire_format::RemoteMap;

struct LentBuffer {
    memory: LentMemory,
    offset: u64,
    /// Its entry in the peer's list; none for a buffer that the peer does not learn of.
    index: Option<u16>,
    /// The peer knows of it, or does not learn of it.
    announced: bool,
}

/// What we lend, and what the peer lends us.
pub(crate) struct IoMaps {
    lent: Vec<LentBuffer>,
    /// Entries of the peer's list.
    most: u16,
    borrowed: Vec<RemoteMap>,
}

impl IoMaps {
    /// Nothing, for lists of so many entries at the peer's, and at ours.
    pub(crate) fn new(theirs: u16, ours: u16) -> IoMaps {
        let borrowed = vec![RemoteMap::default(); usize::from(ours)];
        IoMaps { lent: Vec::new(), most: theirs, borrowed }
    }

    /// An entry that the peer can be told in.
    ///
    /// # Errors
    /// `ENOMEM`: its list is full.
    pub(crate) fn vacant(&self) -> Result<u16, Errno> {
        let is_taken = |index| self.lent.iter().any(|lending| lending.index == Some(index));
        (0..self.most).find(|&index| !is_taken(index)).ok_or(Errno::ENOMEM)
    }

    /// Lends a buffer.
    pub(crate) fn lend(&mut self, memory: LentMemory, offset: u64, index: Option<u16>) {
        self.lent.push(LentBuffer { memory, offset, index, announced: index.is_none() });
    }

    /// Takes a buffer back.
    ///
    /// # Errors
    /// `EINVAL`: it was not lent.
    pub(crate) fn take_back(&mut self, start: usize, bytes: usize) -> Result<(), Errno> {
        let is_it = |l: &LentBuffer| l.memory.start == start && l.memory.bytes == bytes;
        let at = self.lent.iter().position(is_it).ok_or(Errno::EINVAL)?;
        self.lent.remove(at);
        Ok(())
    }

    /// What the peer is to be told next, and in which entry.
    pub(crate) fn unannounced(&self) -> Option<(u16, RemoteMap)> {
        let lending = self.lent.iter().find(|lending| !lending.announced)?;
        Some((lending.index?, RemoteMap { offset: lending.offset, place: lending.memory.place() }))
    }

    /// The peer was told of what is in this entry.
    pub(crate) fn mark_announced(&mut self, index: u16) {
        for lending in &mut self.lent {
            lending.announced |= lending.index == Some(index);
        }
    }

    /// The peer says what is in this entry. Whether there is one.
    pub(crate) fn borrow(&mut self, index: u16, map: RemoteMap) -> bool {
        let entry = self.borrowed.get_mut(usize::from(index));
        entry.map(|entry| *entry = map).is_some()
    }

    /// The buffer of the peer's that has this offset.
    pub(crate) fn find(&self, offset: u64) -> Option<super::wire_format::RemoteBuffer> {
        self.borrowed.iter().find_map(|map| map.find(offset))
    }
}
