//! Describes a packet whose ICRC is right, and what came with it.

use crate::network::roce_port::Arrival;
use omniverb_transport::Ecn;
use omniverb_wire::Packet;
use std::net::IpAddr;

/// Borrowed from the buffer that it was received into, for as long as it is handed on.
pub(super) struct CheckedPacket<'a> {
    pub(super) packet: Packet<'a>,
    /// The packet's bytes.
    pub(super) datagram: &'a [u8],
    /// The address of its sender.
    pub(super) from: IpAddr,
    /// To which address of ours.
    pub(super) local: IpAddr,
    /// The interface that it came through, if the sender is link-local; otherwise 0.
    pub(super) interface: u32,
    /// How it was marked on the way.
    pub(super) ecn: Ecn,
    /// When it was taken.
    pub(super) now: u64,
}

impl<'a> CheckedPacket<'a> {
    pub(super) fn new(
        packet: Packet<'a>,
        datagram: &'a [u8],
        arrival: &Arrival,
        now: u64,
    ) -> CheckedPacket<'a> {
        CheckedPacket {
            packet,
            datagram,
            from: arrival.flow.source,
            local: arrival.flow.destination,
            interface: arrival.interface,
            ecn: arrival.ecn,
            now,
        }
    }
}
