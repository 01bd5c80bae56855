//! Tests pages granted between a machine's process and a neighbour's: pieces of their pair window
//! (decision 0044).

use crate::support::fake_vm_proxy::{PAGE, seen, until};
use crate::support::namespaces::is_root;
use crate::support::operator::{Operator, name};
use crate::support::vm_and_neighbour::*;
use crate::support::*;
use omniverb_session::Message;
use omniverb_session::body::{Extent, *};
use omniverb_session::pair_window::{number, plain};
use omniverb_terms::{Errno, Qpn, Rkey};

const WRITE: u32 = 2;
const READ: u32 = 4;

/// The next message to a client but news of addresses, and the number of its descriptors.
fn told(client: &mut dyn Speaker, far: &There) -> (Message, usize) {
    let end = std::time::Instant::now() + SOON;
    loop {
        assert!(std::time::Instant::now() < end, "not in time");
        far.carry();
        match client.next_event(MOMENT) {
            Some((Message::GidsChanged(_) | Message::GrantEnded(_), _)) | None => {}
            Some(found) => break found,
        }
    }
}

fn register(owner: &mut dyn Speaker, access: u32, length: u64) -> Rkey {
    let reg = RegMr { pd: 1, access, addr: 0x10800, length, rkey: Rkey(0), reserved: 0 };
    let Message::MrRegistered(MrRegistered { rkey, .. }) = owner.call(reg.into()) else { panic!() };
    rkey
}

fn request((qpn, peer_qpn): (Qpn, Qpn), rkey: Rkey) -> Message {
    RequestGrant { qpn, peer_qpn, rkey, reserved: 0, address: 0x11008, length: 8 }.into()
}

fn let_go(memory: Extent, times: u32) -> Message {
    LetGo { memory, times, reserved: 0 }.into()
}

/// An end of a link grants the other end a region: the messages to both, memory and descriptors.
fn grant(
    far: &There,
    (peer, way): (&mut dyn Speaker, (Qpn, Qpn)),
    owner: &mut dyn Speaker,
    rkey: Rkey,
) -> [(Extent, usize); 2] {
    let answer = peer.call(request(way, rkey));
    assert!(matches!(answer, Message::Connected(_)), "{answer:?}");
    let (Message::Adopt(adopt), files) = told(owner, far) else { panic!() };
    assert!(adopt.fresh == 0 || adopt.memory.length == 0x2000, "{adopt:?}");
    owner.say(Adopted { token: adopt.token, errno: Errno::NONE, epoch: 0 }.into());
    let (Message::Granted(granted), more) = told(peer, far) else { panic!() };
    assert_eq!((granted.page_start, granted.memory.length), (0x11000, 0x2000));
    [(adopt.memory, files), (granted.memory, more)]
}

/// Both are told of the same bytes, each by its own offset, and they come back when both have
/// released them.
#[test]
fn pages_are_granted_across_the_border_in_the_pair_window() {
    if !is_root() {
        return;
    }
    let (daemon, [here, _there], mut far) = two_networks(files());
    let (mut a, (mut b, _)) = (here.client(&daemon), far.machine.process());
    let [(theirs, _), (ours, _)] = far.link(&mut b, &mut a);
    let used = || row(&daemon, "used").as_u64().unwrap();
    let idle = used();
    for machine_owns in [true, false] {
        let (of_machine, outside): (&mut dyn Speaker, &mut dyn Speaker) = (&mut b, &mut a);
        let (owner, peer, way) = match machine_owns {
            true => (of_machine, outside, (ours.qpn, theirs.qpn)),
            false => (outside, of_machine, (theirs.qpn, ours.qpn)),
        };
        let rkey = register(owner, WRITE | READ, 0x3000);
        let [adopted, granted] = grant(&far, (peer, way), owner, rkey);
        let (in_machine, at_neighbour) =
            if machine_owns { (adopted, granted) } else { (granted, adopted) };
        assert_eq!((in_machine.1, at_neighbour.1), (0, 1), "descriptors");
        let (said, same) = (in_machine.0, at_neighbour.0);
        assert_eq!((number(&said), number(&same)), (Some(1), Some(1)));
        assert_eq!(plain(said).offset + DATA.offset, plain(same).offset);
        // In the second half, where there are no links as long as there is room elsewhere.
        assert!(plain(said).offset > DATA.length / 2, "{said:?}");
        assert_eq!(used(), idle + 0x2000);
        // Once more, as for another queue pair.
        let [(known, none), (again, _)] = grant(&far, (peer, way), owner, rkey);
        assert_eq!((plain(known).length, none, again), (0x2000, 0, granted.0));
        owner.call(DeregMr { rkey, reserved: 0 }.into());
        owner.say(let_go(adopted.0, 1));
        // Neither the piece that it was told, nor as often.
        peer.say(let_go(plain(granted.0), 2));
        peer.say(let_go(granted.0, 1));
        let next = register(owner, WRITE | READ, 0x3000);
        let [(other, _), (other_granted, _)] = grant(&far, (peer, way), owner, next);
        assert!(other.offset != adopted.0.offset && used() == idle + 0x4000);
        peer.say(let_go(granted.0, 1));
        until(|| used() == idle + 0x2000);
        owner.call(DeregMr { rkey: next, reserved: 0 }.into());
        owner.say(let_go(other, 1));
        peer.say(let_go(other_granted, 1));
        until(|| used() == idle);
        // A region for READ only is not granted for WRITE.
        let rkey = register(owner, READ, 0x3000);
        assert!(matches!(peer.call(request(way, rkey)), Message::Failed(Errno::EACCES)));
    }
}

