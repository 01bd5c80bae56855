//! Describes an id of the connection manager: a connection, or a listener.

use super::port_binding::Port;
use crate::accounts::{Account, Kind, Quotas, Receipt};
use crate::row_keys::SessionId;
use omniverb_cm::{Connection, PortSpace, Resolution};
use omniverb_session::cm::{CM_PRIVATE_BYTES, CmAddress, CmHappened};
use omniverb_terms::{Errno, Gid, Psn, Qkey, Qpn, Service, VnicId};
use std::net::SocketAddr;

/// Its session, and its number there.
pub(crate) type Key = (SessionId, u32);

/// Hop limit of packets, as kernels have it.
const HOP_LIMIT: u8 = 64;

/// The two ends of a connection, and what its packets have in their headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) sgid: Gid,
    pub(super) dgid: Gid,
    /// The interface of the GID's entry, and its MTU in bytes.
    pub(super) interface: u32,
    pub(super) mtu: u32,
    /// As `enum ibv_mtu` has it, from 1 (256 bytes) to 5 (4096).
    pub(super) path_mtu: u8,
    pub(super) flow_label: u32,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
}

impl Path {
    /// The path of a connection that is begun here: attributes not given yet are as kernels choose
    /// them.
    pub(super) fn new(
        (local, sgid): (SocketAddr, Gid),
        (remote, dgid): (SocketAddr, Gid),
        (interface, mtu): (u32, u32),
    ) -> Path {
        // As kernels choose: the two ports have packets of one connection take one way.
        let flow_label = u32::from(local.port()) * 31 + u32::from(remote.port());
        Path {
            local,
            remote,
            sgid,
            dgid,
            interface,
            mtu,
            path_mtu: path_mtu(mtu),
            flow_label: flow_label & 0xf_ffff,
            traffic_class: 0,
            hop_limit: HOP_LIMIT,
        }
    }
}

/// The largest `enum ibv_mtu` that packets of an interface with this MTU have room for, with all
/// headers that there may be.
fn path_mtu(mtu: u32) -> u8 {
    const HEADERS: u32 = 96;
    let payload = mtu.saturating_sub(HEADERS);
    (1..=5).rev().find(|code| 128 << u32::from(*code) <= payload).unwrap_or(1)
}

/// A listener's queue of connections.
#[derive(Debug)]
pub(super) struct Listening {
    /// The charge for its waiting connections, bounded by its backlog.
    account: Account,
    /// How many its user was told of.
    announced: u32,
}

/// A connection waits for a listener's user to accept or reject it.
#[derive(Debug)]
pub(super) struct PendingAccept {
    pub(super) listener: Key,
    /// The how manieth it is there, from 1.
    pub(super) number: u32,
    receipt: Receipt,
}

impl Listening {
    /// A listener with this account; so many connections may wait for it.
    pub(super) fn new(of: &Account, backlog: u32) -> Listening {
        let backlog = usize::try_from(backlog).unwrap_or(usize::MAX);
        Listening { account: of.below(Quotas::of_listener(backlog)), announced: 0 }
    }

    /// Room for one more that waits.
    ///
    /// # Errors
    /// `ENOMEM`: as many wait as may.
    pub(super) fn charge(&self) -> Result<Receipt, Errno> {
        self.account.charge(&[Kind::CmWaiting])
    }

    /// One more waits, and the user is told of it.
    fn announce(&mut self, listener: Key, receipt: Receipt) -> PendingAccept {
        self.announced += 1;
        PendingAccept { listener, number: self.announced, receipt }
    }

    /// No request to connect waits for its user's answer.
    pub(super) fn is_idle(&self) -> bool {
        self.account.count(Kind::CmWaiting) == 0
    }

    /// The account of waiting connections.
    pub(super) fn account(&self) -> &Account {
        &self.account
    }
}

impl PendingAccept {
    /// The charge for its place in the backlog.
    pub(super) fn receipt(&self) -> &Receipt {
        &self.receipt
    }
}

/// The exchange with the peer.
#[derive(Debug, Default)]
pub(super) enum Exchange {
    #[default]
    None,
    Connection(Box<Connection>),
    Resolution(Box<Resolution>),
}

/// The sender of a request: a repetition comes from there, with these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RequestSource {
    pub(super) at: VnicId,
    pub(super) gid: Gid,
    /// Of a REQ, the asker's device; of a SIDR_REQ `None`.
    pub(super) device: Option<u64>,
    pub(super) name: u32,
}

/// The queue pair of a requester: no two connections have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    pub(super) at: VnicId,
    pub(super) gid: Gid,
    pub(super) device: u64,
    pub(super) qpn: Qpn,
}

/// The keys that find a connection, besides its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LookupKeys {
    /// The name by which the peer answers.
    pub(super) name: Option<u32>,
    /// The requester, if it is another process.
    pub(super) asker: Option<RequestSource>,
    /// The queue pair at its other end, if that is known.
    pub(super) peer: Option<Peer>,
}

/// An id. Its lookup keys, and charges or rows for it elsewhere, change in the table
/// (`id_table.rs`) alone.
#[derive(Debug)]
pub(crate) struct Id {
    receipt: Receipt,
    vnic: VnicId,
    space: PortSpace,
    service: Service,
    psn: Psn,
    bound: Option<(SocketAddr, Port)>,
    listening: Option<Listening>,
    found_by: LookupKeys,
    waits: Option<PendingAccept>,
    pub(super) path: Option<Path>,
    pub(super) exchange: Exchange,
    /// Datagrams: the queue pair that serves it, and its Q_Key.
    pub(super) served: (Qpn, Qkey),
}

