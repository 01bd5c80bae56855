//! Runs a daemon on a thread, and clients that speak the protocol by hand.
#![allow(dead_code)] // each test file uses a part

use omniverb_control::{
    Audience, Form, Journal, Level, RuntimeFolder, Server, Settings, StartError,
};
use omniverb_session::body::*;
use omniverb_session::limits::{MESSAGE_BYTES_MAX, STATISTICS_SLOT_BYTES, STATISTICS_SLOTS};
use omniverb_session::{Message, decode, encode};
use omniverb_sys::eventfd::readable;
use omniverb_sys::{EventFd, seqpacket};
use omniverb_terms::{Gid, Qpn, Service};
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub mod client_process;
pub mod fake_vm_proxy;
pub mod namespaces;
pub mod operator;
#[path = "../../../../../tools/omniverb/src/status_pages.rs"]
mod pages;
pub mod vm_and_neighbour;
pub mod vm_network_namespace;

pub const AREA_BYTES: u64 = (STATISTICS_SLOTS * STATISTICS_SLOT_BYTES) as u64;

pub struct Daemon {
    pub path: PathBuf,
    pub operators: PathBuf,
    folder: PathBuf,
    stop: Arc<EventFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

fn unique() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A place that a daemon of this process may just have had. Its lock goes with the last descriptor,
/// and a program that another test starts at this moment has one of those until it is executed.
fn take(path: &Path) -> RuntimeFolder {
    let until = Instant::now() + SOON;
    loop {
        match RuntimeFolder::take(path, Audience::Owner) {
            Err(StartError::InUse { .. }) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            place => return place.unwrap(),
        }
    }
}

impl Daemon {
    pub fn start(settings: Settings) -> Daemon {
        let folder =
            std::env::temp_dir().join(format!("omniverb-{}-{}", std::process::id(), unique()));
        Daemon::start_in(folder, settings)
    }

    pub fn start_in(folder: PathBuf, settings: Settings) -> Daemon {
        let path = folder.join("socket");
        let operators = folder.join("operators");
        let stop = Arc::new(EventFd::new().unwrap());
        let (ready, started) = std::sync::mpsc::channel();
        let (at, apart, stopped) = (path.clone(), operators.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let place = take(&at);
            let journal = Journal::new(Level::Warning, Form::Words);
            let operators = take(&apart);
            let mut server = Server::new(place, operators, settings, journal).unwrap();
            ready.send(()).unwrap();
            server.run(Some(stopped.as_fd())).unwrap();
        });
        started.recv_timeout(Duration::from_secs(10)).unwrap();
        Daemon { path, operators, folder, stop, thread: Some(thread) }
    }

    /// Ends the daemon and gives back its folder for another one.
    pub fn stop(mut self) -> PathBuf {
        self.stop_thread();
        std::mem::take(&mut self.folder)
    }

