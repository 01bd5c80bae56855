//! Attaches and detaches virtual machines, and serves their proxies at the machine sockets.
//!
//! A proxy passes on a guest's messages, so it is treated as a tenant: one message at a time, and a
//! malformed one disconnects it. It can ask for sessions of its own machine only.

use crate::daemon_log::Level;
use crate::guest_boot_id::BootId;
use crate::poller_tokens::Wakeup;
use crate::reactor::Timer;
use crate::server::Server;
use crate::server::identify_connections::HELLO_TIME;
use crate::server::operation_contexts::Guests;
use crate::server::operation_contexts::StatusRows;
use crate::server::operators::answer_at;
use crate::unidentified_connections::Arrival;
use crate::virtual_machines::{Machine, Record, SESSIONS_MAX};
use crate::vm_identity;
use crate::vm_window_allocator::{PAGE, Pieces};
use crate::vm_window_page_ledger::Ledger;
use crate::vnic_attachment::Attached;
use omniverb_fairness::Holder;
use omniverb_netns::PORT;
use omniverb_session::body::Done;
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::operator::{self, AttachMachine, DetachMachine, MachineAttached};
use omniverb_session::vm::{
    EndSession, MachineAddress, MachineName, Message, Parted, PortOpened, REACH_GLOBAL, REACH_LINK,
    SessionOpened, TellAddresses, decode, encode,
};
use omniverb_sys::udp_socket::UdpPort;
use omniverb_sys::unsolicited_fds::{self, PlainMessage};
use omniverb_sys::{Extent, clock, seqpacket};
use omniverb_tenancy::{Reach, SessionId, VnicAddress, VnicId};
use omniverb_terms::Errno;
use serde_json::{Value, json};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// How long a machine's addresses are at least as they are: all processes of a vNIC are told.
const ADDRESSES_TIME: Duration = Duration::from_millis(200);

impl Server {
    /// An operator attaches a machine: its answer brings the machine socket.
    pub(super) fn attach_machine(
        &mut self,
        operator: SessionId,
        tag: u64,
        asked: &AttachMachine,
        mut files: Vec<OwnedFd>,
    ) {
        let ledger = if files.len() == 2 { files.pop() } else { None };
        let window = if files.len() == 1 { files.pop() } else { None };
        let answer = match self.make_machine(operator, asked, window, ledger) {
            Ok(machine_socket) => {
                let attached = operator::Message::from(MachineAttached { reserved: 0 });
                self.answer_operator_with(operator, tag, &attached, &[machine_socket.as_fd()]);
                self.captures.discard(files);
                return;
            }
            Err(errno) => operator::Message::Failed(errno),
        };
        self.answer_operator(operator, tag, &answer);
        self.captures.discard(files);
    }

