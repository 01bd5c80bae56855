//! Tests pairing, death, grants, quotas and malformed messages in one network namespace.

use crate::support::client_process::Remote;
use crate::support::*;
use omniverb_control::{Audience, RuntimeFolder, Settings, StartError};
use omniverb_session::Message;
use omniverb_session::body::{self, *};
use omniverb_sys::{Access, Extent, seqpacket};
use omniverb_tenancy::Limits;
use omniverb_terms::{Errno, Qpn, Service};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

const HOME: &str = "127.0.0.1";

fn pair(a: &mut dyn Speaker, b: &mut dyn Speaker, service: Service) -> (Qpn, Qpn) {
    let (one, other) = (create(a, service), create(b, service));
    let first = a.call(connect(one, other, HOME, HOME).into());
    assert_eq!(first, Connected { qpn: one, ready: 0 }.into());
    let second = b.call(connect(other, one, HOME, HOME).into());
    assert_eq!(second, Connected { qpn: other, ready: 1 }.into());
    (one, other)
}

/// What came along with a message that describes it.
fn extent(file: &OwnedFd, said: body::Extent) -> Extent<&OwnedFd> {
    Extent::new(file, said.offset, said.length)
}

fn files_of(client: &mut Client) -> (LinkReady, Vec<OwnedFd>) {
    match client.event(SOON) {
        Some((Message::LinkReady(ready), files)) => (ready, files),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_link_joins_two_clients() {
    let daemon = Daemon::start(Settings::default());
    let (mut a, mut b) = (Client::hello(&daemon.path), Client::hello(&daemon.path));
    pair(&mut a, &mut b, Service::Rc);
    let ((ours, our_files), (theirs, their_files)) = (files_of(&mut a), files_of(&mut b));
    assert_eq!((our_files.len(), their_files.len()), (2, 2));
    let sides = if ours.qpn < theirs.qpn { (0, 1) } else { (1, 0) };
    assert_eq!((ours.side, theirs.side), sides);
    assert_eq!((ours.bell_side, theirs.bell_side, ours.loopback), (0, 1, 0));
    let bytes = omniverb_link::layout::link_bytes(
        ours.request_bytes as usize,
        ours.response_bytes as usize,
    );
    for (ready, files) in [(&ours, &our_files), (&theirs, &their_files)] {
        assert_eq!(extent(&files[0], ready.memory).verify().unwrap(), bytes);
        assert_eq!(extent(&files[1], ready.bell_memory).verify().unwrap(), 0x2000);
    }
    // It is the same memory.
    for index in [0, 1] {
        let [mine, seen] = [(&ours, &our_files), (&theirs, &their_files)]
            .map(|(ready, files)| extent(&files[index], [ready.memory, ready.bell_memory][index]));
        let at = mine.offset + 0x1000;
        assert_eq!(rustix::io::pwrite(mine.file, &7u64.to_ne_bytes(), at), Ok(8));
        assert_eq!(seen.mapping(Access::ReadOnly).unwrap().load_u64(0x1000), Some(7));
    }
    // The second link uses the same doorbell.
    pair(&mut a, &mut b, Service::Uc);
    let (second, files) = files_of(&mut a);
    assert_eq!((second.bell_new, second.bell, files.len()), (0, ours.bell, 1));
}

#[test]
fn silent_connections_of_one_process_make_room_for_others_of_its_vnic() {
    let daemon = Daemon::start(Settings::default());
    let silent: Vec<Client> = (0..600).map(|_| Client::connect(&daemon.path)).collect();
    // Another process, of the same user in the same vNIC, is served at once.
    let mut other = Remote::start(&daemon.path, None);
    other.hello().unwrap();
    create(&mut other, Service::Ud);
    // It was the oldest that went, and the rest goes in time.
    assert!(silent[0].is_dropped());
    assert!(silent[599].is_dropped());
    other.kill();
    let mut own = Client::hello(&daemon.path);
    create(&mut own, Service::Ud);
}

#[test]
fn both_ends_in_one_process() {
    let daemon = Daemon::start(Settings::default());
    let mut a = Client::hello(&daemon.path);
    let (one, other) = (create(&mut a, Service::Rc), create(&mut a, Service::Rc));
    a.call(connect(one, other, HOME, HOME).into());
    a.call(connect(other, one, HOME, HOME).into());
    let ((first, files), (second, more)) = (files_of(&mut a), files_of(&mut a));
    assert_eq!((first.loopback, second.loopback), (1, 1));
    assert_eq!((first.bell, first.local_slot), (second.bell, second.peer_slot));
    assert_eq!((files.len(), more.len()), (2, 2));
}

#[test]
fn datagrams_reach_existing_queue_pairs() {
    let daemon = Daemon::start(Settings::default());
    let (mut a, mut b) = (Client::hello(&daemon.path), Client::hello(&daemon.path));
    let (one, other) = (create(&mut a, Service::Ud), create(&mut b, Service::Ud));
    let answer = a.call(connect(one, other, HOME, HOME).into());
    assert_eq!(answer, Connected { qpn: one, ready: 1 }.into());
    assert_eq!(link_ready(&mut a).peer_qpn, other);
    assert_eq!(link_ready(&mut b).peer_qpn, one);
    let answer = a.call(connect(one, Qpn(0x00ab_cdef), HOME, HOME).into());
    assert_eq!(answer, Message::Failed(Errno::ENOENT));
}

#[test]
fn death_is_told_at_once_and_leaves_nothing() {
    let daemon = Daemon::start(Settings::default());
    let mut b = Client::hello(&daemon.path);
    let before = b.call(QueryGids { reserved: 0 }.into());
    assert!(matches!(before, Message::Gids(_)));
    for round in 0..5 {
        let mut a = Remote::start(&daemon.path, None);
        a.hello().unwrap();
        let pairs: Vec<_> = (0..10).map(|_| pair(&mut a, &mut b, Service::Rc)).collect();
        let bell = link_ready(&mut b).bell;
        for _ in 1..10 {
            link_ready(&mut b);
        }
        a.kill();
        let told: Vec<_> = pairs.iter().map(|_| link_closed(&mut b)).collect();
        for (one, other) in pairs {
            let expected =
                LinkClosed { qpn: other, peer_qpn: one, reason: CLOSED_BY_DEATH, reserved: 0 };
            assert!(told.contains(&expected), "round {round}");
            assert_eq!(
                b.call(DestroyQp { qpn: other, reserved: 0 }.into()),
                Done { take_back: 0 }.into()
            );
        }
        assert_eq!(b.next_event(SOON).unwrap().0, BellClosed { bell }.into());
    }
    let status = daemon.status();
    assert_eq!(status["vnics"][0]["processes"].as_array().unwrap().len(), 1);
    assert_eq!(status["vnics"][0]["processes"][0]["links"], 0);
    drop(b);
    let gone = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        daemon.status()["vnics"].as_array().unwrap().is_empty()
    });
    assert!(gone);
}

