//! Messages about links that a process carries: it does the work of the daemon's engine for a
//! connection to another host (decision 0096).
//!
//! A link is offered with [`ConnectQp::carries`](crate::body::ConnectQp), and is carried if
//! [`LinkReady::carried`](crate::body::LinkReady) says so. Each message counts for links of its
//! session only.

use crate::limits::CARRIED_STATE_BYTES;
use crate::message_macros::bodies;
use omniverb_terms::Qpn;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

bodies! {
    /// Packets of the peer for this carried link are to come to this UDP port of the process, at
    /// the address that the link's `sgid` has. Answered with `Done`. `EINVAL` for a port below
    /// 1024, 4791, or beyond 65535; `ENOENT` if the session carries no such link.
    CarriedPort { qpn: Qpn, peer_qpn: Qpn, port: u32, reserved: u32 }
    /// Event: packets for the peer of this carried link are to go to this UDP port: that of the
    /// peer's process, or 4791, its engine. Comes again when the peer changes sides.
    PeerPort { qpn: Qpn, peer_qpn: Qpn, port: u32, reserved: u32 }
    /// The engine is to serve this link from now on, which the process has carried. Answered with
    /// `Done`. `ENOENT` if the session carries no such link; `EINVAL` if the state is none.
    AttachLink {
        qpn: Qpn,
        peer_qpn: Qpn,
        /// Bytes of `state`; zero: no packet of this link has been sent or taken.
        length: u32,
        reserved: u32,
        /// The state of the connection at rest.
        state: [u8; CARRIED_STATE_BYTES],
    }
    /// Event: a limit, a fault, a capture or a key was set for the vNIC, and the engine is to serve
    /// this link. The process comes to rest and answers with `AttachLink` within
    /// [`GIVE_LINK_TIME_NS`]; a link that is not given then fails as if its process had died.
    GiveLink { qpn: Qpn, peer_qpn: Qpn }
}

/// The port of a daemon's engine in `PeerPort`: that of RoCE v2.
pub const ENGINE_PORT: u16 = 4791;

/// Time for the answer to [`GiveLink`], in nanoseconds.
pub const GIVE_LINK_TIME_NS: u64 = 200_000_000;

impl CarriedPort {
    /// The port, if a process can have it.
    #[must_use]
    pub fn process_port(&self) -> Option<u16> {
        let port = u16::try_from(self.port).ok();
        port.filter(|port| *port >= 1024 && *port != ENGINE_PORT)
    }
}

impl AttachLink {
    /// No packet of this link has been sent or taken.
    #[must_use]
    pub fn fresh(qpn: Qpn, peer_qpn: Qpn) -> AttachLink {
        let state = [0; CARRIED_STATE_BYTES];
        AttachLink { qpn, peer_qpn, length: 0, reserved: 0, state }
    }

    /// Gives a link with the state of its connection at rest. `None`: that is too long.
    #[must_use]
    pub fn with_state(qpn: Qpn, peer_qpn: Qpn, state: &[u8]) -> Option<AttachLink> {
        let mut message = AttachLink::fresh(qpn, peer_qpn);
        message.state.get_mut(..state.len())?.copy_from_slice(state);
        message.length = u32::try_from(state.len()).ok()?;
        Some(message)
    }

    /// The state, empty if there is none yet. `None`: the length says more than there is.
    #[must_use]
    pub fn state(&self) -> Option<&[u8]> {
        self.state.get(..usize::try_from(self.length).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MESSAGE_BYTES_MAX;
    use crate::{Message, decode, encode};

    #[test]
    fn a_state_travels_whole_or_not_at_all() {
        let (qpn, peer) = (Qpn(2), Qpn(3));
        assert_eq!(AttachLink::fresh(qpn, peer).state(), Some(&[][..]));
        let longest = [7; CARRIED_STATE_BYTES];
        let given = AttachLink::with_state(qpn, peer, &longest).unwrap();
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(5, &given.into(), &mut bytes);
        let Ok((5, Message::AttachLink(arrived))) = decode(&bytes[..length]) else { panic!() };
        assert_eq!(arrived.state(), Some(&longest[..]));
        assert_eq!(AttachLink::with_state(qpn, peer, &[0; CARRIED_STATE_BYTES + 1]), None);
        let lie = AttachLink { length: u32::MAX, ..given };
        assert_eq!(lie.state(), None);
    }

    #[test]
    fn a_process_has_ordinary_ports_only() {
        let port =
            |port| CarriedPort { qpn: Qpn(2), peer_qpn: Qpn(3), port, reserved: 0 }.process_port();
        for none in [0, 1, 1023, u32::from(ENGINE_PORT), 1 << 16, u32::MAX] {
            assert_eq!(port(none), None, "{none}");
        }
        assert_eq!([1024, 50_001, 65_535].map(port), [1024, 50_001, 65_535].map(Some));
    }
}
