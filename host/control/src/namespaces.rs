//! Network namespaces with clients, and what the helper is asked about them: addresses, and sockets
//! of UDP port 4791.

use crate::asking::{Asking, Enclosed, Subject, Told};
use crate::evidence::{Attachment, Evidence};
use crate::port::{VnicPort, Wanted};
use omniverb_netns::Kind;
use omniverb_sys::addresses::{self, Scope};
use omniverb_sys::child::Helpers;
use omniverb_sys::netns::Namespace;
use omniverb_sys::pulse::Pulses;
use omniverb_tenancy::{Holder, Reach, VnicAddress, VnicId};
use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A namespace, and its number that never comes back, where the kernel says.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) cookie: Option<u64>,
}

impl Known {
    /// What tells it from others: its device and inode number are given again once nobody has it
    /// open, its cookie is not.
    pub(crate) fn evidence(&self) -> Evidence {
        let identity = self.namespace.identity();
        Evidence {
            attachment: Attachment::Namespace,
            place: [identity.device, identity.inode],
            serial: self.cookie,
        }
    }
}

/// Our own, which needs no privilege.
pub(crate) fn home() -> io::Result<Known> {
    let namespace = Arc::new(Namespace::current()?);
    Ok(Known { cookie: namespace.cookie().ok(), namespace })
}

/// A vNIC's namespace, while clients of it are connected.
#[derive(Debug)]
struct Entry {
    known: Known,
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
    pub(crate) fn join(&mut self, key: VnicId, known: Known, holder: &Holder) {
        self.entry(key, known, holder).connections += 1;
    }

    fn entry(&mut self, key: VnicId, known: Known, holder: &Holder) -> &mut Entry {
        self.entries.entry(key).or_insert_with(|| Entry {
            known,
            holder: holder.clone(),
            connections: 0,
            port: VnicPort::default(),
        })
    }

    /// Somebody else who needs it, until he leaves.
    pub(crate) fn hold(&mut self, key: VnicId, known: Known) {
        self.entry(key, known, &Holder::default()).connections += 1;
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

    /// The namespace of a vNIC that has clients.
    pub(crate) fn namespace(&self, key: VnicId) -> Option<Known> {
        self.entries.get(&key).map(|entry| entry.known.clone())
    }

    pub(crate) fn read_addresses(&mut self, key: VnicId, now: u64) {
        self.ask_of(Kind::Addresses, key, now);
    }

    fn ask_of(&mut self, kind: Kind, key: VnicId, now: u64) {
        if let Some(entry) = self.entries.get(&key) {
            let enclosed = Enclosed::Namespace(entry.known.namespace.clone());
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
