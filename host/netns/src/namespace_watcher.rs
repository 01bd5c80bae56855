//! Tells the daemon of network namespaces that get an interface, change, or end.
//!
//! The kernel says that something happened in a namespace that it names by a number. Which one
//! that is, is found by its name or by a process in it. Namespaces that no interface joins to the
//! host's are not heard of: the daemon looks at these when their first process comes.

use crate::container_facts::{collect, identity_at, named};
use crate::helper_protocol::{send_appeared, send_vanished};
use crate::known_namespaces::{Found, NamespaceBook};
use omniverb_sys::netns::{Namespace, NetnsIdentity};
use omniverb_sys::network_events::{NetworkEvent, NetworkEvents};
use omniverb_sys::network_interfaces::{namespace_id, namespace_ids};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Budget: processes that are looked at for a namespace, each time.
const PROCESSES_MAX: usize = 65536;
/// Budget: of the watcher's time, it works at most one part in this many.
const WORK_ONE_OF: u32 = 5;
/// How long to wait for what else happens when an interface is set up.
const SETTLE: Duration = Duration::from_millis(5);
/// How long to wait before a namespace is sought again that was not found; each time twice that.
const AGAIN: Duration = Duration::from_millis(20);
/// Datagrams that are read before what they say is acted upon.
const DATAGRAMS: usize = 4096;

/// Listens to the kernel, and says what it hears at `socket` until that is closed.
pub(crate) struct NamespaceWatcher {
    events: NetworkEvents,
    socket: Arc<OwnedFd>,
    ours: NetnsIdentity,
    book: NamespaceBook,
    /// When namespaces were sought last.
    sought_at: Instant,
}

impl NamespaceWatcher {
    /// Listens from now on.
    pub(crate) fn new(socket: Arc<OwnedFd>) -> io::Result<NamespaceWatcher> {
        let events = NetworkEvents::open()?;
        let ours = Namespace::current()?.identity();
        let mut book = NamespaceBook::default();
        // Whatever was there before.
        book.hear(NetworkEvent::Lost);
        Ok(NamespaceWatcher { events, socket, ours, book, sought_at: Instant::now() })
    }

    /// Returns when the daemon is gone.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut rest = SETTLE;
        loop {
            let begun = Instant::now();
            while begun.elapsed() < rest {
                self.wait(Some(rest.saturating_sub(begun.elapsed())))?;
                self.hear()?;
            }
            let limit = self.until_due();
            if limit != Some(Duration::ZERO) {
                self.wait(limit)?;
                self.hear()?;
                rest = SETTLE;
                continue;
            }
            let begun = Instant::now();
            self.act()?;
            rest = (begun.elapsed() * (WORK_ONE_OF - 1)).max(SETTLE);
        }
    }

    /// How long there is nothing to do if nothing is heard; `None`: for ever.
    fn until_due(&self) -> Option<Duration> {
        match self.book.is_due() {
            true => Some(Duration::ZERO),
            false => self.until_sought(),
        }
    }

    /// How long until a namespace is sought again that was not found; `None`: none is sought.
    fn until_sought(&self) -> Option<Duration> {
        let pause = match self.book.least_sought()? {
            0 => return Some(Duration::ZERO),
            times => AGAIN * 2_u32.pow(times.min(8)),
        };
        Some((self.sought_at + pause).saturating_duration_since(Instant::now()))
    }

    /// Sleeps until there is something to hear. An error: the daemon is gone.
    fn wait(&self, limit: Option<Duration>) -> io::Result<()> {
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs().cast_signed(),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut files = [
            PollFd::new(&self.events, PollFlags::IN),
            PollFd::new(&self.socket, PollFlags::empty()),
        ];
        match poll(&mut files, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        match files[1].revents().is_empty() {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn hear(&mut self) -> io::Result<()> {
        let (events, book) = (&self.events, &mut self.book);
        for _ in 0..DATAGRAMS {
            if !events.receive(|event| book.hear(event))? {
                break;
            }
        }
        Ok(())
    }

    fn act(&mut self) -> io::Result<()> {
        if self.book.take_lost() {
            self.book.recount(&namespace_ids()?);
        }
        while let Some(identity) = self.book.next_ended() {
            send_vanished(self.socket.as_fd(), identity)?;
        }
        if self.until_sought() == Some(Duration::ZERO) {
            self.seek();
            self.sought_at = Instant::now();
        }
        while let Some((number, found)) = self.book.next_changed() {
            match self.open(&found) {
                Some(namespace) => {
                    // It may end meanwhile.
                    if let Ok((facts, cookie)) = collect(&namespace) {
                        send_appeared(self.socket.as_fd(), found.identity, cookie, &facts)?;
                    }
                }
                None => self.book.moved(number),
            }
        }
        Ok(())
    }

    /// The namespace that was found at a path, if it still is there.
    fn open(&self, found: &Found) -> Option<Namespace> {
        identity_at(found.path.clone(), self.ours.device)?;
        let file = File::open(&found.path).ok()?;
        let namespace = Namespace::received(file.into()).ok()?;
        (namespace.identity() == found.identity).then_some(namespace)
    }

    /// Looks at all names, then at processes.
    fn seek(&mut self) {
        let device = self.ours.device;
        self.consider(named(device));
        if self.book.seeks() {
            let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
            let numbered = processes.filter(|entry| {
                entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok())
            });
            let places = numbered.take(PROCESSES_MAX).filter_map(move |entry| {
                let path = entry.path().join("ns/net");
                let identity = identity_at(path.clone(), device)?;
                Some((path, identity))
            });
            self.consider(places);
        }
        self.book.sought_once();
    }

    fn consider(&mut self, places: impl Iterator<Item = (PathBuf, NetnsIdentity)>) {
        let mut seen: BTreeSet<NetnsIdentity> = self.book.identities().collect();
        seen.insert(self.ours);
        for (path, identity) in places {
            if !self.book.seeks() {
                return;
            }
            if !seen.insert(identity) {
                continue;
            }
            let found = Found { identity, path };
            if let Some(namespace) = self.open(&found)
                && let Ok(Some(number)) = namespace_id(namespace.as_fd())
            {
                self.book.found(number, found);
            }
        }
    }
}
