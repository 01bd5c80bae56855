//! The message bodies of connection management: what a process asks of the manager in the daemon,
//! and what it is told without asking.
//!
//! They are what a kernel's `rdma_cm` is asked (annex A11 of the InfiniBand specification), so a
//! call of librdmacm's is one message here, or none: what needs no manager (addresses of the own
//! namespace, event channels, states of queue pairs) is the library's.
//!
//! An *id* is a connection, or somebody who waits for some. The daemon counts them, for each
//! session; no number is given twice. Calls with one that is not there fail with `ENOENT`, those
//! that make no sense in its state with `EINVAL`, and what is over a quota with `ENOMEM`.

use crate::message_macros::bodies;
use omniverb_terms::{Errno, Gid, Qkey, Qpn};
use std::net::{IpAddr, SocketAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `CmAddress::family`: IPv4, `AF_INET`.
pub const FAMILY_IPV4: u16 = 2;
/// `CmAddress::family`: IPv6, `AF_INET6`.
pub const FAMILY_IPV6: u16 = 10;

/// `BindCmId::flags`: others who say so as well may bind the port, `RDMA_OPTION_ID_REUSEADDR`.
pub const CM_REUSE: u32 = 1;
/// `BindCmId::flags`: an IPv6 wildcard means IPv6 alone, `RDMA_OPTION_ID_AFONLY`.
pub const CM_FAMILY_ONLY: u32 = 2;

/// `CmIdQueried::known`: what a queue pair needs to go to INIT.
pub const CM_KNOWN_INIT: u32 = 1;
/// `CmIdQueried::known`: to RTR.
pub const CM_KNOWN_RTR: u32 = 2;
/// `CmIdQueried::known`: to RTS.
pub const CM_KNOWN_RTS: u32 = 4;

/// Q_Key of datagram queue pairs that nobody chose another for, `RDMA_UDP_QKEY`.
pub const CM_QUEUE_KEY: Qkey = Qkey(0x0123_4567);

/// Private data in a message: as much as the largest kind takes.
pub const CM_PRIVATE_BYTES: usize = 224;

/// Most connections that may wait for a listener, whatever it says, as in kernels.
pub const CM_BACKLOG_MAX: u32 = 1024;

/// Numbers of `enum rdma_cm_event_type`, for `CmHappened::event`.
#[allow(missing_docs)]
pub mod event {
    pub const CONNECT_REQUEST: u32 = 4;
    pub const CONNECT_RESPONSE: u32 = 5;
    pub const CONNECT_ERROR: u32 = 6;
    pub const UNREACHABLE: u32 = 7;
    pub const REJECTED: u32 = 8;
    pub const ESTABLISHED: u32 = 9;
    pub const DISCONNECTED: u32 = 10;
    pub const TIMEWAIT_EXIT: u32 = 15;
}

bodies! {
    /// An address of IP and a port.
    CmAddress {
        /// `FAMILY_*`; zero: none.
        family: u16,
        /// In host order; zero: none, or any.
        port: u16,
        /// The interface of a link-local address, `sin6_scope_id`.
        interface: u32,
        /// The address, IPv4 mapped into IPv6.
        ip: Gid,
    }
    /// What one side says about the connection beside its addresses; `struct rdma_conn_param`.
    CmParameters {
        /// READs and atomics of the peer's that it serves at a time.
        responder_resources: u8,
        /// READs and atomics that it has under way at a time.
        initiator_depth: u8,
        /// Not zero: there is end-to-end flow control.
        flow_control: u8,
        /// More than 7 is 7.
        retry_count: u8,
        /// How often the peer may be not ready; more than 7 is 7, which is without end.
        rnr_retry: u8,
        /// Not zero: its receives are shared.
        srq: u8,
        /// Bytes of the private data that count.
        private_length: u8,
        /// Local ACK timeout, 5 bits; zero: the manager's choice.
        ack_timeout: u8,
        /// Type of service: the traffic class of packets.
        tos: u8,
        reserved: [u8; 3],
        /// Datagrams: the Q_Key; zero: [`CM_QUEUE_KEY`].
        qkey: Qkey,
        /// Vendor of the options, 24 bits, of `struct ibv_ece`; zero: none. In an answer it is the
        /// vendor of the request's.
        ece_vendor: u32,
        /// Options of "enhanced connection establishment" of this side's queue pair.
        ece_options: u32,
    }

    /// Make an id.
    CreateCmId {
        /// A number of `enum rdma_port_space`; `EINVAL` for others.
        space: u32,
        /// A `Service::qp_type` that goes with it; others are refused with `EOPNOTSUPP`.
        qp_type: u32,
    }
    /// Answer to `CreateCmId`.
    CmIdCreated { id: u32, reserved: u32 }
    /// Give an id an address and a port of its own; port 0: any. `EADDRNOTAVAIL`: not an address
    /// of this network namespace, or somebody has the port and one of the two has it at a wildcard
    /// or a loopback address; `EADDRINUSE`: somebody has the port at this very address.
    BindCmId { id: u32, flags: u32, address: CmAddress }
    /// Answer to `BindCmId` and `ListenCmId`.
    CmIdBound {
        id: u32,
        /// The interface of the address; zero for a wildcard.
        ifindex: u32,
        /// With the port that it has got.
        address: CmAddress,
        /// The address's entry of the GID table; zero for a wildcard.
        gid: Gid,
        /// The interface's MTU in bytes; zero for a wildcard.
        mtu: u32,
        reserved: u32,
    }
    /// Wait for connections; without an address at all of them, at any port.
    ListenCmId {
        id: u32,
        /// How many may wait; zero: [`CM_BACKLOG_MAX`], which is the most.
        backlog: u32,
    }
    /// Where to connect to. Without `local` (family 0) it is the address that the id has, or the
    /// vNIC's first of that family.
    ResolveCmId { id: u32, flags: u32, local: CmAddress, remote: CmAddress }
    /// Answer to `ResolveCmId`: the path, which nobody had to be asked for.
    CmIdResolved {
        id: u32,
        ifindex: u32,
        local: CmAddress,
        remote: CmAddress,
        sgid: Gid,
        dgid: Gid,
        /// Of the interface, in bytes.
        mtu: u32,
        /// `enum ibv_mtu` that goes with it.
        path_mtu: u32,
        flow_label: u32,
        partition_key: u16,
        hop_limit: u8,
        traffic_class: u8,
    }
    /// Connect where was resolved, with this queue pair. What becomes of it is an event.
    ConnectCmId { id: u32, qpn: Qpn, parameters: CmParameters, private: [u8; CM_PRIVATE_BYTES] }
    /// Take a connection that was asked for, with this queue pair, which is in RTS.
    AcceptCmId { id: u32, qpn: Qpn, parameters: CmParameters, private: [u8; CM_PRIVATE_BYTES] }
    /// Refuse a connection that was asked for, or has been answered.
    RejectCmId {
        id: u32,
        /// A reason of REJ (12.6.7); zero: 28, that the consumer has its own.
        reason: u16,
        /// Bytes of `private` that count.
        private_length: u16,
        private: [u8; CM_PRIVATE_BYTES],
    }
    /// The queue pair is ready: say so to the peer. On the other side: the queue pair has had
    /// something from the peer, whatever became of its word.
    EstablishCmId { id: u32, reserved: u32 }
    /// End the connection.
    DisconnectCmId { id: u32, reserved: u32 }
    /// Forget an id, and what there is of its connection. No event of it comes that is not on its
    /// way already.
    DestroyCmId {
        id: u32,
        /// Of a listener: how many requests the program was told of. Those after are refused.
        taken: u32,
    }
    /// Ask what a queue pair of this connection needs. Answered with `CmIdQueried`.
    QueryCmId { id: u32, reserved: u32 }
    /// What a queue pair needs to go to INIT, RTR and RTS, as far as `known` says.
    CmIdQueried {
        id: u32,
        /// `CM_KNOWN_*` bits.
        known: u32,
        /// INIT: `IBV_ACCESS_*` bits.
        access: u32,
        /// INIT, datagrams: the Q_Key.
        qkey: Qkey,
        /// RTR: an `enum ibv_mtu`.
        path_mtu: u32,
        /// RTR: the peer's queue pair.
        dest_qpn: Qpn,
        /// RTR: the first PSN that arrives.
        rq_psn: u32,
        /// RTR: the interface of the source address.
        ifindex: u32,
        /// RTR: the flow label of packets, 20 bits.
        flow_label: u32,
        /// RTS: the first PSN that leaves.
        sq_psn: u32,
        /// RTR: as everything in the path, for the address handle.
        sgid: Gid,
        dgid: Gid,
        traffic_class: u8,
        hop_limit: u8,
        /// RTR: READs and atomics of the peer's at a time.
        max_dest_rd_atomic: u8,
        /// RTR: how long a peer waits that found no receive, as a code of 5 bits.
        min_rnr_timer: u8,
        /// RTS: the local ACK timeout, as a code of 5 bits.
        timeout: u8,
        retry_count: u8,
        rnr_retry: u8,
        /// RTS: READs and atomics under way.
        max_rd_atomic: u8,
    }

    /// Event: something happened to a connection.
    CmHappened {
        /// An [`event`].
        event: u32,
        /// Of `REJECTED` the peer's reason; of others zero or a negative errno, or what a SIDR_REP
        /// says.
        status: i32,
        id: u32,
        /// Of `CONNECT_REQUEST`: whose; `id` is new. Otherwise zero.
        listener: u32,
        /// Of `CONNECT_REQUEST`: counts the listener's, from 1.
        number: u32,
        /// The peer's queue pair.
        qpn: Qpn,
        /// As the program is to see them: what the peer serves is what it may have under way.
        parameters: CmParameters,
        local: CmAddress,
        remote: CmAddress,
        sgid: Gid,
        dgid: Gid,
        ifindex: u32,
        path_mtu: u32,
        flow_label: u32,
        traffic_class: u8,
        hop_limit: u8,
        reserved: [u8; 2],
        /// `parameters.private_length` bytes count, which depends on the message that brought it
        /// alone.
        private: [u8; CM_PRIVATE_BYTES],
    }
}

impl CmAddress {
    /// No address: what is said where there is none.
    pub const NONE: CmAddress = CmAddress { family: 0, port: 0, interface: 0, ip: Gid::ZERO };

    /// An address. The interface is only told of link-local ones.
    #[must_use]
    pub fn new(address: SocketAddr, interface: u32) -> CmAddress {
        let (ip, port) = (Gid::from(address.ip()), address.port());
        let family = if address.is_ipv4() { FAMILY_IPV4 } else { FAMILY_IPV6 };
        CmAddress { family, port, interface: if ip.is_link_local() { interface } else { 0 }, ip }
    }

    /// The address; `None`: it says that there is none.
    ///
    /// # Errors
    /// `EAFNOSUPPORT` for another family; `EINVAL` if it is none of its own family.
    pub fn socket_address(&self) -> Result<Option<SocketAddr>, Errno> {
        let ip = match self.family {
            0 => return Ok(None),
            FAMILY_IPV4 => Some(self.ip.address()).filter(IpAddr::is_ipv4),
            FAMILY_IPV6 => Some(IpAddr::from(self.ip.bytes())),
            _ => return Err(Errno::EAFNOSUPPORT),
        };
        Ok(Some(SocketAddr::new(ip.ok_or(Errno::EINVAL)?, self.port)))
    }
}

impl CmHappened {
    /// An event of an id, and nothing about it.
    #[must_use]
    pub const fn new(event: u32, id: u32) -> CmHappened {
        CmHappened {
            event,
            status: 0,
            id,
            listener: 0,
            number: 0,
            qpn: Qpn(0),
            parameters: CmParameters::NONE,
            local: CmAddress::NONE,
            remote: CmAddress::NONE,
            sgid: Gid::ZERO,
            dgid: Gid::ZERO,
            ifindex: 0,
            path_mtu: 0,
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 0,
            reserved: [0; 2],
            private: [0; CM_PRIVATE_BYTES],
        }
    }
}

impl CmParameters {
    /// All zero: nothing is asked for.
    pub const NONE: CmParameters = CmParameters {
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 0,
        retry_count: 0,
        rnr_retry: 0,
        srq: 0,
        private_length: 0,
        ack_timeout: 0,
        tos: 0,
        reserved: [0; 3],
        qkey: Qkey(0),
        ece_vendor: 0,
        ece_options: 0,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_the_message() {
        for text in ["10.0.0.1:7", "0.0.0.0:0", "[2001:db8::1]:9", "[::]:1", "[::ffff:10.0.0.1]:4"]
        {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(CmAddress::new(address, 3).socket_address(), Ok(Some(address)), "{text}");
        }
        assert_eq!(CmAddress::NONE.socket_address(), Ok(None));
        let six = CmAddress::new("[2001:db8::1]:9".parse().unwrap(), 0);
        let wrong = CmAddress { family: FAMILY_IPV4, ..six };
        assert_eq!(wrong.socket_address(), Err(Errno::EINVAL));
        let other = CmAddress { family: 27, ..six };
        assert_eq!(other.socket_address(), Err(Errno::EAFNOSUPPORT));
    }
}
