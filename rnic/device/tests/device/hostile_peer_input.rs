//! A device whose peer does whatever some bytes say: used with random bytes here, and by the
//! fuzzer (`fuzz/`).

use crate::fuzz_input::Script;
use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::{
    LinkMemory, Options, PD, Pair, QKEY, gid, poll, post, receive, to_init, to_rts, to_state,
};
use crate::work_request_helpers::{Work, part, whole};
use omniverb_device::FarEnd;
use omniverb_device::granted_peer_pages::Grant;
use omniverb_device::qp_attributes::State;
use omniverb_device::send_work_request::Destination;
use omniverb_device::{Cq, Domain, Peer, Qp, Region, Sge, Srq, access, status};
use omniverb_link::captured_operations_ring::TRACE_BYTES;
use omniverb_link::record::FIRST;
use omniverb_link::{Endpoint, Nak, Request, Response, TraceReader, Tracer};
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{UserMemory, Window, WordMemory};
use omniverb_terms::{Placement, Qpn, Rkey, Selectivity, Service};
use std::sync::Arc;

/// Small, so that everything wraps and fills up soon.
const RINGS: (usize, usize) = (32 << 10, 4 << 10);
const BYTES: usize = 8192;

/// The device under attack, and what must not change.
pub struct Victim {
    pub pair: Pair,
    service: Service,
    options: Options,
    pub qp: Arc<Qp>,
    pub joint: LinkMemory,
    attacker: Endpoint,
    attacker_qpn: Qpn,
    /// A region with all rights.
    open: Arc<Region>,
    read_only: Arc<Region>,
    private: Arc<Region>,
    foreign: Arc<Region>,
    untouchable: Vec<(Buffer, Vec<u8>)>,
    local: Arc<Region>,
    local_memory: Buffer,
    shadow: Buffer,
    /// XRC: the SRQs of the victim's domain, and where they complete.
    extended: Vec<Arc<Srq>>,
    extended_cq: Arc<Cq>,
    /// XRC: another process of the domain, the attacker's, too.
    beyond: Option<HiddenLink>,
    /// Two QPs of the same devices that have nothing to do with it.
    bystanders: [Arc<Qp>; 2],
}

/// Where the victim's requests for another part of its domain go.
struct HiddenLink {
    /// The hidden queue pair whose link it is.
    by: Arc<Qp>,
    joint: LinkMemory,
    attacker: Endpoint,
}

impl Victim {
    pub fn new(script: &mut Script<'_>) -> Victim {
        let pair = Pair::new();
        let choice = script.byte();
        let service = [Service::Rc, Service::Rc, Service::Uc, Service::Ud][usize::from(choice & 3)];
        // XRC in the place of some RC.
        let service = match choice & 0x83 {
            0x80 => Service::XrcSend,
            0x81 => Service::XrcRecv,
            _ => service,
        };
        let mut options = Options::new(service).with(|o| o.ring_bytes = RINGS);
        let domain = if choice & 0x20 != 0 { Domain::part(0) } else { Domain::new() };
        let extended_cq = pair.sides[0].cq();
        let shared = &pair.sides[0].shared;
        let srq = || Srq::extended(shared, PD, (16, 4), &extended_cq, &domain).unwrap();
        let extended = vec![srq(), srq()];
        options.domain = (service == Service::XrcRecv).then(|| domain.clone());
        if choice & 4 != 0 {
            options.srq = Srq::new(&pair.sides[0].shared, PD, 16, 4);
        }
        options.far_end = if choice & 8 != 0 { FarEnd::Engine } else { FarEnd::Process };
        let all = access::LOCAL_WRITE | access::REMOTE;
        let mut untouchable = Vec::new();
        let mut register = |pd: u32, flags: u32, guarded: bool| {
            let buffer = Buffer::pattern(BYTES, u64::from(pd + flags));
            if guarded {
                untouchable.push((buffer.clone(), buffer.all()));
            }
            (pair.sides[0].register_in(pd, &buffer, flags), buffer)
        };
        let (open, _) = register(PD, all, false);
        let (read_only, _) = register(PD, access::REMOTE_READ, true);
        let (private, _) = register(PD, 0, true);
        let (foreign, _) = register(PD + 1, all, true);
        let (local, local_memory) = register(PD, access::LOCAL_WRITE, false);
        let bystanders = pair.connected(&Options::new(Service::Rc));
        let attacker_qpn = Qpn(pair.sides[1].number());
        let (qp, joint, attacker) = appear(&pair, &options, attacker_qpn);
        let shadow = Buffer::new(4096);
        // Seldom: it takes time.
        if choice & 0x70 == 0x70 {
            let memory = Window::private(TRACE_BYTES);
            TraceReader::new(&memory).unwrap().want(4096);
            let tracer = Tracer::new(&memory).unwrap();
            qp.trace(attacker_qpn, &Arc::new(tracer));
        }
        let mut victim = Victim {
            pair,
            service,
            options,
            qp,
            joint,
            attacker,
            attacker_qpn,
            open,
            read_only,
            private,
            foreign,
            untouchable,
            local,
            local_memory,
            shadow,
            extended,
            extended_cq,
            beyond: None,
            bystanders,
        };
        victim.go_beyond(script);
        victim
    }

