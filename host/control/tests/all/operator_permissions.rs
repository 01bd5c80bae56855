//! Tests which calls operators and tenants may make.

use crate::support::client_process::Remote;
use crate::support::namespaces::{Net, is_root};
use crate::support::operator::{Operator, name, own_status};
use crate::support::*;
use omniverb_control::{Allow, Settings};
use omniverb_session::body::*;
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::operator::{self, Message as Said};
use omniverb_session::{Header, Message};
use omniverb_sys::seqpacket;
use omniverb_sys::user_and_group_check::UsersAndGroups;
use omniverb_terms::{Errno, Qpn, Service};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A client that waits so long for the daemon is held up, on however busy a machine. (A second or
/// two are usual in a debug build, with eight that ask all the time, on two processors.)
const LIVELY: Duration = Duration::from_secs(30);

fn operators_messages() -> Vec<Said> {
    let set = operator::SetVnic {
        name: name(""),
        what: operator::SET_RATE,
        datapath: 0,
        bits_per_second: 0,
        burst_bytes: 0,
        faults: omniverb_session::network_fault_text::Faults::default(),
        adoption: 0,
        operations_per_second: 0,
    };
    vec![
        operator::QueryAll { from: Cursor::START }.into(),
        operator::QueryVnics { from: Cursor::START }.into(),
        set.into(),
        operator::DisconnectVnic { name: name("host") }.into(),
        operator::Capture { name: name(""), snap_bytes: 256, reserved: 0 }.into(),
        operator::EndCapture { reserved: 0 }.into(),
    ]
}

#[test]
fn the_tenants_socket_knows_no_message_of_an_operator() {
    // This is root in the daemon's own network namespace, or the daemon's own user.
    let daemon = Daemon::start(Settings::default());
    for hello in [false, true] {
        for message in operators_messages() {
            let client = match hello {
                true => Client::hello(&daemon.path),
                false => Client::connect(&daemon.path),
            };
            let mut bytes = [0; MESSAGE_BYTES_MAX];
            let length = operator::encode(1, &message, &mut bytes);
            // With the file of a capture it is not even sent, or gets no answer:
            // tests/descriptors.rs.
            seqpacket::send(client.calls.as_fd(), &bytes[..length], &[]).unwrap();
            let (length, _) = seqpacket::receive(
                client.calls.as_fd(),
                &mut bytes,
                seqpacket::BlockingMode::Blocking,
            )
            .unwrap();
            let answer = omniverb_session::decode(&bytes[..length]).unwrap().1;
            assert_eq!(answer, Message::Failed(Errno::EPROTO), "{message:?}");
            assert!(client.is_dropped(), "{message:?}");
        }
    }
    // The numbers that operators' messages had on this socket once, and a role that is no more.
    for kind in 40..=47u16 {
        let client = Client::connect(&daemon.path);
        let mut bytes = vec![0; 600];
        bytes[..2].copy_from_slice(&omniverb_session::VERSION.to_ne_bytes());
        bytes[2..4].copy_from_slice(&kind.to_ne_bytes());
        assert!(bytes.len() > size_of::<Header>());
        seqpacket::send(client.calls.as_fd(), &bytes, &[]).unwrap();
        let mut answer = [0; MESSAGE_BYTES_MAX];
        let (length, _) = seqpacket::receive(
            client.calls.as_fd(),
            &mut answer,
            seqpacket::BlockingMode::Blocking,
        )
        .unwrap();
        let answer = omniverb_session::decode(&answer[..length]).unwrap().1;
        assert_eq!(answer, Message::Failed(Errno::EPROTO), "{kind}");
    }
    let mut client = Client::connect(&daemon.path);
    let tool = Hello { role: 2, resume: 0, name: [0; 16] };
    assert_eq!(client.call_with(tool, &[]).0, Message::Failed(Errno::EINVAL));
}

#[test]
fn the_operators_socket_is_the_owners_alone_and_knows_no_message_of_a_tenant() {
    let daemon = Daemon::start(Settings::default());
    let found = std::fs::metadata(&daemon.operators).unwrap();
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    assert_eq!(found.uid(), rustix::process::geteuid().as_raw());
    let stranger = seqpacket::connect(&daemon.operators).unwrap();
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let hello = Hello { role: ROLE_VERBS, resume: 0, name: [0; 16] };
    let length = omniverb_session::encode(5, &hello.into(), &mut bytes);
    seqpacket::send(stranger.as_fd(), &bytes[..length], &[]).unwrap();
    let (length, _) =
        seqpacket::receive(stranger.as_fd(), &mut bytes, seqpacket::BlockingMode::Blocking)
            .unwrap();
    assert_eq!(operator::decode(&bytes[..length]), Ok((5, Said::Failed(Errno::EPROTO))));
    let mut operator = Operator::connect(&daemon);
    assert_eq!(operator.call(Done { take_back: 0 }), Said::Failed(Errno::EPROTO));
    assert!(operator.status()["daemon"]["pid"].is_number());
}

#[test]
fn a_user_without_rights_is_refused_at_an_open_socket() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(Settings::default());
    // An administrator was careless with modes.
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(&daemon.operators, open.clone()).unwrap();
    std::fs::set_permissions(daemon.operators.parent().unwrap(), open).unwrap();
    let script = "import socket,sys\ns=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)\n\
                  s.connect(sys.argv[1])\ns.settimeout(5)\nprint(len(s.recv(9)))";
    let found = std::process::Command::new("setpriv")
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "/usr/bin/python3",
            "-c",
            script,
        ])
        .arg(&daemon.operators)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    assert_eq!(text.trim(), "0", "{}", String::from_utf8_lossy(&found.stderr));
}

