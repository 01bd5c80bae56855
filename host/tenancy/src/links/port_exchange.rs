//! Tells a peer's daemon which UDP port packets of a connection are to go to, and learns the
//! peer's port from it (decision 0096).
//!
//! Both sides say theirs when they know it, and again until they hear that it was heard. An end
//! that is not there yet answers nothing, and says its own port when it comes.

use omniverb_terms::Qpn;
use omniverb_wire::{PORT, PortNotice};

/// A notice that is not answered is sent again after these times, in nanoseconds, and then after
/// the last of them.
const PAUSES: [u64; 4] = [1_000_000, 10_000_000, 100_000_000, 1_000_000_000];
/// Budget: times that a notice is sent so, for half a minute. A notice of the peer begins anew.
const NOTICES_MAX: usize = 33;
/// From then on it is sent after this time, in nanoseconds: a flood may have hidden all others.
const LATE_PAUSE: u64 = 30_000_000_000;
/// Budget: ports that an end of a link names in its life. It changes sides once.
const PORTS_MAX: u32 = 16;
/// Ports below it are not an ordinary process's.
const ORDINARY_PORTS: u16 = 1024;

/// The party that sends and takes packets of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// The engine, at port 4791.
    Engine,
    /// The queue pair's process; the daemon has the link's memory, and can give it to the engine.
    Process,
    /// The process, since before this daemon was started, which does not have the memory.
    Survivor,
}

impl Carrier {
    /// It is the queue pair's process.
    pub(crate) fn is_process(self) -> bool {
        self != Carrier::Engine
    }
}

/// Something that a notice of the peer says for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerNews {
    /// Packets are to go to this port.
    Port(u16),
    /// The peer's process has died, or does nothing but name ports.
    Gone,
}

/// The state of one link's exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortExchange {
    carrier: Carrier,
    /// The process was asked to give the link to the engine.
    is_asked_for: bool,
    /// Our port, once it is known.
    port: Option<u16>,
    /// Ports named by this end, and by the peer.
    named: [u32; 2],
    /// Counts changes of our port, by the time.
    number: u64,
    /// The peer has heard the newest.
    is_heard: bool,
    /// Notices sent since the last change.
    sent: usize,
    peer_port: Option<u16>,
    /// The number of the peer's newest notice.
    peer_number: u64,
}

impl PortExchange {
    /// Begins an exchange for a link that this party carries. The engine's port is known.
    pub(crate) fn new(carrier: Carrier, now: u64) -> PortExchange {
        let mut exchange = PortExchange {
            carrier,
            is_asked_for: false,
            port: None,
            named: [0; 2],
            number: 0,
            is_heard: false,
            sent: 0,
            peer_port: None,
            peer_number: 0,
        };
        if carrier == Carrier::Engine {
            exchange.set_port(PORT, now);
        }
        exchange
    }

    pub(crate) fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// The peer's port, if it has said one.
    pub(crate) fn peer_port(&self) -> Option<u16> {
        self.peer_port
    }

    /// The process is to give the link to the engine. False: it was asked before.
    pub(crate) fn ask_for(&mut self) -> bool {
        !std::mem::replace(&mut self.is_asked_for, true)
    }

    /// The engine carries the link from now on.
    pub(crate) fn give_to_engine(&mut self, now: u64) {
        self.carrier = Carrier::Engine;
        self.set_port(PORT, now);
    }

    /// The peer is to know this port from now on. False: too many were named.
    pub(crate) fn set_port(&mut self, port: u16, now: u64) -> bool {
        if self.port == Some(port) {
            return true;
        }
        // There is always one more for the engine.
        if self.named[0] >= PORTS_MAX && port != PORT {
            return false;
        }
        self.named[0] += 1;
        self.port = Some(port);
        self.number = now.max(self.number + 1);
        self.is_heard = false;
        self.sent = 0;
        true
    }

    /// The notice that says how things are: from this queue pair to that. `None`: there is nothing
    /// to say yet.
    pub(crate) fn notice(&self, from: Qpn, to: Qpn) -> Option<PortNotice> {
        let PortExchange { number, peer_number: heard, .. } = *self;
        let is_question = !self.is_heard;
        self.port.map(|port| PortNotice { from, to, port, is_question, number, heard })
    }

    /// The last notice: the process of this end has died.
    pub(crate) fn last_notice(&self, from: Qpn, to: Qpn) -> PortNotice {
        let (number, heard) = (self.number + 1, self.peer_number);
        PortNotice { from, to, port: 0, is_question: false, number, heard }
    }

    /// A notice was sent because the time had come: the pause until the next. `None`: it was heard.
    pub(crate) fn next_pause(&mut self) -> Option<u64> {
        self.sent = (self.sent + 1).min(NOTICES_MAX);
        let pause = match self.sent < NOTICES_MAX {
            true => PAUSES[(self.sent - 1).min(PAUSES.len() - 1)],
            false => LATE_PAUSE,
        };
        (!self.is_heard).then_some(pause)
    }

