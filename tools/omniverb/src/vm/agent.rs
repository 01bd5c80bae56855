//! Implements `omniverb agent`: serves a virtual machine's processes as the daemon does on a host.
//!
//! In: processes that connect to the socket of the host's daemon; the window, the port. Out: their
//! messages by the port, and back, with the descriptors that belong beside them: that of the
//! window's device, and of an events socket. Datagrams to UDP port 4791 go to the host's engine,
//! and the engine's leave by it (`udp_port_relay.rs`); threads that sleep here are woken for the
//! engine, and the engine for them (`engine_wakes.rs`); and so are processes that share a
//! pair window (`agent_windows.rs`). The host decides all rights; the agent decides only
//! whose pages may stay where they are for the host's engine (`pin_requests.rs`). Once it has its
//! devices, it runs as an unused user; a process of its own opens devices that are plugged in later
//! (`privileged_device_opener.rs`), and another one keeps pages.

mod first_message;
mod startup_descriptors;
#[cfg(test)]
mod tests;

use super::agent_windows::Sharing;
use super::engine_wakes::Wakes;
use super::guest_address_message;
use super::pin_requests::{Keeping, Lost, Speaker};
use super::privileged_device_opener;
use super::serial_port_multiplexer::{Channel, News, Reads, Relay};
use super::start_supervisor;
use super::udp_port_relay::Network;
use anyhow::Context;
use omniverb_arguments::InPlace;
use omniverb_session::limits::GIDS_MAX;
use omniverb_session::vm::{EnclosedDescriptor, Frame, FrameKind, PORT_NAME, enclosed, written};
use omniverb_session::{SYSTEM_SOCKET, decode};
use omniverb_sys::local_addresses;
use omniverb_sys::{clock, privileges, sd_notify, seqpacket};
use startup_descriptors::{listen, port, wait_for, windows};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, ExitCode};
use std::sync::Arc;
use std::time::Duration;

/// How long to wait for a proxy at the other end before looking again.
const LOOK: Duration = Duration::from_millis(100);
/// How long to wait, in milliseconds, before looking again whether there is room for a process.
const FULL_MS: i64 = 100;
/// Delay, in milliseconds, before a UDP port that another socket holds is tried again.
const AGAIN_MS: i64 = 5000;
/// The places of what the engine is to be woken by, and neighbours; behind them is what devices
/// come by, if any do, then the sockets of the network, and in the end what processes come by.
const RUNG: usize = 0;
const RUNG_IN_PAIRS: usize = 1;
/// The place of the page pinner, if there is one.
const PINNED: usize = 2;
/// How long the host may take to hear that all processes are gone, and how often that is looked at.
const LAST_WORDS: Duration = Duration::from_secs(1);
const LAST_WORDS_LOOK_MS: i64 = 20;
/// Connections accepted before others get their turn.
const TURN: usize = 32;

/// Serves until there is no port any more. `path`: where to listen; that of the host's daemon.
/// `in_place`: the processes whose pages may stay where they are for the host's engine.
pub(crate) fn agent(path: Option<&Path>, in_place: InPlace) -> anyhow::Result<ExitCode> {
    let path = path.unwrap_or(Path::new(SYSTEM_SOCKET));
    let found = wait_for("a window of Omniverb", windows)?;
    let port = wait_for(PORT_NAME, port)?;
    let listener = listen(path)?;
    let relay = Relay::new(port, Reads::Always)?;
    let sessions = super::sessions();
    let network = Network::open();
    // The opener keeps its rights.
    let opener = privileged_device_opener::start();
    let keeping = Keeping::begin(in_place);
    start_supervisor::be_ended_as_others();
    if let Err(error) = &opener {
        eprintln!("omniverb: devices that are plugged in from now on are not seen: {error}");
    }
    if let Err(error) = &network {
        eprintln!("omniverb: UDP port 4791: {error}; no peer outside this machine is reached yet");
    }
    if super::is_emulated_alone() {
        eprintln!(
            "omniverb: this machine's only processor is emulated and has no atomic operations \
             towards others: links may stand still; start QEMU with -smp 1,maxcpus=2"
        );
    }
    // It has all that it needs.
    privileges::become_nobody().context("cannot become an unused user id (needs root)")?;
    privileges::keep_only(&[]).context("cannot give up privileges")?;
    sd_notify::tell("READY=1");
    let (last, told, full, woken) = (0, None, false, false);
    let (network, tried, wakes) = (network.ok(), clock::now(), Wakes::new()?);
    let sharing = Sharing::new(found)?;
    let (window, _) = sharing.own().context("this machine has no window of Omniverb")?;
    let mut agent = Agent {
        relay,
        window,
        sharing,
        has_said_pairs: false,
        opener: opener.ok(),
        keeping,
        sockets: 0,
        listener,
        network,
        tried,
        wakes,
        woken,
        last,
        told,
        sessions,
        full,
    };
    agent.begin();
    loop {
        let came = agent.wait()?;
        if agent.full {
            agent.accept()?;
        }
        for news in came {
            match news {
                News::Frame(frame) => agent.frame(frame),
                News::Said { session, channel, bytes, .. } => {
                    let from = (session, channel);
                    let keeping = &mut agent.keeping;
                    if !keeping.takes(&mut agent.relay, Speaker::Process, from, &bytes) {
                        agent.relay.say(channel.frame(), session, bytes);
                    }
                }
                News::Gone(session) => agent.over(FrameKind::Close, session),
                News::Lost(session) => agent.over(FrameKind::Lost, session),
                News::Other(index) => agent.other(index)?,
                News::PortOver => {
                    // No proxy is there: the machine is not attached now. One may come.
                    agent.sharing.end();
                    std::thread::sleep(LOOK);
                    agent.begin();
                }
            }
        }
        agent.wake();
        agent.try_network();
        agent.try_window()?;
        agent.keeping.ask(&mut agent.relay);
    }
}

