//! An importer, and then an owner, that says what some bytes say. What must hold: no panic, no
//! memory but the object's, and nothing left when it is gone.
// UNSAFETY: vouches for memory that outlives everything.
#![expect(unsafe_code)]

use crate::device_import::{
    Device, ExportedObjects, Exporter, ExporterConnection, Importer, PageOwner, PeerSocketThread,
};
use omniverb_device::{Region, RegionKind, Shared, access};
use omniverb_session::device_import_messages::{self, Ask, Notice};
use omniverb_sys::seqpacket;
use omniverb_terms::{Errno, Lkey, Rkey};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock, Weak};

const PAGE: usize = 4096;
/// Steps of one run.
const STEPS_MAX: usize = 32;

/// An owner whose pages may be moved at once: no other thread moves any.
pub(crate) struct Ready;

impl Ready {
    pub(crate) fn the_one() -> Weak<Ready> {
        static ONE: OnceLock<Arc<Ready>> = OnceLock::new();
        Arc::downgrade(ONE.get_or_init(|| Arc::new(Ready)))
    }
}

impl PageOwner for Ready {
    fn with_pages(
        &self,
        _: &Range<usize>,
        act: &mut dyn FnMut() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        act()
    }

    fn moving(&self, act: &mut dyn FnMut()) {
        act();
    }
}

/// A process with a region and device memory that have a page in common.
struct Process(&'static [u8]);

impl Process {
    fn the_one() -> &'static Arc<Process> {
        static ONE: OnceLock<Arc<Process>> = OnceLock::new();
        // Long enough to be a mapping of its own.
        ONE.get_or_init(|| Arc::new(Process(Vec::leak(vec![7; 1 << 20]))))
    }

    fn first_page(&self) -> usize {
        self.0.as_ptr().expose_provenance().next_multiple_of(PAGE)
    }
}

impl ExportedObjects for Process {
    fn has_domain(&self, handle: u32) -> bool {
        handle == 1
    }

    fn region(&self, handle: u32) -> Result<(Arc<Region>, Rkey), Errno> {
        let address = self.first_page() + 100;
        if handle != 1 {
            return Err(Errno::ENOENT);
        }
        // SAFETY: leaked, and longer.
        let memory = unsafe { crate::user_memory_constructors::registered(address, 3 * PAGE) };
        let region = Region {
            lkey: Lkey(1),
            rkey: Rkey(1),
            pd: 1,
            access: access::LOCAL_WRITE,
            iova: 0,
            memory,
            moved: Default::default(),
            own: Default::default(),
            extras: RegionKind::default(),
        };
        Ok((Arc::new(region), Rkey(1)))
    }

    fn device_memory(&self, handle: u32) -> Option<(usize, usize)> {
        (handle == 1).then(|| (self.first_page() + 3 * PAGE + 50, 2 * PAGE))
    }

    fn destroy(&self, _: u32, _: u32) -> Result<(), Errno> {
        Err(Errno::EBUSY)
    }
}

/// No process at all.
enum NoObjects {}

impl Device for NoObjects {
    fn shared(&self) -> &Arc<Shared> {
        match *self {}
    }

    fn is_ours(&self) -> bool {
        false
    }

    fn regions_max(&self) -> usize {
        0
    }
}

/// Says what the bytes say, to both.
pub fn imports(bytes: &[u8]) {
    let process = Process::the_one();
    let exporter = Exporter::new(Arc::<PeerSocketThread>::default(), Ready::the_one());
    let objects: Weak<Process> = Arc::downgrade(process);
    let Ok((theirs, ours)) = seqpacket::pair() else { return };
    let importer = Importer::new(1, ours, exporter.clone(), objects, 1);
    let Ok((line, _owner)) = seqpacket::pair() else { return };
    let line = ExporterConnection::new(line, Weak::<NoObjects>::new());
    for step in bytes.chunks(8).take(STEPS_MAX) {
        let byte = |at: usize| u32::from(step.get(at).copied().unwrap_or(0));
        let ask = Ask {
            what: byte(0) % 8,
            object: byte(1) % 5,
            handle: byte(2) % 3,
            reserved: byte(3),
            tag: u64::from(byte(4)),
            at: u64::from(byte(5) % 8) * PAGE as u64 + u64::from(byte(6) / 250),
        };
        importer.take(&ask);
        let mut answer = [0; device_import_messages::BYTES_MAX];
        let answered =
            seqpacket::receive(theirs.as_fd(), &mut answer, seqpacket::BlockingMode::NonBlocking);
        if let Ok((length, files)) = answered {
            // To an owner everything may have come from anywhere.
            answer[byte(7) as usize % device_import_messages::BYTES_MAX] ^= step[0];
            line.take(Notice::read(&answer[..length]), files);
        }
    }
    exporter.remove_importer(&importer);
    assert!(exporter.has_nothing_out());
    assert!(std::hint::black_box(process.0).iter().all(|byte| *byte == 7));
}

#[test]
fn whatever_is_asked_nothing_stays_out() {
    let mut random = super::xorshift64::Random(1);
    for _ in 0..50 {
        let bytes: Vec<u8> = random.by_ref().take(200).map(|word| (word >> 20) as u8).collect();
        imports(&bytes);
    }
}
