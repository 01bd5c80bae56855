//! Pins pages of a guest's processes, by a process beside the agent that has the rights for it
//! (decision 0045).
//!
//! In: questions to a process to keep pages, and its answers that they are pinned, with its socket.
//! Out: whether it may be asked; numbers of physical pages, or an error. It keeps a copy of the
//! ring that pins them until the host reports that they are not mapped any more, also after the end
//! of the process, and of the agent: the next agent's pinner takes over its rings, and asks the
//! host about them.
//!
//! **A process's answer is checked as far as the kernel allows**
//! (`omniverb_sys::io_uring_pin::keeps`): that it is a ring, of just these bytes, which cannot
//! release them. That the pages at these addresses now are those that the ring took cannot be
//! checked: a process could pin some and then put others in their place, and the host's engine
//! would write to those when they are another process's. So only processes that may write to the
//! kernel's memory anyway are trusted, and others only if the operator of the guest allows it.

mod handover;
mod kept_rings;
mod page_location;

use super::start_supervisor::{NEVER, own_program};
use anyhow::Context;
pub(super) use handover::FOLDER;
use handover::{Agent, Heirs};
use kept_rings::{KeptRings, PINS_MAX};
use omniverb_arguments::InPlace;
use omniverb_session::body::{Pin, Pinned};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::pinned_pages::{self, Run};
use omniverb_session::vm::{Message, PinsOver, TellPinned, decode, encode, written};
use omniverb_session::{Message as Said, decode as decode_said, encode as encode_said};
use omniverb_sys::privileges::{self, Privilege};
use omniverb_sys::{clock, pidfd, seqpacket};
use omniverb_terms::Errno;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

/// Its command line.
const PIN: [&str; 2] = ["vm", "pin"];
/// Descriptors that are for other things.
const OTHERS: u64 = 64;
/// Of the guest's memory, pins have at most one part in so many.
const SHARE: u64 = 2;
/// Delay before another attempt to take over the rings of a pinner that did not release them.
const AGAIN: Duration = Duration::from_secs(1);
/// How long an ended process is waited for, so that it is reaped.
const REAPED: Duration = Duration::from_millis(5);
const REAPS: usize = 40;

/// Where the agent has such a process.
pub(super) struct Pinner {
    socket: OwnedFd,
    process: Child,
}

/// Messages to the agent.
pub(super) enum Heard {
    /// A session may be asked this.
    MayBeAsked { session: u32, pin: Pin },
    /// Of a session: these pages are kept, or are not.
    Looked { session: u32, told: Box<TellPinned> },
    /// These were kept for an agent before this one.
    TakenOver(Vec<u64>),
}

impl Pinner {
    /// Starts one; none if no process is trusted, and no pages are kept. `folder`: where it and its
    /// successors find each other.
    pub(super) fn start(in_place: InPlace, folder: &Path) -> anyhow::Result<Option<Pinner>> {
        let word = match in_place {
            InPlace::Nobody if !handover::has_pinner(folder) => return Ok(None),
            InPlace::Nobody => "nobody",
            InPlace::Root => "root",
            InPlace::All => "all",
        };
        handover::make(folder)?;
        let (socket, theirs) = seqpacket::pair()?;
        let mut pinner = Command::new(own_program()?);
        pinner.args(PIN).arg(word).arg(folder).stdin(theirs);
        pinner.stdout(Stdio::null()).stderr(Stdio::null()).env_clear().current_dir("/");
        let process = pinner.spawn().context("cannot start a process")?;
        Ok(Some(Pinner { socket, process }))
    }

    /// One that a test plays, at the other end of this socket.
    #[cfg(test)]
    pub(super) fn stand_in(socket: OwnedFd) -> Pinner {
        Pinner { socket, process: Command::new("true").spawn().unwrap() }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Has it look at what the process that has this socket is asked, or has said of its pages;
    /// false: not now.
    pub(super) fn look(&self, session: u32, calls: BorrowedFd<'_>, said: &[u8]) -> bool {
        let message = [&session.to_ne_bytes(), said].concat();
        seqpacket::try_send(self.socket(), &message, &[calls]).is_ok()
    }

    /// These need not be kept any more. A message without room is sent again.
    pub(super) fn over(&self, over: &PinsOver) -> bool {
        seqpacket::try_send(self.socket(), &written(0, &(*over).into()), &[]).is_ok()
    }

    /// Its next message; an error: it is gone.
    pub(super) fn heard(&mut self) -> std::io::Result<Option<Heard>> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = match seqpacket::receive(
            self.socket(),
            &mut bytes,
            seqpacket::BlockingMode::NonBlocking,
        ) {
            Ok((0, _)) => Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok((length, _)) => Ok(length),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => Err(error),
        };
        let length = length.inspect_err(|_| self.reap())?;
        let bytes = &bytes[..length];
        let session = |tag: u64| u32::try_from(tag).unwrap_or(0);
        if let Ok((tag, Said::Pin(pin))) = decode_said(bytes) {
            return Ok(Some(Heard::MayBeAsked { session: session(tag), pin }));
        }
        Ok(match decode(bytes) {
            Ok((tag, Message::TellPinned(told))) => {
                Some(Heard::Looked { session: session(tag), told: Box::new(told) })
            }
            Ok((_, Message::QueryPins(had))) => Some(Heard::TakenOver(had.named().to_vec())),
            _ => None,
        })
    }

