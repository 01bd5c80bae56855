//! Keeps all identifiers of the process, by the daemon's numbers and by our own, and what is in
//! their channels.
//!
//! In: what the daemon told, in the progress thread; events that the library makes itself. Out:
//! events in the order of their coming, each counted as reported to the program when it is taken,
//! under one lock. So a thread that destroys an identifier knows how many events of it the program
//! holds, and none is taken later.
//!
//! A *token* is our number of an identifier; it is never used again. The daemon's number is, by the
//! next daemon.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use omniverb_abi::{
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_UNREACHABLE,
    rdma_cm_id,
};
use omniverb_session::cm::CmHappened;
use omniverb_sys::lock;
use omniverb_terms::Errno;

use crate::event_queue::{EventSource, PendingEvent, Queue};

/// An identifier of the program, or one that it will be given with a request.
struct Entry {
    /// Null while the request that it comes from was not taken.
    id: *mut rdma_cm_id,
    /// The daemon's number; none when that daemon is gone.
    handle: Option<u32>,
    queue: Arc<Queue>,
    /// Events that the program was given.
    reported: u32,
    /// Those of them that are requests.
    requests: u32,
    awaits: AwaitedEvent,
}

/// What is to come of the daemon for an identifier.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AwaitedEvent {
    /// It comes from a request that was not accepted: the program hears nothing of it until it is,
    /// and after an event that it did not hear accepting fails.
    Acceptance,
    /// Nothing in particular.
    Nothing,
    /// An event with which what was asked for ends.
    Event,
    /// Requests: it listens.
    Requests,
}

// SAFETY: the pointer is only handed back to the program's threads.
unsafe impl Send for Entry {}

#[derive(Default)]
struct Registry {
    latest: u64,
    entries: BTreeMap<u64, Entry>,
    by_handle: BTreeMap<u32, u64>,
}

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { latest: 0, entries: BTreeMap::new(), by_handle: BTreeMap::new() });

/// What a listener is told that will have no more requests: a kernel says so when it takes a
/// device away, and programs end then, or destroy the identifier and listen anew.
const REMOVED: EventSource = EventSource::Own { event: RDMA_CM_EVENT_DEVICE_REMOVAL, status: 0 };

impl Registry {
    fn add(&mut self, entry: Entry) -> u64 {
        self.latest += 1;
        if let Some(handle) = entry.handle {
            self.by_handle.insert(handle, self.latest);
        }
        self.entries.insert(self.latest, entry);
        self.latest
    }

    fn forget(&mut self, token: u64) -> Option<Entry> {
        let entry = self.entries.remove(&token)?;
        if let Some(handle) = entry.handle
            && self.by_handle.get(&handle) == Some(&token)
        {
            self.by_handle.remove(&handle);
        }
        Some(entry)
    }

    fn push(&mut self, token: u64, what: EventSource) {
        if let Some(entry) = self.entries.get(&token) {
            entry.queue.push(PendingEvent { token, what });
        }
    }

    fn request(&mut self, happened: &CmHappened) {
        let Some(&listener) = self.by_handle.get(&happened.listener) else { return };
        let Some(queue) = self.entries.get(&listener).map(|entry| entry.queue.clone()) else {
            return;
        };
        let child = self.add(Entry {
            id: core::ptr::null_mut(),
            handle: Some(happened.id),
            queue,
            reported: 0,
            requests: 0,
            awaits: AwaitedEvent::Acceptance,
        });
        self.push(listener, EventSource::Request(Box::new(*happened), child));
    }
}

/// A new identifier; its token.
pub(crate) fn add(id: *mut rdma_cm_id, handle: u32, queue: Arc<Queue>) -> u64 {
    lock(&REGISTRY).add(Entry {
        id,
        handle: Some(handle),
        queue,
        reported: 0,
        requests: 0,
        awaits: AwaitedEvent::Nothing,
    })
}

/// The daemon told of something.
pub(crate) fn happened(happened: &CmHappened) {
    let mut registry = lock(&REGISTRY);
    if happened.event == RDMA_CM_EVENT_CONNECT_REQUEST {
        return registry.request(happened);
    }
    let Some(&token) = registry.by_handle.get(&happened.id) else { return };
    let Some(entry) = registry.entries.get_mut(&token) else { return };
    match entry.awaits {
        AwaitedEvent::Acceptance => return,
        // What is to be done for an answer says by itself when the daemon is gone.
        AwaitedEvent::Event => entry.awaits = AwaitedEvent::Nothing,
        AwaitedEvent::Nothing | AwaitedEvent::Requests => {}
    }
    registry.push(token, EventSource::Happened(Box::new(*happened)));
}

