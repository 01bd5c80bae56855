//! Tries, before the first request leaves, whether packets get to the UDP port where a peer says
//! that it takes them, and its answers back.
//!
//! A firewall may let port 4791 pass and no other. So a process that carries a connection sends a
//! question from its own port to the peer's, and whatever serves the connection there answers it
//! in kind. Without an answer the engine takes the link.
//!
//! The datagrams begin as those of a handshake do, with a transport version that does not exist: no
//! RoCE v2 device takes one for its own. An answer is not longer than its question.

use omniverb_terms::Qpn;

/// Bytes of a datagram: a base transport header, our mark, two QPNs, the number.
pub const DATAGRAM_BYTES: usize = 40;

/// A base transport header of version 15: only 0 exists.
const HEADER: [u8; 12] = [0xff, 15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const QUESTION: [u8; 4] = *b"ovt1";
const ANSWER: [u8; 4] = *b"ovt2";

/// How long to wait after each question, in nanoseconds: 50 ms in all.
const WAITS: [u64; 3] = [5_000_000, 15_000_000, 30_000_000];

/// What a datagram names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrialNames {
    /// The queue pair of the receiver.
    pub to: Qpn,
    /// The queue pair of the sender.
    pub from: Qpn,
    /// Drawn at random for one trial: an answer has that of its question.
    pub nonce: u128,
}

/// A datagram of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialDatagram {
    /// Asks whether this way is passable.
    Question(TrialNames),
    /// The way of the question with this nonce is passable.
    Answer(TrialNames),
}

impl TrialNames {
    /// The answer to this question, if the queue pair and its peer are those that it names. The
    /// caller has compared the addresses and the port that it came from.
    #[must_use]
    pub fn answers(&self, qpn: Qpn, peer_qpn: Qpn) -> Option<[u8; DATAGRAM_BYTES]> {
        let is_ours = (self.to, self.from) == (qpn, peer_qpn);
        is_ours.then(|| answer(&TrialNames { to: self.from, from: self.to, nonce: self.nonce }))
    }
}

/// The datagram of a question.
#[must_use]
pub fn question(names: &TrialNames) -> [u8; DATAGRAM_BYTES] {
    write(QUESTION, names)
}

/// The datagram of an answer.
#[must_use]
pub fn answer(names: &TrialNames) -> [u8; DATAGRAM_BYTES] {
    write(ANSWER, names)
}

fn write(mark: [u8; 4], names: &TrialNames) -> [u8; DATAGRAM_BYTES] {
    let mut bytes = [0; DATAGRAM_BYTES];
    bytes[..12].copy_from_slice(&HEADER);
    bytes[12..16].copy_from_slice(&mark);
    bytes[16..20].copy_from_slice(&names.to.0.to_be_bytes());
    bytes[20..24].copy_from_slice(&names.from.0.to_be_bytes());
    bytes[24..].copy_from_slice(&names.nonce.to_be_bytes());
    bytes
}

/// Decodes a datagram, if it is one of a trial.
#[must_use]
pub fn read(bytes: &[u8]) -> Option<TrialDatagram> {
    let bytes: &[u8; DATAGRAM_BYTES] = bytes.try_into().ok()?;
    let (header, rest) = bytes.split_first_chunk::<12>()?;
    let (mark, rest) = rest.split_first_chunk::<4>()?;
    let (to, rest) = rest.split_first_chunk::<4>()?;
    let (from, rest) = rest.split_first_chunk::<4>()?;
    let names = TrialNames {
        to: Qpn(u32::from_be_bytes(*to)),
        from: Qpn(u32::from_be_bytes(*from)),
        nonce: u128::from_be_bytes(*rest.first_chunk()?),
    };
    match *mark {
        QUESTION if *header == HEADER => Some(TrialDatagram::Question(names)),
        ANSWER if *header == HEADER => Some(TrialDatagram::Answer(names)),
        _ => None,
    }
}

/// What to do for a trial now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialStep {
    /// Send this to the peer's port, then ask again.
    Send([u8; DATAGRAM_BYTES]),
    /// Wait for an answer, until then at most: nanoseconds of the caller's clock.
    WaitUntil(u64),
    /// The way is passable.
    Passed,
    /// There was no answer in time.
    Failed,
}

/// The asking half of a trial.
#[derive(Clone, Debug)]
pub struct WayTrial {
    names: TrialNames,
    /// How many questions were sent so far.
    sent: usize,
    /// When the wait after the latest of them is over.
    until: u64,
    has_passed: bool,
}

impl WayTrial {
    /// Tries the way between a queue pair and its peer. `nonce`: a number that cannot be guessed.
    #[must_use]
    pub fn new(qpn: Qpn, peer_qpn: Qpn, nonce: u128) -> WayTrial {
        let names = TrialNames { to: peer_qpn, from: qpn, nonce };
        WayTrial { names, sent: 0, until: 0, has_passed: false }
    }