/// A process that may write there late keeps it: a neighbour's as long as it lives, a machine's
/// until the guest reports its end.
#[test]
fn pages_come_back_when_their_holders_have_ended() {
    if !is_root() {
        return;
    }
    let (daemon, [here, _there], mut far) = two_networks(files());
    let used = || row(&daemon, "used").as_u64().unwrap();
    for neighbour_first in [true, false] {
        let (mut a, (mut b, _)) = (here.client(&daemon), far.machine.process());
        let session = far.machine.last;
        let [(theirs, _), (ours, _)] = far.link(&mut b, &mut a);
        let rkey = register(&mut b, WRITE | READ, 0x3000);
        grant(&far, (&mut a, (ours.qpn, theirs.qpn)), &mut b, rkey);
        let before = used();
        if neighbour_first {
            a.kill();
            until(|| row(&daemon, "links") == 0);
            assert_eq!(used(), before, "the machine's process has all of it");
            far.machine.end(session);
            drop(b);
        } else {
            far.machine.end(session);
            drop(b);
            until(|| row(&daemon, "links") == 0);
            // Its connection is over, but its process is not.
            assert!(used() >= 0x2000, "the neighbour has it");
            assert_eq!(used(), before);
            a.kill();
        }
        until(|| used() == 0);
    }
}

/// Half of a window is for links at least, and the next link has a place always.
#[test]
fn pages_take_half_of_a_pair_window_at_most() {
    if !is_root() {
        return;
    }
    let (daemon, [here, _there], mut far) = two_networks(files());
    let (mut a, (mut b, _)) = (here.client(&daemon), far.machine.process());
    let [(theirs, _), (ours, _)] = far.link(&mut b, &mut a);
    let used = || row(&daemon, "used").as_u64().unwrap();
    let (idle, way, mut count) = (used(), (ours.qpn, theirs.qpn), 0);
    loop {
        let rkey = register(&mut b, WRITE | READ, 0x81000);
        assert!(matches!(a.call(request(way, rkey)), Message::Connected(_)));
        // Either no process is asked, or the owner.
        let (message, _) = loop {
            far.carry();
            if let Some(found) = b.event(MOMENT).map(|(message, files)| (message, files.len())) {
                break found;
            }
            if let Some(found) = a.next_event(MOMENT) {
                break found;
            }
        };
        match message {
            Message::Adopt(adopt) => {
                assert_eq!(adopt.memory.length, 512 << 10);
                b.say(Adopted { token: adopt.token, errno: Errno::NONE, epoch: 0 }.into());
                assert!(matches!(told(&mut a, &far).0, Message::Granted(_)));
            }
            Message::GrantDenied(denied) => {
                assert_eq!((denied.rkey, denied.errno), (rkey, Errno::EAGAIN));
                break;
            }
            Message::GidsChanged(_) => continue,
            other => panic!("{other:?}"),
        }
        count += 1;
        assert!(used() - idle <= DATA.length / 2, "{}", used());
    }
    assert!(count >= 6, "{count}");
    for _ in 0..3 {
        let [(theirs, _), _] = far.link(&mut b, &mut a);
        assert_eq!(theirs.engine, 0);
    }
    assert!(row(&daemon, "used").as_u64().unwrap() + PAGE < DATA.length);
}

/// The owner is told, and nothing of a window that is over is granted any more.
#[test]
fn pages_lent_in_a_window_end_with_its_machine() {
    if !is_root() {
        return;
    }
    let (daemon, [here, _there], mut far) = two_networks(files());
    let (mut a, (mut b, _)) = (here.client(&daemon), far.machine.process());
    let [(theirs, _), (ours, _)] = far.link(&mut b, &mut a);
    let rkey = register(&mut a, WRITE | READ, 0x3000);
    grant(&far, (&mut b, (theirs.qpn, ours.qpn)), &mut a, rkey);
    let detach = omniverb_session::operator::DetachMachine { name: name("one") };
    Operator::connect(&daemon).call(detach);
    until(|| seen(&daemon, "one").is_none());
    let take = loop {
        match a.next_event(SOON).expect("nothing").0 {
            Message::TakeBack(take) => break take,
            Message::LinkClosed(_) | Message::BellClosed(_) | Message::GidsChanged(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((take.what, take.rkey, take.start), (TAKE_EXTENT, rkey, 0x11000));
    create(&mut a, omniverb_terms::Service::Rc);
}
