//! The recorder's loop: reads what there is, puts it in order, writes it down.
//!
//! Whoever tells something takes its time first and tells then, so what is read now may be older
//! than what was read before. Everything is kept back for a moment ([`HOLD`]) and sorted.

#[cfg(test)]
mod tests;

use super::file::Recording;
use super::ring::{Ring, Traced, Turn};
use super::rings::Rings;
use super::story;
use super::task::{Summary, Task};
use crate::recorder::intake::Copy;
use omniverb_link::Trace;
use omniverb_sys::pulse::Pulse;
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
/// Bytes kept back; beyond that rings fill up, and who tells drops.
const KEPT_BACK_MAX: usize = 64 << 20;
/// Turns for what is left in a ring at its end.
const LAST_TURNS: usize = 64;
/// What packets of direct links would carry: "may be marked when there is congestion".
const TRAFFIC_CLASS: u8 = 2;
const HOP_LIMIT: u8 = 64;

enum Content {
    /// For the capture of a vNIC.
    Packet(VnicId, Copy),
    Told(Whose, Trace, Box<[u8]>),
}

/// Of which link something is told.
enum Whose {
    Link(Arc<Traced>),
    /// That was not known yet; the session.
    Unknown(u64),
}

/// Something that happened. Of what happened at one time, what was read first comes first.
struct Event {
    time: u64,
    number: u64,
    content: Content,
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

/// What is kept back.
#[derive(Default)]
struct KeptBack {
    heap: BinaryHeap<Reverse<Event>>,
    bytes: usize,
    count: u64,
}

impl KeptBack {
    fn add(&mut self, time: u64, content: Content) {
        self.count += 1;
        self.bytes += bytes_of(&content);
        self.heap.push(Reverse(Event { time, number: self.count, content }));
    }

    /// The oldest, if it happened before `until`.
    fn take(&mut self, until: u64) -> Option<Event> {
        self.heap.peek().filter(|Reverse(event)| event.time < until)?;
        let Reverse(event) = self.heap.pop()?;
        self.bytes -= bytes_of(&event.content);
        Some(event)
    }
}

fn bytes_of(content: &Content) -> usize {
    size_of::<Event>()
        + match content {
            Content::Packet(_, copy) => copy.bytes.len(),
            Content::Told(_, _, payload) => payload.len(),
        }
}

pub(super) struct Thread {
    tasks: mpsc::Receiver<Task>,
    tell_begun: mpsc::Sender<(u64, Option<Errno>)>,
    tell: mpsc::Sender<(u64, Summary)>,
    ready: Arc<EventFd>,
    recordings: BTreeMap<u64, Recording>,
    rings: Rings,
    kept_back: KeptBack,
    flushed: u64,
}

impl Thread {
    pub(super) fn new(
        tasks: mpsc::Receiver<Task>,
        tell_begun: mpsc::Sender<(u64, Option<Errno>)>,
        tell: mpsc::Sender<(u64, Summary)>,
        ready: Arc<EventFd>,
    ) -> Thread {
        let (recordings, rings) = (BTreeMap::new(), Rings::default());
        Thread {
            tasks,
            tell_begun,
            tell,
            ready,
            recordings,
            rings,
            kept_back: KeptBack::default(),
            flushed: 0,
        }
    }

