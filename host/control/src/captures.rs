//! Keeps the captures under way: the operator, the vNIC, the progress, and the recorder that
//! writes.

use crate::engine::{PacketQueue, Recorder, Summary};
use crate::link_memory::{Memory, Source};
use crate::vnic_references::Hold;
use omniverb_link::captured_operations_ring::TRACE_BYTES;
use omniverb_sys::Access;
use omniverb_tenancy::{SessionId, TracedEnd, VnicId};
use omniverb_terms::{Errno, Qpn};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Budget: processes that may tell at the same time: each has memory of 8 MiB for it.
const TRACING_MAX: usize = 256;

#[derive(Debug)]
struct Capture {
    /// Has its vNIC open.
    hold: Hold,
    queue: PacketQueue,
}

/// All captures, by their operators.
pub(crate) struct Captures {
    recorder: Recorder,
    under_way: BTreeMap<SessionId, Capture>,
    /// Captures whose file the recorder checks, and the calls that wait for it.
    beginning: BTreeMap<SessionId, u64>,
    /// Those that end, and the calls that wait for it.
    finishing: BTreeMap<SessionId, u64>,
    /// Sessions that have memory to report through what is captured.
    tracing: BTreeSet<SessionId>,
}

/// The answer to a call that waited.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The capture has begun.
    Begun,
    /// Its file is no good, and why.
    Refused(Errno),
    /// It is over, and written down.
    Ended(Summary),
}

impl Captures {
    pub(crate) fn new(recorder: Recorder) -> Captures {
        Captures {
            recorder,
            under_way: BTreeMap::new(),
            beginning: BTreeMap::new(),
            finishing: BTreeMap::new(),
            tracing: BTreeSet::new(),
        }
    }

    /// Readable when [`next_outcome`](Self::next_outcome) may have something.
    pub(crate) fn ready(&self) -> BorrowedFd<'_> {
        self.recorder.ready()
    }

    /// Forgets that it was ready.
    pub(crate) fn take_ready(&self) {
        self.recorder.take_ready();
    }

    /// The next result for a call that waits for a capture: the session, the call's tag, the
    /// result.
    pub(crate) fn next_outcome(&mut self) -> Option<(SessionId, u64, Outcome)> {
        while let Some((capture, errno)) = self.recorder.next_begun() {
            let id = SessionId(capture);
            if let Some(tag) = self.beginning.remove(&id) {
                return Some((id, tag, errno.map_or(Outcome::Begun, Outcome::Refused)));
            }
        }
        while let Some((capture, summary)) = self.recorder.next_ended() {
            let id = SessionId(capture);
            if let Some(tag) = self.finishing.remove(&id) {
                return Some((id, tag, Outcome::Ended(summary)));
            }
        }
        None
    }

    /// Whether an operator may begin a capture: one at a time for each vNIC, and for each operator.
    pub(crate) fn may_begin(&self, id: SessionId, vnic: VnicId) -> Result<(), Errno> {
        let busy = self.under_way.contains_key(&id) || self.finishing.contains_key(&id);
        if busy || self.is_recorded(vnic) { Err(Errno::EBUSY) } else { Ok(()) }
    }

    /// One begins; call `tag` waits until the recorder has looked at its file. Of each packet so
    /// many bytes are written.
    pub(crate) fn begin(
        &mut self,
        id: SessionId,
        tag: u64,
        hold: Hold,
        file: OwnedFd,
        snap_bytes: u32,
    ) {
        let queue = self.recorder.begin(id.0, hold.vnic(), file, snap_bytes);
        self.under_way.insert(id, Capture { hold, queue });
        self.beginning.insert(id, tag);
    }

    pub(crate) fn is_recorded(&self, vnic: VnicId) -> bool {
        self.queue_of(vnic).is_some()
    }

    /// The queue for a vNIC's packets, if a capture wants them.
    pub(crate) fn queue_of(&self, vnic: VnicId) -> Option<&PacketQueue> {
        let mut all = self.under_way.values();
        all.find(|capture| capture.hold.vnic() == vnic).map(|capture| &capture.queue)
    }

    /// The vNIC whose packets an operator captures.
    pub(crate) fn vnic_of(&self, id: SessionId) -> Option<VnicId> {
        self.under_way.get(&id).map(|capture| capture.hold.vnic())
    }

    /// Call `tag` waits until its operator's capture is written down; there has to be one.
    pub(crate) fn finish(&mut self, id: SessionId, tag: u64) -> Result<(), Errno> {
        if !self.under_way.contains_key(&id) {
            return Err(Errno::ENOENT);
        }
        self.finishing.insert(id, tag);
        Ok(())
    }

    /// No more packets are wanted.
    pub(crate) fn end(&mut self, id: SessionId) {
        if self.under_way.remove(&id).is_some() {
            self.recorder.end(id.0);
        }
    }

    /// No call waits for anything any more.
    pub(crate) fn hang_up(&mut self, id: SessionId) {
        self.beginning.remove(&id);
        self.finishing.remove(&id);
    }

    /// Closes files that an operator sent, however long that takes.
    pub(crate) fn discard(&self, files: Vec<OwnedFd>) {
        if !files.is_empty() {
            self.recorder.discard(files);
        }
    }

    /// One more process reports what happens on its links: the memory for that. `None`: too many
    /// processes do, or there is no memory; captures record that its reports are missing.
    pub(crate) fn begin_trace(
        &mut self,
        id: SessionId,
        source: &Source,
    ) -> io::Result<Option<Memory>> {
        if self.tracing.len() >= TRACING_MAX {
            self.recorder.miss();
            return Ok(None);
        }
        let made = source
            .make("omniverb-trace", TRACE_BYTES as u64)
            .and_then(|memory| Ok((memory.map(Access::ReadWrite)?, memory)));
        match made {
            Ok((window, memory)) => {
                self.recorder.read(id.0, window);
                self.tracing.insert(id);
                Ok(Some(memory))
            }
            Err(error) => {
                self.recorder.miss();
                Err(error)
            }
        }
    }

    /// A session traces no longer.
    pub(crate) fn end_trace(&mut self, id: SessionId) {
        if self.tracing.remove(&id) {
            self.recorder.read_no_more(id.0);
        }
    }

    /// The reports of a session about this end of a link may be trusted.
    pub(crate) fn trace(&self, end: &TracedEnd) {
        self.recorder.trace(end);
    }

    /// A session traces this link no longer.
    pub(crate) fn untrace(&self, id: SessionId, qpn: Qpn, peer_qpn: Qpn) {
        self.recorder.untrace(id.0, qpn, peer_qpn);
    }
}
