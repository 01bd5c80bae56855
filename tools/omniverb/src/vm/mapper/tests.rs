//! A mapper between a QEMU and a keeper that are played.

use super::*;
use crate::vm::window::STEP;
use omniverb_sys::event;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::time::Duration;

const SLOTS: Slots = Slots { bytes: 2 * STEP, count: 3 };
const LIMIT: Duration = Duration::from_secs(20);
const MOMENT: Duration = Duration::from_millis(100);
/// Features that a driver takes, of which the last one says that it knows of regions.
const OLD: u64 = 1 << 32;
const KNOWS: u64 = OLD | 1;

/// The far ends of a mapper's sockets.
struct Ends {
    qemu: OwnedFd,
    channel: OwnedFd,
    keeper: OwnedFd,
    mapper: std::thread::JoinHandle<()>,
}

fn stream() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

fn message(request: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap();
    [&[request, 1, length].map(u32::to_ne_bytes).concat()[..], body].concat()
}

impl Ends {
    /// As QEMU begins, up to where the device asks.
    fn new() -> Ends {
        let ((qemu, theirs), (keeper, keepers)) = (stream(), socket::pair().unwrap());
        let mapper = std::thread::spawn(move || {
            let Err(Over) = serve(theirs, keepers, SLOTS);
        });
        let (channel, theirs) = stream();
        let ends = Ends { qemu, channel, keeper, mapper };
        socket::send(ends.qemu.as_fd(), &message(21, &[]), &[theirs.as_fd()]).unwrap();
        ends
    }

    fn tell(&self, request: u32, body: &[u8]) {
        socket::send(self.qemu.as_fd(), &message(request, body), &[]).unwrap();
    }

    fn begins(&self, features: u64) {
        self.tell(2, &features.to_ne_bytes());
        assert_eq!(self.heard(), [BEGUN, u8::from(features == KNOWS)]);
    }

    fn gives(&self, number: u8, file: &OwnedFd) {
        socket::send(self.keeper.as_fd(), &[MAP, number], &[file.as_fd()]).unwrap();
    }

    fn takes_out(&self, number: u8) {
        socket::send(self.keeper.as_fd(), &[UNMAP, number], &[]).unwrap();
    }

    /// What the keeper hears.
    fn heard(&self) -> [u8; 2] {
        assert!(event::readable(self.keeper.as_fd(), Some(LIMIT)).unwrap(), "nothing");
        let mut said = [0; 2];
        let mode = socket::Mode::NonBlocking;
        assert_eq!(socket::receive(self.keeper.as_fd(), &mut said, mode).unwrap().0, 2);
        said
    }

    /// What QEMU is asked for: which change, where, how long, and of which file.
    fn asked(&self) -> (u32, [u64; 3], Option<OwnedFd>) {
        assert!(event::readable(self.channel.as_fd(), Some(LIMIT)).unwrap(), "nothing");
        let mut said = [0; 52];
        let mode = socket::Mode::NonBlocking;
        let (length, files) = socket::receive(self.channel.as_fd(), &mut said, mode).unwrap();
        assert_eq!(length, said.len());
        let long = |at: usize| u64::from_ne_bytes(said[at..at + 8].try_into().unwrap());
        let request = u32::from_ne_bytes(said[..4].try_into().unwrap());
        (request, [28, 20, 36].map(long), files.into_iter().next())
    }

    fn answers(&self, request: u32, outcome: u64) {
        let head = [request, 5, 8].map(u32::to_ne_bytes).concat();
        let answer = [head, outcome.to_ne_bytes().to_vec()].concat();
        socket::send(self.channel.as_fd(), &answer, &[]).unwrap();
    }

    fn is_asked_nothing(&self) {
        assert!(!event::readable(self.channel.as_fd(), Some(MOMENT)).unwrap());
    }
}

fn file(bytes: u64) -> OwnedFd {
    memfd::create("window", bytes).unwrap()
}

fn id(file: &OwnedFd) -> omniverb_sys::extent::FileId {
    omniverb_sys::Extent::new(file, 0, 0).file_id().unwrap()
}

