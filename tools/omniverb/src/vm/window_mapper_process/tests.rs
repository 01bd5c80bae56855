//! Tests a supervisor whose mappers are played.

use super::*;
use crate::vm::machine_window::STEP;
use crate::vm::pair_windows::Pair;
use crate::vm::window_mapper::{MAP, UNMAP};
use omniverb_session::pair_window::PlugTrouble;
use omniverb_session::vm::MachineName;
use omniverb_sys::memfd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, socketpair};
use std::thread::{JoinHandle, spawn};

const SLOTS: Slots = Slots { bytes: 2 * STEP, count: 3 };
const LIMIT: Duration = Duration::from_secs(20);

/// QEMU, its supervisor's end, and the machine's own file.
fn qemu() -> [OwnedFd; 3] {
    let flags = SocketFlags::CLOEXEC;
    let (far, near) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    [far, near, memfd::create("own", STEP).unwrap()]
}

fn kept<'a>([_, qemu, own]: &'a [OwnedFd; 3]) -> MapperFiles<'a> {
    MapperFiles { qemu, own, notes: notes(&beginning(own).unwrap()).unwrap() }
}

fn id(file: &OwnedFd) -> omniverb_sys::extent::FileId {
    omniverb_sys::Extent::new(file, 0, 0).file_id().unwrap()
}

/// A mapper's end, and the thread that hears it.
struct Played {
    end: OwnedFd,
    heard: JoinHandle<bool>,
}

impl Played {
    fn new(mapped: &Arc<Mapped>, kept: &MapperFiles<'_>) -> Played {
        let (ours, end) = seqpacket::pair().unwrap();
        mapped.tell_all(ours.try_clone().unwrap(), kept).unwrap();
        let mapped = mapped.clone();
        Played { end, heard: spawn(move || mapped.hear(&ours).unwrap()) }
    }

    fn hears(&self) -> ([u8; 2], Vec<OwnedFd>) {
        assert!(eventfd::readable(self.end.as_fd(), Some(LIMIT)).unwrap(), "nothing");
        let mut said = [0; 2];
        let heard =
            seqpacket::receive(self.end.as_fd(), &mut said, seqpacket::BlockingMode::NonBlocking);
        (said, heard.unwrap().1)
    }

    fn says(&self, word: &[u8], beside: &[&OwnedFd]) {
        let files: Vec<_> = beside.iter().map(|file| file.as_fd()).collect();
        seqpacket::send(self.end.as_fd(), word, &files).unwrap();
    }

    /// As it is ended, whatever it has not read: whether it made sense.
    fn ends(self) -> bool {
        drop(self.end);
        self.heard.join().unwrap()
    }
}

