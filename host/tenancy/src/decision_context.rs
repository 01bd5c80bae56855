//! Holds the context of every decision: limits, time and timers, randomness, the actions so far.

use crate::accounts::{Account, Quotas};
use crate::action::Action;
use crate::limits::Limits;
use crate::queue_pairs::qp_numbers::Entropy;
use crate::row_keys::SessionId;
use crate::timers::Timers;
use omniverb_session::Message;
use omniverb_terms::Errno;

/// The context of a decision.
pub(crate) struct Context {
    limits: Limits,
    /// The host's account; every other account is below it.
    host: Account,
    pub(crate) entropy: Box<dyn Entropy>,
    /// By which processes tell this daemon from the one before; not zero.
    pub(crate) number: u32,
    pub(crate) timers: Timers,
    /// The latest time that was told.
    now: u64,
    /// Actions decided in this call.
    out: Vec<Action>,
}

impl Context {
    /// Nothing is decided yet, and no time told.
    pub(crate) fn new(limits: Limits, entropy: Box<dyn Entropy>, number: u32) -> Context {
        let (host, timers) = (Account::new(Quotas::of_host(&limits)), Timers::default());
        Context { limits, host, entropy, number, timers, now: 0, out: Vec::new() }
    }

    /// Every maximum of the tables, and times.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The host's account: counts and quotas.
    pub(crate) fn host(&self) -> &Account {
        &self.host
    }

    /// The time is told, in nanoseconds of the monotonic clock; it never goes back.
    pub(crate) fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    /// The latest time that was told.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Adds an action behind those that wait.
    pub(crate) fn act(&mut self, action: Action) {
        self.out.push(action);
    }

    /// Takes the actions.
    pub(crate) fn decided(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.out)
    }

    /// Answers a call.
    pub(crate) fn reply(&mut self, session: SessionId, tag: u64, message: impl Into<Message>) {
        self.act(Action::Reply { session, tag, message: message.into() });
    }

    /// Answers a call that failed.
    pub(crate) fn fail(&mut self, session: SessionId, tag: u64, errno: Errno) {
        self.reply(session, tag, Message::Failed(errno));
    }
}
