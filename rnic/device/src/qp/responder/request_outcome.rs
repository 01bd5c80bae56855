//! Names what can become of a request that the responder looks at.

use crate::receive_ring::Receive;
use omniverb_terms::Refusal;

/// What became of the request at the head.
pub(crate) enum Outcome {
    /// Done, take it off.
    Passed,
    /// So many are done, and off.
    Several(u8),
    /// It stays until something else happens.
    Later,
    /// Refused: the QP fails. The receive it took, if any, completes with the given status. Boxed,
    /// so that the usual outcomes are one byte.
    Refused(Refusal, Option<Box<(Receive, u32)>>),
}