struct Agent {
    relay: Relay,
    window: Arc<OwnedFd>,
    /// The other windows, and which is this machine's own.
    sharing: Sharing,
    /// The host has ever been told which of them there are.
    has_said_pairs: bool,
    /// The process that opens devices that are plugged in now, and its socket.
    opener: Option<(OwnedFd, Child)>,
    /// Pages of processes that stay where they are.
    keeping: Keeping,
    /// The place of the first socket of the network, in what is waited for.
    sockets: usize,
    listener: OwnedFd,
    /// UDP port 4791, if we could have it.
    network: Option<Network>,
    /// When that was tried last.
    tried: u64,
    wakes: Wakes,
    /// The host may have rung for a thread here.
    woken: bool,
    /// The number of the session that came last.
    last: u32,
    /// The addresses that the host has got.
    told: Option<Vec<local_addresses::Address>>,
    /// How many sessions there may be.
    sessions: usize,
    /// There is no room for another process at the moment.
    full: bool,
}

impl Agent {
    /// Sleeps until something has come.
    fn wait(&mut self) -> anyhow::Result<Vec<News>> {
        let mut others = vec![self.wakes.rung(), self.sharing.rung()];
        others.extend(self.keeping.socket());
        others.extend(self.opener.as_ref().map(|(devices, _)| devices.as_fd()));
        self.sockets = others.len();
        others.extend(self.network.iter().flat_map(Network::sockets));
        // While there is no room for more, new connections wait in the queue.
        let limit = match self.network {
            _ if self.full || self.sharing.is_doubtful(self.relay.has_begun()) => Some(FULL_MS),
            None => Some(AGAIN_MS),
            Some(_) => None,
        };
        let limit = limit.into_iter().chain(self.keeping.limit()).min();
        others.extend((!self.full).then_some(self.listener.as_fd()));
        self.relay.wait(&others, limit)
    }

    /// One of what was waited for beside processes and host, by its place.
    fn other(&mut self, index: usize) -> anyhow::Result<()> {
        if index == RUNG {
            self.wakes.take();
            self.relay.say(FrameKind::Word, 0, Vec::new());
            return Ok(());
        }
        if index == RUNG_IN_PAIRS {
            if self.sharing.take() {
                self.relay.say(FrameKind::Rung, 0, Vec::new());
            }
            return Ok(());
        }
        if index == PINNED && self.keeping.socket().is_some() {
            return self.keeping.hear(&mut self.relay).map_err(|Lost| self.give_up());
        }
        let Some(index) = index.checked_sub(self.sockets) else {
            self.device();
            return Ok(());
        };
        let sockets = self.network.as_ref().map_or(0, |network| network.sockets().len());
        let Some(network) = self.network.as_mut().filter(|_| index < sockets) else {
            return self.accept();
        };
        for message in network.receive(index) {
            self.relay.say(FrameKind::Packet, 0, message);
        }
        Ok(())
    }

    /// The pinner has ended, so only processes that may end still keep pages that the host's engine
    /// may be writing to: their links are to end now. The processes live, and their memory of the
    /// window stays theirs. The next start of this agent brings a new pinner.
    fn give_up(&mut self) -> anyhow::Error {
        for session in self.relay.remove_all() {
            self.over(FrameKind::Lost, session);
        }
        let until = clock::now() + LAST_WORDS.as_nanos() as u64;
        while self.relay.has_more_to_say() && clock::now() < until {
            if self.relay.wait(&[], Some(LAST_WORDS_LOOK_MS)).is_err() {
                break;
            }
        }
        anyhow::anyhow!("the pinner of processes' pages has ended")
    }

