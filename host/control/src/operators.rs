//! Holds the operators' listener, its connections, and calls that wait for a vNIC's name.

use crate::listener::Listener;
use omniverb_fairness::Holder;
use omniverb_session::operator::Message;
use omniverb_sys::seqpacket::Peer;
use omniverb_tenancy::SessionId;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// Budget: operators at the same time: they hold descriptors of ours, and root has no need of more.
const OPERATORS_MAX: usize = 64;

/// An operator's call, with the descriptors that came with it.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) tag: u64,
    pub(crate) message: Message,
    pub(crate) files: Vec<OwnedFd>,
}

impl Call {
    /// The name of the vNIC that it is about, if it is about one; an empty one is our own's.
    pub(crate) fn name(&self) -> Option<&[u8]> {
        let name = match &self.message {
            Message::SetVnic(m) => &m.name[..],
            Message::DisconnectVnic(m) => &m.name[..],
            Message::Capture(m) => &m.name[..],
            // A machine has a name of its own, by which there may be no vNIC yet.
            _ => return None,
        };
        name.split(|byte| *byte == 0).next()
    }

    /// The process by which it names a vNIC.
    pub(crate) fn pid(&self) -> Option<i32> {
        pid_in(self.name()?)
    }
}

/// The pid in a name of the form `pid:N`.
fn pid_in(name: &[u8]) -> Option<i32> {
    std::str::from_utf8(name).ok()?.strip_prefix("pid:")?.parse().ok()
}

/// A connected operator.
#[derive(Debug)]
pub(crate) struct Operator {
    socket: OwnedFd,
    peer: Peer,
    /// The call that waits until the process it names was looked at.
    waiting: Option<Call>,
    /// It waits for a machine's demand: there is one such call for each machine, beside the
    /// operators' places.
    keeps: bool,
}

/// All of them, by numbers that no session has.
#[derive(Debug)]
pub(crate) struct Operators {
    listener: Listener,
    all: BTreeMap<SessionId, Operator>,
}

impl Operators {
    pub(crate) fn new(listener: Listener) -> Operators {
        Operators { listener, all: BTreeMap::new() }
    }

    /// Where they come in.
    pub(crate) fn listener(&self) -> &Listener {
        &self.listener
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.all.values().filter(|operator| !operator.keeps).count() >= OPERATORS_MAX
    }

    /// One is a machine's supervisor from now on.
    pub(crate) fn keeps(&mut self, id: SessionId) {
        if let Some(operator) = self.all.get_mut(&id) {
            operator.keeps = true;
        }
    }

    /// Closes the listener; the connected operators, and the sockets that were not accepted yet.
    pub(crate) fn close(&mut self) -> (Vec<SessionId>, Vec<OwnedFd>) {
        self.listener.close();
        let left = std::iter::from_fn(|| self.listener.next_left());
        (self.all.keys().copied().collect(), left.collect())
    }

    pub(crate) fn add(&mut self, id: SessionId, socket: OwnedFd, peer: Peer) {
        self.all.insert(id, Operator { socket, peer, waiting: None, keeps: false });
    }

    pub(crate) fn socket(&self, id: SessionId) -> Option<&OwnedFd> {
        self.all.get(&id).map(|operator| &operator.socket)
    }

    /// The kernel's credentials of an operator.
    pub(crate) fn peer(&self, id: SessionId) -> Option<Peer> {
        self.all.get(&id).map(|operator| operator.peer)
    }

    /// The holder that the inspection of the process that a call names counts for; `None` if
    /// another call of this operator waits for one.
    pub(crate) fn may_wait(&self, id: SessionId) -> Option<Holder> {
        let operator = self.all.get(&id).filter(|operator| operator.waiting.is_none())?;
        Some(Holder::new("", operator.peer.uid).in_process(operator.peer.pid))
    }

    /// Keeps a call until that was done.
    pub(crate) fn wait(&mut self, id: SessionId, call: Call) {
        if let Some(operator) = self.all.get_mut(&id) {
            operator.waiting = Some(call);
        }
    }

    /// The call that waits for the helper, which has answered.
    pub(crate) fn take_call(&mut self, id: SessionId) -> Option<Call> {
        self.all.get_mut(&id)?.waiting.take()
    }

    /// One is gone: its socket, and what came with the call that waits.
    pub(crate) fn remove(&mut self, id: SessionId) -> Option<(OwnedFd, Vec<OwnedFd>)> {
        let operator = self.all.remove(&id)?;
        Some((operator.socket, operator.waiting.map_or(Vec::new(), |call| call.files)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_by_its_number() {
        for (name, pid) in
            [("pid:17", Some(17)), ("pid:-1", Some(-1)), ("pid:x", None), ("17", None)]
        {
            assert_eq!(pid_in(name.as_bytes()), pid, "{name}");
        }
    }
}
