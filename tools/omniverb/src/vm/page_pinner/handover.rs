//! Hands the pinned pages of one pinner over to the next.
//!
//! They find each other by a socket in a folder of root's that no other user may enter, and that no
//! container gets ([`FOLDER`]). Rings cannot be sent, but a process that may trace their holder can
//! copy them. So the heir asks for their numbers, takes a copy of each, and sends the numbers of
//! its own descriptors; the holder asks the kernel whether they match (kcmp(2)), for each, and only
//! then releases them, if its own agent is gone. Heirs are answered between other work, one message
//! at a time: a silent or malicious one holds up no other.
//!
//! A pinner that could not take over, and has lost its agent since, takes nothing from the present
//! one, whose agent may live: it releases the rings that the present one has too, by the kernel's
//! word.

use super::kept_rings::{KeptRings, PINS_MAX};
use super::page_location::{self, LOOKS};
use anyhow::{Context, bail, ensure};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_sys::{clock, io_uring_pin, pidfd, seqpacket, seqpacket_deadline};
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, Permissions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// Where agents' processes of this kind find each other: not where sockets are that containers get.
pub(in crate::vm) const FOLDER: &str = "/run/omniverb-agent";
/// The name of the socket.
const NAME: &str = "pins.sock";
/// Nanoseconds that an heir waits for all of it.
const PATIENCE: u64 = 5_000_000_000;
/// How often an heir begins anew because there is more by now.
const ROUNDS: usize = 16;
/// Heirs that are listened to; one more takes the place of the oldest.
const HEIRS_MAX: usize = 4;

/// Messages of an heir: the next pins behind this number; I have these, under those numbers; I have
/// all.
const WHICH: u8 = b'?';
const HAVE: u8 = b'=';
const ALL: u8 = b'.';
/// Answers: some, or none behind that; they match and are released; they do not.
const SOME: u8 = b'+';
const YES: u8 = b'!';
const NO: u8 = b'-';

/// Numbers that say a pin: its own, how many bytes, which descriptor.
type Entry = [u64; 3];
/// Pins in a message.
const AT_ONCE: usize = MESSAGE_BYTES_MAX / size_of::<Entry>() - 1;

fn message(kind: u8, words: impl IntoIterator<Item = u64>) -> Vec<u8> {
    std::iter::once(kind).chain(words.into_iter().flat_map(u64::to_ne_bytes)).collect()
}

/// The kind of a message, and its numbers.
fn parts(bytes: &[u8]) -> Option<(u8, Vec<u64>)> {
    let (kind, rest) = bytes.split_first()?;
    let (words, more) = rest.as_chunks();
    let words = words.iter().map(|word| u64::from_ne_bytes(*word));
    more.is_empty().then(|| (*kind, words.collect()))
}

fn number(file: &impl AsRawFd) -> u64 {
    u64::from(file.as_raw_fd().unsigned_abs())
}

/// Whether the process at the other end of this socket is what we are: root of this user namespace,
/// with the right to trace processes.
fn is_alike(socket: BorrowedFd<'_>) -> Option<i32> {
    let peer = seqpacket::peer(socket).ok()?;
    let alike =
        peer.pid > 0 && peer.uid == geteuid().as_raw() && page_location::may(peer.pid, LOOKS);
    alike.then_some(peer.pid)
}

/// Makes the folder, for root alone.
pub(super) fn make(folder: &Path) -> anyhow::Result<()> {
    try_to_make(folder).with_context(|| folder.display().to_string())
}

fn try_to_make(folder: &Path) -> anyhow::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    // systemd makes it for all users to enter.
    let found = fs::symlink_metadata(folder)?;
    ensure!(
        found.is_dir() && found.uid() == geteuid().as_raw(),
        "that folder belongs to another user"
    );
    fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    Ok(())
}

/// No other pinner begins in this folder as long as this exists, so that none takes the name from
/// one that has just begun.
struct Alone(File);

impl Alone {
    /// # Errors
    /// Another pinner begins.
    fn at(folder: &Path) -> anyhow::Result<Alone> {
        let place = File::open(folder)?;
        flock(&place, FlockOperation::NonBlockingLockExclusive)
            .context("another pinner is starting in this folder")?;
        Ok(Alone(place))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // Also if a child has a copy, until it runs its program.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Whether a pinner there keeps pins for an agent that is gone.
pub(super) fn has_pinner(folder: &Path) -> bool {
    seqpacket::is_alive(&folder.join(NAME))
}

/// Whether the agent that it keeps pins for lives. While it does they are given to no heir: the
/// agent would lose them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agent {
    Lives,
    Gone,
}

/// Where the next one comes.
pub(super) struct Heirs {
    listener: OwnedFd,
    heirs: Vec<Heir>,
}

/// A connected process, and those of its descriptors that it claims are copies of ours.
struct Heir {
    socket: OwnedFd,
    pid: i32,
    has: BTreeMap<u64, u32>,
}

impl Heirs {
    /// Takes over what the one before has, and waits for the next one.
    ///
    /// # Errors
    /// The one before keeps what it has, or there is no such place. If the one before may have let
    /// go all the same, `kept` has what it had.
    pub(super) fn begin(folder: &Path, kept: &mut KeptRings) -> anyhow::Result<Heirs> {
        make(folder)?;
        let _alone = Alone::at(folder)?;
        let path = folder.join(NAME);
        if seqpacket::is_alive(&path) {
            take_over(&path, kept)?;
        }
        Heirs::at(&path)
    }

