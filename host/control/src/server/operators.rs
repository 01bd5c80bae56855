//! Serves operators: processes that may open their socket see and change everything.
//!
//! In: connections to the operators' socket, their calls. Out: one answer each, of one message. The
//! socket's mode grants the right; the kernel's credentials of the other end are checked besides.
//! Operators need no served network namespace, and count against no tenant's quota.

use crate::daemon_log::Level;
use crate::operators::Call;
use crate::poller_tokens::Wakeup;
use crate::running_helper_requests::{Enclosed, Subject};
use crate::server::Server;
use crate::server::accept::tag_of;
use crate::vnics::Named;
use omniverb_netns::{Kind, Process};
use omniverb_session::body::Done;
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::operator::{Message, SocketsShown, decode, encode};
use omniverb_sys::{clock, pidfd, seqpacket};
use omniverb_tenancy::SessionId;
use omniverb_terms::Errno;
use rustix::process::geteuid;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

impl Server {
    pub(super) fn accept_operator(&mut self) {
        let accepted = self.operators.listener().accept(&mut self.reactor, &mut self.journal);
        if let Some(operator) = accepted {
            self.admit_operator(operator);
        }
    }

    fn admit_operator(&mut self, socket: OwnedFd) {
        let Ok(peer) = seqpacket::peer(socket.as_fd()) else {
            return self.disposal.close_socket(socket);
        };
        if peer.uid != 0 && peer.uid != geteuid().as_raw() {
            let text = format_args!("uid {} is no operator (pid {})", peer.uid, peer.pid);
            self.journal.log(Level::Warning, text);
            return self.disposal.close_socket(socket);
        }
        if self.operators.is_full() {
            return self.disposal.close_socket(socket);
        }
        let id = self.next_session();
        if self.reactor.watch(&socket, Wakeup::Operator(id)).is_err() {
            return self.disposal.close_socket(socket);
        }
        self.operators.add(id, socket, peer);
    }

