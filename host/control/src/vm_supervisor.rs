//! Describes the supervisor of a machine, which can plug more windows into it.

use omniverb_session::pair_window::PlugTrouble;
use omniverb_tenancy::SessionId;

/// A machine's supervisor, as it waits until another window is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MachineSupervisor {
    pub(crate) operator: SessionId,
    /// Its call, while that has no answer.
    pub(crate) tag: Option<u64>,
    /// How many more it would plug in.
    pub(crate) left: u32,
    /// Also another machine's.
    pub(crate) may_join: bool,
    /// It can take one out, too.
    pub(crate) can_take_out: bool,
    /// What went wrong with the last one.
    pub(crate) trouble: Option<PlugTrouble>,
}