#[test]
fn a_tenant_is_shown_its_own_vnic_and_an_operator_all() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(Settings::default());
    let net = Net::new();
    let mut theirs = net.client(&daemon);
    create(&mut theirs, Service::Rc);
    let mut ours = Client::hello(&daemon.path);
    let qpn = create(&mut ours, Service::Rc);
    // Root at home, without a greeting and with one.
    for client in [&mut Client::connect(&daemon.path), &mut ours] {
        let status = own_status(client);
        assert_eq!(status["vnics"].as_array().unwrap().len(), 1, "{status}");
        assert_eq!(status["vnics"][0]["name"], "host");
        let qps = status["vnics"][0]["processes"][0]["qps"].as_array().unwrap().clone();
        assert_eq!((qps.len(), &qps[0]["qpn"]), (1, &qpn.0.into()));
        // A place in another vNIC is a place where there is nothing.
        for stage in 0..8 {
            for session in 0..4 {
                for vnic in 0..4 {
                    let from = Cursor { vnic, session, stage, ..Cursor::START };
                    let status = client.call_with(QueryStatus { from }, &[]).0;
                    let Message::Status(piece) = status else { panic!("no status") };
                    let text = String::from_utf8_lossy(&piece.text[..piece.length as usize]);
                    assert!(!text.contains("remote client") && !text.contains("vnic-"), "{text}");
                }
            }
        }
    }
    let Message::Status(own) = ours.call_with(QueryVnic { reserved: 0 }, &[]).0 else {
        panic!("no answer")
    };
    let text = String::from_utf8_lossy(&own.text[..own.length as usize]).into_owned();
    assert!(text.contains("\"host\"") && text.lines().count() == 1, "{text}");
    assert_eq!(daemon.status()["vnics"].as_array().unwrap().len(), 2);
    assert_eq!(Operator::connect(&daemon).vnics()["vnics"].as_array().unwrap().len(), 2);
}

#[test]
fn an_operator_ends_the_links_of_a_vnic() {
    let daemon = Daemon::start(Settings::default());
    let (mut a, mut b) = (Client::hello(&daemon.path), Remote::start(&daemon.path, None));
    b.hello().unwrap();
    let (one, other) = (create(&mut a, Service::Rc), create(&mut b, Service::Rc));
    let home = "127.0.0.1";
    a.call(connect(one, other, home, home).into());
    b.call(connect(other, one, home, home).into());
    link_ready(&mut a);
    link_ready(&mut b);
    let mut operator = Operator::connect(&daemon);
    let answer = operator.call(operator::DisconnectVnic { name: name("net-1") });
    assert_eq!(answer, Said::Failed(Errno::ENOENT));
    let done = operator.call(operator::DisconnectVnic { name: name("host") });
    assert_eq!(done, operator::Disconnected { links: 1, reserved: 0 }.into());
    for (client, qpn, peer_qpn) in [(&mut a as &mut dyn Speaker, one, other), (&mut b, other, one)]
    {
        let expected = LinkClosed { qpn, peer_qpn, reason: CLOSED_BY_NETWORK, reserved: 0 };
        assert_eq!(link_closed(client), expected);
    }
}

#[test]
fn a_client_that_polls_status_holds_up_no_other() {
    let daemon = Daemon::start(Settings::default());
    // Thousands of queue pairs, and one with thousands of links.
    let mut large = Client::hello(&daemon.path);
    let qpns: Vec<Qpn> = (0..6000).map(|_| create(&mut large, Service::Ud)).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut asks = 0;
                while !stop.load(Ordering::Relaxed) {
                    // Half of the time one whole document, half of the time as much as it may send.
                    let mut client = Client::hello(&daemon.path);
                    if asks % 2 == 0 {
                        let from = Cursor::START;
                        (0..64).for_each(|_| client.send(QueryStatus { from }, &[]));
                    } else {
                        let status = own_status(&mut client);
                        let qps = status["vnics"][0]["processes"][0]["qps"].as_array().unwrap();
                        assert_eq!(qps.len(), 6000);
                    }
                    asks += 1;
                }
            });
        }
        let mut slowest = Duration::ZERO;
        for _ in 0..100 {
            let begun = Instant::now();
            let mut other = Client::hello(&daemon.path);
            create(&mut other, Service::Rc);
            slowest = slowest.max(begun.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
        assert!(slowest < LIVELY, "a call waited {slowest:?}");
    });
    assert_eq!(qpns.len(), 6000);
}

#[test]
fn a_refused_client_gets_an_answer_and_takes_no_place() {
    let uid = rustix::process::geteuid().as_raw();
    let allow = |uid| {
        let people = UsersAndGroups { users: vec![uid], ..UsersAndGroups::default() };
        Some(Allow { people, ..Allow::default() })
    };
    let daemon = Daemon::start(Settings { allow: allow(uid + 1), ..Settings::default() });
    let hello = Hello { role: ROLE_VERBS, resume: 0, name: [0; 16] };
    let mut refused = Client::connect(&daemon.path);
    let answer = refused.call_with(hello, &[]).0;
    assert_eq!(answer, Message::Failed(Errno::EACCES));
    assert!(refused.is_dropped());
    // However many connections wait to hear it, operators and the next one do.
    let held: Vec<Client> = (0..200).map(|_| Client::connect(&daemon.path)).collect();
    assert!(daemon.status()["vnics"].as_array().unwrap().is_empty());
    drop(held);
    let daemon = Daemon::start(Settings { allow: allow(uid), ..Settings::default() });
    Client::hello(&daemon.path);
}