    /// What to do at `now`, in nanoseconds. Datagrams that lie in the socket are to be read before:
    /// a thread that is late is not to take its own delay for the peer's.
    pub fn poll(&mut self, now: u64) -> TrialStep {
        if self.has_passed {
            return TrialStep::Passed;
        }
        if self.sent > 0 && now < self.until {
            return TrialStep::WaitUntil(self.until);
        }
        let Some(wait) = WAITS.get(self.sent) else { return TrialStep::Failed };
        self.sent += 1;
        self.until = now.saturating_add(*wait);
        TrialStep::Send(question(&self.names))
    }

    /// An answer came from the peer's address and port. Whether it is to our question.
    pub fn hears(&mut self, answer: &TrialNames) -> bool {
        let TrialNames { to, from, nonce } = self.names;
        let is_ours = self.sent > 0 && *answer == TrialNames { to: from, from: to, nonce };
        self.has_passed |= is_ours;
        is_ours
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: TrialNames = TrialNames { to: Qpn(7), from: Qpn(0xff_fffe), nonce: 1 << 127 | 5 };

    #[test]
    fn only_datagrams_of_trials_count() {
        let bytes = question(&NAMES);
        assert_eq!(read(&bytes), Some(TrialDatagram::Question(NAMES)));
        assert_eq!(read(&answer(&NAMES)), Some(TrialDatagram::Answer(NAMES)));
        for at in 0..16 {
            let mut other = bytes;
            other[at] ^= 4;
            assert_eq!(read(&other), None);
        }
        for at in 16..DATAGRAM_BYTES {
            let mut other = bytes;
            other[at] ^= 4;
            let Some(TrialDatagram::Question(names)) = read(&other) else { panic!("{at}") };
            assert!(names != NAMES && question(&names) == other);
        }
        assert_eq!(read(&bytes[..39]), None);
        assert_eq!(read(&[bytes.as_slice(), &[0]].concat()), None);
    }

    #[test]
    fn a_question_is_answered_by_the_queue_pair_that_it_names() {
        let reply = NAMES.answers(Qpn(7), Qpn(0xff_fffe)).unwrap();
        let Some(TrialDatagram::Answer(names)) = read(&reply) else { panic!() };
        assert_eq!((names.to, names.from, names.nonce), (NAMES.from, NAMES.to, NAMES.nonce));
        assert_eq!(NAMES.answers(Qpn(7), Qpn(8)), None);
        assert_eq!(NAMES.answers(Qpn(8), Qpn(0xff_fffe)), None);
    }

    #[test]
    fn three_questions_in_vain_are_a_way_that_is_not_passable() {
        let mut trial = WayTrial::new(Qpn(1), Qpn(2), 9);
        let (mut now, mut sent) = (1_000, 0);
        let begin = now;
        loop {
            match trial.poll(now) {
                TrialStep::Send(bytes) => {
                    let names = TrialNames { to: Qpn(2), from: Qpn(1), nonce: 9 };
                    assert_eq!(read(&bytes), Some(TrialDatagram::Question(names)));
                    sent += 1;
                }
                TrialStep::WaitUntil(until) => {
                    assert!(until > now);
                    assert_eq!(trial.poll(until - 1), TrialStep::WaitUntil(until));
                    now = until;
                }
                TrialStep::Failed => break,
                TrialStep::Passed => panic!("by what?"),
            }
        }
        assert_eq!((sent, now - begin), (3, 50_000_000));
        assert_eq!(trial.poll(now + 1), TrialStep::Failed);
    }

    /// A thread that was away for long sends its questions all the same, and waits for answers.
    #[test]
    fn a_late_thread_asks_three_times() {
        let mut trial = WayTrial::new(Qpn(1), Qpn(2), 9);
        let mut now = 0;
        for _ in 0..3 {
            assert!(matches!(trial.poll(now), TrialStep::Send(_)));
            assert!(matches!(trial.poll(now), TrialStep::WaitUntil(_)));
            now += 1_000_000_000;
        }
        assert_eq!(trial.poll(now), TrialStep::Failed);
    }

    #[test]
    fn only_the_answer_to_its_own_question_ends_a_trial() {
        let mut trial = WayTrial::new(Qpn(1), Qpn(2), 9);
        let right = TrialNames { to: Qpn(1), from: Qpn(2), nonce: 9 };
        assert!(!trial.hears(&right), "nothing was asked");
        assert!(matches!(trial.poll(0), TrialStep::Send(_)));
        for wrong in [
            TrialNames { to: Qpn(3), ..right },
            TrialNames { from: Qpn(3), ..right },
            TrialNames { nonce: 8, ..right },
        ] {
            assert!(!trial.hears(&wrong));
        }
        assert!(matches!(trial.poll(1), TrialStep::WaitUntil(_)));
        assert!(trial.hears(&right));
        assert_eq!(trial.poll(1), TrialStep::Passed);
        assert_eq!(trial.poll(u64::MAX), TrialStep::Passed);
    }
}
