//! Tests what the two ends of a port promise each other.

use super::serial_port_io::{FRAMES_MAX, TURN_BYTES};
use super::*;
use rustix::io::{read, write};
use std::os::unix::net::UnixStream;

/// Two ends of a port, and something that is never ready.
fn ends() -> (Relay, Relay, (OwnedFd, OwnedFd)) {
    let (one, other) = UnixStream::pair().unwrap();
    let relay = |end: UnixStream| Relay::new(end.into(), Reads::Always).unwrap();
    (relay(one), relay(other), seqpacket::pair().unwrap())
}

fn turn(relay: &mut Relay, quiet: &OwnedFd) -> Vec<News> {
    relay.wait(&[quiet.as_fd()], Some(10)).unwrap()
}

#[test]
fn messages_of_sessions_come_out_where_they_belong() {
    let (mut one, mut other, (quiet, _far)) = ends();
    let pairs: Vec<_> = (0..3).map(|_| seqpacket::pair().unwrap()).collect();
    let mut theirs = Vec::new();
    for (number, (ours, far)) in (1..).zip(pairs) {
        one.add(number, ours);
        seqpacket::send(far.as_fd(), format!("from {number}").as_bytes(), &[]).unwrap();
        theirs.push(far);
    }
    let mut found = Vec::new();
    while found.len() < 3 {
        for news in turn(&mut one, &quiet) {
            let News::Said { session, channel, bytes, .. } = news else { panic!("{news:?}") };
            one.say(channel.frame(), session, bytes);
        }
        for news in turn(&mut other, &quiet) {
            let News::Frame(frame) = news else { panic!("{news:?}") };
            assert_eq!(frame.bytes, format!("from {}", frame.session).as_bytes());
            assert_eq!(Channel::of(frame.kind), Some(Channel::Calls));
            found.push(frame.session);
        }
    }
    drop(theirs.remove(1));
    let gone = (0..100).flat_map(|_| turn(&mut one, &quiet)).next();
    assert!(matches!(gone, Some(News::Gone(2))) && one.len() == 2 && !one.has(2));
}

#[test]
fn a_reader_that_takes_nothing_is_cut_off_and_others_are_not() {
    let (mut relay, _other, (quiet, _far)) = ends();
    let (slow, lively) = (seqpacket::pair().unwrap(), seqpacket::pair().unwrap());
    relay.add(1, slow.0);
    relay.add(2, lively.0);
    for _ in 0..10_000 {
        relay.tell(1, Channel::Calls, vec![0; 4096], Vec::new());
    }
    let news = turn(&mut relay, &quiet);
    assert!(news.iter().all(|news| matches!(news, News::Lost(1))) && !news.is_empty());
    relay.tell(2, Channel::Calls, b"still".to_vec(), Vec::new());
    let mut bytes = [0; 16];
    let (length, _) =
        seqpacket::receive(lively.1.as_fd(), &mut bytes, seqpacket::BlockingMode::NonBlocking)
            .unwrap();
    assert_eq!(&bytes[..length], b"still");
}

#[test]
fn while_the_port_takes_nothing_no_socket_is_read() {
    let (mut relay, _other, (quiet, _far)) = ends();
    let (ours, far) = seqpacket::pair().unwrap();
    relay.add(1, ours);
    let mut read = 0;
    for _ in 0..2000 {
        let _ = seqpacket::try_send(far.as_fd(), &[0; 4096], &[]);
        for news in turn(&mut relay, &quiet) {
            let News::Said { session, channel, bytes, .. } = news else { panic!("{news:?}") };
            relay.say(channel.frame(), session, bytes);
            read += 1;
        }
        if read > 0 && relay.port.waiting() > FRAMES_MAX {
            break;
        }
    }
    assert!(relay.port.waiting() > FRAMES_MAX);
    assert!(turn(&mut relay, &quiet).is_empty());
}

#[test]
fn a_computing_peer_is_kept() {
    let (mut relay, _other, _quiet) = ends();
    let (ours, far) = seqpacket::pair().unwrap();
    relay.add(1, ours);
    for _ in 0..10_000 {
        relay.tell(1, Channel::Calls, vec![7; 128], Vec::new());
    }
    assert!(relay.has(1));
    let mut bytes = [0; 256];
    for _ in 0..10_000 {
        relay.flush(1);
        let got = seqpacket::receive(far.as_fd(), &mut bytes, seqpacket::BlockingMode::NonBlocking);
        assert_eq!(got.unwrap().0, 128);
    }
    assert_eq!(relay.cost, 0);
}

