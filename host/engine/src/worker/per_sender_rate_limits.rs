//! Limits reports to the control plane and answers to strangers, for each kind and sender.
//!
//! Answers to questions of ours are not counted here: `network/pending_probes.rs` knows them.

use crate::pacing::per_sender_budget::{Rate, Shares};
use omniverb_terms::Qpn;
use std::collections::HashMap;
use std::net::IpAddr;

/// Budget: datagrams of unknown senders to UD queue pairs that a vNIC's control plane gets.
const STRANGERS: Rate = Rate { per_second: 2000, at_once: 256 };
/// Budget: of those, from one sender.
const STRANGERS_OF_ONE: Rate = Rate { per_second: 200, at_once: 64 };
/// Budget: keys that peers of a vNIC's queue pairs name and that its processes are asked for; what
/// is not asked for now is mediated.
const WANTED: Rate = Rate { per_second: 2000, at_once: 512 };
/// Budget: of those, of peers at one address.
const WANTED_OF_ONE: Rate = Rate { per_second: 400, at_once: 256 };
/// Budget: management datagrams of one vNIC that are passed on: some for each connection that
/// begins or ends. All that are left out come again.
const MANAGEMENT: Rate = Rate { per_second: 5000, at_once: 2048 };
/// Budget: of those, from one sender.
const MANAGEMENT_OF_ONE: Rate = Rate { per_second: 1000, at_once: 1024 };
/// Budget: management datagrams that strangers are answered with. They are on no rate limit's
/// account, which is for what programs send; a stranger that gets none asks again.
const ANSWERS: Rate = Rate { per_second: 5000, at_once: 1024 };
/// Budget: of those, for one stranger.
const ANSWERS_OF_ONE: Rate = Rate { per_second: 1000, at_once: 512 };
/// Budget: handshakes of other Omniverbs that are replied to. Each asks three times.
const REPLIES: Rate = Rate { per_second: 5000, at_once: 1024 };
/// Budget: of those, to one address.
const REPLIES_OF_ONE: Rate = Rate { per_second: 1000, at_once: 512 };
/// Budget: questions of processes that carry links whether packets get to a vNIC that are answered.
const TRIALS: Rate = Rate { per_second: 5000, at_once: 1024 };
/// Budget: of those, from one address.
const TRIALS_OF_ONE: Rate = Rate { per_second: 1000, at_once: 512 };
/// Budget: notices of ports, of other Omniverbs to one vNIC, that are passed on, and answered at
/// most once each: some for each connection. All that are left out come again.
const NOTICES: Rate = Rate { per_second: 5000, at_once: 2048 };
/// Budget: of those, from one address.
const NOTICES_OF_ONE: Rate = Rate { per_second: 1000, at_once: 1024 };
/// Budget: requests for keys that are looked at, and words that a number is unknown that are sent,
/// of one vNIC. A request costs two ciphers of 100 bytes.
const KEYS: Rate = Rate { per_second: 20_000, at_once: 2048 };
/// Budget: of those, of one address.
const KEYS_OF_ONE: Rate = Rate { per_second: 500, at_once: 64 };
/// A stranger is reported again after this time, in nanoseconds.
const STRANGER_AGAIN: u64 = 100_000_000;
/// Budget: strangers of one vNIC that are remembered, not to tell of them again at once. More than
/// [`STRANGERS`] lets in within that time.
const STRANGERS_MAX: usize = 1024;

/// A datagram's QP, where it came from, and from which QP.
pub(super) type Stranger = (Qpn, IpAddr, Qpn);

/// Reports and answers made, and those still allowed.
pub(super) struct PerSenderLimits {
    strangers: Shares,
    wanted: Shares,
    management: Shares,
    answers: Shares,
    replies: Shares,
    notices: Shares,
    trials: Shares,
    keys: Shares,
    /// Reported strangers, and when.
    told: HashMap<Stranger, u64>,
}

impl PerSenderLimits {
    pub(super) fn new(now: u64) -> PerSenderLimits {
        PerSenderLimits {
            strangers: Shares::new(STRANGERS, STRANGERS_OF_ONE, now),
            wanted: Shares::new(WANTED, WANTED_OF_ONE, now),
            management: Shares::new(MANAGEMENT, MANAGEMENT_OF_ONE, now),
            answers: Shares::new(ANSWERS, ANSWERS_OF_ONE, now),
            replies: Shares::new(REPLIES, REPLIES_OF_ONE, now),
            trials: Shares::new(TRIALS, TRIALS_OF_ONE, now),
            notices: Shares::new(NOTICES, NOTICES_OF_ONE, now),
            keys: Shares::new(KEYS, KEYS_OF_ONE, now),
            told: HashMap::new(),
        }
    }