    /// Where it may: begins with a request for another part of the domain.
    fn go_beyond(&mut self, script: &mut Script<'_>) {
        let number = 0x1001;
        let domain = self.options.domain.as_ref();
        if domain.is_some_and(|domain| domain.is_elsewhere(number)) {
            let requests =
                [Request::ForSrq { number }, Request::Send { flags: FIRST, immediate: 0 }];
            for request in requests {
                let _ = self.attacker.send_request(&request, 0, []);
            }
            self.qp.pump();
            self.find_way(script);
        }
    }

    /// One step, of one side or the other.
    pub fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 20 {
            0 | 1 => self.post_receive(script),
            2 | 3 => self.post_send(script),
            4..=6 => {
                self.work();
                if script.byte().is_multiple_of(8) {
                    self.go_beyond(script);
                }
            }
            7..=9 => self.send_request(script),
            10 => self.send_response(script),
            11 => self.scribble(script, 0x2000),
            12 => self.scribble(script, self.joint.memory.len()),
            13 => self.scribble_bell(script),
            14 => match script.byte() % 4 {
                0 => self.attacker.close(),
                _ => self.attacker.open(script.word()),
            },
            15 => drop(self.pair.clock.fetch_add(script.word() >> 24, Ordering::Relaxed)),
            16 => self.take_what_came(),
            17 => self.grant(script),
            18 => self.deregister(script),
            _ => self.leave(script),
        }
    }

    /// What the attacker owns nothing of is as it was, and others are served.
    pub fn check(&self) {
        for (buffer, before) in &self.untouchable {
            assert!(buffer.all() == *before, "memory changed that nobody may write");
        }
        self.pair.check_guards();
        let from = Buffer::pattern(5000, 9);
        let to = Buffer::new(5000);
        let (source, target) =
            (self.pair.sides[1].register(&from), self.pair.sides[0].register(&to));
        let [own, other] = &self.bystanders;
        receive(own, 1, &[whole(&target)]);
        post(other, &Work::send(2).sge(whole(&source)));
        for _ in 0..4 {
            self.pair.clock.fetch_add(1_000_000, Ordering::Relaxed);
            self.pair.sides.iter().for_each(|side| {
                side.shared.progress();
            });
        }
        assert!(to.all() == from.all(), "a bystander was not served");
        assert_eq!(poll(&own.recv_cq).last().map(|wc| wc.status), Some(status::SUCCESS));
        poll(&other.send_cq);
    }

    fn sge(&self, script: &mut Script<'_>) -> Sge {
        let offset = script.number(BYTES);
        part(&self.local, offset, script.number(BYTES - offset + 1))
    }

    fn post_receive(&mut self, script: &mut Script<'_>) {
        let list: Vec<_> = (0..script.byte() % 4).map(|_| self.sge(script)).collect();
        let id = script.word();
        let extended = &self.extended[id as usize % 2];
        let _ = match &self.options.srq {
            _ if self.service == Service::XrcRecv => extended.post(id, &list),
            Some(srq) => srq.post(id, &list),
            None => self.qp.post_recv(id, &list),
        };
    }

    fn post_send(&mut self, script: &mut Script<'_>) {
        let at = match script.byte() % 3 {
            0 => (script.word(), Rkey(script.word() as u32)),
            _ => (0x10_0000 + script.number(8192) as u64, Rkey(77)),
        };
        let work = match script.byte() % 10 {
            0 | 1 => Work::send(1),
            2 => Work::send(1).immediate(5),
            3 => Work::write(1, at),
            4 => Work::write(1, at).immediate(5),
            5 => Work::read(1, at),
            6 => Work::fetch_add(1, at, 1),
            7 => Work::atomic_write(1, at),
            8 => Work::flush(1, at, 9, (Placement::GLOBAL, Selectivity::Range)),
            _ => Work::compare_swap(1, at, 0, 1),
        };
        let mut work = match script.byte() % 4 {
            0 => work.sge(part(&self.local, 8, 8)),
            _ => work.sge(self.sge(script)).sge(self.sge(script)),
        };
        if self.service == Service::Ud {
            let to = Destination { dgid: gid(1), sgid: gid(0), qpn: self.attacker_qpn };
            work = work.to(to, QKEY);
            work.sges.truncate(1);
            work.sges.iter_mut().for_each(|sge| sge.length %= 4097);
        }
        let _ = self.qp.post_send(&work.as_send());
    }

    /// The victim's own threads; a QP that failed is made anew.
    pub fn work(&mut self) {
        self.pair.sides[0].shared.progress();
        poll(&self.qp.recv_cq);
        poll(&self.qp.send_cq);
        poll(&self.extended_cq);
        if self.qp.state() == State::Err {
            self.start_again();
        }
    }

    fn start_again(&mut self) {
        self.qp.destroy();
        assert!(poll(&self.qp.recv_cq).is_empty() && poll(&self.qp.send_cq).is_empty());
        (self.qp, self.joint, self.attacker) = appear(&self.pair, &self.options, self.attacker_qpn);
    }

    fn send_request(&mut self, script: &mut Script<'_>) {
        let (address, rkey) = self.aim(script);
        let flags = match script.byte() % 3 {
            0 => 0x1000 | 0x100,
            1 => u32::from(script.byte()) << 8,
            _ => script.word() as u32 & 0x7ff_ff00,
        };
        let length = script.number(RINGS.0 / 4 - 63);
        let total = match script.byte() % 3 {
            0 => script.word(),
            _ => length as u64,
        };
        let immediate = self.open.rkey.0;
        let request = match script.byte() % 14 {
            0 | 1 => Request::Send { flags, immediate },
            2 | 3 => Request::WriteFirst { flags, address, rkey, immediate, total },
            4 => Request::WriteMore { flags, immediate },
            5 if flags & 0x100 == 0 => Request::ReadAgain { address, rkey, length: total },
            5 => Request::Read { address, rkey, length: total },
            6 => Request::CompareSwap { address, rkey, compare: 0, swap: total },
            7 => Request::FetchAdd { address, rkey, add: total },
            8 => Request::AtomicWrite { address, rkey, value: total.to_ne_bytes() },
            9 => {
                let bits = script.byte();
                let placement = Placement::from_bits(bits % 3 + 1).unwrap();
                let selectivity = Selectivity::from_code(bits >> 7).unwrap();
                Request::Flush { address, rkey, length: total, placement, selectivity }
            }
            // Most of them are of this domain.
            10 | 11 => {
                let number = (immediate ^ flags >> 8) % 4;
                Request::ForSrq { number: number | (flags >> 10 & 1) << 12 }
            }
            12 => Request::Grouped { flags, immediate, qkey: QKEY, source: Qpn(total as u32) },
            _ => Request::Datagram { flags, immediate, qkey: QKEY },
        };
        let payload = vec![0xee; length];
        UserMemory::lend(&payload, |payload| {
            let _ = self.attacker.send_request(&request, length, [&payload]);
        });
    }

    /// An address and a key that may or may not fit together.
    fn aim(&self, script: &mut Script<'_>) -> (u64, Rkey) {
        let regions = [&self.open, &self.open, &self.read_only, &self.private, &self.foreign];
        let place = regions[script.number(5)];
        let key = match script.byte() % 4 {
            0 => regions[script.number(5)].rkey,
            1 => Rkey(script.word() as u32),
            _ => place.rkey,
        };
        let offset = match script.byte() % 3 {
            0 => script.word(),
            1 => script.number(BYTES) as u64 & !7,
            _ => script.number(2 * BYTES) as u64,
        };
        (place.iova.wrapping_add(offset), key)
    }

    fn send_response(&mut self, script: &mut Script<'_>) {
        let response = match script.byte() % 4 {
            0 => Response::ReadData { last: false },
            1 => Response::ReadData { last: true },
            2 => Response::AtomicResult { original: script.word() },
            _ => Response::Nak { code: Nak::decode(1 + u64::from(script.byte() % 7)).unwrap() },
        };
        let payload = vec![0xdd; script.number(RINGS.1 / 4 - 63)];
        let attacker = match &mut self.beyond {
            Some(beyond) if script.byte().is_multiple_of(2) => &mut beyond.attacker,
            _ => &mut self.attacker,
        };
        UserMemory::lend(&payload, |payload| {
            let _ = attacker.send_response(&response, payload);
        });
    }

    /// A word of the link, the victim's included.
    fn scribble(&mut self, script: &mut Script<'_>, within: usize) {
        let at = match script.byte() % 2 {
            0 => script.number(within) & !7,
            // The words that mean something.
            _ => script.number(2) * 0x1000 + script.number(0x100 / 8) * 8,
        };
        let joint = match &self.beyond {
            Some(beyond) if script.byte().is_multiple_of(2) => &beyond.joint,
            _ => &self.joint,
        };
        joint.memory.store(at, script.word(), Ordering::Relaxed);
    }

    fn scribble_bell(&mut self, script: &mut Script<'_>) {
        let page = &self.pair.sides[0].ringer.page;
        match script.byte() % 3 {
            0 => page.want_kick(),
            1 => page.set_ready(script.word() as u32),
            _ => (0..64).for_each(|_| page.set_ready(script.byte().into())),
        }
    }

    /// Now and then the attacker behaves.
    fn take_what_came(&mut self) {
        let beyond = self.beyond.as_mut().map(|beyond| &mut beyond.attacker);
        for attacker in [&mut self.attacker].into_iter().chain(beyond) {
            for _ in 0..8 {
                let Ok(Some((_, record))) = attacker.next_request() else { break };
                attacker.pass_request(&record);
            }
            attacker.publish_requests();
        }
        while let Ok(Some((_, record))) = self.attacker.next_response() {
            self.attacker.pass_response(&record);
        }
        self.attacker.publish_credits(self.attacker.request_position() as u32, 4096);
    }

    /// The way to another part of the domain is found, or there is none.
    fn find_way(&mut self, script: &mut Script<'_>) {
        let asked = std::mem::take(&mut *self.pair.sides[0].world.hand_overs.lock().unwrap());
        if !asked.iter().any(|(front, _)| *front == self.qp.number) {
            return;
        }
        if script.byte().is_multiple_of(4) {
            return self.qp.no_way(1);
        }
        let by = self.pair.sides[0].qp(&Options::new(Service::XrcSend));
        by.stand_for(&self.qp, 1);
        let joint = self.pair.joint(RINGS);
        let attacker = attacker(&self.pair, &joint);
        let far_end = self.options.far_end;
        let peer = Peer { qpn: self.attacker_qpn, dgid: gid(1), sgid: gid(0), far_end };
        if let Some(index) = by.attach(peer, self.pair.endpoint(0, &joint)) {
            self.pair.sides[0].bell.bind(joint.slot, &self.qp, index);
        }
        self.beyond = Some(HiddenLink { by, joint, attacker });
    }

    /// The daemon grants what was asked for.
    fn grant(&mut self, script: &mut Script<'_>) {
        self.find_way(script);
        let asked = std::mem::take(&mut *self.pair.sides[0].world.grants.lock().unwrap());
        let ranges = std::mem::take(&mut *self.pair.sides[0].world.ranges.lock().unwrap());
        for ((_, peer, rkey), (at, _)) in asked.into_iter().zip(ranges) {
            let length = script.number(4097);
            let grant = Grant {
                rkey,
                access: access::REMOTE,
                address: 0x10_0000,
                length: 8192,
                page_start: at.saturating_sub(u64::from(script.byte())),
                epoch: self.attacker.epoch() as u32,
                window: self.shadow.window(0, length),
                backing: omniverb_device::granted_peer_pages::Backing::File,
            };
            self.qp.granted(peer, grant);
        }
    }

    /// An SRQ of the domain goes, and another one comes.
    fn replace_queue(&mut self, script: &mut Script<'_>) {
        let Some(domain) = &self.options.domain else { return };
        let place = &mut self.extended[script.number(2)];
        place.retire();
        let shared = &self.pair.sides[0].shared;
        *place = Srq::extended(shared, PD, (16, 4), &self.extended_cq, domain).unwrap();
    }

    fn deregister(&mut self, script: &mut Script<'_>) {
        let regions = &self.pair.sides[0].shared.regions;
        if script.byte().is_multiple_of(2) {
            regions.remove(self.open.lkey);
            self.open = self.pair.sides[0].register(&self.local_memory);
        } else {
            regions.remove(self.local.lkey);
            let flags = access::LOCAL_WRITE;
            self.local = self.pair.sides[0].register_in(PD, &self.local_memory, flags);
        }
    }

    fn leave(&mut self, script: &mut Script<'_>) {
        match script.byte() % 8 {
            7 => self.replace_queue(script),
            0 => self.qp.peer_died(self.attacker_qpn),
            6 => self.qp.engine_died(),
            1 => match self.beyond.take() {
                Some(beyond) if script.byte().is_multiple_of(2) => {
                    beyond.by.peer_died(self.attacker_qpn);
                }
                beyond => {
                    self.beyond = beyond;
                    self.qp.peer_closed(self.attacker_qpn);
                }
            },
            2 => to_state(&self.qp, State::Err),
            3 => self.qp.revoke_grants(),
            4 => {
                // The daemon says the attacker came back with a new link.
                let joint = self.pair.joint(RINGS);
                self.attacker = attacker(&self.pair, &joint);
                link(&self.pair, &self.qp, &joint, self.attacker_qpn, self.options.far_end);
                self.joint = joint;
            }
            _ => self.start_again(),
        }
    }
}

