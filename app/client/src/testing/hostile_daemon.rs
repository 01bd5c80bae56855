//! A process whose daemon is hostile: what it says and hands over is what some bytes say.
//!
//! The process is this one and connects to a socket as any does. What must hold whatever comes:
//! no panic, no access beside what is mapped, no call that never returns.
// UNSAFETY: names the daemon in the environment, and registers memory that outlives everything.
#![expect(unsafe_code)]
// A message may get a field more without a change here.
#![allow(clippy::needless_update)]

use crate::{Client, RegistrationRequest};
use omniverb_device::qp_attributes::State;
use omniverb_device::send_flags;
use omniverb_device::{
    Cq, Data, Domain, Qp, QpAttributes, QpMask, QpSpec, RegionKind, SendWork, Sge, Signaling, Wc,
    access,
};
use omniverb_link::layout;
use omniverb_session::body::*;
use omniverb_session::carried_links::{GiveLink, PeerPort};
use omniverb_session::limits::{GIDS_MAX, MESSAGE_BYTES_MAX};
use omniverb_session::{Message, SOCKET_VARIABLE, decode, encode};
use omniverb_sys::{lock, memfd, seqpacket};
use omniverb_terms::{Errno, Lkey, Qpn, Rkey, Service};
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Once};
use zerocopy::FromZeros;

/// Steps of one run.
const STEPS_MAX: usize = 48;
const PD: u32 = 1;
const BYTES: usize = 16384;
const PAGE: u64 = 4096;
const BELL_BYTES: u64 = 2 * omniverb_ring::doorbell::PAGE_BYTES as u64;

/// Bytes, and zeros when they are used up.
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn of<T: Copy, const N: usize>(&mut self, list: [T; N]) -> T {
        list[usize::from(self.byte()) % N]
    }

    /// Small, or at the edge of something.
    fn word(&mut self) -> u32 {
        let small = u32::from(self.byte());
        self.of([small % 4, small, 1 << (small % 32), u32::MAX - small, small << 24, small << 12])
    }

    fn long(&mut self) -> u64 {
        let (low, high) = (u64::from(self.word()), u64::from(self.word()));
        self.of([low, low << 12, high << 32 | low, u64::MAX - low, high << 48])
    }
}

/// What the daemon says to the next call: events first, then the answer, or its own tag or bytes.
#[derive(Default)]
struct HostileAnswers {
    events: Vec<(Message, Vec<OwnedFd>)>,
    answer: Option<Message>,
    wrong_tag: bool,
}

/// What the daemon heard last of pages that it asked for.
static ADOPTED: Mutex<Option<Adopted>> = Mutex::new(None);
static PLANS: Mutex<VecDeque<HostileAnswers>> = Mutex::new(VecDeque::new());

fn plans() -> std::sync::MutexGuard<'static, VecDeque<HostileAnswers>> {
    lock(&PLANS)
}

/// Starts the daemon, once, and names it to the client.
fn daemon() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let name = format!("omniverb-hostile-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        if let Ok(listener) = seqpacket::listen(&path, 0o600) {
            std::thread::spawn(move || serve(&listener));
        }
        // SAFETY: done once, before any other thread of the fuzzer or test looks.
        unsafe { std::env::set_var(SOCKET_VARIABLE, &path) };
    });
}

fn serve(listener: &OwnedFd) {
    loop {
        let mut poll = [PollFd::new(listener, PollFlags::IN)];
        if rustix::event::poll(&mut poll, None).is_ok()
            && let Ok(Some(calls)) = seqpacket::accept(listener.as_fd())
        {
            let _ = converse(&calls);
        }
    }
}

