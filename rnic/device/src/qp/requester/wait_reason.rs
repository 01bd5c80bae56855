//! Names what the oldest unfinished request of a queue pair waits for.

use super::request_state::{RequestHeader, WaitReason};

/// What a request waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestWait {
    pub(super) why: WaitReason,
    /// The request's number in the send queue.
    pub(super) position: u64,
    /// How many bytes of it have gone: when more do, it begins to wait anew.
    pub(super) done: u64,
    /// When it has waited too long, in nanoseconds of the host's clock; `None`: never, news will
    /// come by itself.
    pub(super) deadline: Option<u64>,
    /// How often it may be tried yet, as `rnr_retry`: 7 is without end. A datagram: how often it
    /// may wait anew, if no other waits behind it.
    pub(super) retries: u8,
}

impl RequestWait {
    /// Whether it is this request that waits, for this, and nothing has moved meanwhile.
    pub(super) fn is_of(&self, order: &RequestHeader, why: WaitReason) -> bool {
        (self.why, self.position, self.done) == (why, order.position, order.done)
    }
}

/// Whether something waits, and the progress thread knows.
#[derive(Default)]
pub(crate) struct WaitState {
    wait: Option<RequestWait>,
    /// Since when requests have waited for a link, the first of them and all that followed.
    searching: Option<u64>,
    /// How far the peer had taken requests when the last one was given up.
    gave_up_at: Option<u64>,
    /// The QP is among those that the progress thread looks after.
    listed: bool,
}

impl WaitState {
    /// What a request waits for, if one does.
    pub(super) fn now(&self) -> Option<RequestWait> {
        self.wait
    }

    /// Whether the peer has no receive for the oldest request.
    pub(crate) fn is_for_receive(&self) -> bool {
        self.wait.is_some_and(|wait| wait.why == WaitReason::Receive)
    }

    /// A request begins to wait, or does so for longer.
    pub(super) fn begin(&mut self, wait: RequestWait) {
        self.wait = Some(wait);
    }

    /// Nothing waits any more, or what does begins anew.
    pub(crate) fn end(&mut self) {
        self.wait = None;
    }

    /// Since when a link has been waited for, `now` if that begins here.
    pub(super) fn search(&mut self, now: u64) -> u64 {
        *self.searching.get_or_insert(now)
    }

    /// There is a link, or the QP begins anew.
    pub(crate) fn end_search(&mut self) {
        self.searching = None;
        self.gave_up_at = None;
        self.end();
    }

    /// A request was given up; the peer has taken those before this position.
    pub(super) fn give_up(&mut self, consumed: Option<u64>) {
        self.gave_up_at = consumed;
    }

    /// How far the peer had taken requests when one was given up, if one was.
    pub(super) fn gave_up_at(&self) -> Option<u64> {
        self.gave_up_at
    }

    /// Whether the progress thread looks after the QP.
    #[inline(always)]
    pub(super) fn is_listed(&self) -> bool {
        self.listed
    }

    /// It does from now on.
    pub(super) fn list(&mut self) {
        self.listed = true;
    }

    /// It does no longer.
    pub(crate) fn unlist(&mut self) {
        self.listed = false;
    }
}