/// The daemon is gone, and with it what it knew of our identifiers. Waiting programs are told: for
/// the end of what was asked, or as a listener, to which no request will come any more.
pub(crate) fn daemon_is_gone() {
    let mut registry = lock(&REGISTRY);
    registry.by_handle.clear();
    let mut ends = Vec::new();
    for (token, entry) in &mut registry.entries {
        entry.handle = None;
        let status = -Errno::ECONNRESET.raw();
        let what = match entry.awaits {
            AwaitedEvent::Acceptance | AwaitedEvent::Nothing => continue,
            AwaitedEvent::Event => EventSource::Own { event: RDMA_CM_EVENT_UNREACHABLE, status },
            AwaitedEvent::Requests => REMOVED,
        };
        entry.awaits = AwaitedEvent::Nothing;
        ends.push((*token, what));
    }
    for (token, what) in ends {
        registry.push(token, what);
    }
}

/// It listens. If its daemon is gone meanwhile it is told so at once.
pub(crate) fn mark_listening(token: u64) {
    let mut registry = lock(&REGISTRY);
    let Some(entry) = registry.entries.get_mut(&token) else { return };
    if entry.handle.is_some() {
        entry.awaits = AwaitedEvent::Requests;
    } else {
        registry.push(token, REMOVED);
    }
}

/// An event of our own making.
pub(crate) fn push(token: u64, what: EventSource) {
    lock(&REGISTRY).push(token, what);
}

/// The daemon's number of an identifier.
///
/// # Errors
/// `ENODEV`: that daemon is gone.
pub(crate) fn handle(token: u64) -> Result<u32, Errno> {
    lock(&REGISTRY).entries.get(&token).and_then(|entry| entry.handle).ok_or(Errno::ENODEV)
}

/// From now on what happens to it is told; and what was asked for ends with an event.
pub(crate) fn expect(token: u64) {
    let mut registry = lock(&REGISTRY);
    // What a listener asks for the daemon refuses.
    let entry = registry.entries.get_mut(&token).filter(|e| e.awaits != AwaitedEvent::Requests);
    if let Some(entry) = entry {
        entry.awaits = AwaitedEvent::Event;
    }
}

/// What was asked for has failed at once.
pub(crate) fn expect_nothing(token: u64) {
    let mut registry = lock(&REGISTRY);
    if let Some(entry) =
        registry.entries.get_mut(&token).filter(|e| e.awaits == AwaitedEvent::Event)
    {
        entry.awaits = AwaitedEvent::Nothing;
    }
}

/// The oldest event of a channel, and the identifier that it is about: of a request the listener.
pub(crate) fn take(queue: &Queue) -> Option<(PendingEvent, *mut rdma_cm_id)> {
    let mut registry = lock(&REGISTRY);
    let pending = queue.pop()?;
    let entry = registry.entries.get_mut(&pending.token)?;
    let id = entry.id;
    entry.reported += 1;
    entry.requests += u32::from(matches!(pending.what, EventSource::Request(..)));
    Some((pending, id))
}

/// A request was taken: this is its identifier, whose events come by that channel.
pub(crate) fn adopt(token: u64, id: *mut rdma_cm_id, queue: Arc<Queue>) {
    if let Some(entry) = lock(&REGISTRY).entries.get_mut(&token) {
        entry.id = id;
        entry.queue = queue;
    }
}

/// Has events come by another channel, those that wait included. How many the program was given.
pub(crate) fn migrate(token: u64, queue: &Arc<Queue>) -> u32 {
    let mut registry = lock(&REGISTRY);
    let Some(entry) = registry.entries.get_mut(&token) else { return 0 };
    let old = core::mem::replace(&mut entry.queue, queue.clone());
    for pending in old.extract(token) {
        queue.push(pending);
    }
    entry.reported
}

/// What there was of an identifier.
pub(crate) struct RemovedId {
    /// Events that the program was given.
    pub(crate) reported: u32,
    /// Those of them that were requests.
    pub(crate) requests: u32,
    /// The daemon's number, if that daemon is there.
    pub(crate) handle: Option<u32>,
}

/// Forgets an identifier, and events and requests that were not taken.
pub(crate) fn remove(token: u64) -> Option<RemovedId> {
    let mut registry = lock(&REGISTRY);
    let entry = registry.forget(token)?;
    for pending in entry.queue.extract(token) {
        if let EventSource::Request(_, child) = pending.what {
            registry.forget(child);
        }
    }
    Some(RemovedId { reported: entry.reported, requests: entry.requests, handle: entry.handle })
}

/// How many identifiers there are.
#[cfg(test)]
pub(crate) fn count() -> usize {
    lock(&REGISTRY).entries.len()
}
