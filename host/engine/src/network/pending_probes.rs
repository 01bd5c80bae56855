//! Remembers the numbers of own questions that the network has not answered, for all packet
//! threads.
//!
//! An answer is told by its number from datagrams of strangers before any budget is spent on
//! either. So a flood of strangers costs none of our answers. A number is 128 random bits: only
//! hosts on the question's path know it. For those, too, the datagrams passed on for a question are
//! bounded, for each sender apart.

use omniverb_sys::lock;
use omniverb_terms::VnicId;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// Budget: answers to one question from one address to one vNIC that are passed on. A question is
/// sent three times, and a network may deliver a datagram twice.
const PASSES: u8 = 6;
/// Budget: pairs of a sender and a vNIC that answers to one question are passed on from. Without
/// an address translation or a replay on the way there is one.
const SENDERS_MAX: usize = 16;

/// All questions under way of one engine.
#[derive(Clone, Default)]
pub(crate) struct Questions(Arc<Mutex<HashMap<u128, Question>>>);

struct Question {
    /// The vNIC that asked.
    asker: VnicId,
    /// The address that it asked.
    asked: IpAddr,
    /// Datagrams passed on: the source, the vNIC, the count.
    passed: Vec<(IpAddr, VnicId, u8)>,
}

/// The meaning of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    /// That of a question of this vNIC, and the control plane is to know.
    Ours(VnicId),
    /// That of a question of ours, and nothing that counts; or enough was passed on for it.
    Spent,
    /// No question of ours has it.
    Strange,
}

impl Questions {
    /// A question is under way from now on.
    pub(crate) fn begin(&self, number: u128, asker: VnicId, asked: IpAddr) {
        lock(&self.0).insert(number, Question { asker, asked, passed: Vec::new() });
    }

    /// A question is under way no more.
    pub(crate) fn end(&self, number: u128) {
        lock(&self.0).remove(&number);
    }

    /// The meaning of the number in a probe that came out at a vNIC.
    pub(crate) fn probe(&self, number: u128, from: IpAddr, at: VnicId) -> Number {
        let mut questions = lock(&self.0);
        let Some(question) = questions.get_mut(&number) else { return Number::Strange };
        question.pass(from, at)
    }

    /// The meaning of the number in a reply. One that counts comes from the address that was asked
    /// to the vNIC that asked.
    pub(crate) fn reply(&self, number: u128, from: IpAddr, at: VnicId) -> Number {
        let mut questions = lock(&self.0);
        let Some(question) = questions.get_mut(&number) else { return Number::Strange };
        match (question.asker, question.asked) == (at, from.to_canonical()) {
            true => question.pass(from, at),
            false => Number::Spent,
        }
    }
}

impl Question {
    fn pass(&mut self, from: IpAddr, at: VnicId) -> Number {
        let same = |known: &&mut (IpAddr, VnicId, u8)| (known.0, known.1) == (from, at);
        if let Some((_, _, times)) = self.passed.iter_mut().find(same) {
            *times = times.saturating_add(1);
            return if *times <= PASSES { Number::Ours(self.asker) } else { Number::Spent };
        }
        if self.passed.len() >= SENDERS_MAX {
            return Number::Spent;
        }
        self.passed.push((from, at, 1));
        Number::Ours(self.asker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKER: VnicId = VnicId(1);
    const THERE: VnicId = VnicId(2);

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn a_number_is_known_as_long_as_its_question_is_under_way() {
        let questions = Questions::default();
        questions.begin(7, ASKER, ip(2));
        assert_eq!(questions.probe(7, ip(1), THERE), Number::Ours(ASKER));
        assert_eq!(questions.probe(8, ip(1), THERE), Number::Strange);
        assert_eq!(questions.reply(7, ip(2), ASKER), Number::Ours(ASKER));
        questions.end(7);
        assert_eq!(questions.probe(7, ip(1), THERE), Number::Strange);
        assert_eq!(questions.reply(7, ip(2), ASKER), Number::Strange);
    }

    #[test]
    fn a_reply_counts_from_the_address_asked_to_the_vnic_that_asked() {
        let questions = Questions::default();
        questions.begin(7, ASKER, ip(2));
        for (from, at) in [(ip(3), ASKER), (ip(2), THERE), (ip(3), THERE)] {
            assert_eq!(questions.reply(7, from, at), Number::Spent);
        }
        let mapped = "::ffff:10.0.0.2".parse().unwrap();
        assert_eq!(questions.reply(7, mapped, ASKER), Number::Ours(ASKER));
    }

    #[test]
    fn a_sender_that_saw_a_number_spends_only_its_own_passes() {
        let questions = Questions::default();
        questions.begin(7, ASKER, ip(2));
        let passed = (0..100).filter(|_| questions.probe(7, ip(9), THERE) != Number::Spent);
        assert_eq!(passed.count(), usize::from(PASSES));
        assert_eq!(questions.probe(7, ip(1), THERE), Number::Ours(ASKER));
        assert_eq!(questions.probe(7, ip(9), VnicId(3)), Number::Ours(ASKER));
        // However many addresses it has, it is a bounded number.
        let passed = (10..250).filter(|last| questions.probe(7, ip(*last), THERE) != Number::Spent);
        assert_eq!(passed.count(), SENDERS_MAX - 3);
    }
}