#[test]
fn over_quota_is_enomem_and_others_go_on() {
    let limits = Limits { qps_per_session: 3, sessions_per_vnic: 2, ..Limits::default() };
    let daemon = Daemon::start(Settings { limits, ..Settings::default() });
    let (mut a, mut b) = (Client::hello(&daemon.path), Client::hello(&daemon.path));
    let message = create_qp(Service::Rc);
    for _ in 0..3 {
        create(&mut a, Service::Rc);
    }
    assert_eq!(a.call(message.into()), Message::Failed(Errno::ENOMEM));
    create(&mut b, Service::Rc);
    let mut third = Client::connect(&daemon.path);
    let hello = Hello { role: ROLE_VERBS, resume: 0, name: [0; 16] };
    assert_eq!(third.call_with(hello, &[]).0, Message::Failed(Errno::ENOMEM));
    drop(a);
    drop(third);
    let again = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        let mut client = Client::connect(&daemon.path);
        matches!(client.call_with(hello, &[]).0, Message::Welcome(_))
    });
    assert!(again);
}

#[test]
fn garbage_hurts_only_its_sender() {
    let daemon = Daemon::start(Settings::default());
    let mut honest = Client::hello(&daemon.path);
    let mut state = 88172645463325252u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..200 {
        let client = match round % 2 {
            0 => Client::connect(&daemon.path),
            _ => Client::hello(&daemon.path),
        };
        let mut bytes: Vec<u8> = (0..random() % 300 + 1).map(|_| random() as u8).collect();
        if round % 4 > 1 && bytes.len() > 4 {
            // A plausible beginning.
            bytes[..2].copy_from_slice(&omniverb_session::VERSION.to_ne_bytes());
            bytes[2..4].copy_from_slice(&((random() % 30) as u16).to_ne_bytes());
        }
        let target = if round % 8 > 5 { client.events.as_ref() } else { None };
        let _ = seqpacket::send(target.unwrap_or(&client.calls).as_fd(), &bytes, &[]);
    }
    let stranger = Client::connect(&daemon.path);
    let mut bytes = [0; 4096];
    let length = omniverb_session::encode(9, &QueryGids { reserved: 0 }.into(), &mut bytes);
    bytes[0] ^= 0x55;
    seqpacket::send(stranger.calls.as_fd(), &bytes[..length], &[]).unwrap();
    let mut answer = [0; 4096];
    let (length, _) =
        seqpacket::receive(stranger.calls.as_fd(), &mut answer, seqpacket::BlockingMode::Blocking)
            .unwrap();
    let decoded = omniverb_session::decode(&answer[..length]).unwrap();
    assert_eq!(decoded, (9, Message::Failed(Errno::EPROTO)), "another version is told so");
    assert!(stranger.is_dropped());
    assert!(matches!(honest.call(QueryGids { reserved: 0 }.into()), Message::Gids(_)));
    let early = Client::connect(&daemon.path).call(QueryGids { reserved: 0 }.into());
    assert_eq!(early, Message::Failed(Errno::EPROTO));
}

