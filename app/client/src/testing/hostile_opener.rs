//! An opener of a queue pair, and then its maker, that says what some bytes say. What must hold: no
//! panic, one answer to each question, and none of an event that there is not.

use crate::progress_thread_state::Progress;
use crate::shared_qp::{MakerConnection, Opener, OpenerService, SharedQueuePairs};
use omniverb_device::{Qp, QpSpec, Shared};
use omniverb_session::limits::STATISTICS_SLOT_BYTES;
use omniverb_session::shared_qp_messages::{self, Ask, Attributes, Notice};
use omniverb_sys::seqpacket;
use omniverb_terms::{Errno, Qpn, Service};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// One that cannot be changed.
struct OneQueuePair;

impl SharedQueuePairs for OneQueuePair {
    fn hold(&self, number: Qpn) -> bool {
        number == Qpn(7)
    }

    fn let_go(&self, _: Qpn) -> Option<Arc<Qp>> {
        None
    }

    fn query(&self, _: Qpn) -> Attributes {
        Attributes { state: 3, dest_qpn: Qpn(9), ..Attributes::NONE }
    }

    fn modify(&self, _: Qpn, _: u32, _: &Attributes) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }
}

/// Serves no opener: what was asked waits until it is taken.
pub(crate) struct IdleOpenerService;

impl OpenerService for IdleOpenerService {
    fn attend_to(&self, _: u64) {}
}

/// No queue pairs at all.
#[cfg(test)]
pub(crate) enum NoSharedQueuePairs {}

#[cfg(test)]
impl SharedQueuePairs for NoSharedQueuePairs {
    fn hold(&self, _: Qpn) -> bool {
        match *self {}
    }

    fn let_go(&self, _: Qpn) -> Option<Arc<Qp>> {
        match *self {}
    }

    fn query(&self, _: Qpn) -> Attributes {
        match *self {}
    }

    fn modify(&self, _: Qpn, _: u32, _: &Attributes) -> Result<(), Errno> {
        match *self {}
    }
}

/// An opener that is in no list, and is not attended to.
pub(crate) fn alone(socket: OwnedFd, number: Qpn, receivers: Weak<dyn SharedQueuePairs>) -> Opener {
    Opener::new(Default::default(), socket, number, receivers, Weak::<IdleOpenerService>::new())
}

/// A device without a peer behind it.
pub(crate) fn stand_in() -> Option<Arc<Qp>> {
    let carried = crate::carried_connections::CarriedConnections::new(|| {});
    let host = crate::device_platform::ProcessHost::new(Progress::new().ok()?, carried);
    let shared = Shared::new(Box::new(host));
    let spec = QpSpec::bare(&shared, Service::XrcRecv, None);
    let memory = omniverb_ring::Window::private(STATISTICS_SLOT_BYTES);
    Qp::new(&shared, spec, Qpn(7), memory)
}

/// Says what the bytes say, to both.
pub fn opened(bytes: &[u8]) {
    let one = Arc::new(OneQueuePair);
    let receivers: Weak<dyn SharedQueuePairs> = Arc::<OneQueuePair>::downgrade(&one);
    let (Ok((opener, _theirs)), Ok((line, _maker))) = (seqpacket::pair(), seqpacket::pair()) else {
        return;
    };
    let Some(qp) = stand_in() else { return };
    let (opener, line) = (alone(opener, Qpn(7), receivers), MakerConnection::new(line, qp.clone()));
    let mut at = 0;
    while at < bytes.len() {
        // Datagrams of the right length, mostly.
        let wanted = match bytes[at] % 8 {
            0 => usize::from(bytes[at]),
            1..4 => size_of::<Ask>(),
            _ => size_of::<Notice>(),
        };
        let mut said: Vec<u8> = bytes[at + 1..].iter().take(wanted).copied().collect();
        at += 1 + said.len();
        if bytes[at - 1] & 1 == 0 {
            said.resize(wanted, 0);
        }
        if opener.take(&said)
            && let Some(ask) = opener.asked()
        {
            let notice = opener.answer(&ask);
            assert_eq!((notice.tag, notice.what), (ask.tag, shared_qp_messages::ANSWER));
            assert_eq!(notice.errno == Errno::NONE, ask.what == shared_qp_messages::QUERY);
        }
        if at > bytes.len() / 2 {
            line.begin();
        }
        let heard = line.take(&said);
        let notice = Notice::read(&said);
        let known = |notice: Notice| {
            [shared_qp_messages::ANSWER, shared_qp_messages::EVENT].contains(&notice.what)
        };
        assert!(!heard || notice.is_some_and(known));
    }
    qp.destroy();
}

#[test]
fn every_message_gets_an_answer_or_ends_the_connection() {
    let mut random = super::xorshift64::Random(1);
    for _ in 0..50 {
        let byte = |word: u64| {
            // What is said, and events, are small numbers.
            let byte = (word >> 20) as u8;
            if word & 3 == 0 { byte } else { byte % 3 }
        };
        let bytes: Vec<u8> = random.by_ref().take(2000).map(byte).collect();
        opened(&bytes);
    }
}
