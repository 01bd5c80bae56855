//! Grants that wait for the owner's pages: by the token that the owner answers with, and by who has
//! a part in them.

use super::extents::{ExtentId, Part};
use super::taken::PeerKey;
use crate::accounts::Receipt;
use crate::ids::SessionId;
use omniverb_terms::{Qpn, Rkey};
use std::collections::{BTreeMap, BTreeSet};

/// Names a question for pages. Drawn at random, so nobody answers for another.
pub(crate) type Token = u64;

/// Who is to be granted something.
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
    /// What the owner is asked for.
    pub(crate) part: Part,
    /// What holds that, or is to.
    pub(crate) extent: ExtentId,
}

/// A question that nobody waits for any more, while its owner may be moving pages. It pays
/// nothing: its extent is there as long as it is.
#[derive(Debug)]
pub(super) struct Abandoned {
    pub(super) owner: SessionId,
    pub(super) extent: ExtentId,
    /// Because of whom the pages are moved, if that is known.
    pub(super) peer: Option<PeerKey>,
}

/// All that are pending.
#[derive(Debug, Default)]
pub(super) struct PendingGrants {
    rows: BTreeMap<Token, PendingGrant>,
    abandoned: BTreeMap<Token, Abandoned>,
    /// The tokens of those, by what the pages go to.
    abandoned_of: BTreeMap<ExtentId, Token>,
}

impl PendingGrants {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.abandoned.is_empty() && self.abandoned_of.is_empty()
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
        self.rows.insert(token, grant);
        token
    }

    /// A grant waits no more, because there is an answer or none is waited for.
    pub(super) fn remove(&mut self, token: Token) -> Option<PendingGrant> {
        self.rows.remove(&token)
    }

    /// What was asked with this token nobody waits for any more, and the owner may answer yet.
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

    /// Whose question an abandoned one was.
    pub(super) fn owner_of_abandoned(&self, token: Token) -> Option<SessionId> {
        self.abandoned.get(&token).map(|question| question.owner)
    }

    /// An extent is no more: no answer is of any meaning to it.
    pub(super) fn forget_abandoned(&mut self, extent: ExtentId) {
        if let Some(token) = self.abandoned_of.remove(&extent) {
            self.abandoned.remove(&token);
        }
    }

    /// Those whose owners were asked to move pages onto one of these.
    pub(super) fn fresh_of(&self, extents: &BTreeSet<ExtentId>) -> Vec<Token> {
        self.tokens(|grant| grant.part.is_fresh() && extents.contains(&grant.extent))
    }

    /// Those that a session asked for, or was asked for the pages of.
    pub(super) fn of(&self, session: SessionId) -> Vec<Token> {
        let initiator = Grantee::Session(session);
        self.tokens(|grant| grant.initiator == initiator || grant.owner == session)
    }

    /// Those that the engine asked for, by way of its link with a queue pair for this peer.
    pub(super) fn of_engine(&self, qpn: Qpn, peer_qpn: Qpn) -> Vec<Token> {
        self.tokens(|grant| {
            grant.initiator == Grantee::Engine && (grant.peer_qpn, grant.qpn) == (qpn, peer_qpn)
        })
    }

    fn tokens(&self, which: impl Fn(&PendingGrant) -> bool) -> Vec<Token> {
        let those = self.rows.iter().filter(|(_, grant)| which(grant));
        those.map(|(token, _)| *token).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::{Account, Kind, Quotas};
    use crate::memory::extents::Standing;

    fn grant(initiator: Grantee, owner: u64) -> PendingGrant {
        let account = Account::new(Quotas::only(&[]));
        PendingGrant {
            receipt: account.note(&[Kind::Grant]),
            initiator,
            owner: SessionId(owner),
            qpn: Qpn(2),
            peer_qpn: Qpn(3),
            rkey: Rkey(1),
            part: Part { start: 0, length: 4096, standing: Standing::Fresh },
            extent: 1,
        }
    }

    #[test]
    fn whoever_has_a_part_in_a_grant_finds_it_and_no_token_is_given_twice() {
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
    fn what_is_abandoned_keeps_its_token_until_it_is_answered_or_its_extent_is_gone() {
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
