//! Tests that the process that serves clients has no privileges, and that its helper is restarted.

mod proc_status;

use omniverb_session::body::{Hello, ROLE_VERBS};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::{Message, decode, encode};
use omniverb_sys::eventfd::readable;
use omniverb_sys::seqpacket;
use proc_status::{children, field, until};
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_omniverbd");
/// CAP_SYS_RESOURCE.
const KEPT: u64 = 1 << 24;
const SYS_ADMIN: u64 = 1 << 21;

struct Daemon {
    child: Child,
    folder: PathBuf,
}

impl Daemon {
    fn start(name: &str) -> Daemon {
        let folder = std::env::temp_dir()
            .join(format!("omniverbd-privileges-{name}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let mut command = Command::new(PROGRAM);
        command.arg("--socket").arg(folder.join("socket")).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let daemon = Daemon { child, folder };
        until(|| seqpacket::is_alive(&daemon.socket()));
        daemon
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn set(pid: u32, name: &str) -> u64 {
    u64::from_str_radix(&field(pid, name).unwrap(), 16).unwrap()
}

/// The process that enters namespaces: the child of the child that is its starter.
fn helper(daemon: u32) -> Option<u32> {
    let starter = children(daemon)
        .into_iter()
        .find(|c| field(*c, "Name").is_some_and(|n| n == "omni:starter"))?;
    let helper = children(starter).into_iter().next()?;
    field(helper, "Name").is_some_and(|name| name == "omni:namespaces").then_some(helper)
}

fn answered(socket: &Path) -> bool {
    let Ok(calls) = seqpacket::connect(socket) else { return false };
    let hello = Hello { role: ROLE_VERBS, resume: 0, name: [0; 16] };
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let length = encode(1, &hello.into(), &mut bytes);
    seqpacket::send(calls.as_fd(), &bytes[..length], &[]).unwrap();
    if !readable(calls.as_fd(), Some(Duration::from_secs(10))).unwrap() {
        return false;
    }
    let (length, _) =
        seqpacket::receive(calls.as_fd(), &mut bytes, seqpacket::BlockingMode::Blocking).unwrap();
    matches!(decode(&bytes[..length]), Ok((_, Message::Welcome(_))))
}

/// A process in a namespace of its own that asks for a device, by way of the test's own socket.
fn answered_in_another_namespace(socket: &Path) -> bool {
    let script = "import socket,sys;s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET);\
                  s.connect(sys.argv[1]);s.settimeout(10);s.send(bytes.fromhex(sys.argv[2]));\
                  sys.exit(0 if len(s.recv(4096))>40 else 1)";
    let hello = Hello { role: ROLE_VERBS, resume: 0, name: [0; 16] };
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let length = encode(1, &hello.into(), &mut bytes);
    let hex: String = bytes[..length].iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = Command::new("unshare");
    command.args(["-n", "python3", "-c", script]).arg(socket).arg(hex);
    command.status().unwrap().success()
}

#[test]
fn the_serving_process_has_no_privilege_over_the_host() {
    let daemon = Daemon::start("sets");
    let pid = daemon.child.id();
    let root = rustix::process::geteuid().is_root();
    if root {
        for _ in 0..3 {
            assert!(answered_in_another_namespace(&daemon.socket()));
        }
    }
    assert!(answered(&daemon.socket()));
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let tasks: Vec<u32> = tasks.map(|t| t.file_name().to_str().unwrap().parse().unwrap()).collect();
    assert!(tasks.len() > 1);
    for task in tasks {
        for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            if root || name != "CapBnd" {
                assert_eq!(set(task, name) & !KEPT, 0, "{name} of a thread");
            }
        }
        assert_eq!(field(task, "NoNewPrivs").unwrap(), "1");
    }
    if root {
        let helper = helper(pid).unwrap();
        // To look at processes, for large buffers, for UDP port 1000, and to hear of containers.
        let few = SYS_ADMIN | 1 << 19 | 1 << 12 | 1 << 10 | 1 << 11;
        assert_eq!(set(helper, "CapEff") & !few, 0);
        assert_ne!(set(helper, "CapEff") & SYS_ADMIN, 0);
    }
}

#[test]
fn a_helper_that_dies_comes_back() {
    let daemon = Daemon::start("dies");
    let mut before = None;
    for _ in 0..3 {
        until(|| helper(daemon.child.id()).is_some_and(|pid| Some(pid) != before));
        before = helper(daemon.child.id());
        let status = Command::new("kill").args(["-9", &before.unwrap().to_string()]).status();
        assert!(status.unwrap().success());
        assert!(answered(&daemon.socket()));
    }
    if rustix::process::geteuid().is_root() {
        assert!(answered_in_another_namespace(&daemon.socket()));
    }
}

#[test]
fn the_daemon_ends_visibly_without_its_starter() {
    let mut daemon = Daemon::start("starter");
    let pid = daemon.child.id();
    until(|| helper(pid).is_some());
    let starter = field(helper(pid).unwrap(), "PPid").unwrap();
    assert!(Command::new("kill").args(["-9", &starter]).status().unwrap().success());
    let mut status = None;
    until(|| {
        status = daemon.child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(1));
    let mut text = String::new();
    std::io::Read::read_to_string(daemon.child.stderr.as_mut().unwrap(), &mut text).unwrap();
    assert!(text.contains("helper for network namespaces is gone"), "{text}");
}

#[test]
fn no_process_is_left_when_the_daemon_is_gone() {
    let mut daemon = Daemon::start("gone");
    until(|| helper(daemon.child.id()).is_some());
    let helper = helper(daemon.child.id()).unwrap();
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    until(|| field(helper, "State").is_none_or(|state| state.starts_with('Z')));
}
