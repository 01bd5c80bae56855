//! QP attributes and which transition needs which (InfiniBand specification 11.2.5.2, table 96).

use omniverb_link::qp_attributes_for_engine::{GlobalRoute, ReceiveAttributes, SendAttributes};
use omniverb_terms::{Psn, Qkey, Qpn, Service};

/// QP states, numbered as `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum State {
    #[default]
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Sqd = 4,
    Sqe = 5,
    Err = 6,
}

impl State {
    /// From the application's number.
    pub fn from_number(number: u32) -> Option<State> {
        use State::*;
        [Reset, Init, Rtr, Rts, Sqd, Sqe, Err].into_iter().find(|s| *s as u32 == number)
    }
}

bitflags::bitflags! {
    /// `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct QpMask: u32 {
        #[allow(missing_docs)] const STATE = 1 << 0;
        #[allow(missing_docs)] const CUR_STATE = 1 << 1;
        #[allow(missing_docs)] const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        #[allow(missing_docs)] const ACCESS_FLAGS = 1 << 3;
        #[allow(missing_docs)] const PKEY_INDEX = 1 << 4;
        #[allow(missing_docs)] const PORT = 1 << 5;
        #[allow(missing_docs)] const QKEY = 1 << 6;
        #[allow(missing_docs)] const AV = 1 << 7;
        #[allow(missing_docs)] const PATH_MTU = 1 << 8;
        #[allow(missing_docs)] const TIMEOUT = 1 << 9;
        #[allow(missing_docs)] const RETRY_CNT = 1 << 10;
        #[allow(missing_docs)] const RNR_RETRY = 1 << 11;
        #[allow(missing_docs)] const RQ_PSN = 1 << 12;
        #[allow(missing_docs)] const MAX_QP_RD_ATOMIC = 1 << 13;
        #[allow(missing_docs)] const ALT_PATH = 1 << 14;
        #[allow(missing_docs)] const MIN_RNR_TIMER = 1 << 15;
        #[allow(missing_docs)] const SQ_PSN = 1 << 16;
        #[allow(missing_docs)] const MAX_DEST_RD_ATOMIC = 1 << 17;
        #[allow(missing_docs)] const PATH_MIG_STATE = 1 << 18;
        #[allow(missing_docs)] const CAP = 1 << 19;
        #[allow(missing_docs)] const DEST_QPN = 1 << 20;
        #[allow(missing_docs)] const RATE_LIMIT = 1 << 25;
    }
}

impl QpMask {
    /// The attributes that count for a service. One end of XRC has no responder, the other no
    /// requester: Linux takes the bits of those out before a driver looks at the mask
    /// (`modify_qp_mask()` of `uverbs_cmd.c`), and programs set them.
    #[must_use]
    pub fn relevant_to(self, service: Service) -> QpMask {
        match service {
            Service::XrcSend => self - (QpMask::MAX_DEST_RD_ATOMIC | QpMask::MIN_RNR_TIMER),
            Service::XrcRecv => {
                self - (QpMask::MAX_QP_RD_ATOMIC | QpMask::RETRY_CNT | QpMask::RNR_RETRY)
            }
            _ => self,
        }
    }
}

/// What `ibv_modify_qp` sets and `ibv_query_qp` tells.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // named as in struct ibv_qp_attr
pub struct QpAttributes {
    pub pkey_index: u16,
    pub port: u8,
    pub access_flags: u32,
    pub qkey: Qkey,
    pub path_mtu: u32,
    pub dest_qpn: Qpn,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    /// Of the address vector: what matters on a network.
    pub route: GlobalRoute,
}

impl QpAttributes {
    /// The responder's wait for a receive, in nanoseconds (specification table 46).
    pub fn rnr_timer(&self) -> u64 {
        const TEN_MICROSECONDS: [u64; 32] = [
            65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
            1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
        ];
        TEN_MICROSECONDS[usize::from(self.min_rnr_timer & 31)] * 10_000
    }

    /// How long a requester waits for a silent peer in all, in nanoseconds; `None`: for ever.
    /// The specification (9.7.6.1.3) lets each try last between one and four times the timeout.
    pub fn silence_max(&self) -> Option<u64> {
        match self.timeout & 31 {
            0 => None,
            exponent => Some((4096u64 << exponent) * (u64::from(self.retry_cnt & 7) + 1)),
        }
    }
}

/// What a far end on a network is to know of a QP. A UD QP has no path of its own; its messages are
/// as long as the longest path takes.
impl From<&QpAttributes> for ReceiveAttributes {
    fn from(of: &QpAttributes) -> ReceiveAttributes {
        const LONGEST: u8 = 5;
        let path_mtu = if (1..=5).contains(&of.path_mtu) { of.path_mtu as u8 } else { LONGEST };
        ReceiveAttributes {
            rq_psn: Psn::new(of.rq_psn),
            path_mtu,
            min_rnr_timer: of.min_rnr_timer & 31,
            max_dest_rd_atomic: of.max_dest_rd_atomic,
        }
    }
}

