//! Looking into network namespaces: addresses, and sockets of UDP port 4791, on a helper thread,
//! because the kernel may make whoever asks wait for its networking lock.

use crate::port::Replies;
use crate::probes::PORT;
use omniverb_sys::EventFd;
use omniverb_sys::addresses::{self, Scope};
use omniverb_sys::datagram::Port;
use omniverb_sys::netns::Namespace;
use omniverb_tenancy::{Reach, VnicAddress, VnicKey, WireEnd};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Times a port that is in use is tried again, and the time between.
const PORT_TRIES: u32 = 10;
const PORT_PAUSE: Duration = Duration::from_millis(10);

/// The key of a namespace.
pub(crate) fn key(namespace: &Namespace) -> VnicKey {
    let identity = namespace.identity();
    VnicKey { device: identity.device, inode: identity.inode }
}

/// What the helper found out.
pub(crate) enum Found {
    /// A vNIC's addresses, and its namespace's cookie.
    Addresses(VnicKey, io::Result<Vec<VnicAddress>>, Option<u64>),
    /// A vNIC's sockets.
    Port(VnicKey, io::Result<Port>),
}

enum Job {
    Addresses(VnicKey, Arc<Namespace>),
    Port(VnicKey, Arc<Namespace>),
}

/// How long sockets that could not be had are not asked for again.
const PORT_AGAIN: u64 = 5_000_000_000;

/// State of a vNIC's sockets.
#[derive(Debug)]
pub(crate) enum Opening {
    /// Not asked for.
    No,
    /// The helper is at it.
    Asked,
    /// There they are; the engine has them, too.
    Open(Arc<Port>),
    /// There were none to be had at that time.
    Failed(u64),
}

/// A vNIC's namespace, while clients of it are connected.
#[derive(Debug)]
pub(crate) struct Entry {
    namespace: Arc<Namespace>,
    pub(crate) connections: usize,
    pub(crate) half_open: usize,
    pub(crate) port: Opening,
    /// Links to the engine that wait for the sockets.
    pub(crate) waiting: Vec<WireEnd>,
    pub(crate) replies: Replies,
    /// Descriptors that wait to be sent to its processes.
    pub(crate) queued: usize,
    /// Small number for the engine.
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
        let entry = self.entry(key, Arc::new(namespace));
        entry.connections += 1;
        entry.half_open += 1;
        key
    }

    fn entry(&mut self, key: VnicKey, namespace: Arc<Namespace>) -> &mut Entry {
        self.entries.entry(key).or_insert_with(|| {
            self.last += 1;
            let number = self.last;
            self.by_number.insert(number, key);
            Entry {
                namespace,
                connections: 0,
                half_open: 0,
                port: Opening::No,
                waiting: Vec::new(),
                replies: Replies::default(),
                queued: 0,
                number,
            }
        })
    }

    /// Somebody else who needs it, until he leaves.
    pub(crate) fn hold(&mut self, key: VnicKey, namespace: Arc<Namespace>) {
        self.entry(key, namespace).connections += 1;
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

    /// The number that the engine knows a vNIC by.
    pub(crate) fn number(&self, key: VnicKey) -> Option<u64> {
        self.entries.get(&key).map(|entry| entry.number)
    }

    /// How far a vNIC's sockets are, in a word.
    pub(crate) fn port_state(&self, key: VnicKey) -> &'static str {
        match self.entries.get(&key).map(|entry| &entry.port) {
            Some(Opening::Open(_)) => "open",
            Some(Opening::Failed(_)) => "unavailable",
            Some(Opening::No | Opening::Asked) | None => "closed",
        }
    }

    /// The namespace of a vNIC that has clients.
    pub(crate) fn namespace(&self, key: VnicKey) -> Option<Arc<Namespace>> {
        self.entries.get(&key).map(|entry| entry.namespace.clone())
    }

    /// The vNIC of an engine's number.
    pub(crate) fn by_number(&self, number: u64) -> Option<VnicKey> {
        self.by_number.get(&number).copied()
    }

    /// All that have clients.
    pub(crate) fn keys(&self) -> impl Iterator<Item = VnicKey> {
        self.entries.keys().copied()
    }

    pub(crate) fn read_addresses(&self, key: VnicKey) {
        if let Some(entry) = self.entries.get(&key) {
            let _ = self.jobs.send(Job::Addresses(key, entry.namespace.clone()));
        }
    }

    /// True if the vNIC's sockets are open or asked for; asks for them if that was long ago.
    pub(crate) fn port_is_coming(&mut self, key: VnicKey, now: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&key) else { return false };
        match entry.port {
            Opening::Open(_) | Opening::Asked => return true,
            Opening::Failed(at) if now.saturating_sub(at) < PORT_AGAIN => return false,
            Opening::No | Opening::Failed(_) => {}
        }
        entry.port = Opening::Asked;
        let _ = self.jobs.send(Job::Port(key, entry.namespace.clone()));
        true
    }
}

fn perform(job: Job) -> Found {
    match job {
        Job::Addresses(key, namespace) => {
            let found = namespace.run(addresses::list);
            let list = found.map(|list| list.iter().filter_map(convert).collect());
            Found::Addresses(key, list, namespace.cookie().ok())
        }
        Job::Port(key, namespace) => Found::Port(key, namespace.run(open_port)),
    }
}

/// Opens the port. It may still be ours: when a vNIC's last process has ended the packet thread
/// lets go of it a moment later, and its next process may be quicker.
fn open_port() -> io::Result<Port> {
    for _ in 0..PORT_TRIES {
        match Port::open(PORT) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                std::thread::sleep(PORT_PAUSE)
            }
            result => return result,
        }
    }
    Port::open(PORT)
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
