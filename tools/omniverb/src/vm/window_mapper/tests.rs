//! Tests a mapper between a QEMU and a supervisor that are played.

use super::*;
use crate::vm::machine_window::STEP;
use crate::vm::vhost_user::HEAD_BYTES;
use omniverb_sys::eventfd;
use rustix::io::pread;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::time::Duration;

const SLOTS: Slots = Slots { bytes: 2 * STEP, count: 3 };
const LIMIT: Duration = Duration::from_secs(20);
const MOMENT: Duration = Duration::from_millis(100);
/// Features that a driver takes, of which the last one says that it knows of regions.
const OLD: u64 = 1 << 32;
const KNOWS: u64 = OLD | 1;

/// The far ends of a mapper's sockets, and what it and its supervisor have.
struct Ends {
    qemu: OwnedFd,
    /// The mapper's end of that, which its supervisor has, too.
    theirs: OwnedFd,
    channel: OwnedFd,
    supervisor: OwnedFd,
    notes: OwnedFd,
    own: OwnedFd,
    mapper: std::thread::JoinHandle<()>,
}

fn stream() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

fn message(request: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap();
    [&[request, 1, length].map(u32::to_ne_bytes).concat()[..], body].concat()
}

/// Starts one that has these windows; `channel`: where its predecessor asked.
fn start(
    qemu: &OwnedFd,
    (notes, channel): (&OwnedFd, Option<&OwnedFd>),
    windows: &[(u8, &OwnedFd)],
) -> (OwnedFd, std::thread::JoinHandle<()>) {
    let (supervisor, supervisors) = seqpacket::pair().unwrap();
    let qemu = qemu.try_clone().unwrap();
    let mapper = std::thread::spawn(move || {
        let Err(MapperEnd) = serve(qemu, supervisors, SLOTS);
    });
    let mut files = vec![notes.as_fd()];
    files.extend(channel.map(AsFd::as_fd));
    let count = u8::try_from(windows.len()).unwrap();
    seqpacket::send(supervisor.as_fd(), &[NOTES, count], &files).unwrap();
    for (number, file) in windows {
        // One that does not go on hears none of it.
        let _ = seqpacket::send(supervisor.as_fd(), &[HAS, *number], &[file.as_fd()]);
    }
    (supervisor, mapper)
}

impl Ends {
    /// As QEMU begins, up to where the device asks; with that place, which the supervisor has now.
    fn new(more: &[(u8, &OwnedFd)]) -> (Ends, OwnedFd) {
        let (qemu, theirs) = stream();
        let own = file(STEP);
        pwrite(&own, b"first", 4096).unwrap();
        let notes = notes(&beginning(&own).unwrap()).unwrap();
        let windows: Vec<_> = [(OWN, &own)].into_iter().chain(more.iter().copied()).collect();
        let (supervisor, mapper) = start(&theirs, (&notes, None), &windows);
        let (channel, asks) = stream();
        seqpacket::send(qemu.as_fd(), &message(21, &[]), &[asks.as_fd()]).unwrap();
        assert!(eventfd::readable(supervisor.as_fd(), Some(LIMIT)).unwrap(), "nothing");
        let mut said = [0; 2];
        let mode = seqpacket::BlockingMode::NonBlocking;
        let (length, mut files) = seqpacket::receive(supervisor.as_fd(), &mut said, mode).unwrap();
        assert_eq!((length, said[0], files.len()), (2, CHANNEL, 1));
        (Ends { qemu, theirs, channel, supervisor, notes, own, mapper }, files.remove(0))
    }

    fn tell(&self, request: u32, body: &[u8]) {
        seqpacket::send(self.qemu.as_fd(), &message(request, body), &[]).unwrap();
    }

    fn begins(&self, features: u64) {
        self.tell(2, &features.to_ne_bytes());
        assert_eq!(self.heard(), [BEGUN, u8::from(features == KNOWS)]);
    }

    fn gives(&self, number: u8, file: &OwnedFd) {
        seqpacket::send(self.supervisor.as_fd(), &[MAP, number], &[file.as_fd()]).unwrap();
    }

    fn takes_out(&self, number: u8) {
        seqpacket::send(self.supervisor.as_fd(), &[UNMAP, number], &[]).unwrap();
    }

