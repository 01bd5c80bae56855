//! States wishes of queue pairs, times them, and drops them.

use super::queue_pair::Wish;
use super::queue_pair_table::QueuePairs;
use crate::decision_context::Context;
use crate::timers::Timer;
use omniverb_session::body::ConnectQp;
use omniverb_terms::Qpn;

impl QueuePairs {
    /// Writes down where a queue pair wants to go; `survivor_until` as in [`Wish`].
    pub(crate) fn note_wish(
        &mut self,
        context: &mut Context,
        m: &ConnectQp,
        survivor_until: Option<u64>,
    ) {
        self.clear_wish_timer(context, m.qpn, m.dest_qpn);
        let wish = Wish::new(m, survivor_until);
        self.add_wish(m.qpn, m.dest_qpn, wish);
    }

    pub(crate) fn set_wish_timer(&mut self, context: &mut Context, qpn: Qpn, peer: Qpn, at: u64) {
        if self.wish(qpn, peer).is_some() {
            context.timers.set(Timer::Wish { qpn, peer }, at);
        }
    }

    pub(crate) fn clear_wish_timer(&mut self, context: &mut Context, qpn: Qpn, peer: Qpn) {
        context.timers.clear(Timer::Wish { qpn, peer });
    }

    pub(crate) fn drop_wish(&mut self, context: &mut Context, qpn: Qpn, peer: Qpn) {
        self.clear_wish_timer(context, qpn, peer);
        self.remove_wish(qpn, peer);
    }

    /// A wish cannot come true: its peer does not exist any more. The first caller's reason counts.
    pub(crate) fn peer_is_gone(
        &mut self,
        context: &mut Context,
        qpn: Qpn,
        peer: Qpn,
        reason: u32,
        now: u64,
    ) {
        let Some(wish) = self.wish_mut(qpn, peer) else { return };
        // A queue pair announced after a restart has its own time limit; its peer may yet come
        // back.
        if wish.is_survivor() || wish.gone.is_some() {
            return;
        }
        wish.gone = Some(reason);
        self.set_wish_timer(
            context,
            qpn,
            peer,
            now.saturating_add(context.limits().absence_time_ns),
        );
    }

    /// Writes down that a link survived, if its other end says so before long.
    pub(crate) fn wait_for(&mut self, context: &mut Context, m: &ConnectQp, now: u64) {
        let deadline = now.saturating_add(context.limits().resume_time_ns);
        self.note_wish(context, m, Some(deadline));
        self.set_wish_timer(context, m.qpn, m.dest_qpn, deadline);
    }
}
