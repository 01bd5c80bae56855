//! Lists the counted kinds of rows, and the quota of each kind of party.
//!
//! A party is an owner of an account. A further level between two of them needs one more function
//! here and one more [`Account::below`](super::Account::below) where theirs are opened.

use crate::limits::Limits;
use omniverb_session::limits::LINKS_PER_BELL;

/// A counted kind of row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// A connection, with or without a hello.
    Client,
    /// A process with an open device.
    Process,
    /// A vNIC with processes.
    Vnic,
    /// A queue pair.
    Qp,
    /// A region with remote access.
    Mr,
    /// An end of a link, to another queue pair or to the engine.
    Link,
    /// A link to the engine.
    EngineLink,
    /// One of a connected queue pair, which has large rings.
    EngineConnection,
    /// One of those that a stranger caused.
    Stranger,
    /// A link by which a queue pair gets packets to a group.
    Group,
    /// A link that does not lead to the engine; once for each vNIC that it has an end in.
    Direct,
    /// One for datagrams that the vNIC did not ask for.
    Uninvited,
    /// A part of a region on a memory file.
    Extent,
    /// A grant that a process waits for.
    Grant,
    /// A grant of this process's pages that the engine waits for.
    EngineGrant,
    /// A question for pages that a process has not answered.
    Question,
    /// An extent of another process, once for each link by which it was granted.
    Granted,
    /// A question to the network.
    Probe,
    /// Like `Probe`, for links that exist already.
    Consent,
    /// An id of the connection manager.
    CmId,
    /// A connection that waits for its listener's user to take it.
    CmWaiting,
    /// A link between a machine and a neighbour; once, for the machine's vNIC.
    PairLink,
    /// A place in a pair window that the daemon has not counted yet.
    PairPlace,
    /// A pair window that was given away, which the daemon has not counted yet.
    PairWindow,
}

impl Kind {
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: [Kind; 24] = [
        Kind::Client,
        Kind::Process,
        Kind::Vnic,
        Kind::Qp,
        Kind::Mr,
        Kind::Link,
        Kind::EngineLink,
        Kind::EngineConnection,
        Kind::Stranger,
        Kind::Group,
        Kind::Direct,
        Kind::Uninvited,
        Kind::Extent,
        Kind::Grant,
        Kind::EngineGrant,
        Kind::Question,
        Kind::Granted,
        Kind::Probe,
        Kind::Consent,
        Kind::CmId,
        Kind::CmWaiting,
        Kind::PairLink,
        Kind::PairPlace,
        Kind::PairWindow,
    ];
}

/// The quota of each kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quotas([usize; Kind::ALL.len()]);

impl Quotas {
    /// Unlimited, but for these.
    pub(crate) fn only(quotas: &[(Kind, usize)]) -> Quotas {
        let mut most = [usize::MAX; Kind::ALL.len()];
        for (kind, quota) in quotas {
            most[*kind as usize] = *quota;
        }
        Quotas(most)
    }

    /// The quotas of a process.
    pub(crate) fn of_session(limits: &Limits) -> Quotas {
        Quotas::only(&[
            (Kind::Qp, limits.qps_per_session),
            (Kind::Mr, limits.mrs_per_session),
            (Kind::Link, limits.links_per_session),
            (Kind::EngineLink, LINKS_PER_BELL),
            (Kind::Group, limits.groups_per_session),
            (Kind::Extent, limits.extents_per_session),
            (Kind::Grant, limits.grants_per_session),
            (Kind::EngineGrant, limits.grants_per_session),
            (Kind::Question, limits.questions_per_session),
            (Kind::Granted, limits.granted_per_session),
            (Kind::CmId, limits.cm_ids_per_session),
        ])
    }

    /// The quotas of a listener: connections that wait for its user.
    pub(crate) fn of_listener(backlog: usize) -> Quotas {
        Quotas::only(&[(Kind::CmWaiting, backlog)])
    }

    /// The quotas of another vNIC towards one.
    pub(crate) fn of_neighbour(limits: &Limits) -> Quotas {
        Quotas::only(&[(Kind::Uninvited, limits.datagram_links_per_neighbour)])
    }

    /// The quotas of a vNIC, for all of its processes.
    pub(crate) fn of_vnic(limits: &Limits) -> Quotas {
        Quotas::only(&[
            (Kind::Process, limits.sessions_per_vnic),
            (Kind::Qp, limits.qps_per_vnic),
            (Kind::Mr, limits.mrs_per_vnic),
            (Kind::Link, limits.links_per_vnic),
            (Kind::EngineLink, limits.engine_links_per_vnic),
            (Kind::Stranger, limits.strangers_per_vnic),
            (Kind::Group, limits.groups_per_vnic),
            (Kind::Extent, limits.extents_per_vnic),
            (Kind::Probe, limits.probes_per_vnic),
            (Kind::Consent, limits.probes_per_vnic),
            (Kind::CmId, limits.cm_ids_per_vnic),
        ])
    }

    /// The quotas of the host, for all of its vNICs.
    pub(crate) fn of_host(limits: &Limits) -> Quotas {
        Quotas::only(&[
            (Kind::Process, limits.sessions),
            (Kind::Vnic, limits.vnics),
            (Kind::EngineLink, limits.engine_links),
            (Kind::EngineConnection, limits.engine_connections),
            (Kind::Extent, limits.extents),
            (Kind::Qp, limits.qps),
            (Kind::Mr, limits.mrs),
            (Kind::Link, limits.links),
            (Kind::CmId, limits.cm_ids),
        ])
    }

    /// Kinds of which a vNIC has no more of the host's quota than is left for others: such rows are
    /// held by programs and never yield, so that new clients find some.
    pub(crate) const SHARED: [Kind; 4] = [Kind::Qp, Kind::Mr, Kind::Link, Kind::CmId];

    /// How many of a kind.
    pub(crate) fn most(&self, kind: Kind) -> usize {
        self.0[kind as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_place() {
        for (place, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
        }
    }

    #[test]
    fn unnamed_kinds_are_unlimited() {
        let quotas = Quotas::only(&[(Kind::Mr, 3)]);
        assert_eq!((quotas.most(Kind::Mr), quotas.most(Kind::Qp)), (3, usize::MAX));
    }
}
