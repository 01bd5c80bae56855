//! Tracks the sockets of a vNIC's UDP port 4791, and the links that wait for them.

use omniverb_sys::udp_socket::UdpPort;
use omniverb_tenancy::EngineEnd;
use omniverb_terms::{Operations, Qpn, UnderlayRoute};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// How long sockets that could not be had are not asked for again.
pub(crate) const AGAIN: u64 = 5_000_000_000;
/// Times a port that is in use is tried again: held by another process, and held perhaps by us,
/// half a minute.
const TRIES: u32 = 10;
const TRIES_OURS: u32 = 1500;
/// The time between two of these.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

/// State of a vNIC's sockets.
#[derive(Debug, Default)]
enum State {
    /// Not asked for.
    #[default]
    No,
    /// The helper is at it, or will be again; it has found the port in use so many times.
    Asked(u32),
    /// There they are; the engine has them, too.
    Open(Arc<UdpPort>),
    /// There were none to be had at that time.
    Failed(u64),
}

/// Where sockets are that were closed, of any vNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// A packet thread has not let go of some.
    Lingering,
    /// No socket is left.
    Gone,
}

/// What to do for a caller that wants the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortUse {
    /// They are there, or will be.
    Coming,
    /// Ask the helper for them.
    Ask,
    /// They could not be opened a moment ago: it is not tried again yet.
    Vain,
}

/// The groups that queue pairs are attached to, by their links.
///
/// The kernel counts groups at an interface, whatever the address is that it is named by: that may
/// be another one for two queue pairs, if the first one changed in between.
#[derive(Debug, Default)]
struct Groups(HashMap<(Qpn, Qpn), UnderlayRoute>);

impl Groups {
    /// Whether no link is for this group at this interface.
    fn is_new(&self, underlay: &UnderlayRoute) -> bool {
        let place = |at: &UnderlayRoute| (at.remote, at.interface, at.key);
        !self.0.values().any(|other| place(other) == place(underlay))
    }

    /// One more link. The group to be left in its stead, if there is one.
    fn add(&mut self, link: (Qpn, Qpn), underlay: UnderlayRoute) -> Option<UnderlayRoute> {
        self.0.insert(link, underlay).filter(|older| self.is_new(older))
    }

    /// One link less. The group to be left, if it was the last there.
    fn remove(&mut self, link: &(Qpn, Qpn)) -> Option<UnderlayRoute> {
        self.0.remove(link).filter(|underlay| self.is_new(underlay))
    }
}

fn leave_group(port: &UdpPort, underlay: &UnderlayRoute) {
    // An interface that is gone has taken it along.
    let _ = port.leave_group(underlay.remote, underlay.local, underlay.interface);
}

/// The network that a group is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupScope {
    /// That of the vNIC's namespace: its sockets are in the group.
    Namespace,
    /// A virtual one: the caller joins and leaves the group.
    Virtual,
}

/// Groups that a port is in from now on, and no longer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupChange {
    pub(crate) joined: Option<IpAddr>,
    pub(crate) left: Option<IpAddr>,
}

/// A vNIC's port.
#[derive(Debug, Default)]
pub(crate) struct VnicPort {
    state: State,
    /// Links to the engine that wait for the sockets.
    waiting: Vec<EngineEnd>,
    groups: Groups,
}

impl VnicPort {
    /// A caller wants the sockets. They are asked for again only if the last attempt was long ago.
    pub(crate) fn want(&mut self, now: u64) -> PortUse {
        match self.state {
            State::Open(_) | State::Asked(_) => PortUse::Coming,
            State::Failed(at) if now.saturating_sub(at) < AGAIN => PortUse::Vain,
            State::No | State::Failed(_) => {
                self.state = State::Asked(0);
                PortUse::Ask
            }
        }
    }

    /// The port was in use: whether it is worth another try in a moment. It may still be ours: when
    /// a vNIC's last process has ended the packet thread lets go of it a little later, on a busy
    /// machine much later, and its next process may be quicker.
    pub(crate) fn tries_again(&mut self, closed: Closed) -> bool {
        let most = match closed {
            Closed::Lingering => TRIES_OURS,
            Closed::Gone => TRIES,
        };
        match &mut self.state {
            State::Asked(tries) => {
                *tries += 1;
                *tries <= most
            }
            _ => false,
        }
    }

    pub(crate) fn is_asked_for(&self) -> bool {
        matches!(self.state, State::Asked(_))
    }

    /// The sockets are open: the links that waited for them. `None` if none wants them any more.
    pub(crate) fn opened(&mut self, port: Arc<UdpPort>) -> Option<Vec<EngineEnd>> {
        self.settle(State::Open(port))
    }

    /// The sockets cannot be opened: the links that waited for them. `None` if none wants them any
    /// more.
    pub(crate) fn failed(&mut self, now: u64) -> Option<Vec<EngineEnd>> {
        self.settle(State::Failed(now))
    }

    fn settle(&mut self, state: State) -> Option<Vec<EngineEnd>> {
        if !self.is_asked_for() {
            return None;
        }
        self.state = state;
        Some(std::mem::take(&mut self.waiting))
    }

    /// The vNIC needs them no more. What was open.
    pub(crate) fn close(&mut self) -> Option<Arc<UdpPort>> {
        self.groups = Groups::default();
        match std::mem::take(&mut self.state) {
            State::Open(port) => Some(port),
            _ => None,
        }
    }

