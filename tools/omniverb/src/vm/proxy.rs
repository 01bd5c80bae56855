//! Passes messages between a machine's agent and the daemon, by one process for each machine.
//!
//! One process for each machine, which has nothing but the machine's port and its machine socket.
//!
//! In: frames of the agent. Out: sessions at the machine socket, messages in them; datagrams and
//! words of the machine's UDP port, for the engine, and back; words of pair windows, of which it
//! has the doorbells (`pair_window_wakes.rs`), also of those that its supervisor hands it later,
//! and which of them there are. The agent's frames come from a hostile guest; they can do what a
//! tenant's processes can.

mod pair_windows;
#[cfg(test)]
mod tests;

use super::serial_port_multiplexer::{Channel, News, Reads, Relay};
use omniverb_session::agent_first_messages::AgentBegin;
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::vm::{
    Booted, EndSession, Frame, FrameKind, Message, OpenPort, OpenSession, PACKET_BYTES_MAX,
    TellPairs, TellPinned, decode, encode, written,
};
use omniverb_session::{Message as Said, decode as decode_said};
use omniverb_sys::{clock, proxied_udp, seqpacket, seqpacket_deadline};
pub(super) use pair_windows::PairWindows;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;

/// Nanoseconds that the daemon may take to answer.
const PATIENCE: u64 = 10_000_000_000;
/// Datagrams of the engine that are taken before others get their turn.
const PACKETS_PER_TURN: usize = 32;

/// Why a proxy has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxyEnd {
    /// The port has no other end.
    Machine,
    /// An operator has parted with the machine.
    Detached,
    /// The daemon is gone, or has parted with us.
    Daemon,
    /// A malformed frame came by the port, or another error.
    Broken,
}

impl ProxyEnd {
    const ALL: [(ProxyEnd, u8); 4] = [
        (ProxyEnd::Machine, 0),
        (ProxyEnd::Broken, 1),
        (ProxyEnd::Detached, 3),
        (ProxyEnd::Daemon, 4),
    ];

    /// As a proxy says it when it ends.
    pub(super) fn code(self) -> ExitCode {
        let found = ProxyEnd::ALL.iter().find(|(over, _)| *over == self);
        ExitCode::from(found.map_or(1, |(_, code)| *code))
    }

    /// The end that an exit code of a proxy names; `None`: it was killed.
    pub(super) fn of(code: Option<i32>) -> ProxyEnd {
        let found = ProxyEnd::ALL.iter().find(|(_, number)| Some(i32::from(*number)) == code);
        found.map_or(ProxyEnd::Broken, |(over, _)| *over)
    }
}

/// The daemon's last message at a machine socket, or its end.
pub(super) fn last_word(machine_socket: BorrowedFd<'_>) -> ProxyEnd {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let length = match seqpacket::receive(
        machine_socket,
        &mut bytes,
        seqpacket::BlockingMode::NonBlocking,
    ) {
        Ok((length, _)) => length,
        Err(_) => 0,
    };
    match decode(&bytes[..length]) {
        Ok((_, Message::Parted(_))) => ProxyEnd::Detached,
        _ => ProxyEnd::Daemon,
    }
}

/// Serves until the machine, or the daemon's end of the machine socket, is gone.
/// `sessions`: how many there may be at a time.
pub(super) fn serve(
    port: OwnedFd,
    machine_socket: OwnedFd,
    number: u64,
    sessions: usize,
    windows: PairWindows,
) -> ProxyEnd {
    match Relay::new(port, Reads::WithRoom) {
        Ok(relay) => {
            serve_by(relay, machine_socket, number, sessions, windows).unwrap_or_else(|over| over)
        }
        Err(_) => ProxyEnd::Broken,
    }
}

