//! Queues requests for the privileged helper (`host/netns`) and matches its answers.
//!
//! The kernel may make the helper wait for its networking lock, so several requests run at a time,
//! a few of each kind and for each user, and one that takes too long is given up. The helper's
//! starter starts a helper that died again; its requests are sent once more.

use crate::running_helper_requests::{
    Enclosed, PendingRequest, Question, RunningHelperRequests, Subject,
};
use omniverb_fairness::{FairQueue, Holder};
use omniverb_netns::{
    AddressState, Answer, ContainerFacts, Enters, Found, Kind, STARTER, UnderlaySocket, receive,
    request, request_socket, want_addresses,
};
use omniverb_sys::eventfd::readable;
use omniverb_sys::helper_process::{Helper, HelperStart};
use omniverb_sys::netns::{Namespace, NetnsIdentity};
use omniverb_sys::thread_watchdog::ThreadPulse;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What takes longer is taken for lost. Others may hold the kernel's lock for a while.
const PATIENCE: u64 = 5_000_000_000;
/// How long the helper may take to start.
const START: Duration = Duration::from_secs(10);

/// Events of the helper.
#[derive(Debug)]
pub(crate) enum FromHelper {
    /// An answer, or that none came in time.
    Answer(Kind, Subject, io::Result<Found>),
    /// The helper had died, and there is another one.
    Restarted,
    /// A namespace has got an interface, or has changed; and its number that never comes back.
    Appeared(NetnsIdentity, Option<u64>, ContainerFacts),
    /// A namespace that had appeared is gone.
    Vanished(NetnsIdentity),
    /// What has become of addresses of policies.
    Addresses(AddressState),
}

/// The helper, and everything that is asked of it.
#[derive(Debug)]
pub(crate) struct HelperRequests {
    helper: Helper,
    /// It may enter other namespaces than our own.
    enters: bool,
    waiting: BTreeMap<Kind, FairQueue<Question>>,
    under_way: RunningHelperRequests,
    /// Of vNICs, each thing is asked once at a time.
    known: HashSet<(Kind, Subject)>,
    /// Events not taken yet, oldest first.
    news: VecDeque<FromHelper>,
    last: u64,
    /// Within a turn as long as it owes an answer; each answer begins another.
    pulse: ThreadPulse,
}

impl HelperRequests {
    /// Starts the helper and waits until it serves.
    pub(crate) fn start(helpers: &HelperStart, pulse: ThreadPulse) -> io::Result<HelperRequests> {
        let helper = helpers.start(STARTER, omniverb_netns::serve)?;
        if !readable(helper.socket(), Some(START))? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let Some(Answer::Started { enters }) = receive(helper.socket())? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        Ok(HelperRequests {
            helper,
            enters: enters == Enters::Others,
            waiting: BTreeMap::new(),
            under_way: RunningHelperRequests::default(),
            known: HashSet::new(),
            news: VecDeque::new(),
            last: 0,
            pulse,
        })
    }

    /// Whether it may enter other namespaces than our own.
    pub(crate) fn enters(&self) -> bool {
        self.enters
    }

