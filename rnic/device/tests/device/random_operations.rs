//! Runs random operations on several queue pairs, in random interleavings of their threads, and
//! compares them byte for byte with a model that does everything at once and in order.

pub mod expected_state;

use self::expected_state::{AREA, Flow, Message, Random, Receives, flow};
use crate::guarded_buffer::{Buffer, pattern};
use crate::two_device_fixture::{Options, PD, Pair, QKEY, gid, poll, receive, try_post};
use crate::work_request_helpers::{Work, remote};
use omniverb_device::granted_peer_pages::{Denial, Grant};
use omniverb_device::send_work_request::Destination;
use omniverb_device::{Cq, FarEnd, PostError, Qp, Srq, Wc, access, send_flags, status, wc_flags};
use omniverb_link::captured_operations_ring::TRACE_BYTES;
use omniverb_link::{TraceReader, Tracer};
use omniverb_ring::Window;
use omniverb_terms::{Placement, Qpn, Rkey, Selectivity, Service};
use std::collections::HashMap;
use std::sync::Arc;

const SLOT: usize = 40 << 10;
const SLOTS: usize = 12;

/// Kinds of QPs: with an SRQ; the far end.
const KINDS: [(Service, bool, FarEnd); 10] = [
    (Service::Rc, false, FarEnd::Process),
    (Service::Rc, true, FarEnd::Process),
    (Service::Rc, true, FarEnd::Process),
    (Service::Rc, false, FarEnd::Process),
    (Service::Uc, false, FarEnd::Process),
    (Service::Ud, false, FarEnd::Process),
    (Service::Rc, false, FarEnd::Engine),
    (Service::Rc, true, FarEnd::Engine),
    (Service::Uc, false, FarEnd::Engine),
    (Service::Ud, false, FarEnd::Engine),
];

