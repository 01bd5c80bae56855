//! `omniverb agent`: in a virtual machine, what the daemon is on a host.
//!
//! In: processes that connect to the socket of the host's daemon; the window, the port. Out: their
//! messages by the port, and back, with the descriptors that belong beside them: that of the
//! window's device, and of an events socket. What comes by UDP port 4791 goes to the host's engine,
//! and what that sends leaves by it (`network.rs`); who sleeps here is woken for it, and it for him
//! (`wakes.rs`). Decides nothing: who may do what the host says. Once it has its devices, it is
//! nobody.

#[cfg(test)]
mod tests;

use super::network::Network;
use super::relay::{Channel, News, Relay};
use super::wakes::Wakes;
use anyhow::{Context, bail};
use omniverb_session::limits::{GIDS_MAX, MESSAGE_BYTES_MAX};
use omniverb_session::machine::{
    Enclosed, Frame, FrameKind, MachineAddress, PORT_NAME, REACH_GLOBAL, REACH_HOST, REACH_LINK,
    TellAddresses, WINDOW_MAGIC, WindowHead, enclosed, encode,
};
use omniverb_session::{SYSTEM_SOCKET, decode};
use omniverb_sys::addresses::{self, Scope};
use omniverb_sys::{Access, Extent, clock, manager, privileges, random, socket};
use rustix::fs::{Mode, OFlags, open};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Where devices of plugged-in memory are.
const DEVICES: &str = "/sys/bus/dax/devices";
/// Where ports are.
const PORTS: &str = "/sys/class/virtio-ports";
/// How long to wait for devices, or for somebody at the other end, before looking again.
const LOOK: Duration = Duration::from_millis(100);
/// How often to look for devices.
const LOOKS: usize = 100;
/// How long to wait, in milliseconds, before looking again whether there is room for a process.
const FULL_MS: i64 = 100;
/// How long it takes, in milliseconds, until a UDP port is tried again that somebody else has.
const AGAIN_MS: i64 = 5000;
/// The place of what the engine is to be woken by; behind it are the sockets of the network, and in
/// the end what processes come by.
const RUNG: usize = 0;
/// Connections accepted before others get their turn.
const TURN: usize = 32;

/// Serves until there is no port any more. `path`: where to listen; that of the host's daemon.
pub(crate) fn agent(path: Option<&Path>) -> anyhow::Result<ExitCode> {
    let path = path.unwrap_or(Path::new(SYSTEM_SOCKET));
    let (window, number) = wait_for("a window of Omniverb", window)?;
    let port = wait_for(PORT_NAME, port)?;
    let listener = listen(path)?;
    let relay = Relay::new(port, false)?;
    let (window, sessions) = (Arc::new(window), super::sessions());
    let network = Network::open();
    if let Err(error) = &network {
        eprintln!("omniverb: UDP port 4791: {error}; nobody outside this machine is reached yet");
    }
    // What it needs it has.
    privileges::become_nobody().context("cannot become a user that nobody is")?;
    privileges::keep_only(&[]).context("cannot give up privileges")?;
    manager::tell("READY=1");
    let (last, told, full, woken) = (0, None, false, false);
    let (network, tried, wakes) = (network.ok(), clock::now(), Wakes::new()?);
    let mut agent =
        Agent { relay, window, listener, network, tried, wakes, woken, last, told, sessions, full };
    agent.begin(number);
    loop {
        let came = agent.wait()?;
        if agent.full {
            agent.accept()?;
        }
        for news in came {
            match news {
                News::Frame(frame) => agent.frame(frame),
                News::Said { session, channel, bytes, .. } => {
                    agent.relay.say(channel.frame(), session, bytes);
                }
                News::Gone(session) => agent.over(FrameKind::Close, session),
                News::Lost(session) => agent.over(FrameKind::Lost, session),
                News::Other(index) => agent.other(index)?,
                News::PortOver => {
                    // Nobody is there: the machine is not attached now. Somebody may come.
                    std::thread::sleep(LOOK);
                    agent.begin(number);
                }
            }
        }
        agent.wake();
        agent.try_network();
    }
}

struct Agent {
    relay: Relay,
    window: Arc<OwnedFd>,
    listener: OwnedFd,
    /// UDP port 4791, if we could have it.
    network: Option<Network>,
    /// When that was tried last.
    tried: u64,
    wakes: Wakes,
    /// The host may have rung for somebody here.
    woken: bool,
    /// The number of the session that came last.
    last: u32,
    /// What the host was told of addresses.
    told: Option<Vec<addresses::Address>>,
    /// How many sessions there may be.
    sessions: usize,
    /// There is no room for another process at the moment.
    full: bool,
}

impl Agent {
    /// Says that it is there, and knows nobody.
    fn begin(&mut self, number: u64) {
        let bytes = [number, random::number()].map(u64::to_le_bytes).concat();
        self.relay.begin(&Frame { kind: FrameKind::Begin, session: 0, bytes });
        self.told = None;
        self.wakes.clear();
        if self.network.is_some() {
            self.relay.say(FrameKind::Port, 0, Vec::new());
        }
        // No number that somebody before had, so that nothing said to him is for anybody now.
        self.last = random::number() as u32;
    }

    /// Sleeps until something has come.
    fn wait(&mut self) -> anyhow::Result<Vec<News>> {
        let mut others = vec![self.wakes.rung()];
        others.extend(self.network.iter().flat_map(Network::sockets));
        // While there is no room for more, whoever comes waits where he is.
        let limit = match self.network {
            _ if self.full => Some(FULL_MS),
            None => Some(AGAIN_MS),
            Some(_) => None,
        };
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
        let sockets = self.network.as_ref().map_or(0, |network| network.sockets().len());
        let Some(network) = self.network.as_mut().filter(|_| index <= sockets) else {
            return self.accept();
        };
        for message in network.receive(index - 1) {
            self.relay.say(FrameKind::Packet, 0, message);
        }
        Ok(())
    }

