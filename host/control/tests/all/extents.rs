//! Tests granted pages over real sockets: in files of their own, and side by side in one.

use crate::support::*;
use omniverb_control::Settings;
use omniverb_session::Message;
use omniverb_session::body::{self, *};
use omniverb_sys::{Access, Extent, memfd, seqpacket};
use omniverb_tenancy::testing::packed_extent_layout::Packed;
use omniverb_terms::{Errno, Qpn, Rkey, Service};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

const HOME: &str = "127.0.0.1";
const READ: u32 = 4;
const READ_WRITE: u32 = 6;

fn apart() -> Settings {
    Settings::default()
}

fn packed() -> Settings {
    Settings { layout: || Box::new(Packed::new(1 << 20)), ..Settings::default() }
}

/// What came along with a message that describes it.
fn extent(file: &OwnedFd, said: body::Extent) -> Extent<&OwnedFd> {
    Extent::new(file, said.offset, said.length)
}

/// Does something with the memory that pages are to be moved onto.
type With<'a> = &'a dyn Fn(&Extent<&OwnedFd>);

/// An initiator, an owner, and the two ends of a connection of theirs.
struct Two {
    initiator: Client,
    owner: Client,
    ends: (Qpn, Qpn),
}

fn two(daemon: &Daemon) -> Two {
    let (mut a, mut b) = (Client::hello(&daemon.path), Client::hello(&daemon.path));
    let (one, other) = (create(&mut a, Service::Rc), create(&mut b, Service::Rc));
    a.call(connect(one, other, HOME, HOME).into());
    b.call(connect(other, one, HOME, HOME).into());
    link_ready(&mut a);
    link_ready(&mut b);
    Two { initiator: a, owner: b, ends: (one, other) }
}

impl Two {
    fn register(&mut self, access: u32) -> Rkey {
        let reg =
            RegMr { pd: 1, access, addr: 0x10800, length: 0x3000, rkey: Rkey(0), reserved: 0 };
        match self.owner.call(reg.into()) {
            Message::MrRegistered(MrRegistered { rkey, .. }) => rkey,
            other => panic!("{other:?}"),
        }
    }

    /// The daemon gives the owner a file; `with` treats it, and `along` goes with the answer.
    /// Returns the initiator's message.
    fn ask(&mut self, rkey: Rkey, with: With<'_>, along: &[OwnedFd]) -> (Message, Vec<OwnedFd>) {
        let (qpn, peer_qpn) = self.ends;
        let (address, length) = (0x11008, 8);
        let ask = RequestGrant { qpn, peer_qpn, rkey, reserved: 0, address, length };
        assert!(matches!(self.initiator.call(ask.into()), Message::Connected(_)));
        let Some((Message::Adopt(adopt), files)) = self.owner.event(SOON) else { panic!() };
        assert_eq!((adopt.start, adopt.memory.length, adopt.fresh != 0), (0x11000, 0x2000, true));
        let [file] = files.as_slice() else { panic!("{files:?}") };
        let place = extent(file, adopt.memory);
        place.verify().unwrap();
        with(&place);
        let adopted = Adopted { token: adopt.token, errno: Errno(0), epoch: 0 };
        let mut bytes = [0; 4096];
        let length = omniverb_session::encode(0, &adopted.into(), &mut bytes);
        let events = self.owner.events.as_ref().unwrap().as_fd();
        let along: Vec<_> = along.iter().map(AsFd::as_fd).collect();
        match seqpacket::send(events, &bytes[..length], &along) {
            // A kernel that can refuse descriptors for the daemon did.
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied && !along.is_empty() => {
                seqpacket::send(events, &bytes[..length], &[]).unwrap();
            }
            sent => sent.unwrap(),
        }
        self.initiator.event(SOON).unwrap()
    }
}

#[test]
fn pages_are_granted_if_their_file_is_valid() {
    for settings in [apart(), packed()] {
        let daemon = Daemon::start(settings);
        let mut two = two(&daemon);
        let rkey = two.register(READ);
        let (qpn, peer_qpn) = two.ends;
        let refused = Message::from(GrantDenied { qpn, peer_qpn, rkey, errno: Errno::EINVAL });
        assert_eq!(two.ask(rkey, &|_| {}, &[]).0, refused, "could be written to");
        // What comes up with the answer does not count.
        let good = memfd::create_sealable("pages", 0x2000).unwrap();
        memfd::seal_future_write(good.as_fd()).unwrap();
        assert_eq!(two.ask(rkey, &|_| {}, &[good]).0, refused, "not the daemon's file");
        let seal = |place: &Extent<&OwnedFd>| {
            let map = place.mapping(Access::ReadWrite).unwrap();
            memfd::finish(place.file.as_fd(), Access::ReadOnly).unwrap();
            drop(map);
        };
        let (granted, files) = two.ask(rkey, &seal, &[]);
        let Message::Granted(granted) = granted else { panic!("{granted:?}") };
        assert_eq!((granted.page_start, granted.memory.length, files.len()), (0x11000, 0x2000, 1));
        let place = extent(&files[0], granted.memory);
        assert!(place.mapping(Access::ReadWrite).is_err());
        place.mapping(Access::ReadOnly).unwrap();
    }
}

