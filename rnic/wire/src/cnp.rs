//! Congestion notification packet (A17.9.3): a BTH with BECN and sixteen reserved bytes.

use crate::{Bth, SUFFIX_BYTES};
use zerocopy::IntoBytes;

/// Zero bytes behind the BTH.
pub(crate) const RESERVED_BYTES: usize = 16;
const OPCODE: u8 = 0x81;

/// Writes a notification for the QP that is to slow down; returns its length with room for the
/// ICRC. `None`: no room.
pub fn write_notification(datagram: &mut [u8], destination: u32) -> Option<usize> {
    let length = Bth::BYTES + RESERVED_BYTES + SUFFIX_BYTES;
    let datagram = datagram.get_mut(..length)?;
    datagram.fill(0);
    let header = Bth::new(OPCODE, destination, 0).migrated(false).backward_congestion();
    header.write_to_prefix(datagram).ok()?;
    Some(length)
}
