//! What vNICs with clients are attached by (network namespaces), and what the helper is asked about
//! that: addresses, and sockets of UDP port 4791.

use crate::asking::{Asking, Enclosed, Subject, Told};
use crate::attached::Attached;
use crate::port::{VnicPort, Wanted};
use omniverb_netns::Kind;
use omniverb_sys::addresses::{self, Scope};
use omniverb_sys::child::Helpers;
use omniverb_sys::pulse::Pulses;
use omniverb_tenancy::{Holder, Reach, VnicAddress, VnicId};
use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;

/// What a vNIC is attached by, while clients of it are connected.
#[derive(Debug)]
struct Entry {
    attached: Attached,
    /// Who brought it.
    holder: Holder,
    connections: usize,
    port: VnicPort,
}

/// The namespaces of all vNICs with clients.
pub(crate) struct Namespaces {
    entries: HashMap<VnicId, Entry>,
    asking: Asking,
}

impl Namespaces {
    pub(crate) fn new(helpers: &Helpers, pulses: &Pulses) -> io::Result<Namespaces> {
        let asking = Asking::start(helpers, pulses.minor("helper"))?;
        Ok(Namespaces { entries: HashMap::new(), asking })
    }

    /// Namespaces other than our own can be entered.
    pub(crate) fn others_too(&self) -> bool {
        self.asking.enters
    }

    /// Readable when [`next_told`](Self::next_told) has something.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.asking.socket()
    }

    pub(crate) fn next_told(&mut self, now: u64) -> io::Result<Option<Told>> {
        self.asking.next(now)
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.asking.next_deadline()
    }

    /// What the helper has not answered in time.
    pub(crate) fn late(&mut self, now: u64) -> Vec<Told> {
        self.asking.late(now)
    }

    /// See [`Asking::ask`].
    pub(crate) fn ask(
        &mut self,
        kind: Kind,
        subject: Subject,
        holder: &Holder,
        enclosed: Enclosed,
        now: u64,
    ) {
        self.asking.ask(kind, subject, holder, enclosed, now);
    }

    /// See [`Asking::forget`].
    pub(crate) fn forget(&mut self, kind: Kind, subject: Subject, holder: &Holder) {
        self.asking.forget(kind, subject, holder);
    }

    /// A connection from this namespace.
    pub(crate) fn join(&mut self, key: VnicId, attached: Attached, holder: &Holder) {
        self.entry(key, attached, holder).connections += 1;
    }

    fn entry(&mut self, key: VnicId, attached: Attached, holder: &Holder) -> &mut Entry {
        self.entries.entry(key).or_insert_with(|| Entry {
            attached,
            holder: holder.clone(),
            connections: 0,
            port: VnicPort::default(),
        })
    }

    /// Somebody else who needs it, until he leaves.
    pub(crate) fn hold(&mut self, key: VnicId, attached: Attached) {
        self.entry(key, attached, &Holder::default()).connections += 1;
    }

    /// A connection less; the namespace is let go with the last.
    pub(crate) fn leave(&mut self, key: VnicId) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        entry.connections -= 1;
        if entry.connections == 0 {
            self.entries.remove(&key);
        }
    }

    /// The port of a vNIC that has clients.
    pub(crate) fn port(&self, key: VnicId) -> Option<&VnicPort> {
        self.entries.get(&key).map(|entry| &entry.port)
    }

    pub(crate) fn port_mut(&mut self, key: VnicId) -> Option<&mut VnicPort> {
        self.entries.get_mut(&key).map(|entry| &mut entry.port)
    }

    /// True if a vNIC's sockets are there.
    pub(crate) fn has_port(&self, key: VnicId) -> bool {
        self.port(key).is_some_and(|port| port.open().is_some())
    }

    /// True for a vNIC that has clients.
    pub(crate) fn has(&self, key: VnicId) -> bool {
        self.entries.contains_key(&key)
    }

    /// What a vNIC that has clients is attached by.
    pub(crate) fn attached(&self, key: VnicId) -> Option<Attached> {
        self.entries.get(&key).map(|entry| entry.attached.clone())
    }

    pub(crate) fn read_addresses(&mut self, key: VnicId, now: u64) {
        self.ask_of(Kind::Addresses, key, now);
    }

    fn ask_of(&mut self, kind: Kind, key: VnicId, now: u64) {
        if let Some(entry) = self.entries.get(&key)
            && let Some(enclosed) = entry.attached.enclosed()
        {
            self.asking.ask(kind, Subject::Vnic(key), &entry.holder, enclosed, now);
        }
    }

    /// True if the vNIC's sockets are open or asked for; asks for them if that was long ago.
    pub(crate) fn port_is_coming(&mut self, key: VnicId, now: u64) -> bool {
        let wanted = self.port_mut(key).map(|port| port.want(now));
        if wanted == Some(Wanted::Ask) {
            self.ask_of(Kind::Port, key, now);
        }
        wanted.is_some_and(|wanted| wanted != Wanted::Vain)
    }

    /// A port that was in use is asked for again.
    pub(crate) fn try_port_again(&mut self, key: VnicId, now: u64) {
        if self.port(key).is_some_and(VnicPort::is_asked_for) {
            self.ask_of(Kind::Port, key, now);
        }
    }
}

/// The addresses of a vNIC as the tables want them.
pub(crate) fn usable(list: &[addresses::Address]) -> Vec<VnicAddress> {
    list.iter().filter_map(convert).collect()
}

fn convert(address: &addresses::Address) -> Option<VnicAddress> {
    let reach = match address.scope {
        Scope::Global => Reach::Global,
        Scope::Link => Reach::Link,
        Scope::Host => Reach::Host,
    };
    let (ip, interface, loopback) = (address.ip, address.interface, address.loopback);
    address.up.then_some(VnicAddress { ip, interface, reach, loopback, mtu: address.mtu })
}