fn serve_by(
    relay: Relay,
    machine_socket: OwnedFd,
    number: u64,
    sessions: usize,
    windows: PairWindows,
) -> Result<ProxyEnd, ProxyEnd> {
    let mut proxy = Proxy {
        windows,
        rung: false,
        has_pairs: false,
        relay,
        machine_socket,
        number,
        tag: 0,
        begun: None,
        packets: None,
        has_port: false,
        numbers: BTreeMap::new(),
        sessions,
    };
    loop {
        let mut others = vec![proxy.machine_socket.as_fd(), proxy.windows.bridge.rung()];
        let more = proxy.windows.more.as_ref().map(AsFd::as_fd);
        let index_of_more = more.map(|_| others.len());
        others.extend(more);
        others.extend(proxy.packets.as_ref().map(AsFd::as_fd));
        let came = proxy.relay.wait(&others, None);
        for news in came.map_err(|_| ProxyEnd::Broken)? {
            match news {
                News::Frame(frame) => proxy.frame(frame)?,
                News::Said { session, channel, bytes, files } => {
                    proxy.said(session, channel, bytes, files);
                }
                News::Gone(session) | News::Lost(session) => {
                    proxy.numbers.remove(&session);
                    proxy.relay.say(FrameKind::Close, session, Vec::new());
                }
                News::Other(0) => return Ok(last_word(proxy.machine_socket.as_fd())),
                News::Other(1) => proxy.say_rung(),
                News::Other(index) if Some(index) == index_of_more => proxy.take_window()?,
                News::Other(_) => proxy.packets()?,
                News::PortOver => return Ok(ProxyEnd::Machine),
            }
        }
        if std::mem::take(&mut proxy.rung) {
            proxy.windows.bridge.wake();
        }
    }
}

struct Proxy {
    windows: PairWindows,
    /// A process in the machine may have rung for a neighbour.
    rung: bool,
    /// The agent has pair windows.
    has_pairs: bool,
    relay: Relay,
    machine_socket: OwnedFd,
    /// The daemon's number of the window.
    number: u64,
    tag: u64,
    /// An agent has said that it is there; whether of this machine.
    begun: Option<bool>,
    /// Where the engine has what comes by the machine's UDP port, once an agent had that.
    packets: Option<OwnedFd>,
    /// The agent has it.
    has_port: bool,
    /// The numbers of sessions at the machine socket.
    numbers: BTreeMap<u32, u64>,
    /// How many there may be.
    sessions: usize,
}

impl Proxy {
    fn frame(&mut self, frame: Frame) -> Result<(), ProxyEnd> {
        let Frame { kind, session, bytes } = frame;
        match self.begun {
            _ if kind == FrameKind::Begin => {}
            Some(true) => {}
            Some(false) => return Ok(()),
            // This is for an earlier proxy, of whose end the agent does not know: it shall see that
            // the port has no other end.
            None => return Err(ProxyEnd::Broken),
        }
        match kind {
            FrameKind::Begin => self.begin(bytes)?,
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
            // A packet without room is lost, as in a network; where there is no room for a wake,
            // something else wakes the engine. An empty message would look like our end.
            FrameKind::Packet if self.has_port && bytes.len() >= proxied_udp::HEAD_BYTES => {
                if let Some(packets) = &self.packets {
                    let _ = seqpacket::try_send(packets.as_fd(), &bytes, &[]);
                }
            }
            FrameKind::Word if self.has_port => {
                self.packets.iter().for_each(|packets| proxied_udp::say(packets.as_fd()));
            }
            FrameKind::Packet | FrameKind::Word => {}
            FrameKind::Pairs => {
                let found = bytes.first_chunk().map_or(0, |bits| u64::from_le_bytes(*bits));
                // Not what goes: the daemon may give its number to another.
                let present = found & self.windows.present;
                self.ask(&TellPairs { present }.into())?;
                self.windows.found(found);
                self.has_pairs = true;
                self.windows.bridge.speak_by(Some(self.relay.voice()));
                // No wake was passed on for a while.
                self.windows.bridge.wake_all();
            }
            FrameKind::Rung => self.rung = true,
            FrameKind::Pinned => {
                // By now the process may be gone.
                if let (Ok((_, Message::TellPinned(told))), Some(session)) =
                    (decode(&bytes), self.numbers.get(&session).copied())
                {
                    self.ask(&TellPinned { session, ..told }.into())?;
                }
            }
            FrameKind::Pins => {
                if let Ok((_, Message::QueryPins(asked))) = decode(&bytes)
                    && let (answer @ Message::PinsOver(_), _) = self.ask(&asked.into())?
                {
                    self.relay.say(FrameKind::PinsOver, 0, written(0, &answer));
                }
            }
            FrameKind::PinsOver => {}
            FrameKind::Addresses => {
                if let Ok((_, Message::TellAddresses(told))) = decode(&bytes) {
                    self.ask(&told.into())?;
                }
            }
        }
        Ok(())
    }

