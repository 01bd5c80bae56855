//! Requests for SRQs that another process of an XRC domain has: how the two come together.
//!
//! The process whose queue pair receives makes a hidden one that sends, and asks the process that
//! has the part for one that receives; the daemon links them as it does any two (both name each
//! other), and the link serves the first queue pair (`rnic/device/src/qp/xrc_relay_table.rs`). Both
//! state of the domain's file which two they mean, and is heard only from the socket of its part:
//! so nobody without the file has a part in it, nor a third one that has. All of that is done by a
//! thread for each domain that is in use so, which waits for the daemon, and for a file system that
//! asks a server about locks.
//!
//! What became of a link the daemon tells, as of others: whoever is left lets go of its queue pair.

use super::Client;
use super::shared_qp_open_requests::AnsweredOpeners;
use super::xrc_hidden_qps::{receiver, sender};
use crate::daemon_caller_trait::DaemonCaller;
use crate::deferred_daemon_calls::DeferredCall;
use crate::queue_pair_records::Connection;
use crate::signal_free_thread::spawn_quietly;
use crate::xrc_domain_discovery::{
    ASKED_MAX, DomainMember, DomainMessage, DomainPart, PAUSE, SendOutcome,
};
use omniverb_device::qp_attributes::State;
use omniverb_device::{Domain, Qp, QpAttributes, QpMask};
use omniverb_session::body::{HandOver, HandedOver};
use omniverb_sys::clock;
use omniverb_terms::{Errno, Qpn};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Ways that are looked for at a time; others wait.
const ASKING_MAX: usize = 64;
/// Others' queue pairs that are waited for at a time; who asks then is not heard, and asks again.
const UNLINKED_MAX: usize = 64;
/// Others' queue pairs that are served at a time: who has the domain may ask, and is not to use up
/// what the program may make.
const SERVING_MAX: usize = 1024;
const TICK: Duration = Duration::from_millis(50);
/// How long an answer stands of a queue pair that is linked already, in nanoseconds. By an engine
/// one end may be linked before the other has heard of it.
const STANDS: u64 = 1_000_000_000;

/// That this process can be found by others of a domain, until this is dropped.
pub struct Membership {
    pub(super) client: Arc<Client>,
    pub(super) place: Arc<DomainMember>,
}

impl Membership {
    /// The client of the process that has this part of the domain.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.client.is_ours() {
            self.client.places.remove(&self.place);
            self.place.end();
        } else {
            // A forked child: the files are its parent's, and the thread is not here.
            std::mem::forget(self.place.clone());
        }
    }
}

/// A way that is looked for.
struct PendingHandOver {
    front: Arc<Qp>,
    /// The hidden queue pair whose link it will be.
    by: Arc<Qp>,
    message: HandOver,
    /// The other process's, which it is to be connected with.
    peer: Option<Qpn>,
    /// When it was begun, is asked for next, and how long the pause is then.
    since: u64,
    at: u64,
    pause: u64,
}

/// A queue pair that receives for another process's, or that there is none.
struct ServedHandOver {
    from: Qpn,
    by: Option<Arc<Qp>>,
    since: u64,
    linked: bool,
    /// It is stated, since then.
    stated: Option<u64>,
}

impl ServedHandOver {
    /// It is not stated any more.
    fn take_back(&mut self, place: &DomainMember) {
        if self.stated.take().is_some() {
            place.take_back(self.statement());
        }
    }

    fn statement(&self) -> Option<u64> {
        let by = self.by.as_ref().map_or(Qpn(0), |by| by.number);
        HandedOver { from: self.from, by }.statement()
    }
}

/// What the thread of a domain has in hand.
#[derive(Default)]
struct HandOvers {
    asking: Vec<PendingHandOver>,
    serving: Vec<ServedHandOver>,
    openings: AnsweredOpeners,
}

impl Client {
    /// Others who have the domain of a file may hand requests over to this process from now on,
    /// and it to them.
    ///
    /// # Errors
    /// errno: `EMFILE`, `EIO` in a forked child.
    pub fn join_domain(
        self: &Arc<Self>,
        domain: &Arc<Domain>,
        part: DomainPart,
    ) -> Result<Membership, Errno> {
        if !self.is_ours() {
            return Err(Errno::EIO);
        }
        let place = DomainMember::new(part, domain)?;
        self.places.add(place.clone());
        // Others may ask from now on, and are to hear that there is nothing. Without a thread they
        // ask in vain, until there is one.
        let _ = serve_domain(&self.me, &place);
        Ok(Membership { client: self.clone(), place })
    }