    /// Like `begin`, for a pinner that has no agent any more: takes nothing, but releases the rings
    /// that another pinner has, and waits for the next one if there is none.
    ///
    /// # Errors
    /// Another pinner exists, or there is no such place.
    pub(super) fn begin_without_agent(
        folder: &Path,
        kept: &mut KeptRings,
    ) -> anyhow::Result<Heirs> {
        let path = folder.join(NAME);
        if seqpacket::is_alive(&path) {
            Before::find(&path)?.leave(kept)?;
            bail!("another pinner serves this folder");
        }
        make(folder)?;
        let _alone = Alone::at(folder)?;
        ensure!(!seqpacket::is_alive(&path), "another process listens there");
        Heirs::at(&path)
    }

    fn at(path: &Path) -> anyhow::Result<Heirs> {
        let _ = fs::remove_file(path);
        let listener = seqpacket::listen(path, 0o600).context("cannot listen")?;
        Ok(Heirs { listener, heirs: Vec::new() })
    }

    /// The sockets to poll, in the order of [`serve`](Self::serve)'s flags.
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let heirs = self.heirs.iter().map(|heir| heir.socket.as_fd());
        std::iter::once(self.listener.as_fd()).chain(heirs)
    }

    /// Some of these are ready; true: an heir has all rings, and ours are released.
    pub(super) fn serve(&mut self, ready: &[bool], kept: &KeptRings, agent: Agent) -> bool {
        let mut over = false;
        let mut place = 1;
        self.heirs.retain_mut(|heir| {
            let said = ready.get(place) == Some(&true);
            place += 1;
            match said.then(|| heir.serve(kept, agent)) {
                None | Some(HandoverMessage::Something) => true,
                Some(HandoverMessage::Malformed) => false,
                Some(HandoverMessage::All) => {
                    over = true;
                    false
                }
            }
        });
        if ready.first() == Some(&true)
            && let Ok(Some(socket)) = seqpacket::accept(self.listener.as_fd())
            && let Some(pid) = is_alike(socket.as_fd())
        {
            if self.heirs.len() >= HEIRS_MAX {
                self.heirs.remove(0);
            }
            self.heirs.push(Heir { socket, pid, has: BTreeMap::new() });
        }
        over
    }
}

/// A message of an heir.
enum HandoverMessage {
    Something,
    /// It is gone, or makes no sense.
    Malformed,
    /// It has all, which is so.
    All,
}

impl Heir {
    fn serve(&mut self, kept: &KeptRings, agent: Agent) -> HandoverMessage {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let (socket, mode) = (self.socket.as_fd(), seqpacket::BlockingMode::NonBlocking);
        let length = match seqpacket::receive(socket, &mut bytes, mode) {
            Ok((length, _)) => length,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                return HandoverMessage::Something;
            }
            Err(_) => return HandoverMessage::Malformed,
        };
        let told = match parts(bytes.get(..length).unwrap_or(&[])) {
            Some((WHICH, words)) if words.len() <= 1 => self.tell(words.first().copied(), kept),
            Some((HAVE, words)) => self.hear(&words),
            Some((ALL, _)) if agent == Agent::Gone && self.has_all(kept) => {
                // Whether it hears that or not: it has them.
                let _ = seqpacket::try_send(self.socket.as_fd(), &[YES], &[]);
                return HandoverMessage::All;
            }
            Some((ALL, _)) => seqpacket::try_send(self.socket.as_fd(), &[NO], &[]).is_ok(),
            _ => false,
        };
        if told { HandoverMessage::Something } else { HandoverMessage::Malformed }
    }

    /// Says which there are behind a number; an empty message is the last.
    fn tell(&self, after: Option<u64>, kept: &KeptRings) -> bool {
        let behind = kept.iter().filter(|(token, ..)| after.is_none_or(|after| *token > after));
        let some = behind.take(AT_ONCE).map(|(token, ring, bytes)| [token, bytes, number(ring)]);
        seqpacket::try_send(self.socket.as_fd(), &message(SOME, some.flatten()), &[]).is_ok()
    }

    fn hear(&mut self, words: &[u64]) -> bool {
        let (pairs, more) = words.as_chunks();
        for [token, number] in pairs {
            let Ok(number) = u32::try_from(*number) else { return false };
            self.has.insert(*token, number);
        }
        more.is_empty() && self.has.len() <= PINS_MAX
    }

    /// Whether it has all that is kept, as the kernel says.
    fn has_all(&self, kept: &KeptRings) -> bool {
        is_alike(self.socket.as_fd()) == Some(self.pid)
            && kept.iter().all(|(token, ring, _)| {
                let number = self.has.get(&token);
                number.is_some_and(|number| {
                    io_uring_pin::is_same_file(ring.as_fd(), self.pid, *number).unwrap_or(false)
                })
            })
    }
}

