//! Serves a READ that travels: the region's bytes go into the response ring.

use super::{InboundState, Outcome};
use crate::limits::{CHUNK, MESSAGE_MAX};
use crate::qp::{Inner, Qp};
use crate::verbs_constants::access;
use omniverb_link::{Broken, Response, ResponseOutcome};
use omniverb_ring::UserMemory;
use omniverb_terms::{Refusal, Rkey};

impl Inner {
    /// A READ that was answered before. A network may bring it when what it read is rightly gone:
    /// that is no error of the peer's (9.9.3 has errors found in duplicates ignored), and no
    /// connection ends. A peer that reads without an engine between repeats nothing; it would guess
    /// keys so.
    #[cold]
    pub(super) fn serve_read_again(
        &mut self,
        qp: &Qp,
        index: usize,
        address: u64,
        rkey: Rkey,
        length: u64,
    ) -> Result<Outcome, Broken> {
        if !self.links[index].peer.is_beyond_engine() {
            return Err(Broken);
        }
        let outcome = self.serve_read(qp, index, address, rkey, length)?;
        let Outcome::Refused(..) = outcome else { return Ok(outcome) };
        let link = &mut self.links[index];
        let sent = link.read_sent();
        if !link.endpoint.send_response(&Response::Gone, UserMemory::EMPTY)? {
            // As for READ data: the peer says when there is room.
            link.suspend_read(sent.unwrap_or(0));
            if link.endpoint.set_blocked(true) || sent.is_none() {
                qp.come_back_later();
            }
            return Ok(Outcome::Later);
        }
        if sent.is_some() {
            link.end_read();
        }
        Ok(Outcome::Passed)
    }

    pub(super) fn serve_read(
        &mut self,
        qp: &Qp,
        index: usize,
        address: u64,
        rkey: Rkey,
        length: u64,
    ) -> Result<Outcome, Broken> {
        let link = &self.links[index];
        // A peer on a network asks for an earlier READ again while it is inside a message.
        let interjected = link.incoming.is_inside_message();
        if !interjected && !matches!(link.incoming, InboundState::Idle | InboundState::Read { .. })
        {
            return Ok(Outcome::Refused(Refusal::InvalidRequest, None));
        }
        let begins = link.read_sent().is_none();
        let mut sent = link.read_sent().unwrap_or(0);
        if self.machine.attributes().access_flags & access::REMOTE_READ == 0
            || self.machine.attributes().max_dest_rd_atomic == 0
            || length > MESSAGE_MAX
        {
            return Ok(Outcome::Refused(Refusal::InvalidRequest, None));
        }
        let memory = if length == 0 {
            UserMemory::EMPTY // a zero-length READ checks no key (C9-88)
        } else {
            match self.remote_access(qp).target(rkey, access::REMOTE_READ, address, length) {
                Ok((region, memory)) => {
                    if begins {
                        region.moved.note(length);
                    }
                    memory
                }
                Err(refusal) => return Ok(Outcome::Refused(refusal, None)),
            }
        };
        let link = &mut self.links[index];
        // The record is checked anew on every turn, so a peer that rewrote it meanwhile may have
        // shortened the READ below what is out already.
        if sent > length {
            return Err(Broken);
        }
        let mut later = begins;
        loop {
            let chunk = (length - sent).min(CHUNK.min(link.endpoint.response_payload_max()) as u64);
            let last = sent + chunk == length;
            let part = memory.skip(sent as usize).first(chunk as usize);
            let fetch = |place| qp.shared.host.fetch(part, place);
            let answer = Response::ReadData { last };
            let answered = link.endpoint.send_response_with(&answer, part.len(), fetch)?;
            if answered == ResponseOutcome::Unfilled {
                return Ok(Outcome::Refused(Refusal::RemoteAccess, None));
            }
            if answered == ResponseOutcome::NoRoom {
                link.suspend_read(sent);
                // The peer may have made room without having seen that we wait for it.
                if link.endpoint.set_blocked(true) {
                    later = true;
                    continue;
                }
                if later {
                    qp.come_back_later();
                }
                return Ok(Outcome::Later);
            }
            sent += chunk;
            if last {
                link.end_read();
                return Ok(Outcome::Passed);
            }
        }
    }
}