fn attacker(pair: &Pair, joint: &LinkMemory) -> Endpoint {
    let mut attacker = pair.endpoint(1, joint);
    attacker.publish_credits(8, 4096);
    attacker.open(10_000);
    attacker
}

fn link(pair: &Pair, qp: &Arc<Qp>, joint: &LinkMemory, attacker_qpn: Qpn, far_end: FarEnd) {
    let peer = Peer { qpn: attacker_qpn, dgid: gid(1), sgid: gid(0), far_end };
    if let Some(index) = qp.attach(peer, pair.endpoint(0, joint)) {
        pair.sides[0].bell.bind(joint.slot, qp, index);
    }
}

/// A queue pair of side 0 that is linked with an attacker.
pub fn appear(
    pair: &Pair,
    options: &Options,
    attacker_qpn: Qpn,
) -> (Arc<Qp>, LinkMemory, Endpoint) {
    let qp = pair.sides[0].qp(options);
    to_init(&qp, options);
    to_rts(&qp, options);
    let joint = pair.joint(RINGS);
    let attacker = attacker(pair, &joint);
    link(pair, &qp, &joint, attacker_qpn, options.far_end);
    (qp, joint, attacker)
}

/// The whole of it: what the fuzzer calls.
pub fn run(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let mut victim = Victim::new(&mut script);
    while !script.is_over() {
        victim.step(&mut script);
    }
    for _ in 0..4 {
        victim.work();
    }
    victim.check();
}
