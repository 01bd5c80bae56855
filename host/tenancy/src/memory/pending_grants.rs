//! Keeps grants that wait for their owner's pages.

use super::extent_table::{ExtentId, Part};
use crate::accounts::Receipt;
use crate::row_keys::SessionId;
use crate::sessions::revocations_caused_by_peers::PeerKey;
use omniverb_terms::{Qpn, Rkey};
use std::collections::{BTreeMap, BTreeSet};

/// Names a question for pages. Drawn at random, so that no session can answer another's.
pub(crate) type Token = u64;

/// The recipient of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grantee {
    /// The process at the other end of a link.
    Session(SessionId),
    /// The engine, at the other end of a link of the owner's.
    Engine,
}

/// A grant that waits for the owner's pages.
#[derive(Debug)]
pub(crate) struct PendingGrant {
    pub(crate) receipt: Receipt,
    pub(crate) initiator: Grantee,
    pub(crate) owner: SessionId,
    /// The initiator's queue pair; of the engine's, the one beyond it.
    pub(crate) qpn: Qpn,
    /// The owner's queue pair.
    pub(crate) peer_qpn: Qpn,
    pub(crate) rkey: Rkey,
    /// The part that the owner is asked for.
    pub(crate) part: Part,
    /// The extent that holds it, or will.
    pub(crate) extent: ExtentId,
}

/// A question that no link waits for any more, while its owner may be moving pages. It has no
/// receipt: its extent is there as long as it is.
#[derive(Debug)]
pub(super) struct Abandoned {
    pub(super) owner: SessionId,
    pub(super) extent: ExtentId,
    /// The peer that the pages are moved for, if known.
    pub(super) peer: Option<PeerKey>,
}

/// All that are pending.
#[derive(Debug, Default)]
pub(super) struct PendingGrants {
    rows: BTreeMap<Token, PendingGrant>,
    /// The same: by the sessions that have a part in them, by the engine's link, by what holds the
    /// pages or is to.
    of_session: BTreeSet<(SessionId, Token)>,
    of_engine: BTreeSet<((Qpn, Qpn), Token)>,
    of_extent: BTreeSet<(ExtentId, Token)>,
    abandoned: BTreeMap<Token, Abandoned>,
    /// The tokens of those, by the extent that the pages go to.
    abandoned_of: BTreeMap<ExtentId, Token>,
}

impl PendingGrants {
    pub(super) fn is_empty(&self) -> bool {
        let found = self.of_session.len() + self.of_engine.len() + self.of_extent.len();
        let abandoned = self.abandoned.len() + self.abandoned_of.len();
        self.rows.len() + found + abandoned == 0
    }

    /// All, in the order of their tokens.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PendingGrant> {
        self.rows.values()
    }

    pub(super) fn get(&self, token: Token) -> Option<&PendingGrant> {
        self.rows.get(&token)
    }

    /// One more; its token is the first free one from this number on.
    pub(super) fn add(&mut self, drawn: u64, grant: PendingGrant) -> Token {
        let mut token = drawn;
        while self.rows.contains_key(&token) || self.abandoned.contains_key(&token) {
            token = token.wrapping_add(1);
        }
        let (sessions, engine) = parts(&grant);
        self.of_session.extend(sessions.into_iter().flatten().map(|session| (session, token)));
        self.of_engine.extend(engine.map(|link| (link, token)));
        self.of_extent.insert((grant.extent, token));
        self.rows.insert(token, grant);
        token
    }

    /// A grant waits no more, because there is an answer or none is waited for.
    pub(super) fn remove(&mut self, token: Token) -> Option<PendingGrant> {
        let grant = self.rows.remove(&token)?;
        let (sessions, engine) = parts(&grant);
        for session in sessions.into_iter().flatten() {
            self.of_session.remove(&(session, token));
        }
        if let Some(link) = engine {
            self.of_engine.remove(&(link, token));
        }
        self.of_extent.remove(&(grant.extent, token));
        Some(grant)
    }

    /// No link waits for the question with this token any more, but the owner may still answer.
    pub(super) fn abandon(&mut self, token: Token, question: Abandoned) {
        self.abandoned_of.insert(question.extent, token);
        self.abandoned.insert(token, question);
    }

    /// There is an answer to an abandoned question.
    pub(super) fn take_abandoned(&mut self, token: Token) -> Option<Abandoned> {
        let question = self.abandoned.remove(&token)?;
        self.abandoned_of.remove(&question.extent);
        Some(question)
    }

    /// The owner that an abandoned question went to.
    pub(super) fn owner_of_abandoned(&self, token: Token) -> Option<SessionId> {
        self.abandoned.get(&token).map(|question| question.owner)
    }

    /// An extent is no more: no answer is of any meaning to it.
    pub(super) fn forget_abandoned(&mut self, extent: ExtentId) {
        if let Some(token) = self.abandoned_of.remove(&extent) {
            self.abandoned.remove(&token);
        }
    }

    /// Questions that ask owners to move pages onto one of these.
    pub(super) fn fresh_of(&self, extents: &BTreeSet<ExtentId>) -> Vec<Token> {
        let of = extents.iter().flat_map(|extent| tokens(&self.of_extent, *extent));
        let is_fresh = |token: &Token| self.get(*token).is_some_and(|grant| grant.part.is_fresh());
        let mut fresh: Vec<Token> = of.filter(is_fresh).collect();
        fresh.sort_unstable();
        fresh
    }

    /// Those that a session asked for, or was asked for the pages of.
    pub(super) fn of(&self, session: SessionId) -> Vec<Token> {
        tokens(&self.of_session, session).collect()
    }

    /// Those that the engine asked for, by way of its link with a queue pair for this peer.
    pub(super) fn of_engine(&self, qpn: Qpn, peer_qpn: Qpn) -> Vec<Token> {
        tokens(&self.of_engine, (qpn, peer_qpn)).collect()
    }
}

