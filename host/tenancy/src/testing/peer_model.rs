//! Models what the other parties know: the engine's links and doorbells, and the clients' links, by
//! the messages to them. It must agree with the tables at all times.

use crate::qp_data_path::PathReason;
use crate::row_keys::LinkKey;
use crate::{Action, Arrived, FileId, FileRange, SessionId, Tenancy};
use omniverb_session::Message;
use omniverb_session::body::{Adopt, Extent, Granted, LinkReady};
use omniverb_terms::{Gid, Qpn};
use std::collections::{BTreeMap, BTreeSet};

/// A queue pair, its peer, and the peer's GID.
type LinkName = (Qpn, Qpn, Gid);

/// A model of the other parties.
#[derive(Debug, Default)]
pub struct Mirror {
    /// The engine's links, with their bells.
    engine: BTreeMap<LinkName, u64>,
    /// The clients' links.
    clients: BTreeMap<LinkName, SessionId>,
    /// Memory files that the daemon has, with their sizes.
    files: BTreeMap<FileId, u64>,
    /// Parts of them that an owner's pages are on.
    places: BTreeSet<FileRange>,
    /// Grantees of those, and the links by which.
    held: BTreeMap<(FileRange, SessionId), BTreeSet<LinkKey>>,
    /// Sessions that trace, and their links.
    traced: BTreeMap<SessionId, BTreeSet<(Qpn, Qpn)>>,
}