    /// The proxy's end of its machine socket.
    fn make_machine(
        &mut self,
        operator: SessionId,
        asked: &AttachMachine,
        window: Option<OwnedFd>,
        ledger: Option<OwnedFd>,
    ) -> Result<OwnedFd, Errno> {
        let discard = |server: &Server, window, ledger: Option<OwnedFd>| {
            server.captures.discard([window].into_iter().chain(ledger).collect());
        };
        let window = window.ok_or(Errno::EINVAL)?;
        let Some(name) = MachineName::read(&asked.name) else {
            discard(self, window, ledger);
            return Err(Errno::EINVAL);
        };
        if self.machines.is_full() || self.machines.named(name).is_some() {
            discard(self, window, ledger);
            let full = self.machines.is_full();
            return Err(if full { Errno::ENOMEM } else { Errno::EBUSY });
        }
        // Closing a file that is not memory may block for ever: it is checked first.
        if let Err(error) = Pieces::check(&window, asked.data) {
            let text = format_args!("the window of machine {name} is refused: {error}");
            self.journal.log_of(Some(&name.to_string()), Level::Warning, text);
            discard(self, window, ledger);
            return Err(Errno::EINVAL);
        }
        let pages = asked.data.length / PAGE;
        if ledger.as_ref().is_some_and(|file| Ledger::check(file, pages).is_err()) {
            discard(self, window, ledger);
            return Err(Errno::EINVAL);
        }
        let ledger = ledger.map_or_else(Ledger::none, Ledger::of);
        let bin = self.disposal.bin();
        let file = Extent::new(&window, asked.data.offset, asked.data.length).file_id();
        let file = file.map_err(|_| Errno::EINVAL)?;
        let boots = BootId::of(ledger.clone(), pages);
        let this = vm_identity::of(&ledger, pages);
        let pieces = Pieces::new(window, asked.data, ledger, bin).map_err(|_| Errno::ENOMEM)?;
        let (machine_socket, theirs) = seqpacket::pair().map_err(|_| Errno::ENOMEM)?;
        let proxy = self.operators.peer(operator).ok_or(Errno::ENOENT)?;
        let id = self.next_session();
        self.clients.refuse(&machine_socket);
        self.reactor.watch(&machine_socket, Wakeup::Machine(id)).map_err(|_| Errno::ENOMEM)?;
        let machine = Arc::new(Machine { name, pieces });
        let holder = Holder::new("", proxy.uid).in_process(proxy.pid);
        let hold = self.vnics.join(Attached::Machine(machine.clone()), &holder);
        let vnic = hold.vnic();
        self.engine_ports().tell_registered();
        if !self.counted.are_of(vnic, file) {
            self.counted.begin(vnic, file);
            self.engine.forget_counted(vnic);
        }
        self.machines.add(id, Record::new(machine, hold, (machine_socket, proxy), boots, this));
        let text = format_args!("machine {name} is attached");
        self.journal.log_of(Some(&name.to_string()), Level::Info, text);
        Ok(theirs)
    }

    /// An operator parts with a machine.
    pub(super) fn detach_machine(&mut self, asked: &DetachMachine) -> Result<(), Errno> {
        let name = MachineName::read(&asked.name).ok_or(Errno::EINVAL)?;
        let id = self.machines.named(name).ok_or(Errno::ENOENT)?;
        // A proxy that receives it does not attach the machine again.
        self.answer_proxy(id, 0, &Parted { reserved: 0 }.into(), &[]);
        self.part_with_machine(id, "an operator ended it");
        Ok(())
    }

    /// Its machine socket is closed, and so are the connections of its processes.
    pub(super) fn part_with_machine(&mut self, id: SessionId, reason: &str) {
        let Some(record) = self.machines.remove(id) else { return };
        // First of all: processes that run on there keep their pieces.
        record.machine.pieces.part();
        record.pairs().part();
        self.drop_what_is_over();
        let vnic = record.vnic();
        self.tables.decide(|tables| {
            tables.set_has_memory(vnic, false);
            tables.forget_pair_windows(vnic)
        });
        let name = record.machine.name;
        let text = format_args!("machine {name} is parted with: {reason}");
        self.journal.log_of(Some(&name.to_string()), Level::Info, text);
        self.reactor.forget(&record.machine_socket);
        // A supervisor that waits to plug in more has nothing to wait for.
        if let Some(plugger) = record.pairs().plugger() {
            self.end_operator(plugger.operator);
        }
        for session in &record.sessions {
            self.clients.part(*session, "its machine was detached");
        }
        self.engine_ports().end_port(vnic);
        self.disposal.close_socket(record.into_door());
        self.engine_ports().tell_registered();
    }

    /// A machine's proxy has sent by its port what ends that. The supervisor starts another one.
    pub(super) fn port_over(&mut self, vnic: VnicId) {
        if let Some(id) = self.machines.number_of(vnic) {
            self.part_with_machine(id, "its proxy sent a datagram that its port may not carry");
        }
    }

