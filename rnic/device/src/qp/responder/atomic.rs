//! Atomics that travel. Executed with the CPU's own atomic instructions, so that they are atomic
//! with mapped ones of other initiators and with the program's own.

use super::{Incoming, Outcome};
use crate::constants::access;
use crate::qp::{Inner, Qp};
use omniverb_link::{Broken, Response};
use omniverb_ring::UserMemory;
use omniverb_terms::{Refusal, Rkey};

impl Inner {
    pub(super) fn serve_atomic(
        &mut self,
        qp: &Qp,
        index: usize,
        address: u64,
        rkey: Rkey,
        execute: impl FnOnce(&UserMemory) -> Option<u64>,
    ) -> Result<Outcome, Broken> {
        let begins = matches!(self.links[index].incoming, Incoming::Idle);
        let original = match self.links[index].incoming {
            // Executed on an earlier turn, exactly once; only the answer is missing.
            Incoming::Answer { original } => original,
            Incoming::Idle => {
                if self.machine.attributes().access_flags & access::REMOTE_ATOMIC == 0
                    || self.machine.attributes().max_dest_rd_atomic == 0
                    || !address.is_multiple_of(8)
                {
                    return Ok(Outcome::Refused(Refusal::InvalidRequest, None));
                }
                let cell = match self.target_written(qp, rkey, access::REMOTE_ATOMIC, address, 8) {
                    Ok((region, memory)) => {
                        region.moved.note(8);
                        memory
                    }
                    Err(refusal) => return Ok(Outcome::Refused(refusal, None)),
                };
                match execute(&cell) {
                    Some(original) => original,
                    // The IOVA is aligned, the memory behind it is not.
                    None => return Ok(Outcome::Refused(Refusal::InvalidRequest, None)),
                }
            }
            _ => return Ok(Outcome::Refused(Refusal::InvalidRequest, None)),
        };
        let link = &mut self.links[index];
        let answer = Response::AtomicResult { original };
        if !link.endpoint.send_response(&answer, UserMemory::EMPTY)? {
            link.incoming = Incoming::Answer { original };
            link.endpoint.set_blocked(true);
            if begins {
                self.come_back(qp); // as for READ
            }
            return Ok(Outcome::Later);
        }
        link.incoming = Incoming::Idle;
        Ok(Outcome::Passed)
    }
}
