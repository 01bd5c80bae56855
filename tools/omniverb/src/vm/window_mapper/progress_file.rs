//! Stores a mapper's progress with QEMU, in a file that its supervisor has too.
//!
//! The successor of a mapper that was killed goes on with the same sockets, if that one was at
//! rest: all of QEMU's requests and its own were answered. Otherwise the next message would be
//! unknown.
//!
//! In and out: bytes of that file. Its writer served a hostile QEMU, and may have been of another
//! version of this program: every field is checked.

use super::end_reason::MapperEnd;
use crate::vm::machine_window::DATA_OFFSET;
use crate::vm::vhost_user::State;
use omniverb_sys::memfd;
use rustix::io::{pread, pwrite};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes of the machine's own file that the guest reads.
const OWN_BYTES: usize = DATA_OFFSET as usize + 4096;
/// Bytes before those.
const HEAD_BYTES: usize = 32;

/// The first byte: no mapper has begun; at rest, or busy.
const NOBODY: u8 = 0;
const AT_REST: u8 = 1;
const BUSY: u8 = 2;
/// The bytes after it, and those behind the last field.
const KIND: [u8; 7] = *b"notes 1";
const REST: [u8; 10] = [0; 10];

/// The file that outlives a mapper.
pub(super) struct Notes(OwnedFd);

/// The progress of a mapper at rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MapperProgress {
    pub(super) state: State,
    /// A driver of the guest's has begun that knows of memory which is mapped: all windows are.
    pub(super) has_begun: bool,
    /// QEMU has said where it is asked.
    pub(super) has_channel: bool,
}

impl MapperProgress {
    fn written(self, first: u8) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[0] = first;
        head[1..8].copy_from_slice(&KIND);
        head[8..16].copy_from_slice(&self.state.protocol.to_ne_bytes());
        head[16..20].copy_from_slice(&self.state.base.to_ne_bytes());
        head[20..22].copy_from_slice(&[self.has_begun.into(), self.has_channel.into()]);
        head
    }

    /// As that says; nothing if a mapper cannot be left so.
    fn read(head: &[u8; HEAD_BYTES]) -> Option<MapperProgress> {
        let protocol = u64::from_ne_bytes(*head[8..].first_chunk()?);
        let base = u32::from_ne_bytes(*head[16..].first_chunk()?);
        let state = State { protocol, base };
        let left =
            MapperProgress { state, has_begun: flag(head[20])?, has_channel: flag(head[21])? };
        let sound = head[1..8] == KIND && head[22..] == REST && state.is_sound();
        // Without a channel nothing is mapped.
        let sound = sound && (left.has_channel || !left.has_begun);
        match head[0] {
            NOBODY if left == MapperProgress::default() => Some(left),
            AT_REST => Some(left),
            _ => None,
        }
        .filter(|_| sound)
    }
}

fn flag(byte: u8) -> Option<bool> {
    [false, true].into_iter().find(|flag| u8::from(*flag) == byte)
}

/// The head of the machine's own file for the guest, before any write there.
pub(crate) fn beginning(own: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut beginning = vec![0; OWN_BYTES];
    read(own, &mut beginning, 0)?;
    Ok(beginning)
}

/// Empty notes of a machine whose own file begins so.
pub(crate) fn notes(beginning: &[u8]) -> io::Result<OwnedFd> {
    let notes = memfd::create("omniverb-notes", (HEAD_BYTES + OWN_BYTES) as u64)?;
    write(&notes, beginning, HEAD_BYTES)?;
    write(&notes, &MapperProgress::default().written(NOBODY), 0)?;
    Ok(notes)
}

impl Notes {
    /// # Errors
    /// If that is no such file.
    pub(super) fn new(file: OwnedFd) -> Result<Notes, MapperEnd> {
        let bytes = memfd::size(file.as_fd()).map_err(|_| MapperEnd)?;
        if bytes == (HEAD_BYTES + OWN_BYTES) as u64 { Ok(Notes(file)) } else { Err(MapperEnd) }
    }

