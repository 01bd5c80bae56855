//! Plays the proxy of a virtual machine.
#![allow(dead_code)] // each test file uses a part

use super::operator::{Operator, name};
use super::*;
use omniverb_session::body::Extent;
use omniverb_session::limits::GIDS_MAX;
use omniverb_session::operator::{AttachMachine, Message as Said};
use omniverb_session::vm::{
    self, Booted, EndSession, MachineAddress, OpenPort, OpenSession, TellAddresses,
};
use omniverb_sys::{memfd, seqpacket};
use serde_json::Value;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

pub const PAGE: u64 = 4096;
pub const WINDOW_BYTES: u64 = 32 << 20;
pub const DATA: Extent = Extent { offset: 2 * PAGE, length: WINDOW_BYTES - 2 * PAGE };
pub const ADDRESS: [u8; 4] = [10, 9, 0, 1];

/// A machine, as its proxy has it.
pub struct Machine {
    pub machine_socket: OwnedFd,
    pub window: OwnedFd,
    pub tag: u64,
    /// The number of the last session.
    pub last: u64,
}

pub fn attach_as(
    daemon: &Daemon,
    text: &str,
    window: &OwnedFd,
    data: Extent,
) -> (Said, Vec<OwnedFd>) {
    attach_with(daemon, text, &[window], data)
}

pub fn attach_with(
    daemon: &Daemon,
    text: &str,
    files: &[&OwnedFd],
    data: Extent,
) -> (Said, Vec<OwnedFd>) {
    let mut operator = Operator::connect(daemon);
    let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
    operator.call_for_files(AttachMachine { name: name(text), data }, &files)
}

impl Machine {
    pub fn attach(daemon: &Daemon, text: &str) -> Machine {
        let window = memfd::create("window", WINDOW_BYTES).unwrap();
        let (answer, mut files) = attach_as(daemon, text, &window, DATA);
        assert!(matches!(answer, Said::MachineAttached(_)), "{answer:?}");
        Machine { machine_socket: files.remove(0), window, tag: 0, last: 0 }
    }

    pub fn ask(&mut self, message: impl Into<vm::Message>) -> (vm::Message, Vec<OwnedFd>) {
        self.tag += 1;
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = vm::encode(self.tag, &message.into(), &mut bytes);
        seqpacket::send(self.machine_socket.as_fd(), &bytes[..length], &[]).unwrap();
        assert!(readable(self.machine_socket.as_fd(), Some(SOON)).unwrap(), "no answer");
        let (length, files) = seqpacket::receive(
            self.machine_socket.as_fd(),
            &mut bytes,
            seqpacket::BlockingMode::Blocking,
        )
        .unwrap();
        let (tag, answer) = vm::decode(&bytes[..length]).unwrap();
        assert_eq!(tag, self.tag);
        (answer, files)
    }

    /// A process that has said hello, and where its statistics are.
    pub fn process(&mut self) -> (Client, Extent) {
        let (answer, mut files) = self.ask(OpenSession { pid: 7, uid: 0 });
        let vm::Message::SessionOpened(opened) = answer else { panic!("{answer:?}") };
        self.last = opened.session;
        let mut client = Client::over(files.remove(0));
        let hello = Hello { role: ROLE_VERBS, resume: 0, name: *b"in a machine\0\0\0\0" };
        let (answer, mut files) = client.call_with(hello, &[]);
        let Message::Welcome(Welcome { area, vnic, .. }) = answer else { panic!("{answer:?}") };
        assert!(vnic.starts_with(b"vm-"), "{vnic:?}");
        assert_eq!(files.len(), 1, "nothing but the events socket");
        client.events = files.pop();
        (client, area)
    }

    /// A process is gone, as the guest says.
    pub fn end(&mut self, session: u64) {
        assert!(matches!(self.ask(EndSession { session }).0, vm::Message::Done(_)));
    }

    /// The guest is in this boot, as it says.
    pub fn boot(&mut self, number: u8) {
        let boot = [number; 16];
        assert!(matches!(self.ask(Booted { boot }).0, vm::Message::Done(_)));
    }

    pub fn tell_address(&mut self) {
        self.tell_addresses(ADDRESS);
    }

    pub fn tell_addresses(&mut self, address: [u8; 4]) {
        let none = MachineAddress { ip: [0; 16], interface: 0, mtu: 0, reach: 0, loopback: 0 };
        let ip = std::net::Ipv4Addr::from(address).to_ipv6_mapped().octets();
        let mut told = TellAddresses { count: 1, reserved: 0, entries: [none; GIDS_MAX] };
        told.entries[0] = MachineAddress { ip, interface: 2, mtu: 1500, ..none };
        assert!(matches!(self.ask(told).0, vm::Message::Done(_)));
    }

    /// Attaches a window to another daemon, with the ledger of the earlier one.
    pub fn attach_again(daemon: &Daemon, window: &OwnedFd, ledger: &OwnedFd) -> Machine {
        let (answer, mut files) = attach_with(daemon, "one", &[window, ledger], DATA);
        assert!(matches!(answer, Said::MachineAttached(_)), "{answer:?}");
        Machine {
            machine_socket: files.remove(0),
            window: window.try_clone().unwrap(),
            tag: 0,
            last: 0,
        }
    }

    /// The next unasked message at the machine socket; `None`: it is closed.
    pub fn hear(&self) -> Option<vm::Message> {
        assert!(readable(self.machine_socket.as_fd(), Some(SOON)).unwrap(), "nothing");
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        match seqpacket::receive(
            self.machine_socket.as_fd(),
            &mut bytes,
            seqpacket::BlockingMode::NonBlocking,
        ) {
            Ok((0, _)) | Err(_) => None,
            Ok((length, _)) => Some(vm::decode(&bytes[..length]).unwrap().1),
        }
    }

    /// Has its UDP port 4791: the other end is the engine's.
    pub fn open_port(&mut self) -> OwnedFd {
        let (answer, mut files) = self.ask(OpenPort { reserved: 0 });
        assert!(matches!(answer, vm::Message::PortOpened(_)), "{answer:?}");
        files.remove(0)
    }

    pub fn is_parted_with(&self) -> bool {
        self.hear().is_none()
    }

    /// An operator did so.
    pub fn is_detached(&self) -> bool {
        matches!(self.hear(), Some(vm::Message::Parted(_))) && self.hear().is_none()
    }
}

/// What operators see of a machine.
pub fn seen(daemon: &Daemon, text: &str) -> Option<Value> {
    let found = Operator::connect(daemon).vnics();
    let all = found["vnics"].as_array().unwrap();
    let one = all.iter().find(|vnic| vnic["name"] == format!("vm-{text}"))?;
    one["machine"].is_object().then(|| one["machine"].clone())
}

/// Until it is so; the daemon may not have heard yet.
pub fn until(what: impl Fn() -> bool) {
    let end = std::time::Instant::now() + SOON;
    while !what() {
        assert!(std::time::Instant::now() < end, "not in time");
        thread::sleep(Duration::from_millis(5));
    }
}
