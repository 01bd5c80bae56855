//! Tests that the socket broker runs if it is wanted, and is restarted when it dies.

mod proc_status;

use omniverb_formats::broker_message::{BYTES, Reply, Request, SUFFIX};
use omniverb_sys::seqpacket;
use proc_status::{children, field, until};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_omniverbd");

struct Daemon {
    child: Child,
    folder: PathBuf,
}

impl Daemon {
    fn start(name: &str, configuration: &str, more: &[&str]) -> Daemon {
        let folder =
            std::env::temp_dir().join(format!("omniverbd-sockets-{name}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let written = folder.join("omniverbd.toml");
        fs::write(&written, configuration).unwrap();
        let mut command = Command::new(PROGRAM);
        command.arg("--socket").arg(folder.join("socket")).arg("--operator-socket");
        command.arg(folder.join("operators")).arg("--config").arg(written).args(more);
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        let daemon = Daemon { child, folder };
        // The broker has its place before the first client is answered.
        let path = daemon.folder.join("socket");
        until(|| seqpacket::is_alive(&path));
        let calls = seqpacket::connect(&path).unwrap();
        seqpacket::send(calls.as_fd(), b"nonsense", &[]).unwrap();
        let _ =
            seqpacket::receive(calls.as_fd(), &mut [0; 1024], seqpacket::BlockingMode::Blocking);
        daemon
    }

    fn place(&self) -> PathBuf {
        self.folder.join(format!("socket{SUFFIX}"))
    }

    /// The processes of that name that it has started.
    fn helpers(&self, name: &str) -> Vec<u32> {
        named(self.child.id(), name)
    }
}

/// The children of that name.
fn named(pid: u32, name: &str) -> Vec<u32> {
    let is_one = |child: &u32| field(*child, "Name").is_some_and(|is| is == format!("omni:{name}"));
    children(pid).into_iter().filter(is_one).collect()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Whether it answers hello.
fn is_welcoming(daemon: &Daemon) -> bool {
    welcomed(daemon).is_some()
}

/// A process that has said hello, and was answered.
fn welcomed(daemon: &Daemon) -> Option<OwnedFd> {
    let calls = seqpacket::connect(&daemon.place()).ok()?;
    let (protocol, flags) = (Some(netlink::SOCK_DIAG), SocketFlags::CLOEXEC);
    let by = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).unwrap();
    seqpacket::send(calls.as_fd(), &Request::Hello { name: [0; 2] }.encode(), &[by.as_fd()])
        .ok()?;
    let mut bytes = [0; BYTES];
    seqpacket::receive(calls.as_fd(), &mut bytes, seqpacket::BlockingMode::Blocking).ok()?;
    (Reply::decode(&bytes) == Some(Reply::Welcome)).then_some(calls)
}

#[test]
fn a_client_of_the_broker_keeps_the_daemon_running() {
    let mut daemon = Daemon::start("idle", "", &["--idle-exit", "1"]);
    let calls = welcomed(&daemon).unwrap();
    thread::sleep(Duration::from_secs(3));
    assert_eq!(daemon.child.try_wait().unwrap(), None);
    drop(calls);
    until(|| daemon.child.try_wait().unwrap().is_some_and(|status| status.success()));
}

#[test]
fn a_broker_that_is_killed_comes_back() {
    let daemon = Daemon::start("killed", "", &[]);
    until(|| is_welcoming(&daemon));
    let [first] = daemon.helpers("broker")[..] else { panic!("one broker") };
    until(|| named(first, "disposer").len() == 1);
    let killed = Command::new("kill").args(["-KILL", &first.to_string()]).status().unwrap();
    assert!(killed.success());
    until(|| is_welcoming(&daemon));
    // The dead one is reaped.
    until(|| daemon.helpers("broker").len() == 1);
    assert_ne!(daemon.helpers("broker"), [first]);
}

#[test]
fn without_sockets_there_is_no_broker() {
    let daemon = Daemon::start("none", "sockets = false\n", &[]);
    assert!(!daemon.place().exists() && daemon.helpers("broker").is_empty());
}

/// The broker knows users, not cgroups.
#[test]
fn rules_by_cgroups_start_no_broker() {
    let configuration = "sockets = true\n[allow]\ncgroups = [\"/\"]\n";
    let mut daemon = Daemon::start("cgroups", configuration, &[]);
    assert!(!daemon.place().exists() && daemon.helpers("broker").is_empty());
    daemon.child.kill().unwrap();
    let mut said = String::new();
    daemon.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("no sockets") && said.contains("cgroups"), "{said}");
}
