//! Clients of the bench, in a few words.
#![allow(dead_code)] // each test file uses a part

use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::testing::packed_extent_layout::Packed;
use omniverb_tenancy::testing::random_driver::{self, Bench, vnic};
use omniverb_tenancy::{
    Access, Action, Adoption, Arrived, Channel, EngineEnd, FileId, FileRange, Limits, LinkEnd,
    MemoryFacts, Path, PathReason, Policies, SessionId,
};
use omniverb_terms::{Errno, Gid, Qpn, Rkey, Service, UnderlayRoute};

pub mod cm_helpers;
pub mod opaque_directory;

/// Whether these are the tests of `opaque_names.rs`.
pub const OPAQUE_NAMES: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"opaque_names");
/// Whether these are the tests of `directory_restricted_vnics.rs`.
pub const RESTRICTED_ACCESS: bool =
    matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"restricted_access");
/// Whether these are the tests of `packed_extents.rs`.
pub const PACKED: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"packed_extents");

pub fn bench() -> Bench {
    bench_with(Limits::default())
}

/// A bench whose names are addresses or, in `opaque_names.rs`, those of a virtual network, and
/// whose extents are in files of their own or, in `packed_extents.rs`, side by side in large ones.
pub fn bench_with(limits: Limits) -> Bench {
    let mut bench = match OPAQUE_NAMES {
        true => Bench::with_directory(limits, Box::new(opaque_directory::Virtual)),
        false => Bench::new(limits),
    };
    if PACKED {
        bench.tenancy.lay_out(Box::new(Packed::new(1 << 24)));
    }
    bench
}

/// A bench some of whose vNICs are reached by the engine alone.
pub fn bench_closed(limits: Limits, numbers: &[u64]) -> Bench {
    Bench::with_directory(
        limits,
        Box::new(opaque_directory::Guests(Access::Forwarded, numbers.to_vec())),
    )
}

/// A bench some of whose vNICs are virtual machines: so introduced or, in
/// `directory_restricted_vnics.rs`, as the directory says.
pub fn bench_of_machines(numbers: &[u64]) -> Bench {
    if RESTRICTED_ACCESS {
        let guests = opaque_directory::Guests(Access::Window, numbers.to_vec());
        return Bench::with_directory(Limits::default(), Box::new(guests));
    }
    let mut bench = bench();
    bench.machines.extend(numbers);
    bench
}

/// The name of the vNIC of this number.
pub fn gid(number: u64) -> Gid {
    if OPAQUE_NAMES { opaque_directory::virtual_gid(number) } else { random_driver::gid(number) }
}

/// Has vNICs share no more pages than access flags say, unless something else is set for one.
pub fn make_exact(bench: &mut Bench) {
    let mut policies = Policies::default();
    policies.general.adoption = Adoption::Exact;
    bench.tenancy.configure(policies);
}

/// The route from one vNIC to another.
pub fn underlay(from: u64, to: u64) -> UnderlayRoute {
    let key = if OPAQUE_NAMES { opaque_directory::key() } else { None };
    UnderlayRoute { key, ..random_driver::underlay(from, to) }
}

/// The file, and the place in it, that holds a grant.
pub fn place(file: FileId, granted: &Granted) -> FileRange {
    FileRange { file, offset: granted.memory.offset, length: granted.memory.length }
}

/// Whether an extent is freed.
pub fn is_freed(action: &Action) -> bool {
    matches!(action, Action::ForgetFile { .. } | Action::EmptyPlace { .. })
}

pub fn call(bench: &mut Bench, session: u64, message: impl Into<Message>) -> Option<Message> {
    let message = message.into();
    // As processes do, asks again until the network has said where datagrams go.
    for _ in 0..3 {
        let answer = call_once(bench, session, message.clone());
        if !matches!(answer, Some(Message::Connected(Connected { ready: CONNECT_AGAIN, .. }))) {
            return answer;
        }
    }
    None
}

pub fn call_once(bench: &mut Bench, session: u64, message: impl Into<Message>) -> Option<Message> {
    let memory = Some(MemoryFacts { is_final: true, is_write_sealed: false });
    let message = message.into();
    let before = bench.told.len();
    bench.say(session, &Arrived { channel: Channel::Calls, tag: 77, message, memory });
    bench.told[before..].iter().find_map(|action| match action {
        Action::Reply { session: to, tag: 77, message } if to.0 == session => Some(message.clone()),
        Action::Welcome { session: to, tag: 77, welcome } if to.0 == session => {
            Some((*welcome).into())
        }
        _ => None,
    })
}