    /// A proxy asks something, or is gone. One call, then others get their turn.
    pub(super) fn door_ready(&mut self, id: SessionId) {
        let Some(record) = self.machines.get(id) else { return };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = match unsolicited_fds::receive(record.machine_socket.as_fd(), &mut bytes) {
            Ok(PlainMessage::Message(0)) => {
                return self.part_with_machine(id, "its proxy has ended");
            }
            Ok(PlainMessage::Message(length)) => length,
            Ok(PlainMessage::Descriptors) => {
                return self.part_with_machine(id, "its proxy sent descriptors");
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return self.part_with_machine(id, "its proxy has ended"),
        };
        match decode(&bytes[..length]) {
            Ok((tag, Message::OpenSession(_))) => match self.open_session(id) {
                Ok((session, calls)) => {
                    let opened = SessionOpened { session: session.0 }.into();
                    self.answer_proxy(id, tag, &opened, &[calls.as_fd()]);
                }
                Err(errno) => self.answer_proxy(id, tag, &Message::Failed(errno), &[]),
            },
            Ok((tag, Message::EndSession(EndSession { session }))) => {
                let session = SessionId(session);
                // It may be over already.
                if record.sessions.contains(&session) {
                    self.clients.note_dead(session);
                }
                self.answer_proxy(id, tag, &Done { take_back: 0 }.into(), &[]);
            }
            Ok((tag, Message::OpenPort(_))) => match self.guests().open_machine_port(id) {
                Ok(theirs) => {
                    let opened = PortOpened { reserved: 0 }.into();
                    self.answer_proxy(id, tag, &opened, &[theirs.as_fd()]);
                }
                Err(errno) => self.answer_proxy(id, tag, &Message::Failed(errno), &[]),
            },
            Ok((tag, Message::Booted(told))) => {
                self.guests().machine_booted(id, told.boot);
                self.answer_proxy(id, tag, &Done { take_back: 0 }.into(), &[]);
            }
            Ok((tag, Message::TellPairs(told))) => {
                self.pair_windows().machine_tells_pairs(id, told.present);
                self.answer_proxy(id, tag, &Done { take_back: 0 }.into(), &[]);
            }
            Ok((tag, Message::TellPinned(told))) => {
                self.machine_tells_pinned(id, &told);
                self.answer_proxy(id, tag, &Done { take_back: 0 }.into(), &[]);
            }
            Ok((tag, Message::QueryPins(asked))) => {
                let over = self.guests().pins_over(id, &asked);
                self.answer_proxy(id, tag, &over.into(), &[]);
            }
            Ok((tag, Message::TellAddresses(told))) => {
                self.guests().machine_tells_addresses(id, &told);
                self.answer_proxy(id, tag, &Done { take_back: 0 }.into(), &[]);
            }
            _ => self.part_with_machine(id, "its proxy sent a malformed message"),
        }
    }

    fn answer_proxy(
        &mut self,
        id: SessionId,
        tag: u64,
        answer: &Message,
        files: &[BorrowedFd<'_>],
    ) {
        let Some(record) = self.machines.get(id) else { return };
        if !answer_at(&record.machine_socket, |bytes| encode(tag, answer, bytes), files) {
            self.part_with_machine(id, "its proxy does not read its answers");
        }
    }

    /// A session of a machine's process: the process's end of its socket for calls.
    fn open_session(&mut self, id: SessionId) -> Result<(SessionId, OwnedFd), Errno> {
        let record = self.machines.get(id).ok_or(Errno::ENOENT)?;
        if record.sessions.len() >= SESSIONS_MAX {
            return Err(Errno::ENOMEM);
        }
        let (ours, theirs) = seqpacket::pair().map_err(|_| Errno::ENOMEM)?;
        let (attached, peer) = (Attached::Machine(record.machine.clone()), record.proxy);
        let holder = Holder::new(&format!("vm-{}", record.machine.name), peer.uid);
        let session = self.next_session();
        self.clients.refuse(&ours);
        self.reactor.set(HELLO_TIME, Timer::Hello(session));
        // The proxy lives as long as the machine socket, and machines' processes are not inspected.
        let arrival = Arrival { calls: ours, peer, pidfd: None, circle: None, holder };
        self.enter(session, arrival, Ok(attached));
        if self.clients.get(session).is_none() {
            return Err(Errno::ENOMEM);
        }
        if let Some(record) = self.machines.get_mut(id) {
            record.sessions.insert(session);
        }
        Ok((session, theirs))
    }
}

impl Guests<'_> {
    /// A machine's guest reports its boot. If it was booted afresh none of its earlier processes
    /// exists: their peers are told so, and their pieces come back.
    pub(super) fn machine_booted(&mut self, id: SessionId, boot: [u8; 16]) {
        let Some(record) = self.machines.get_mut(id) else { return };
        if !record.boots.heard(boot) {
            return;
        }
        record.machine.pieces.boot();
        record.pairs().boot();
        for session in &record.sessions {
            self.clients.note_dead(*session);
            self.clients.part(*session, "its machine was booted again");
        }
        let name = record.machine.name;
        // Not louder: a guest may say so without end.
        let text = format_args!("machine {name} was booted again");
        self.journal.log_of(Some(&name.to_string()), Level::Debug, text);
    }

    /// The machine's agent has its UDP port 4791: where what comes by it is carried.
    pub(super) fn open_machine_port(&mut self, id: SessionId) -> Result<OwnedFd, Errno> {
        let bin = self.disposal.bin();
        let record = self.machines.get_mut(id).ok_or(Errno::ENOENT)?;
        if record.port.is_none() {
            let close = Box::new(move |socket| bin.put(socket));
            let port = UdpPort::carried_by_another(PORT, close).map_err(|_| Errno::ENOMEM)?;
            record.port = Some(Arc::new(port));
        }
        let carried = record.port.as_deref().and_then(UdpPort::carried).ok_or(Errno::ENOENT)?;
        carried.carriers_end().map_err(|_| Errno::ENOMEM)
    }

    pub(super) fn machine_tells_addresses(&mut self, id: SessionId, told: &TellAddresses) {
        let count = usize::try_from(told.count).unwrap_or(usize::MAX).min(told.entries.len());
        let addresses: Vec<VnicAddress> = told.entries[..count].iter().map(address).collect();
        let Some(record) = self.machines.get_mut(id) else { return };
        record.said = Some(addresses);
        if !record.timer {
            self.hear_addresses(id);
        }
    }

    /// Takes the addresses that a machine has sent since the last call.
    pub(super) fn hear_addresses(&mut self, id: SessionId) {
        let Some(record) = self.machines.get_mut(id) else { return };
        record.timer = record.said.is_some();
        let Some(addresses) = record.said.take() else { return };
        let vnic = record.vnic();
        record.addresses = addresses;
        self.reactor.set(ADDRESSES_TIME, Timer::Addresses(id));
        self.addresses_of_machine(vnic);
    }

    /// If this is a machine's vNIC, the tables are told its addresses: those that it said last.
    pub(super) fn addresses_of_machine(&mut self, vnic: VnicId) -> bool {
        let Some(record) = self.machines.of_vnic(vnic) else { return false };
        let addresses = &record.addresses;
        self.tables.decide(|tables| tables.addresses(vnic, addresses, clock::now()));
        true
    }
}

impl StatusRows<'_> {
    /// What there is to see of the machine that has a vNIC, if one has it.
    pub(super) fn machine_row(&self, vnic: VnicId) -> Option<Value> {
        let record = self.machines.of_vnic(vnic)?;
        let (bytes, used) = record.machine.pieces.sizes();
        let direct = self.tables.direct_links(vnic);
        let others = self.machines.whose_joined(record);
        let addresses: Vec<String> = record.addresses.iter().map(|a| a.ip.to_string()).collect();
        Some(json!({
            "name": record.machine.name.text(),
            "supervisor": record.proxy.pid,
            "window": bytes,
            "used": used,
            "sessions": record.sessions.len(),
            "direct": direct,
            "engine": self.tables.links_of(vnic) - direct,
            "pairs": record.pairs().row(self.tables.pair_links(vnic), &others),
            "network": record.port.is_some(),
            "memory": record.ram.as_ref().map(|ram| ram.bytes()),
            "pinned": self.pins.bytes(vnic),
            "addresses": addresses,
        }))
    }
}

/// An address as the tables want it.
fn address(said: &MachineAddress) -> VnicAddress {
    let ip = Ipv6Addr::from(said.ip);
    let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
    let reach = match said.reach {
        REACH_GLOBAL => Reach::Global,
        REACH_LINK => Reach::Link,
        _ => Reach::Host,
    };
    let (interface, is_loopback) = (said.interface, said.loopback != 0);
    VnicAddress { ip, interface, reach, is_loopback, mtu: said.mtu }
}