    /// It has closed its end, and so has ended or is about to. One that the kernel does not let go
    /// is not waited for.
    fn reap(&mut self) {
        for _ in 0..REAPS {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(REAPED);
        }
    }
}

/// The main function of a pinner.
pub(crate) fn serve(in_place: InPlace, folder: &Path) -> anyhow::Result<ExitCode> {
    let agent = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .context("not started by an agent: standard input is no socket")?;
    rustix::process::setsid().context("cannot leave the agent's session")?;
    // Its pages lose their pins when it ends: so the kernel is to end others first, if it may be
    // told so.
    let _ = std::fs::write("/proc/self/oom_score_adj", NEVER);
    let mut pins = Pins::new(in_place);
    // Other rights than the agent's: it reads processes' descriptors and pages.
    let keeps = [Privilege::Enter, Privilege::Look, Privilege::ReadAll];
    let mut heirs = Heirs::begin(folder, &mut pins.kept);
    privileges::keep_only(&keeps).context("cannot give up privileges")?;
    let mut agent = Some(agent);
    pins.tell_kept(agent.as_ref());
    let mut again = clock::now() + AGAIN.as_nanos() as u64;
    loop {
        // Without an agent it is there for what is pinned, and without that for nothing.
        if agent.is_none() && pins.kept.len() == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        // Another pinner has rings of an earlier agent, about which no agent asks.
        if heirs.is_err() && clock::now() >= again {
            heirs = match &agent {
                Some(_) => Heirs::begin(folder, &mut pins.kept),
                None => Heirs::begin_without_agent(folder, &mut pins.kept),
            };
            pins.tell_kept(agent.as_ref());
            again = clock::now() + AGAIN.as_nanos() as u64;
        }
        // Rings without an heir would end with the agent.
        pins.may_keep = heirs.is_ok();
        let mut files: Vec<PollFd<'_>> = Vec::new();
        files.extend(heirs.iter().flat_map(Heirs::sockets).map(|of| readable(of)));
        let at = files.len();
        files.extend(agent.iter().map(|agent| readable(agent.as_fd())));
        let patience = heirs.is_err().then_some(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(&mut files, patience.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready: Vec<bool> = files.iter().map(|file| !file.revents().is_empty()).collect();
        drop(files);
        let (of_heirs, of_agent) = ready.split_at(at);
        // An heir may have come because the agent is gone.
        if of_agent == [true]
            && let Some(socket) = &agent
            && !pins.hear(socket.as_fd())
        {
            agent = None;
        }
        let whose = if agent.is_some() { Agent::Lives } else { Agent::Gone };
        if let Ok(heirs) = &mut heirs
            && heirs.serve(of_heirs, &pins.kept, whose)
        {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn readable(file: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(file, PollFlags::IN)
}

/// How many pins there may be: each has a descriptor, of which there are as many as may be.
fn pins_max() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files.saturating_sub(OTHERS)).unwrap_or(usize::MAX).min(PINS_MAX)
}

/// The rings, and the processes that may have some.
struct Pins {
    in_place: InPlace,
    /// An heir would take them over.
    may_keep: bool,
    kept: KeptRings,
    /// How many there may be, and how many bytes.
    most: (usize, u64),
}

impl Pins {
    fn new(in_place: InPlace) -> Pins {
        let most = (pins_max(), page_location::memory() / SHARE);
        Pins { in_place, may_keep: false, kept: KeptRings::default(), most }
    }

    /// Takes a message of the agent; false: it is gone.
    fn hear(&mut self, agent: BorrowedFd<'_>) -> bool {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let (length, files) =
            match seqpacket::receive(agent, &mut bytes, seqpacket::BlockingMode::NonBlocking) {
                Ok((0, _)) => return false,
                Ok(heard) => heard,
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            };
        let said = bytes.get(..length).unwrap_or(&[]);
        match files.into_iter().next() {
            Some(calls) => self.looked(agent, calls.as_fd(), said),
            None => {
                if let Ok((_, Message::PinsOver(over))) = decode(said) {
                    over.named().iter().for_each(|token| self.kept.let_go(*token));
                }
                true
            }
        }
    }

    /// Checks a question to a process, or its answer, and reports the result; false: the agent is
    /// gone.
    fn looked(&mut self, agent: BorrowedFd<'_>, calls: BorrowedFd<'_>, said: &[u8]) -> bool {
        let Some((session, said)) = said.split_first_chunk() else { return true };
        let session = u32::from_ne_bytes(*session).into();
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        match decode_said(said) {
            // Before the process has pinned anything for nothing.
            Ok((_, Said::Pin(pin))) => {
                let length = match self.may_be_asked(calls, &pin) {
                    Ok(()) => encode_said(session, &pin.into(), &mut bytes),
                    Err(errno) => {
                        let told = TellPinned::new(pin.token, 0, Err(errno));
                        encode(session, &told.into(), &mut bytes)
                    }
                };
                seqpacket::send(agent, &bytes[..length], &[]).is_ok()
            }
            Ok((_, Said::Pinned(said))) => {
                let found = self.keep(calls, &said);
                let runs = found.as_deref().map_err(|errno| *errno);
                let told = TellPinned::new(said.token, said.epoch, runs);
                let length = encode(session, &told.into(), &mut bytes);
                let sent = seqpacket::send(agent, &bytes[..length], &[]).is_ok();
                if !sent && found.is_ok() {
                    // The agent was not told of it.
                    self.kept.let_go(said.token);
                }
                sent
            }
            _ => true,
        }
    }

    /// Whether the process with this socket is trusted.
    fn may(&self, calls: BorrowedFd<'_>) -> Result<i32, Errno> {
        let peer = seqpacket::peer(calls).map_err(|_| Errno::EACCES)?;
        let may = match self.in_place {
            InPlace::Nobody => false,
            InPlace::Root => peer.uid == 0 && page_location::may(peer.pid, page_location::ANYTHING),
            InPlace::All => true,
        };
        if may { Ok(peer.pid) } else { Err(Errno::EPERM) }
    }

    /// Whether there is room for so many bytes more.
    fn has_room(&self, bytes: u64) -> Result<(), Errno> {
        let (pins, all) = self.most;
        let after = self.kept.bytes().checked_add(bytes);
        let fits = after.is_some_and(|after| after <= all) && self.kept.len() < pins;
        // Others may let go.
        if fits && self.may_keep { Ok(()) } else { Err(Errno::EAGAIN) }
    }

    fn may_be_asked(&self, calls: BorrowedFd<'_>, pin: &Pin) -> Result<(), Errno> {
        self.may(calls)?;
        self.has_room(pin.length)
    }

    /// Keeps pages of the process with this socket.
    fn keep(&mut self, calls: BorrowedFd<'_>, said: &Pinned) -> Result<Vec<Run>, Errno> {
        if self.kept.has(said.token) {
            return Err(Errno::EPROTO);
        }
        let process = pidfd::of_peer(calls).map_err(|_| Errno::EACCES)?;
        let pid = self.may(calls)?;
        self.has_room(said.length)?;
        let (ring, pages) = page_location::look(process.as_fd(), pid, said)?;
        // Where there are fewer pages there are fewer runs.
        let runs = pinned_pages::runs(pages).ok_or(Errno::E2BIG)?;
        self.kept.add(said.token, ring, said.length);
        Ok(runs)
    }

    /// Tells an agent what was kept for one before it.
    fn tell_kept(&self, agent: Option<&OwnedFd>) {
        use omniverb_session::pinned_pages::PINS_MAX;
        use omniverb_session::vm::QueryPins;
        let tokens: Vec<u64> = self.kept.iter().map(|(token, ..)| token).collect();
        for (agent, some) in agent
            .into_iter()
            .flat_map(|agent| tokens.chunks(PINS_MAX).map(move |some| (agent, some)))
        {
            let message = written(0, &QueryPins::new(some).into());
            let _ = seqpacket::send(agent.as_fd(), &message, &[]);
        }
    }
}

#[cfg(test)]
mod tests;