/// One connection, until it ends.
fn converse(calls: &OwnedFd) -> std::io::Result<()> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let (events, theirs) = seqpacket::pair()?;
    let mut numbers = 0x100;
    loop {
        let (length, _) =
            seqpacket::receive(calls.as_fd(), &mut bytes, seqpacket::BlockingMode::Blocking)?;
        let Ok((tag, call)) = decode(&bytes[..length]) else { return Ok(()) };
        numbers += 1;
        if let Message::Hello(_) = call {
            let mut welcome = Welcome::new_zeroed();
            (welcome.qp_max, welcome.mr_max, welcome.link_max) = (100, 100, 100);
            let area = memfd::create("statistics", crate::qp_statistics_area::BYTES as u64)?;
            welcome.area = Extent { offset: 0, length: crate::qp_statistics_area::BYTES as u64 };
            tell(calls, tag, &welcome.into(), &[theirs.as_fd(), area.as_fd()])?;
            continue;
        }
        let plan = plans().pop_front();
        let plan = plan.unwrap_or_default();
        while let Ok((length @ 1.., _)) =
            seqpacket::receive(events.as_fd(), &mut bytes, seqpacket::BlockingMode::NonBlocking)
        {
            if let Ok((_, Message::Adopted(adopted))) = decode(&bytes[..length]) {
                *lock(&ADOPTED) = Some(adopted);
            }
        }
        for (event, files) in &plan.events {
            let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
            let _ = tell(&events, 0, event, &files);
        }
        let proper = match call {
            Message::CreateQp(_) => {
                QpCreated { qpn: Qpn(numbers), ..QpCreated::new_zeroed() }.into()
            }
            Message::RegMr(_) => {
                MrRegistered { rkey: Rkey(numbers), ..MrRegistered::new_zeroed() }.into()
            }
            Message::ConnectQp(ask) => {
                Connected { qpn: ask.qpn, ready: 1, ..Connected::new_zeroed() }.into()
            }
            Message::RequestGrant(ask) => {
                Connected { qpn: ask.qpn, ready: 1, ..Connected::new_zeroed() }.into()
            }
            _ => Done { take_back: 0 }.into(),
        };
        let tag = tag.wrapping_add(u64::from(plan.wrong_tag));
        tell(calls, tag, &plan.answer.unwrap_or(proper), &[])?;
    }
}

fn tell(
    to: &OwnedFd,
    tag: u64,
    message: &Message,
    files: &[BorrowedFd<'_>],
) -> std::io::Result<()> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let length = encode(tag, message, &mut bytes);
    seqpacket::try_send(to.as_fd(), &bytes[..length], files)
}

/// The process: queue pairs of two kinds, a region.
struct Process {
    client: Arc<Client>,
    cq: Arc<Cq>,
    qps: Vec<Arc<Qp>>,
    lkey: Lkey,
    rkey: Rkey,
    memory: &'static [u64],
}

impl Process {
    fn new() -> Option<Process> {
        static MEMORY: [u64; BYTES / 8] = [0; BYTES / 8];
        daemon();
        plans().clear();
        let client = Client::connect().ok()?;
        let cq = Cq::new(&client.shared, 64, None);
        let mut memory: Vec<u64> = MEMORY.to_vec();
        memory.shrink_to_fit();
        let memory: &'static [u64] = Box::leak(memory.into_boxed_slice());
        let at = memory.as_ptr() as usize;
        let access = access::LOCAL_WRITE | access::REMOTE;
        // Another address than the real one: its pages are not to be moved.
        let iova = at as u64 + (1 << 40);
        let extras = RegionKind::default();
        let wish = RegistrationRequest { pd: PD, address: at, length: BYTES, iova, access, extras };
        // SAFETY: leaked, so mapped for ever.
        let region = unsafe { client.register(wish) }.ok()?;
        let (lkey, rkey) = (region.lkey, region.rkey);
        let mut process = Process { client, cq, qps: Vec::new(), lkey, rkey, memory };
        process.qps.extend(process.queue_pair(Service::Rc));
        process.qps.extend(process.queue_pair(Service::Ud));
        Some(process)
    }