    /// Takes a notice of the peer. A stale one, or one that names no port of a process, says
    /// nothing.
    pub(crate) fn hear(&mut self, notice: &PortNotice) -> Option<PeerNews> {
        if self.port.is_some() && notice.heard == self.number {
            self.is_heard = true;
        }
        let is_possible = notice.port == 0 || notice.port >= ORDINARY_PORTS;
        if notice.number <= self.peer_number || !is_possible {
            return None;
        }
        self.peer_number = notice.number;
        // It is there now, and may not have been when it was told.
        self.sent = 0;
        match notice.port {
            0 => Some(PeerNews::Gone),
            port if self.peer_port.replace(port) == Some(port) => None,
            _ if self.named[1] >= PORTS_MAX => Some(PeerNews::Gone),
            port => {
                self.named[1] += 1;
                Some(PeerNews::Port(port))
            }
        }
    }

    /// The peer has not heard our port, as far as is known.
    pub(crate) fn is_unheard(&self) -> bool {
        self.port.is_some() && !self.is_heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: (Qpn, Qpn) = (Qpn(10), Qpn(20));

    fn notices(exchange: &PortExchange, ends: (Qpn, Qpn)) -> PortNotice {
        exchange.notice(ends.0, ends.1).unwrap()
    }

    #[test]
    fn two_sides_learn_each_others_port_by_three_notices() {
        let mut one = PortExchange::new(Carrier::Process, 5);
        assert_eq!(one.notice(ENDS.0, ENDS.1), None, "its port is not known");
        one.set_port(50_001, 6);
        let mut other = PortExchange::new(Carrier::Engine, 7);
        let question = notices(&one, ENDS);
        assert!(question.is_question);
        assert_eq!(other.hear(&question), Some(PeerNews::Port(50_001)));
        let answer = notices(&other, (ENDS.1, ENDS.0));
        assert_eq!(one.hear(&answer), Some(PeerNews::Port(PORT)));
        assert!(answer.is_question && !one.is_unheard() && other.is_unheard());
        let last = notices(&one, ENDS);
        assert!(!last.is_question);
        assert_eq!(other.hear(&last), None);
        assert!(!other.is_unheard());
    }

    #[test]
    fn a_late_notice_does_not_bring_an_old_port_back() {
        let mut here = PortExchange::new(Carrier::Engine, 1);
        let mut there = PortExchange::new(Carrier::Process, 1);
        there.set_port(50_001, 2);
        let old = notices(&there, ENDS);
        there.give_to_engine(3);
        assert_eq!(here.hear(&notices(&there, ENDS)), Some(PeerNews::Port(PORT)));
        assert_eq!(here.hear(&old), None);
        assert_eq!(here.peer_port(), Some(PORT));
    }

    #[test]
    fn a_port_of_the_system_is_not_believed_and_death_is() {
        let mut here = PortExchange::new(Carrier::Engine, 1);
        let mut there = PortExchange::new(Carrier::Process, 1);
        there.set_port(53, 2);
        assert_eq!((here.hear(&notices(&there, ENDS)), here.peer_port()), (None, None));
        let last = there.last_notice(ENDS.0, ENDS.1);
        assert_eq!(here.hear(&last), Some(PeerNews::Gone));
        assert_eq!(here.hear(&last), None);
    }

    #[test]
    fn an_end_that_names_ports_without_end_is_dead() {
        let mut here = PortExchange::new(Carrier::Engine, 1);
        let mut there = PortExchange::new(Carrier::Process, 1);
        let mut heard = Vec::new();
        for change in 0..100 {
            let port = 50_000 + change % 2;
            if !there.set_port(port, 2 + u64::from(change)) {
                break;
            }
            heard.extend(here.hear(&notices(&there, ENDS)));
        }
        assert_eq!(heard.len(), PORTS_MAX as usize);
        assert!(there.set_port(PORT, 200), "the engine can take it still");
        assert_eq!(here.hear(&notices(&there, ENDS)), Some(PeerNews::Gone));
    }

    #[test]
    fn an_unanswered_notice_is_repeated_ever_more_rarely() {
        let mut exchange = PortExchange::new(Carrier::Engine, 1);
        let pauses: Vec<u64> = std::iter::from_fn(|| exchange.next_pause()).take(40).collect();
        assert_eq!(pauses[..4], PAUSES);
        let all: u64 = pauses.iter().take_while(|pause| **pause < LATE_PAUSE).sum();
        assert!((20_000_000_000..40_000_000_000).contains(&all), "{all}");
        assert_eq!(pauses[39], LATE_PAUSE);
        let mut there = PortExchange::new(Carrier::Process, 1);
        there.set_port(50_001, 2);
        exchange.hear(&notices(&there, ENDS));
        assert_eq!(exchange.next_pause(), Some(PAUSES[0]), "the peer has come");
    }
}
