//! Pages of a guest's processes that stay where they are: a process beside the agent that looks
//! where they are and keeps them there, since that is not for who is nobody (decision 0045).
//!
//! In: that a process has pages pinned, as it says, with its socket. Out: numbers of physical
//! pages, or why not. It keeps a copy of what pins them until the host says that nobody has them
//! mapped, also when the process is gone, and when the agent is: the next agent's process of this
//! kind takes over what it has, and asks the host about it.
//!
//! **What a process says is checked as far as a kernel lets it be**
//! (`omniverb_sys::pinned::keeps`): that it is a ring, of just these bytes, which cannot let go of
//! them. That the pages which are at these addresses now are those that the ring took, nobody can
//! see: a process could pin some and then put others in their place, and the host's engine would
//! write to those when they are somebody else's. So it is done for processes that may write to the
//! kernel's memory anyway, and for others only if whoever runs the guest says so.

mod kept;
mod pages;
mod taken_over;

use super::start::own_program;
use anyhow::Context;
use kept::Kept;
use omniverb_session::body::Pinned;
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::machine::{Message, PinsOver, TellPinned, decode, encode};
use omniverb_session::pinned::{self, Run};
use omniverb_session::{Message as Said, decode as decode_said};
use omniverb_sys::privileges::{self, Privilege};
use omniverb_sys::{pidfd, socket};
use omniverb_terms::Errno;
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use taken_over::Heir;

/// What it is started as.
const PIN: [&str; 2] = ["vm", "pin"];
/// Pins that are kept at a time: each has a descriptor.
const PINS_MAX: usize = 4096;
/// Of the guest's memory, pins have at most one part in so many.
const SHARE: u64 = 2;

/// Whose pages are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Whose {
    /// Nobody is believed.
    Nobody,
    /// Of processes that may write to the kernel's memory: root's with all its rights.
    Root,
    /// Everybody's: a process that lies may have memory of the guest overwritten.
    All,
}

/// Where the agent has such a process.
pub(super) struct Pinner {
    socket: OwnedFd,
    process: Child,
}

/// What the agent hears from it.
pub(super) enum Heard {
    /// Of a session: these pages are kept, or are not.
    Looked { session: u32, told: Box<TellPinned> },
    /// These were kept for an agent before this one.
    TakenOver(Vec<u64>),
}

impl Pinner {
    /// Starts one. `folder`: where it and those that come after it find each other.
    pub(super) fn start(whose: Whose, folder: &Path) -> anyhow::Result<Option<Pinner>> {
        let word = match whose {
            Whose::Nobody => return Ok(None),
            Whose::Root => "root",
            Whose::All => "all",
        };
        let (socket, theirs) = socket::pair()?;
        let mut pinner = Command::new(own_program()?);
        pinner.args(PIN).arg(word).arg(folder).stdin(theirs);
        pinner.stdout(Stdio::null()).stderr(Stdio::null()).env_clear().current_dir("/");
        let process = pinner.spawn().context("cannot start a process")?;
        Ok(Some(Pinner { socket, process }))
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Has pages looked at, of the process that has this socket; false: not now.
    pub(super) fn look(&self, session: u32, calls: BorrowedFd<'_>, said: &[u8]) -> bool {
        let message = [&session.to_ne_bytes(), said].concat();
        socket::try_send(self.socket(), &message, &[calls]).is_ok()
    }

    /// These need not be kept any more. What it does not take it is told again.
    pub(super) fn over(&self, over: &PinsOver) -> bool {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(0, &(*over).into(), &mut bytes);
        socket::try_send(self.socket(), &bytes[..length], &[]).is_ok()
    }

    /// What it says; an error: it is gone.
    pub(super) fn heard(&mut self) -> std::io::Result<Option<Heard>> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = match socket::receive(self.socket(), &mut bytes, socket::Mode::NonBlocking) {
            Ok((0, _)) => Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok((length, _)) => Ok(length),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => Err(error),
        };
        let length = length.inspect_err(|_| _ = self.process.wait())?;
        Ok(match decode(&bytes[..length]) {
            Ok((session, Message::TellPinned(told))) => {
                let session = u32::try_from(session).unwrap_or(0);
                Some(Heard::Looked { session, told: Box::new(told) })
            }
            Ok((_, Message::QueryPins(had))) => Some(Heard::TakenOver(had.named().to_vec())),
            _ => None,
        })
    }
}