    fn queue_pair(&self, service: Service) -> Option<Arc<Qp>> {
        let spec = QpSpec {
            service,
            pd: PD,
            send_cq: self.cq.clone(),
            recv_cq: self.cq.clone(),
            srq: None,
            domain: (service == Service::XrcRecv).then(Domain::new),
            send_max: 16,
            recv_max: 16,
            send_sge_max: 4,
            recv_sge_max: 4,
            inline_max: 64,
            signaling: Signaling::All,
            lending: None,
        };
        let qp = self.client.create_qp(spec).ok()?;
        let attributes = QpAttributes {
            port: 1,
            access_flags: access::LOCAL_WRITE | access::REMOTE,
            path_mtu: 5,
            dest_qpn: Qpn(0x200),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            ..QpAttributes::default()
        };
        // Not by the client: its progress thread would run beside what happens here.
        let step = |to, mask| {
            let _ = qp.modify(mask | QpMask::STATE, to, &attributes, None);
        };
        let connected = QpMask::AV | QpMask::PATH_MTU | QpMask::DEST_QPN | QpMask::RQ_PSN;
        let answers = QpMask::MAX_DEST_RD_ATOMIC | QpMask::MIN_RNR_TIMER;
        let retries = QpMask::RETRY_CNT | QpMask::RNR_RETRY | QpMask::MAX_QP_RD_ATOMIC;
        let (answers, retries) = match service {
            Service::XrcSend => (QpMask::empty(), retries),
            Service::XrcRecv => (answers, QpMask::empty()),
            _ => (answers, retries),
        };
        let reliable = QpMask::TIMEOUT | QpMask::SQ_PSN | retries;
        let first = QpMask::PKEY_INDEX | QpMask::PORT;
        if service == Service::Ud {
            step(State::Init, first | QpMask::QKEY);
            step(State::Rtr, QpMask::empty());
            step(State::Rts, QpMask::SQ_PSN);
        } else {
            step(State::Init, first | QpMask::ACCESS_FLAGS);
            step(State::Rtr, connected | answers);
            step(State::Rts, reliable);
        }
        Some(qp)
    }

    /// Posts something to where a grant may be, and looks what came of everything so far.
    fn work(&self, bytes: &mut Bytes<'_>) {
        let entry = Sge {
            address: self.memory.as_ptr() as u64 + (1 << 40) + u64::from(bytes.byte()),
            length: bytes.of([8, 0, 1, 4096, 8192]),
            lkey: self.lkey,
        };
        let list = [entry];
        for qp in &self.qps {
            let _ = qp.post_send(&SendWork {
                wr_id: 1,
                // None that concerns memory windows: there are none, so it would be the last.
                opcode: bytes.of([0, 1, 2, 3, 4, 5, 6, 100]),
                flags: send_flags::SIGNALED,
                immediate: bytes.word(),
                address: bytes.long(),
                rkey: Rkey(u32::from(bytes.byte() % 4)),
                compare_add: 1,
                swap: 2,
                srq: bytes.word() & 3,
                to: None,
                data: Data::Gather(&list),
            });
            let _ = qp.post_recv(2, &list);
            qp.pump();
        }
        let _ = self.client.shared.progress();
        let _ = self.cq.poll(&mut [Wc::default(); 16]);
    }
}

/// A place in a file that may be what is expected.
fn extent(bytes: &mut Bytes<'_>, expected: u64) -> Extent {
    let length = bytes.of([expected, expected, expected, expected, expected ^ 1, u64::MAX]);
    let offset = bytes.of([0, 0, 0, PAGE, 4 * PAGE, 8, 1 << 40, u64::MAX - PAGE + 1]);
    Extent { offset, length }
}

/// A file that may have that place.
fn file(bytes: &mut Bytes<'_>, place: Extent) -> Option<OwnedFd> {
    let expected = place.offset.saturating_add(place.length);
    match bytes.byte() % 16 {
        0 => None,
        1 => std::fs::File::open("/dev/null").ok().map(Into::into),
        2 => std::fs::File::open("/").ok().map(Into::into),
        3 => seqpacket::pair().ok().map(|pair| pair.0),
        4 => memfd::create("hostile", PAGE).ok(),
        5 => memfd::create("hostile", expected.wrapping_sub(PAGE).min(1 << 30)).ok(),
        6 => rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).ok(),
        _ => memfd::create("hostile", expected.min(1 << 26)).ok(),
    }
}

