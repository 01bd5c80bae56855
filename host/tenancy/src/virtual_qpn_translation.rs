//! Translates QPNs of messages: physical ones behind a process, virtual ones towards it.
//!
//! Messages of flat vNICs stay as they are.
//!
//! A process's number without owner comes out as a number below all ranges, so that it cannot mean
//! a queue pair of another vNIC.

use crate::row_keys::SessionId;
use crate::tenancy::Tenancy;
use crate::virtual_networks::Destination;
use omniverb_session::Message;
use omniverb_session::body::{
    Adopt, AttachGroup, ConnectQp, Connected, CreateQp, DestroyQp, DisconnectQp, GrantDenied,
    GrantEnded, Granted, GroupAttached, LinkClosed, LinkReady, Pin, QpCreated, QpFailed,
    RequestGrant, TraceLink,
};
use omniverb_session::cm::{AcceptCmId, CmHappened, CmIdQueried, ConnectCmId};
use omniverb_terms::{Gid, Qpn, VnicId};
use omniverb_vgid::{PhysicalQpn, QpnRange, VirtualQpn};

/// Virtual numbers are below this, and ranges of vNICs above.
const BELOW_RANGES: u32 = QpnRange::COUNT_MAX - 1;

impl Tenancy {
    /// The vNIC of a session, if it has a virtual address.
    fn virtual_vnic(&self, session: SessionId) -> Option<VnicId> {
        if self.tenants.virtual_networks.is_empty() {
            return None;
        }
        let vnic = self.tenants.sessions.get(&session)?.client().vnic;
        self.tenants.virtual_networks.has(vnic).then_some(vnic)
    }

    /// A message that a process sent, with physical QPNs.
    pub fn read_numbers(&mut self, session: SessionId, message: &mut Message) {
        let Some(vnic) = self.virtual_vnic(session) else { return };
        match message {
            Message::CreateQp(CreateQp { qpn, .. })
            | Message::DestroyQp(DestroyQp { qpn, .. })
            | Message::QpFailed(QpFailed { qpn, .. })
            | Message::AttachGroup(AttachGroup { qpn, .. })
            | Message::ConnectCmId(ConnectCmId { qpn, .. })
            | Message::AcceptCmId(AcceptCmId { qpn, .. }) => {
                *qpn = self.own_physical(session, vnic, *qpn);
            }
            Message::ConnectQp(m) => self.read_destination(session, vnic, m),
            Message::DisconnectQp(DisconnectQp { qpn, peer_qpn })
            | Message::RequestGrant(RequestGrant { qpn, peer_qpn, .. }) => {
                *qpn = self.own_physical(session, vnic, *qpn);
                let peer = self.tenants.virtual_networks.physical_peer(*qpn, *peer_qpn);
                *peer_qpn = peer.unwrap_or(*peer_qpn);
            }
            _ => {}
        }
    }

    fn own_physical(&self, session: SessionId, vnic: VnicId, number: Qpn) -> Qpn {
        // One that is older than the vNIC's virtual address.
        if self.queue_pairs.own(session, number).is_ok() {
            return number;
        }
        let range = self.tenants.virtual_networks.range(vnic);
        let physical = VirtualQpn::new(number.0).and_then(|number| range?.physical(number));
        physical.map_or(number, PhysicalQpn::qpn)
    }

    fn read_destination(&mut self, session: SessionId, vnic: VnicId, m: &mut ConnectQp) {
        m.qpn = self.own_physical(session, vnic, m.qpn);
        // What it says of a queue pair that is not its own is refused, and not remembered.
        let is_own = self.queue_pairs.own(session, m.qpn).is_ok();
        if !is_own || m.dest_qpn > Qpn::MAX || m.dest_qpn == Qpn::MULTICAST {
            return;
        }
        let networks = &self.tenants.virtual_networks;
        let shown = m.dest_qpn;
        let found = networks.destination(vnic, m.dgid);
        let physical = match found {
            Some(Destination::Nowhere) | None => None,
            Some(_) => networks.physical(vnic, m.dgid, shown),
        };
        m.dest_qpn = physical.unwrap_or(Qpn(shown.0 & BELOW_RANGES));
        self.learn_peer(m.qpn, m.dest_qpn, shown);
    }

