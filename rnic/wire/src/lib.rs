//! RoCEv2 packets: one file per header, the opcode table, the invariant CRC.
//!
//! In: bytes of UDP datagrams, checked once by [`Packet::parse`]. Out: bytes of UDP datagrams,
//! written by [`Builder`] and made valid by [`IcrcFlow::seal`]. Clause numbers are those of the
//! InfiniBand architecture specification, volume 1; annex A17 is RoCEv2.

mod aeth;
mod atomic_eth;
mod bth;
mod builder;
mod cnp;
mod crc;
mod deth;
mod display;
mod feth;
mod flow_icrc;
mod grh;
mod icrc;
mod immediate;
mod invalidate;
mod ip_identification;
mod opcode;
pub mod pcap;
mod port_notice;
mod prepared_icrc;
mod received_packet;
mod reth;
mod syndrome;
#[cfg(any(test, feature = "fuzz"))]
pub mod testing;
mod write_packet_run;
mod xrceth;

pub use aeth::Aeth;
pub use atomic_eth::{AtomicAckEth, AtomicEth};
pub use bth::Bth;
pub use builder::Builder;
pub use cnp::{write_delay, write_notification, write_report};
pub use deth::Deth;
pub use feth::Feth;
pub use flow_icrc::{IcrcFlow, IcrcVerdict};
pub use grh::{GRH_BYTES, receive_area};
pub use icrc::{SUFFIX_BYTES, icrc};
pub use immediate::ImmDt;
pub use invalidate::Ieth;
pub use ip_identification::{Fragments, Identification, solve};
pub use opcode::{Class, Opcode, Operation, PacketPosition};
pub use port_notice::PortNotice;
pub use prepared_icrc::{BatchSize, PreparedIcrc};
pub use received_packet::{Malformed, Packet};
pub use reth::Reth;
pub use syndrome::{CREDITS_INVALID, Syndrome, credits, rnr_nanoseconds};
pub use write_packet_run::{PacketSlots, WritePattern, WriteRun};
pub use xrceth::XrcEth;

/// The UDP port of RoCEv2 (A17.3.1).
pub const PORT: u16 = 4791;
/// Bytes of the longest headers before the payload: BTH, XRCETH and AtomicETH.
pub const HEADERS_MAX: usize = 12 + 4 + 28;
/// Bytes of the longest UDP payload: headers, 4 KiB, ICRC.
pub const DATAGRAM_MAX: usize = HEADERS_MAX + 4096 + SUFFIX_BYTES;
/// The only partition key in use: the default one, full member.
pub const PKEY_DEFAULT: u16 = 0xffff;
