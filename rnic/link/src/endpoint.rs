//! Implements one end of a link: four ring ends, our words, the peer's words, and the way to wake
//! the peer.

use crate::credits::{Credit, Credits};
use crate::layout::{self, NO_CREDITS, state, word};
use crate::record::{Request, Response};
use omniverb_ring::shared_atomics::{Ordering, fence};
use omniverb_ring::{
    Broken, Consumer, DoorbellPage, Producer, Record, UserMemory, Window, WordMemory, room_of,
};
use std::sync::Arc;

/// What a refusal takes of a response ring.
const NAK_ROOM: u64 = room_of(1, 0);

/// How a sleeping peer is woken; the only thing here that leaves memory. One datagram.
pub trait Doorbell: Send + Sync {
    /// The page of the bell that belongs to the peer.
    fn page(&self) -> &DoorbellPage<Window>;
    /// Wakes the peer's progress thread.
    fn kick(&self);
}

/// What the daemon handed over, already verified: the memory is as large as the layout needs.
pub struct EndpointParts {
    /// The whole link.
    pub memory: Window,
    /// Which side this end is: 0 or 1, the other end is the other one.
    pub side: usize,
    /// Bytes of a request ring.
    pub request_bytes: usize,
    /// Bytes of a response ring.
    pub response_bytes: usize,
    /// Wakes the peer.
    pub doorbell: Arc<dyn Doorbell>,
    /// Our bit in the peer's page.
    pub peer_slot: u32,
}

/// What an end remembers of naps; see [`crate::poller_sleep`].
#[derive(Default)]
pub(crate) struct NapState {
    /// Of our latest one; at the engine's end, of the peer's that it answered last.
    pub(crate) number: u64,
    /// At the engine's end: positions in both rings when it last looked for a nap, added up.
    pub(crate) sent: u64,
}

/// How far an end is: bytes ever sent on its rings, or taken from them, and receives of the peer
/// that it has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // named as the rings of `Endpoint`
pub struct EndpointPositions {
    pub requests_out: u64,
    pub requests_in: u64,
    pub responses_out: u64,
    pub responses_in: u64,
    /// Messages sent that took a receive which the peer had promised, modulo 2^32.
    pub receives_used: u32,
}

/// What became of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseOutcome {
    /// It is in the ring.
    Sent,
    /// There is no room for it now.
    NoRoom,
    /// Its payload could not be copied: nothing is sent.
    Unfilled,
}

/// One end of a link.
pub struct Endpoint {
    /// Requests we send.
    pub(crate) requests_out: Producer<Window>,
    /// Requests the peer sends.
    pub(crate) requests_in: Consumer<Window>,
    /// What we answer to requests of the peer.
    pub(crate) responses_out: Producer<Window>,
    /// The peer's answers.
    responses_in: Consumer<Window>,
    pub(crate) ours: Window,
    pub(crate) theirs: Window,
    pub(crate) doorbell: Arc<dyn Doorbell>,
    /// The doorbell's page, at hand: it is looked at with every record.
    pub(crate) peer_page: DoorbellPage<Window>,
    pub(crate) peer_slot: u32,
    credits: Credits,
    /// Whether our BLOCKED word is set.
    pub(crate) is_blocked: bool,
    /// We have woken the peer, since it was last seen to consume.
    pub(crate) has_kicked: bool,
    pub(crate) naps: NapState,
    /// So many bytes are consumed without telling the peer, in the middle of a batch.
    publish_at: u64,
}

