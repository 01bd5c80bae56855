//! Keeps the state of a queue pair, its attributes, and what goes with a state until the next one.

use super::qp_attributes::{QpAttributes, QpMask, State, transition_is_valid};
use omniverb_terms::Service;

/// What happens when nothing is on its way any more in SQD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhenDrained {
    /// The application is told by an asynchronous event, once.
    Notify,
    /// It is told of nothing.
    Silent,
}

/// State and attributes of a QP.
#[derive(Default)]
pub(crate) struct StateMachine {
    state: State,
    attributes: QpAttributes,
    /// A message has come.
    established: bool,
    /// Its peer was granted something, or is about to be.
    lends: bool,
    /// SQD was entered with the wish to be told when nothing is on its way any more.
    notify_drained: bool,
}

impl StateMachine {
    /// The state it is in.
    #[inline(always)]
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Its attributes, as they were set last.
    #[inline(always)]
    pub(crate) fn attributes(&self) -> &QpAttributes {
        &self.attributes
    }

    /// Whether the state is one in which messages are taken.
    #[inline(always)]
    pub(crate) fn receives_messages(&self) -> bool {
        matches!(self.state, State::Rtr | State::Rts | State::Sqd | State::Sqe)
    }

    /// Whether the state is one in which the sending half is set up.
    pub(crate) fn is_ready_to_send(&self) -> bool {
        matches!(self.state, State::Rts | State::Sqd | State::Sqe)
    }

    /// Whether it may go to a state with these attributes; `believed`: where the application
    /// believes it to be.
    pub(super) fn may_go(
        &self,
        service: Service,
        to: State,
        mask: QpMask,
        believed: Option<State>,
    ) -> bool {
        let agreed = believed.is_none_or(|state| state == self.state);
        agreed && transition_is_valid(service, self.state, to, mask)
    }

    /// Takes over those attributes that the mask names.
    pub(super) fn set_attributes(&mut self, mask: QpMask, given: &QpAttributes) {
        let attributes = &mut self.attributes;
        macro_rules! take {
            ($($flag:ident $field:ident),* $(,)?) => {
                $(if mask.contains(QpMask::$flag) { attributes.$field = given.$field; })*
            };
        }
        take!(
            PKEY_INDEX pkey_index, PORT port, ACCESS_FLAGS access_flags, QKEY qkey,
            PATH_MTU path_mtu, DEST_QPN dest_qpn, RQ_PSN rq_psn, SQ_PSN sq_psn,
            MAX_QP_RD_ATOMIC max_rd_atomic, MAX_DEST_RD_ATOMIC max_dest_rd_atomic,
            MIN_RNR_TIMER min_rnr_timer, TIMEOUT timeout, RETRY_CNT retry_cnt,
            RNR_RETRY rnr_retry, AV route,
        );
    }

    /// Goes to a state.
    pub(super) fn go(&mut self, to: State) {
        self.state = to;
    }

    /// Goes to RESET; nothing is left of what it was.
    pub(super) fn reset(&mut self) {
        *self = StateMachine::default();
    }

    /// A message has come. True: it is the first.
    #[inline(always)]
    pub(super) fn establish(&mut self) -> bool {
        !std::mem::replace(&mut self.established, true)
    }

    /// Something is to be granted to its peer. Says whether the state allows it still.
    pub(super) fn lend(&mut self) -> bool {
        let lends = !matches!(self.state, State::Reset | State::Err);
        self.lends |= lends;
        lends
    }

    /// Whether something was granted to its peer; once.
    pub(super) fn take_lent(&mut self) -> bool {
        std::mem::take(&mut self.lends)
    }

    /// SQD is entered.
    pub(super) fn begin_draining(&mut self, when: WhenDrained) {
        self.notify_drained = when == WhenDrained::Notify;
    }

    /// Nothing is on its way: whether the application is to be told of it now, which is once.
    #[inline(always)]
    pub(super) fn take_drained_event(&mut self) -> bool {
        let tell = self.state == State::Sqd && self.notify_drained;
        self.notify_drained &= !tell;
        tell
    }
}