/// What it does.
pub(crate) fn serve(whose: Whose, folder: &Path) -> anyhow::Result<ExitCode> {
    let agent = std::io::stdin().as_fd().try_clone_to_owned().context("not started so")?;
    rustix::process::setsid().context("cannot leave the agent's session")?;
    let mut pins = Pins { whose, kept: Kept::default(), most: pages::memory() / SHARE };
    // Which is not who the agent will be: it looks into processes, at descriptors and pages.
    let keeps = [Privilege::Enter, Privilege::Look, Privilege::ReadAll];
    let heir = Heir::begin(folder, &mut pins.kept);
    privileges::keep_only(&keeps).context("cannot give up privileges")?;
    if heir.is_err() {
        // What nobody takes over would end with the agent.
        pins.whose = Whose::Nobody;
    }
    if pins.kept.len() > 0 {
        pins.tell_kept(agent.as_fd());
    }
    let mut agent = Some(agent);
    loop {
        // Without an agent it is there for what is pinned, and without that for nothing.
        if agent.is_none() && (pins.kept.len() == 0 || heir.is_err()) {
            return Ok(ExitCode::SUCCESS);
        }
        let mut files: Vec<PollFd<'_>> = Vec::new();
        files.extend(heir.iter().map(|heir| PollFd::new(heir.door(), PollFlags::IN)));
        let at = files.len();
        files.extend(agent.iter().map(|agent| PollFd::new(agent, PollFlags::IN)));
        match poll(&mut files, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready: Vec<bool> = files.iter().map(|file| !file.revents().is_empty()).collect();
        drop(files);
        if let Ok(heir) = &heir
            && ready.first() == Some(&true)
            && heir.hand_over(&pins.kept)
        {
            return Ok(ExitCode::SUCCESS);
        }
        if ready.get(at) == Some(&true)
            && let Some(socket) = &agent
            && !pins.hear(socket.as_fd())
        {
            agent = None;
        }
    }
}

/// What is kept, and for whom it may be.
struct Pins {
    whose: Whose,
    kept: Kept,
    /// How many bytes there may be.
    most: u64,
}

impl Pins {
    /// What the agent says; false: it is gone.
    fn hear(&mut self, agent: BorrowedFd<'_>) -> bool {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let (length, files) = match socket::receive(agent, &mut bytes, socket::Mode::NonBlocking) {
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

    /// Looks at pages, and says what it has found; false: nobody hears it.
    fn looked(&mut self, agent: BorrowedFd<'_>, calls: BorrowedFd<'_>, said: &[u8]) -> bool {
        let Some((session, said)) = said.split_first_chunk() else { return true };
        let Ok((_, Said::Pinned(said))) = decode_said(said) else { return true };
        let found = self.keep(calls, &said);
        let runs = found.as_deref().map_err(|errno| *errno);
        let told = TellPinned::new(said.token, said.epoch, runs);
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let session = u32::from_ne_bytes(*session);
        let length = encode(session.into(), &told.into(), &mut bytes);
        let sent = socket::send(agent, &bytes[..length], &[]).is_ok();
        if !sent {
            // Nobody was told of it.
            self.kept.let_go(said.token);
        }
        sent
    }

    /// Keeps pages of whoever has this socket.
    fn keep(&mut self, calls: BorrowedFd<'_>, said: &Pinned) -> Result<Vec<Run>, Errno> {
        let after = self.kept.bytes().checked_add(said.length);
        if after.is_none_or(|after| after > self.most) || self.kept.len() >= PINS_MAX {
            return Err(Errno::ENOMEM);
        }
        if self.kept.has(said.token) {
            return Err(Errno::EPROTO);
        }
        let peer = socket::peer(calls).map_err(|_| Errno::EACCES)?;
        let process = pidfd::of_peer(calls).map_err(|_| Errno::EACCES)?;
        let may = match self.whose {
            Whose::Nobody => false,
            Whose::Root => peer.uid == 0 && pages::may_do_anything(peer.pid),
            Whose::All => true,
        };
        if !may {
            return Err(Errno::EPERM);
        }
        let (ring, pages) = pages::look(process.as_fd(), peer.pid, said)?;
        let runs = pinned::runs(pages).ok_or(Errno::ENOMEM)?;
        self.kept.add(said.token, ring, said.length);
        Ok(runs)
    }

    /// Tells an agent what was kept for one before it.
    fn tell_kept(&self, agent: BorrowedFd<'_>) {
        use omniverb_session::machine::QueryPins;
        use omniverb_session::pinned::PINS_MAX;
        let tokens: Vec<u64> = self.kept.iter().map(|(token, ..)| token).collect();
        for some in tokens.chunks(PINS_MAX) {
            let mut bytes = [0; MESSAGE_BYTES_MAX];
            let length = encode(0, &QueryPins::new(some).into(), &mut bytes);
            let _ = socket::send(agent, &bytes[..length], &[]);
        }
    }
}