    /// There is an SRQ or a queue pair in a domain: others may ask for it.
    pub fn expect_hand_overs(self: &Arc<Self>, domain: &Arc<Domain>) {
        if let Some(place) = self.places.of(domain) {
            let _ = self.start_progress();
            // Without a thread others ask in vain.
            let _ = serve_domain(&self.me, &place);
        }
    }

    /// A queue pair has requests for another part of its domain.
    pub(super) fn hand_over(&self, qpn: Qpn, part: u32) {
        let Some(front) = self.qps.get(qpn) else { return };
        let place = front.domain().and_then(|domain| self.places.of(&domain));
        match place.filter(|place| serve_domain(&self.me, place).is_ok()) {
            Some(place) => place.wish(qpn, part),
            None => front.no_way(part),
        }
    }

    /// A hidden queue pair is of no use any more.
    pub(super) fn discard(&self, qpn: Qpn) {
        if let Some(qp) = self.qps.get(qpn).filter(|qp| qp.is_hidden()) {
            // A message that had begun ends with an error.
            let _ = qp.modify(QpMask::STATE, State::Err, &QpAttributes::default(), None);
            // Its link is its front's, which is to let go of it before another one has the memory.
            if let Some(Some((front, _))) = qp.front() {
                front.relay_ended(qpn);
            }
            self.destroy_qp(&qp);
        }
    }
}

/// Starts the thread of a domain, if it does not run.
pub(super) fn serve_domain(client: &Weak<Client>, place: &Arc<DomainMember>) -> Result<(), Errno> {
    let client = client.clone();
    place.serve(|place, attendance| {
        spawn_quietly("omniverb-xrc", move || {
            run(&client, &place);
            drop(place);
            drop(attendance);
        })
    })
}

fn run(client: &Weak<Client>, place: &Arc<DomainMember>) {
    let mut desk = HandOvers::default();
    place.begin();
    while !place.is_over() {
        // Wishes may be left that there was no room for.
        let again = desk.is_waiting() || place.has_wishes();
        place.wait(again.then_some(TICK));
        let Some(client) = client.upgrade() else { break };
        desk.prune(&client, place);
        // Each of these may take as long as a call does.
        for heard in place.hear() {
            match heard {
                _ if place.is_over() => break,
                DomainMessage::Ask(ask) => desk.serve(&client, place, &ask),
                DomainMessage::Answer(answer, part) => desk.answered(&client, place, &answer, part),
                DomainMessage::Open(ask) => desk.openings.serve(&client, place, ask),
                DomainMessage::Opened(answer, part) => place.answer(answer, part),
            }
        }
        let room = ASKING_MAX.saturating_sub(desk.asking.len());
        for (front, part) in place.take_wishes(room) {
            match place.is_over() {
                true => give_up_wish(&client, front, part),
                false => desk.ask(&client, place, front, part),
            }
        }
        desk.go_on(&client, place);
        desk.openings.prune(place);
    }
    if let Some(client) = client.upgrade() {
        desk.give_up(&client);
        for (front, part) in place.take_wishes(usize::MAX) {
            give_up_wish(&client, front, part);
        }
    }
}

/// It is not looked for any more.
fn give_up_wish(client: &Client, front: Qpn, part: u32) {
    if let Some(front) = client.qps.get(front) {
        front.no_way(part);
    }
}

impl HandOvers {
    /// Whether something is to be looked at again in a moment.
    fn is_waiting(&self) -> bool {
        let is_open = |serving: &ServedHandOver| !serving.linked || serving.stated.is_some();
        let serving = || self.serving.iter().any(is_open);
        !self.asking.is_empty() || serving() || self.openings.are_some()
    }

    /// Whether no more are served now.
    fn is_full(&self) -> bool {
        let unlinked = self.serving.iter().filter(|serving| !serving.linked).count();
        unlinked >= UNLINKED_MAX || self.serving.len() >= SERVING_MAX
    }

    /// Forgets those whose link has ended, and refusals that all processes have heard of.
    fn prune(&mut self, client: &Client, place: &DomainMember) {
        let now = clock::now();
        self.serving.retain_mut(|serving| {
            let stays = match &serving.by {
                Some(by) => client.qps.get(by.number).is_some(),
                None => now.saturating_sub(serving.since) < ASKED_MAX,
            };
            if !stays {
                serving.take_back(place);
            }
            stays
        });
    }

    /// Begins to look for the way to a part.
    fn ask(&mut self, client: &Client, place: &DomainMember, front: Qpn, part: u32) {
        let Some(front) = client.qps.get(front).filter(|front| front.wants_way(part)) else {
            return;
        };
        let Some(connection) = client.qps.connection(front.number) else {
            return front.no_way(part);
        };
        let Ok(by) = sender(client, &front, part) else { return front.no_way(part) };
        let message = HandOver {
            from: by.number,
            front: front.number,
            sender: connection.dest_qpn,
            part: place.part.number,
            to: part,
            reserved: 0,
            gid: connection.sgid,
        };
        if place.state(message.statement()).is_err() {
            client.defer(DeferredCall::Discard { qpn: by.number });
            return front.no_way(part);
        }
        let (since, pause) = (clock::now(), PAUSE.0);
        self.asking.push(PendingHandOver {
            front,
            by,
            message,
            peer: None,
            since,
            at: since,
            pause,
        });
    }