struct Bench {
    pair: Pair,
    flows: Vec<Flow>,
    receives: Vec<Receives>,
    /// Which receives a QP takes.
    pools: HashMap<Qpn, usize>,
    cqs: [Arc<Cq>; 2],
    random: Random,
    completed: usize,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let pair = Pair::new();
        let cqs = [0, 1].map(|side| Cq::new(&pair.sides[side].shared, 1 << 14, None));
        let srqs = [0, 1].map(|side| Srq::new(&pair.sides[side].shared, PD, 8, 8).unwrap());
        let mut bench = Bench {
            random: Random(seed.wrapping_mul(0x9e37_79b9) | 1),
            pair,
            flows: Vec::new(),
            receives: Vec::new(),
            pools: HashMap::new(),
            cqs,
            completed: 0,
        };
        let shared = [0, 1].map(|side| bench.pool(side, None, Some(srqs[side].clone())));
        for (number, (service, with_srq, far_end)) in KINDS.into_iter().enumerate() {
            let rings = match number % 2 {
                _ if far_end == FarEnd::Engine && service == Service::Ud => (64 << 10, 4 << 10),
                0 => (256 << 10, 64 << 10),
                _ => (128 << 10, 16 << 10),
            };
            let options = [0, 1].map(|side| {
                Options::new(service).with(|o| {
                    o.ring_bytes = rings;
                    o.send_max = 24;
                    o.attributes.max_rd_atomic = 1 + number as u8;
                    o.send_cq = Some(bench.cqs[side].clone());
                    o.recv_cq = Some(bench.cqs[side].clone());
                    o.srq = with_srq.then(|| srqs[side].clone());
                })
            });
            let qps = if service == Service::Ud || far_end == FarEnd::Engine {
                let qps =
                    [bench.pair.sides[0].qp(&options[0]), bench.pair.sides[1].qp(&options[1])];
                for (qp, options) in qps.iter().zip(&options) {
                    crate::two_device_fixture::to_init(qp, options);
                    crate::two_device_fixture::to_rts(qp, options);
                }
                match far_end {
                    FarEnd::Engine => bench.pair.join_by_engine(&qps, rings),
                    FarEnd::Process => drop(bench.pair.join(&qps, rings)),
                }
                qps
            } else {
                bench.pair.connected_with([&options[0], &options[1]])
            };
            for side in [0, 1] {
                let pool = match with_srq {
                    true => shared[side],
                    false => bench.pool(side, Some(qps[side].clone()), None),
                };
                bench.pools.insert(qps[side].number, pool);
                let seed = seed * 100 + number as u64 * 10 + side as u64 * 5;
                bench.flows.push(flow(&bench.pair, service, side, &qps, seed));
            }
        }
        bench
    }

    fn each_pair(&self, act: impl Fn(&Qp, &Qp)) {
        self.flows.iter().for_each(|flow| act(&flow.from, &flow.to));
    }

    fn pool(&mut self, side: usize, qp: Option<Arc<Qp>>, srq: Option<Arc<Srq>>) -> usize {
        let memory = Buffer::new(SLOT * SLOTS);
        let region = self.pair.sides[side].register_in(PD, &memory, access::LOCAL_WRITE);
        self.receives.push(Receives { qp, srq, memory, region, free: (0..SLOTS).collect() });
        self.receives.len() - 1
    }

    fn post_receive(&mut self, pool: usize) {
        let pool = &mut self.receives[pool];
        let Some(slot) = pool.free.pop() else { return };
        let list = self.random.cut(&pool.region, slot * SLOT, SLOT);
        match (&pool.qp, &pool.srq) {
            (Some(qp), _) => receive(qp, slot as u64, &list),
            (_, Some(srq)) if srq.post(slot as u64, &list) == Err(PostError::Full) => {
                pool.free.push(slot);
            }
            _ => {}
        }
    }

    /// One work request, if there is room for it.
    fn post(&mut self, at: usize) {
        let (flow, random) = (&mut self.flows[at], &mut self.random);
        let id = flow.next;
        let is_datagram = flow.service == Service::Ud;
        let length = random.size(if is_datagram { 4096 } else { SLOT });
        let (from, to) = (random.below(2 * AREA - length), random.below(AREA - length));
        let gather = random.cut(&flow.source.region, from, length);
        let data = flow.source.get(from, length);
        let choice = random.below(match flow.service {
            Service::Rc => 11,
            Service::Uc => 5,
            _ => 2,
        });
        let immediate = choice % 2 == 1;
        let target = remote(&flow.target.region, to);
        let mut work = match choice {
            0 | 1 => Work::send(id),
            2..=4 => Work::write(id, target),
            5 | 6 => Work::read(id, target),
            _ => {
                let at = remote(&flow.target.region, to & !7);
                match choice {
                    7 => Work::fetch_add(id, at, 3),
                    9 => Work::atomic_write(id, at),
                    10 => Work::flush(id, at, 8, (Placement::GLOBAL, Selectivity::Range)),
                    _ => Work::compare_swap(id, at, u64::from_ne_bytes([0; 8]), 5),
                }
            }
        };
        if immediate && choice < 5 {
            work = work.immediate(id as u32);
        }
        work.sges = match choice {
            0..=4 => gather,
            5 | 6 => random.cut(&flow.landing.region, to, length),
            9 => random.cut(&flow.source.region, from, 8),
            10 => Vec::new(),
            _ => random.cut(&flow.landing.region, to, 8.min(AREA - to)),
        };
        if choice >= 7 && (to + 8 > AREA || from + 8 > 2 * AREA) {
            return;
        }
        let copy = Buffer::new(length.min(1024));
        if choice < 5 && length <= 1024 && random.chance(3) {
            copy.write(0, &data);
            work = work.inline(&copy);
        }
        let signalled = !random.chance(3);
        if !signalled {
            work.flags &= !send_flags::SIGNALED;
        }
        if random.chance(4) {
            work.flags |= send_flags::FENCE;
        }
        if is_datagram {
            let to =
                Destination { dgid: gid(1 - flow.side), sgid: gid(flow.side), qpn: flow.to.number };
            work = work.to(to, QKEY);
        }
        match try_post(&flow.from, &work) {
            Ok(()) => {}
            Err(PostError::Full) => return,
            Err(why) => panic!("{why:?}"),
        }
        // The model does it now.
        flow.next += 1;
        if signalled {
            flow.sent.push_back(id);
        }
        let immediate = (immediate && choice < 5).then_some(id as u32);
        match choice {
            0 | 1 => flow.messages.push_back(Message { bytes: data, immediate, length }),
            2..=4 => {
                flow.target.put(to, &data);
                if immediate.is_some() {
                    let bytes = Vec::new();
                    flow.messages.push_back(Message { bytes, immediate, length });
                }
            }
            5 | 6 => {
                let read = flow.target.get(to, length);
                flow.landing.put(to, &read);
            }
            9 => {
                let value = flow.source.get(from, 8);
                flow.target.put(to & !7, &value);
            }
            10 => {}
            _ => {
                let old = flow.target.get(to & !7, 8);
                let number = u64::from_ne_bytes(old.clone().try_into().unwrap());
                let new = match choice {
                    7 => number.wrapping_add(3),
                    _ if number == 0 => 5,
                    _ => number,
                };
                flow.target.put(to & !7, &new.to_ne_bytes());
                flow.landing.put(to, &old);
            }
        }
    }

    /// Unsignalled sends hold their slots until a signalled one completes: make sure one comes.
    fn flush(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        if flow.service == Service::Ud {
            return;
        }
        let work = Work::write(flow.next, (0, Rkey(0)));
        if try_post(&flow.from, &work).is_ok() {
            flow.sent.push_back(flow.next);
            flow.next += 1;
        }
    }

    fn take_completions(&mut self, side: usize) {
        for wc in poll(&self.cqs[side].clone()) {
            assert_eq!(wc.status, status::SUCCESS, "{wc:?}");
            self.completed += 1;
            match wc.opcode & 128 {
                0 => self.check_sent(&wc),
                _ => self.check_received(&wc),
            }
        }
    }

    fn check_sent(&mut self, wc: &Wc) {
        let flow = self.flows.iter_mut().find(|flow| flow.from.number == Qpn(wc.qp_num)).unwrap();
        assert_eq!(flow.sent.pop_front(), Some(wc.wr_id));
    }

    fn check_received(&mut self, wc: &Wc) {
        let flow = self.flows.iter_mut().find(|flow| flow.to.number == Qpn(wc.qp_num)).unwrap();
        let message = flow.messages.pop_front().expect("a message that nobody sent");
        let header = if flow.service == Service::Ud { 40 } else { 0 };
        assert_eq!(wc.byte_len as usize, message.length + header);
        let immediate = (wc.flags & wc_flags::WITH_IMM != 0).then_some(wc.immediate);
        assert_eq!(immediate, message.immediate);
        let pool = &mut self.receives[self.pools[&Qpn(wc.qp_num)]];
        let slot = wc.wr_id as usize;
        let bytes = pool.memory.read(slot * SLOT + header, message.bytes.len());
        let wrong = bytes.iter().zip(&message.bytes).position(|(came, sent)| came != sent);
        assert_eq!(wrong, None, "service {}, {wc:?}", flow.service);
        pool.free.push(slot);
    }

    /// The daemon grants some of what was asked for, and owners take some of it back.
    fn grant(&mut self) {
        for side in [0, 1] {
            let asked = std::mem::take(&mut *self.pair.sides[side].world.grants.lock().unwrap());
            let ranges = std::mem::take(&mut *self.pair.sides[side].world.ranges.lock().unwrap());
            for ((qpn, peer, rkey), (address, _)) in asked.into_iter().zip(ranges) {
                let flow = self.flows.iter().find(|flow| flow.from.number == qpn).unwrap();
                if flow.target.region.rkey != rkey {
                    continue; // the zero-length WRITE that only flushes
                }
                if self.random.below(8) == 0 {
                    let denied = match self.random.below(2) {
                        0 => Denial::ForNow,
                        _ => Denial::ForGood,
                    };
                    flow.from.not_granted(peer, rkey, denied);
                    continue;
                }
                // Around what was asked for, most of the time.
                let asked = (address - flow.target.region.iova) as usize;
                let first = asked.saturating_sub(self.random.below(AREA / 4)) & !7;
                let length = self.random.below(AREA - first);
                let grant = Grant {
                    rkey,
                    access: access::REMOTE,
                    address: flow.target.region.iova,
                    length: AREA as u64,
                    page_start: flow.target.region.iova + first as u64,
                    epoch: flow.to.epoch() as u32,
                    window: flow.target.buffer.window(first, length),
                    backing: omniverb_device::granted_peer_pages::Backing::File,
                };
                flow.from.granted(peer, grant);
            }
        }
    }

    fn step(&mut self) {
        let flow = self.random.below(self.flows.len());
        let side = self.random.below(2);
        match self.random.below(17) {
            16 => {
                for _ in 0..self.random.below(40) {
                    self.pair.relay();
                }
            }
            0..=5 => self.post(flow),
            6 | 7 => {
                let pool = self.random.below(self.receives.len());
                self.post_receive(pool);
            }
            8 => self.flows[flow].from.pump(),
            9 => self.flush(flow),
            10..=12 => self.take_completions(side),
            13 | 14 => {
                self.pair.sides[side].shared.progress();
            }
            _ if self.random.chance(4) => self.flows[flow].to.revoke_grants(),
            _ => self.grant(),
        }
    }

    /// Delivers what is missing; then everything must be as the model says.
    fn finish(&mut self) {
        for _ in 0..2000 {
            (0..self.receives.len()).for_each(|pool| self.post_receive(pool));
            self.pair.settle();
            self.take_completions(0);
            self.take_completions(1);
            if self.flows.iter().all(|flow| flow.messages.is_empty() && flow.sent.is_empty()) {
                break;
            }
        }
        for (number, flow) in self.flows.iter().enumerate() {
            assert!(flow.sent.is_empty(), "flow {number}: sends did not complete");
            assert!(flow.messages.is_empty(), "flow {number}: messages did not arrive");
            for (name, area) in
                [("target", &flow.target), ("landing", &flow.landing), ("source", &flow.source)]
            {
                let all = area.buffer.all();
                let wrong: Vec<_> = (0..AREA).filter(|&at| all[at] != area.model[at]).collect();
                assert!(
                    wrong.is_empty(),
                    "flow {number}: {name}: {} bytes from {:?} to {:?}",
                    wrong.len(),
                    wrong.first(),
                    wrong.last()
                );
            }
        }
        self.pair.check_guards();
    }
}

