//! Unreliable datagram (9.8.3, 9.9.5): one packet, one message.

use omniverb_terms::{Psn, Qkey, Qpn, Service};
use omniverb_wire::{Bth, Builder, Deth, ImmDt, Opcode, Operation, Packet, PacketPosition};

/// Where a datagram goes, and what goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The receiver's QP number.
    pub destination: Qpn,
    /// Q_Key that the receiver must have. The caller has replaced it by the QP's own if its highest
    /// bit is set (10.2.5).
    pub queue_key: Qkey,
    /// The sender's QP number.
    pub source: Qpn,
}

/// What a datagram carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Immediate data, in network order.
    pub immediate: Option<[u8; 4]>,
    /// The receiver's completion solicits an event.
    pub is_solicited: bool,
    /// The bytes, as many as fit into one packet.
    pub data: &'a [u8],
}

/// A datagram that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// The sender's QP number.
    pub source: Qpn,
    /// What it carried.
    pub message: Message<'a>,
}

/// Why a datagram is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatagramDrop {
    /// Not of this service.
    #[error("not a datagram")]
    Service,
    /// Of another partition (9.6.1.1.1).
    #[error("another partition")]
    Partition,
    /// Wrong Q_Key (9.6.1.2.3); to be counted.
    #[error("wrong Q_Key")]
    QueueKey,
}

/// Writes a datagram; returns its length with room for the ICRC. `None`: the buffer is too small.
pub fn write(
    datagram: &mut [u8],
    address: &Address,
    psn: Psn,
    message: &Message<'_>,
) -> Option<usize> {
    let Message { immediate, is_solicited, data } = *message;
    let (place, has_immediate) = (PacketPosition::Only, immediate.is_some());
    let operation = Operation::Send { place, immediate: has_immediate, invalidate: false };
    let opcode = Opcode::new(Service::Ud, operation);
    let bth = Bth::new(opcode.to_byte(), address.destination, psn).solicited(is_solicited);
    let mut builder = Builder::new(datagram, opcode, bth, data.len())?
        .header(Deth::new(address.queue_key, address.source))
        .maybe(immediate.map(ImmDt));
    builder.payload().copy_from_slice(data);
    Some(builder.finish())
}

/// Reads a datagram for a QP that has the given Q_Key.
pub fn read<'a>(packet: &Packet<'a>, queue_key: Qkey) -> Result<Datagram<'a>, DatagramDrop> {
    let deth = packet.deth().ok_or(DatagramDrop::Service)?;
    if !packet.bth().is_in_default_partition() {
        return Err(DatagramDrop::Partition);
    }
    if deth.queue_key() != queue_key {
        return Err(DatagramDrop::QueueKey);
    }
    let message = Message {
        immediate: packet.immediate().map(|immediate| immediate.0),
        is_solicited: packet.bth().is_solicited(),
        data: packet.payload(),
    };
    Ok(Datagram { source: deth.source(), message })
}

#[cfg(test)]
mod tests {
    use super::{Address, DatagramDrop, Message, read, write};
    use omniverb_terms::{Psn, Qkey, Qpn};
    use omniverb_wire::Packet;

    #[test]
    fn arrives_as_sent_and_only_with_the_right_key() {
        let address = Address { destination: Qpn(9), queue_key: Qkey(0x1234_5678), source: Qpn(7) };
        let mut buffer = [0; 256];
        for (length, immediate) in [(0, None), (1, Some([1, 2, 3, 4])), (100, None)] {
            let data = vec![0x5a; length];
            let message = Message { immediate, is_solicited: true, data: &data };
            let used = write(&mut buffer, &address, Psn::new(5), &message).unwrap();
            let packet = Packet::parse(&buffer[..used]).unwrap();
            let datagram = read(&packet, Qkey(0x1234_5678)).unwrap();
            assert_eq!((datagram.source, datagram.message), (Qpn(7), message));
            assert_eq!(read(&packet, Qkey(1)), Err(DatagramDrop::QueueKey));
        }
    }
}