#[test]
fn extents_are_made_and_end_separately() {
    for (settings, shared) in [(apart(), false), (packed(), true)] {
        let daemon = Daemon::start(settings);
        let mut two = two(&daemon);
        let keys = [two.register(READ_WRITE), two.register(READ_WRITE)];
        let [one, other] = keys.map(|rkey| {
            let put = |place: &Extent<&OwnedFd>| {
                let bytes = u64::from(rkey.0).to_ne_bytes();
                rustix::io::pwrite(place.file, &bytes, place.offset + 0x1000).unwrap();
                memfd::finish(place.file.as_fd(), Access::ReadWrite).unwrap();
            };
            let (granted, mut files) = two.ask(rkey, &put, &[]);
            let Message::Granted(Granted { memory, .. }) = granted else { panic!("{granted:?}") };
            (files.remove(0), memory)
        });
        let shown = |(file, said): &(OwnedFd, body::Extent)| {
            extent(file, *said).mapping(Access::ReadWrite).unwrap()
        };
        let files = [&one, &other].map(|(file, said)| extent(file, *said).file_id().unwrap());
        assert_eq!(files[0] == files[1], shared);
        assert_eq!([one.1.offset != 0, other.1.offset != 0], [shared; 2]);
        let maps = [shown(&one), shown(&other)];
        let words = || [maps[0].load_u64(0x1000), maps[1].load_u64(0x1000)];
        assert_eq!(words(), keys.map(|key| Some(key.0.into())));
        let gone = DeregMr { rkey: keys[0], reserved: 0 };
        assert_eq!(two.owner.call(gone.into()), Done { take_back: 0 }.into());
        // The owner takes pages off a file of its own; in a shared one the daemon empties the
        // place.
        let left = if shared { 0 } else { keys[0].0.into() };
        assert_eq!(words(), [Some(left), Some(keys[1].0.into())]);
    }
}

/// A process keeps a file that was granted for READ only: until it is gone no more is granted.
#[test]
fn files_of_ended_grants_count_until_closed_everywhere() {
    let daemon = Daemon::start(apart());
    let mut two = two(&daemon);
    let grant = |two: &mut Two| {
        let (pd, access, addr) = (1, READ, 1 << 30);
        let reg = RegMr { pd, access, addr, length: 16 << 20, rkey: Rkey(0), reserved: 0 };
        let Message::MrRegistered(MrRegistered { rkey, .. }) = two.owner.call(reg.into()) else {
            panic!()
        };
        let (qpn, peer_qpn) = two.ends;
        let ask =
            RequestGrant { qpn, peer_qpn, rkey, reserved: 0, address: addr, length: u64::MAX };
        let (answer, _) = two.initiator.call_with(ask, &[]);
        let mut granted = None;
        if let Message::Connected(_) = answer {
            let Some((Message::Adopt(adopt), files)) = two.owner.event(SOON) else { panic!() };
            memfd::finish(files[0].as_fd(), Access::ReadOnly).unwrap();
            two.owner.say(Adopted { token: adopt.token, errno: Errno(0), epoch: 0 }.into());
            let Some((Message::Granted(_), mut files)) = two.initiator.event(SOON) else {
                panic!()
            };
            granted = files.pop();
        } else {
            assert_eq!(answer, Message::Failed(Errno::EAGAIN));
        }
        two.owner.call(DeregMr { rkey, reserved: 0 }.into());
        let told = granted.as_ref().map(|_| two.initiator.event(SOON).map(|(told, _)| told));
        assert!(matches!(told, None | Some(Some(Message::GrantEnded(_)))), "{told:?}");
        granted
    };
    let kept = grant(&mut two).unwrap();
    let mut other = Command::new("sleep").arg("600").stdin(kept).spawn().unwrap();
    assert!((0..3).all(|_| grant(&mut two).is_none()), "another process has it");
    other.kill().unwrap();
    other.wait().unwrap();
    let again = (0..1000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        grant(&mut two)
    });
    assert!(again.is_some(), "no process has it any more");
}