    /// Opens the UDP port, if its holder has closed it.
    fn try_network(&mut self) {
        // Reading the clock is a call of the kernel in some machines.
        if self.network.is_some() {
            return;
        }
        let passed = clock::now().saturating_sub(self.tried) / 1_000_000;
        if passed < AGAIN_MS.unsigned_abs() {
            return;
        }
        self.tried = clock::now();
        self.network = Network::open().ok();
        if self.network.is_some() {
            eprintln!("omniverb: UDP port 4791 can be had now");
            self.relay.say(FrameKind::Port, 0, Vec::new());
        }
    }

    /// A process is gone, or parted with.
    fn over(&mut self, how: FrameKind, session: u32) {
        self.wakes.gone(session);
        self.keeping.gone(session);
        self.relay.say(how, session, Vec::new());
    }

    /// Wakes sleeping threads, if the host may have rung for them.
    fn wake(&mut self) {
        if std::mem::take(&mut self.woken) {
            self.wakes.wake();
        }
        self.sharing.wake();
    }

    /// Processes have come.
    fn accept(&mut self) -> anyhow::Result<()> {
        for _ in 0..TURN {
            self.full = self.relay.len() >= self.sessions;
            if self.full {
                break;
            }
            let calls = match seqpacket::accept(self.listener.as_fd()) {
                Ok(Some(calls)) => calls,
                Ok(None) => break,
                Err(error) if is_lack(&error) => {
                    self.full = true;
                    break;
                }
                Err(error) => return Err(error.into()),
            };
            let Ok(peer) = seqpacket::peer(calls.as_fd()) else { continue };
            self.tell_addresses();
            self.last = self.last.wrapping_add(1);
            let who = [peer.pid.to_le_bytes(), peer.uid.to_le_bytes()].concat();
            self.relay.say(FrameKind::Open, self.last, who);
            self.relay.add(self.last, calls);
        }
        Ok(())
    }

    /// Tells the host the addresses of this machine, if they have changed.
    fn tell_addresses(&mut self) {
        let Ok(mut list) = local_addresses::list() else { return };
        list.retain(|address| address.is_up);
        list.truncate(GIDS_MAX);
        if self.told.as_ref() == Some(&list) {
            return;
        }
        let message = guest_address_message::message(&list);
        self.relay.say(FrameKind::Addresses, 0, written(0, &message.into()));
        self.told = Some(list);
    }

    fn frame(&mut self, frame: Frame) {
        let Frame { kind, session, mut bytes } = frame;
        match Channel::of(kind) {
            Some(channel)
                if self.keeping.takes(
                    &mut self.relay,
                    Speaker::Host,
                    (session, channel),
                    &bytes,
                ) => {}
            Some(channel) => match self.beside(session, &mut bytes) {
                Ok(files) => self.relay.tell(session, channel, bytes, files),
                // No descriptors or no memory left: the process sees that the daemon is gone.
                Err(_) => {
                    self.relay.remove(session);
                    self.over(FrameKind::Lost, session);
                }
            },
            None => match kind {
                FrameKind::Close => {
                    self.relay.remove(session);
                    self.wakes.gone(session);
                    self.keeping.gone(session);
                }
                FrameKind::Packet => {
                    // Where there was no room for a word, this says the same.
                    self.woken = true;
                    self.network.iter().for_each(|network| network.send(&bytes));
                }
                FrameKind::Word => self.woken = true,
                FrameKind::Rung => self.sharing.hear(&bytes),
                FrameKind::Pairs => {
                    let bits = bytes.first_chunk().map_or(0, |bits| u64::from_le_bytes(*bits));
                    self.sharing.look_again(bits);
                    // Also if there are none any more: the host waits for that. A machine that
                    // never reported windows, since it cannot find any, does not begin to now.
                    if bits != 0 || self.has_said_pairs {
                        self.say_pairs();
                    }
                }
                FrameKind::PinsOver => self.keeping.answered(&bytes),
                _ => {}
            },
        }
    }

    /// The descriptors that belong beside a message of the host's. Removes the number of the pair
    /// window that it is about.
    fn beside(&mut self, session: u32, bytes: &mut Vec<u8>) -> anyhow::Result<Vec<Arc<OwnedFd>>> {
        // A session that has gone meanwhile gets no message, and nothing is kept for it.
        let there = self.relay.has(session);
        let Some((tag, mut message)) = decode(bytes).ok().filter(|_| there) else {
            return Ok(Vec::new());
        };
        let memory = match self.sharing.taken_off(tag, &mut message)? {
            Some((shared, told)) => {
                *bytes = told;
                shared
            }
            None => {
                self.wakes.told(session, &message, &self.window)?;
                self.window.clone()
            }
        };
        let mut files = Vec::new();
        for one in enclosed(&message) {
            files.push(match one {
                EnclosedDescriptor::Memory => memory.clone(),
                EnclosedDescriptor::Events => {
                    let (ours, theirs) = seqpacket::pair()?;
                    self.relay.set_events(session, ours);
                    Arc::new(theirs)
                }
            });
        }
        Ok(files)
    }
}

/// No more descriptors, or memory: not now.
fn is_lack(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let lack = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| lack.contains(&errno))
}
