//! Identifies connections: from their acceptance until the helper has named their process.
//!
//! The helper finds the namespace and cgroup of a process, which may take a while, so nothing waits
//! for it: messages of the client stay in its socket. Then the connection is half open until its
//! hello.

use crate::client::Client;
use crate::poller_tokens::Wakeup;
use crate::reactor::Timer;
use crate::running_helper_requests::{Enclosed, Subject};
use crate::server::Server;
use crate::unidentified_connections::Arrival;
use crate::vnic_attachment::Attached;
use crate::vnic_references::Hold;
use omniverb_fairness::Holder;
use omniverb_netns::{Kind, Process};
use omniverb_sys::netns::Namespace;
use omniverb_sys::{clock, seqpacket};
use omniverb_tenancy::{PtraceDomain, SessionId};
use omniverb_terms::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// How long a connection may stay silent at first.
pub(super) const HELLO_TIME: Duration = Duration::from_secs(5);

impl Server {
    pub(super) fn admit(&mut self, calls: OwnedFd) {
        let Ok(peer) = seqpacket::peer(calls.as_fd()) else {
            return self.disposal.close_socket(calls);
        };
        let pidfd = seqpacket::peer_pidfd(calls.as_fd()).ok().map(Arc::new);
        let id = self.next_session();
        self.reactor.set(HELLO_TIME, Timer::Hello(id));
        let holder = Holder::new("", peer.uid).in_process(peer.pid);
        let (circle, pidfd_of) = (None, pidfd.clone());
        let arrival = Arrival { calls, peer, pidfd: pidfd_of, circle, holder: holder.clone() };
        let admitted = self.arrivals.admits(&arrival, None, &mut self.journal);
        if let Err(errno) = admitted {
            return self.refuse_arrival(id, arrival, errno);
        }
        let Some(pidfd) = pidfd else {
            return self.enter(id, arrival, Err(Errno::EPERM));
        };
        if let Some(oldest) = self.arrivals.add(id, arrival) {
            self.forget_arrival(oldest);
        }
        let (subject, process) = (Subject::Arrival(id), Enclosed::Process(pidfd));
        if self.arrivals.has(id) {
            self.helper.ask(Kind::Process, subject, &holder, process, clock::now());
        }
    }

    /// A refused client waits for the refusal, which must not take places of served ones.
    fn refuse_arrival(&mut self, id: SessionId, arrival: Arrival, errno: Errno) {
        if self.clients.may_refuse() {
            self.enter(id, arrival, Err(errno));
        } else {
            self.disposal.close_socket(arrival.calls);
        }
    }

    /// A connection that is not identified after all this time, or has to make room.
    fn forget_arrival(&mut self, id: SessionId) {
        if let Some(arrival) = self.arrivals.take(id) {
            self.helper.forget(Kind::Process, Subject::Arrival(id), &arrival.holder);
            if self.looks.remove(&Subject::Arrival(id)).is_some() {
                self.helper.forget(Kind::Interfaces, Subject::Arrival(id), &arrival.holder);
            }
            self.disposal.close_socket(arrival.calls);
        }
    }

    /// The helper has identified the process, or could not.
    pub(super) fn identified(&mut self, id: SessionId, found: io::Result<Process>) {
        let Some(mut arrival) = self.arrivals.take(id) else { return };
        let Ok(process) = found else {
            return self.enter(id, arrival, Err(Errno::EPERM));
        };
        let cgroup = Some(process.cgroup.as_str());
        let admitted = self.arrivals.admits(&arrival, cgroup, &mut self.journal);
        if let Err(errno) = admitted {
            return self.refuse_arrival(id, arrival, errno);
        }
        arrival.holder = Holder::new(&process.cgroup, arrival.peer.uid);
        let group = arrival.peer.gid;
        arrival.circle = process.surroundings.map(|namespaces| PtraceDomain { namespaces, group });
        if self.is_undecided(&process) {
            let holder = arrival.holder.clone();
            if let Some(oldest) = self.arrivals.add(id, arrival) {
                self.forget_arrival(oldest);
            }
            if self.arrivals.has(id) {
                self.look(Subject::Arrival(id), process, &holder);
            }
            return;
        }
        let known = self.served(process.namespace, process.cookie);
        self.enter(id, arrival, known);
    }

    /// A namespace, if we serve it.
    pub(super) fn served(
        &self,
        namespace: Namespace,
        cookie: Option<u64>,
    ) -> Result<Attached, Errno> {
        let known = Attached::Namespace(Arc::new(namespace), cookie);
        let serves = self.is_privileged() || self.vnics.registry().is_home(&known.evidence());
        if serves { Ok(known) } else { Err(Errno::EPERM) }
    }

    /// It becomes a client of the vNIC that is reached that way, half open.
    pub(super) fn enter(
        &mut self,
        id: SessionId,
        arrival: Arrival,
        known: Result<Attached, Errno>,
    ) {
        let Arrival { calls, peer, pidfd, circle, holder } = arrival;
        let watched = self.reactor.watch(&calls, Wakeup::Calls(id)).and_then(|()| match &pidfd {
            Some(pidfd) => self.reactor.watch(pidfd, Wakeup::Process(id)),
            None => Ok(()),
        });
        if watched.is_err() {
            return self.disposal.close_socket(calls);
        }
        let known = known.and_then(|known| self.described(known, &peer));
        let source = known.as_ref().map(Attached::source).unwrap_or_default();
        let hold = known.map(|known| self.vnics.join(known, &holder));
        self.engine_ports().tell_registered();
        let queued = self.clients.queue_of(hold.as_ref().ok().map(Hold::vnic));
        if let Ok(vnic) = hold.as_ref().map(Hold::vnic) {
            let (pid, uid, holder) = (peer.pid, peer.uid, holder.clone());
            let client = omniverb_tenancy::Client { vnic, pid, uid, circle, holder };
            self.tables.note(|tables| tables.open(id, client));
        }
        let bin = self.disposal.bin();
        let client = Client::new(calls, pidfd, peer, hold, source, (&bin, queued));
        for oldest in self.clients.add(id, client, &holder.in_process(peer.pid)) {
            self.end(oldest, "made room: its user has the most connections that say nothing");
        }
    }

    pub(super) fn hello_due(&mut self, id: SessionId) {
        self.forget_arrival(id);
        if self.clients.is_half_open(id) {
            self.clients.part(id, "did not identify itself in time");
        }
    }
}
