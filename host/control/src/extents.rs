//! The memory files that owners move pages onto, so that these can be granted.
//!
//! They are made here and go down to the owner, to initiators and to the engine; none ever comes
//! up from a client. What is checked of one is checked on our own descriptor.

use crate::outbox::Parcel;
use crate::server::Server;
use omniverb_session::Message;
use omniverb_session::body::Adopt;
use omniverb_sys::memfd;
use omniverb_tenancy::{MemoryFacts, MemoryId, SessionId};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Shows in `/proc/PID/maps` of whoever maps one.
const FILE_NAME: &str = "omniverb-mr";

/// By the name that the tables gave them, which bound how many there are.
#[derive(Default)]
pub(crate) struct Extents {
    files: HashMap<MemoryId, Parcel>,
}

impl Extents {
    pub(crate) fn file(&self, memory: MemoryId) -> Option<Parcel> {
        self.files.get(&memory).cloned()
    }

    /// How a file is now. It is ours, so neither its size nor its kind can be in doubt.
    pub(crate) fn facts(&self, memory: MemoryId) -> Option<MemoryFacts> {
        let file = self.files.get(&memory)?.as_fd();
        Some(MemoryFacts {
            sound: memfd::is_final(file).unwrap_or(false),
            write_sealed: memfd::is_write_sealed(file).unwrap_or(false),
        })
    }
}

impl Server {
    /// Nobody is given this one any more. Closing a large one takes the kernel long.
    pub(crate) fn forget_memory(&mut self, memory: MemoryId) {
        if let Some(file) = self.extents.files.remove(&memory).and_then(Arc::into_inner) {
            self.keep(file);
        }
    }

    /// Gives an owner a file for pages of its own.
    pub(crate) fn adopt(&mut self, owner: SessionId, adopt: &Adopt) {
        match memfd::create_sealable(FILE_NAME, adopt.memory.length) {
            Ok(file) => {
                let file: Parcel = Arc::new(file);
                self.extents.files.insert(adopt.token, file.clone());
                self.tell(owner, &Message::Adopt(*adopt), vec![file]);
            }
            Err(_) => {
                let actions = self.tenancy.memory_failed(adopt.token);
                self.work.extend(actions);
            }
        }
    }
}
