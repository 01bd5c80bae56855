//! What the privileged helper (`host/netns`) is asked, in turns, and what becomes of that.
//!
//! The kernel may make the helper wait for its networking lock, so several requests are under way
//! at a time, a few of each kind and for each user, and what takes too long is given up. A helper
//! that dies is started again by its starter; what it was doing is asked once more.

use omniverb_netns::{Answer, Found, Kind, STARTER, receive, request};
use omniverb_sys::child::{Helper, Helpers};
use omniverb_sys::event::readable;
use omniverb_sys::netns::Namespace;
use omniverb_sys::pulse::Pulse;
use omniverb_tenancy::{Holder, SessionId, Turns, VnicId};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Requests of a kind under way, and those of one user in one cgroup, since others must find one
/// free. Together they are fewer than the helper's [`WORKERS`](omniverb_netns::WORKERS). Who a
/// process is the kernel says without waiting, so a few are enough, and leave the processor to the
/// daemon when somebody connects as fast as he can.
fn slots(kind: Kind) -> (usize, usize) {
    match kind {
        Kind::Process => (4, 2),
        Kind::Addresses | Kind::Port => (16, 4),
    }
}

/// What takes longer is taken for lost. Others may hold the kernel's lock for a while.
const PATIENCE: u64 = 5_000_000_000;
/// How long the helper may take to start.
const START: Duration = Duration::from_secs(10);

/// For whom something is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Subject {
    /// A connection whose process is to be identified.
    Arrival(SessionId),
    /// A process that this client has named.
    Named(SessionId),
    /// A vNIC.
    Vnic(VnicId),
}

/// What goes with a request.
#[derive(Clone, Debug)]
pub(crate) enum Enclosed {
    /// A process, by its descriptor.
    Process(Arc<OwnedFd>),
    /// A namespace.
    Namespace(Arc<Namespace>),
}

impl AsFd for Enclosed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Enclosed::Process(file) => file.as_fd(),
            Enclosed::Namespace(namespace) => namespace.as_fd(),
        }
    }
}

/// What the daemon hears of it.
#[derive(Debug)]
pub(crate) enum FromHelper {
    /// An answer, or that none came in time.
    Answer(Kind, Subject, io::Result<Found>),
    /// The helper had died, and there is another one.
    Restarted,
}

#[derive(Clone, Debug)]
struct Question {
    kind: Kind,
    subject: Subject,
    holder: Holder,
    enclosed: Enclosed,
}

#[derive(Debug)]
struct Asked {
    question: Question,
    deadline: u64,
    /// Already asked of a helper that died.
    again: bool,
    /// Nobody waits for it any more.
    late: bool,
}

/// The helper, and everything that is asked of it.
#[derive(Debug)]
pub(crate) struct Asking {
    helper: Helper,
    /// It may enter other namespaces than our own.
    enters: bool,
    waiting: BTreeMap<Kind, Turns<Question>>,
    under_way: BTreeMap<u64, Asked>,
    deadlines: BTreeSet<(u64, u64)>,
    /// How many of them there are of each kind and user.
    of_one: HashMap<(Kind, Holder), usize>,
    of_kind: BTreeMap<Kind, usize>,
    /// Of vNICs, each thing is asked once at a time.
    known: HashSet<(Kind, Subject)>,
    /// What nobody has taken yet, oldest first.
    news: VecDeque<FromHelper>,
    last: u64,
    /// Within a turn as long as it owes an answer; each answer begins another.
    pulse: Pulse,
}