    /// An agent is there, without sessions.
    fn begin(&mut self, bytes: Vec<u8>) -> Result<(), ProxyEnd> {
        let begin = AgentBegin::read(&bytes).filter(|begin| begin.window == self.number);
        self.begun = Some(begin.is_some());
        if let Some(AgentBegin { boot, .. }) = begin.filter(|begin| begin.boot != [0; 16]) {
            // First: sessions that are closed may have processes that go on.
            self.ask(&Booted { boot }.into())?;
        }
        // Memory of these is not given to others.
        self.numbers.clear();
        self.has_port = false;
        // Which this agent finds it will say.
        if std::mem::take(&mut self.has_pairs) {
            self.windows.bridge.speak_by(None);
            self.ask(&TellPairs { present: 0 }.into())?;
        }
        self.relay.restart();
        if begin.is_some() {
            self.relay.say(FrameKind::Begin, 0, bytes);
            // Also that there are none: of one that went meanwhile it may have something.
            self.say_windows();
        }
        Ok(())
    }

    /// Which windows there are, of which an agent sees by itself only those that are plugged in.
    fn say_windows(&mut self) {
        let bits = self.windows.present.to_le_bytes().to_vec();
        self.relay.say(FrameKind::Pairs, 0, bits);
    }

    /// The machine has another pair window, or one less.
    fn take_window(&mut self) -> Result<(), ProxyEnd> {
        if self.windows.take()? && self.begun == Some(true) {
            self.say_windows();
        }
        Ok(())
    }

    /// A neighbour has rung for a process of the machine.
    fn say_rung(&mut self) {
        self.windows.bridge.take();
        if self.has_pairs {
            self.relay.say(FrameKind::Rung, 0, Vec::new());
        }
    }

    fn open(&mut self, session: u32, bytes: &[u8]) -> Result<(), ProxyEnd> {
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
    fn packets(&mut self) -> Result<(), ProxyEnd> {
        let mut bytes = [0; PACKET_BYTES_MAX];
        for _ in 0..PACKETS_PER_TURN {
            let Some(packets) = &self.packets else { break };
            let mode = seqpacket::BlockingMode::NonBlocking;
            let length = match seqpacket::receive(packets.as_fd(), &mut bytes, mode) {
                Ok((0, _)) => return Err(last_word(self.machine_socket.as_fd())),
                Ok((length, _)) => length,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(_) => return Err(ProxyEnd::Broken),
            };
            let message = bytes.get(..length).unwrap_or(&[]);
            if !self.has_port {
                continue;
            }
            match proxied_udp::is_word(message) {
                true => self.relay.say(FrameKind::Word, 0, Vec::new()),
                false => self.relay.say(FrameKind::Packet, 0, message.to_vec()),
            }
        }
        Ok(())
    }

    /// Asks the daemon at the machine socket.
    fn ask(&mut self, message: &Message) -> Result<(Message, Vec<OwnedFd>), ProxyEnd> {
        self.tag += 1;
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(self.tag, message, &mut bytes);
        let deadline = clock::now() + PATIENCE;
        // If it is closed, the last word may be there.
        let _ =
            seqpacket_deadline::send(self.machine_socket.as_fd(), &bytes[..length], &[], deadline);
        let heard = seqpacket_deadline::receive(self.machine_socket.as_fd(), &mut bytes, deadline);
        let (length, files) = heard.map_err(|_| ProxyEnd::Daemon)?;
        match decode(&bytes[..length]) {
            Ok((_, Message::Parted(_))) => Err(ProxyEnd::Detached),
            Ok((tag, answer)) if tag == self.tag => Ok((answer, files)),
            _ => Err(ProxyEnd::Daemon),
        }
    }
}
