//! Tests imports with more than one importer, or connection.

use super::exporter::{ExportListener, ExportedObjects, Exporter, Importer, PageOwner};
use super::importer_move_rate_limit::{now, pass};
use super::peer_socket_thread::PeerSocketThread;
use crate::testing::hostile_importer::Ready;
use omniverb_device::Region;
use omniverb_session::device_import_messages::{self, Ask, Notice};
use omniverb_sys::seqpacket::{self, BlockingMode};
use omniverb_terms::{Errno, Rkey};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Has device memory whose pages were not asked for.
#[derive(Default)]
struct Process {
    exporter: Mutex<Weak<Exporter>>,
}

impl ExportedObjects for Process {
    fn has_domain(&self, _: u32) -> bool {
        false
    }

    fn region(&self, _: u32) -> Result<(Arc<Region>, Rkey), Errno> {
        Err(Errno::ENOENT)
    }

    fn device_memory(&self, handle: u32) -> Option<(usize, usize)> {
        Some((handle as usize * 4096, 4096))
    }

    fn destroy(&self, object: u32, handle: u32) -> Result<(), Errno> {
        let exporter = self.exporter.lock().unwrap().upgrade();
        exporter.ok_or(Errno::ENOENT)?.gone(object, handle)
    }
}

fn say(to: &OwnedFd, what: u32, tag: u64) {
    let ask =
        Ask { what, object: device_import_messages::DEVICE_MEMORY, handle: 1, tag, ..Ask::NONE };
    seqpacket::try_send(to.as_fd(), ask.bytes(), &[]).unwrap();
}

fn hear(from: &OwnedFd) -> Notice {
    let mut bytes = [0; device_import_messages::BYTES_MAX];
    let (length, _) = seqpacket::receive(from.as_fd(), &mut bytes, BlockingMode::Blocking).unwrap();
    Notice::read(&bytes[..length]).unwrap()
}

#[test]
fn destruction_waits_for_the_other_importers() {
    let process = Arc::new(Process::default());
    let objects: Weak<Process> = Arc::downgrade(&process);
    let service = Arc::<PeerSocketThread>::default();
    let exporter = Exporter::new(service.clone(), Ready::the_one());
    *process.exporter.lock().unwrap() = Arc::downgrade(&exporter);
    let (file, door) = seqpacket::pair().unwrap();
    service.add(Arc::new(ExportListener::new(Arc::new(door), exporter, objects))).unwrap();
    let opened = || {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let open = Ask { what: device_import_messages::OPEN, ..Ask::NONE };
        seqpacket::try_send(file.as_fd(), open.bytes(), &[theirs.as_fd()]).unwrap();
        ours
    };
    let importers = [(); 2].map(|()| {
        let ours = opened();
        say(&ours, device_import_messages::IMPORT, 1);
        assert_eq!(hear(&ours).errno, Errno::NONE);
        ours
    });
    let [one, other] = &importers;
    say(one, device_import_messages::DESTROY, 2);
    let [gone, gone_here] = [other, one].map(hear);
    assert_eq!([gone.what, gone_here.what], [device_import_messages::GONE; 2]);
    say(one, device_import_messages::SEEN, gone_here.tag);
    // One of a process's questions at a time; this answer comes before that to the first one.
    for another in [one, &opened()] {
        say(another, device_import_messages::DESTROY, 3);
        let answer = hear(another);
        assert_eq!((answer.tag, answer.errno), (3, Errno::EAGAIN), "the other has not seen it");
    }
    say(other, device_import_messages::SEEN, gone.tag);
    let answer = hear(one);
    assert_eq!((answer.tag, answer.errno), (2, Errno::NONE));
}

const SECOND: u64 = 1_000_000_000;

/// Has device memory that takes a second to move, and as long to move back.
struct SlowOwner {
    memory: &'static [u8],
    out: AtomicBool,
    moved: AtomicU64,
}

impl SlowOwner {
    fn moves(&self) {
        pass(SECOND);
        self.moved.fetch_add(SECOND, Ordering::Relaxed);
    }
}

impl PageOwner for SlowOwner {
    fn with_pages(
        &self,
        _: &Range<usize>,
        act: &mut dyn FnMut() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.out.store(true, Ordering::Relaxed);
        self.moves();
        act()
    }

    fn moving(&self, act: &mut dyn FnMut()) {
        if self.out.swap(false, Ordering::Relaxed) {
            self.moves();
        }
        act();
    }
}

impl ExportedObjects for SlowOwner {
    fn has_domain(&self, _: u32) -> bool {
        false
    }

    fn region(&self, _: u32) -> Result<(Arc<Region>, Rkey), Errno> {
        Err(Errno::ENOENT)
    }

    fn device_memory(&self, _: u32) -> Option<(usize, usize)> {
        Some((self.memory.as_ptr().expose_provenance().next_multiple_of(4096), 4096))
    }

    fn destroy(&self, _: u32, _: u32) -> Result<(), Errno> {
        Err(Errno::EBUSY)
    }
}

#[test]
fn pages_that_go_to_and_fro_by_new_connections_move_half_of_the_time() {
    let (out, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    let process = Arc::new(SlowOwner { memory: Vec::leak(vec![7; 1 << 20]), out, moved });
    let owner: Weak<SlowOwner> = Arc::downgrade(&process);
    let exporter = Exporter::new(Arc::<PeerSocketThread>::default(), owner.clone());
    let (mut number, mut refused) = (0, 0);
    while now() < 200 * SECOND {
        let (theirs, ours) = seqpacket::pair().unwrap();
        number += 1;
        let importer = Importer::new(number, ours, exporter.clone(), owner.clone(), 1);
        for what in [device_import_messages::IMPORT, device_import_messages::PAGES] {
            let ask =
                Ask { what, object: device_import_messages::DEVICE_MEMORY, handle: 1, ..Ask::NONE };
            assert!(importer.take(&ask));
        }
        assert_eq!(hear(&theirs).errno, Errno::NONE);
        if hear(&theirs).errno == Errno::EAGAIN {
            refused += 1;
            pass(SECOND / 4);
        }
        exporter.remove_importer(&importer);
    }
    let moved = process.moved.load(Ordering::Relaxed) / SECOND;
    assert!(refused > 0 && (100..115).contains(&moved), "{moved} s, refused {refused} times");
    assert!(exporter.has_nothing_out());
}
