//! Remembers recently seen connection ids of a vNIC, to recognise answers cheaply.
//!
//! A name is 32 random bits, which the peer learns from the message that is sent to it. An answer
//! counts if it says the name and comes from there. For those that see a name as well, a message
//! that is sent lets a few answers in; what is sent shortly after it lets no more in, since a peer
//! that repeats a message has ours repeated.

use omniverb_cm::Mad;
use std::collections::HashMap;
use std::net::IpAddr;

/// Budget: answers to one message of an id that are passed on and not counted as a stranger's.
const PASSES: u8 = 6;
/// Budget: after this time, in nanoseconds, an id's next message lets as many answers in again.
const AGAIN: u64 = 10_000_000;
/// Budget: names of one vNIC in each of two generations. Those of more connections than that, begun
/// within one round trip, are heard on strangers' account.
const NAMES_MAX: usize = 1024;
/// A generation is closed after this time, in nanoseconds: answers to what was said before the one
/// before it are late.
const GENERATION: u64 = 30_000_000_000;

/// An id's name, and where it spoke to.
type Name = (u32, IpAddr);

/// Passes left of an id.
#[derive(Clone, Copy)]
struct RecentId {
    /// Answers that are let in.
    passes: u8,
    /// When there were [`PASSES`].
    since: u64,
}

/// Names of one vNIC.
#[derive(Default)]
pub(crate) struct RecentlySentIds {
    /// Passes left, by id.
    young: HashMap<Name, RecentId>,
    old: HashMap<Name, RecentId>,
    /// When the young generation began.
    since: u64,
}

impl RecentlySentIds {
    /// An id of ours sends this message.
    pub(crate) fn sends(&mut self, datagram: &[u8], to: IpAddr, now: u64) {
        let name = Mad::parse(datagram).ok().and_then(|mad| mad.message.sender());
        let Some(name) = name.filter(|name| *name != 0) else { return };
        self.close_generation(now);
        let name = (name, to.to_canonical());
        let old = self.old.remove(&name);
        let left = self.young.get(&name).copied().or(old);
        let recent = left.filter(|left| now.saturating_sub(left.since) < AGAIN);
        self.young.insert(name, recent.unwrap_or(RecentId { passes: PASSES, since: now }));
    }

    /// Whether a message that came from there answers one that was sent there.
    pub(crate) fn is_answered(&mut self, datagram: &[u8], from: IpAddr) -> bool {
        if self.young.is_empty() && self.old.is_empty() {
            return false;
        }
        let name = Mad::parse(datagram).ok().and_then(|mad| mad.message.receiver());
        let Some(name) = name.map(|name| (name, from.to_canonical())) else { return false };
        let left = self.young.get_mut(&name).or_else(|| self.old.get_mut(&name));
        let take =
            |left: &mut RecentId| left.passes.checked_sub(1).map(|fewer| left.passes = fewer);
        left.and_then(take).is_some()
    }

    fn close_generation(&mut self, now: u64) {
        let is_over = now.saturating_sub(self.since) >= GENERATION;
        if self.young.len() >= NAMES_MAX || is_over {
            self.old = std::mem::take(&mut self.young);
            self.since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_cm::{Disconnect, Message, Received, Reject};
    use omniverb_terms::Qpn;

    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const ELSEWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn bytes(message: Message) -> [u8; 256] {
        Mad { transaction: 1, modifier: 0, message }.to_bytes()
    }

    fn asks(communication: u32) -> [u8; 256] {
        let (remote, queue_pair, private) = (7, Qpn(8), [0; 220]);
        bytes(Message::Disconnect(Disconnect { communication, remote, queue_pair, private }))
    }

    fn answers(remote: u32) -> [u8; 256] {
        bytes(Message::Disconnected(Received { communication: 7, remote, private: [0; 224] }))
    }

    #[test]
    fn an_answer_has_the_id_and_comes_from_where_it_was_sent() {
        let mut spoken = RecentlySentIds::default();
        assert!(!spoken.is_answered(&answers(9), THERE));
        spoken.sends(&asks(9), THERE, 0);
        assert!(!spoken.is_answered(&answers(10), THERE), "another name");
        assert!(!spoken.is_answered(&answers(9), ELSEWHERE), "from elsewhere");
        assert!(!spoken.is_answered(&asks(9), THERE), "its own name, not ours");
        assert!(!spoken.is_answered(&[0; 256], THERE));
        let rejected = Reject { communication: 7, remote: 9, ..Reject::NONE };
        assert!(spoken.is_answered(&bytes(Message::Reject(rejected)), THERE));
        assert!(spoken.is_answered(&answers(9), "::ffff:10.0.0.1".parse().unwrap()));
        let nameless = Reject { communication: 9, remote: 0, ..Reject::NONE };
        assert!(!spoken.is_answered(&bytes(Message::Reject(nameless)), THERE));
    }

    #[test]
    fn each_message_lets_a_few_answers_in() {
        let mut spoken = RecentlySentIds::default();
        for time in 0..3 {
            spoken.sends(&asks(9), THERE, time * AGAIN);
            let heard = (0..100).filter(|_| spoken.is_answered(&answers(9), THERE));
            assert_eq!(heard.count(), usize::from(PASSES));
        }
    }

    #[test]
    fn an_immediate_repetition_gains_nothing() {
        let mut spoken = RecentlySentIds::default();
        for begun in [GENERATION, 2 * GENERATION - 1] {
            // Also while a generation is closed.
            let heard = (0..1000).filter(|number| {
                spoken.sends(&asks(9), THERE, begun + number % 10);
                spoken.is_answered(&answers(9), THERE)
            });
            assert_eq!(heard.count(), usize::from(PASSES));
        }
    }

    #[test]
    fn names_are_known_for_a_while_and_are_few() {
        let mut spoken = RecentlySentIds::default();
        spoken.sends(&asks(9), THERE, GENERATION);
        spoken.sends(&asks(10), THERE, 2 * GENERATION);
        assert!(spoken.is_answered(&answers(9), THERE));
        spoken.sends(&asks(11), THERE, 3 * GENERATION);
        assert!(!spoken.is_answered(&answers(9), THERE));
        assert!(spoken.is_answered(&answers(10), THERE));
        for name in 12..10_000 {
            spoken.sends(&asks(name), THERE, 3 * GENERATION);
            assert!(spoken.young.len() <= NAMES_MAX && spoken.old.len() <= NAMES_MAX);
            assert!(spoken.is_answered(&answers(name), THERE));
        }
    }
}