    /// The notes of the earlier mapper, if there was one.
    ///
    /// # Errors
    /// If that one was not at rest, or the notes are malformed.
    pub(super) fn read(&self) -> Result<MapperProgress, MapperEnd> {
        let mut head = [0; HEAD_BYTES];
        read(&self.0, &mut head, 0)?;
        MapperProgress::read(&head).ok_or(MapperEnd)
    }

    /// The head of the machine's own file for the guest, before any write there.
    pub(super) fn beginning(&self) -> Result<Vec<u8>, MapperEnd> {
        let mut beginning = vec![0; OWN_BYTES];
        read(&self.0, &mut beginning, HEAD_BYTES)?;
        Ok(beginning)
    }

    /// Something is heard, or done.
    pub(super) fn busy(&self) -> Result<(), MapperEnd> {
        Ok(write(&self.0, &[BUSY], 0)?)
    }

    /// Nothing is heard or done, and this is how far it has come.
    pub(super) fn at_rest(&self, left: MapperProgress) -> Result<(), MapperEnd> {
        let head = left.written(AT_REST);
        // A mapper killed in between was busy.
        write(&self.0, &head[1..], 1)?;
        Ok(write(&self.0, &head[..1], 0)?)
    }
}

/// All of these bytes.
fn read(file: &OwnedFd, bytes: &mut [u8], at: usize) -> io::Result<()> {
    let length = pread(file, &mut *bytes, at as u64)?;
    if length == bytes.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn write(file: &OwnedFd, bytes: &[u8], at: usize) -> io::Result<()> {
    let length = pwrite(file, bytes, at as u64)?;
    if length == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEFT: MapperProgress = MapperProgress {
        state: State { protocol: 1 << 22 | 1 << 3, base: 77 },
        has_begun: true,
        has_channel: true,
    };

    fn some() -> Notes {
        let own = memfd::create("own", 1 << 21).unwrap();
        pwrite(&own, b"begins so", 4096).unwrap();
        let beginning = beginning(&own).unwrap();
        pwrite(&own, b"and is else", 4096).unwrap();
        Notes::new(notes(&beginning).unwrap()).unwrap()
    }

    #[test]
    fn progress_is_read_if_it_was_saved_at_rest() {
        let notes = some();
        assert_eq!(notes.read().ok(), Some(MapperProgress::default()));
        notes.busy().unwrap();
        assert!(notes.read().is_err(), "of the first one, too");
        for left in [LEFT, MapperProgress { has_begun: false, ..LEFT }, MapperProgress::default()] {
            notes.at_rest(left).unwrap();
            assert_eq!(notes.read().ok(), Some(left));
            notes.busy().unwrap();
            assert!(notes.read().is_err());
        }
        assert_eq!(notes.beginning().ok().unwrap()[4096..4105], *b"begins so");
    }

    #[test]
    fn malformed_progress_is_refused() {
        let notes = some();
        notes.at_rest(LEFT).unwrap();
        // The first byte; the version; features that were not offered; flags; what is not used.
        for (at, byte) in
            [(0, 0), (0, 3), (7, b'2'), (13, 0x80), (20, 2), (21, 2), (21, 0), (31, 1)]
        {
            let mut before = [0];
            pread(&notes.0, &mut before, at).unwrap();
            pwrite(&notes.0, &[byte], at).unwrap();
            assert!(notes.read().is_err(), "{at} {byte}");
            pwrite(&notes.0, &before, at).unwrap();
            assert_eq!(notes.read().ok(), Some(LEFT));
        }
        for bytes in [4096, 1 << 21] {
            assert!(Notes::new(memfd::create("other", bytes).unwrap()).is_err());
        }
        let unsealed = memfd::unsealed("other", (HEAD_BYTES + OWN_BYTES) as u64).unwrap();
        assert!(Notes::new(unsealed).is_err());
    }
}