fn run(seed: u64, steps: usize) -> usize {
    let mut bench = Bench::new(seed);
    // A capture of packets begins now and then, and does not keep up: it is not to be noticed.
    let memory = Window::private(TRACE_BYTES);
    let tracer = Arc::new(Tracer::new(&memory).unwrap());
    let mut reader = TraceReader::new(&memory).unwrap();
    reader.want(4096);
    for step in 0..steps {
        bench.step();
        match step % 2000 {
            700 => bench.each_pair(|qp, peer| qp.trace(peer.number, &tracer)),
            1100 => while let Some((_, _)) = reader.take().unwrap() {},
            1500 => bench.each_pair(|qp, _| qp.untrace(None)),
            1501 => reader.publish(),
            _ => {}
        }
    }
    bench.finish();
    bench.completed
}

#[test]
fn random_operations() {
    let (seeds, steps) = if cfg!(debug_assertions) { (8, 4000) } else { (30, 20_000) };
    for seed in 1..=seeds {
        let result = std::panic::catch_unwind(|| run(seed, steps));
        let completed = result.unwrap_or_else(|_| panic!("seed {seed}"));
        assert!(completed > steps / 6, "{completed} completions of {steps} steps, seed {seed}");
    }
    assert_ne!(pattern(8, 1), pattern(8, 2));
}
