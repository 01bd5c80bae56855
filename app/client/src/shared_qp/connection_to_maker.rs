//! The opener's side: what leads to the process that has made the queue pair.

use super::{OnProcessEnd, hang_up, take};
use crate::device_import::PeerSocket;
use omniverb_device::qp_attributes::State;
use omniverb_device::{AsyncEvent, Qp};
use omniverb_session::shared_qp_messages::{self, Ask, Attributes, Notice};
use omniverb_sys::{clock, lock, seqpacket};
use omniverb_terms::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// How long an answer may take: as long as a call to the daemon, which the maker may have to make.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// What leads to the maker.
pub(crate) struct MakerConnection {
    socket: OwnedFd,
    /// What this process has in the queue pair's place: its number, and where its events go.
    pub(super) qp: Arc<Qp>,
    /// One question at a time.
    asking: Mutex<()>,
    state: Mutex<MakerState>,
    change: Condvar,
}

struct MakerState {
    tag: u64,
    came: Option<Notice>,
    /// The attributes, as the maker said last.
    attributes: Attributes,
    /// The program has an object for it, which events are about. Those of before wait, of each
    /// kind one.
    has_object: bool,
    missed: Vec<AsyncEvent>,
    /// The maker is gone.
    lost: bool,
}

impl PeerSocket for MakerConnection {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn hear(&self) -> bool {
        let mut bytes = [0; shared_qp_messages::BYTES_MAX];
        let taken = take(self.socket.as_fd(), &mut bytes);
        let goes_on = taken.is_some_and(|length| length == 0 || self.take(&bytes[..length]));
        if !goes_on {
            self.process_ended();
        }
        goes_on
    }
}

impl OnProcessEnd for MakerConnection {
    /// The queue pair has ended with its maker.
    fn process_ended(&self) {
        let was_lost = {
            let mut known = lock(&self.state);
            known.attributes.state = State::Err as u32;
            std::mem::replace(&mut known.lost, true)
        };
        self.change.notify_all();
        if !was_lost {
            self.report(AsyncEvent::QpFatal);
        }
    }
}

impl MakerConnection {
    pub(crate) fn new(socket: OwnedFd, qp: Arc<Qp>) -> MakerConnection {
        let attributes = Attributes::NONE;
        let (has_object, missed, lost) = (false, Vec::new(), false);
        let known = MakerState { tag: 0, came: None, attributes, has_object, missed, lost };
        let (asking, state, change) = (Mutex::default(), Mutex::new(known), Condvar::new());
        MakerConnection { socket, qp, asking, state, change }
    }

    /// Takes in what the maker says. False: no maker says so.
    pub(crate) fn take(&self, datagram: &[u8]) -> bool {
        let Some(notice) = Notice::read(datagram) else { return false };
        let event = match notice.what {
            shared_qp_messages::ANSWER => None,
            shared_qp_messages::EVENT => match AsyncEvent::of_qp(notice.event) {
                None => return false,
                event => event,
            },
            _ => return false,
        };
        let is_lost = {
            let mut known = lock(&self.state);
            // What was said before the end and is heard after it changes nothing any more.
            if !known.lost {
                known.attributes = notice.attributes;
                // One that came too late is dropped.
                if event.is_none() && notice.tag == known.tag {
                    known.came = Some(notice);
                    self.change.notify_all();
                }
            }
            known.lost
        };
        // Of the end the program has heard already.
        let said = event.filter(|event| !is_lost || *event != AsyncEvent::QpFatal);
        if let Some(event) = said {
            self.report(event);
        }
        true
    }

    /// Gives the program an event, once it has its object.
    fn report(&self, event: AsyncEvent) {
        {
            let mut known = lock(&self.state);
            if !known.has_object {
                if !known.missed.contains(&event) {
                    known.missed.push(event);
                }
                return;
            }
        }
        self.qp.tell(event);
    }

    /// The program has its object, and gets what has happened until now.
    pub(crate) fn begin(&self) {
        let missed = {
            let mut known = lock(&self.state);
            known.has_object = true;
            std::mem::take(&mut known.missed)
        };
        missed.into_iter().for_each(|event| self.qp.tell(event));
    }

    /// Its last known attributes, now that the maker cannot be asked any more.
    pub(crate) fn remains(&self) -> Option<Attributes> {
        let known = lock(&self.state);
        known.lost.then_some(known.attributes)
    }

