//! PSP version 0: AES-128-GCM around a tenant's packets between hosts (PSP architecture
//! specification; DESIGN, section 9).
//!
//! * A [`Receiver`] gives out numbers (SPIs) and their keys, and opens packets sealed with them.
//! * A [`Sender`] has one SPI and its key from the receiver; each of its threads seals by a
//!   [`Sealer`].
//! * A [`Tunnel`](tunnel::Tunnel) does both for one vNIC, or for a tenant's virtual network on one
//!   host.
//! * [`key_handshake`] takes them from one to the other, sealed under the tenant's key.
//!
//! The receiver makes the keys, so each direction has its own handshake.
#![forbid(unsafe_code)]

mod header;
pub mod key_handshake;
mod packet_keys;
mod receiver;
mod replay_window;
mod sender;
mod spi_block;
pub mod tunnel;

pub use header::{HEADER_BYTES, Header, Malformed};
pub use omniverb_vgid::TenantKey;
pub use packet_keys::{MasterKey, PacketKey, Spi};
pub use receiver::{DropReason, NumberLimits, OpenedPacket, Receiver};
pub use sender::{Exhausted, Sealer, Sender, sealed_bytes};
pub use spi_block::SpiBlock;

/// The UDP port of PSP.
pub const PORT: u16 = 1000;
/// Bytes of the integrity check value at the end of a packet.
pub const ICV_BYTES: usize = 16;
/// The next header of a packet that holds UDP.
pub const NEXT_UDP: u8 = 17;