#[test]
fn windows_are_mapped_when_a_driver_begins_and_as_they_come() {
    let ends = Ends::new();
    let (own, one, two) = (file(STEP), file(2 * STEP), file(STEP));
    pwrite(&own, b"first", 4096).unwrap();
    for (number, file) in [(OWN, &own), (1, &one)] {
        ends.gives(number, file);
        assert_eq!(ends.heard(), [DONE, 1]);
    }
    ends.is_asked_nothing();
    // What the guest has made of the machine's own file is mended before it looks.
    pwrite(&own, b"other", 4096).unwrap();
    ends.begins(KNOWS);
    let (request, place, came) = ends.asked();
    assert_eq!((request, place), (9, [0, 0, STEP]));
    let mut bytes = [0; 5];
    pread(&own, &mut bytes, 4096).unwrap();
    assert_eq!((id(&came.unwrap()), &bytes), (id(&own), b"first"));
    ends.is_asked_nothing();
    ends.answers(9, 0);
    let (request, place, came) = ends.asked();
    assert_eq!((request, place), (9, [STEP, 8192, 2 * STEP - 8192]));
    assert_eq!(id(&came.unwrap()), id(&one));
    ends.answers(9, 0);
    // One that comes now, and goes again.
    ends.gives(2, &two);
    assert_eq!(ends.asked().1, [3 * STEP, 8192, STEP - 8192]);
    ends.answers(9, 0);
    assert_eq!(ends.heard(), [DONE, 1]);
    ends.takes_out(1);
    let (request, place, came) = ends.asked();
    assert_eq!((request, place), (10, [STEP, 8192, 2 * STEP - 8192]));
    assert!(came.is_none());
    ends.answers(10, 0);
    assert_eq!(ends.heard(), [DONE, 1]);
    ends.takes_out(1);
    assert_eq!(ends.heard(), [DONE, 1], "it is gone");
    // Another boot: what there is then, whether QEMU has taken it away or not.
    ends.begins(KNOWS);
    assert_eq!(ends.asked().1[0], 0);
    ends.answers(9, 1);
    assert_eq!(ends.asked().1[0], 3 * STEP);
    ends.answers(9, 0);
    ends.is_asked_nothing();
    drop(ends.keeper);
    ends.mapper.join().unwrap();
}

#[test]
fn what_qemu_refuses_and_what_has_no_place_the_keeper_hears() {
    let ends = Ends::new();
    ends.gives(OWN, &file(STEP));
    assert_eq!(ends.heard(), [DONE, 1]);
    ends.begins(OLD);
    ends.is_asked_nothing();
    ends.begins(KNOWS);
    ends.asked();
    ends.answers(9, 0);
    for (number, bytes) in [(4, STEP), (1, 3 * STEP), (1, 8192)] {
        ends.gives(number, &file(bytes));
        assert_eq!(ends.heard(), [DONE, 0], "{number} {bytes}");
    }
    ends.gives(3, &file(STEP));
    ends.asked();
    ends.answers(9, 1);
    assert_eq!(ends.heard(), [DONE, 0]);
    // Its place is free.
    ends.gives(3, &file(STEP));
    ends.asked();
    ends.answers(9, 0);
    assert_eq!(ends.heard(), [DONE, 1]);
    drop(ends.qemu);
    ends.mapper.join().unwrap();
}

/// What QEMU asks and tells while it maps is heard: it would wait for ever.
#[test]
fn qemu_is_answered_while_it_is_asked() {
    let ends = Ends::new();
    ends.gives(OWN, &file(STEP));
    assert_eq!(ends.heard(), [DONE, 1]);
    ends.begins(KNOWS);
    ends.asked();
    let said = message(17, &[]);
    for piece in said.chunks(5) {
        socket::send(ends.qemu.as_fd(), piece, &[]).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(event::readable(ends.qemu.as_fd(), Some(LIMIT)).unwrap());
    let mut answer = [0; 64];
    let mode = socket::Mode::NonBlocking;
    assert_eq!(socket::receive(ends.qemu.as_fd(), &mut answer, mode).unwrap().0, 20);
    ends.answers(9, 0);
}

#[test]
fn nonsense_of_either_ends_it() {
    type Says = fn(&Ends);
    let says: [Says; 6] = [
        |ends| ends.tell(99, &[]),
        |ends| socket::send(ends.qemu.as_fd(), &[0xff; 12], &[]).unwrap(),
        |ends| ends.tell(2, &[1]),
        |ends| ends.answers(9, 0),
        |ends| socket::send(ends.keeper.as_fd(), b"x", &[]).unwrap(),
        |ends| socket::send(ends.keeper.as_fd(), &[MAP, 1], &[]).unwrap(),
    ];
    for say in says {
        let ends = Ends::new();
        // Once it is known where QEMU is asked.
        ends.tell(17, &[]);
        assert!(event::readable(ends.qemu.as_fd(), Some(LIMIT)).unwrap());
        say(&ends);
        ends.mapper.join().unwrap();
    }
}