    /// An operator says something, or is gone. One call, then others get their turn.
    pub(super) fn operator_ready(&mut self, id: SessionId) {
        let Some(socket) = self.operators.socket(id) else { return };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        match seqpacket::receive(socket.as_fd(), &mut bytes, seqpacket::BlockingMode::NonBlocking) {
            Ok((0, files)) => {
                self.captures.discard(files);
                self.end_operator(id);
            }
            Ok((length, files)) => match decode(&bytes[..length]) {
                Ok((tag, message)) => self.operator_call(id, Call { tag, message, files }),
                Err(_) => {
                    self.captures.discard(files);
                    // Another version, most likely: say so in the part that all versions share.
                    if let Some(tag) = tag_of(&bytes[..length]) {
                        self.answer_operator(id, tag, &Message::Failed(Errno::EPROTO));
                    }
                    self.end_operator(id);
                }
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.end_operator(id),
        }
    }

    /// A call, which waits if it names a process: the helper looks which namespace that is in.
    fn operator_call(&mut self, id: SessionId, call: Call) {
        let Some(pid) = call.pid() else {
            let named = call.name().map(|name| self.named(name));
            return self.carry_out(id, call, named);
        };
        let Ok(process) = pidfd::of(pid) else {
            return self.carry_out(id, call, Some(Err(Errno::ENOENT)));
        };
        let Some(holder) = self.operators.may_wait(id) else {
            return self.carry_out(id, call, Some(Err(Errno::EBUSY)));
        };
        self.operators.wait(id, call);
        let (subject, enclosed) = (Subject::Named(id), Enclosed::Process(process.into()));
        self.helper.ask(Kind::Process, subject, &holder, enclosed, clock::now());
    }

    /// The helper has looked at the process that a call names.
    pub(super) fn name_found(&mut self, id: SessionId, found: io::Result<Process>) {
        let Some(call) = self.operators.take_call(id) else { return };
        let known = found
            .map_err(|_| Errno::ENOENT)
            .and_then(|process| self.served(process.namespace, process.cookie));
        let named =
            known.map(|known| (self.engine_ports().recognize(&known.evidence()), Some(known)));
        self.carry_out(id, call, Some(named));
    }

    /// A call, with the vNIC that it names, if it does.
    fn carry_out(&mut self, id: SessionId, mut call: Call, named: Option<Result<Named, Errno>>) {
        let named = named.unwrap_or(Err(Errno::EPROTO));
        let answer = match call.message {
            Message::QueryAll(m) => Some(Ok(self.status_rows().status_slice(None, m.from).into())),
            Message::QueryVnics(m) => Some(Ok(self.status_rows().policies_slice(m.from).into())),
            Message::SetVnic(m) => Some(
                named.and_then(|named| self.engine_ports().set_vnic(named.0, &m)).map(Into::into),
            ),
            Message::ChangeObjects(m) => Some(Ok(self.change_objects(&m).into())),
            Message::ReloadConfiguration(_) => Some(Ok(self.reload_asked().into())),
            Message::QueryNetworks(m) => {
                Some(Ok(self.status_rows().networks_slice(m.from, m.known).into()))
            }
            Message::QueryObjects(m) => Some(Ok(self.status_rows().objects_slice(m.from).into())),
            Message::DisconnectVnic(_) => {
                Some(named.map(|named| self.engine_ports().disconnect_vnic(named.0).into()))
            }
            Message::Capture(m) => {
                let begun =
                    named.and_then(|named| self.capture(id, &mut call, m.snap_bytes, named));
                begun.err().map(Err)
            }
            Message::AttachMachine(m) => {
                return self.attach_machine(id, call.tag, &m, call.files);
            }
            Message::AttachPair(m) => {
                let files = std::mem::take(&mut call.files);
                let done = self.pair_windows().attach_pair(&m, files);
                Some(done.map(|()| Done { take_back: 0 }.into()))
            }
            Message::JoinPair(m) => {
                let files = std::mem::take(&mut call.files);
                let done = self.pair_windows().join_pair(&m, files);
                Some(done.map(|()| Done { take_back: 0 }.into()))
            }
            Message::AttachMemory(m) => {
                let files = std::mem::take(&mut call.files);
                let done = self.guests().attach_memory(&m, files);
                Some(done.map(|()| Done { take_back: 0 }.into()))
            }
            Message::PartPair(m) => {
                Some(self.pair_windows().part_pair(&m).map(|()| Done { take_back: 0 }.into()))
            }
            Message::AwaitPair(m) => self.await_pair(id, call.tag, &m).transpose(),
            Message::DetachMachine(m) => {
                Some(self.detach_machine(&m).map(|()| Done { take_back: 0 }.into()))
            }
            Message::ShowSockets(_) => match self.socket_pairs().show_sockets() {
                Ok(socket) => {
                    let shown = SocketsShown { reserved: 0 }.into();
                    self.answer_operator_with(id, call.tag, &shown, &[socket.as_fd()]);
                    None
                }
                Err(errno) => Some(Err(errno)),
            },
            Message::EndCapture(_) => {
                self.end_capture(id, call.tag);
                None
            }
            _ => Some(Err(Errno::EPROTO)),
        };
        if let Some(answer) = answer {
            self.answer_operator(id, call.tag, &answer.unwrap_or_else(Message::Failed));
        }
        self.captures.discard(call.files);
    }

    /// Answers an operator's call.
    pub(super) fn answer_operator(&mut self, id: SessionId, tag: u64, message: &Message) {
        self.answer_operator_with(id, tag, message, &[]);
    }

    /// The same, with descriptors beside it.
    pub(super) fn answer_operator_with(
        &mut self,
        id: SessionId,
        tag: u64,
        message: &Message,
        files: &[BorrowedFd<'_>],
    ) {
        let Some(socket) = self.operators.socket(id) else { return };
        if !answer_at(socket, |bytes| encode(tag, message, bytes), files) {
            self.end_operator(id);
        }
    }

    pub(super) fn end_operator(&mut self, id: SessionId) {
        let Some((socket, files)) = self.operators.remove(id) else { return };
        self.reactor.forget(&socket);
        self.machines.operator_gone(id);
        self.engine_ports().end_recording(id);
        self.captures.hang_up(id);
        self.captures.discard(files);
        self.disposal.close_socket(socket);
    }
}

/// Sends an answer, which `encode` puts into a buffer; false: it is not taken. A client that takes
/// its answers has room for one.
pub(super) fn answer_at(
    socket: impl AsFd,
    encode: impl FnOnce(&mut [u8; MESSAGE_BYTES_MAX]) -> usize,
    files: &[BorrowedFd<'_>],
) -> bool {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let length = encode(&mut bytes);
    seqpacket::try_send(socket.as_fd(), &bytes[..length], files).is_ok()
}
