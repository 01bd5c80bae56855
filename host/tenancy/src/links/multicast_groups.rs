//! Attaches queue pairs to multicast groups.
//!
//! Packets to a group come by a link to the engine, whose far end has a number that no packet can
//! have. In a virtual network they come from vNICs of the same tenant alone, and the daemon copies
//! them (`host/engine/src/network/underlay_relay.rs`). In a flat network anything can send to a
//! group: the engine hears only senders that belong to the vNIC's tenant, by their addresses
//! (`host/engine/src/network/tenants_by_address.rs`).
//!
//! So an attachment is a row like any other link: charged, shown, and gone with its queue pair. The
//! daemon is in the group at the vNIC's own sockets as long as there is one
//! (`Action::AttachEngine`, `Action::DetachEngine`); packets that the network does not deliver
//! there are lost.

use super::engine_link::{Cause, Flow, Route};
use crate::directory::vnic_gids_and_addresses::GidsAndAddresses;
use crate::directory::{Family, LOOPBACK_INTERFACE as LOOPBACK};
use crate::links::Linker;
use crate::links::Unlinker;
use crate::row_keys::SessionId;
use omniverb_session::body::{AttachGroup, CLOSED_BY_PEER, GidEntry, GroupAttached};
use omniverb_session::limits::GROUPS_MAX;
use omniverb_terms::{Errno, Gid, Qpn, Service, VnicId};

impl Linker<'_> {
    /// Attaches a queue pair to a group; anew, if it is attached.
    pub(crate) fn attach_group(
        &mut self,
        id: SessionId,
        m: &AttachGroup,
        now: u64,
    ) -> Result<GroupAttached, Errno> {
        let qp = self.queue_pairs.own(id, m.qpn)?;
        if qp.service() != Service::Ud || !m.gid.is_multicast() {
            return Err(Errno::EINVAL);
        }
        let vnic = qp.vnic();
        // Addresses and interfaces may be others than a moment ago.
        if self.tenants.is_table_old(self.context, id, now) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        let names = &self.tenants.vnics.get(&vnic).ok_or(Errno::ENOENT)?.names;
        let networks = &self.tenants.virtual_networks;
        let entry = match networks.has(vnic) {
            true => names.table().first().filter(|_| networks.has_group(vnic, m.gid)),
            false => entry_for(names, m.gid),
        };
        let sgid = entry.ok_or(Errno::EADDRNOTAVAIL)?.gid;
        let mut free = None;
        for peer in (0..GROUPS_MAX as u16).map(Qpn::of_group) {
            let link = self.links.engine.to(m.qpn, peer).next();
            match link.map(|link| link.flow.dgid) {
                // The process has lost it, or could not use it.
                Some(gid) if gid == m.gid => {
                    self.unlinker().end_engine_links(m.qpn, peer, None);
                    free = Some(peer);
                    break;
                }
                Some(_) => {}
                None => free = free.or(Some(peer)),
            }
        }
        let peer = free.ok_or(Errno::ENOMEM)?;
        if !self.links.engine.may_join(vnic, m.gid, GROUPS_MAX) {
            return Err(Errno::ENOMEM);
        }
        let flow = Flow { qpn: m.qpn, peer, sgid, dgid: m.gid };
        self.link_to_engine(flow, Route { cause: Cause::Group, ..Route::group() }, now)?;
        Ok(GroupAttached { qpn: m.qpn, peer_qpn: peer })
    }
}

impl Unlinker<'_> {
    /// Ends a vNIC's attachments: it is in another tenant. Its processes attach again if they may.
    pub(crate) fn leave_groups(&mut self, vnic: VnicId) {
        let attached = self.links.engine.attached(vnic);
        let attached: Vec<_> = attached.map(|link| (link.flow.qpn, link.flow.peer)).collect();
        for (qpn, peer) in attached {
            self.end_engine_links(qpn, peer, Some(CLOSED_BY_PEER));
        }
    }

    /// The table of a vNIC's names is another. Attachments at an interface that is not where it
    /// was, or at the loopback though there is another now, end; the process attaches again.
    pub(crate) fn review_groups(&mut self, vnic: VnicId, old: &[GidEntry]) {
        let Some(new) = self.tenants.vnics.get(&vnic).map(|home| &home.names) else { return };
        if !self.links.engine.is_in_groups(vnic) {
            return;
        }
        // An entry made up is at no interface but the loopback.
        let place = |table: &[GidEntry], gid: Gid| {
            let found = table.iter().find(|entry| entry.gid == gid)?;
            Some(if new.has_address(gid.address()) { found.ifindex } else { LOOPBACK })
        };
        let stays = |flow: &Flow| {
            let at = place(new.table(), flow.sgid);
            let better = || entry_for(new, flow.dgid).is_some_and(|entry| leads_out(new, entry));
            at.is_some() && at == place(old, flow.sgid) && !(at == Some(LOOPBACK) && better())
        };
        let moved = self.links.engine.attached(vnic).filter(|link| !stays(&link.flow));
        let moved: Vec<_> = moved.map(|link| (link.flow.qpn, link.flow.peer)).collect();
        for (qpn, peer) in moved {
            self.end_engine_links(qpn, peer, Some(CLOSED_BY_PEER));
        }
    }
}

/// Whether there are others where an entry leads: it is an address of an interface that is not the
/// loopback, and not [made up](crate::directory).
fn leads_out(names: &GidsAndAddresses, entry: &GidEntry) -> bool {
    entry.ifindex != LOOPBACK && !entry.gid.is_loopback() && names.has_address(entry.gid.address())
}

/// The name by which a vNIC is in a group: the first of the same kind that leads to others. At the
/// loopback, which reaches no other vNIC, only if the vNIC has nothing else.
fn entry_for(names: &GidsAndAddresses, group: Gid) -> Option<&GidEntry> {
    let leads_out = |entry: &&GidEntry| leads_out(names, entry);
    let alone = !names.table().iter().any(|entry| leads_out(&entry));
    let mut fitting =
        names.table().iter().filter(|entry| Family::of_name(entry.gid) == Family::of_name(group));
    fitting.find(|entry| alone || leads_out(entry))
}