    /// The next message to the supervisor.
    fn heard(&self) -> [u8; 2] {
        assert!(eventfd::readable(self.supervisor.as_fd(), Some(LIMIT)).unwrap(), "nothing");
        let mut said = [0; 2];
        let mode = seqpacket::BlockingMode::NonBlocking;
        assert_eq!(seqpacket::receive(self.supervisor.as_fd(), &mut said, mode).unwrap().0, 2);
        said
    }

    /// The next request to QEMU: which change, where, how long, and of which file.
    fn asked(&self) -> (u32, [u64; 3], Option<OwnedFd>) {
        assert!(eventfd::readable(self.channel.as_fd(), Some(LIMIT)).unwrap(), "nothing");
        let mut said = [0; 52];
        let mode = seqpacket::BlockingMode::NonBlocking;
        let (length, files) = seqpacket::receive(self.channel.as_fd(), &mut said, mode).unwrap();
        assert_eq!(length, said.len());
        let long = |at: usize| u64::from_ne_bytes(said[at..at + 8].try_into().unwrap());
        let request = u32::from_ne_bytes(said[..4].try_into().unwrap());
        (request, [28, 20, 36].map(long), files.into_iter().next())
    }

    fn answers(&self, request: u32, outcome: u64) {
        let head = [request, 5, 8].map(u32::to_ne_bytes).concat();
        let answer = [head, outcome.to_ne_bytes().to_vec()].concat();
        seqpacket::send(self.channel.as_fd(), &answer, &[]).unwrap();
    }

    fn is_asked_nothing(&self) {
        assert!(!eventfd::readable(self.channel.as_fd(), Some(MOMENT)).unwrap());
    }

    /// Asks QEMU's question how many queues there are: whether it is answered.
    fn is_answered(&self) -> bool {
        self.tell(17, &[]);
        let mut answer = [0; 64];
        eventfd::readable(self.qemu.as_fd(), Some(LIMIT)).unwrap()
            && seqpacket::receive(
                self.qemu.as_fd(),
                &mut answer,
                seqpacket::BlockingMode::NonBlocking,
            )
            .is_ok_and(|(length, _)| length == HEAD_BYTES + 8)
    }