    /// The sockets, if they are open.
    pub(crate) fn open(&self) -> Option<&UdpPort> {
        match &self.state {
            State::Open(port) => Some(port),
            _ => None,
        }
    }

    /// The sockets, if they are open, to share with another owner.
    pub(crate) fn shared(&self) -> Option<Arc<UdpPort>> {
        match &self.state {
            State::Open(port) => Some(port.clone()),
            _ => None,
        }
    }

    /// How far they are, in a word.
    pub(crate) fn word(&self) -> &'static str {
        match self.state {
            State::Open(_) => "open",
            State::Failed(_) => "unavailable",
            State::No | State::Asked(_) => "closed",
        }
    }

    /// A link waits for the sockets.
    pub(crate) fn wait(&mut self, end: EngineEnd) {
        self.waiting.push(end);
    }

    /// A link no longer waits. Whether it did.
    pub(crate) fn wait_no_more(&mut self, qpn: Qpn, peer_qpn: Qpn) -> bool {
        let names = |end: &EngineEnd| (end.ready.qpn, end.ready.peer_qpn) == (qpn, peer_qpn);
        let before = self.waiting.len();
        for gone in self.waiting.extract_if(.., |end| names(end)).collect::<Vec<_>>() {
            // It was to bring the doorbell that others need: the next one of them does.
            let shares = |end: &&mut EngineEnd| end.ready.bell == gone.ready.bell;
            if let Some(next) = self.waiting.iter_mut().find(shares) {
                next.ready.bell_new |= gone.ready.bell_new;
            }
        }
        self.waiting.len() < before
    }

    /// A link that waits refuses something else than before: requests of the peer, and of its
    /// queue pair.
    pub(crate) fn refuse(&mut self, link: (Qpn, Qpn), inbound: Operations, outbound: Operations) {
        for end in &mut self.waiting {
            if (end.ready.qpn, end.ready.peer_qpn) == link {
                (end.ready.refused, end.refused) = (inbound.bits(), outbound);
            }
        }
    }

    /// A link is there by which a queue pair is attached to a group: the remote address.
    pub(crate) fn join(
        &mut self,
        link: (Qpn, Qpn),
        underlay: UnderlayRoute,
        scope: GroupScope,
    ) -> io::Result<GroupChange> {
        let State::Open(port) = &self.state else { return Err(io::ErrorKind::NotConnected.into()) };
        if underlay.key.is_some() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let is_new = self.groups.is_new(&underlay);
        if is_new && scope == GroupScope::Namespace {
            port.join_group(underlay.remote, underlay.local, underlay.interface)?;
        }
        let older = self.groups.add(link, underlay);
        if let Some(older) = older.filter(|_| scope == GroupScope::Namespace) {
            leave_group(port, &older);
        }
        let joined = is_new.then_some(underlay.remote);
        Ok(GroupChange { joined, left: older.map(|older| older.remote) })
    }

    /// A link by which a queue pair was attached to a group is no more. The group, if it was the
    /// last there.
    pub(crate) fn leave(&mut self, link: (Qpn, Qpn)) -> Option<IpAddr> {
        let underlay = self.groups.remove(&link)?;
        if let State::Open(port) = &self.state
            && port.carried().is_none()
        {
            leave_group(port, &underlay);
        }
        Some(underlay.remote)
    }

    /// No link waits any more.
    pub(crate) fn forget_waiting_links(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_left_with_its_last_link_at_an_interface() {
        let at = |local: [u8; 4], interface| {
            UnderlayRoute::plain(local.into(), [239, 1, 2, 3].into(), interface)
        };
        let link = |number| (Qpn(number), Qpn::of_group(0));
        let mut groups = Groups::default();
        let (first, same, other) =
            (at([10, 0, 0, 1], 2), at([10, 0, 0, 9], 2), at([10, 1, 0, 1], 3));
        assert!(groups.is_new(&first));
        assert_eq!(groups.add(link(1), first), None);
        // By another address of that interface it is no other; by another interface it is.
        assert!(!groups.is_new(&same) && groups.is_new(&other));
        assert_eq!(groups.add(link(2), same), None);
        assert_eq!(groups.remove(&link(1)), None);
        // What takes the place of a link takes it from its group.
        assert_eq!(groups.add(link(2), other), Some(same));
        assert_eq!([groups.remove(&link(2)), groups.remove(&link(2))], [Some(other), None]);
    }

    #[test]
    fn a_port_that_cannot_be_opened_is_not_retried_at_once() {
        let mut port = VnicPort::default();
        assert_eq!([port.want(1), port.want(2)], [PortUse::Ask, PortUse::Coming]);
        assert_eq!((0..20).filter(|_| port.tries_again(Closed::Gone)).count(), TRIES as usize);
        assert!(port.failed(3).is_some() && port.failed(4).is_none());
        assert_eq!([port.want(5), port.want(3 + AGAIN)], [PortUse::Vain, PortUse::Ask]);
        // A port that is perhaps still ours is waited for; afterwards no more.
        assert_eq!((0..20).filter(|_| port.tries_again(Closed::Lingering)).count(), 20);
        assert!(!port.tries_again(Closed::Gone));
        assert!(port.close().is_none());
        assert!(port.failed(6).is_none(), "no link wants it any more");
    }
}