/// Which sessions, and which link of the engine's, have a part in one.
fn parts(grant: &PendingGrant) -> ([Option<SessionId>; 2], Option<(Qpn, Qpn)>) {
    match grant.initiator {
        Grantee::Session(initiator) => ([Some(grant.owner), Some(initiator)], None),
        Grantee::Engine => ([Some(grant.owner), None], Some((grant.peer_qpn, grant.qpn))),
    }
}

/// The tokens found by a key.
fn tokens<K: Copy + Ord>(found: &BTreeSet<(K, Token)>, key: K) -> impl Iterator<Item = Token> {
    found.range((key, Token::MIN)..=(key, Token::MAX)).map(|(_, token)| *token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::{Account, Kind, Quotas};
    use crate::memory::extent_table::PartState;

    fn grant(initiator: Grantee, owner: u64) -> PendingGrant {
        let account = Account::new(Quotas::only(&[]));
        PendingGrant {
            receipt: account.note(&[Kind::Grant]),
            initiator,
            owner: SessionId(owner),
            qpn: Qpn(2),
            peer_qpn: Qpn(3),
            rkey: Rkey(1),
            part: Part { start: 0, length: 4096, standing: PartState::Fresh },
            extent: 1,
        }
    }

    #[test]
    fn each_party_finds_its_grants_and_tokens_are_unique() {
        let mut pending = PendingGrants::default();
        let first = pending.add(7, grant(Grantee::Session(SessionId(1)), 2));
        let second = pending.add(7, grant(Grantee::Engine, 1));
        assert_eq!((first, second), (7, 8));
        assert_eq!(pending.of(SessionId(1)), [7, 8]);
        assert_eq!(pending.of(SessionId(2)), [7]);
        assert_eq!(pending.of_engine(Qpn(3), Qpn(2)), [8], "the owner's queue pair comes first");
        assert_eq!(pending.of_engine(Qpn(2), Qpn(3)), []);
        assert!(pending.remove(7).is_some() && pending.remove(7).is_none());
        assert_eq!(pending.add(u64::MAX, grant(Grantee::Engine, 1)), u64::MAX);
        assert_eq!(pending.add(u64::MAX, grant(Grantee::Engine, 1)), 0);
    }

    #[test]
    fn an_abandoned_question_keeps_its_token_until_answered() {
        let mut pending = PendingGrants::default();
        for extent in [1, 2] {
            let token = pending.add(7, grant(Grantee::Engine, 1));
            assert!(pending.remove(token).is_some());
            let question = Abandoned { owner: SessionId(1), extent, peer: None };
            pending.abandon(token, question);
        }
        assert_eq!(pending.owner_of_abandoned(8), Some(SessionId(1)));
        assert_eq!(pending.take_abandoned(7).map(|question| question.extent), Some(1));
        assert!(pending.take_abandoned(7).is_none() && !pending.is_empty());
        pending.forget_abandoned(2);
        pending.forget_abandoned(2);
        assert!(pending.owner_of_abandoned(8).is_none() && pending.is_empty());
    }
}
