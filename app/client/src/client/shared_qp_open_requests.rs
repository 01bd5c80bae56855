//! Others open queue pairs of this process: what the thread of a domain does for them, until they
//! are connected (`open_shared_qp.rs`).

use super::Client;
use crate::shared_qp::OpenerService;
use crate::xrc_domain_discovery::{ASKED_MAX, DomainMember};
use omniverb_session::body::{OpenQp, QpOpened};
use omniverb_sys::{autobind_socket, clock};
use omniverb_terms::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Answers whose statements stand at a time; later openers then ask again.
const ANSWERED_MAX: usize = 64;

/// What a domain's thread has said to openers of queue pairs of this process.
#[derive(Default)]
pub(super) struct AnsweredOpeners(Vec<AnsweredOpener>);

struct AnsweredOpener {
    /// Its opener has heard of it, or is gone.
    settled: Arc<AtomicBool>,
    statement: Option<u64>,
    since: u64,
}

impl AnsweredOpeners {
    /// Whether statements stand that are to be taken back.
    pub(super) fn are_some(&self) -> bool {
        !self.0.is_empty()
    }

    /// Takes back what all openers have heard of.
    pub(super) fn prune(&mut self, place: &DomainMember) {
        let now = clock::now();
        self.0.retain(|answered| {
            let is_late = now.saturating_sub(answered.since) >= ASKED_MAX;
            let stays = !is_late && !answered.settled.load(Ordering::Acquire);
            if !stays {
                place.take_back(answered.statement);
            }
            stays
        });
    }

    /// Another process opens a queue pair, which may be one of ours.
    pub(super) fn serve(&mut self, client: &Arc<Client>, place: &DomainMember, ask: OpenQp) {
        let OpenQp { qpn, door, part, .. } = ask;
        if part == place.part.number || !place.is_stated(ask.statement()) {
            return;
        }
        let answer = |by, errno| QpOpened { qpn, door, by, errno };
        let receivers = place.part.receivers.upgrade();
        let Some(receivers) = receivers.filter(|receivers| receivers.hold(qpn)) else {
            place.tell(part, &answer(0, Errno::EINVAL).into());
            return;
        };
        let let_go = || {
            if let Some(qp) = receivers.let_go(qpn) {
                client.destroy_qp(&qp);
            }
        };
        self.prune(place);
        if self.0.len() >= ANSWERED_MAX {
            return let_go();
        }
        // An opener that asks again may be connected already: then its listener is gone.
        let Ok((socket, by)) = autobind_socket::connect(door) else { return let_go() };
        if !place.is_stated(ask.statement()) {
            return let_go();
        }
        let known = place.part.receivers.clone();
        let attendant: Weak<dyn OpenerService> = client.me.clone();
        let Some(opener) = client.openers.add(socket, qpn, known, attendant) else {
            place.tell(part, &answer(0, Errno::ENOMEM).into());
            return let_go();
        };
        let answer = answer(by, Errno::NONE);
        let statement = answer.statement(place.part.number);
        if client.openers.listen(&client.service, &opener).is_err()
            || place.state(statement).is_err()
        {
            return client.end_opener(opener);
        }
        let settled = opener.settled();
        self.0.push(AnsweredOpener { settled, statement, since: clock::now() });
        place.tell(part, &answer.into());
    }
}