fn take_over(path: &Path, kept: &mut KeptRings) -> anyhow::Result<()> {
    let before = Before::find(path)?;
    for _ in 0..ROUNDS {
        if before.copy(kept)? {
            return Ok(());
        }
    }
    bail!("the earlier pinner does not let go of its lock")
}

/// The pinner that has the rings.
struct Before {
    socket: OwnedFd,
    process: OwnedFd,
    pid: i32,
    deadline: u64,
}

impl Before {
    fn find(path: &Path) -> anyhow::Result<Before> {
        let deadline = clock::now() + PATIENCE;
        let socket = seqpacket_deadline::connect(path, deadline)?;
        let pid = is_alike(socket.as_fd())
            .context("a process of another user has the pinner's socket")?;
        let process = pidfd::of_peer(socket.as_fd())?;
        Ok(Before { socket, process, pid, deadline })
    }

    fn say(&self, message: &[u8]) -> anyhow::Result<()> {
        Ok(seqpacket_deadline::send(self.socket.as_fd(), message, &[], self.deadline)?)
    }

    fn hear(&self) -> anyhow::Result<(u8, Vec<u64>)> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let (length, _) =
            seqpacket_deadline::receive(self.socket.as_fd(), &mut bytes, self.deadline)?;
        parts(bytes.get(..length).unwrap_or(&[])).context("the earlier pinner has ended")
    }

    /// All that it keeps: numbers, how many bytes, its descriptors.
    fn entries(&self) -> anyhow::Result<Vec<(u64, u64, u32)>> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            self.say(&message(WHICH, after))?;
            let (kind, words) = self.hear()?;
            let (entries, _) = words.as_chunks();
            ensure!(
                kind == SOME && all.len() + entries.len() <= PINS_MAX,
                "the earlier pinner sent a malformed list of pages"
            );
            for [token, bytes, number] in entries {
                all.push((*token, *bytes, u32::try_from(*number)?));
                after = Some(*token);
            }
            if entries.is_empty() {
                return Ok(all);
            }
        }
    }

    /// Whether what is kept under this number is what that one has as this descriptor.
    fn has(&self, kept: &KeptRings, token: u64, number: u32) -> bool {
        kept.ring(token).is_some_and(|ring| {
            io_uring_pin::is_same_file(ring.as_fd(), self.pid, number).unwrap_or(false)
        })
    }

    /// Copies all of its rings, and has it release them; false: there are more by now, or it has an
    /// agent. Copies stay in `kept` in any case: the other may have released its own without our
    /// hearing it, and two copies do no harm. Present copies are not made again: there may be no
    /// room for two of each.
    fn copy(&self, kept: &mut KeptRings) -> anyhow::Result<bool> {
        let mut held = Vec::new();
        for (token, bytes, theirs) in self.entries()? {
            if !self.has(kept, token, theirs) {
                kept.add(token, io_uring_pin::descriptor_of(self.process.as_fd(), theirs)?, bytes);
            }
            held.extend(kept.ring(token).map(|ring| [token, number(ring)]));
        }
        for some in held.chunks(AT_ONCE) {
            self.say(&message(HAVE, some.iter().flatten().copied()))?;
        }
        self.say(&message(ALL, []))?;
        match self.hear()?.0 {
            YES => Ok(true),
            NO => Ok(false),
            _ => bail!("the earlier pinner sent a malformed list of pages"),
        }
    }

    /// Lets go of what it has, too.
    fn leave(&self, kept: &mut KeptRings) -> anyhow::Result<()> {
        let mut entries = self.entries()?;
        entries.retain(|(token, _, number)| self.has(kept, *token, *number));
        // The number may be another process's by now: it is not, if the one before lives.
        let same = is_alike(self.socket.as_fd()) == Some(self.pid);
        let lives = pidfd::pid_of(self.process.as_fd()).is_ok_and(|now| now == self.pid);
        ensure!(same && lives, "the earlier pinner has ended");
        entries.iter().for_each(|(token, ..)| kept.let_go(*token));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
