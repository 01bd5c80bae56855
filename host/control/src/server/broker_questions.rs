//! Answers the socket broker's question whether two network namespaces may share memory for
//! sockets.
//!
//! Both namespaces are found by a process in each, whose cookie has to be that of its socket, and
//! become vNICs, if they were none; then the tables decide, by the rules of direct links.

use crate::running_helper_requests::{Enclosed, Subject};
use crate::server::Server;
use crate::server::operation_contexts::SocketPairs;
use crate::socket_broker_supervisor::{FromBroker, PER_TURN};
use crate::socket_relations::ToSeek;
use crate::vnic_attachment::Attached;
use omniverb_broker::broker_daemon_messages::{Denial, FromDaemon, NamespaceAddress, ToDaemon};
use omniverb_fairness::Holder;
use omniverb_netns::{Kind, Process};
use omniverb_session::body::{Hello, ROLE_VERBS};
use omniverb_sys::pidfd::Peer;
use omniverb_sys::{clock, seqpacket};
use omniverb_tenancy::{Arrived, Channel, Client, RelationRefusal, SessionId};
use omniverb_terms::Errno;
use std::io;
use std::os::fd::OwnedFd;

/// What such a session is called where people see it.
const NAME: [u8; 16] = *b"(sockets)\0\0\0\0\0\0\0";

impl Server {
    pub(super) fn broker_ready(&mut self) {
        for _ in 0..PER_TURN {
            let Some(heard) = self.broker.as_ref().and_then(|broker| broker.hear()) else { break };
            match heard {
                FromBroker::Said(ToDaemon::Ask { number, places, users }, files) => {
                    self.socket_pairs().sockets_ask(number, places, users, files);
                }
                FromBroker::Said(ToDaemon::Release { number }, _) => {
                    self.socket_pairs().unrelate(number)
                }
                FromBroker::Said(ToDaemon::Idle { time }, _) => {
                    self.idle.answered(time, clock::now());
                }
                FromBroker::Died => {
                    for number in self.related.numbers() {
                        self.socket_pairs().unrelate(number);
                    }
                    self.idle.client_connected(clock::now());
                    if let Some(broker) = &mut self.broker {
                        broker.died(&mut self.reactor, &mut self.journal);
                    }
                    break;
                }
            }
        }
    }

    /// The helper has found a namespace, or not.
    pub(super) fn sockets_found(&mut self, number: u64, found: io::Result<Process>) {
        let Some((namespace, user)) = self.related.sought(number) else { return };
        let process = found.ok().filter(|process| process.cookie == Some(namespace));
        let Some(process) = process else {
            return self.socket_pairs().seek_another(namespace);
        };
        let holder = Holder::new(&process.cgroup, user);
        if self.is_undecided(&process) {
            return self.look(Subject::Sockets(number), process, &holder);
        }
        let known = self.served(process.namespace, process.cookie).ok();
        self.sockets_placed(number, known, holder);
    }

    /// What describes a namespace is known.
    pub(super) fn sockets_placed(&mut self, number: u64, known: Option<Attached>, holder: Holder) {
        let Some((namespace, user)) = self.related.sought(number) else { return };
        let peer = Peer { pid: 0, uid: user, gid: 0 };
        let Some(known) = known.and_then(|known| self.described(known, &peer).ok()) else {
            return self.socket_pairs().seek_another(namespace);
        };
        let hold = self.vnics.join(known, &holder);
        self.engine_ports().tell_registered();
        let (id, vnic) = (self.next_session(), hold.vnic());
        let pid = self.broker.as_ref().map_or(0, |broker| broker.pid());
        let uid = rustix::process::geteuid().as_raw();
        self.related.opened(namespace, id, hold);
        let client = Client { vnic, pid, uid, circle: None, holder };
        self.tables.note(|tables| tables.open(id, client));
        let message = Hello { role: ROLE_VERBS, resume: 0, name: NAME }.into();
        let hello = Arrived { channel: Channel::Calls, tag: 0, message, memory: None };
        self.tables.decide(|tables| tables.handle(id, &hello, clock::now()));
    }
}

