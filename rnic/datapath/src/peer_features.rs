//! Names the features of an Omniverb: bits of its answer to a handshake. Zero is plain RoCE v2.

/// It is an Omniverb, which answers handshakes.
pub const OMNIVERB: u32 = 1;
/// It takes WRITEs every packet of which names what is left, and answers to READs every packet
/// of which has a syndrome.
pub const NAME_ALL: u32 = 2;
/// It understands delay notices ([`omniverb_wire::write_delay`]).
pub const DELAYS: u32 = 4;
/// It knows notices of ports ([`omniverb_wire::PortNotice`]) and sends to the ports that they name.
/// Only where its configuration has processes carry connections (decision 0096).
pub const CARRIED: u32 = omniverb_wire::PortNotice::FEATURE;
/// All that this one can in any case.
pub const ALL: u32 = OMNIVERB | NAME_ALL | DELAYS;
