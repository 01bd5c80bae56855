//! Reads packets and traces, sorts them by time, and writes them.
//!
//! A writer takes the time first and writes then, so a record read now may be older than one read
//! before. All records are kept back for a moment ([`HOLD`]) and sorted.

#[cfg(test)]
mod tests;

use super::capture_file::Capture;
use super::command::{Summary, Task};
use super::packets_of_traces::rebuild;
use super::traced_process::{Process, TracedLink, Turn};
use super::traced_processes::Processes;
use crate::capture_recorder::packet_queue::CapturedPacket;
use omniverb_datapath::memory_accounts::{Room, RoomPart};
use omniverb_link::Trace;
use omniverb_sys::thread_watchdog::ThreadPulse;
use omniverb_sys::{EventFd, clock};
use omniverb_terms::{Errno, VnicId};
use omniverb_wire::Identification;
use omniverb_wire::pcap::Envelope;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long something is kept back, in nanoseconds.
const HOLD: u64 = 20_000_000;
/// How often rings are looked at while little happens.
const LOOK: Duration = Duration::from_millis(3);
/// How often files are brought up to date, in nanoseconds.
const FLUSH_EVERY: u64 = 50_000_000;
/// Turns for what is left in a ring when its process ends.
const LAST_TURNS: usize = 64;
/// The traffic class that packets of direct links would carry: "may be marked when there is
/// congestion".
const TRAFFIC_CLASS: u8 = 2;
const HOP_LIMIT: u8 = 64;

enum Content {
    /// For the capture of a vNIC.
    Packet(VnicId, CapturedPacket),
    Trace(TraceOwner, Trace, Box<[u8]>),
}

/// Of which link something is told.
enum TraceOwner {
    Link(Arc<TracedLink>),
    /// That was not known yet; the session.
    Unknown(u64),
}

/// Something that happened. Of what happened at one time, what was read first comes first.
struct Event {
    time: u64,
    number: u64,
    content: Content,
    _part: RoomPart,
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Event) -> std::cmp::Ordering {
        (self.time, self.number).cmp(&(other.time, other.number))
    }
}

/// Records kept back. Beyond the room for them rings fill up, and processes' traces are dropped.
struct KeptBack {
    heap: BinaryHeap<Reverse<Event>>,
    room: Room,
    count: u64,
}

impl KeptBack {
    fn new(bytes: usize) -> KeptBack {
        KeptBack { heap: BinaryHeap::new(), room: Room::new(bytes), count: 0 }
    }

    /// Adds a record, over the bound as well: readers check [`Self::is_full`] first.
    fn add(&mut self, time: u64, content: Content) {
        self.count += 1;
        let _part = self.room.stretch(bytes_of(&content));
        self.heap.push(Reverse(Event { time, number: self.count, content, _part }));
    }

    fn is_full(&self) -> bool {
        self.room.taken() > self.room.most()
    }

    /// The oldest, if it happened before `until`.
    fn take(&mut self, until: u64) -> Option<Event> {
        self.heap.peek().filter(|Reverse(event)| event.time < until)?;
        self.heap.pop().map(|Reverse(event)| event)
    }
}

fn bytes_of(content: &Content) -> usize {
    size_of::<Event>()
        + match content {
            Content::Packet(_, packet) => packet.bytes.len(),
            Content::Trace(_, _, payload) => payload.len(),
        }
}

pub(super) struct Thread {
    tasks: mpsc::Receiver<Task>,
    tell_begun: mpsc::Sender<(u64, Option<Errno>)>,
    tell: mpsc::Sender<(u64, Summary)>,
    ready: Arc<EventFd>,
    captures: BTreeMap<u64, Capture>,
    processes: Processes,
    kept_back: KeptBack,
    flushed: u64,
}

impl Thread {
    pub(super) fn new(
        tasks: mpsc::Receiver<Task>,
        tell_begun: mpsc::Sender<(u64, Option<Errno>)>,
        tell: mpsc::Sender<(u64, Summary)>,
        ready: Arc<EventFd>,
        kept_back: usize,
    ) -> Thread {
        let (captures, processes) = (BTreeMap::new(), Processes::default());
        Thread {
            tasks,
            tell_begun,
            tell,
            ready,
            captures,
            processes,
            kept_back: KeptBack::new(kept_back),
            flushed: 0,
        }
    }