    fn learn_peer(&mut self, qpn: Qpn, peer: Qpn, shown: Qpn) {
        let (links, queue_pairs) = (&self.links, &self.queue_pairs);
        let in_use = |peer| links.is_linked(qpn, peer) || queue_pairs.wish(qpn, peer).is_some();
        self.tenants.virtual_networks.learn_peer(qpn, peer, shown, in_use);
    }

    /// A message as the process that it goes to sees it, with virtual QPNs.
    pub fn show_numbers(&mut self, session: SessionId, message: &mut Message) {
        let Some(vnic) = self.virtual_vnic(session) else { return };
        match message {
            Message::QpCreated(QpCreated { qpn, .. })
            | Message::Connected(Connected { qpn, .. })
            | Message::GroupAttached(GroupAttached { qpn, .. })
            | Message::Adopt(Adopt { qpn, .. })
            | Message::Pin(Pin { qpn, .. }) => *qpn = self.own_shown(vnic, *qpn),
            Message::LinkReady(LinkReady { qpn, peer_qpn, dgid, .. }) => {
                let networks = &self.tenants.virtual_networks;
                if networks.shown_peer(*qpn, *peer_qpn).is_none()
                    && self.queue_pairs.contains(*qpn)
                    && let Some(shown) = networks.shown(vnic, *dgid, *peer_qpn)
                {
                    self.learn_peer(*qpn, *peer_qpn, shown);
                }
                (*qpn, *peer_qpn) = self.shown_link(vnic, *qpn, *peer_qpn);
            }
            Message::LinkClosed(LinkClosed { qpn, peer_qpn, .. })
            | Message::Granted(Granted { qpn, peer_qpn, .. })
            | Message::GrantDenied(GrantDenied { qpn, peer_qpn, .. })
            | Message::GrantEnded(GrantEnded { qpn, peer_qpn, .. })
            | Message::TraceLink(TraceLink { qpn, peer_qpn, .. }) => {
                (*qpn, *peer_qpn) = self.shown_link(vnic, *qpn, *peer_qpn);
            }
            Message::CmHappened(CmHappened { qpn, dgid, .. })
            | Message::CmIdQueried(CmIdQueried { dest_qpn: qpn, dgid, .. }) => {
                *qpn = self.shown_peer(vnic, *dgid, *qpn);
            }
            _ => {}
        }
    }

    /// The numbers that a process has for a queue pair of its own and a peer of it.
    #[must_use]
    pub fn shown_ends(&self, session: SessionId, qpn: Qpn, peer_qpn: Qpn) -> (Qpn, Qpn) {
        match self.virtual_vnic(session) {
            Some(vnic) => self.shown_link(vnic, qpn, peer_qpn),
            None => (qpn, peer_qpn),
        }
    }

    fn shown_link(&self, vnic: VnicId, qpn: Qpn, peer: Qpn) -> (Qpn, Qpn) {
        let shown = self.tenants.virtual_networks.shown_peer(qpn, peer);
        (self.own_shown(vnic, qpn), shown.unwrap_or(peer))
    }

    fn own_shown(&self, vnic: VnicId, number: Qpn) -> Qpn {
        let range = self.tenants.virtual_networks.range(vnic);
        let shown = PhysicalQpn::new(number).and_then(|number| range?.virtual_of(number));
        shown.map_or(number, VirtualQpn::qpn)
    }

    fn shown_peer(&self, vnic: VnicId, gid: Gid, number: Qpn) -> Qpn {
        self.tenants.virtual_networks.shown(vnic, gid, number).unwrap_or(number)
    }
}