    /// Readable when [`next`](Self::next) has something.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.helper.socket()
    }

    /// Asks when it is `holder`'s turn.
    pub(crate) fn ask(
        &mut self,
        kind: Kind,
        subject: Subject,
        holder: &Holder,
        enclosed: Enclosed,
        now: u64,
    ) {
        let is_known_by_subject =
            matches!(subject, Subject::Vnic(_) | Subject::Underlay | Subject::UnderlaySocket(_));
        if is_known_by_subject && !self.known.insert((kind, subject)) {
            return;
        }
        let question = Question { kind, subject, holder: holder.clone(), enclosed };
        self.waiting.entry(kind).or_default().push(holder, question);
        self.go_on(now);
    }

    /// Has interfaces of a namespace get these addresses, each beside another one, and no others.
    ///
    /// # Errors
    /// `WouldBlock` if it has to be said later.
    pub(crate) fn want_addresses(
        &self,
        namespace: &Namespace,
        wanted: &BTreeMap<IpAddr, IpAddr>,
    ) -> io::Result<()> {
        want_addresses(self.helper.socket(), namespace.as_fd(), wanted)
    }

    /// Waits until the helper says that it has removed all addresses, which it was told. Whatever
    /// else it says is lost: the daemon ends.
    pub(crate) fn has_removed_addresses(&self, limit: Duration) -> bool {
        let begun = Instant::now();
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            if !readable(self.helper.socket(), Some(left)).unwrap_or(false) {
                return false;
            }
            match receive(self.helper.socket()) {
                Ok(Some(Answer::UnderlayAddresses(states))) if states.is_empty() => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }

    /// Asks for the port of PSP in the namespace of the underlay.
    pub(crate) fn ask_underlay_psp_port(&mut self, namespace: Namespace, now: u64) {
        let enclosed = Enclosed::Namespace(Arc::new(namespace));
        self.ask(Kind::PspPort, Subject::Underlay, &Holder::default(), enclosed, now);
    }

    /// Asks for a socket at an underlay address in the namespace of the underlay.
    pub(crate) fn ask_underlay_socket(
        &mut self,
        socket: UnderlaySocket,
        namespace: &Arc<Namespace>,
        now: u64,
    ) {
        let subject = Subject::UnderlaySocket(socket);
        let enclosed = Enclosed::Namespace(namespace.clone());
        self.ask(Kind::UnderlaySocket, subject, &Holder::default(), enclosed, now);
    }

    /// Drops a request that no caller needs any more.
    pub(crate) fn forget(&mut self, kind: Kind, subject: Subject, holder: &Holder) {
        if let Some(waiting) = self.waiting.get_mut(&kind) {
            waiting.remove(holder, |question| question.subject == subject);
        }
    }

    /// Sends what there is room for.
    fn go_on(&mut self, now: u64) {
        for kind in [
            Kind::Process,
            Kind::Addresses,
            Kind::Port,
            Kind::PspPort,
            Kind::UnderlaySocket,
            Kind::Interfaces,
            Kind::Watch,
        ] {
            while self.under_way.has_room(kind) {
                let Some(waiting) = self.waiting.get_mut(&kind) else { break };
                let under_way = &self.under_way;
                let question = waiting.take(|question| under_way.has_room_for(question));
                let Some(question) = question else { break };
                self.last += 1;
                if self.under_way.is_empty() {
                    self.pulse.work();
                }
                self.send(self.last, &question);
                self.under_way.begin(self.last, question, now + PATIENCE);
            }
        }
    }

    /// There is room in the socket for all that may be under way. If it cannot be sent after all,
    /// the helper is gone, which is seen elsewhere.
    fn send(&self, id: u64, question: &Question) {
        let (socket, file) = (self.helper.socket(), question.enclosed.as_fd());
        let _ = match question.subject {
            Subject::UnderlaySocket(wanted) => request_socket(socket, id, wanted, file),
            _ => request(socket, id, question.kind, file),
        };
    }

    fn end(&mut self, id: u64) -> Option<PendingRequest> {
        let asked = self.under_way.end(id)?;
        match self.under_way.is_empty() {
            true => self.pulse.rest(),
            false => self.pulse.work(),
        }
        if !asked.is_late() {
            self.known.remove(&(asked.question.kind, asked.question.subject));
        }
        Some(asked)
    }

    /// What has become of something; `None` if there is nothing at the moment.
    ///
    /// # Errors
    /// If there is no helper any more, and none will come.
    pub(crate) fn next(&mut self, now: u64) -> io::Result<Option<FromHelper>> {
        loop {
            if let Some(news) = self.news.pop_front() {
                return Ok(Some(news));
            }
            match receive(self.helper.socket())? {
                None => return Ok(None),
                Some(Answer::Started { .. }) => {
                    self.restarted();
                    self.go_on(now);
                }
                Some(Answer::Appeared { identity, cookie, facts }) => {
                    return Ok(Some(FromHelper::Appeared(identity, cookie, facts)));
                }
                Some(Answer::Vanished { identity }) => {
                    return Ok(Some(FromHelper::Vanished(identity)));
                }
                Some(Answer::UnderlayAddresses(states)) => {
                    return Ok(Some(FromHelper::Addresses(states)));
                }
                Some(Answer::Found { id, kind, found }) => {
                    let fits = self.under_way.kind(id) == Some(kind);
                    let asked = if fits { self.end(id) } else { None };
                    if let Some(asked) = asked.filter(|asked| !asked.is_late()) {
                        self.news.push_back(FromHelper::Answer(
                            kind,
                            asked.question.subject,
                            found,
                        ));
                    }
                    self.go_on(now);
                }
            }
        }
    }

    /// The requests of the helper that died are sent once more, but not a third time: the helper
    /// may have died of one.
    fn restarted(&mut self) {
        self.news.push_back(FromHelper::Restarted);
        for id in self.under_way.ids() {
            if let Some(question) = self.under_way.ask_again(id) {
                let question = question.clone();
                self.send(id, &question);
            } else if let Some(asked) = self.end(id).filter(|asked| !asked.is_late()) {
                let Question { kind, subject, .. } = asked.question;
                let lost = Err(io::Error::other("the helper died of it"));
                self.news.push_back(FromHelper::Answer(kind, subject, lost));
            }
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.under_way.next_deadline()
    }

    /// What took too long. It goes on counting as under way until the helper has answered it.
    pub(crate) fn late(&mut self, now: u64) -> Vec<FromHelper> {
        let mut late = Vec::new();
        while let Some(Question { kind, subject, .. }) = self.under_way.next_late(now) {
            let (kind, subject) = (*kind, *subject);
            self.known.remove(&(kind, subject));
            late.push(FromHelper::Answer(kind, subject, Err(io::ErrorKind::TimedOut.into())));
        }
        late
    }
}
