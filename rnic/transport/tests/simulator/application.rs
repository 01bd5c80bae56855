//! Plays the layer above one end: memory, receives, and answers that come at once, late, or after a
//! refusal for lack of a receive. It compares everything that arrives with the plan.

mod upper_layer;

use crate::model::{COUNTERS, Item, Plan, WRITABLE};
use omniverb_terms::Refusal;
use omniverb_transport::snapshot::UnansweredPart;
use omniverb_transport::splitmix64::Random;
use omniverb_transport::{Connection, Delivery, LateAnswer, Operation, ReadRequest, Ticket, Time};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::rc::Rc;

/// How the layer above behaves; chances in ten thousand.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    pub late: u64,
    pub stall: u64,
    /// Longest time to an answer.
    pub pause: Time,
    /// Receives are posted a few at a time.
    pub scarce: bool,
    /// Whether a missing receive is reported at once or found out later.
    pub reports_late: bool,
    /// This message of the peer, and no other, is refused.
    pub refuses: Option<usize>,
    /// What was read is gone as soon as the reader has it.
    pub forgets: bool,
}

/// An answer that is due.
struct DueAnswer {
    time: Time,
    ticket: Ticket,
    answer: LateAnswer,
    /// Which message of the peer it belongs to.
    message: usize,
    needs_receive: bool,
    told: bool,
}

pub struct Application {
    host: usize,
    pub mine: Rc<Plan>,
    pub theirs: Rc<Plan>,
    manners: Behaviour,
    random: Random,
    pub now: Time,
    pub written: Vec<u8>,
    pub counters: [u64; COUNTERS as usize],
    /// Which message of the peer comes next, and how much of it is here.
    pub cursor: usize,
    offset: u64,
    receives: u64,
    next_post: Time,
    late: VecDeque<DueAnswer>,
    resume: Option<Time>,
    /// READs of the peer, oldest first.
    reads: BTreeMap<Ticket, ReadRequest>,
    kept_max: u64,
    ticket: u64,
    /// A refusal is on its way: what arrives is neither compared nor placed.
    void: bool,
    /// Messages of the peer that are over there.
    pub heard: usize,
    /// READs whose memory is gone.
    gone: HashSet<Ticket>,
    /// How much of my READs is here.
    placed: HashMap<u64, u64>,
}

impl Application {
    pub fn new(
        host: usize,
        mine: Rc<Plan>,
        theirs: Rc<Plan>,
        manners: Behaviour,
        random: Random,
    ) -> Application {
        Application {
            host,
            mine,
            theirs,
            manners,
            random,
            now: 0,
            written: vec![0; WRITABLE as usize],
            counters: [0; COUNTERS as usize],
            cursor: 0,
            offset: 0,
            receives: if manners.scarce { 1 } else { u64::MAX / 2 },
            next_post: 0,
            late: VecDeque::new(),
            resume: None,
            reads: BTreeMap::new(),
            kept_max: 100_000,
            ticket: 0,
            void: false,
            heard: 0,
            gone: HashSet::new(),
            placed: HashMap::new(),
        }
    }

    /// Whether every message of the peer before this one was answered.
    pub fn answered_before(&self, message: usize) -> bool {
        self.late.iter().all(|late| late.message >= message)
    }

    fn stalls(&mut self) -> bool {
        let stalls = self.random.chance(self.manners.stall);
        if stalls {
            self.stall();
        }
        stalls
    }

    fn stall(&mut self) {
        if self.resume.is_none() {
            self.resume = Some(self.now + self.random.between(1, self.manners.pause.max(1)));
        }
    }

    fn answer_late(
        &mut self,
        ticket: Ticket,
        answer: LateAnswer,
        message: usize,
        needs_receive: bool,
    ) {
        let pause = self.random.between(1, self.manners.pause);
        let before = self.late.back().map_or(0, |late| late.time);
        let time = (self.now + pause).max(before);
        self.late.push_back(DueAnswer {
            time,
            ticket,
            answer,
            message,
            needs_receive,
            told: false,
        });
    }

    /// When it has something to do.
    pub fn next_time(&self) -> Option<Time> {
        let late = self
            .late
            .front()
            .map(|late| if late.told { late.time.max(self.next_post) } else { late.time });
        let post = (self.receives == 0).then_some(self.next_post);
        [late, post, self.resume].into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn act(&mut self, now: Time, connection: &mut Connection) {
        self.now = now;
        if self.manners.scarce && now >= self.next_post {
            self.receives = self.random.between(1, 4);
            self.next_post = now + self.random.between(1000, 3_000_000);
            connection.receive_came();
        }
        while let Some(late) = self.late.front_mut().filter(|late| late.time <= now) {
            if late.needs_receive {
                if self.receives == 0 {
                    if !late.told {
                        late.told = true;
                        connection.answer(late.ticket, LateAnswer::NotReady);
                    }
                    break;
                }
                self.receives -= 1;
            }
            if late.answer == LateAnswer::Gone {
                self.reads.remove(&late.ticket);
            }
            if late.answer == LateAnswer::Done && self.random.chance(5000) {
                // Whatever came before was done already, or is an atomic and not concerned.
                connection.done_through(late.ticket);
            } else {
                connection.answer(late.ticket, late.answer);
            }
            self.late.pop_front();
        }
        if self.resume.is_some_and(|time| time <= now) {
            self.resume = None;
            connection.resume(now);
        }
    }

    /// Refuses what the ticket names, at once or late.
    fn refuse(&mut self, ticket: Ticket) -> Delivery {
        let refusal = Refusal::RemoteAccess;
        if self.random.chance(self.manners.late) {
            self.answer_late(ticket, LateAnswer::Refused(refusal), self.cursor, false);
            self.void = true;
            return Delivery::Later;
        }
        Delivery::Refused(refusal)
    }

    /// Whether nobody waits for what is asked for again, so that its memory may be gone.
    fn has_forgotten(&self, request: &ReadRequest) -> bool {
        let end = request.address + request.length;
        let reads = |item: &Item| match item.operation {
            Operation::Read { address, .. } => {
                address <= request.address && end <= address + item.length
            }
            _ => false,
        };
        self.manners.forgets
            && request.is_repeated
            && request.length > 0
            && !self.theirs.items.iter().skip(self.heard).any(reads)
    }

    /// The last ticket of these parts. `None`: an answer to something else is due.
    pub fn tickets_of(&self, unanswered: &[UnansweredPart]) -> Option<Ticket> {
        let knows = |ticket| unanswered.iter().any(|part| part.ticket == ticket);
        let all = self.late.iter().all(|late| knows(late.ticket));
        all.then(|| unanswered.last().map_or(Ticket(0), |part| part.ticket))
    }

    /// Another connection goes on, with tickets behind this one.
    pub fn number_on_from(&mut self, ticket: Ticket) {
        self.ticket = ticket.0;
        self.reads.clear();
        self.gone.clear();
    }

    /// Tickets count up.
    fn see(&mut self, ticket: Ticket) {
        assert!(ticket.0 > self.ticket, "ticket {ticket:?} after {}", self.ticket);
        self.ticket = ticket.0;
    }

    /// The peer's next message that is no READ.
    fn skip_reads(&mut self) {
        while let Some(item) = self.theirs.items.get(self.cursor) {
            if !matches!(item.operation, Operation::Read { .. }) {
                break;
            }
            self.cursor += 1;
        }
    }
}
