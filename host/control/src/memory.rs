//! The memory two processes share, made by the daemon and kept by it only until it is sent.

use crate::outbox::Letter;
use omniverb_link::layout::link_bytes;
use omniverb_session::body::{self, LinkReady};
use omniverb_sys::{Extent, memfd};
use std::io;
use std::sync::Arc;

/// A bell: one page per side.
const BELL_BYTES: u64 = 0x2000;

/// What the ends of a new link get: its memory and, if the bell between these two processes is new,
/// that of the bell.
pub(crate) struct Shared {
    pub(crate) link: Extent,
    pub(crate) bell: Option<Extent>,
}

/// Makes memory that is handed out as it is.
pub(crate) fn make(name: &str, bytes: u64) -> io::Result<Extent> {
    Ok(Extent::new(Arc::new(memfd::create(name, bytes)?), 0, bytes))
}

/// As others are told of it, to whom its file goes along.
pub(crate) fn said(extent: &Extent) -> body::Extent {
    body::Extent { offset: extent.offset, length: extent.length }
}

impl Shared {
    /// Makes what the link that `ready` (either end's) describes needs.
    pub(crate) fn make(ready: &LinkReady) -> io::Result<Shared> {
        let bytes = link_bytes(ready.request_bytes as usize, ready.response_bytes as usize);
        let link = make("omniverb-link", bytes as u64)?;
        let bell = || make("omniverb-bell", BELL_BYTES);
        let bell = (ready.bell_new != 0).then(bell).transpose()?;
        Ok(Shared { link, bell })
    }

    /// What an end is told.
    pub(crate) fn letter(&self, ready: &LinkReady) -> Letter {
        let all = [Some(&self.link), self.bell.as_ref()].into_iter().flatten();
        let bell_memory = self.bell.as_ref().map_or(body::Extent::NONE, said);
        let ready = LinkReady { memory: said(&self.link), bell_memory, ..*ready };
        Letter::with(ready, all.map(|extent| extent.file.clone()).collect())
    }
}
