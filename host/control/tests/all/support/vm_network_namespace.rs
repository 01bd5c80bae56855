//! Plays the network of a virtual machine by a network namespace.
#![allow(dead_code)] // each test file uses a part

use super::fake_vm_proxy::Machine;
use super::namespaces::Net;
use omniverb_sys::proxied_udp::{MESSAGE_MAX, ProxiedHeader};
use omniverb_sys::seqpacket;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

/// A machine's UDP port 4791, at both of its ends.
pub struct Carried {
    port: OwnedFd,
    udp: UdpSocket,
    address: Ipv4Addr,
}

impl Carried {
    /// That of this machine, which has an address of this namespace.
    pub fn new(machine: &mut Machine, net: &Net, address: &str) -> Carried {
        let address: Ipv4Addr = address.parse().unwrap();
        machine.tell_addresses(address.octets());
        let port = machine.open_port();
        let path = format!("/proc/{}/ns/net", net.pid());
        let bind = move || {
            let namespace = std::fs::File::open(path).unwrap();
            let kind = rustix::thread::LinkNameSpaceType::Network;
            rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind)).unwrap();
            UdpSocket::bind((address, 4791)).unwrap()
        };
        let udp = std::thread::spawn(bind).join().unwrap();
        udp.set_nonblocking(true).unwrap();
        Carried { port, udp, address }
    }

    /// What has come by either end goes on by the other.
    pub fn carry(&self) {
        let mut bytes = [0; MESSAGE_MAX];
        let mode = seqpacket::BlockingMode::NonBlocking;
        while let Ok((length, _)) = seqpacket::receive(self.port.as_fd(), &mut bytes, mode) {
            if let Some((head, payload)) = ProxiedHeader::read(&bytes[..length]) {
                let _ = self.udp.send_to(payload, (head.remote, head.port));
            }
        }
        while let Ok((length, from)) = self.udp.recv_from(&mut bytes) {
            let (remote, port) = (from.ip(), from.port());
            let local = Some(self.address.into());
            let head = ProxiedHeader { local, remote, interface: 0, port, ecn: 0 };
            let message = [&head.written()[..], &bytes[..length]].concat();
            let _ = seqpacket::send(self.port.as_fd(), &message, &[]);
        }
    }
}