    /// Works until the control plane is gone.
    pub(super) fn run(mut self, pulse: &ThreadPulse) {
        let mut busy = false;
        loop {
            pulse.rest();
            let task = match (self.captures.is_empty(), busy) {
                (true, _) => self.tasks.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
                (false, true) => self.tasks.recv_timeout(Duration::ZERO),
                (false, false) => self.tasks.recv_timeout(LOOK),
            };
            pulse.work();
            match task {
                Ok(task) => {
                    self.apply(task);
                    while let Ok(task) = self.tasks.try_recv() {
                        self.apply(task);
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            busy = self.look();
        }
        let numbers: Vec<u64> = self.captures.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.end(number));
    }

    fn apply(&mut self, task: Task) {
        match task {
            Task::Begin { capture: number, vnic, file, snap_bytes, queue } => {
                let capture = Capture::new(vnic, file, snap_bytes, queue, clock::now());
                let errno = capture.summary.errno;
                self.captures.insert(number, capture);
                // Before the begin is reported, and an event happens.
                let keep = self.keep();
                self.processes.live().for_each(|process| process.want(keep));
                let _ = self.tell_begun.send((number, errno));
                self.ready.signal();
            }
            Task::End { capture } => self.end(capture),
            Task::Process { session, memory } => {
                let process = Process::new(&memory, self.keep(), clock::now());
                self.processes.begin(session, process);
            }
            Task::EndProcess { session } => {
                self.drain(session);
                self.processes.end(session, clock::now());
                if self.captures.is_empty() {
                    self.processes.forget_before(u64::MAX);
                }
            }
            Task::Link { session, end, vnics } => {
                if let Some(process) = self.processes.live_mut(session) {
                    process.trace(end, vnics);
                }
            }
            Task::EndLink { session, qpn, peer_qpn } => {
                self.drain(session);
                if let Some(process) = self.processes.live_mut(session) {
                    process.untrace(qpn, peer_qpn, clock::now());
                }
            }
            Task::Discard(files) => drop(files),
            Task::Untraced => {
                let captures = self.captures.values_mut();
                captures.for_each(|capture| capture.summary.untraced += 1);
            }
        }
    }

    /// Payload bytes of a packet that some capture wants. Headers come first, but their size is not
    /// known beforehand.
    fn keep(&self) -> usize {
        self.captures.values().map(|capture| capture.snap_bytes).max().unwrap_or(0) as usize
    }

    /// Takes what there is and writes what is due. True: there is more.
    fn look(&mut self) -> bool {
        let now = clock::now();
        let mut more = false;
        for session in self.processes.sessions() {
            if self.kept_back.is_full() {
                break;
            }
            more |= self.turn(session, now).has_more;
        }
        for capture in self.captures.values_mut() {
            let queued = capture.queue.take();
            capture.drop_packets(queued.dropped);
            for packet in queued.list {
                self.kept_back.add(packet.time, Content::Packet(capture.vnic, packet));
            }
        }
        self.write(now.saturating_sub(HOLD));
        if now.saturating_sub(self.flushed) > FLUSH_EVERY {
            self.flushed = now;
            self.captures.values_mut().for_each(Capture::flush);
        }
        more
    }

    /// Reads some of what a process told.
    fn turn(&mut self, session: u64, now: u64) -> Turn {
        let Some(process) = self.processes.live_mut(session) else { return Turn::default() };
        let kept_back = &mut self.kept_back;
        let turn = process.read(now, |time, traced, trace, payload| {
            let owner =
                traced.map_or(TraceOwner::Unknown(session), |link| TraceOwner::Link(link.clone()));
            kept_back.add(time, Content::Trace(owner, *trace, payload.into()));
        });
        self.blame(session, turn.lost, turn.refused);
        turn
    }

    /// A process could not tell of so many packets, and told so many times what makes no sense.
    fn blame(&mut self, session: u64, lost: u64, refused: u64) {
        let Some(process) = self.processes.find(session).filter(|_| lost > 0 || refused > 0) else {
            return;
        };
        for capture in self.captures.values_mut() {
            if process.concerns(capture.vnic) {
                capture.drop_packets(lost);
                capture.summary.refused += refused;
            }
        }
    }

    /// Reads what a process told until now.
    fn drain(&mut self, session: u64) {
        let begun = clock::now();
        for _ in 0..LAST_TURNS {
            let turn = self.turn(session, clock::now());
            if self.kept_back.is_full() {
                self.write(clock::now());
            }
            if !turn.has_more || turn.last >= begun {
                break;
            }
        }
    }

    /// Writes what happened before `until`.
    fn write(&mut self, until: u64) {
        // Both clocks go on at the same pace, but for small corrections.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_nanos()).unwrap_or_default();
        let offset = now.wrapping_sub(clock::now());
        while let Some(Event { time, content, .. }) = self.kept_back.take(until) {
            match content {
                Content::Packet(vnic, packet) => self.write_packet(time, offset, vnic, &packet),
                Content::Trace(TraceOwner::Link(traced), trace, payload) => {
                    self.write_trace(time, offset, &traced, &trace, &payload);
                }
                Content::Trace(TraceOwner::Unknown(session), trace, payload) => {
                    let process = self.processes.find(session);
                    match process.and_then(|process| process.link(&trace)).cloned() {
                        Some(traced) => self.write_trace(time, offset, &traced, &trace, &payload),
                        None => self.blame(session, 0, 1),
                    }
                }
            }
        }
        self.processes.forget_before(until);
    }

    /// `offset`: from our clock to the time since 1970.
    fn write_packet(&mut self, time: u64, offset: u64, vnic: VnicId, packet: &CapturedPacket) {
        let envelope = Envelope {
            flow: packet.flow,
            identification: packet.identification,
            traffic_class: packet.traffic_class,
            hop_limit: HOP_LIMIT,
        };
        let captures = self.captures.values_mut();
        let time_of_day = time.wrapping_add(offset);
        for capture in captures.filter(|one| one.vnic == vnic && one.since <= time) {
            let known = packet.bytes.len();
            if known == packet.length {
                capture.add(time_of_day, &envelope, &packet.bytes, known);
            } else {
                let mut whole = packet.bytes.to_vec();
                whole.resize(packet.length, 0);
                capture.add(time_of_day, &envelope, &whole, known);
            }
        }
    }

    /// A trace from before a capture began is no part of it: another one began earlier, or ended
    /// and the process learnt of that later.
    fn write_trace(
        &mut self,
        time: u64,
        offset: u64,
        traced: &TracedLink,
        trace: &Trace,
        payload: &[u8],
    ) {
        let concerned =
            |capture: &&mut Capture| traced.vnics.contains(&capture.vnic) && capture.since <= time;
        let mut captures: Vec<&mut Capture> =
            self.captures.values_mut().filter(concerned).collect();
        if captures.is_empty() {
            return;
        }
        let sense = rebuild(&traced.end, trace, payload, |rebuilt| {
            let envelope = Envelope {
                flow: rebuilt.flow,
                identification: Identification::ZERO,
                traffic_class: TRAFFIC_CLASS,
                hop_limit: HOP_LIMIT,
            };
            for capture in &mut captures {
                capture.add(time.wrapping_add(offset), &envelope, rebuilt.datagram, rebuilt.known);
            }
        });
        if !sense {
            captures.iter_mut().for_each(|capture| capture.summary.refused += 1);
        }
    }

    /// The end of a capture: of everything that happened before it.
    fn end(&mut self, number: u64) {
        self.processes.sessions().into_iter().for_each(|session| self.drain(session));
        self.look();
        self.write(clock::now());
        let Some(capture) = self.captures.remove(&number) else { return };
        // The requester may be gone.
        let _ = self.tell.send((number, capture.finish()));
        self.ready.signal();
    }
}