impl From<&QpAttributes> for SendAttributes {
    fn from(of: &QpAttributes) -> SendAttributes {
        SendAttributes {
            sq_psn: Psn::new(of.sq_psn),
            timeout: of.timeout & 31,
            retry_count: of.retry_cnt & 7,
            rnr_retry: of.rnr_retry & 7,
            max_rd_atomic: of.max_rd_atomic,
        }
    }
}

/// Attributes that a transition must and may carry. `None`: no such transition.
fn table(service: Service, from: State, to: State) -> Option<(QpMask, QpMask)> {
    use QpMask as M;
    use Service::{Rc as RC, Uc as UC, Ud as UD, XrcRecv as TGT, XrcSend as INI};
    use State::*;
    let none = M::empty();
    let address = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let answers = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let retries = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    let migration = M::ALT_PATH | M::PATH_MIG_STATE;
    Some(match (service, from, to) {
        (_, Reset, Err) => return None,
        (_, _, Reset | Err) => (none, none),
        (RC | UC | INI | TGT, Reset, Init) => (M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS, none),
        (UD, Reset, Init) => (M::PKEY_INDEX | M::PORT | M::QKEY, none),
        (RC | UC | INI | TGT, Init, Init) => (none, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (UD, Init, Init) => (none, M::PKEY_INDEX | M::PORT | M::QKEY),
        (RC | TGT, Init, Rtr) => (address | answers, M::ALT_PATH | M::ACCESS_FLAGS | M::PKEY_INDEX),
        (UC | INI, Init, Rtr) => (address, M::ALT_PATH | M::ACCESS_FLAGS | M::PKEY_INDEX),
        (UD, Init, Rtr) => (none, M::PKEY_INDEX | M::QKEY),
        (RC, Rtr, Rts) => {
            (retries | M::SQ_PSN, M::CUR_STATE | M::ACCESS_FLAGS | M::MIN_RNR_TIMER | migration)
        }
        (INI, Rtr, Rts) => (retries | M::SQ_PSN, M::CUR_STATE | M::ACCESS_FLAGS | migration),
        (TGT, Rtr, Rts) => {
            (M::TIMEOUT | M::SQ_PSN, M::CUR_STATE | M::ACCESS_FLAGS | M::MIN_RNR_TIMER | migration)
        }
        (UC, Rtr, Rts) => (M::SQ_PSN, M::CUR_STATE | M::ACCESS_FLAGS | migration),
        (UD, Rtr, Rts) => (M::SQ_PSN, M::CUR_STATE | M::QKEY),
        (RC | TGT, Rts | Sqd, Rts) => {
            (none, M::CUR_STATE | M::ACCESS_FLAGS | M::MIN_RNR_TIMER | migration)
        }
        (UC | INI, Rts | Sqd, Rts) => (none, M::CUR_STATE | M::ACCESS_FLAGS | migration),
        (UD, Rts | Sqd, Rts) => (none, M::CUR_STATE | M::QKEY),
        (_, Rts, Sqd) => (none, M::EN_SQD_ASYNC_NOTIFY),
        (RC, Sqd, Sqd) => (
            none,
            M::PORT | M::AV | retries | answers | migration | M::ACCESS_FLAGS | M::PKEY_INDEX,
        ),
        (INI, Sqd, Sqd) => {
            (none, M::PORT | M::AV | retries | migration | M::ACCESS_FLAGS | M::PKEY_INDEX)
        }
        (TGT, Sqd, Sqd) => (
            none,
            M::PORT | M::AV | M::TIMEOUT | answers | migration | M::ACCESS_FLAGS | M::PKEY_INDEX,
        ),
        (UC, Sqd, Sqd) => (none, M::AV | migration | M::ACCESS_FLAGS | M::PKEY_INDEX),
        (UD, Sqd, Sqd) => (none, M::PKEY_INDEX | M::QKEY),
        (UC, Sqe, Rts) => (none, M::CUR_STATE | M::ACCESS_FLAGS),
        (UD, Sqe, Rts) => (none, M::CUR_STATE | M::QKEY),
        _ => return None,
    })
}

/// Whether `mask` is right for going from `from` to `to`.
pub fn transition_is_valid(service: Service, from: State, to: State, mask: QpMask) -> bool {
    let Some((required, optional)) = table(service, from, to) else { return false };
    // The rate of a QP is a hint that this device does not limit by.
    let given = mask - QpMask::STATE - QpMask::RATE_LIMIT;
    given.contains(required) && (required | optional).contains(given)
}
