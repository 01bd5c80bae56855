//! Connections, from the moment they are accepted until it is known who made them.
//!
//! The helper says which namespace and cgroup a process is in, which may take a while, so nothing
//! waits for it: what a client says meanwhile stays in its socket. Then it is half open until it
//! says hello. Both are bounded, and over the bound whoever has the most of them loses the oldest.

use crate::asking::{Enclosed, Subject};
use crate::client::Client;
use crate::namespaces::Known;
use crate::outbox::Outbox;
use crate::server::{Server, Timer, token};
use omniverb_netns::{Kind, Process};
use omniverb_sys::netns::Namespace;
use omniverb_sys::pidfd::Peer;
use omniverb_sys::{clock, socket};
use omniverb_tenancy::{Circle, Holder, SessionId, VnicId};
use omniverb_terms::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// How long a connection may stay silent at first.
const HELLO_TIME: Duration = Duration::from_secs(5);
/// Connections whose process is being identified: two descriptors each, for less than a millisecond
/// in peace.
const ARRIVALS: usize = 1024;
/// Connections that have not said hello, of one vNIC.
const HALF_OPEN_PER_VNIC: usize = 256;
/// The same, of all together.
const HALF_OPEN: usize = 4096;

/// A connection whose process is being identified.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) calls: OwnedFd,
    peer: Peer,
    pidfd: Option<Arc<OwnedFd>>,
    /// Who may look into it.
    circle: Option<Circle>,
    /// As far as that is known.
    holder: Holder,
}

/// Connections that are refused and have not been told so.
const REFUSED: usize = 64;

impl Server {
    pub(crate) fn admit(&mut self, calls: OwnedFd) {
        let Ok(peer) = socket::peer(calls.as_fd()) else { return self.let_go(calls) };
        let pidfd = socket::peer_pidfd(calls.as_fd()).ok().map(Arc::new);
        self.last_session += 1;
        let id = SessionId(self.last_session);
        self.set_timer(HELLO_TIME, Timer::Hello(id));
        let holder = Holder::new("", peer.uid).in_process(peer.pid);
        let (circle, pidfd_of) = (None, pidfd.clone());
        let arrival = Arrival { calls, peer, pidfd: pidfd_of, circle, holder: holder.clone() };
        if let Err(errno) = self.admitted(&peer, &arrival.calls) {
            return self.refuse_arrival(id, arrival, errno);
        }
        let Some(pidfd) = pidfd else {
            return self.enter(id, arrival, None, Err(Errno::EPERM));
        };
        self.arrivals_of.add(&holder, id);
        self.arrivals.insert(id, arrival);
        if self.arrivals.len() > ARRIVALS
            && let Some(oldest) = self.arrivals_of.yields().copied()
        {
            self.forget_arrival(oldest);
        }
        let (subject, process) = (Subject::Arrival(id), Enclosed::Process(pidfd));
        if self.arrivals.contains_key(&id) {
            self.namespaces.ask(Kind::Process, subject, &holder, process, clock::now());
        }
    }

    /// Who is refused waits to be told so, which must not take places of those who are served.
    fn refuse_arrival(&mut self, id: SessionId, arrival: Arrival, errno: Errno) {
        if self.refused < REFUSED {
            self.enter(id, arrival, None, Err(errno));
        } else {
            self.let_go(arrival.calls);
        }
    }

    /// A connection that is not identified after all this time, or has to make room.
    fn forget_arrival(&mut self, id: SessionId) {
        if let Some(arrival) = self.take_arrival(id) {
            self.namespaces.forget(Kind::Process, Subject::Arrival(id), &arrival.holder);
            self.let_go(arrival.calls);
        }
    }

    fn take_arrival(&mut self, id: SessionId) -> Option<Arrival> {
        self.arrivals_of.remove(&id);
        self.arrivals.remove(&id)
    }

