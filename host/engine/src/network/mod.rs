//! What stands between queue pairs and the network: sockets, trains of packets, packets that
//! nobody takes yet, and a bad line for those who want one.

pub(crate) mod faults;
pub mod handshake;
pub(crate) mod numbering;
pub(crate) mod passages;
pub(crate) mod port;
pub(crate) mod questions;
pub(crate) mod train;
pub(crate) mod unclaimed;
