//! Looking into network namespaces: addresses and handshake sockets, on a helper thread, because
//! the kernel may make whoever asks wait for its networking lock.

use crate::probes::PORT;
use omniverb_sys::EventFd;
use omniverb_sys::addresses::{self, Scope};
use omniverb_sys::datagram::Port;
use omniverb_sys::netns::Namespace;
use omniverb_tenancy::{Reach, VnicAddress, VnicKey};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, mpsc};

/// The key of a namespace.
pub(crate) fn key(namespace: &Namespace) -> VnicKey {
    let identity = namespace.identity();
    VnicKey { device: identity.device, inode: identity.inode }
}

/// What the helper found out.
pub(crate) enum Found {
    /// A vNIC's addresses; an empty list if they could not be read.
    Addresses(VnicKey, io::Result<Vec<VnicAddress>>),
    /// A vNIC's handshake sockets.
    Port(VnicKey, io::Result<Port>),
}

enum Job {
    Addresses(VnicKey, Arc<Namespace>),
    Port(VnicKey, Arc<Namespace>),
}

/// State of a vNIC's handshake sockets.
#[derive(Debug)]
pub(crate) enum Opening {
    /// Not asked for.
    No,
    /// The helper is at it.
    Asked,
    /// There they are.
    Open(Port),
    /// There are none to be had.
    Failed,
}

/// A vNIC's namespace, while clients of it are connected.
#[derive(Debug)]
pub(crate) struct Entry {
    namespace: Arc<Namespace>,
    pub(crate) connections: usize,
    pub(crate) half_open: usize,
    pub(crate) port: Opening,
    /// Descriptors that wait to be sent to its processes.
    pub(crate) queued: usize,
    /// Small number for the port's tokens.
    pub(crate) number: u64,
}

/// All namespaces with clients, and the helper.
pub(crate) struct Namespaces {
    entries: HashMap<VnicKey, Entry>,
    by_number: HashMap<u64, VnicKey>,
    last: u64,
    jobs: mpsc::Sender<Job>,
    found: mpsc::Receiver<Found>,
    ready: Arc<EventFd>,
}

impl Namespaces {
    pub(crate) fn new() -> io::Result<Namespaces> {
        let (jobs, work) = mpsc::channel();
        let (tell, found) = mpsc::channel();
        let ready = Arc::new(EventFd::new()?);
        let bell = ready.clone();
        std::thread::Builder::new().name("namespaces".into()).spawn(move || {
            // Ends when the daemon drops its end of the channel.
            for job in work {
                if tell.send(perform(job)).is_err() {
                    return;
                }
                bell.signal();
            }
        })?;
        let (entries, by_number) = (HashMap::new(), HashMap::new());
        Ok(Namespaces { entries, by_number, last: 0, jobs, found, ready })
    }

    /// Readable when [`next_found`](Self::next_found) has something.
    pub(crate) fn ready(&self) -> &EventFd {
        &self.ready
    }

    pub(crate) fn next_found(&mut self) -> Option<Found> {
        self.found.try_recv().ok()
    }

    /// A connection from this namespace.
    pub(crate) fn join(&mut self, namespace: Namespace) -> VnicKey {
        let key = key(&namespace);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.connections += 1;
            entry.half_open += 1;
            return key;
        }
        self.last += 1;
        let number = self.last;
        self.by_number.insert(number, key);
        let namespace = Arc::new(namespace);
        let port = Opening::No;
        let entry = Entry { namespace, connections: 1, half_open: 1, queued: 0, port, number };
        self.entries.insert(key, entry);
        key
    }

    /// A connection less; the namespace is let go with the last.
    pub(crate) fn leave(&mut self, key: VnicKey) -> Option<Entry> {
        let entry = self.entries.get_mut(&key)?;
        entry.connections -= 1;
        if entry.connections > 0 {
            return None;
        }
        let entry = self.entries.remove(&key)?;
        self.by_number.remove(&entry.number);
        Some(entry)
    }

    pub(crate) fn get_mut(&mut self, key: VnicKey) -> Option<&mut Entry> {
        self.entries.get_mut(&key)
    }

    pub(crate) fn by_number(&self, number: u64) -> Option<(VnicKey, &Port)> {
        let key = *self.by_number.get(&number)?;
        match &self.entries.get(&key)?.port {
            Opening::Open(port) => Some((key, port)),
            _ => None,
        }
    }

    /// All open handshake sockets, with their numbers.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (u64, &Port)> {
        self.entries.values().filter_map(|entry| match &entry.port {
            Opening::Open(port) => Some((entry.number, port)),
            _ => None,
        })
    }

    pub(crate) fn read_addresses(&self, key: VnicKey) {
        if let Some(entry) = self.entries.get(&key) {
            let _ = self.jobs.send(Job::Addresses(key, entry.namespace.clone()));
        }
    }

    pub(crate) fn open_port(&mut self, key: VnicKey) {
        if let Some(entry) = self.entries.get_mut(&key)
            && matches!(entry.port, Opening::No)
        {
            entry.port = Opening::Asked;
            let _ = self.jobs.send(Job::Port(key, entry.namespace.clone()));
        }
    }
}

fn perform(job: Job) -> Found {
    match job {
        Job::Addresses(key, namespace) => {
            let found = namespace.run(addresses::list);
            Found::Addresses(key, found.map(|list| list.iter().filter_map(convert).collect()))
        }
        Job::Port(key, namespace) => Found::Port(key, namespace.run(|| Port::open(PORT))),
    }
}

fn convert(address: &addresses::Address) -> Option<VnicAddress> {
    let reach = match address.scope {
        Scope::Global => Reach::Global,
        Scope::Link => Reach::Link,
        Scope::Host => Reach::Host,
    };
    let (ip, interface, loopback) = (address.ip, address.interface, address.loopback);
    address.up.then_some(VnicAddress { ip, interface, reach, loopback })
}
