//! `pid:N` as the name of a vNIC: the helper looks which namespace that process is in, and the call
//! that named it waits for that.

use crate::asking::{Enclosed, Subject};
use crate::namespaces::Known;
use crate::server::Server;
use crate::vnics::Named;
use omniverb_netns::{Kind, Process};
use omniverb_session::operator::Message;
use omniverb_sys::{clock, pidfd};
use omniverb_tenancy::{Holder, SessionId};
use omniverb_terms::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A call that waits until it is known what it names.
#[derive(Debug)]
pub(crate) struct Unnamed {
    tag: u64,
    message: Message,
    pub(crate) files: Vec<OwnedFd>,
}

/// The process that a client has named, and what became of that.
pub(crate) type PidNamed = (i32, Result<Known, Errno>);

/// The pid in a name of that form.
pub(crate) fn pid_in(name: &[u8]) -> Option<i32> {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    std::str::from_utf8(&name[..end]).ok()?.strip_prefix("pid:")?.parse().ok()
}

impl Server {
    /// True if the call can be carried out now; otherwise it is kept until it can.
    pub(crate) fn is_named(
        &mut self,
        id: SessionId,
        name: &[u8],
        (tag, message): (u64, &Message),
        files: &mut Vec<OwnedFd>,
    ) -> bool {
        let Some(pid) = pid_in(name) else { return true };
        let Some(client) = self.operators.get_mut(&id) else { return true };
        if client.named.as_ref().is_some_and(|(known, _)| *known == pid) {
            return true;
        }
        let Ok(file) = pidfd::of(pid) else {
            client.named = Some((pid, Err(Errno::ENOENT)));
            return true;
        };
        if self.unnamed.contains_key(&id) {
            client.named = Some((pid, Err(Errno::EBUSY)));
            return true;
        }
        let holder = Holder::new("", client.peer.uid).in_process(client.peer.pid);
        let unnamed = Unnamed { tag, message: message.clone(), files: std::mem::take(files) };
        self.unnamed.insert(id, unnamed);
        let enclosed = Enclosed::Process(Arc::new(file));
        self.namespaces.ask(Kind::Process, Subject::Named(id), &holder, enclosed, clock::now());
        false
    }

    /// What the name means to a call that is carried out now.
    pub(crate) fn take_named(&mut self, id: SessionId, pid: i32) -> Result<Named, Errno> {
        let named = self.operators.get_mut(&id).and_then(|client| client.named.take());
        let (_, found) = named.filter(|(known, _)| *known == pid).ok_or(Errno::ENOENT)?;
        let known = found?;
        Ok((self.recognize(&known.evidence()), Some(known)))
    }

    /// The helper has found out what it means.
    pub(crate) fn name_found(&mut self, id: SessionId, found: io::Result<Process>) {
        let Some(Unnamed { tag, message, mut files }) = self.unnamed.remove(&id) else { return };
        let name = match &message {
            Message::SetVnic(m) => pid_in(&m.name),
            Message::Capture(m) => pid_in(&m.name),
            Message::DisconnectVnic(m) => pid_in(&m.name),
            _ => None,
        };
        let known = found
            .map_err(|_| Errno::ENOENT)
            .and_then(|process| self.served(process.namespace, process.cookie));
        let (Some(pid), Some(client)) = (name, self.operators.get_mut(&id)) else { return };
        client.named = Some((pid, known));
        self.operator_message(id, tag, &message, &mut files);
        if !files.is_empty() {
            self.recorder.discard(files);
        }
    }
}
