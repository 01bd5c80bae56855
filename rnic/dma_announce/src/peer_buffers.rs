//! Tracks what one node knows of another's buffers, and what it waits for.
//!
//! A buffer that goes is *withdrawn*. A node that hears of it begins nothing with it any more, and
//! *lets go* when what was under way is done. So memory goes when nothing uses it, and no transfer
//! ends in an error, which would end the connection.

use std::collections::{BTreeMap, BTreeSet};

use crate::buffer_messages::{AnnouncedBuffer, Malformed, Message};

/// How many buffers a node may have. As many are known of each of its peers, and those that are
/// withdrawn and still used.
pub const BUFFERS_MAX: usize = 4096;

/// Why a node is not believed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnouncementFault {
    /// Not a message.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// More buffers than a node may have.
    #[error("too many buffers")]
    TooMany,
    /// A serial that is not greater than the one before, or an identifier that is taken.
    #[error("a buffer is announced twice")]
    Twice,
    /// Of a buffer that is not there, or was withdrawn before.
    #[error("an unknown buffer")]
    Unknown,
    /// What was said before, and is said once.
    #[error("said twice")]
    Again,
}

/// A buffer of theirs.
#[derive(Debug)]
struct PeerBuffer {
    what: AnnouncedBuffer,
    /// Transfers under way.
    users: u32,
    withdrawn: bool,
}

/// All about a peer.
#[derive(Debug, Default)]
pub struct PeerBuffers {
    by_serial: BTreeMap<u64, PeerBuffer>,
    /// Serials of those that are not withdrawn.
    by_id: BTreeMap<u64, u64>,
    latest: u64,
    all: bool,
    /// Serials of ours that were withdrawn and that they have not let go.
    awaited: BTreeSet<u64>,
}

impl PeerBuffers {
    /// Takes a message; what is to be answered, if anything.
    ///
    /// # Errors
    /// The peer says what no node says. Nothing it says afterwards has a meaning.
    pub fn hear(&mut self, bytes: &[u8]) -> Result<Option<Message>, AnnouncementFault> {
        match Message::decode(bytes)? {
            Message::Buffer(what) => self.buffer(what).map(|()| None),
            Message::Withdrawn(serial) => self.withdrawn(serial),
            Message::LetGo(serial) => {
                if self.awaited.remove(&serial) {
                    Ok(None)
                } else {
                    Err(AnnouncementFault::Unknown)
                }
            }
            Message::All => {
                if std::mem::replace(&mut self.all, true) {
                    Err(AnnouncementFault::Again)
                } else {
                    Ok(None)
                }
            }
        }
    }

    fn buffer(&mut self, what: AnnouncedBuffer) -> Result<(), AnnouncementFault> {
        if what.serial <= self.latest || self.by_id.contains_key(&what.id) {
            return Err(AnnouncementFault::Twice);
        }
        // Those that are withdrawn do not count: of them there are no more than transfers of ours.
        if self.by_id.len() >= BUFFERS_MAX {
            return Err(AnnouncementFault::TooMany);
        }
        self.latest = what.serial;
        self.by_id.insert(what.id, what.serial);
        self.by_serial.insert(what.serial, PeerBuffer { what, users: 0, withdrawn: false });
        Ok(())
    }

    fn withdrawn(&mut self, serial: u64) -> Result<Option<Message>, AnnouncementFault> {
        let theirs = self.by_serial.get_mut(&serial).filter(|theirs| !theirs.withdrawn);
        let theirs = theirs.ok_or(AnnouncementFault::Unknown)?;
        theirs.withdrawn = true;
        self.by_id.remove(&theirs.what.id);
        Ok(self.let_go(serial))
    }

    /// Forgets a buffer that is withdrawn and not used.
    fn let_go(&mut self, serial: u64) -> Option<Message> {
        let theirs = self.by_serial.get(&serial)?;
        let goes = theirs.withdrawn && theirs.users == 0;
        goes.then(|| {
            self.by_serial.remove(&serial);
            Message::LetGo(serial)
        })
    }

    /// Whether they wait for a buffer that was withdrawn and that transfers of ours still use.
    #[must_use]
    pub fn keeps_withdrawn(&self) -> bool {
        self.by_serial.len() > self.by_id.len()
    }

    /// Whether they have said all that there was at the beginning.
    #[must_use]
    pub fn has_all(&self) -> bool {
        self.all
    }

    /// The buffer that they call so now.
    #[must_use]
    pub fn find(&self, id: u64) -> Option<AnnouncedBuffer> {
        self.by_serial.get(self.by_id.get(&id)?).map(|theirs| theirs.what)
    }

    /// A transfer begins; false if the buffer was withdrawn.
    #[must_use]
    pub fn begin(&mut self, serial: u64) -> bool {
        match self.by_serial.get_mut(&serial) {
            Some(theirs) if !theirs.withdrawn => {
                theirs.users += 1;
                true
            }
            _ => false,
        }
    }

    /// A transfer that was begun has ended; what is to be said.
    pub fn end(&mut self, serial: u64) -> Option<Message> {
        let theirs = self.by_serial.get_mut(&serial)?;
        theirs.users = theirs.users.saturating_sub(1);
        self.let_go(serial)
    }

    /// We withdraw one of ours; what is to be said.
    pub fn withdraw(&mut self, serial: u64) -> Message {
        self.awaited.insert(serial);
        Message::Withdrawn(serial)
    }

    /// Whether they may still use one of ours that was withdrawn.
    #[must_use]
    pub fn awaits(&self, serial: u64) -> bool {
        self.awaited.contains(&serial)
    }
}
