//! Plays the region that an application sends from.

use crate::pages::grant::Grant;
use crate::pages::shared_extent_mappings::Hold;
use omniverb_link::{Endpoint, Request, Source, UnfilledRecord};
use omniverb_ring::{UserMemory, Window, WordMemory};
use omniverb_sys::{Access, Extent, memfd};
use omniverb_terms::Rkey;
use std::collections::VecDeque;

pub(super) const KEY: Rkey = Rkey(77);
const START: u64 = 0x70_0000;
const BYTES: usize = 16 * 4096;

pub(super) struct Shelf {
    memory: Window,
    /// The mapped part: all but the first page, as if the region began within it.
    reached: Option<Window>,
    /// Sent from here and not consumed: where it is, and the record.
    lent: VecDeque<(usize, usize, UnfilledRecord)>,
    next: usize,
    filled: u64,
    /// Messages sent from here; times that records were filled.
    pub(super) sent: u64,
    pub(super) fills: u64,
}

fn pages() -> (Window, Window) {
    // In the middle of a file.
    let (length, before) = (BYTES as u64, 3 * 4096);
    let file = memfd::create("shelf", length + 2 * before).unwrap();
    let map = || Extent::new(&file, before, length).map(Access::ReadWrite).unwrap();
    let (ours, theirs) = (map(), map());
    UserMemory::lend(&[1; BYTES], |all| ours.fill(0, all));
    (ours, theirs.part(4096, BYTES - 4096).unwrap())
}

impl Shelf {
    pub(super) fn new() -> Shelf {
        let (memory, reached) = pages();
        let (lent, reached) = (VecDeque::new(), Some(reached));
        Shelf { memory, reached, lent, next: 0, filled: 0, sent: 0, fills: 0 }
    }

    /// Sends from here, if the engine has it mapped. `None`: not this way; false: no room.
    pub(super) fn send(
        &mut self,
        application: &mut Endpoint,
        request: &Request,
        data: &[u8],
    ) -> Option<bool> {
        self.forget_consumed(application);
        if !application.peer_reaches(KEY) || data.is_empty() {
            application.want_source(KEY);
            return None;
        }
        if self.next + data.len() > BYTES {
            self.next = 0;
        }
        let (at, end) = (self.next, self.next + data.len());
        if self.lent.iter().any(|(begin, until, _)| *begin < end && at < *until) {
            return None;
        }
        UserMemory::lend(data, |data| self.memory.fill(at, data));
        let source = Source { key: KEY, address: START + at as u64 };
        let sent = application.send_request_from(request, data.len(), source).unwrap();
        let Some(record) = sent else { return Some(false) };
        self.lent.push_back((at, end, record));
        (self.next, self.sent) = (end, self.sent + 1);
        Some(true)
    }

    fn forget_consumed(&mut self, application: &mut Endpoint) {
        while let Some((_, _, record)) = self.lent.front()
            && application.request_consumed(record.end()).unwrap()
        {
            self.lent.pop_front();
        }
    }

    /// Does what the engine wants.
    pub(super) fn fill_if_wanted(&mut self, application: &mut Endpoint) {
        if application.fill_wanted() > self.filled {
            self.fill(application);
        }
    }

    fn fill(&mut self, application: &mut Endpoint) {
        self.forget_consumed(application);
        for (at, end, record) in &self.lent {
            let mut bytes = vec![0; end - at];
            UserMemory::lend_mut(&mut bytes, |bytes| self.memory.drain(*at, bytes));
            UserMemory::lend(&bytes, |bytes| application.fill(record, bytes));
        }
        self.fills += u64::from(!self.lent.is_empty());
        self.filled = application.request_position();
        application.publish_filled();
    }

    /// The pages go back: the ones that the engine has hold nothing of worth any more.
    pub(super) fn take_back(&mut self, application: &mut Endpoint) {
        self.fill(application);
        application.advance_epoch();
        UserMemory::lend(&[0xee; BYTES], |junk| self.memory.fill(0, junk));
        let (memory, reached) = pages();
        (self.memory, self.reached) = (memory, Some(reached));
        // Lent bytes are in the ring; the place is free.
        self.lent.clear();
    }

    /// The pages that the engine maps.
    pub(super) fn grant(
        &mut self,
        budget: &crate::pages::mapped_memory_budget::Budget,
    ) -> Option<Grant> {
        let reached = self.reached.take()?;
        let share = budget.share(reached.len())?;
        Some(Grant::new(KEY, 0, START + 4096, Hold::alone(reached, share)))
    }
}
