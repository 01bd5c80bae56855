//! Makes the datagrams that leave a tunnel, and tells those that arrive from each other.

use super::peer::CurrentKey;
use crate::header::Header;
use crate::key_handshake::HandshakeAddresses;
use crate::key_handshake::REQUEST_BYTES;
use crate::packet_keys::Spi;
use std::net::IpAddr;

/// Bytes of a UDP header.
pub(super) const UDP_BYTES: usize = 8;
/// The UDP port that packets inside are for: RoCE v2.
pub(super) const ROCE_PORT: u16 = 4791;
/// The two ends of a tunnel's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addresses {
    /// That of the vNIC.
    pub local: IpAddr,
    /// That of the other host.
    pub remote: IpAddr,
}

impl Addresses {
    /// The addresses of a handshake that this side begins.
    pub(super) fn as_sender(self) -> HandshakeAddresses {
        HandshakeAddresses { sender: self.local, receiver: self.remote }
    }

    /// The addresses of a handshake that the other side begins.
    pub(super) fn as_receiver(self) -> HandshakeAddresses {
        HandshakeAddresses { sender: self.remote, receiver: self.local }
    }
}

/// What a word begins with that a number is unknown; the number follows.
pub(super) const UNKNOWN_SPI: [u8; 8] = *b"OVPSP\0\x01\x03";
/// What messages of the handshake begin with. No packet of PSP does: its second byte is 1 or 2.
const MESSAGES: [u8; 5] = *b"OVPSP";

/// Datagrams to send from the PSP port to that of another address.
#[derive(Debug)]
pub struct OutgoingDatagrams {
    /// From where to where.
    pub addresses: Addresses,
    /// The interface, if the address is link-local; otherwise 0.
    pub interface: u32,
    /// The datagrams, one behind the other.
    pub bytes: Vec<u8>,
    /// The length of all but the last, which may be shorter.
    pub segment: usize,
}

/// Whether a datagram from the PSP port is a message, and no packet.
#[must_use]
pub fn is_message(datagram: &[u8]) -> bool {
    datagram.starts_with(&MESSAGES)
}

/// Whether a message may be a request for a key: deciphering it costs something.
#[must_use]
pub fn is_request(message: &[u8]) -> bool {
    message.len() == REQUEST_BYTES
}

/// Says to the sender of a packet that its number is unknown.
#[must_use]
pub fn unknown_number(spi: Spi, addresses: Addresses, interface: u32) -> OutgoingDatagrams {
    let bytes = [&UNKNOWN_SPI[..], &spi.number().to_be_bytes()].concat();
    message(addresses, interface, bytes)
}

/// The number of a packet that came to the PSP port.
#[must_use]
pub fn number_of(packet: &[u8]) -> Option<Spi> {
    Header::decode(packet).ok().map(|header| header.spi)
}

pub(super) fn message(addresses: Addresses, interface: u32, bytes: Vec<u8>) -> OutgoingDatagrams {
    let segment = bytes.len();
    OutgoingDatagrams { addresses, interface, bytes, segment }
}

/// Seals each packet of a train. False: the key is used up, and `sealed` is as it was.
pub(super) fn seal_train(
    key: &mut CurrentKey,
    source_port: u16,
    train: &[u8],
    segment: usize,
    sealed: &mut Vec<u8>,
) -> bool {
    let start = sealed.len();
    for packet in train.chunks(segment.max(1)) {
        let Ok(length) = u16::try_from(UDP_BYTES + packet.len()) else { continue };
        let mut header = [0; UDP_BYTES];
        header[..2].copy_from_slice(&source_port.to_be_bytes());
        header[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
        header[4..6].copy_from_slice(&length.to_be_bytes());
        if key.sealer.seal_parts(0, (&header, packet), sealed).is_err() {
            sealed.truncate(start);
            return false;
        }
    }
    true
}