impl Endpoint {
    /// Attaches to one side. `None` if the parts do not fit together.
    pub fn new(parts: EndpointParts) -> Option<Endpoint> {
        let EndpointParts { memory, side, request_bytes, response_bytes, doorbell, peer_slot } =
            parts;
        let sane =
            |bytes: usize, least| bytes.is_power_of_two() && (least..=1 << 30).contains(&bytes);
        if side > 1
            || !sane(request_bytes, layout::REQUEST_BYTES_MIN)
            || !sane(response_bytes, layout::RESPONSE_BYTES_MIN)
        {
            return None;
        }
        let other = 1 - side;
        let words = |s| memory.part(layout::side(s), 0x1000);
        let requests = |s| memory.part(layout::request_ring(s, request_bytes), request_bytes);
        let responses = |s| {
            memory.part(layout::response_ring(s, request_bytes, response_bytes), response_bytes)
        };
        let (ours, theirs) = (words(side)?, words(other)?);
        Some(Endpoint {
            requests_out: Producer::new(requests(side)?, theirs.clone(), word::REQUEST_CONSUMED),
            requests_in: Consumer::new(requests(other)?, ours.clone(), word::REQUEST_CONSUMED),
            responses_out: Producer::new(responses(side)?, theirs.clone(), word::RESPONSE_CONSUMED),
            responses_in: Consumer::new(responses(other)?, ours.clone(), word::RESPONSE_CONSUMED),
            ours,
            theirs,
            peer_page: doorbell.page().clone(),
            doorbell,
            peer_slot,
            credits: Credits::default(),
            is_blocked: false,
            has_kicked: false,
            naps: NapState::default(),
            publish_at: request_bytes as u64 / 8,
        })
    }

    // --- handover -----------------------------------------------------------------------------

    /// Where this end is in the rings: what another end over the same memory goes on with.
    #[must_use]
    pub fn positions(&self) -> EndpointPositions {
        EndpointPositions {
            requests_out: self.requests_out.position(),
            requests_in: self.requests_in.position(),
            responses_out: self.responses_out.position(),
            responses_in: self.responses_in.position(),
            receives_used: self.credits.used(),
        }
    }

    /// Goes on, before anything was sent or taken, where another end has ended. False: no end is
    /// ever there. A wrong position reads and writes nothing outside the rings, and breaks the link
    /// or garbles it.
    #[must_use]
    pub fn resume_at(&mut self, positions: &EndpointPositions) -> bool {
        self.credits.resume(positions.receives_used);
        self.requests_out.resume_at(positions.requests_out)
            && self.requests_in.resume_at(positions.requests_in)
            && self.responses_out.resume_at(positions.responses_out)
            && self.responses_in.resume_at(positions.responses_in)
    }

    // --- requests out -------------------------------------------------------------------------

    /// Largest payload of one request record.
    #[inline(always)]
    pub fn request_payload_max(&self) -> usize {
        self.requests_out.payload_max()
    }