    /// Has the UDP port after all, if whoever had it has it no longer.
    fn try_network(&mut self) {
        let passed = clock::now().saturating_sub(self.tried) / 1_000_000;
        if self.network.is_some() || passed < AGAIN_MS.unsigned_abs() {
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
        self.relay.say(how, session, Vec::new());
    }

    /// Wakes who sleeps, if the host may have rung for them.
    fn wake(&mut self) {
        if std::mem::take(&mut self.woken) {
            self.wakes.wake();
        }
    }

    /// Processes have come.
    fn accept(&mut self) -> anyhow::Result<()> {
        for _ in 0..TURN {
            self.full = self.relay.len() >= self.sessions;
            if self.full {
                break;
            }
            let calls = match socket::accept(self.listener.as_fd()) {
                Ok(Some(calls)) => calls,
                Ok(None) => break,
                Err(error) if is_lack(&error) => {
                    self.full = true;
                    break;
                }
                Err(error) => return Err(error.into()),
            };
            let Ok(peer) = socket::peer(calls.as_fd()) else { continue };
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
        let Ok(mut list) = addresses::list() else { return };
        list.retain(|address| address.up);
        list.truncate(GIDS_MAX);
        if self.told.as_ref() == Some(&list) {
            return;
        }
        let mut told = TellAddresses {
            count: u32::try_from(list.len()).unwrap_or(0),
            reserved: 0,
            entries: [NO_ADDRESS; GIDS_MAX],
        };
        for (entry, address) in told.entries.iter_mut().zip(&list) {
            *entry = said(address);
        }
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(0, &told.into(), &mut bytes);
        self.relay.say(FrameKind::Addresses, 0, bytes[..length].to_vec());
        self.told = Some(list);
    }

    fn frame(&mut self, frame: Frame) {
        let Frame { kind, session, bytes } = frame;
        match Channel::of(kind) {
            Some(channel) => match self.beside(session, &bytes) {
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
                }
                FrameKind::Packet => {
                    // Where there was no room for a word, this says the same.
                    self.woken = true;
                    self.network.iter().for_each(|network| network.send(&bytes));
                }
                FrameKind::Word => self.woken = true,
                _ => {}
            },
        }
    }

    /// The descriptors that belong beside a message of the host's.
    fn beside(&mut self, session: u32, bytes: &[u8]) -> anyhow::Result<Vec<Arc<OwnedFd>>> {
        // Whoever is gone meanwhile is told nothing, and nothing is kept for him.
        let there = self.relay.has(session);
        let Some((_, message)) = decode(bytes).ok().filter(|_| there) else {
            return Ok(Vec::new());
        };
        self.wakes.told(session, &message, &self.window)?;
        let mut files = Vec::new();
        for one in enclosed(&message) {
            files.push(match one {
                Enclosed::Memory => self.window.clone(),
                Enclosed::Events => {
                    let (ours, theirs) = socket::pair()?;
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

const NO_ADDRESS: MachineAddress =
    MachineAddress { ip: [0; 16], interface: 0, mtu: 0, reach: 0, loopback: 0 };

fn said(address: &addresses::Address) -> MachineAddress {
    let ip = match address.ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let reach = match address.scope {
        Scope::Global => REACH_GLOBAL,
        Scope::Link => REACH_LINK,
        Scope::Host => REACH_HOST,
    };
    MachineAddress {
        ip: ip.octets(),
        interface: address.interface,
        mtu: address.mtu,
        reach,
        loopback: address.loopback.into(),
    }
}

/// Devices come a while after the machine has begun.
fn wait_for<T>(what: &str, find: impl Fn() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    for _ in 0..LOOKS {
        if let Some(found) = find()? {
            return Ok(found);
        }
        std::thread::sleep(LOOK);
    }
    bail!("this machine has no {what}")
}

fn names(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The first device that says it is a window, and its number.
fn window() -> anyhow::Result<Option<(OwnedFd, u64)>> {
    for name in names(DEVICES) {
        let device = PathBuf::from("/dev").join(&name);
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let Ok(file) = open(&device, flags, Mode::empty()) else { continue };
        let Ok(first) = Extent::new(&file, 0, 4096).mapping(Access::ReadOnly) else { continue };
        let mut bytes = [0; WindowHead::BYTES];
        for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&first.load_u64(8 * at).unwrap_or(0).to_ne_bytes());
        }
        drop(first);
        if let Some(head) = WindowHead::read(&bytes) {
            return Ok(Some((file, head.number)));
        }
        if bytes.starts_with(&WINDOW_MAGIC) {
            bail!("{}: the window of another version of Omniverb's", device.display());
        }
    }
    Ok(None)
}

/// The port of our name.
fn port() -> anyhow::Result<Option<OwnedFd>> {
    for name in names(PORTS) {
        let said = std::fs::read_to_string(Path::new(PORTS).join(&name).join("name"));
        if said.is_ok_and(|said| said.trim_end() == PORT_NAME) {
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let device = PathBuf::from("/dev").join(&name);
            let port = open(&device, flags, Mode::empty());
            return Ok(Some(port.with_context(|| format!("cannot open {}", device.display()))?));
        }
    }
    Ok(None)
}

/// Listens where the host's daemon would. Who listened there before and is gone left the name.
fn listen(path: &Path) -> anyhow::Result<OwnedFd> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    if socket::is_alive(path) {
        bail!("a daemon listens at {}", path.display());
    }
    let _ = std::fs::remove_file(path);
    socket::listen(path, 0o666).with_context(|| path.display().to_string())
}