#[test]
fn a_follower_hears_the_state_and_the_tasks() {
    let (mapped, ends) = (Mapped::new(SLOTS), qemu());
    let (kept, window) = (kept(&ends), memfd::create("window", STEP).unwrap());
    let one = Played::new(&mapped, &kept);
    let (word, files) = one.hears();
    assert_eq!((word, files.len(), one.hears().0), ([NOTES, 1], 1, [HAS, OWN]));
    let [channel, _, _] = qemu();
    one.says(&[CHANNEL, 0], &[&channel]);
    one.says(&[BEGUN, 1], &[]);
    assert_eq!(mapped.driver(), Driver::Knows);
    // It has no answer when it ends.
    let asks = {
        let (mapped, window) = (mapped.clone(), window.try_clone().unwrap());
        spawn(move || mapped.map(2, &window))
    };
    assert_eq!(one.hears().0, [MAP, 2]);
    assert!(one.ends());
    lock(&mapped.inner).mapper = None;
    let two = Played::new(&mapped, &kept);
    let (word, files) = two.hears();
    assert_eq!((word, files.len()), ([NOTES, 1], 2));
    assert_eq!(id(&files[0]), id(&kept.notes));
    assert_eq!(two.hears().0, [HAS, OWN]);
    let (word, files) = two.hears();
    assert_eq!((word, id(&files[0])), ([MAP, 2], id(&window)));
    two.says(&[DONE, 1], &[]);
    assert_eq!(asks.join().unwrap(), Ok(()));
    // A window that QEMU has refused is not in the machine.
    lock(&mapped.inner).windows.insert(3, window);
    two.says(&[REFUSED, 3], &[]);
    assert!(two.ends());
    lock(&mapped.inner).mapper = None;
    // There is no mapper when it is to go; the next one gets it, and takes it out.
    let asks = {
        let mapped = mapped.clone();
        spawn(move || mapped.unmap(2))
    };
    let until = Instant::now() + LIMIT;
    while lock(&mapped.inner).asked.is_none() {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    let three = Played::new(&mapped, &kept);
    assert_eq!(three.hears().0, [NOTES, 2]);
    assert_eq!([three.hears().0, three.hears().0], [[HAS, OWN], [HAS, 2]]);
    assert_eq!(three.hears().0, [UNMAP, 2]);
    three.says(&[DONE, 1], &[]);
    assert_eq!(asks.join().unwrap(), Ok(()));
    assert!(three.ends());
    let four = Played::new(&mapped, &kept);
    assert_eq!(four.hears().0, [NOTES, 1]);
    // There will be none.
    assert!(four.ends());
    mapped.is_over();
    assert_eq!(mapped.unmap(3), Err(PlugTrouble::NoMapper));
    assert!(lock(&mapped.inner).channel.is_none());
}

/// The kernel says first that something was left unread.
#[test]
fn reports_of_a_mapper_are_read_before_it_has_read_all() {
    let (mapped, ends) = (Mapped::new(SLOTS), qemu());
    let kept = kept(&ends);
    let (ours, end) = seqpacket::pair().unwrap();
    mapped.tell_all(ours.try_clone().unwrap(), &kept).unwrap();
    for word in [[BEGUN, 0], [BEGUN, 1]] {
        seqpacket::send(end.as_fd(), &word, &[]).unwrap();
    }
    drop(end);
    assert!(mapped.hear(&ours).unwrap());
    assert_eq!(mapped.driver_now(), Driver::Knows);
}

/// A message that cannot be sent to this one may be sent to the next: it is not one that has ended.
#[test]
fn a_mapper_that_cannot_get_its_state_maps_nothing() {
    let (mapped, ends) = (Mapped::new(SLOTS), qemu());
    let kept = kept(&ends);
    let flags = SocketFlags::CLOEXEC;
    let alone = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    mapped.tell_all(alone, &kept).unwrap_err();
    assert!(lock(&mapped.inner).mapper.is_none());
    let (ours, gone) = seqpacket::pair().unwrap();
    drop(gone);
    mapped.tell_all(ours, &kept).unwrap();
    assert!(lock(&mapped.inner).mapper.is_some());
}

#[test]
fn a_malformed_message_ends_the_mapper() {
    let [channel, other, own] = qemu();
    let (packets, _far) = seqpacket::pair().unwrap();
    let words: [(&[u8], &[&OwnedFd]); 7] = [
        (b"x0", &[]),
        (&[DONE], &[]),
        (&[DONE, 1, 1], &[]),
        (&[DONE, 1], &[&channel]),
        (&[CHANNEL, 0], &[]),
        (&[CHANNEL, 0], &[&channel, &other]),
        (&[CHANNEL, 0], &[&packets]),
    ];
    let all = words.into_iter().map(|word| vec![word]);
    let beside = [&channel, &own];
    let twice = vec![(&[CHANNEL, 0][..], &beside[..1]); 2];
    let file = vec![(&[CHANNEL, 0][..], &beside[1..])];
    for words in all.chain([twice, file]) {
        let (mapped, ends) = (Mapped::new(SLOTS), qemu());
        let one = Played::new(&mapped, &kept(&ends));
        words.iter().for_each(|(word, beside)| one.says(word, beside));
        assert!(!one.heard.join().unwrap(), "{words:?}");
    }
    close([channel]);
}

#[test]
fn a_mapper_that_ends_by_itself_or_never_begins_has_no_end_of_followers() {
    let own = Window::new(MachineName::new("web-1").unwrap(), STEP).unwrap();
    let mut made = [1, 2].map(|number| Pair::make(&own, number, STEP).unwrap());
    made.iter_mut().for_each(|pair| pair.at = Some(STEP));
    let [listener, ..] = qemu();
    let pairs = Arc::new(Pairs::new(made.into()));
    let mut starter =
        Starter { listener, own: own.into(), pairs: pairs.clone(), program: "/bin/false".into() };
    let (mapped, ends) = (Mapped::new(SLOTS), qemu());
    mapped.serve_qemu(&starter, &kept(&ends)).unwrap();
    let numbers = || lock(&mapped.inner).windows.keys().copied().collect::<Vec<_>>();
    assert_eq!((numbers(), mapped.driver_now()), (vec![1, 2], Driver::Unknown));
    mapped.is_over();
    // A window that was to go without a mapper is not given to the next QEMU.
    pairs.let_go(2);
    assert_eq!(mapped.unmap(2), Err(PlugTrouble::NoMapper));
    starter.program = PathBuf::from("/nowhere");
    mapped.serve_qemu(&starter, &kept(&ends)).unwrap();
    assert_eq!(numbers(), [1]);
}
