//! What the rows of the tables are known by.

use omniverb_terms::{Gid, Qpn};

/// A client connection. Numbers are never reused while the daemon lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// A peer beyond the engine: its number and its GID.
pub(crate) type RemotePeer = (Qpn, Gid);

/// The two queue pairs of a link, the smaller number first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LinkKey(pub(crate) Qpn, pub(crate) Qpn);

impl LinkKey {
    pub(crate) fn new(one: Qpn, other: Qpn) -> LinkKey {
        LinkKey(one.min(other), one.max(other))
    }
}

/// Names a probe under way. It travels in the probe's datagram and is drawn at random, so only
/// who has seen that datagram knows it.
pub type ProbeId = u128;

/// The host that an address is of, as far as it tells: a host has as many addresses as it likes in
/// its IPv6 network. What senders share is shared by hosts.
pub(crate) fn host_of(address: Gid) -> Gid {
    if address.ipv4().is_some() || address.is_link_local() {
        return address;
    }
    let mut bytes = address.bytes();
    bytes[8..].fill(0);
    Gid::new(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_one_sender_whatever_addresses_it_takes() {
        let gid = |text: &str| host_of(Gid::from(text.parse::<std::net::IpAddr>().unwrap()));
        assert_eq!(gid("2001:db8::1"), gid("2001:db8::2:3:4:5"));
        for (one, other) in
            [("2001:db8::1", "2001:db8:0:1::1"), ("fe80::1", "fe80::2"), ("10.0.0.1", "10.0.0.2")]
        {
            assert_ne!(gid(one), gid(other));
        }
    }
}