#[test]
fn silence_is_ended_and_a_flood_of_connections_refused() {
    let daemon = Daemon::start(Settings::default());
    let mut honest = Client::hello(&daemon.path);
    let crowd: Vec<_> = (0..400).map(|_| Client::connect(&daemon.path)).collect();
    assert!(matches!(honest.call(QueryGids { reserved: 0 }.into()), Message::Gids(_)));
    assert!(crowd[399].is_dropped(), "over the number of silent connections");
    assert!(crowd[0].is_dropped(), "silent for too long");
    Client::hello(&daemon.path);
}

#[test]
fn a_client_that_does_not_take_its_answers_is_dropped() {
    let settings = Settings { queued_descriptors: 300, ..Settings::default() };
    let daemon = Daemon::start(settings);
    let (mut deaf, mut b) = (Client::hello(&daemon.path), Client::hello(&daemon.path));
    let wishes: Vec<_> = (0..1500)
        .map(|_| {
            let (one, other) = (create(&mut deaf, Service::Rc), create(&mut b, Service::Rc));
            deaf.call(connect(one, other, HOME, HOME).into());
            (other, one)
        })
        .collect();
    let mut linked = 0;
    for (other, one) in wishes {
        b.call(connect(other, one, HOME, HOME).into());
        match b.event(SOON) {
            Some((Message::LinkReady(_), _)) => linked += 1,
            Some((Message::LinkClosed(closed), _)) => {
                assert_eq!(closed.reason, CLOSED_BY_DEATH);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!((200..1400).contains(&linked), "{linked}");
    assert!(deaf.is_dropped());
}

#[test]
fn no_client_is_dropped_for_actions_of_others() {
    let settings = Settings { queued_descriptors: 300, ..Settings::default() };
    let daemon = Daemon::start(settings);
    let (mut deaf, mut b) = (Client::hello(&daemon.path), Client::hello(&daemon.path));
    let target = create(&mut deaf, Service::Ud);
    let (kept, _) = pair(&mut deaf, &mut b, Service::Rc);
    link_ready(&mut b);
    let (mut linked, mut refused) = (0, 0);
    let sources: Vec<Qpn> = (0..64).map(|_| create(&mut b, Service::Ud)).collect();
    // Links that come and go, of a session that does not look, and then of one that looks.
    let mut churn = |b: &mut Client, deaf: Option<&mut Client>| {
        let mut deaf = deaf;
        for round in 0..1500 {
            let source = sources[round % 64];
            match b.call_with(connect(source, target, HOME, HOME), &[]).0 {
                Message::Connected(Connected { ready: 1, .. }) => linked += 1,
                Message::Connected(Connected { ready: CONNECT_AGAIN, .. }) => refused += 1,
                other => panic!("{other:?}"),
            }
            b.call(DisconnectQp { qpn: source, peer_qpn: Qpn(0) }.into());
            while b.event(Duration::ZERO).is_some() {}
            while deaf.as_mut().is_some_and(|deaf| deaf.event(Duration::ZERO).is_some()) {}
        }
        (std::mem::take(&mut linked), std::mem::take(&mut refused))
    };
    let (linked, refused) = churn(&mut b, None);
    assert!((1..200).contains(&linked) && refused > 1200, "{linked} links, {refused} refused");
    let mut told = 0;
    while let Some((message, _)) = deaf.event(Duration::from_millis(100)) {
        told += 1;
        assert!(!matches!(message, Message::LinkClosed(m) if m.qpn == kept));
    }
    assert!(told < 500, "{told}");
    assert!(matches!(deaf.call(QueryGids { reserved: 0 }.into()), Message::Gids(_)));
    let (linked, refused) = churn(&mut b, Some(&mut deaf));
    assert!(linked > 1400, "{linked} links, {refused} refused");
}

#[test]
fn survivors_announce_themselves_to_the_next_daemon() {
    let daemon = Daemon::start(Settings::default());
    let (mut a, mut b) = (Client::hello(&daemon.path), Client::hello(&daemon.path));
    let (kept_one, kept_other) =
        (create_kept(&mut a, Service::Rc), create_kept(&mut b, Service::Rc));
    let (one, other) = (kept_one.qpn, kept_other.qpn);
    a.call(connect(one, other, HOME, HOME).into());
    b.call(connect(other, one, HOME, HOME).into());
    link_ready(&mut b);
    let folder = daemon.stop();
    assert!(a.is_dropped());
    let daemon = Daemon::start_in(folder, Settings::default());
    // A new client is served at once.
    let mut new = Client::hello(&daemon.path);
    create(&mut new, Service::Rc);
    let resumed = |keep: CreateQp, peer: Qpn| {
        let mut client = Client::hello_with(&daemon.path, 1);
        let CreateQp { qpn, issued, ticket, .. } = keep;
        let kept = QpCreated { qpn, reserved: 0, issued, ticket };
        assert_eq!(client.call(keep.into()), kept.into());
        let link = ConnectQp { resume: 1, ..connect(qpn, peer, HOME, HOME) };
        assert!(matches!(client.call(link.into()), Message::Connected(_)));
        client
    };
    let a = resumed(kept_one, other);
    let mut b = resumed(kept_other, one);
    assert_eq!(b.next_event(MOMENT), None, "the old link goes on");
    drop(a);
    let expected = LinkClosed { qpn: other, peer_qpn: one, reason: CLOSED_BY_DEATH, reserved: 0 };
    assert_eq!(link_closed(&mut b), expected, "and is watched again");
}

#[test]
fn a_place_is_taken_once() {
    let daemon = Daemon::start(Settings::default());
    let taken = RuntimeFolder::take(&daemon.path, Audience::Owner);
    assert!(matches!(taken, Err(StartError::InUse { pid: Some(_), .. })), "{taken:?}");
    let path = daemon.path.clone();
    let folder = daemon.stop();
    assert!(!path.exists());
    // A socket that a killed daemon left behind.
    drop(seqpacket::listen(&path, 0o600).unwrap());
    drop(RuntimeFolder::take(&path, Audience::Owner).unwrap());
    std::fs::write(&path, "text").unwrap();
    assert!(matches!(
        RuntimeFolder::take(&path, Audience::Owner),
        Err(StartError::NotASocket { .. })
    ));
    std::fs::remove_dir_all(folder).unwrap();
}