/// Something the daemon tells by itself, with what it hands over.
fn event(bytes: &mut Bytes<'_>, process: &Process) -> (Message, Vec<OwnedFd>) {
    let known = process.qps.get(usize::from(bytes.byte() % 3)).map(|qp| qp.number.0);
    let qpn = known.unwrap_or_else(|| bytes.word());
    let peer_qpn = bytes.of([0x200, 0x201, qpn]);
    let mut files = Vec::new();
    let message = match bytes.byte() % 13 {
        0..=4 => {
            let mut ready = LinkReady::new_zeroed();
            (ready.qpn, ready.peer_qpn) = (Qpn(qpn), Qpn(peer_qpn));
            ready.request_bytes = bytes.of([1 << 16, 1 << 18, 4096, 0, 3, 1 << 31, u32::MAX]);
            ready.response_bytes = bytes.of([1 << 12, 1 << 16, 1 << 12, 0, 5, 1 << 31, u32::MAX]);
            ready.side = bytes.of([0, 1, 0, 1, 2, u32::MAX]);
            ready.bell_new = bytes.of([1, 1, 0]);
            ready.bell = u64::from(bytes.byte() % 3);
            ready.bell_side = bytes.of([0, 1, 0, 1, 7, u32::MAX]);
            ready.loopback = bytes.of([0, 0, 1, 9]);
            ready.local_slot = bytes.of([0, 1, 4095, 4096, u32::MAX, 64]);
            ready.peer_slot = bytes.of([0, 1, 4095, 4096, u32::MAX, 64]);
            ready.engine = bytes.of([0, 1]);
            ready.carried = bytes.of([0, 0, 1]);
            ready.traced = bytes.of([0, 1]);
            let (request, response) = (ready.request_bytes as usize, ready.response_bytes as usize);
            ready.memory = extent(bytes, layout::link_bytes(request, response) as u64);
            files.extend(file(bytes, ready.memory));
            if !bytes.byte().is_multiple_of(8) {
                ready.bell_memory = extent(bytes, BELL_BYTES);
                files.extend(file(bytes, ready.bell_memory));
                files.extend(wakers(bytes));
            }
            ready.into()
        }
        5..=7 => {
            let mut granted = Granted::new_zeroed();
            (granted.qpn, granted.peer_qpn) = (Qpn(qpn), Qpn(peer_qpn));
            granted.rkey = Rkey(u32::from(bytes.byte() % 4));
            granted.access = bytes.of([0xf, 0xe, 2, 4, 0, u32::MAX]);
            granted.addr = bytes.long();
            granted.length = bytes.long();
            granted.page_start = bytes.of([granted.addr, granted.addr & !0xfff, 0, u64::MAX]);
            let length = bytes.of([PAGE, 4 * PAGE, 1, 0, u64::MAX, 1 << 40]);
            granted.memory = extent(bytes, length);
            granted.epoch = bytes.word();
            files.extend(file(bytes, granted.memory));
            granted.into()
        }
        8 => {
            let mut adopt = Adopt::new_zeroed();
            (adopt.token, adopt.qpn) = (bytes.long(), Qpn(qpn));
            adopt.rkey = bytes.of([process.rkey, Rkey(0), Rkey(1)]);
            (adopt.fresh, adopt.trusted) = (u32::from(bytes.byte() & 1), bytes.word());
            let any = bytes.long();
            adopt.start = bytes.of([0, PAGE, any]);
            let length = bytes.of([PAGE, 4 * PAGE, 1, 0, u64::MAX, 1 << 40]);
            adopt.memory = extent(bytes, length);
            files.extend(file(bytes, adopt.memory));
            adopt.into()
        }
        9 => {
            let reason = bytes.of([CLOSED_BY_PEER, CLOSED_BY_DEATH, 0]);
            LinkClosed {
                qpn: Qpn(qpn),
                peer_qpn: Qpn(peer_qpn),
                reason,
                ..LinkClosed::new_zeroed()
            }
            .into()
        }
        11 => match bytes.byte() % 2 {
            0 => GiveLink { qpn: Qpn(qpn), peer_qpn: Qpn(peer_qpn) }.into(),
            _ => {
                let port = bytes.of([0, 4791, 50_001, 1 << 16, u32::MAX]);
                PeerPort { qpn: Qpn(qpn), peer_qpn: Qpn(peer_qpn), port, reserved: 0 }.into()
            }
        },
        10 => {
            let memory = extent(bytes, omniverb_link::captured_operations_ring::TRACE_BYTES as u64);
            files.extend(file(bytes, memory));
            TraceBegin { memory }.into()
        }
        _ => match bytes.byte() % 6 {
            0 => TraceEnd { reserved: 0 }.into(),
            1 => TraceLink {
                qpn: Qpn(qpn),
                peer_qpn: Qpn(peer_qpn),
                on: 1,
                ..TraceLink::new_zeroed()
            }
            .into(),
            2 => {
                BellClosed { bell: u64::from(bytes.byte() % 3), ..BellClosed::new_zeroed() }.into()
            }
            3 => GrantDenied {
                qpn: Qpn(qpn),
                peer_qpn: Qpn(peer_qpn),
                rkey: Rkey(1),
                errno: Errno(bytes.word()),
                ..GrantDenied::new_zeroed()
            }
            .into(),
            4 => TakeBack {
                what: u32::from(bytes.byte() % 4),
                rkey: Rkey(u32::from(bytes.byte() % 3)),
                start: bytes.long(),
                number: bytes.long(),
            }
            .into(),
            _ => GidsChanged { reserved: 0 }.into(),
        },
    };
    files.truncate(omniverb_session::DESCRIPTORS_MAX);
    (message, files)
}

