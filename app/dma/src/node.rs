//! Implements a node: a peer that we are connected with, or are about to be.
//!
//! In: completions, messages that came, transfers to start. Out: transfers that are done, messages.
//! Everything of a node is under one lock. It *ends* once, for whatever reason; then its queues are
//! gone and nothing of it is under way.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use omniverb_abi::{IBV_WC_SUCCESS, ibv_wc};
use omniverb_dma_announce::{AnnouncedBuffer, Message, PeerBuffers};
use omniverb_sys::lock;
use omniverb_terms::Errno;

use crate::cm_id::CmId;
use crate::device::Device;
use crate::limits::{GREETING, LIST_BYTES, LIST_MAX, TRANSFERS_MAX, TURN};
use crate::node_queue_pair::{LETTER, reason};
use crate::node_state::{CheckedTransfer, Inner, Phase};
use crate::transfer::UnderWay;
use crate::wakes_and_callbacks::{Shared, WaitMode};

/// The side that asked for a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionOrigin {
    /// The program did, and has the node as soon as it is ready.
    Ours,
    /// The node did: the program has it once it accepts it.
    Incoming,
}

/// See the file's head.
pub struct Node {
    pub(crate) number: u32,
    pub(crate) origin: ConnectionOrigin,
    /// The program has it, or is waiting for it.
    pub(crate) handed: AtomicBool,
    since: Instant,
    shared: Arc<Shared>,
    inner: Mutex<Inner>,
}

impl Node {
    pub(crate) fn new(number: u32, origin: ConnectionOrigin, shared: Arc<Shared>) -> Self {
        let (handed, inner) =
            (AtomicBool::new(origin == ConnectionOrigin::Ours), Mutex::new(Inner::new()));
        Self { number, origin, handed, since: Instant::now(), shared, inner }
    }

    /// Whether it asked for the connection.
    pub(crate) fn is_incoming(&self) -> bool {
        self.origin == ConnectionOrigin::Incoming
    }

    /// Whether the program has it, or is waiting for it.
    pub(crate) fn is_handed(&self) -> bool {
        self.handed.load(Ordering::Relaxed)
    }

    /// Whether it is a node of this context.
    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Its connection is this. It ends at once if it has ended before.
    pub(crate) fn set_connection(&self, id: CmId) {
        let mut inner = self.inner();
        if !inner.phase.is_over() {
            inner.id = Some(id);
        }
    }

    /// Does something with the connection; the node ends if it fails.
    pub(crate) fn with(&self, then: impl FnOnce(&CmId) -> Result<(), Errno>) {
        let mut inner = self.inner();
        let Some(id) = &inner.id else { return };
        if let Err(errno) = then(id) {
            self.end_now(&mut inner, errno);
        }
    }

    /// Makes its queues, and goes on.
    pub(crate) fn get_ready(&self, device: &Device, then: impl FnOnce(&CmId) -> Result<(), Errno>) {
        let mut inner = self.inner();
        let Some(id) = &inner.id else { return };
        match id.queues(device, self.number) {
            Ok(queues) => inner.queues = Some(queues),
            Err(errno) => return self.end_now(&mut inner, errno),
        }
        drop(inner);
        self.with(then);
    }

    /// Both sides are connected: says all that there is.
    pub(crate) fn open(&self, own: impl Iterator<Item = AnnouncedBuffer>) {
        let mut inner = self.inner();
        if inner.queues.is_none() || inner.phase != Phase::Connecting {
            return;
        }
        inner.phase = Phase::Open;
        inner.outbox.begin(own.map(Message::Buffer).chain([Message::All]));
        self.go_on(&mut inner);
        drop(inner);
        self.shared.gate.notify();
    }

    /// Whether it is connected, and all is known that it had then; or why it ended.
    pub(crate) fn check_ready(&self) -> Result<bool, Errno> {
        let inner = self.inner();
        match inner.phase {
            Phase::Ended(why) => Err(why),
            _ => Ok(inner.is_greeted()),
        }
    }

    /// Of one that the program does not have: how much longer it may greet, if it does. It ends if
    /// that is too long, or if no thread waits for it.
    pub(crate) fn await_greeting(&self) -> Option<Duration> {
        let mut inner = self.inner();
        if inner.phase.is_over() || (self.is_incoming() && inner.is_greeted()) {
            return None;
        }
        let left = GREETING.checked_sub(self.since.elapsed()).filter(|_| self.is_incoming());
        if left.is_none() {
            self.end_now(&mut inner, Errno::ETIMEDOUT);
        }
        left
    }

