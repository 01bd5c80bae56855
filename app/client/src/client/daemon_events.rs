//! What the daemon tells by itself. Read by the progress thread.

use super::Client;
use crate::daemon_caller_trait::DaemonCaller;
use crate::daemon_messages_with_fds::MessageWithFiles;
use crate::deferred_daemon_calls::DeferredCall;
use crate::page_take_back_thread::PageQuestion;
use omniverb_session::body::{Adopted, CLOSED_BY_DEATH, CLOSED_BY_NETWORK, GrantDenied, Granted};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::{Message, decode};
use omniverb_sys::seqpacket;
use omniverb_terms::Operations;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Events taken in one turn.
const EVENTS_AT_ONCE: usize = 64;

impl Client {
    /// Takes the events there are, a number of them at a time: the data path has its turns, too.
    pub(crate) fn take_events(&self) {
        let Some(events) = self.progress.listening() else { return };
        self.progress.flush_answers(&events);
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        for _ in 0..EVENTS_AT_ONCE {
            let mode = seqpacket::BlockingMode::NonBlocking;
            match seqpacket::receive_kept(events.as_fd(), &mut bytes, mode) {
                Ok((0, _)) => return self.session.lost_events(&events),
                Ok((length, files)) => match decode(&bytes[..length]) {
                    Ok((_, Message::CmHappened(_))) => {
                        self.subscribers.tell(Some(&bytes[..length]));
                    }
                    Ok((_, message)) => self.take_event(&events, message, files),
                    Err(_) => {}
                },
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                // It stays until there is room for what it brings.
                Err(error) if seqpacket::lacks_room(&error) => return self.progress.come_back(),
                // More than any message has: a daemon that is none of ours, or one message lost.
                Err(error) if seqpacket::is_lost(&error) => {}
                Err(_) => return self.session.lost_events(&events),
            }
        }
    }

    /// `came`: the descriptors beside it. Those of a message that has none are closed.
    fn take_event(&self, events: &Arc<OwnedFd>, message: Message, came: Vec<OwnedFd>) {
        match message {
            Message::LinkReady(ready) => {
                // A link that cannot be attached is as good as a peer that never answers.
                let attached =
                    MessageWithFiles::new(ready, came).and_then(|link| self.link_ready(link));
                if ready.peer_qpn.is_group() && attached.is_err() {
                    self.groups.link_refused(self, &ready);
                }
            }
            Message::LinkClosed(closed) => {
                if let Some(qp) = self.qps.get(closed.qpn) {
                    match closed.reason {
                        CLOSED_BY_DEATH | CLOSED_BY_NETWORK => {
                            // What the peer sent last may be in the socket still.
                            self.carried.read_all();
                            qp.peer_died(closed.peer_qpn);
                        }
                        _ => qp.peer_closed(closed.peer_qpn),
                    }
                    self.carried.end_link(closed.qpn, closed.peer_qpn);
                    if qp.is_hidden() {
                        self.defer(DeferredCall::Discard { qpn: closed.qpn });
                    }
                    if closed.peer_qpn.is_group() {
                        self.groups.link_gone(self, closed.qpn, closed.peer_qpn);
                    }
                }
            }
            Message::PeerPort(told) => self.hear_peer_port(&told),
            Message::GiveLink(asked) => self.hear_give_link(&asked),
            Message::LinkRefuses(link) => {
                if let Some(qp) = self.qps.get(link.qpn) {
                    qp.refuse(link.peer_qpn, Operations::from_bits(link.refused));
                }
            }
            Message::BellClosed(closed) => {
                self.bells.close(closed.bell, &self.shared, &self.progress.sleep)
            }
            Message::Adopt(adopt) => {
                let to = events.clone();
                match MessageWithFiles::new(adopt, came) {
                    // Not while others are on their way back: what is asked for may be among them.
                    Ok(ask) => {
                        if let Some(question) = self.pages.taking.leave(PageQuestion { ask, to }) {
                            self.pages.answer_adopt(question);
                        }
                    }
                    Err(errno) => {
                        // What is known already it was not told of anew.
                        if adopt.fresh != 0 {
                            self.pages.let_go((adopt.memory, self.bells.era()), 1);
                        }
                        let refusal = Adopted { token: adopt.token, errno, epoch: 0 };
                        self.progress.answer(&to, refusal.into());
                    }
                }
            }
            Message::Pin(ask) => self.progress.answer(events, self.pages.pin(&ask)),
            Message::Granted(granted) => {
                let mapped = match MessageWithFiles::new(granted, came) {
                    Ok(grant) => self.mapped.map(&self.qps, &self.pages, grant),
                    Err(errno) => {
                        self.pages.let_go((granted.memory, self.bells.era()), 1);
                        Err(errno)
                    }
                };
                if let Err(errno) = mapped {
                    let Granted { qpn, peer_qpn, rkey, .. } = granted;
                    self.qps.grant_denied(&GrantDenied { qpn, peer_qpn, rkey, errno });
                }
            }
            Message::GrantDenied(denied) => self.qps.grant_denied(&denied),
            Message::GrantEnded(ended) => self.qps.grant_ended(&ended),
            Message::TakeBack(ask) => self.pages.hear_take_back(&ask),
            Message::TraceBegin(begin) => {
                self.tracing.begin(MessageWithFiles::new(begin, came).ok())
            }
            Message::TraceLink(trace) => self.tracing.trace_link(&self.qps, &trace),
            Message::TraceEnd(_) => self.tracing.end(&self.qps),
            // Denied: the QP stays with mediated operations, which it uses already.
            _ => {}
        }
    }
}
