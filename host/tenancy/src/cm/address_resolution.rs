//! Creates ids, and resolves their addresses and those of their peers.
//!
//! Addresses are those of the vNIC's GID table. The process's own kernel knows which of them leads
//! where; a process that leaves it to us gets the first fitting one.

use super::cm_id::{Id, Key, Listening, Path};
use super::port_binding::{PortSharing, Wildcard};
use crate::accounts::Kind;
use crate::cm::ConnectionManager;
use crate::directory::Family;
use crate::row_keys::SessionId;
use omniverb_cm::{PortSpace, ServiceId};
use omniverb_session::body::{Done, GidEntry};
use omniverb_session::cm::{
    BindCmId, CM_BACKLOG_MAX, CM_FAMILY_ONLY, CM_REUSE, CmAddress, CmIdBound, CmIdCreated,
    CmIdResolved, CreateCmId, DestroyCmId, ListenCmId, ResolveCmId,
};
use omniverb_terms::{Errno, Gid, Psn, Service, VnicId};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

impl ConnectionManager<'_> {
    pub(crate) fn create_cm_id(
        &mut self,
        session: SessionId,
        m: &CreateCmId,
    ) -> Result<CmIdCreated, Errno> {
        let space = u16::try_from(m.space).ok().and_then(PortSpace::from_number);
        let space = space.ok_or(Errno::EINVAL)?;
        let service = Service::from_qp_type(m.qp_type).ok_or(Errno::EOPNOTSUPP)?;
        let fits = match space {
            PortSpace::Tcp => service.is_connected() && !service.is_extended(),
            PortSpace::Udp | PortSpace::Ipoib => !service.is_connected(),
            PortSpace::Ib => true,
        };
        if !fits {
            return Err(Errno::EINVAL);
        }
        let id = self.add_cm_id(session, (space, service), |id| id)?;
        Ok(CmIdCreated { id, reserved: 0 })
    }

    /// One more id of a session's, as `with` makes of one that has nothing yet.
    pub(super) fn add_cm_id(
        &mut self,
        of: SessionId,
        kind: (PortSpace, Service),
        with: impl FnOnce(Id) -> Id,
    ) -> Result<u32, Errno> {
        let session = self.tenants.sessions.get_mut(&of).ok_or(Errno::EPROTO)?;
        let receipt = session.account().charge(&[Kind::CmId])?;
        let number = session.next_cm_id()?;
        let psn = Psn::new(self.context.entropy.next() as u32);
        let id = Id::new(receipt, session.client().vnic, kind, psn);
        self.connections.insert((of, number), with(id));
        Ok(number)
    }

    pub(crate) fn destroy_cm_id(
        &mut self,
        session: SessionId,
        m: &DestroyCmId,
        now: u64,
    ) -> Result<Done, Errno> {
        let key = (session, m.id);
        self.connections.get(key)?;
        for child in self.connections.waiting_for(key, m.taken) {
            self.remove_cm_id(child, now);
        }
        self.remove_cm_id(key, now);
        self.carry_cm(now);
        Ok(Done { take_back: 0 })
    }

    pub(crate) fn bind_cm_id(
        &mut self,
        session: SessionId,
        m: &BindCmId,
    ) -> Result<CmIdBound, Errno> {
        let key = (session, m.id);
        let id = self.connections.get(key)?;
        if id.address().is_some() || !id.is_fresh() {
            return Err(Errno::EINVAL);
        }
        let address = m.address.socket_address()?.ok_or(Errno::EINVAL)?;
        self.give_address(key, address, m.flags)?;
        self.tell_bound(key)
    }

    /// An id gets an address and a port of its own.
    fn give_address(&mut self, key: Key, address: SocketAddr, flags: u32) -> Result<(), Errno> {
        let vnic = self.connections.get(key)?.vnic();
        let ip = address.ip();
        if !ip.is_unspecified() {
            self.entry_of(vnic, ip)?;
        }
        let hold = if flags & CM_REUSE != 0 { PortSharing::Shared } else { PortSharing::Alone };
        let wildcard = match flags & CM_FAMILY_ONLY {
            0 => Wildcard::Both,
            _ => Wildcard::OwnFamily,
        };
        let random = || self.context.entropy.next();
        self.connections.bind(key, address, (hold, wildcard), random)?;
        self.tenants.open_port(self.context, vnic);
        Ok(())
    }

    fn tell_bound(&self, key: Key) -> Result<CmIdBound, Errno> {
        let id = self.connections.get(key)?;
        let address = id.address().ok_or(Errno::EINVAL)?;
        let entry = match address.ip() {
            ip if ip.is_unspecified() => GidEntry { gid: Gid::ZERO, ifindex: 0, mtu: 0 },
            ip => self.entry_of(id.vnic(), ip)?,
        };
        Ok(CmIdBound {
            id: key.1,
            ifindex: entry.ifindex,
            address: CmAddress::new(address, entry.ifindex),
            gid: entry.gid,
            mtu: entry.mtu,
            reserved: 0,
        })
    }

    pub(crate) fn listen_cm_id(
        &mut self,
        session: SessionId,
        m: &ListenCmId,
        now: u64,
    ) -> Result<CmIdBound, Errno> {
        let key = (session, m.id);
        let id = self.connections.get(key)?;
        if !id.is_fresh() || id.path.is_some() {
            return Err(Errno::EINVAL);
        }
        if id.address().is_none() {
            self.give_address(key, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0), 0)?;
        }
        // Before anything takes effect: the address may have gone since it was given.
        let bound = self.tell_bound(key)?;
        let backlog = if m.backlog == 0 { CM_BACKLOG_MAX } else { m.backlog.min(CM_BACKLOG_MAX) };
        let account = self.tenants.sessions.get(&session).ok_or(Errno::EPROTO)?.account();
        let listening = Listening::new(account, backlog);
        let (vnic, space, number) = self.connections.listen(key, listening)?;
        self.is_waited_for(vnic, ServiceId { space, port: number }, now);
        Ok(bound)
    }

    pub(crate) fn resolve_cm_id(
        &mut self,
        session: SessionId,
        m: &ResolveCmId,
    ) -> Result<CmIdResolved, Errno> {
        let key = (session, m.id);
        let id = self.connections.get(key)?;
        if !id.is_fresh() {
            return Err(Errno::EINVAL);
        }
        let (vnic, bound) = (id.vnic(), id.address());
        let mut remote = m.remote.socket_address()?.ok_or(Errno::EINVAL)?;
        if remote.ip().is_unspecified() {
            remote.set_ip(Family::of(remote.ip()).loopback());
        }
        let wanted = m.local.socket_address()?;
        let specific = |address: &SocketAddr| !address.ip().is_unspecified();
        let local = match (bound.filter(specific), wanted.filter(specific)) {
            (Some(bound), Some(wanted)) if bound.ip() != wanted.ip() => return Err(Errno::EINVAL),
            (Some(local), _) => local.ip(),
            // The kernel's choice: it knows nothing of virtual addresses.
            (None, Some(wanted)) => {
                let own = self.tenants.virtual_networks.own_address(vnic);
                own.filter(|_| !wanted.ip().is_loopback()).unwrap_or(wanted.ip())
            }
            (None, None) => self.choose_local(vnic, remote.ip(), m.remote.interface)?,
        };
        if Family::of(local) != Family::of(remote.ip()) {
            return Err(Errno::EINVAL);
        }
        let entry = self.entry_of(vnic, local)?;
        let port = match bound {
            Some(bound) => bound.port(),
            None => {
                let port = wanted.map_or(0, |wanted| wanted.port());
                self.give_address(key, SocketAddr::new(local, port), m.flags)?;
                self.connections.get(key)?.address().map_or(0, |address| address.port())
            }
        };
        let ends = (SocketAddr::new(local, port), entry.gid);
        let dgid = match remote.ip() {
            ip if ip.is_loopback() => self.entry_of(vnic, ip)?.gid,
            ip => self.network.name_of(self.tenants, vnic, ip).ok_or(Errno::EHOSTUNREACH)?,
        };
        let peer = (remote, dgid);
        let path = Path::new(ends, peer, (entry.ifindex, entry.mtu));
        self.connections.get_mut(key)?.path = Some(path);
        Ok(CmIdResolved {
            id: key.1,
            ifindex: path.interface,
            local: CmAddress::new(path.local, path.interface),
            remote: CmAddress { interface: m.remote.interface, ..CmAddress::new(path.remote, 0) },
            sgid: path.sgid,
            dgid: path.dgid,
            mtu: path.mtu,
            path_mtu: path.path_mtu.into(),
            flow_label: path.flow_label,
            partition_key: 0xffff,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        })
    }

    /// The entry of the GID table for an address of the vNIC's. A loopback address that is not
    /// listed means the vNIC itself, by whichever name it has of that family, or at all.
    pub(super) fn entry_of(&self, vnic: VnicId, ip: IpAddr) -> Result<GidEntry, Errno> {
        let loops = ip.is_loopback();
        let family = Family::of(ip);
        let ip = if loops { family.loopback() } else { ip };
        let gid = self.network.name_of(self.tenants, vnic, ip).ok_or(Errno::EADDRNOTAVAIL)?;
        let names =
            self.tenants.vnics.get(&vnic).map(|vnic| &vnic.names).ok_or(Errno::EADDRNOTAVAIL)?;
        let itself = || {
            let mut entries = names.table().iter();
            entries.find(|entry| Family::of_name(entry.gid) == family).or(names.table().first())
        };
        let entry = names.entry(gid).or_else(|| loops.then(itself)?);
        entry.copied().ok_or(Errno::EADDRNOTAVAIL)
    }

    /// The address that a connection to `remote` comes from if the process names none.
    fn choose_local(&self, vnic: VnicId, remote: IpAddr, interface: u32) -> Result<IpAddr, Errno> {
        if let Some(own) = self.tenants.virtual_networks.own_address(vnic) {
            return Ok(if remote.is_loopback() { remote } else { own });
        }
        let name = self.network.name_of(self.tenants, vnic, remote).ok_or(Errno::ENODEV)?;
        if name.is_loopback() || self.tenants.owns(vnic, name) {
            return Ok(remote);
        }
        let table = self.tenants.vnics.get(&vnic).map(|vnic| vnic.names.table());
        let mut entries = table.into_iter().flatten();
        let near = name.is_link_local();
        let fits = |entry: &&GidEntry| {
            Family::of_name(entry.gid) == Family::of(remote)
                && entry.gid.is_link_local() == near
                && !entry.gid.is_loopback()
                && (!near || interface == 0 || interface == entry.ifindex)
        };
        let local = entries.find(fits).ok_or(Errno::ENODEV)?;
        Ok(self.network.address_of(self.tenants, vnic, local.gid))
    }
}
