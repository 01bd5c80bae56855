//! Joins two devices by links, with a clock that stands still: the bench of all tests here.

use crate::fake_engine::Relay;
use crate::fake_platform::{Ringer, World, WorldHandle};
use crate::guarded_buffer::Buffer;
use crate::work_request_helpers::Work;
use omniverb_device::FarEnd;
use omniverb_device::background_progress::ProgressReport;
use omniverb_device::limits::STATISTICS_BYTES;
use omniverb_device::memory_region::NO_RKEY;
use omniverb_device::peer_doorbells::PeerDoorbell;
use omniverb_device::qp_attributes::State;
use omniverb_device::{
    AsyncEvent, Cq, Domain, Peer, PostError, Qp, QpAttributes, QpMask, QpSpec, Region, Sge, Shared,
    Signaling, Srq, Wc, access,
};
use omniverb_link::{Endpoint, EndpointParts, layout};
use omniverb_ring::doorbell::{DIED, LIFE_OFFSET, PAGE_BYTES};
use omniverb_ring::{DoorbellPage, Window, WordMemory};
use omniverb_terms::{Gid, Qkey, Qpn, Rkey, Service};
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

pub const PD: u32 = 7;
pub const QKEY: Qkey = Qkey(0x1111_1111);

/// One process with a device.
pub struct Side {
    pub shared: Arc<Shared>,
    pub world: Arc<World>,
    pub bell: Arc<PeerDoorbell>,
    /// The page of it.
    page: Window,
    /// What peers ring.
    pub ringer: Arc<Ringer>,
    next: Arc<AtomicU32>,
    buffers: Mutex<Vec<Buffer>>,
    /// What its queue pairs count into, by their numbers.
    counted: Mutex<HashMap<u32, Window>>,
}

/// What a QP should be like.
#[derive(Clone)]
pub struct Options {
    pub service: Service,
    pub send_max: u32,
    pub recv_max: u32,
    pub srq: Option<Arc<Srq>>,
    pub domain: Option<Arc<Domain>>,
    pub send_cq: Option<Arc<Cq>>,
    pub recv_cq: Option<Arc<Cq>>,
    pub signaling: Signaling,
    pub attributes: QpAttributes,
    pub ring_bytes: (usize, usize),
    /// The far end of its links.
    pub far_end: FarEnd,
}

impl Options {
    pub fn new(service: Service) -> Options {
        Options {
            service,
            send_max: 64,
            recv_max: 64,
            srq: None,
            domain: None,
            send_cq: None,
            recv_cq: None,
            signaling: Signaling::Flagged,
            attributes: QpAttributes {
                port: 1,
                access_flags: access::REMOTE | access::LOCAL_WRITE,
                qkey: QKEY,
                path_mtu: 5,
                max_rd_atomic: 16,
                max_dest_rd_atomic: 16,
                min_rnr_timer: 12,
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: 7,
                ..QpAttributes::default()
            },
            ring_bytes: (layout::REQUEST_BYTES, layout::RESPONSE_BYTES),
            far_end: FarEnd::Process,
        }
    }

    pub fn with(mut self, change: impl FnOnce(&mut Options)) -> Options {
        change(&mut self);
        self
    }
}

impl Side {
    fn new(clock: &Arc<AtomicU64>, next: &Arc<AtomicU32>) -> Side {
        let world = Arc::new(World { clock: clock.clone(), ..World::default() });
        let page = Window::private(PAGE_BYTES);
        let bell = PeerDoorbell::new(DoorbellPage::new(page.clone()));
        let shared = Shared::new(Box::new(WorldHandle(world.clone())));
        shared.bells.add(bell.clone());
        let ringer = Ringer::new(DoorbellPage::new(page.clone()));
        let (next, buffers, counted) = (next.clone(), Mutex::default(), Mutex::default());
        Side { shared, world, bell, page, ringer, next, buffers, counted }
    }

    pub fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub fn cq(&self) -> Arc<Cq> {
        Cq::new(&self.shared, 4096, None)
    }

    pub fn register_in(&self, pd: u32, buffer: &Buffer, flags: u32) -> Arc<Region> {
        let rkey = if flags & access::REMOTE != 0 { Rkey(self.number() << 8) } else { NO_RKEY };
        let region = Arc::new(Region {
            lkey: self.shared.regions.new_lkey(),
            rkey,
            pd,
            access: flags,
            iova: buffer.address(),
            memory: buffer.memory(),
            moved: Default::default(),
            own: Default::default(),
            extras: Default::default(),
        });
        self.shared.regions.insert(region.clone());
        self.buffers.lock().unwrap().push(buffer.clone());
        region
    }

    /// Registers for everything.
    pub fn register(&self, buffer: &Buffer) -> Arc<Region> {
        self.register_in(PD, buffer, access::LOCAL_WRITE | access::REMOTE)
    }

