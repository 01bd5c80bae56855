//! The porter: passes on what a machine's agent says to the daemon, and back. One process for each
//! machine, which has nothing but the machine's port and its door.
//!
//! In: frames of the agent. Out: sessions at the door, messages in them; datagrams and words of the
//! machine's UDP port, for the engine, and back. What the agent says is a
//! hostile guest's word; what it can do by it is what a tenant's processes can.

use super::relay::{Channel, News, Relay};
use anyhow::{Context, bail};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::machine::{
    EndSession, Frame, FrameKind, Message, OpenPort, OpenSession, PACKET_BYTES_MAX, decode, encode,
};
use omniverb_session::{Message as Said, decode as decode_said};
use omniverb_sys::{carried, clock, limited, socket};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

/// Nanoseconds that the daemon may take to answer.
const PATIENCE: u64 = 10_000_000_000;
/// Datagrams of the engine that are taken before others get their turn.
const PACKETS_PER_TURN: usize = 32;

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
        packets: None,
        has_port: false,
        numbers: BTreeMap::new(),
        sessions,
    };
    loop {
        let others: Vec<_> =
            std::iter::once(&porter.door).chain(&porter.packets).map(AsFd::as_fd).collect();
        for news in porter.relay.wait(&others, None)? {
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
                News::Other(0) => return Ok(()),
                News::Other(_) => porter.packets()?,
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
    /// Where the engine has what comes by the machine's UDP port, once an agent had that.
    packets: Option<OwnedFd>,
    /// The agent has it.
    has_port: bool,
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
                self.has_port = false;
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
            FrameKind::Port => {
                if self.packets.is_none()
                    && let (Message::PortOpened(_), mut files) =
                        self.ask(&OpenPort { reserved: 0 }.into())?
                {
                    self.packets = files.pop();
                }
                self.has_port = self.packets.is_some();
            }
            // What is not taken at once is lost, as in a network; where there is no room for a
            // word, something else wakes the engine.
            FrameKind::Packet if self.has_port => {
                if let Some(packets) = &self.packets {
                    let _ = socket::try_send(packets.as_fd(), &bytes, &[]);
                }
            }
            FrameKind::Word if self.has_port => {
                self.packets.iter().for_each(|packets| carried::say(packets.as_fd()));
            }
            FrameKind::Packet | FrameKind::Word => {}
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

    /// The engine has sent something: some of it, then others get their turn.
    fn packets(&mut self) -> anyhow::Result<()> {
        let mut bytes = [0; PACKET_BYTES_MAX];
        for _ in 0..PACKETS_PER_TURN {
            let Some(packets) = &self.packets else { break };
            let mode = socket::Mode::NonBlocking;
            let length = match socket::receive(packets.as_fd(), &mut bytes, mode) {
                Ok((0, _)) => bail!("the daemon is gone"),
                Ok((length, _)) => length,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            };
            let message = bytes.get(..length).unwrap_or(&[]);
            if !self.has_port {
                continue;
            }
            match carried::is_word(message) {
                true => self.relay.say(FrameKind::Word, 0, Vec::new()),
                false => self.relay.say(FrameKind::Packet, 0, message.to_vec()),
            }
        }
        Ok(())
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
