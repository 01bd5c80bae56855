//! Sends packets of vNICs: to vNICs of this host, to groups, and to other hosts.

use super::host_sockets::HostSockets;
use super::multicast_copies::GroupCopies;
use super::tenant_tunnels::{Outgoing, TenantTunnels};
use super::vnic_lookup_tables::{Seat, Seats};
use crate::network::multicast_copy_codec;
use omniverb_psp::tunnel::Addresses;
use omniverb_sys::clock;
use omniverb_sys::proxied_udp::ProxiedHeader;
use omniverb_terms::Qpn;
use omniverb_wire::PORT;
use std::net::IpAddr;

/// Bytes of a packet up to the end of its destination QPN.
const DESTINATION_END: usize = 8;

/// Gives a packet to a vNIC of this host, if that is of the sender's virtual network.
pub(super) fn pass_on(seats: &Seats, sender: &Seat, head: &ProxiedHeader, contents: &[u8]) {
    let to = destination(contents).and_then(|qpn| seats.with_qpn(head.remote, qpn));
    let Some(to) = to.filter(|to| to.network == sender.network) else { return };
    let (local, remote) = (Some(head.remote), sender.underlay);
    to.put(&ProxiedHeader { local, remote, interface: 0, port: PORT, ecn: head.ecn }, contents);
}

/// Gives a packet to the members of a group in the sender's virtual network: to those of this host
/// at once, and to other hosts that have vNICs of it.
pub(super) fn send_to_group(
    (hosts, tunnels, seats): (&HostSockets, &mut TenantTunnels, &Seats),
    (copies, turn): (&mut GroupCopies, u64),
    sender: &Seat,
    head: &ProxiedHeader,
    contents: &[u8],
) {
    let Some(source) = multicast_copy_codec::source(contents) else { return };
    let (group, ecn) = (head.remote, head.ecn);
    let ends = Addresses { local: sender.underlay, remote: sender.underlay };
    copies.deliver(seats, sender.network, (ends, ecn), (group, source, contents), turn);
    let now = clock::now();
    if !sender.has_far_peers || !copies.may_leave(sender.network, now) {
        return;
    }
    let others = sender.places.hosts().filter(|host| !is_here(seats, hosts, *host));
    let copy = multicast_copy_codec::write(group, contents);
    let is_encrypted = tunnels.has(sender.network);
    let mut count = 0;
    for remote in others {
        count += 1;
        let addresses = Addresses { local: sender.underlay, remote };
        match is_encrypted {
            true => tunnels.send(sender.network, addresses, (&copy, Outgoing::Copy), now),
            false => hosts.send(sender.underlay, (remote, ecn), &copy),
        }
    }
    copies.left(sender.network, count);
}

/// Whether an address is this host's, as far as vNICs have it.
pub(super) fn is_here(seats: &Seats, hosts: &HostSockets, address: IpAddr) -> bool {
    seats.has_address(address) || hosts.has_address(address)
}

/// Sends a packet to another host, encrypted if its virtual network is.
pub(super) fn send_out(
    (hosts, tunnels): (&HostSockets, &mut TenantTunnels),
    sender: &Seat,
    (remote, ecn): (IpAddr, u8),
    contents: &[u8],
) {
    if !sender.has_far_peers {
        return;
    }
    if tunnels.has(sender.network) {
        let addresses = Addresses { local: sender.underlay, remote };
        let packet = (contents, Outgoing::Packet);
        return tunnels.send(sender.network, addresses, packet, clock::now());
    }
    hosts.send(sender.underlay, (remote, ecn), contents);
}

/// The QPN that a packet is for.
pub(super) fn destination(datagram: &[u8]) -> Option<Qpn> {
    match datagram.first_chunk::<DESTINATION_END>()? {
        [.., high, middle, low] => Some(Qpn(u32::from_be_bytes([0, *high, *middle, *low]))),
    }
}