    pub fn qp(&self, options: &Options) -> Arc<Qp> {
        let recv_cq = options.recv_cq.clone().unwrap_or_else(|| self.cq());
        let spec = QpSpec {
            service: options.service,
            pd: PD,
            send_cq: options.send_cq.clone().unwrap_or_else(|| recv_cq.clone()),
            recv_cq,
            srq: options.srq.clone(),
            domain: options.domain.clone(),
            send_max: options.send_max,
            recv_max: options.recv_max,
            send_sge_max: 32,
            recv_sge_max: 32,
            inline_max: 1024,
            signaling: options.signaling,
            lending: None,
        };
        let (number, counted) = (Qpn(self.number()), Window::private(STATISTICS_BYTES));
        self.counted.lock().unwrap().insert(number.0, counted.clone());
        Qp::new(&self.shared, spec, number, counted).unwrap()
    }

    /// What a queue pair of ours has counted in a word of its statistics slot.
    pub fn counted(&self, qp: &Qp, word: usize) -> u64 {
        self.counted.lock().unwrap()[&qp.number.0].load(8 * word, Ordering::Relaxed)
    }

    /// The process ends; the kernel says so where peers look.
    pub fn die(&self) {
        self.page.store(LIFE_OFFSET, DIED, Ordering::Relaxed);
    }

    /// Events so far, without their cookies.
    pub fn events(&self) -> Vec<AsyncEvent> {
        std::mem::take(&mut *self.world.events.lock().unwrap()).iter().map(|e| e.0).collect()
    }

    pub fn check_guards(&self) {
        self.buffers.lock().unwrap().iter().for_each(Buffer::check_guards);
    }
}

/// Two processes with a device each, and one clock for both.
pub struct Pair {
    pub clock: Arc<AtomicU64>,
    pub sides: [Side; 2],
    /// What QPs ring whose links lead to the engine.
    pub engine: Arc<Ringer>,
    /// Engines: they take their turns with the progress threads.
    pub relays: Mutex<Vec<Relay>>,
    slots: AtomicU32,
}

impl Pair {
    pub fn new() -> Pair {
        let clock = Arc::new(AtomicU64::new(1_000_000_000));
        let next = Arc::new(AtomicU32::new(100));
        let sides = [Side::new(&clock, &next), Side::new(&clock, &next)];
        let page = DoorbellPage::new(Window::private(PAGE_BYTES));
        let engine = Ringer::new(page);
        Pair { clock, sides, engine, relays: Mutex::default(), slots: AtomicU32::new(0) }
    }

    /// Two connected QPs in RTS.
    pub fn connected(&self, options: &Options) -> [Arc<Qp>; 2] {
        self.connected_with([options, options])
    }

    pub fn connected_with(&self, options: [&Options; 2]) -> [Arc<Qp>; 2] {
        let qps = [self.sides[0].qp(options[0]), self.sides[1].qp(options[1])];
        to_init(&qps[0], options[0]);
        to_init(&qps[1], options[1]);
        self.join(&qps, options[0].ring_bytes);
        for (qp, options) in qps.iter().zip(options) {
            to_rts(qp, options);
        }
        qps
    }

    /// Makes a link between two QPs and hands it to both.
    pub fn join(&self, qps: &[Arc<Qp>; 2], ring_bytes: (usize, usize)) -> LinkMemory {
        let joint = self.joint(ring_bytes);
        self.attach(0, qps, &joint).unwrap();
        self.attach(1, qps, &joint).unwrap();
        joint
    }

    /// The memory of a link, as the daemon makes it.
    pub fn joint(&self, ring_bytes: (usize, usize)) -> LinkMemory {
        let memory = Window::private(layout::link_bytes(ring_bytes.0, ring_bytes.1));
        // A test that makes thousands of links one after the other keeps none but the first few.
        const KEPT: u32 = 64;
        let slot = match self.slots.fetch_add(1, Ordering::Relaxed) {
            first @ 0..KEPT => first,
            later => KEPT + later % (omniverb_ring::doorbell::SLOTS - KEPT),
        };
        LinkMemory { memory, slot, ring_bytes }
    }

    /// One end of a link.
    pub fn endpoint(&self, side: usize, joint: &LinkMemory) -> Endpoint {
        Endpoint::new(EndpointParts {
            memory: joint.memory.clone(),
            side,
            request_bytes: joint.ring_bytes.0,
            response_bytes: joint.ring_bytes.1,
            doorbell: self.sides[1 - side].ringer.clone(),
            peer_slot: joint.slot,
        })
        .unwrap()
    }

