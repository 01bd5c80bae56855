//! The memory files that owners move pages onto, so that these can be granted.
//!
//! They are made here and go down to the owner, to initiators and to the engine; none ever comes
//! up from a client. What is checked of one is checked on our own descriptor. Which extent is where
//! the tables decide.

use crate::outbox::Parcel;
use crate::server::Server;
use omniverb_session::Message;
use omniverb_session::body::Adopt;
use omniverb_sys::{Extent, memfd};
use omniverb_tenancy::{FileId, MemoryFacts, Place, SessionId};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Shows in `/proc/PID/maps` of whoever maps one.
const FILE_NAME: &str = "omniverb-mr";

/// By the name that the tables gave them, which bound how many there are.
#[derive(Default)]
pub(crate) struct Extents {
    files: HashMap<FileId, Parcel>,
}

impl Extents {
    pub(crate) fn file(&self, file: FileId) -> Option<Parcel> {
        self.files.get(&file).cloned()
    }

    /// How a file is now. It is ours, so neither its size nor its kind can be in doubt.
    pub(crate) fn facts(&self, file: FileId) -> Option<MemoryFacts> {
        let file = self.files.get(&file)?.as_fd();
        Some(MemoryFacts {
            sound: memfd::is_final(file).unwrap_or(false),
            write_sealed: memfd::is_write_sealed(file).unwrap_or(false),
        })
    }

    /// The file, which is made first if it is to have so many bytes.
    fn file_of(&mut self, (file, new): (FileId, Option<u64>)) -> Option<Parcel> {
        if let Some(bytes) = new {
            let made = memfd::create_sealable(FILE_NAME, bytes).ok()?;
            self.files.insert(file, Arc::new(made));
        }
        self.file(file)
    }

    /// Somebody else gets this place.
    pub(crate) fn empty(&self, place: &Place) {
        if let Some(file) = self.files.get(&place.file) {
            // A file that nobody can write has no second owner: its places are not given again.
            let _ = Extent::new(file, place.offset, place.length).empty();
        }
    }
}

impl Server {
    /// Nobody is given this one any more. Closing a large one takes the kernel long.
    pub(crate) fn forget_file(&mut self, file: FileId) {
        if let Some(file) = self.extents.files.remove(&file).and_then(Arc::into_inner) {
            self.keep(file);
        }
    }

    /// Gives an owner a file for pages of its own.
    pub(crate) fn adopt(&mut self, owner: SessionId, adopt: &Adopt, file: (FileId, Option<u64>)) {
        match self.extents.file_of(file) {
            Some(file) => self.tell(owner, &Message::Adopt(*adopt), vec![file]),
            None => {
                let actions = self.tenancy.memory_failed(adopt.token);
                self.work.extend(actions);
            }
        }
    }
}