/// Actions decided for a call, not executed: a probe, for one, stays unanswered.
pub fn decided(bench: &mut Bench, session: u64, message: impl Into<Message>) -> Vec<Action> {
    let message = message.into();
    let arrived = Arrived { channel: Channel::Calls, tag: 5, message, memory: None };
    bench.tenancy.handle(SessionId(session), &arrived, bench.now)
}

/// Process 1 asks for eight bytes of a key: the owner that is asked to move pages, and how.
pub fn ask_for_grant(
    bench: &mut Bench,
    (qpn, peer_qpn): (Qpn, Qpn),
    rkey: Rkey,
) -> Result<Vec<(u64, Adopt)>, Errno> {
    bench.told.clear();
    let ask = RequestGrant { qpn, peer_qpn, rkey, reserved: 0, address: 0x11000, length: 8 };
    match call(bench, 1, ask) {
        Some(Message::Connected(_)) => {}
        answer => return Err(errno(answer)),
    }
    let asked = |action: &Action| match action {
        Action::Event { session, message: Message::Adopt(adopt) }
        | Action::Adopt { session, adopt, .. } => Some((session.0, *adopt)),
        _ => None,
    };
    Ok(bench.told.iter().filter_map(asked).collect())
}

pub fn errno(answer: Option<Message>) -> Errno {
    match answer {
        Some(Message::Failed(errno)) => errno,
        other => panic!("should have failed: {other:?}"),
    }
}

pub fn hello(bench: &mut Bench, session: u64, vnic: u64, resume: u32) {
    bench.open(session, vnic);
    let answer =
        call(bench, session, Hello { role: ROLE_VERBS, resume, name: *b"test\0 not shown " });
    assert!(matches!(answer, Some(Message::Welcome(_))), "{answer:?}");
}

pub fn create_qp(service: Service) -> CreateQp {
    CreateQp::new(service, 1, 0)
}

pub fn qp(bench: &mut Bench, session: u64, service: Service) -> Qpn {
    match call(bench, session, create_qp(service)) {
        Some(Message::QpCreated(created)) => created.qpn,
        other => panic!("{other:?}"),
    }
}

/// Keeps a number that was given before the daemon was started.
pub fn keep_qp(bench: &mut Bench, session: u64, service: Service, qpn: Qpn) -> Option<Message> {
    let claim = bench.claim(session, service, qpn, 1);
    call(bench, session, claim)
}

pub fn to(qpn: Qpn, from: u64, dest_qpn: Qpn, dest: u64) -> ConnectQp {
    ConnectQp { qpn, dest_qpn, sgid: gid(from), dgid: gid(dest), resume: 0, carries: 0 }
}

pub fn mr(bench: &mut Bench, session: u64, pd: u32, access: u32) -> Rkey {
    let message = RegMr { pd, access, addr: 0x10800, length: 0x3000, rkey: Rkey(0), reserved: 0 };
    match call(bench, session, message) {
        Some(Message::MrRegistered(registered)) => registered.rkey,
        other => panic!("{other:?}"),
    }
}

pub fn links(bench: &Bench) -> Vec<(LinkEnd, LinkEnd)> {
    let link = |action: &Action| match action {
        Action::CreateLink { first, second } => Some((first.clone(), second.clone())),
        _ => None,
    };
    bench.told.iter().filter_map(link).collect()
}

pub fn engine_links(bench: &Bench) -> Vec<EngineEnd> {
    let link = |action: &Action| match action {
        Action::AttachEngine(end) => Some((**end).clone()),
        _ => None,
    };
    bench.told.iter().filter_map(link).collect()
}

pub fn detached(bench: &Bench) -> Vec<(Qpn, Qpn)> {
    let pair = |action: &Action| match action {
        Action::DetachEngine { qpn, peer_qpn, .. } => Some((*qpn, *peer_qpn)),
        _ => None,
    };
    bench.told.iter().filter_map(pair).collect()
}

/// The paths of a vNIC's queue pairs, in the order of their numbers.
pub fn paths(bench: &Bench, number: u64) -> Vec<(Path, PathReason)> {
    let status = bench.tenancy.status(Some(vnic(number)));
    let processes = status.iter().flat_map(|vnic| &vnic.processes);
    let peers = processes.flat_map(|process| &process.qps).flat_map(|qp| &qp.peers);
    peers.map(|peer| (peer.path, peer.why)).collect()
}

pub fn events(bench: &mut Bench, session: u64) -> Vec<Message> {
    let told = std::mem::take(&mut bench.told);
    told.into_iter()
        .filter_map(|action| match action {
            Action::Event { session: to, message } if to == SessionId(session) => Some(message),
            Action::Adopt { session: to, adopt, .. } if to == SessionId(session) => {
                Some(adopt.into())
            }
            _ => None,
        })
        .collect()
}