    /// The helper has found out who it is, or could not.
    pub(crate) fn identified(&mut self, id: SessionId, found: io::Result<Process>) {
        let Some(mut arrival) = self.take_arrival(id) else { return };
        let known = match found {
            Ok(process) => {
                let admitted = self.admitted_from(&arrival.peer, &arrival.calls, &process.cgroup);
                if let Err(errno) = admitted {
                    return self.refuse_arrival(id, arrival, errno);
                }
                arrival.holder = Holder::new(&process.cgroup, arrival.peer.uid);
                let group = arrival.peer.gid;
                let circle = |namespaces| Circle { namespaces, group };
                arrival.circle = process.surroundings.map(circle);
                self.served(process.namespace, process.cookie)
            }
            Err(_) => Err(Errno::EPERM),
        };
        match known {
            Ok(known) => {
                let key = self.recognize(&known.evidence());
                self.registry.hold(key);
                self.namespaces.join(key, known, &arrival.holder);
                self.enter(id, arrival, Some(key), Ok(key));
            }
            Err(errno) => self.enter(id, arrival, None, Err(errno)),
        }
    }

    /// A namespace, if we serve it.
    pub(crate) fn served(&self, namespace: Namespace, cookie: Option<u64>) -> Result<Known, Errno> {
        let known = Known { namespace: Arc::new(namespace), cookie };
        let serves = self.privileged || self.registry.is_home(&known.evidence());
        if serves { Ok(known) } else { Err(Errno::EPERM) }
    }

    /// It becomes a client, half open.
    fn enter(
        &mut self,
        id: SessionId,
        arrival: Arrival,
        joined: Option<VnicId>,
        vnic: Result<VnicId, Errno>,
    ) {
        let Arrival { calls, peer, pidfd, circle, holder } = arrival;
        let watched =
            self.poller.add(&calls, token::new(token::CALLS, id.0)).and_then(|()| match &pidfd {
                Some(pidfd) => self.poller.add(pidfd, token::new(token::PROCESS, id.0)),
                None => Ok(()),
            });
        if watched.is_err() {
            if let Some(key) = joined {
                self.leave(key);
            }
            return self.let_go(calls);
        }
        let (pid, uid) = (peer.pid, peer.uid);
        if let Ok(vnic) = vnic {
            let holder = holder.clone();
            let client = omniverb_tenancy::Client { vnic, pid, uid, circle, holder };
            self.tenancy.open(id, client);
        }
        let client = Client {
            calls,
            events: None,
            pidfd,
            peer,
            vnic,
            half_open: true,
            statistics: None,
            calls_box: Outbox::new(self.disposal.bin()),
            events_box: Outbox::new(self.disposal.bin()),
            behind: false,
            flush_timer: false,
        };
        self.refused += usize::from(client.vnic.is_err());
        self.clients.insert(id, client);
        self.half_open_of.add(&holder.in_process(pid), id);
        let full = self.half_open_of.len() > HALF_OPEN;
        let oldest = full.then(|| self.half_open_of.yields().copied()).flatten();
        let oldest_here = joined.and_then(|key| {
            let here = &mut self.namespaces.get_mut(key)?.half_open;
            here.add(&holder.in_process(pid), id);
            let full = here.len() > HALF_OPEN_PER_VNIC;
            full.then(|| here.yields().copied()).flatten()
        });
        for oldest in [oldest_here, oldest].into_iter().flatten() {
            self.end(oldest, "made room: its user has the most connections that say nothing");
        }
    }

    /// The client has said hello.
    pub(crate) fn fully_open(&mut self, id: SessionId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.half_open = false;
        let vnic = client.vnic;
        self.half_open_of.remove(&id);
        if let Ok(key) = vnic
            && let Some(entry) = self.namespaces.get_mut(key)
        {
            entry.half_open.remove(&id);
        }
    }

    pub(crate) fn hello_due(&mut self, id: SessionId) {
        self.forget_arrival(id);
        if self.clients.get(&id).is_some_and(|client| client.half_open) {
            self.part(id, "did not say hello");
        }
    }
}