#[test]
fn all_sessions_together_have_a_bound() {
    let (mut relay, _other, (quiet, _far)) = ends();
    let pairs: Vec<_> = (0..64).map(|_| seqpacket::pair().unwrap()).collect();
    let mut theirs = Vec::new();
    for (number, (ours, far)) in (0..).zip(pairs) {
        relay.add(number, ours);
        theirs.push(far);
    }
    for round in 0..64_000 {
        relay.tell(round % 64, Channel::Calls, vec![0; 4096], Vec::new());
        assert!(relay.cost <= WAITING_MAX);
    }
    assert!(turn(&mut relay, &quiet).iter().all(|news| matches!(news, News::Lost(_))));
}

#[test]
fn a_client_that_takes_no_answers_is_not_served() {
    let (one, other) = UnixStream::pair().unwrap();
    let mut relay = Relay::new(one.into(), Reads::WithRoom).unwrap();
    let (quiet, _far) = seqpacket::pair().unwrap();
    other.set_nonblocking(true).unwrap();
    let frame = Frame { kind: FrameKind::Open, session: 7, bytes: vec![0; 8] }.encode();
    let turns = |relay: &mut Relay| {
        for _ in 0..2000 {
            for _ in 0..100 {
                let _ = rustix::io::write(&other, &frame);
            }
            for news in turn(relay, &quiet) {
                assert!(matches!(news, News::Frame(_)), "{news:?}");
                relay.say(FrameKind::Close, 7, Vec::new());
            }
            if relay.port.waiting() > FRAMES_MAX {
                break;
            }
        }
    };
    turns(&mut relay);
    let most = relay.port.waiting();
    assert!(most > FRAMES_MAX && most < FRAMES_MAX + TURN_BYTES / 8, "{most}");
    assert!(turn(&mut relay, &quiet).is_empty(), "nothing is read");
    let mut bytes = vec![0; 1 << 20];
    while relay.port.waiting() > FRAMES_MAX {
        let _ = read(&other, &mut bytes);
        turn(&mut relay, &quiet);
    }
}

#[test]
fn a_late_reader_gets_no_earlier_messages() {
    let (one, other) = UnixStream::pair().unwrap();
    let mut proxy = Relay::new(one.into(), Reads::WithRoom).unwrap();
    let (quiet, _far) = seqpacket::pair().unwrap();
    for session in 0..200 {
        proxy.say(FrameKind::Call, session, vec![session as u8; 4096]);
    }
    turn(&mut proxy, &quiet);
    // The agent that dies has half of a frame.
    read(&other, &mut [0; 1000]).unwrap();
    let mut agent = Relay::new(other.into(), Reads::Always).unwrap();
    agent.begin(&Frame { kind: FrameKind::Begin, session: 0, bytes: vec![9; 16] });
    let mut heard = Vec::new();
    for _ in 0..1000 {
        heard.extend(turn(&mut agent, &quiet));
        for news in turn(&mut proxy, &quiet) {
            let News::Frame(frame) = news else { panic!("{news:?}") };
            proxy.restart();
            proxy.say(frame.kind, frame.session, frame.bytes);
            proxy.say(FrameKind::Close, 5, Vec::new());
        }
        if !heard.is_empty() {
            break;
        }
    }
    let [News::Frame(frame)] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((frame.kind, frame.session), (FrameKind::Close, 5));
}

/// Frames of several threads do not mix, and what is said at once does not overtake what waits.
#[test]
fn a_batch_is_sent_whole_or_not_at_all() {
    let (mut one, mut other, (quiet, _far)) = ends();
    let frame = |length: usize| Frame { kind: FrameKind::Rung, session: 0, bytes: vec![1; length] };
    let voice = one.voice();
    assert!(voice.say_now(&frame(2)));
    one.say(FrameKind::Call, 3, vec![2; 10]);
    assert!(!voice.say_now(&frame(4)), "something waits");
    turn(&mut one, &quiet);
    let mut said = 1;
    while voice.say_now(&frame(128)) {
        said += 1;
    }
    // A part of the last one may have gone: then it follows.
    let part = one.port.waiting();
    let mut heard = Vec::new();
    for _ in 0..10_000 {
        heard.extend(turn(&mut other, &quiet));
        turn(&mut one, &quiet);
        if heard.len() > said + part {
            break;
        }
    }
    let kinds = heard.iter().map(|news| match news {
        News::Frame(frame) => frame.bytes.len(),
        news => panic!("{news:?}"),
    });
    let kinds: Vec<usize> = kinds.collect();
    assert_eq!((kinds[0], kinds[1], kinds.len()), (2, 10, said + part + 1));
    assert!(kinds[2..].iter().all(|length| *length == 128));
}

#[test]
fn invalid_messages_by_the_port_are_errors() {
    let (one, mut relay, (quiet, _far)) = ends();
    write(one.port.as_fd(), &[0xff; 64]).unwrap();
    assert!(relay.wait(&[quiet.as_fd()], Some(1000)).is_err());
    drop(one);
}
