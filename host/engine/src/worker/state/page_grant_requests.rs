//! Asks for keys that peers name, and maps what is granted.

use super::State;
use crate::command::{Event, Grant as Granted, Pages, Row};
use crate::event_queues::Posted;
use crate::pages::grant::Grant;
use crate::pages::link_grants;
use crate::pages::pinned_guest_page_mappings::MappingState;
use crate::worker::link::{Ends, Link};
use omniverb_datapath::pages::mapped_pages::REMOTE_WRITE;
use omniverb_link::page_grant_pacing::Denial;
use omniverb_sys::Access;
use omniverb_terms::{Qpn, Rkey, VnicId};

impl State {
    /// Has the control plane ask the application for what its peer named.
    pub(super) fn ask_for_grants(&mut self, link: &mut Link, now: u64) {
        let Ends { vnic: id, qpn, peer_qpn, flow, .. } = *link.ends();
        let Some(connected) = link.connected_mut() else { return };
        while let Some((key, range)) = connected.application.pages().0.take_wanted() {
            let vnic = self.vnics.get_mut(id);
            let wanted = Event::Wanted { qpn, peer_qpn, key, range };
            let asked = vnic.is_some_and(|vnic| vnic.reports.may_ask(flow.destination, now))
                && self.outbox.post(id, wanted) == Posted::Sent;
            if !asked {
                connected.application.pages().0.not_asked(key);
            }
        }
    }

    /// No link of a vNIC keeps these.
    pub(super) fn withdraw(&mut self, vnic: VnicId, row: &Row) {
        let waited = self.rows.withdraw(&self.together, row);
        self.not_mapped(waited, Denial::ForNow);
        for index in self.links.of_vnic(vnic) {
            let connected = self.links.get_mut(index).and_then(Link::connected_mut);
            connected
                .into_iter()
                .for_each(|connected| connected.application.pages().0.withdraw(row));
        }
    }

    /// A request for pages is refused.
    pub(super) fn denied(&mut self, (qpn, peer_qpn): (Qpn, Qpn), key: Rkey, denied: Denial) {
        if let Some((_, connected)) = self.links.between(qpn, peer_qpn) {
            connected.application.pages().0.refused(key, denied);
        }
    }

    /// The application granted pages. Pages that cannot be mapped stay with it.
    pub(super) fn granted(&mut self, granted: Box<Granted>) {
        let Some(vnic) = self.vnics.get(granted.vnic) else { return };
        let found = self.links.between(granted.qpn, granted.peer_qpn);
        let Some((_, connected)) = found.filter(|(of, _)| *of == granted.vnic) else { return };
        let own = connected.application.pages().0.is_own(granted.key);
        let budget = &vnic.budget;
        let share = |bytes| match own {
            true => budget.share_of_half(bytes),
            false => budget.share(bytes),
        };
        let writable = granted.access & REMOTE_WRITE != 0;
        let how = if writable { Access::ReadWrite } else { Access::ReadOnly };
        let found = match &granted.memory {
            Pages::Moved(extent) => match self.together.hold(granted.vnic, extent, how, share) {
                Ok(hold) => MappingState::Mapped(hold, granted),
                Err(_) => MappingState::Never(granted),
            },
            Pages::InPlace(row) => {
                let (vnic, row) = (granted.vnic, row.clone());
                let share = |mappings, bytes| budget.share_of_row(mappings, bytes);
                self.rows.hold(&self.together, vnic, (&row, how), granted, share)
            }
        };
        let (hold, granted) = match found {
            MappingState::Mapped(hold, granted) => (hold, granted),
            MappingState::Later => return,
            MappingState::Never(granted) => return self.cannot_map(&granted),
        };
        let Granted { key, access, start, region, .. } = *granted;
        let mut grant = Grant::new(key, access, start, hold).of_region(region);
        if let Pages::InPlace(row) = &granted.memory {
            grant = grant.in_place(row);
        }
        link_grants::insert(&mut connected.application, grant, granted.epoch);
    }

    /// Maps some rows of many places; grants that wait for one go on when all of it is mapped.
    pub(super) fn map_some(&mut self) -> bool {
        let any = self.rows.are_made();
        match self.rows.turn(&mut self.together) {
            None => {}
            Some((Ok(hold), waiting)) => {
                waiting.into_iter().for_each(|granted| self.granted(granted));
                hold.release();
            }
            Some((Err(_), waiting)) => waiting.iter().for_each(|granted| self.cannot_map(granted)),
        }
        any
    }

    /// Accesses to these pages stay with the application. Pages that it keeps in place for this are
    /// to be released. If there is no room to say so, it keeps them as long as their region.
    fn cannot_map(&mut self, granted: &Granted) {
        let Granted { vnic, qpn, peer_qpn, key, start, .. } = *granted;
        if matches!(granted.memory, Pages::InPlace(_)) {
            let _ = self.outbox.post(vnic, Event::NotMapped { qpn, peer_qpn, key, start });
        }
        self.denied((qpn, peer_qpn), key, Denial::ForGood);
    }

    fn not_mapped(&mut self, waiting: impl IntoIterator<Item = Box<Granted>>, denied: Denial) {
        for granted in waiting {
            self.denied((granted.qpn, granted.peer_qpn), granted.key, denied);
        }
    }
}