    /// Sends a request with its payload, gathered from `parts`, which together have `length`
    /// bytes. False: no room now.
    #[inline(always)]
    pub fn send_request<'a>(
        &mut self,
        request: &Request,
        length: usize,
        parts: impl IntoIterator<Item = &'a UserMemory>,
    ) -> Result<bool, Broken> {
        let (tag, words, extra) = request.encode();
        let Some(at) = self.requests_out.reserve(extra, length)? else { return Ok(false) };
        for (index, word) in words.iter().enumerate().take(extra) {
            self.requests_out.extra(at, index, *word);
        }
        let mut offset = 0;
        for part in parts {
            self.requests_out.payload(at, extra, offset, *part);
            offset += part.len();
        }
        debug_assert_eq!(offset, length);
        self.requests_out.publish(at, tag, extra, length);
        self.notify();
        Ok(true)
    }

    /// Position right behind the last request sent.
    #[inline(always)]
    pub fn request_position(&self) -> u64 {
        self.requests_out.position()
    }

    /// Whether the peer consumed our requests up to `position`.
    #[inline(always)]
    pub fn request_consumed(&mut self, position: u64) -> Result<bool, Broken> {
        Ok(self.requests_out.consumed(position)? >= position)
    }

    /// How far the peer has consumed our requests.
    pub fn requests_consumed(&mut self) -> Result<u64, Broken> {
        self.requests_out.consumed(self.requests_out.position())
    }

    // --- credits ------------------------------------------------------------------------------

    /// What is known of the peer's receives, looked up if it was none when last seen.
    #[inline(always)]
    pub fn credit(&mut self) -> Credit {
        self.credits.look(&self.theirs)
    }

    /// A message that takes a receive was sent.
    #[inline(always)]
    pub fn use_credit(&mut self) {
        self.credits.spend();
    }

    /// Publishes our own receives: how many were ever posted, and the least capacity among them.
    #[inline(always)]
    pub fn publish_credits(&mut self, posted: u32, floor: u32) {
        let value = (u64::from(floor) << 32 | u64::from(posted)).min(NO_CREDITS - 1);
        self.ours.store(word::CREDITS, value, Ordering::Release);
        self.notify_blocked();
    }

    /// Our receives cannot be promised.
    pub fn publish_no_credits(&mut self) {
        self.ours.store(word::CREDITS, NO_CREDITS, Ordering::Release);
        self.notify_blocked();
    }

    // --- requests in --------------------------------------------------------------------------

    /// Whether anything at all arrived; two loads of memory that is usually in our cache.
    #[inline(always)]
    pub fn has_news(&self) -> bool {
        self.requests_in.has_news() || self.responses_in.has_news()
    }

    /// Whether a response arrived.
    #[inline(always)]
    pub fn has_response(&self) -> bool {
        self.responses_in.has_news()
    }

    /// The request at the head, decoded. A record that is no request breaks the link.
    #[inline(always)]
    pub fn next_request(&mut self) -> Result<Option<(Request, Record)>, Broken> {
        let Some(record) = self.requests_in.head()? else { return Ok(None) };
        let request = Request::decode(&self.requests_in, &record).ok_or(Broken)?;
        Ok(Some((request, record)))
    }

    /// The record at the head, if it is a SEND in one record with nothing but data. Says nothing
    /// about anything else that may be there.
    #[inline(always)]
    pub fn next_plain_send(&mut self) -> Result<Option<Record>, Broken> {
        let record = self.requests_in.head()?;
        Ok(record.filter(|record| record.extra == 0 && Request::is_plain_send(record.tag)))
    }

    /// Copies payload of the request at the head into our memory.
    #[inline(always)]
    pub fn request_payload(&self, record: &Record, offset: usize, target: UserMemory) {
        self.requests_in.payload(record, offset, target);
    }

    /// Where the payload of the request at the head is, for a copy that is made elsewhere. Valid
    /// while this end is.
    #[inline(always)]
    pub fn request_memory(&self, record: &Record) -> UserMemory {
        self.requests_in.payload_memory(record)
    }

    /// Done with the request at the head.
    #[inline(always)]
    pub fn pass_request(&mut self, record: &Record) {
        self.requests_in.pass(record);
        self.publish_many();
    }

    /// Done with all requests that end at `position` or before.
    pub fn pass_requests_to(&mut self, position: u64) {
        self.requests_in.pass_until(position);
        self.publish_many();
    }

    #[inline(always)]
    fn publish_many(&mut self) {
        if self.requests_in.unpublished() >= self.publish_at {
            self.publish_requests();
        }
    }

    /// Tells the peer what we consumed; call at the end of a batch.
    #[inline(always)]
    pub fn publish_requests(&mut self) {
        if self.requests_in.publish() {
            self.notify_blocked();
        }
    }

    // --- responses ----------------------------------------------------------------------------

    /// Largest payload of one response record.
    pub fn response_payload_max(&self) -> usize {
        self.responses_out.payload_max()
    }

    /// Sends a response. False: no room now. One refusal always finds room, however much else the
    /// peer has not taken: nothing follows it, and a peer that misses it waits until its retries
    /// are over.
    pub fn send_response(
        &mut self,
        response: &Response,
        payload: UserMemory,
    ) -> Result<bool, Broken> {
        let length = payload.len();
        let sent = self.send_response_with(response, length, |place| {
            place.copy_from(payload);
            true
        })?;
        Ok(sent == ResponseOutcome::Sent)
    }

    /// As [`Self::send_response`], with a payload that `fill` copies to its place, if it can.
    pub fn send_response_with(
        &mut self,
        response: &Response,
        length: usize,
        fill: impl FnOnce(UserMemory) -> bool,
    ) -> Result<ResponseOutcome, Broken> {
        let (tag, word, extra) = response.encode();
        let spare = if matches!(response, Response::Nak { .. }) { 0 } else { NAK_ROOM };
        let reserved = self.responses_out.reserve_leaving(extra, length, spare)?;
        let Some(at) = reserved else { return Ok(ResponseOutcome::NoRoom) };
        if extra == 1 {
            self.responses_out.extra(at, 0, word);
        }
        if length > 0 && !fill(self.responses_out.payload_memory(at, extra, length)) {
            return Ok(ResponseOutcome::Unfilled);
        }
        self.responses_out.publish(at, tag, extra, length);
        self.notify();
        Ok(ResponseOutcome::Sent)
    }

    /// The response at the head, decoded.
    #[inline(always)]
    pub fn next_response(&mut self) -> Result<Option<(Response, Record)>, Broken> {
        let Some(record) = self.responses_in.head()? else { return Ok(None) };
        let response = Response::decode(&self.responses_in, &record).ok_or(Broken)?;
        Ok(Some((response, record)))
    }

    /// Copies payload of the response at the head into our memory.
    pub fn response_payload(&self, record: &Record, offset: usize, target: UserMemory) {
        self.responses_in.payload(record, offset, target);
    }

    /// Done with the response at the head.
    pub fn pass_response(&mut self, record: &Record) {
        self.responses_in.pass(record);
        if self.responses_in.publish() {
            self.notify_blocked();
        }
    }

    // --- flags --------------------------------------------------------------------------------

    /// The peer's revocation count.
    #[inline(always)]
    pub fn peer_epoch(&self) -> u64 {
        self.theirs.load(word::EPOCH, Ordering::Acquire)
    }

    /// Our revocation count.
    pub fn epoch(&self) -> u64 {
        self.ours.load(word::EPOCH, Ordering::Relaxed)
    }

    /// Voids every grant we gave to this peer.
    pub fn advance_epoch(&mut self) {
        let epoch = self.epoch();
        self.ours.store(word::EPOCH, epoch.wrapping_add(1), Ordering::SeqCst);
        // Before the pages are copied back.
        fence(Ordering::SeqCst); // SYNC: revoked
    }

    /// Whether the peer receives requests now: attached, and not closed.
    #[inline(always)]
    pub fn peer_is_open(&self) -> bool {
        self.theirs.load(word::STATE, Ordering::Acquire) == state::OPEN
    }

    /// Whether the peer receives no requests any more.
    pub fn peer_has_closed(&self) -> bool {
        self.theirs.load(word::STATE, Ordering::Acquire) == state::CLOSED
    }

    /// Whether the peer's process has ended. Every caller that learned of it in another way is told
    /// so here; a peer that does not announce it tells nothing.
    #[inline(always)]
    pub fn peer_has_died(&self) -> bool {
        self.peer_page.owner_has_died()
    }

    /// We receive requests from now on; a receive that is missing may be waited for by
    /// `rnr_timer` nanoseconds.
    pub fn open(&mut self, rnr_timer: u64) {
        self.ours.store(word::RNR_TIMER, rnr_timer, Ordering::Relaxed);
        self.ours.store(word::STATE, state::OPEN, Ordering::Release);
        self.notify_blocked();
    }

    /// We never receive again.
    pub fn close(&mut self) {
        self.ours.store(word::STATE, state::CLOSED, Ordering::Release);
        self.notify_peer();
    }

    /// The peer's RNR timer in nanoseconds, never more than the specification's longest (655 ms).
    pub fn peer_rnr_timer(&self) -> u64 {
        self.theirs.load(word::RNR_TIMER, Ordering::Relaxed).clamp(10_000, 655_360_000)
    }

    /// Whether the oldest request the peer has not consumed waits there for a receive.
    pub fn peer_lacks_receive(&mut self) -> Result<bool, Broken> {
        let stalled = self.theirs.load(word::RNR, Ordering::Acquire);
        let consumed = self.requests_out.consumed(self.requests_out.position())?;
        Ok(stalled == layout::RNR_VALID | consumed)
    }

    /// The request at the head lacks a receive.
    pub fn report_lack_of_receive(&mut self) {
        self.publish_requests();
        let stalled = layout::RNR_VALID | self.requests_in.position();
        if self.ours.load(word::RNR, Ordering::Relaxed) != stalled {
            self.ours.store(word::RNR, stalled, Ordering::Release);
            self.notify_blocked();
        }
    }
}
