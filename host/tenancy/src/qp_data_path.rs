//! Names the paths that data of a queue pair takes, and the reasons for each.

/// How the data of a queue pair travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// A link between the two processes.
    Direct,
    /// Through the engine, to a queue pair of this host.
    Forwarded,
    /// Through the engine and the network, to another Omniverb: `wire` where it is shown.
    Omniverb,
    /// By the process itself and the network, to another Omniverb.
    Carried,
    /// Through the engine and the network, to whatever speaks RoCE v2 there.
    Roce,
}

impl Path {
    /// The word for it in `omniverb status`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Path::Direct => "direct",
            Path::Forwarded => "forwarded",
            Path::Omniverb => "wire",
            Path::Carried => "carried",
            Path::Roce => "roce",
        }
    }
}

/// Why the data of a queue pair travels the way it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathReason {
    /// Both queue pairs are of one vNIC.
    SameVnic,
    /// The handshake came out at the peer's vNIC.
    Neighbour,
    /// The link is older than this daemon.
    Survivor,
    /// Its own vNIC is forwarded.
    Forwarded,
    /// The peer's vNIC is forwarded.
    PeerForwarded,
    /// Its own vNIC is limited.
    Limited,
    /// The peer's vNIC is limited.
    PeerLimited,
    /// Faults are set for its own vNIC.
    Faulty,
    /// Faults are set for the peer's vNIC.
    PeerFaulty,
    /// Both queue pairs are of one virtual machine.
    SameMachine,
    /// The handshake came out, and there is a window that the machine and the other one share.
    Pair,
    /// Its own vNIC is a virtual machine's, and has no window for the peer.
    Machine,
    /// The peer's vNIC is a virtual machine's, and has no window for it.
    PeerMachine,
    /// All windows that the machine shares are others'.
    PairsTaken,
    /// The window that the two share is full.
    PairFull,
    /// Both vNICs are virtual machines', and one's window is about to be in the other, too.
    PairLater,
    /// The peer, on this host, is forwarded towards us since before that was changed.
    PeerThroughEngine,
    /// The handshake was answered.
    Omniverb,
    /// The peer is a neighbour, but its own handshake did not arrive here.
    OneWay,
    /// The handshake was not answered.
    Unanswered,
    /// Datagrams came from there.
    Stranger,
    /// To or from a multicast group.
    Group,
    /// A rule denies it.
    Denied,
}

impl PathReason {
    /// Its phrase in `omniverb status`.
    #[must_use]
    pub fn phrase(self) -> &'static str {
        match self {
            PathReason::SameVnic => "same network namespace",
            PathReason::Neighbour => "the handshake came out at a vNIC of this host",
            PathReason::Survivor => "made before the daemon was restarted",
            PathReason::Forwarded => "this vNIC's datapath is forwarded",
            PathReason::PeerForwarded => "the peer's vNIC has datapath forwarded",
            PathReason::Limited => "this vNIC has a rate limit",
            PathReason::PeerLimited => "the peer's vNIC has a rate limit",
            PathReason::Faulty => "faults are set for this vNIC",
            PathReason::PeerFaulty => "faults are set for the peer's vNIC",
            PathReason::SameMachine => "same virtual machine, in its window",
            PathReason::Pair => "in a pair window of the virtual machine",
            PathReason::Machine => "this vNIC's virtual machine shares no memory with the peer",
            PathReason::PeerMachine => "the peer's virtual machine shares no memory with it",
            PathReason::PairsTaken => "all pair windows of the virtual machine are others'",
            PathReason::PairFull => "the pair window of the virtual machine is full",
            PathReason::PairLater => {
                "no pair window is in both virtual machines yet; later links have one"
            }
            PathReason::PeerThroughEngine => "the peer's side is forwarded",
            PathReason::Omniverb => "another Omniverb answered the handshake",
            PathReason::OneWay => "on this host, but the handshake passes in one direction only",
            PathReason::Unanswered => "no answer to the handshake",
            PathReason::Stranger => "datagrams came from there",
            PathReason::Group => "a multicast group",
            PathReason::Denied => "a rule of a policy denies it",
        }
    }
}
