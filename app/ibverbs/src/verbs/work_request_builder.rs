//! Work requests that are collected and posted together at the end, so that an error posts nothing.

use core::ffi::c_int;

use omniverb_abi::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_QP_EX_WITH_BIND_MW, IBV_QP_EX_WITH_FLUSH,
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV,
};
use omniverb_device::{Data, Qp, SendWork, Sge};
use omniverb_ring::UserMemory;
use omniverb_terms::{Errno, Service};

use crate::errno::{outcome, post_error};

/// Requests being built.
#[derive(Default)]
pub(super) struct Builder {
    requests: Vec<RequestInProgress>,
    error: Errno,
}

/// A request being built.
pub(super) struct RequestInProgress {
    pub(super) work: SendWork<'static>,
    /// Where its data are, unless they are inline.
    pub(super) sges: Vec<Sge>,
    /// A copy of its data, if they are inline.
    pub(super) inline: Option<Vec<u8>>,
}

const DATAGRAM: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
const UNRELIABLE: u64 = DATAGRAM
    | IBV_QP_EX_WITH_SEND_WITH_INV
    | IBV_QP_EX_WITH_BIND_MW
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
const RELIABLE: u64 = UNRELIABLE
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_ATOMIC_WRITE
    | IBV_QP_EX_WITH_FLUSH;
/// Windows are bound to queue pairs that serve peers, by requests of theirs: XRC has none. What
/// annex A19 adds is of RC only.
const EXTENDED: u64 = RELIABLE
    & !(IBV_QP_EX_WITH_SEND_WITH_INV
        | IBV_QP_EX_WITH_BIND_MW
        | IBV_QP_EX_WITH_LOCAL_INV
        | IBV_QP_EX_WITH_ATOMIC_WRITE
        | IBV_QP_EX_WITH_FLUSH);

/// Whether a transport has all these operations.
pub(super) fn can_build(service: Service, operations: u64) -> bool {
    let offered = match service {
        Service::Rc => RELIABLE,
        Service::XrcSend => EXTENDED,
        Service::Uc => UNRELIABLE,
        Service::Ud => DATAGRAM,
        Service::XrcRecv => 0,
    };
    operations & !offered == 0
}

impl Builder {
    /// Begins a batch.
    pub(super) fn start(&mut self) {
        self.requests.clear();
        self.error = Errno::NONE;
    }

    /// Adds a request, whose data come later.
    pub(super) fn begin(&mut self, work: SendWork<'static>) {
        self.requests.push(RequestInProgress { work, sges: Vec::new(), inline: None });
    }

    /// Changes the request that is being built; without one, or if it cannot be changed so, the
    /// batch fails.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut RequestInProgress) -> Option<()>) {
        if self.requests.last_mut().and_then(change).is_none() {
            self.error = Errno::EINVAL;
        }
    }

    /// Posts all of them, or none; 0 or errno.
    pub(super) fn complete(&mut self, qp: &Qp) -> c_int {
        match self.error {
            Errno::NONE => self.post(qp),
            errno => errno.raw(),
        }
    }

    fn post(&mut self, qp: &Qp) -> c_int {
        let inline: Vec<[UserMemory; 1]> = self
            .requests
            .iter()
            .map(|request| match &request.inline {
                None => [UserMemory::EMPTY],
                // SAFETY: the bytes live in the builder until the post below returns.
                Some(bytes) => [unsafe { UserMemory::new(bytes.as_ptr() as usize, bytes.len()) }],
            })
            .collect();
        let works: Vec<SendWork<'_>> = self
            .requests
            .iter()
            .zip(&inline)
            .map(|(request, inline)| {
                let data = match request.inline {
                    Some(_) => Data::Inline(inline),
                    None => Data::Gather(&request.sges),
                };
                SendWork { data, ..request.work }
            })
            .collect();
        outcome(qp.post_all(&works).map_err(post_error))
    }
}
