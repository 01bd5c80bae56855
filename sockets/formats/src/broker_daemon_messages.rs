//! Encodes messages between the broker and the daemon about pairs of network namespaces.
//!
//! The broker knows which sockets say that they are the ends of a connection between two network
//! namespaces. The daemon knows which vNIC has which address, and which vNICs may talk. So it is
//! asked once for each pair of addresses, and says later when that holds no longer.

use core::net::IpAddr;

pub use crate::message_codec::BYTES;
use crate::message_codec::{fields, messages, numbers, on_sockets};

/// An address in a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceAddress {
    /// The namespace's cookie.
    pub namespace: u64,
    /// The address there.
    pub address: IpAddr,
}

messages! {
    /// What the broker says.
    ToDaemon, version 0 {
        /// May bytes go through memory between these two? With a descriptor of a process in each,
        /// by which the namespace is found, and its user.
        1 => Ask {
            /// Names the question, and what follows; never given again.
            number: u64,
            /// Where the two sockets are.
            places: [NamespaceAddress; 2],
            /// The users of those processes.
            users: [u32; 2],
        },
        /// The daemon need not keep this pair any more.
        2 => Release {
            /// As it was asked.
            number: u64,
        },
        /// Whether processes are connected, since that was asked.
        3 => Idle {
            /// For how many nanoseconds none is; `None`: one is.
            time: Option<u64>,
        },
    }
}

messages! {
    /// What the daemon says.
    FromDaemon, version 0 {
        /// They may, until it is said that they may not.
        17 => Allowed {
            /// As it was asked.
            number: u64,
        },
        /// They may not, or not any more.
        18 => Denied {
            /// As it was asked.
            number: u64,
            /// What stands in the way.
            why: Denial,
        },
        /// The socket that comes along is an operator's, which is shown everything.
        19 => Operator,
        /// Is any process connected?
        20 => AskIdle,
    }
}

/// Why bytes must not go through memory between two network namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Denial {
    /// One of them is not served: it cannot be entered, or is no more.
    NotServed = 1,
    /// An address is not one of its vNIC's, as far as is known.
    NotItsAddress = 2,
    /// Packets to an address arrive elsewhere, or nowhere.
    NotThere = 3,
    /// Too much is asked.
    Busy = 4,
    /// An administrator's policy.
    Policy = 5,
}

fields!(NamespaceAddress { namespace, address });
numbers!(Denial { NotServed, NotItsAddress, NotThere, Busy, Policy });
on_sockets!(ToDaemon, FromDaemon);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_what_they_were() {
        let place = |namespace, address: &str| NamespaceAddress {
            namespace,
            address: address.parse().unwrap(),
        };
        let places = [place(u64::MAX, "10.0.0.1"), place(7, "2001:db8::1")];
        for said in [
            ToDaemon::Ask { number: 5, places, users: [0, u32::MAX] },
            ToDaemon::Release { number: 6 },
            ToDaemon::Idle { time: None },
            ToDaemon::Idle { time: Some(u64::MAX) },
        ] {
            assert_eq!(ToDaemon::decode(&said.encode()), Some(said));
            assert_eq!(ToDaemon::decode(&said.encode()[1..]), None);
            assert_eq!(FromDaemon::decode(&said.encode()), None);
        }
        use Denial::{Busy, NotItsAddress, NotServed, NotThere, Policy};
        let all = [NotServed, NotItsAddress, NotThere, Busy, Policy];
        let apart = all.map(|why| FromDaemon::Denied { number: 3, why });
        for said in [FromDaemon::Allowed { number: 1 }, FromDaemon::Operator, FromDaemon::AskIdle]
            .into_iter()
            .chain(apart)
        {
            assert_eq!(FromDaemon::decode(&said.encode()), Some(said));
        }
        let mut bytes = [0; BYTES];
        crate::message_codec::to_bytes(&[18, 1, 99], &mut bytes);
        assert_eq!(FromDaemon::decode(&bytes), None);
    }
}
