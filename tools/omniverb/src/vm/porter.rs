//! The porter: passes on what a machine's agent says to the daemon, and back. One process for each
//! machine, which has nothing but the machine's port and its door.
//!
//! In: frames of the agent. Out: sessions at the door, messages in them. What the agent says is a
//! hostile guest's word; what it can do by it is what a tenant's processes can.

use super::relay::{Channel, News, Relay};
use anyhow::{Context, bail};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::machine::{
    EndSession, Frame, FrameKind, Message, OpenSession, decode, encode,
};
use omniverb_session::{Message as Said, decode as decode_said};
use omniverb_sys::{clock, limited};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

/// Nanoseconds that the daemon may take to answer.
const PATIENCE: u64 = 10_000_000_000;
/// Serves until the machine, or the daemon's end of the door, is gone.
/// `sessions`: how many there may be at a time.
pub(super) fn serve(
    port: OwnedFd,
    door: OwnedFd,
    number: u64,
    sessions: usize,
) -> anyhow::Result<()> {
    let mut porter = Porter {
        relay: Relay::new(port, true)?,
        door,
        number,
        tag: 0,
        begun: false,
        numbers: BTreeMap::new(),
        sessions,
    };
    loop {
        for news in porter.relay.wait(Some(porter.door.as_fd()), None)? {
            match news {
                News::Frame(frame) => porter.frame(frame)?,
                News::Said { session, channel, bytes, files } => {
                    porter.said(session, channel, bytes, files);
                }
                News::Gone(session) | News::Lost(session) => {
                    porter.numbers.remove(&session);
                    porter.relay.say(FrameKind::Close, session, Vec::new());
                }
                // It says nothing by itself: it is closed.
                News::Other => return Ok(()),
                News::PortOver => return Ok(()),
            }
        }
    }
}

struct Porter {
    relay: Relay,
    door: OwnedFd,
    /// The window's.
    number: u64,
    tag: u64,
    /// An agent has said that it is there.
    begun: bool,
    /// What sessions are called at the door.
    numbers: BTreeMap<u32, u64>,
    /// How many there may be.
    sessions: usize,
}

impl Porter {
    fn frame(&mut self, frame: Frame) -> anyhow::Result<()> {
        let Frame { kind, session, bytes } = frame;
        if !self.begun && kind != FrameKind::Begin {
            return Ok(());
        }
        match kind {
            FrameKind::Begin => {
                self.begun = bytes.len() == 16 && bytes.starts_with(&self.number.to_le_bytes());
                // Their processes may be there: what they were given is not given to others.
                self.numbers.clear();
                self.relay.restart();
                if self.begun {
                    self.relay.say(FrameKind::Begin, 0, bytes);
                }
            }
            FrameKind::Open => self.open(session, &bytes)?,
            FrameKind::Call | FrameKind::Event => {
                if let Some(channel) = Channel::of(kind) {
                    self.relay.tell(session, channel, bytes, Vec::new());
                }
            }
            FrameKind::Close => {
                if let Some(session) = self.numbers.remove(&session) {
                    self.ask(&EndSession { session }.into())?;
                }
                self.relay.remove(session);
            }
            FrameKind::Lost => {
                self.numbers.remove(&session);
                self.relay.remove(session);
            }
            FrameKind::Addresses => {
                if let Ok((_, Message::TellAddresses(told))) = decode(&bytes) {
                    self.ask(&told.into())?;
                }
            }
        }
        Ok(())
    }

    fn open(&mut self, session: u32, bytes: &[u8]) -> anyhow::Result<()> {
        let word = |at: usize| {
            let field = bytes.get(at..at + 4).and_then(|field| field.try_into().ok());
            field.map_or(0, u32::from_le_bytes)
        };
        let full = self.relay.has(session) || self.relay.len() >= self.sessions;
        let mut answer = None;
        if !full {
            answer = Some(self.ask(&OpenSession { pid: word(0), uid: word(4) }.into())?);
        }
        match answer {
            Some((Message::SessionOpened(opened), mut files)) if files.len() == 1 => {
                self.numbers.insert(session, opened.session);
                self.relay.add(session, files.remove(0));
            }
            _ => self.relay.say(FrameKind::Close, session, Vec::new()),
        }
        Ok(())
    }

    /// The daemon has said something to a process.
    fn said(&mut self, session: u32, channel: Channel, bytes: Vec<u8>, files: Vec<OwnedFd>) {
        let welcome =
            channel == Channel::Calls && matches!(decode_said(&bytes), Ok((_, Said::Welcome(_))));
        // The only descriptor that comes to a machine's process, and it ends here.
        if let Some(events) = files.into_iter().next().filter(|_| welcome) {
            self.relay.set_events(session, events);
        }
        self.relay.say(channel.frame(), session, bytes);
    }

    /// Asks the daemon at the door.
    fn ask(&mut self, message: &Message) -> anyhow::Result<(Message, Vec<OwnedFd>)> {
        self.tag += 1;
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(self.tag, message, &mut bytes);
        let deadline = clock::now() + PATIENCE;
        limited::send(self.door.as_fd(), &bytes[..length], &[], deadline)
            .context("the daemon is gone")?;
        let (length, files) = limited::receive(self.door.as_fd(), &mut bytes, deadline)
            .context("the daemon does not answer")?;
        match decode(&bytes[..length]) {
            Ok((tag, answer)) if tag == self.tag => Ok((answer, files)),
            _ => bail!("the daemon is gone"),
        }
    }
}