    /// Waits until the notes begin with this.
    fn is_noted(&self, what: u8) {
        let until = std::time::Instant::now() + LIMIT;
        let mut byte = [0];
        while pread(&self.notes, &mut byte, 0).is_err() || byte != [what] {
            assert!(std::time::Instant::now() < until, "{byte:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
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
    let (one, two) = (file(2 * STEP), file(STEP));
    let (ends, _) = Ends::new(&[]);
    ends.gives(1, &one);
    assert_eq!(ends.heard(), [DONE, 1]);
    ends.is_asked_nothing();
    // A guest's write to the machine's own file is undone before the guest reads it.
    pwrite(&ends.own, b"other", 4096).unwrap();
    ends.begins(KNOWS);
    let (request, place, came) = ends.asked();
    assert_eq!((request, place), (9, [0, 0, STEP]));
    let mut bytes = [0; 5];
    pread(&ends.own, &mut bytes, 4096).unwrap();
    assert_eq!((id(&came.unwrap()), &bytes), (id(&ends.own), b"first"));
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
    drop(ends.supervisor);
    ends.mapper.join().unwrap();
}

#[test]
fn refused_windows_are_reported_to_the_supervisor() {
    let (ends, _) = Ends::new(&[]);
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

/// A mapper's successor takes all windows of its supervisor for mapped.
#[test]
fn windows_refused_at_the_drivers_start_are_gone() {
    let (one, two) = (file(STEP), file(STEP));
    let (ends, channel) = Ends::new(&[(1, &one), (2, &two)]);
    ends.begins(KNOWS);
    for outcome in [0, 1, 0] {
        ends.asked();
        ends.answers(9, outcome);
    }
    assert_eq!(ends.heard(), [REFUSED, 1]);
    ends.is_noted(1);
    let ends = another(ends, &channel, &[(2, &two)]);
    ends.takes_out(1);
    assert_eq!(ends.heard(), [DONE, 1]);
    // With a driver that knows of no such memory nothing is mapped, and nothing is to be taken out.
    ends.begins(OLD);
    ends.takes_out(2);
    assert_eq!(ends.heard(), [DONE, 1]);
    ends.is_asked_nothing();
    drop(ends.qemu);
    ends.mapper.join().unwrap();
}

/// A window goes while QEMU is about to map it: it is asked for that when it has answered.
#[test]
fn a_window_removed_during_mapping_is_unmapped_then() {
    for refused in [0, 1] {
        let (one, two) = (file(STEP), file(2 * STEP));
        let (ends, _) = Ends::new(&[(1, &one)]);
        ends.begins(KNOWS);
        ends.asked();
        ends.answers(9, 0);
        assert_eq!(ends.asked().1[0], STEP);
        ends.takes_out(1);
        ends.is_asked_nothing();
        ends.answers(9, refused);
        if refused == 0 {
            assert_eq!(ends.asked().0, 10);
            ends.answers(10, 0);
        } else {
            assert_eq!(ends.heard(), [REFUSED, 1]);
        }
        assert_eq!(ends.heard(), [DONE, 1]);
        // Its place is free.
        ends.gives(1, &two);
        assert_eq!(ends.asked().1, [STEP, 8192, 2 * STEP - 8192]);
        ends.answers(9, 0);
        assert_eq!(ends.heard(), [DONE, 1]);
        drop(ends.supervisor);
        ends.mapper.join().unwrap();
    }
}

/// Requests of QEMU while it maps are answered: it would wait for ever.
#[test]
fn qemu_is_answered_while_it_is_asked() {
    let (ends, _) = Ends::new(&[]);
    ends.begins(KNOWS);
    ends.asked();
    let said = message(17, &[]);
    for piece in said.chunks(5) {
        seqpacket::send(ends.qemu.as_fd(), piece, &[]).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(eventfd::readable(ends.qemu.as_fd(), Some(LIMIT)).unwrap());
    let mut answer = [0; 64];
    let mode = seqpacket::BlockingMode::NonBlocking;
    assert_eq!(seqpacket::receive(ends.qemu.as_fd(), &mut answer, mode).unwrap().0, 20);
    ends.answers(9, 0);
}

/// Ends a mapper as if it were killed: here by its supervisor's end, which it notices only at rest.
fn another(ends: Ends, channel: &OwnedFd, windows: &[(u8, &OwnedFd)]) -> Ends {
    drop(ends.supervisor);
    ends.mapper.join().unwrap();
    // A mapper that loses its supervisor is busy with that.
    pwrite(&ends.notes, &[1], 0).unwrap();
    let all: Vec<_> = [(OWN, &ends.own)].into_iter().chain(windows.iter().copied()).collect();
    let (supervisor, mapper) = start(&ends.theirs, (&ends.notes, Some(channel)), &all);
    Ends { supervisor, mapper, ..ends }
}

#[test]
fn another_mapper_continues_from_rest() {
    let (one, two) = (file(STEP), file(STEP));
    let (ends, channel) = Ends::new(&[(1, &one)]);
    let taken: u64 = 1 << 22 | 1 << 3;
    ends.tell(16, &taken.to_ne_bytes());
    ends.begins(KNOWS);
    for _ in 0..2 {
        ends.asked();
        ends.answers(9, 0);
    }
    assert!(ends.is_answered());
    ends.is_noted(1);
    pwrite(&ends.own, b"other", 4096).unwrap();
    let ends = another(ends, &channel, &[(1, &one)]);
    // It knows what is mapped, and that a driver has begun.
    assert!(ends.is_answered());
    ends.is_asked_nothing();
    ends.gives(2, &two);
    assert_eq!(ends.asked().1, [3 * STEP, 8192, STEP - 8192]);
    ends.answers(9, 0);
    assert_eq!(ends.heard(), [DONE, 1]);
    ends.takes_out(1);
    assert_eq!(ends.asked().0, 10);
    ends.answers(10, 0);
    assert_eq!(ends.heard(), [DONE, 1]);
    // And what the machine's own file began with, and that QEMU wants answers.
    let told = [3_u32, 9, 0].map(u32::to_ne_bytes).concat();
    seqpacket::send(ends.qemu.as_fd(), &told, &[]).unwrap();
    assert!(eventfd::readable(ends.qemu.as_fd(), Some(LIMIT)).unwrap(), "no answer");
    ends.begins(KNOWS);
    assert_eq!(ends.asked().1[0], 0);
    let mut bytes = [0; 5];
    pread(&ends.own, &mut bytes, 4096).unwrap();
    assert_eq!(&bytes, b"first");
    drop(ends.supervisor);
    ends.mapper.join().unwrap();
}

#[test]
fn a_half_done_state_is_not_continued() {
    type Begins = fn(&Ends);
    let middles: [Begins; 3] = [
        // A word half heard.
        |ends| seqpacket::send(ends.qemu.as_fd(), &message(17, &[])[..5], &[]).unwrap(),
        // Asked, and not answered; an answer half heard.
        |ends| ends.begins(KNOWS),
        |ends| {
            ends.begins(KNOWS);
            seqpacket::send(ends.channel.as_fd(), &[0; 3], &[]).unwrap();
        },
    ];
    for begin in middles {
        let (ends, channel) = Ends::new(&[]);
        assert!(ends.is_answered());
        ends.is_noted(1);
        begin(&ends);
        ends.is_noted(2);
        let windows = [(OWN, &ends.own)];
        let (_supervisor, mapper) = start(&ends.theirs, (&ends.notes, Some(&channel)), &windows);
        mapper.join().unwrap();
        drop(ends.supervisor);
        ends.mapper.join().unwrap();
    }
}

#[test]
fn a_state_that_does_not_fit_is_not_begun_with() {
    let (_far, near) = stream();
    let (one, long) = (file(STEP), file(3 * STEP));
    let begun = MapperProgress { has_begun: true, has_channel: true, ..MapperProgress::default() };
    type Fits<'a> = (MapperProgress, Option<&'a OwnedFd>, &'a [(u8, &'a OwnedFd)]);
    let cases: [(bool, Fits<'_>); 6] = [
        (true, (begun, Some(&near), &[(1, &one)])),
        // Without where QEMU is asked, or with it before it has said so.
        (false, (begun, None, &[(1, &one)])),
        (false, (MapperProgress::default(), Some(&near), &[(1, &one)])),
        // One twice, one that is too long, one without a place.
        (false, (begun, Some(&near), &[(1, &one), (1, &one)])),
        (false, (begun, Some(&near), &[(1, &long)])),
        (false, (begun, Some(&near), &[(4, &one)])),
    ];
    for (fits, (left, channel, windows)) in cases {
        let (qemu, theirs) = stream();
        let notes = notes(&beginning(&file(STEP)).unwrap()).unwrap();
        Notes::new(notes.try_clone().unwrap()).unwrap().at_rest(left).unwrap();
        let (supervisor, mapper) = start(&theirs, (&notes, channel), windows);
        if fits {
            seqpacket::send(qemu.as_fd(), &message(17, &[]), &[]).unwrap();
            assert!(eventfd::readable(qemu.as_fd(), Some(LIMIT)).unwrap(), "no answer");
            drop(supervisor);
        }
        mapper.join().unwrap();
    }
}

#[test]
fn invalid_messages_of_either_side_end_it() {
    type Says = fn(&Ends);
    let says: [Says; 7] = [
        |ends| ends.tell(99, &[]),
        // Where it is asked it says once.
        |ends| {
            let (_channel, asks) = stream();
            seqpacket::send(ends.qemu.as_fd(), &message(21, &[]), &[asks.as_fd()]).unwrap();
        },
        |ends| seqpacket::send(ends.qemu.as_fd(), &[0xff; 12], &[]).unwrap(),
        |ends| ends.tell(2, &[1]),
        |ends| ends.answers(9, 0),
        |ends| seqpacket::send(ends.supervisor.as_fd(), b"x", &[]).unwrap(),
        |ends| seqpacket::send(ends.supervisor.as_fd(), &[MAP, 1], &[]).unwrap(),
    ];
    for say in says {
        let (ends, _) = Ends::new(&[]);
        // Once it is known where QEMU is asked.
        ends.tell(17, &[]);
        assert!(eventfd::readable(ends.qemu.as_fd(), Some(LIMIT)).unwrap());
        say(&ends);
        ends.mapper.join().unwrap();
    }
}