impl Mirror {
    /// True if the engine has no links.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.engine.is_empty()
            && self.clients.is_empty()
            && self.traced.is_empty()
            && self.held.is_empty()
            && self.files.is_empty()
            && self.places.is_empty()
    }

    /// Takes a message to a party.
    ///
    /// # Panics
    /// If it is inconsistent with earlier ones.
    pub fn told(&mut self, action: &Action) {
        match action {
            Action::CreateLink { first, second } => {
                for end in [first, second] {
                    self.ready(end.session, &end.ready);
                }
            }
            Action::AttachEngine(end) => {
                // The engine lets go of a bell with its last link.
                let bell = end.ready.bell;
                let known = self.engine.values().any(|other| *other == bell);
                assert_eq!(known, end.ready.bell_new == 0, "bell {bell}");
                let before = self.engine.insert(name(&end.ready), bell);
                assert_eq!(before, None, "attached twice");
                self.ready(end.session, &end.ready);
            }
            Action::DetachEngine { qpn, peer_qpn, .. } => {
                let before = self.engine.len();
                self.engine.retain(|link, _| (link.0, link.1) != (*qpn, *peer_qpn));
                assert!(self.engine.len() < before, "never attached");
            }
            Action::Adopt { adopt, file, new_file, .. } => self.adopt(adopt, *file, *new_file),
            Action::Pin { pin, file, .. } => {
                assert_eq!(self.files.insert(*file, pin.length), None, "a name is used once");
                assert!(self.places.insert(FileRange {
                    file: *file,
                    offset: 0,
                    length: pin.length
                }));
            }
            Action::ForgetFile { file, .. } => {
                assert!(self.files.remove(file).is_some(), "there is no such file");
                self.places.retain(|place| place.file != *file);
                self.held.retain(|(place, _), _| place.file != *file);
            }
            Action::EmptyPlace { place } => {
                assert!(self.places.remove(place), "no extent had it");
                self.held.retain(|(of, _), _| of != place);
            }
            Action::Grant { file, session, granted, .. } => {
                let place = self.granted(*file, granted);
                let link = LinkKey::new(granted.qpn, granted.peer_qpn);
                // A process that grants pages to itself is not told to release them.
                let mut ends = self.clients.iter();
                let owner = ends.find(|(end, _)| (end.0, end.1) == (granted.peer_qpn, granted.qpn));
                if owner.is_none_or(|(_, owner)| owner != session) {
                    self.held.entry((place, *session)).or_default().insert(link);
                }
            }
            Action::GrantEngine { file, granted, .. } => {
                self.granted(*file, granted);
                let (qpn, peer_qpn) = (granted.qpn, granted.peer_qpn);
                let known = self.engine.keys().any(|link| (link.0, link.1) == (qpn, peer_qpn));
                assert!(known, "granted for a link that it does not have");
            }
            Action::Event { message: Message::LinkClosed(closed), .. } => {
                self.closed(closed.qpn, closed.peer_qpn);
            }
            Action::BeginTrace { session } => {
                assert_eq!(self.traced.insert(*session, BTreeSet::new()), None, "begun twice");
            }
            Action::EndTrace { session } => {
                let left = self.traced.remove(session);
                assert_eq!(left, Some(BTreeSet::new()), "it still has links to tell of");
            }
            Action::Trace(end) => {
                let links = self.traced.get_mut(&end.session).expect("memory to tell through");
                assert!(links.insert((end.qpn, end.peer_qpn)), "traced twice");
            }
            Action::Untrace { session, qpn, peer_qpn } => {
                let links = self.traced.get_mut(session).expect("memory to tell through");
                assert!(links.remove(&(*qpn, *peer_qpn)), "never traced");
            }
            _ => {}
        }
    }

    /// An owner is asked to move pages to a free place.
    fn adopt(&mut self, adopt: &Adopt, file: FileId, new_file: Option<u64>) {
        if let Some(bytes) = new_file {
            assert_eq!(self.files.insert(file, bytes), None, "a name is used once");
        }
        let Extent { offset, length } = adopt.memory;
        let bytes = *self.files.get(&file).expect("a file that there is");
        assert!(adopt.fresh != 0 && length > 0 && offset + length <= bytes);
        let apart = |other: &FileRange| {
            let before = other.offset + other.length <= offset || offset + length <= other.offset;
            other.file != file || before
        };
        assert!(self.places.iter().all(apart), "an extent has it");
        self.places.insert(FileRange { file, offset, length });
    }

    /// The place of a grant, which an owner was asked for.
    fn granted(&self, file: FileId, granted: &Granted) -> FileRange {
        let Extent { offset, length } = granted.memory;
        let place = FileRange { file, offset, length };
        assert!(self.places.contains(&place), "there is no such place");
        place
    }

    fn ready(&mut self, session: SessionId, ready: &LinkReady) {
        let before = self.clients.insert(name(ready), session);
        // A queue pair that attaches to the same group again has another link instead.
        let again = ready.qpn == ready.peer_qpn || ready.peer_qpn.is_group();
        assert!(before.is_none() || again, "linked twice");
    }

    fn closed(&mut self, qpn: Qpn, peer_qpn: Qpn) {
        self.clients.retain(|link, _| (link.0, link.1) != (qpn, peer_qpn));
    }

    /// A client has said this, and was answered.
    pub fn said(&mut self, tenancy: &Tenancy, session: SessionId, arrived: &Arrived) {
        match &arrived.message {
            Message::DisconnectQp(m) if tenancy.queue_pairs.own(session, m.qpn).is_ok() => {
                self.clients.retain(|link, _| {
                    link.0 != m.qpn || (m.peer_qpn != Qpn(0) && link.1 != m.peer_qpn)
                });
            }
            Message::DestroyQp(m) if tenancy.queue_pairs.own(session, m.qpn).is_err() => {
                self.clients.retain(|link, owner| link.0 != m.qpn || *owner != session);
            }
            Message::CreateQp(m) if tenancy.queue_pairs.own(session, m.qpn).is_ok() => {
                // A wrong earlier owner of the number has it no more.
                self.clients.retain(|link, owner| link.0 != m.qpn || *owner == session);
            }
            Message::ConnectQp(m) => {
                // A connected queue pair has one link; a new wish is the end of the old one.
                let qp = tenancy.queue_pairs.own(session, m.qpn);
                if qp.is_ok_and(|qp| qp.service().is_connected()) {
                    let linked = |peer| tenancy.links.is_linked(m.qpn, peer);
                    self.clients.retain(|link, _| link.0 != m.qpn || linked(link.1));
                }
            }
            _ => {}
        }
    }

    /// A client is gone.
    pub fn ended(&mut self, session: SessionId) {
        self.clients.retain(|_, owner| *owner != session);
    }

    /// The newest link of these could not be made after all.
    pub fn failed(&mut self, qpn: Qpn, peer_qpn: Qpn) {
        let last = self.engine.keys().rfind(|link| (link.0, link.1) == (qpn, peer_qpn)).copied();
        if let Some(last) = last {
            self.engine.remove(&last);
        }
    }

    /// Compares.
    ///
    /// # Panics
    /// If a client has a link that is not in the tables, or lacks one that is.
    pub fn check(&self, tenancy: &Tenancy) {
        let vnics = tenancy.status(None);
        let qps = vnics.iter().flat_map(|v| &v.processes).flat_map(|process| &process.qps);
        let mut tables: Vec<(Qpn, Qpn)> = qps
            .flat_map(|qp| qp.peers.iter().map(move |peer| (qp.qpn, peer)))
            .filter(|(_, peer)| peer.why != PathReason::Survivor)
            .map(|(qpn, peer)| (qpn, peer.qpn))
            .collect();
        let mut clients: Vec<(Qpn, Qpn)> =
            self.clients.keys().map(|link| (link.0, link.1)).collect();
        tables.sort_unstable();
        clients.sort_unstable();
        assert_eq!(tables, clients, "what the tables say, and what the clients believe");
        for ((place, session), by) in &self.held {
            let lives = |link: &LinkKey| {
                let working = |qpn| tenancy.queue_pairs.get(qpn).is_some_and(|qp| !qp.is_failed());
                tenancy.links.direct(*link).is_some() && working(link.0) && working(link.1)
            };
            assert!(by.iter().any(lives), "{session:?} holds {place:?} by no link");
        }
    }
}

fn name(ready: &LinkReady) -> LinkName {
    (ready.qpn, ready.peer_qpn, ready.dgid)
}