impl Asking {
    /// Starts the helper and waits until it serves.
    pub(crate) fn start(helpers: &Helpers, pulse: Pulse) -> io::Result<Asking> {
        let helper = helpers.start(STARTER, omniverb_netns::serve)?;
        if !readable(helper.socket(), Some(START))? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let Some(Answer::Started { enters }) = receive(helper.socket())? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        Ok(Asking {
            helper,
            enters,
            waiting: BTreeMap::new(),
            under_way: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            of_one: HashMap::new(),
            of_kind: BTreeMap::new(),
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
        if matches!(subject, Subject::Vnic(_)) && !self.known.insert((kind, subject)) {
            return;
        }
        let question = Question { kind, subject, holder: holder.clone(), enclosed };
        self.waiting.entry(kind).or_default().push(holder, question);
        self.go_on(now);
    }

    /// Nobody wants to know any more.
    pub(crate) fn forget(&mut self, kind: Kind, subject: Subject, holder: &Holder) {
        if let Some(waiting) = self.waiting.get_mut(&kind) {
            waiting.remove(holder, |question| question.subject == subject);
        }
    }

    /// Sends what there is room for.
    fn go_on(&mut self, now: u64) {
        for kind in [Kind::Process, Kind::Addresses, Kind::Port] {
            let (most, of_each) = slots(kind);
            while self.of_kind.get(&kind).is_none_or(|count| *count < most) {
                let Some(waiting) = self.waiting.get_mut(&kind) else { break };
                let of_one = &self.of_one;
                let question = waiting.take(|question| {
                    let count = of_one.get(&(kind, question.holder.clone()));
                    count.is_none_or(|count| *count < of_each)
                });
                let Some(question) = question else { break };
                self.last += 1;
                if self.under_way.is_empty() {
                    self.pulse.work();
                }
                self.send(self.last, &question);
                let deadline = now + PATIENCE;
                self.deadlines.insert((deadline, self.last));
                *self.of_kind.entry(kind).or_default() += 1;
                *self.of_one.entry((kind, question.holder.clone())).or_default() += 1;
                let asked = Asked { question, deadline, again: false, late: false };
                self.under_way.insert(self.last, asked);
            }
        }
    }

    /// There is room in the socket for all that may be under way. If it cannot be sent after all,
    /// the helper is gone, which is seen elsewhere.
    fn send(&self, id: u64, question: &Question) {
        let file = question.enclosed.as_fd();
        let _ = request(self.helper.socket(), id, question.kind, file);
    }

    fn end(&mut self, id: u64) -> Option<Asked> {
        let asked = self.under_way.remove(&id)?;
        match self.under_way.is_empty() {
            true => self.pulse.rest(),
            false => self.pulse.work(),
        }
        self.deadlines.remove(&(asked.deadline, id));
        let Question { kind, subject, holder, .. } = &asked.question;
        if let Some(count) = self.of_kind.get_mut(kind) {
            *count -= 1;
        }
        let row = (*kind, holder.clone());
        if let Some(count) = self.of_one.get_mut(&row) {
            *count -= 1;
            if *count == 0 {
                self.of_one.remove(&row);
            }
        }
        if !asked.late {
            self.known.remove(&(*kind, *subject));
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
                Some(Answer::Found { id, kind, found }) => {
                    let fits = self.under_way.get(&id).is_some_and(|a| a.question.kind == kind);
                    let asked = if fits { self.end(id) } else { None };
                    if let Some(asked) = asked.filter(|asked| !asked.late) {
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

    /// What the helper that died was doing is asked once more; if that is what it died of, not
    /// again.
    fn restarted(&mut self) {
        self.news.push_back(FromHelper::Restarted);
        let ids: Vec<u64> = self.under_way.keys().copied().collect();
        for id in ids {
            let Some(asked) = self.under_way.get_mut(&id) else { continue };
            if !asked.again && !asked.late {
                asked.again = true;
                let question = asked.question.clone();
                self.send(id, &question);
            } else if let Some(asked) = self.end(id).filter(|asked| !asked.late) {
                let Question { kind, subject, .. } = asked.question;
                let lost = Err(io::Error::other("the helper died of it"));
                self.news.push_back(FromHelper::Answer(kind, subject, lost));
            }
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// What took too long. It goes on counting as under way until the helper has answered it.
    pub(crate) fn late(&mut self, now: u64) -> Vec<FromHelper> {
        let mut late = Vec::new();
        while let Some((at, id)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, id));
            let Some(asked) = self.under_way.get_mut(&id) else { continue };
            asked.late = true;
            let Question { kind, subject, .. } = asked.question;
            self.known.remove(&(kind, subject));
            late.push(FromHelper::Answer(kind, subject, Err(io::ErrorKind::TimedOut.into())));
        }
        late
    }
}