    /// Works until the control plane is gone.
    pub(super) fn run(mut self, pulse: &Pulse) {
        let mut busy = false;
        loop {
            pulse.rest();
            let task = match (self.recordings.is_empty(), busy) {
                (true, _) => self.tasks.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
                (false, true) => self.tasks.recv_timeout(Duration::ZERO),
                (false, false) => self.tasks.recv_timeout(LOOK),
            };
            pulse.work();
            match task {
                Ok(task) => {
                    self.obey(task);
                    while let Ok(task) = self.tasks.try_recv() {
                        self.obey(task);
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            busy = self.look();
        }
        let captures: Vec<u64> = self.recordings.keys().copied().collect();
        captures.into_iter().for_each(|capture| self.end(capture));
    }

    fn obey(&mut self, task: Task) {
        match task {
            Task::Begin { capture, vnic, file, snap_bytes, intake } => {
                let recording = Recording::new(vnic, file, snap_bytes, intake, clock::now());
                let errno = recording.summary.errno;
                self.recordings.insert(capture, recording);
                // Before anybody hears that it has begun, and something happens.
                let keep = self.keep();
                self.rings.live().for_each(|ring| ring.want(keep));
                let _ = self.tell_begun.send((capture, errno));
                self.ready.signal();
            }
            Task::End { capture } => self.end(capture),
            Task::Ring { session, memory } => {
                let ring = Ring::new(&memory, self.keep(), clock::now());
                self.rings.begin(session, ring);
            }
            Task::EndRing { session } => {
                self.drain(session);
                self.rings.end(session, clock::now());
                if self.recordings.is_empty() {
                    self.rings.forget_before(u64::MAX);
                }
            }
            Task::Trace { session, end, vnics } => {
                if let Some(ring) = self.rings.live_mut(session) {
                    ring.trace(end, vnics);
                }
            }
            Task::Untrace { session, qpn, peer_qpn } => {
                self.drain(session);
                if let Some(ring) = self.rings.live_mut(session) {
                    ring.untrace(qpn, peer_qpn, clock::now());
                }
            }
            Task::Discard(files) => drop(files),
            Task::Untraced => {
                let recordings = self.recordings.values_mut();
                recordings.for_each(|recording| recording.summary.untraced += 1);
            }
        }
    }

    /// Payload bytes of a packet that somebody wants. Headers come first, but which they are is not
    /// known beforehand.
    fn keep(&self) -> usize {
        self.recordings.values().map(|recording| recording.snap_bytes).max().unwrap_or(0) as usize
    }

    /// Takes what there is and writes what is due. True: there is more.
    fn look(&mut self) -> bool {
        let now = clock::now();
        let mut more = false;
        for session in self.rings.sessions() {
            if self.kept_back.bytes > KEPT_BACK_MAX {
                break;
            }
            more |= self.turn(session, now).more;
        }
        for recording in self.recordings.values_mut() {
            let queue = recording.intake.take();
            recording.drop_packets(queue.dropped);
            for copy in queue.list {
                self.kept_back.add(copy.time, Content::Packet(recording.vnic, copy));
            }
        }
        self.write(now.saturating_sub(HOLD));
        if now.saturating_sub(self.flushed) > FLUSH_EVERY {
            self.flushed = now;
            self.recordings.values_mut().for_each(Recording::flush);
        }
        more
    }

    /// Reads some of what a process told.
    fn turn(&mut self, session: u64, now: u64) -> Turn {
        let Some(ring) = self.rings.live_mut(session) else { return Turn::default() };
        let kept_back = &mut self.kept_back;
        let turn = ring.read(now, |time, traced, trace, payload| {
            let whose = traced.map_or(Whose::Unknown(session), |link| Whose::Link(link.clone()));
            kept_back.add(time, Content::Told(whose, *trace, payload.into()));
        });
        self.blame(session, turn.lost, turn.refused);
        turn
    }

    /// A process could not tell of so many packets, and told so many times what makes no sense.
    fn blame(&mut self, session: u64, lost: u64, refused: u64) {
        let Some(ring) = self.rings.find(session).filter(|_| lost > 0 || refused > 0) else {
            return;
        };
        for recording in self.recordings.values_mut() {
            if ring.concerns(recording.vnic) {
                recording.drop_packets(lost);
                recording.summary.refused += refused;
            }
        }
    }

    /// Reads what a process told until now.
    fn drain(&mut self, session: u64) {
        let begun = clock::now();
        for _ in 0..LAST_TURNS {
            let turn = self.turn(session, clock::now());
            if self.kept_back.bytes > KEPT_BACK_MAX {
                self.write(clock::now());
            }
            if !turn.more || turn.last >= begun {
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
                Content::Packet(vnic, copy) => self.write_copy(time, offset, vnic, &copy),
                Content::Told(Whose::Link(traced), trace, payload) => {
                    self.write_told(time, offset, &traced, &trace, &payload);
                }
                Content::Told(Whose::Unknown(session), trace, payload) => {
                    let ring = self.rings.find(session);
                    match ring.and_then(|ring| ring.link(&trace)).cloned() {
                        Some(traced) => self.write_told(time, offset, &traced, &trace, &payload),
                        None => self.blame(session, 0, 1),
                    }
                }
            }
        }
        self.rings.forget_before(until);
    }

    /// `offset`: from our clock to the time since 1970.
    fn write_copy(&mut self, time: u64, offset: u64, vnic: VnicId, copy: &Copy) {
        let envelope = Envelope {
            flow: copy.flow,
            identification: copy.identification,
            traffic_class: copy.traffic_class,
            hop_limit: HOP_LIMIT,
        };
        let recordings = self.recordings.values_mut();
        let time_of_day = time.wrapping_add(offset);
        for recording in recordings.filter(|one| one.vnic == vnic && one.since <= time) {
            let known = copy.bytes.len();
            if known == copy.length {
                recording.add(time_of_day, &envelope, &copy.bytes, known);
            } else {
                let mut whole = copy.bytes.to_vec();
                whole.resize(copy.length, 0);
                recording.add(time_of_day, &envelope, &whole, known);
            }
        }
    }

    /// What was told before a capture began is none of it: another one began earlier, or ended
    /// and who told learnt of that later.
    fn write_told(
        &mut self,
        time: u64,
        offset: u64,
        traced: &Traced,
        trace: &Trace,
        payload: &[u8],
    ) {
        let concerned = |recording: &&mut Recording| {
            traced.vnics.contains(&recording.vnic) && recording.since <= time
        };
        let mut recordings: Vec<&mut Recording> =
            self.recordings.values_mut().filter(concerned).collect();
        if recordings.is_empty() {
            return;
        }
        let sense = story::tell(&traced.end, trace, payload, |rebuilt| {
            let envelope = Envelope {
                flow: rebuilt.flow,
                identification: Identification::ZERO,
                traffic_class: TRAFFIC_CLASS,
                hop_limit: HOP_LIMIT,
            };
            for recording in &mut recordings {
                recording.add(
                    time.wrapping_add(offset),
                    &envelope,
                    rebuilt.datagram,
                    rebuilt.known,
                );
            }
        });
        if !sense {
            recordings.iter_mut().for_each(|recording| recording.summary.refused += 1);
        }
    }

    /// The end of a capture: of everything that happened before it.
    fn end(&mut self, capture: u64) {
        self.rings.sessions().into_iter().for_each(|session| self.drain(session));
        self.look();
        self.write(clock::now());
        let Some(recording) = self.recordings.remove(&capture) else { return };
        // Whoever asked may be gone.
        let _ = self.tell.send((capture, recording.finish()));
        self.ready.signal();
    }
}