fn wakers(bytes: &mut Bytes<'_>) -> Vec<OwnedFd> {
    let made = match bytes.byte() % 4 {
        0 => rustix::pipe::pipe().ok(),
        1 => omniverb_sys::EventFd::new().ok().and_then(|event| {
            let file = event.as_fd().try_clone_to_owned().ok()?;
            Some((file.try_clone().ok()?, file))
        }),
        _ => seqpacket::pair().ok(),
    };
    made.map(|(one, other)| vec![one, other]).unwrap_or_default()
}

fn answer(bytes: &mut Bytes<'_>) -> Option<Message> {
    Some(match bytes.byte() % 12 {
        0 => Message::Failed(Errno(bytes.word())),
        1 => {
            let mut gids = Gids::new_zeroed();
            gids.count = bytes.of([0, 1, GIDS_MAX as u32, GIDS_MAX as u32 + 1, u32::MAX]);
            gids.into()
        }
        2 => QpCreated {
            qpn: bytes.of([Qpn(0), Qpn(0x101), Qpn(u32::MAX), Qpn(1 << 24)]),
            ..QpCreated::new_zeroed()
        }
        .into(),
        3 => MrRegistered {
            rkey: bytes.of([Rkey(0), Rkey(1), Rkey(2), Rkey(u32::MAX)]),
            ..MrRegistered::new_zeroed()
        }
        .into(),
        4 => Connected {
            qpn: Qpn(bytes.word()),
            ready: bytes.of([0, 1, 2, 3, u32::MAX]),
            ..Connected::new_zeroed()
        }
        .into(),
        5 => Message::from(Welcome::new_zeroed()),
        _ => return None,
    })
}

/// Runs what the bytes say.
pub fn daemon_says(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let Some(mut process) = Process::new() else { return };
    let client = process.client.clone();
    client.listen();
    for _ in 0..STEPS_MAX {
        if bytes.0.is_empty() {
            break;
        }
        let events = (0..bytes.byte() % 3).map(|_| event(&mut bytes, &process)).collect();
        let answer = answer(&mut bytes);
        plans().push_back(HostileAnswers { events, answer, wrong_tag: bytes.byte() == 0xff });
        match bytes.byte() % 6 {
            0 => {
                let made = process.queue_pair(bytes.of(Service::ALL));
                process.qps.extend(made.filter(|_| process.qps.len() < 8));
            }
            1 if process.qps.len() > 2 => {
                let gone = process.qps.swap_remove(2);
                client.destroy_qp(&gone);
            }
            2 => client.request_grant(
                Qpn(bytes.word()),
                Qpn(bytes.word()),
                Rkey(bytes.word()),
                (bytes.long(), bytes.long()),
            ),
            _ => drop(client.gids()),
        }
        client.take_events();
        process.work(&mut bytes);
        if client.session.events().is_none() {
            break;
        }
    }
    for qp in &process.qps {
        client.destroy_qp(qp);
    }
}

#[cfg(test)]
mod tests;
