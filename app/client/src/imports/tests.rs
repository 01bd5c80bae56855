//! What is about more than one importer.

use super::exporter::{Door, Exported, Exporter, Owner};
use super::service::Service;
use omniverb_device::Region;
use omniverb_session::import::{self, Ask, Told};
use omniverb_sys::socket::{self, Mode};
use omniverb_terms::{Errno, Rkey};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

/// Has device memory that nobody has asked the pages of.
#[derive(Default)]
struct Process {
    exporter: Mutex<Weak<Exporter>>,
}

impl Owner for Process {
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

impl Exported for Process {
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
    let ask = Ask { what, object: import::DEVICE_MEMORY, handle: 1, tag, ..Ask::NONE };
    socket::try_send(to.as_fd(), ask.bytes(), &[]).unwrap();
}

fn hear(from: &OwnedFd) -> Told {
    let mut bytes = [0; import::BYTES_MAX];
    let (length, _) = socket::receive(from.as_fd(), &mut bytes, Mode::Blocking).unwrap();
    Told::read(&bytes[..length]).unwrap()
}

#[test]
fn who_destroys_waits_for_the_other_importers() {
    let process = Arc::new(Process::default());
    let owner: Weak<Process> = Arc::downgrade(&process);
    let service = Arc::<Service>::default();
    let exporter = Exporter::new(service.clone(), owner.clone());
    *process.exporter.lock().unwrap() = Arc::downgrade(&exporter);
    let (file, door) = socket::pair().unwrap();
    service.add(Arc::new(Door::new(Arc::new(door), exporter, owner))).unwrap();
    let importers = [(); 2].map(|()| {
        let (ours, theirs) = socket::pair().unwrap();
        let open = Ask { what: import::OPEN, ..Ask::NONE };
        socket::try_send(file.as_fd(), open.bytes(), &[theirs.as_fd()]).unwrap();
        say(&ours, import::IMPORT, 1);
        assert_eq!(hear(&ours).errno, Errno::NONE);
        ours
    });
    let [one, other] = &importers;
    say(one, import::DESTROY, 2);
    let [gone, gone_here] = [other, one].map(hear);
    assert_eq!([gone.what, gone_here.what], [import::GONE; 2]);
    say(one, import::SEEN, gone_here.tag);
    // One of its questions at a time; this answer comes before that to the first one.
    say(one, import::DESTROY, 3);
    let answer = hear(one);
    assert_eq!((answer.tag, answer.errno), (3, Errno::EAGAIN), "the other one has not seen it");
    say(other, import::SEEN, gone.tag);
    let answer = hear(one);
    assert_eq!((answer.tag, answer.errno), (2, Errno::NONE));
}