    fn stop_thread(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// The status for an operator.
    pub fn status(&self) -> serde_json::Value {
        operator::Operator::connect(self).status()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop_thread();
        if !self.folder.as_os_str().is_empty() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

pub struct Client {
    pub calls: OwnedFd,
    pub events: Option<OwnedFd>,
    pub area: Option<(OwnedFd, Extent)>,
    tag: u64,
}

impl Client {
    pub fn connect(path: &Path) -> Client {
        Client::over(seqpacket::connect(path).unwrap())
    }

    /// On a connection that is there.
    pub fn over(calls: OwnedFd) -> Client {
        Client { calls, events: None, area: None, tag: 0 }
    }

    pub fn hello(path: &Path) -> Client {
        Client::hello_with(path, 0)
    }

    pub fn hello_with(path: &Path, resume: u32) -> Client {
        let mut client = Client::connect(path);
        let hello = Hello { role: ROLE_VERBS, resume, name: *b"test client\0\0\0\0\0" };
        let (answer, mut files) = client.call_with(hello, &[]);
        let Message::Welcome(Welcome { area, .. }) = answer else { panic!("{answer:?}") };
        assert_eq!(files.len(), 2);
        client.area = files.pop().map(|file| (file, area));
        client.events = files.pop();
        client
    }

    pub fn send(&mut self, message: impl Into<Message>, files: &[BorrowedFd<'_>]) {
        self.tag += 1;
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(self.tag, &message.into(), &mut bytes);
        seqpacket::send(self.calls.as_fd(), &bytes[..length], files).unwrap();
    }

    pub fn answer(&mut self) -> (Message, Vec<OwnedFd>) {
        assert!(readable(self.calls.as_fd(), Some(Duration::from_secs(10))).unwrap(), "no answer");
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let (length, files) =
            seqpacket::receive(self.calls.as_fd(), &mut bytes, seqpacket::BlockingMode::Blocking)
                .unwrap();
        assert_ne!(length, 0, "the daemon closed the connection");
        let (tag, message) = decode(&bytes[..length]).unwrap();
        assert_eq!(tag, self.tag);
        (message, files)
    }

    pub fn call_with(
        &mut self,
        message: impl Into<Message>,
        files: &[BorrowedFd<'_>],
    ) -> (Message, Vec<OwnedFd>) {
        self.send(message, files);
        self.answer()
    }

    pub fn event(&mut self, wait: Duration) -> Option<(Message, Vec<OwnedFd>)> {
        let events = self.events.as_ref().unwrap().as_fd();
        if !readable(events, Some(wait)).unwrap() {
            return None;
        }
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let (length, files) =
            seqpacket::receive(events, &mut bytes, seqpacket::BlockingMode::Blocking).unwrap();
        assert_ne!(length, 0, "the daemon closed the events");
        Some((decode(&bytes[..length]).unwrap().1, files))
    }

    /// True once the daemon has closed the connection.
    pub fn is_dropped(&self) -> bool {
        readable(self.calls.as_fd(), Some(Duration::from_secs(8))).unwrap()
            && matches!(
                seqpacket::receive(
                    self.calls.as_fd(),
                    &mut [0; MESSAGE_BYTES_MAX],
                    seqpacket::BlockingMode::Blocking
                ),
                Ok((0, _)) | Err(_)
            )
    }
}

/// A client, wherever it lives.
pub trait Speaker {
    fn call(&mut self, message: Message) -> Message;
    /// The next event and how many descriptors it brought.
    fn next_event(&mut self, wait: Duration) -> Option<(Message, usize)>;
    /// Says something on its events socket.
    fn say(&mut self, message: Message);
}

/// Asks again, as processes do, until the network has said where datagrams go.
pub fn patiently(mut ask: impl FnMut() -> Message) -> Message {
    loop {
        match ask() {
            Message::Connected(Connected { ready: CONNECT_AGAIN, .. }) => {
                std::thread::sleep(Duration::from_millis(2));
            }
            answer => return answer,
        }
    }
}

impl Speaker for Client {
    fn call(&mut self, message: Message) -> Message {
        patiently(|| self.call_with(message.clone(), &[]).0)
    }

    fn next_event(&mut self, wait: Duration) -> Option<(Message, usize)> {
        self.event(wait).map(|(message, files)| (message, files.len()))
    }

    fn say(&mut self, message: Message) {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(0, &message, &mut bytes);
        let events = self.events.as_ref().unwrap();
        seqpacket::send(events.as_fd(), &bytes[..length], &[]).unwrap();
    }
}

pub const SOON: Duration = Duration::from_secs(20);
pub const MOMENT: Duration = Duration::from_millis(100);

pub fn create_qp(service: Service) -> CreateQp {
    CreateQp::new(service, 1, 0)
}

/// A queue pair, as its owner announces it to another daemon.
pub fn create_kept(client: &mut dyn Speaker, service: Service) -> CreateQp {
    match client.call(create_qp(service).into()) {
        Message::QpCreated(QpCreated { qpn, issued, ticket, .. }) => {
            CreateQp { qpn, issued, ticket, ..create_qp(service) }
        }
        other => panic!("{other:?}"),
    }
}

pub fn create(client: &mut dyn Speaker, service: Service) -> Qpn {
    match client.call(create_qp(service).into()) {
        Message::QpCreated(created) => created.qpn,
        other => panic!("{other:?}"),
    }
}

pub fn gid(ip: &str) -> Gid {
    ip.parse::<IpAddr>().unwrap().into()
}

pub fn connect(qpn: Qpn, dest_qpn: Qpn, from: &str, to: &str) -> ConnectQp {
    ConnectQp { qpn, dest_qpn, sgid: gid(from), dgid: gid(to), resume: 0, carries: 0 }
}

/// The next event that is not about addresses, which the kernel changes when it likes.
fn next_but_gids(client: &mut dyn Speaker) -> Option<(Message, usize)> {
    loop {
        match client.next_event(SOON)? {
            (Message::GidsChanged(_), _) => {}
            event => return Some(event),
        }
    }
}

pub fn link_ready(client: &mut dyn Speaker) -> LinkReady {
    match next_but_gids(client) {
        Some((Message::LinkReady(ready), _)) => ready,
        other => panic!("{other:?}"),
    }
}

pub fn link_closed(client: &mut dyn Speaker) -> LinkClosed {
    match next_but_gids(client) {
        Some((Message::LinkClosed(closed), _)) => closed,
        other => panic!("{other:?}"),
    }
}
