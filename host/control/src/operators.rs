//! Operators: who may open their socket sees and changes everything.
//!
//! In: connections to the operators' socket, their calls. Out: one answer each, of one message.
//! The socket's mode is the right; what the kernel says of the other end is looked at besides.
//! Operators need no network namespace that is served, and count against nobody's quota.

use crate::accept::tag_of;
use crate::journal::Level;
use crate::pids::PidNamed;
use crate::server::{Server, Timer, token};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::operator::{Message, decode, encode};
use omniverb_sys::socket::{self, Peer};
use omniverb_tenancy::SessionId;
use omniverb_terms::Errno;
use rustix::process::geteuid;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Operators at the same time: they hold descriptors of ours, and root has no need of more.
const OPERATORS_MAX: usize = 64;

/// A connected operator.
#[derive(Debug)]
pub(crate) struct Operator {
    socket: OwnedFd,
    pub(crate) peer: Peer,
    /// The process that its call names, once the helper has looked.
    pub(crate) named: Option<PidNamed>,
}

impl Server {
    pub(crate) fn accept_operators(&mut self) {
        match socket::accept(self.operators_place.listener().as_fd()) {
            Ok(Some(operator)) => self.admit_operator(operator),
            Ok(None) => {}
            Err(error) => {
                self.journal.log(Level::Warning, format_args!("cannot accept: {error}"));
                let _ = self.poller.remove(self.operators_place.listener());
                self.set_timer(Duration::from_millis(100), Timer::AcceptOperators);
            }
        }
    }

    pub(crate) fn accept_operators_again(&mut self) {
        let token = token::new(token::OPERATORS, 0);
        if self.poller.add(self.operators_place.listener(), token).is_err() {
            self.set_timer(Duration::from_millis(100), Timer::AcceptOperators);
        }
    }

    fn admit_operator(&mut self, socket: OwnedFd) {
        let Ok(peer) = socket::peer(socket.as_fd()) else { return self.let_go(socket) };
        if peer.uid != 0 && peer.uid != geteuid().as_raw() {
            let text = format_args!("uid {} is no operator (pid {})", peer.uid, peer.pid);
            self.journal.log(Level::Warning, text);
            return self.let_go(socket);
        }
        if self.operators.len() >= OPERATORS_MAX {
            return self.let_go(socket);
        }
        self.last_session += 1;
        let id = SessionId(self.last_session);
        if self.poller.add(&socket, token::new(token::OPERATOR, id.0)).is_err() {
            return self.let_go(socket);
        }
        self.operators.insert(id, Operator { socket, peer, named: None });
    }

    /// An operator says something, or is gone. One call, then others get their turn.
    pub(crate) fn operator_ready(&mut self, id: SessionId) {
        let Some(operator) = self.operators.get(&id) else { return };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        match socket::receive(operator.socket.as_fd(), &mut bytes, false) {
            Ok((0, files)) => {
                self.recorder.discard(files);
                self.end_operator(id);
            }
            Ok((length, mut files)) => {
                self.operator_call(id, &bytes[..length], &mut files);
                if !files.is_empty() {
                    self.recorder.discard(files);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.end_operator(id),
        }
    }

    fn operator_call(&mut self, id: SessionId, bytes: &[u8], files: &mut Vec<OwnedFd>) {
        let (tag, message) = match decode(bytes) {
            Ok(call) => call,
            Err(_) => {
                // Another version, most likely: say so in the part that all versions share.
                if let Some(tag) = tag_of(bytes) {
                    self.answer_operator(id, tag, &Message::Failed(Errno::EPROTO));
                }
                return self.end_operator(id);
            }
        };
        self.operator_message(id, tag, &message, files);
    }

    /// A call, which waits if it names a process.
    pub(crate) fn operator_message(
        &mut self,
        id: SessionId,
        tag: u64,
        message: &Message,
        files: &mut Vec<OwnedFd>,
    ) {
        let name = match message {
            Message::SetVnic(m) => &m.name[..],
            Message::DisconnectVnic(m) => &m.name[..],
            Message::Capture(m) => &m.name[..],
            _ => &[],
        };
        if !self.is_named(id, name, (tag, message), files) {
            return;
        }
        let answer = match message {
            Message::QueryAll(m) => Ok(self.status_slice(None, m.from).into()),
            Message::QueryVnics(m) => Ok(self.policies_slice(m.from).into()),
            Message::SetVnic(m) => {
                self.named(id, &m.name).and_then(|named| self.set_vnic(named.0, m)).map(Into::into)
            }
            Message::DisconnectVnic(m) => {
                self.named(id, &m.name).map(|(vnic, _)| self.disconnect_vnic(vnic).into())
            }
            Message::Capture(m) => match self
                .named(id, &m.name)
                .and_then(|named| self.capture(id, tag, m, named, files))
            {
                Ok(()) => return,
                Err(errno) => Err(errno),
            },
            Message::EndCapture(_) => return self.end_capture(id, tag),
            _ => Err(Errno::EPROTO),
        };
        self.answer_operator(id, tag, &answer.unwrap_or_else(Message::Failed));
    }

    /// Answers an operator's call. There is room for an answer to whoever takes his answers.
    pub(crate) fn answer_operator(&mut self, id: SessionId, tag: u64, message: &Message) {
        let Some(operator) = self.operators.get(&id) else { return };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(tag, message, &mut bytes);
        if socket::try_send(operator.socket.as_fd(), &bytes[..length], &[]).is_err() {
            self.end_operator(id);
        }
    }

    pub(crate) fn end_operator(&mut self, id: SessionId) {
        let Some(operator) = self.operators.remove(&id) else { return };
        let _ = self.poller.remove(&operator.socket);
        self.beginning.remove(&id);
        self.end_recording(id);
        self.finishing.remove(&id);
        if let Some(unnamed) = self.unnamed.remove(&id) {
            self.recorder.discard(unnamed.files);
        }
        self.let_go(operator.socket);
    }
}