    /// Another process says which queue pair receives for ours.
    fn answered(&mut self, client: &Client, place: &DomainMember, answer: &HandedOver, part: u32) {
        let is_it =
            |asking: &PendingHandOver| asking.by.number == answer.from && asking.message.to == part;
        let Some(at) = self.asking.iter().position(is_it) else { return };
        if self.asking[at].peer == Some(answer.by) || !place.is_stated(answer.statement()) {
            return;
        }
        if answer.by == Qpn(0) {
            return self.asking.swap_remove(at).fail(client, place);
        }
        let asking = &mut self.asking[at];
        let (dgid, sgid) = (asking.message.gid, asking.message.gid);
        let connection = Connection { dgid, sgid, dest_qpn: answer.by };
        // If not, the answer will come again.
        if client.qps.connect_by(client, &asking.by, connection).is_ok() {
            asking.peer = Some(answer.by);
        }
    }

    /// Another process has requests for SRQs of ours.
    fn serve(&mut self, client: &Arc<Client>, place: &DomainMember, ask: &HandOver) {
        if ask.to != place.part.number || !place.is_stated(ask.statement()) {
            return;
        }
        let known = self.serving.iter().position(|serving| serving.from == ask.from);
        let at = match known {
            Some(at) => at,
            None if self.is_full() => return,
            None => {
                let by = receiver(client, place, ask).ok();
                let (from, since, stated) = (ask.from, clock::now(), None);
                self.serving.push(ServedHandOver { from, by, since, linked: false, stated });
                self.serving.len() - 1
            }
        };
        let by = self.serving[at].by.as_ref().map_or(Qpn(0), |by| by.number);
        let answer = HandedOver { from: ask.from, by };
        if place.state(answer.statement()).is_ok() {
            self.serving[at].stated = Some(clock::now());
            place.tell(ask.part, &answer.into());
        }
    }

    /// Asks again, and gives up what takes too long.
    fn go_on(&mut self, client: &Client, place: &DomainMember) {
        let now = clock::now();
        let (open, over): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.asking).into_iter().partition(|asking| asking.is_open());
        for asking in over {
            place.take_back(asking.message.statement());
            if !asking.front.is_relayed_by(asking.by.number) {
                client.defer(DeferredCall::Discard { qpn: asking.by.number });
            }
        }
        for mut asking in open {
            let late = now.saturating_sub(asking.since) >= ASKED_MAX;
            if late || client.qps.get(asking.by.number).is_none() {
                asking.fail(client, place);
                continue;
            }
            if now >= asking.at {
                // The program may have closed another descriptor of the file.
                let _ = place.state(asking.message.statement());
                if place.tell(asking.message.to, &asking.message.into()) == SendOutcome::Nobody {
                    asking.fail(client, place);
                    continue;
                }
                asking.at = now + asking.pause;
                asking.pause = (2 * asking.pause).min(PAUSE.1);
            }
            self.asking.push(asking);
        }
        for serving in &mut self.serving {
            let Some(by) = &serving.by else { continue };
            let linked = serving.linked || !by.peers().is_empty();
            let late = !linked && now.saturating_sub(serving.since) >= ASKED_MAX;
            if late {
                client.defer(DeferredCall::Discard { qpn: by.number });
            }
            serving.linked = linked;
            let stood = |at: u64| now.saturating_sub(at) >= STANDS;
            if late || linked && serving.stated.is_some_and(stood) {
                serving.take_back(place);
            }
        }
    }

    /// The domain is closed: no process is served here any more. What was stated goes with the
    /// file.
    fn give_up(self, client: &Client) {
        for asking in self.asking {
            asking.front.no_way(asking.message.to);
            client.defer(DeferredCall::Discard { qpn: asking.by.number });
        }
        for serving in self.serving {
            if let Some(by) = serving.by {
                client.defer(DeferredCall::Discard { qpn: by.number });
            }
        }
    }
}

impl PendingHandOver {
    /// Whether the front still waits for it.
    fn is_open(&self) -> bool {
        self.front.wants_way(self.message.to)
    }

    fn fail(self, client: &Client, place: &DomainMember) {
        place.take_back(self.message.statement());
        self.front.no_way(self.message.to);
        client.defer(DeferredCall::Discard { qpn: self.by.number });
    }
}