    /// Hands one end to one QP.
    pub fn attach(&self, side: usize, qps: &[Arc<Qp>; 2], joint: &LinkMemory) -> Option<usize> {
        let (own, other) = (&qps[side], &qps[1 - side]);
        let peer = Peer {
            qpn: other.number,
            dgid: gid(1 - side),
            sgid: gid(side),
            far_end: FarEnd::Process,
        };
        let index = own.attach(peer, self.endpoint(side, joint))?;
        let front = own.front().flatten().map(|(front, _)| front);
        self.sides[side].bell.bind(joint.slot, front.as_ref().unwrap_or(own), index);
        Some(index)
    }

    /// Both progress threads take turns until nothing happens any more.
    pub fn settle(&self) -> [ProgressReport; 2] {
        let mut quiet = 0;
        loop {
            let turns = [0, 1].map(|side| self.sides[side].shared.progress());
            let relayed = self.relay();
            quiet = if relayed || turns.iter().any(|turn| turn.is_busy) { 0 } else { quiet + 1 };
            if quiet == 3 {
                return turns;
            }
        }
    }

    /// Engines do something. False: they had nothing to do.
    pub fn relay(&self) -> bool {
        let mut relays = self.relays.lock().unwrap();
        relays.iter_mut().fold(false, |moved, relay| relay.turn() | moved)
    }

    /// Joins two QPs by a relay.
    pub fn join_by_engine(&self, qps: &[Arc<Qp>; 2], rings: (usize, usize)) {
        let relay = Relay::join(self, qps, rings);
        self.relays.lock().unwrap().push(relay);
    }

    /// Moves the clock on, and lets both sides do what is due.
    pub fn wait(&self, nanoseconds: u64) {
        self.clock.fetch_add(nanoseconds, Ordering::Relaxed);
        self.settle();
    }

    pub fn check_guards(&self) {
        self.sides.iter().for_each(Side::check_guards);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check_guards();
        }
    }
}

/// A link that the daemon made.
pub struct LinkMemory {
    pub memory: Window,
    /// Its bit in both pages.
    pub slot: u32,
    pub ring_bytes: (usize, usize),
}

/// The GID of a side.
pub fn gid(side: usize) -> Gid {
    Ipv4Addr::new(10, 0, 0, 1 + side as u8).into()
}

pub fn to_init(qp: &Qp, options: &Options) {
    let last = if options.service == Service::Ud { QpMask::QKEY } else { QpMask::ACCESS_FLAGS };
    let mask = QpMask::STATE | QpMask::PKEY_INDEX | QpMask::PORT | last;
    qp.modify(mask, State::Init, &options.attributes, None).unwrap();
}

pub fn to_rtr(qp: &Qp, options: &Options) {
    let connected = QpMask::AV | QpMask::PATH_MTU | QpMask::DEST_QPN | QpMask::RQ_PSN;
    let reliable = QpMask::MAX_DEST_RD_ATOMIC | QpMask::MIN_RNR_TIMER;
    let mask = match options.service {
        Service::Rc | Service::XrcRecv => connected | reliable,
        Service::Uc | Service::XrcSend => connected,
        _ => QpMask::empty(),
    };
    qp.modify(mask | QpMask::STATE, State::Rtr, &options.attributes, None).unwrap();
}

pub fn to_rts(qp: &Qp, options: &Options) {
    if qp.state() != State::Rtr {
        to_rtr(qp, options);
    }
    let reliable =
        QpMask::TIMEOUT | QpMask::RETRY_CNT | QpMask::RNR_RETRY | QpMask::MAX_QP_RD_ATOMIC;
    let mask = match options.service {
        Service::Rc | Service::XrcSend => QpMask::SQ_PSN | reliable,
        Service::XrcRecv => QpMask::SQ_PSN | QpMask::TIMEOUT,
        _ => QpMask::SQ_PSN,
    };
    qp.modify(mask | QpMask::STATE, State::Rts, &options.attributes, None).unwrap();
}

pub fn to_state(qp: &Qp, state: State) {
    qp.modify(QpMask::STATE, state, &QpAttributes::default(), None).unwrap();
}

/// All completions there are now.
pub fn poll(cq: &Cq) -> Vec<Wc> {
    let mut all = Vec::new();
    let mut some = [Wc::default(); 7];
    loop {
        match cq.poll(&mut some) {
            0 => return all,
            count => all.extend(&some[..count]),
        }
    }
}

/// (wr_id, status) of all completions there are now.
pub fn outcomes(cq: &Cq) -> Vec<(u64, u32)> {
    poll(cq).iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

pub fn post(qp: &Qp, work: &Work) {
    qp.post_send(&work.as_send()).unwrap();
}

pub fn try_post(qp: &Qp, work: &Work) -> Result<(), PostError> {
    qp.post_send(&work.as_send())
}

pub fn receive(qp: &Qp, wr_id: u64, sges: &[Sge]) {
    qp.post_recv(wr_id, sges).unwrap();
}