    /// Whether it has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.inner().phase.is_over()
    }

    /// There is a new buffer of ours.
    pub(crate) fn announce(&self, what: AnnouncedBuffer) {
        let mut inner = self.inner();
        if inner.phase == Phase::Open {
            self.say(&mut inner, Message::Buffer(what));
            self.go_on(&mut inner);
        }
    }

    /// A buffer of ours is to go.
    pub(crate) fn withdraw(&self, serial: u64) {
        let mut inner = self.inner();
        if inner.phase == Phase::Open {
            let message = inner.known.withdraw(serial);
            self.say(&mut inner, message);
            self.go_on(&mut inner);
        }
    }

    /// Whether it may still use a buffer that was withdrawn.
    pub(crate) fn keeps(&self, serial: u64) -> bool {
        self.inner().known.awaits(serial)
    }

    /// Its buffer of this identifier, if it has said that there is one.
    ///
    /// # Errors
    /// `ENOTCONN`: it has ended.
    pub(crate) fn find(&self, id: u64) -> Result<Option<AnnouncedBuffer>, Errno> {
        let inner = self.inner();
        if inner.phase.is_over() { Err(Errno::ENOTCONN) } else { Ok(inner.known.find(id)) }
    }

    /// Whether some of its transfers are to be called back.
    pub(crate) fn is_calling(&self) -> bool {
        self.inner().slots.any_calls()
    }

    /// It ends, if it has not.
    pub(crate) fn end(&self, why: Errno) {
        self.end_now(&mut self.inner(), why);
    }

    fn end_now(&self, inner: &mut Inner, why: Errno) {
        if inner.phase.is_over() {
            return;
        }
        inner.phase = Phase::Ended(why);
        inner.known = PeerBuffers::default();
        inner.outbox.clear();
        // What is done is done, also if no thread has looked.
        self.take_done(inner);
        if let Some(id) = &inner.id {
            id.disconnect();
        }
        self.take_done(inner);
        // First what the device does, then what it does it with.
        inner.queues = None;
        inner.id = None;
        for name in 0..TRANSFERS_MAX {
            self.finish(inner, name, Errno::ECONNRESET);
        }
        self.shared.gate.notify();
        // The library's thread forgets it.
        self.shared.wake();
    }

    /// Takes all that the device has done, and nothing else.
    fn take_done(&self, inner: &mut Inner) {
        let mut done = [ibv_wc::default(); TURN];
        loop {
            let count = inner.queues.as_ref().map_or(0, |queues| queues.poll_sends(&mut done));
            if count == 0 {
                return;
            }
            for completion in &done[..count] {
                if completion.status == IBV_WC_SUCCESS && completion.wr_id & LETTER == 0 {
                    self.finish(inner, completion.wr_id as usize, Errno::NONE);
                }
            }
        }
    }

    /// A transfer is done, if there is one of that name.
    fn finish(&self, inner: &mut Inner, name: usize, status: Errno) {
        let Some(UnderWay { place, own, calls, .. }) = self.take_out(inner, name) else { return };
        drop(own);
        if calls {
            self.shared.call_later(place, status);
            self.shared.wake();
        } else {
            place.finish(status);
        }
    }

    /// A transfer is not under way any more; none if there is none of that name.
    fn take_out(&self, inner: &mut Inner, name: usize) -> Option<UnderWay> {
        let it = inner.slots.end(name)?;
        it.own.end();
        if it.calls {
            self.shared.calling.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(message) = inner.known.end(it.serial) {
            self.say(inner, message);
        }
        Some(it)
    }

    fn say(&self, inner: &mut Inner, message: Message) {
        if let Err(why) = inner.outbox.push(message) {
            self.end_now(inner, why);
        }
    }

    /// Takes what the device has done, and sends what waits. Whether there may be more.
    fn go_on(&self, inner: &mut Inner) -> bool {
        let more = self.advance(inner);
        match &inner.queues {
            Some(queues) if !inner.outbox.is_empty() => queues.notify_sends(),
            _ => return more,
        }
        self.advance(inner)
    }

    fn advance(&self, inner: &mut Inner) -> bool {
        let mut done = [ibv_wc::default(); TURN];
        let count = match &inner.queues {
            Some(queues) => queues.poll_sends(&mut done),
            None => return false,
        };
        for completion in &done[..count] {
            let name = (completion.wr_id & (LETTER - 1)) as usize;
            if completion.status != IBV_WC_SUCCESS {
                let why = reason(completion.status);
                if completion.wr_id & LETTER == 0 {
                    self.finish(inner, name, why);
                }
                self.end_now(inner, why);
                return false;
            }
            if completion.wr_id & LETTER == 0 {
                self.finish(inner, name, Errno::NONE);
            } else {
                inner.outbox.sent(name);
            }
        }
        if let Err(errno) = inner.send_waiting() {
            self.end_now(inner, errno);
        }
        count == TURN
    }

    /// As [`Node::go_on`], by a thread that asks for a transfer.
    pub(crate) fn look(&self) {
        self.go_on(&mut self.inner());
    }

    /// There is news of its queues: takes it, and will be told again. Whether there is more now.
    pub(crate) fn serve(&self) -> bool {
        let mut inner = self.inner();
        let Some(queues) = &inner.queues else { return false };
        queues.notify_receives();
        let mut came = [ibv_wc::default(); TURN];
        let count = queues.poll_receives(&mut came);
        for completion in &came[..count] {
            if let Err(errno) = self.take(&mut inner, completion) {
                self.end_now(&mut inner, errno);
                return false;
            }
        }
        let mut more = self.go_on(&mut inner);
        // Told of what is done only where that is waited for: by the program's function, or the
        // node, for its buffer.
        let calls = inner.slots.any_calls() && !self.shared.looks.load(Ordering::Relaxed);
        if (calls || inner.known.keeps_withdrawn())
            && let Some(queues) = &inner.queues
        {
            queues.notify_sends();
            more |= self.go_on(&mut inner);
        }
        drop(inner);
        if count > 0 {
            self.shared.gate.notify();
        }
        more || count == TURN
    }

    /// Takes a message.
    fn take(&self, inner: &mut Inner, completion: &ibv_wc) -> Result<(), Errno> {
        let queues = inner.queues.as_ref().ok_or(Errno::ECONNRESET)?;
        if completion.status != IBV_WC_SUCCESS {
            return Err(reason(completion.status));
        }
        let place = completion.wr_id as usize;
        let message = queues.received(place, completion.byte_len);
        queues.post_receive(place)?;
        if let Some(answer) = inner.known.hear(&message).map_err(|_| Errno::EPROTO)? {
            self.say(inner, answer);
        }
        Ok(())
    }

    /// Starts transfers, as many as can be; at least one, or why not.
    pub(crate) fn start(&self, list: &[CheckedTransfer]) -> Result<usize, Errno> {
        let mut started = 0;
        while started < list.len() {
            // The lock is given up in between: a thread that looks for completions takes its turn.
            let mut inner = self.inner();
            match self.start_some(&mut inner, &list[started..]) {
                (0, Err(errno)) if started == 0 => return Err(errno),
                (count, Ok(())) => started += count,
                (count, Err(_)) => return Ok(started + count),
            }
        }
        Ok(started)
    }

    fn start_some(
        &self,
        inner: &mut Inner,
        list: &[CheckedTransfer],
    ) -> (usize, Result<(), Errno>) {
        if inner.slots.room() < LIST_MAX {
            self.go_on(inner);
        }
        if inner.phase != Phase::Open {
            return (0, Err(Errno::ENOTCONN));
        }
        let (mut requests, mut bytes) = (Vec::with_capacity(LIST_MAX), 0);
        let mut why_not = Ok(());
        for wanted in list.iter().take(LIST_MAX) {
            if bytes >= LIST_BYTES {
                break;
            }
            match inner.prepare(wanted) {
                Ok(request) => requests.push(request),
                Err(errno) => {
                    why_not = Err(errno);
                    break;
                }
            }
            bytes += u64::from(wanted.ours.length);
            wanted.place.begin(self.number);
        }
        // The library's thread looks by itself, or is told. When it stops looking it takes this
        // lock once: either it sees what we count below, or we see that it has stopped.
        let calls = list[..requests.len()].iter().filter(|wanted| wanted.place.calls()).count();
        self.shared.calling.fetch_add(calls as u32, Ordering::Relaxed);
        let Some(queues) = &inner.queues else { return (0, Err(Errno::ENOTCONN)) };
        if calls > 0 && !self.shared.looks.load(Ordering::Relaxed) {
            queues.notify_sends();
            if self.shared.waits == WaitMode::Spins {
                self.shared.wake();
            }
        }
        let (posted, result) = queues.post(&requests);
        for request in requests.iter().skip(posted) {
            // The device did not take it: the program has it back.
            if let Some(it) = self.take_out(inner, request.name as usize) {
                it.place.finish(Errno::EAGAIN);
            }
        }
        (posted, result.and(why_not))
    }
}