    /// Whether a process may be asked for one more key that a peer at this address named.
    pub(super) fn may_ask(&mut self, peer: IpAddr, now: u64) -> bool {
        self.wanted.take(peer, now)
    }

    /// Whether the control plane may be told of one more management datagram from this address.
    pub(super) fn may_manage(&mut self, from: IpAddr, now: u64) -> bool {
        self.management.take(from, now)
    }

    /// Whether one more answer may be sent to this stranger.
    pub(super) fn may_answer(&mut self, to: IpAddr, now: u64) -> bool {
        self.answers.take(to, now)
    }

    /// Whether one more handshake from this address may be replied to.
    pub(super) fn may_reply(&mut self, to: IpAddr, now: u64) -> bool {
        self.replies.take(to, now)
    }

    /// Whether one more trial of the way from this address may be answered.
    pub(super) fn may_answer_trial(&mut self, from: IpAddr, now: u64) -> bool {
        self.trials.take(from, now)
    }

    /// Whether the control plane may be told of one more notice of ports from this address.
    pub(super) fn may_notice(&mut self, from: IpAddr, now: u64) -> bool {
        self.notices.take(from, now)
    }

    /// Whether one more request for a key of this address may be looked at.
    pub(super) fn may_hand_over(&mut self, from: IpAddr, now: u64) -> bool {
        self.keys.take(from, now)
    }

    /// Whether a stranger is to be told of: not again and again.
    pub(super) fn is_news(&mut self, stranger: Stranger, now: u64) -> bool {
        if self.told.len() >= STRANGERS_MAX {
            self.told.retain(|_, at| now.saturating_sub(*at) < STRANGER_AGAIN);
        }
        let before = self.told.get(&stranger);
        let news = before.is_none_or(|at| now.saturating_sub(*at) >= STRANGER_AGAIN)
            && self.told.len() < STRANGERS_MAX
            && self.strangers.take(stranger.1, now);
        if news {
            self.told.insert(stranger, now);
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u32) -> IpAddr {
        IpAddr::from((0x0a4d_0000 + n).to_be_bytes())
    }

    #[test]
    fn answers_to_strangers_are_few() {
        let mut reports = PerSenderLimits::new(0);
        let answered = (0..4000).filter(|n| reports.may_answer(ip(n % 64), 0)).count();
        assert_eq!(answered as u64, ANSWERS.at_once);
        let answered = (0..4000).filter(|_| reports.may_answer(ip(1), 0)).count();
        assert_eq!(answered, 0);
    }

    /// Each kind has its own; of each, a neighbour of the flooder has its share.
    #[test]
    fn a_flood_of_one_kind_from_one_sender_costs_others_and_other_kinds_nothing() {
        type Take = fn(&mut PerSenderLimits, IpAddr, u32, u64) -> bool;
        let kinds: [Take; 5] = [
            |reports, from, _, now| reports.may_ask(from, now),
            |reports, from, _, now| reports.may_manage(from, now),
            |reports, from, _, now| reports.may_answer(from, now),
            |reports, from, _, now| reports.may_reply(from, now),
            |reports, from, n, now| reports.is_news((Qpn(17), from, Qpn(100 + n)), now),
        ];
        for (flooded, take) in kinds.iter().enumerate() {
            let mut reports = PerSenderLimits::new(0);
            let mut number = 0;
            for millisecond in 0..2000u64 {
                let now = millisecond * 1_000_000;
                for _ in 0..70 {
                    number += 1;
                    take(&mut reports, ip(1), number, now);
                }
                if millisecond % 100 == 0 {
                    for (kind, other) in kinds.iter().enumerate() {
                        let from = if kind == flooded { ip(2) } else { ip(1) };
                        assert!(
                            other(&mut reports, from, 0, now),
                            "{kind} in a flood of {flooded}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_flood_of_strangers_does_not_fill_the_table() {
        let mut reports = PerSenderLimits::new(0);
        for n in 0..200_000u32 {
            let now = u64::from(n) * 15_000;
            reports.is_news((Qpn(17), ip(n % 4096), Qpn(n)), now);
            assert!(reports.told.len() <= STRANGERS_MAX);
            if n % 1000 == 0 {
                let told = |at: &&u64| now.saturating_sub(**at) < STRANGER_AGAIN;
                assert!(reports.told.values().filter(told).count() < STRANGERS_MAX);
            }
        }
    }
}
