//! What an agent's process keeps pinned outlives both: the next one takes it over.
//!
//! They find each other by a socket that only root can make or open. Rings cannot be sent, but
//! taken from who has them: so their numbers are said.

use super::kept::Kept;
use anyhow::Context;
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_sys::{clock, limited, pidfd, pinned, socket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// What the socket is called.
const NAME: &str = "pins.sock";
/// Nanoseconds that one waits for the other.
const PATIENCE: u64 = 5_000_000_000;
/// Bytes of what is said of a pin: its number, how many bytes, which descriptor.
const ENTRY: usize = 24;
/// Pins in a message.
const AT_ONCE: usize = MESSAGE_BYTES_MAX / ENTRY - 1;

/// Where the next one comes.
pub(super) struct Heir {
    door: OwnedFd,
}

impl Heir {
    /// Takes over what the one before has, and waits for the next one.
    pub(super) fn begin(folder: &Path, kept: &mut Kept) -> anyhow::Result<Heir> {
        let path = folder.join(NAME);
        if socket::is_alive(&path) {
            take_over(&path, kept)?;
        }
        let _ = std::fs::remove_file(&path);
        let door = socket::listen(&path, 0o600).context("cannot listen")?;
        Ok(Heir { door })
    }

    pub(super) fn door(&self) -> &OwnedFd {
        &self.door
    }

    /// Somebody has come; true: he has it all.
    pub(super) fn hand_over(&self, kept: &Kept) -> bool {
        let Ok(Some(heir)) = socket::accept(self.door.as_fd()) else { return false };
        if socket::peer(heir.as_fd()).map_or(true, |peer| peer.uid != 0) {
            return false;
        }
        let deadline = clock::now() + PATIENCE;
        let number = |ring: &OwnedFd| u64::from(ring.as_raw_fd().unsigned_abs());
        let all = kept.iter().map(|(token, ring, bytes)| [token, bytes, number(ring)]);
        let all: Vec<[u64; 3]> = all.collect();
        // An empty one is the last.
        for some in all.chunks(AT_ONCE).chain(std::iter::once(&[][..])) {
            let words = some.iter().flatten().flat_map(|word| word.to_ne_bytes());
            let message: Vec<u8> = std::iter::once(b'+').chain(words).collect();
            if limited::send(heir.as_fd(), &message, &[], deadline).is_err() {
                return false;
            }
        }
        // Who has taken all says so; who ends before may not have.
        let mut word = [0; 1];
        let taken = limited::receive(heir.as_fd(), &mut word, deadline);
        // The name is his by now.
        taken.is_ok_and(|(length, _)| length == 1)
    }
}

fn take_over(path: &Path, kept: &mut Kept) -> anyhow::Result<()> {
    let deadline = clock::now() + PATIENCE;
    let before = limited::connect(path, deadline)?;
    anyhow::ensure!(socket::peer(before.as_fd())?.uid == 0, "somebody else is there");
    let process = pidfd::of_peer(before.as_fd())?;
    loop {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let (length, _) = limited::receive(before.as_fd(), &mut bytes, deadline)?;
        anyhow::ensure!(length > 0, "the one before has ended");
        let (words, _) = bytes.get(1..length).unwrap_or(&[]).as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let (entries, _) = words.as_chunks::<3>();
        if entries.is_empty() {
            break;
        }
        for [token, length, number] in entries {
            let number = u32::try_from(*number)?;
            let ring = pinned::descriptor_of(process.as_fd(), number)?;
            kept.add(*token, ring, *length);
        }
    }
    limited::send(before.as_fd(), b"+", &[], deadline)?;
    Ok(())
}