impl SocketPairs<'_> {
    /// A socket by which the broker shows an operator what there is.
    pub(super) fn show_sockets(&mut self) -> Result<OwnedFd, Errno> {
        let broker = self.broker.as_mut().ok_or(Errno::ENOENT)?;
        let (ours, theirs) = seqpacket::pair().map_err(|_| Errno::ENOMEM)?;
        broker.tell(FromDaemon::Operator, Some(theirs), self.reactor);
        Ok(ours)
    }

    pub(super) fn sockets_ask(
        &mut self,
        number: u64,
        places: [NamespaceAddress; 2],
        users: [u32; 2],
        files: Vec<OwnedFd>,
    ) {
        if files.len() != 2 || !self.related.add(number, places) {
            return self.tell_denied(number, Denial::Busy);
        }
        for ((place, user), file) in places.into_iter().zip(users).zip(files) {
            if let Some(sought) = self.related.join(number, place.namespace, user, file) {
                self.seek(sought);
            }
        }
        self.relate(number);
    }

    pub(super) fn seek(&mut self, ToSeek { number, user, process }: ToSeek) {
        let (subject, process) = (Subject::Sockets(number), Enclosed::Process(process.into()));
        self.helper.ask(Kind::Process, subject, &Holder::new("", user), process, clock::now());
    }

    /// A namespace's process is gone, or not in it any more, or its user has too many: its request
    /// fails. Other processes in there may be asked still.
    pub(super) fn seek_another(&mut self, namespace: u64) {
        let Some((before, sought)) = self.related.next(namespace) else {
            return self.lose_namespace(namespace);
        };
        self.seek(sought);
        self.unrelate(before);
        self.tell_denied(before, Denial::NotServed);
    }

    /// Asks the tables, if they know both.
    pub(super) fn relate(&mut self, number: u64) {
        if let Some(ends) = self.related.ends(number) {
            self.tables.decide(|tables| tables.relate(number, ends, clock::now()));
        }
    }

    /// A namespace's addresses are known.
    pub(super) fn sockets_welcome(&mut self, session: SessionId) {
        let Some(namespace) = self.related.of(session) else { return };
        for number in self.related.known(namespace) {
            self.relate(number);
        }
    }

    /// There is no room for a namespace, or no more.
    pub(super) fn sockets_unwelcome(&mut self, session: SessionId) {
        if let Some(namespace) = self.related.of(session) {
            self.seek_another(namespace);
        }
    }

    pub(super) fn lose_namespace(&mut self, namespace: u64) {
        for number in self.related.pairs_of(namespace) {
            self.unrelate(number);
            self.tell_denied(number, Denial::NotServed);
        }
    }

    /// The tables' answer.
    pub(super) fn related(&mut self, number: u64, verdict: Result<(), RelationRefusal>) {
        match verdict {
            Ok(()) => self.tell_broker(FromDaemon::Allowed { number }),
            Err(why) => {
                self.unrelate(number);
                self.tell_denied(
                    number,
                    match why {
                        RelationRefusal::Gone | RelationRefusal::NoMemory => Denial::NotServed,
                        RelationRefusal::NotItsAddress => Denial::NotItsAddress,
                        RelationRefusal::NotThere => Denial::NotThere,
                        RelationRefusal::Busy => Denial::Busy,
                        RelationRefusal::Policy(_) => Denial::Policy,
                    },
                );
            }
        }
    }

    pub(super) fn tell_denied(&mut self, number: u64, why: Denial) {
        self.tell_broker(FromDaemon::Denied { number, why });
    }

    pub(super) fn tell_broker(&mut self, what: FromDaemon) {
        if let Some(broker) = self.broker {
            broker.tell(what, None, self.reactor);
        }
    }

    /// No broker needs a pair any more. Sessions without pairs are ended later, one by one
    /// ([`Server::carry_on`]): ending one may end many other pairs.
    pub(super) fn unrelate(&mut self, number: u64) {
        let Some(left) = self.related.remove(number) else { return };
        for number in left.pairs {
            self.tables.note(|tables| tables.relate_no_more(number));
        }
        self.related.leave(left.sessions);
    }
}