    /// Asks the maker.
    ///
    /// # Errors
    /// errno: of the answer; `EIO`: there is no maker any more; `ETIMEDOUT`: it does not answer.
    pub(crate) fn ask(&self, ask: &Ask) -> Result<Attributes, Errno> {
        let _mine = lock(&self.asking);
        let until = clock::now() + ANSWER_MAX.as_nanos() as u64;
        let mut known = lock(&self.state);
        known.tag += 1;
        known.came = None;
        if known.lost {
            return Err(Errno::EIO);
        }
        let ask = Ask { tag: known.tag, ..*ask };
        seqpacket::try_send(self.socket.as_fd(), ask.bytes(), &[]).map_err(|error| {
            let full = error.kind() == std::io::ErrorKind::WouldBlock;
            if full { Errno::ETIMEDOUT } else { Errno::EIO }
        })?;
        loop {
            if let Some(notice) = known.came.take() {
                return match notice.errno {
                    Errno::NONE => Ok(notice.attributes),
                    errno => Err(errno),
                };
            }
            let left = until.saturating_sub(clock::now());
            if known.lost || left == 0 {
                // What comes later is dropped.
                known.tag += 1;
                return Err(if known.lost { Errno::EIO } else { Errno::ETIMEDOUT });
            }
            let waited = self.change.wait_timeout(known, Duration::from_nanos(left));
            known = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    /// It is open no longer.
    pub(crate) fn end(self: Arc<Self>) {
        // What is the program's own doing is not reported.
        lock(&self.state).lost = true;
        hang_up(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::hostile_opener::stand_in;
    use std::sync::atomic::Ordering;

    static HEARD: Mutex<Vec<(AsyncEvent, usize)>> = Mutex::new(Vec::new());

    fn hear(event: AsyncEvent, cookie: usize) {
        lock(&HEARD).push((event, cookie));
    }

    /// A line whose queue pair has this cookie.
    fn line(cookie: usize) -> MakerConnection {
        crate::device_platform::on_async_event(hear);
        let qp = stand_in().unwrap();
        qp.cookie.store(cookie, Ordering::Release);
        MakerConnection::new(seqpacket::pair().unwrap().0, qp)
    }

    fn heard(cookie: usize) -> Vec<AsyncEvent> {
        let all = lock(&HEARD);
        all.iter().filter(|(_, of)| *of == cookie).map(|(event, _)| *event).collect()
    }

    fn notice(what: u32, event: u32, state: State) -> Notice {
        let attributes = Attributes { state: state as u32, ..Attributes::NONE };
        Notice { tag: 0, what, errno: Errno::NONE, event, reserved: 0, attributes }
    }

    fn happened(event: AsyncEvent, state: State) -> Notice {
        notice(shared_qp_messages::EVENT, event as u32, state)
    }

    /// Two datagrams were under way when the maker ended.
    #[test]
    fn what_is_heard_after_the_end_does_not_bring_it_back() {
        let line = line(11);
        line.begin();
        let established = happened(AsyncEvent::CommunicationEstablished, State::Rts);
        assert!(line.take(established.bytes()));
        line.process_ended();
        for late in [notice(shared_qp_messages::ANSWER, 0, State::Rts), established] {
            assert!(line.take(late.bytes()));
        }
        assert!(line.take(happened(AsyncEvent::QpFatal, State::Err).bytes()));
        line.process_ended();
        assert_eq!(line.remains().map(|known| known.state), Some(State::Err as u32));
        use AsyncEvent::{CommunicationEstablished, QpFatal};
        assert_eq!(heard(11), [CommunicationEstablished, QpFatal, CommunicationEstablished]);
    }

    /// The maker may bring it back between two ends of a sender without saying so.
    #[test]
    fn each_end_is_reported() {
        let line = line(12);
        line.begin();
        for _ in 0..2 {
            assert!(line.take(happened(AsyncEvent::QpFatal, State::Err).bytes()));
        }
        line.process_ended();
        assert_eq!(heard(12), [AsyncEvent::QpFatal; 3]);
    }

    #[test]
    fn events_before_the_object_exists_are_reported_to_it() {
        let line = line(13);
        for _ in 0..3 {
            let established = happened(AsyncEvent::CommunicationEstablished, State::Rts);
            assert!(line.take(established.bytes()));
        }
        line.process_ended();
        assert!(heard(13).is_empty());
        line.begin();
        use AsyncEvent::{CommunicationEstablished, QpFatal};
        assert_eq!(heard(13), [CommunicationEstablished, QpFatal]);
        line.process_ended();
        assert_eq!(heard(13).len(), 2);
    }
}