impl Id {
    /// One that has nothing yet.
    pub(super) fn new(
        receipt: Receipt,
        vnic: VnicId,
        (space, service): (PortSpace, Service),
        psn: Psn,
    ) -> Id {
        Id {
            receipt,
            vnic,
            space,
            service,
            psn,
            bound: None,
            listening: None,
            found_by: LookupKeys::default(),
            waits: None,
            path: None,
            exchange: Exchange::None,
            served: (Qpn(0), Qkey(0)),
        }
    }

    /// The id of a connection request that arrived, and its exchange with the requester.
    pub(super) fn asked(self, path: Path, exchange: Exchange, found_by: LookupKeys) -> Id {
        Id { path: Some(path), exchange, found_by, ..self }
    }

    /// The charge for this id.
    pub(crate) fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// The vNIC that it is in.
    pub(super) fn vnic(&self) -> VnicId {
        self.vnic
    }

    /// The port space, and the kind of queue pair that it is for.
    pub(super) fn kind(&self) -> (PortSpace, Service) {
        (self.space, self.service)
    }

    /// The kind of queue pair that it is for.
    pub(super) fn service(&self) -> Service {
        self.service
    }

    /// The first PSN that its peer's queue pair is to send.
    pub(super) fn psn(&self) -> Psn {
        self.psn
    }

    /// Its own address; a requested connection has its listener's.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.bound.map(|(address, _)| address)
    }

    /// The port that it has.
    pub(super) fn port(&self) -> Option<Port> {
        self.bound.map(|(_, port)| port)
    }

    /// It has an address and a port of its own.
    pub(super) fn bind(&mut self, address: SocketAddr, port: Port) {
        self.bound = Some((address, port));
    }

    /// It waits for connections.
    pub(super) fn listening(&self) -> Option<&Listening> {
        self.listening.as_ref()
    }

    /// It waits for connections from now on.
    pub(super) fn listen(&mut self, listening: Listening) {
        self.listening = Some(listening);
    }

    /// A connection came for it, and its user is told.
    pub(super) fn announce(&mut self, own: Key, room: Receipt) -> Option<PendingAccept> {
        self.listening.as_mut().map(|listening| listening.announce(own, room))
    }

    /// The keys that find it.
    pub(super) fn found_by(&self) -> &LookupKeys {
        &self.found_by
    }

    /// Its peer answers to this name.
    pub(super) fn give_name(&mut self, name: u32) {
        self.found_by.name = Some(name);
    }

    /// It waits for the user of the listener that it came for.
    pub(super) fn waits(&self) -> Option<&PendingAccept> {
        self.waits.as_ref()
    }

    /// It waits for a listener's user from now on.
    pub(super) fn wait(&mut self, waits: PendingAccept) {
        self.waits = Some(waits);
    }

    /// That is over, if it waited.
    pub(super) fn take_waits(&mut self) -> Option<PendingAccept> {
        self.waits.take()
    }

    /// Nothing was begun with it but to give it an address.
    pub(super) fn is_fresh(&self) -> bool {
        self.listening.is_none() && matches!(self.exchange, Exchange::None)
    }

    /// When something is due for it.
    pub(super) fn deadline(&self) -> Option<u64> {
        match &self.exchange {
            Exchange::None => None,
            Exchange::Connection(connection) => connection.deadline(),
            Exchange::Resolution(resolution) => resolution.deadline(),
        }
    }

    /// The event that something happened to it.
    pub(super) fn happened(&self, id: u32, event: u32) -> CmHappened {
        let mut happened = CmHappened::new(event, id);
        if let Some(path) = &self.path {
            happened.local = CmAddress::new(path.local, path.interface);
            happened.remote = CmAddress::new(path.remote, path.interface);
            (happened.sgid, happened.dgid) = (path.sgid, path.dgid);
            happened.ifindex = path.interface;
            happened.path_mtu = path.path_mtu.into();
            happened.flow_label = path.flow_label;
            (happened.traffic_class, happened.hop_limit) = (path.traffic_class, path.hop_limit);
        }
        happened
    }
}

/// Puts private data into an event, all of it: programs get as much as the message has room for.
pub(super) fn set_private(happened: &mut CmHappened, private: &[u8]) {
    for (to, from) in happened.private.iter_mut().zip(private) {
        *to = *from;
    }
    happened.parameters.private_length = u8::try_from(private.len()).unwrap_or(u8::MAX);
}

/// The private data of a call, behind so many bytes of the manager's own; `EINVAL` if it is longer
/// than the message has room for.
pub(super) fn private<const N: usize>(
    head: &[u8],
    data: &[u8; CM_PRIVATE_BYTES],
    length: usize,
) -> Result<[u8; N], Errno> {
    let data = data.get(..length).ok_or(Errno::EINVAL)?;
    let mut private = [0; N];
    let room = private.get_mut(..head.len() + data.len()).ok_or(Errno::EINVAL)?;
    let (first, rest) = room.split_at_mut(head.len());
    first.copy_from_slice(head);
    rest.copy_from_slice(data);
    Ok(private)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_the_mtu_that_kernels_choose() {
        for (mtu, code) in
            [(0, 1), (576, 1), (608, 2), (1500, 3), (4191, 4), (4192, 5), (9000, 5), (65536, 5)]
        {
            assert_eq!(path_mtu(mtu), code, "{mtu}");
        }
    }

    #[test]
    fn private_data_fits_its_message() {
        let data = [7; CM_PRIVATE_BYTES];
        let whole = private::<92>(&[1; 36], &data, 56).unwrap();
        assert_eq!((whole[35], whole[36], whole[91]), (1, 7, 7));
        assert_eq!(private::<92>(&[1; 36], &data, 57), Err(Errno::EINVAL));
        assert_eq!(private::<92>(&[], &data, 255), Err(Errno::EINVAL));
        assert_eq!(private::<92>(&[], &data, 0), Ok([0; 92]));
    }
}
