//! Tests the daemon as a program: arguments, errors, normal end, death.

use omniverb_session::operator::DaemonScope;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_omniverbd");

struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("omniverbd-test-{}-{number}", std::process::id()));
        // Root's daemon has another folder beside it.
        let path = path.join("run");
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("omniverbd.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0.parent().unwrap());
    }
}

/// The prefix of the daemon's files.
fn files_of(socket: &Path) -> PathBuf {
    let runner = DaemonScope::of(rustix::process::geteuid().as_raw());
    omniverb_session::operator::files_beside(socket, runner)
}

struct Daemon(Child);

impl Daemon {
    fn start(socket: &Path, more: &[&str]) -> Daemon {
        let child = Command::new(PROGRAM).arg("--socket").arg(socket).args(more).spawn().unwrap();
        let daemon = Daemon(child);
        until(|| omniverb_sys::seqpacket::is_alive(socket));
        daemon
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.0.id().to_string()]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn run(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn complaint(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("omniverbd: "), "{text}");
    text
}

#[test]
fn faults_are_reported_in_one_line() {
    let folder = Folder::new();
    for words in [&["--nonsense"][..], &["--socket"], &["--idle-exit", "soon"], &["extra"]] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2));
        complaint(&output);
    }
    let config = folder.0.join("x.toml");
    fs::write(&config, "[vnic]\nqueue_pears = 1\n").unwrap();
    let socket = folder.socket();
    let socket = socket.to_str().unwrap();
    let output = run(&["--socket", socket, "--config", config.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(complaint(&output).contains("x.toml:2: "));
    let output = run(&["--socket", socket, "--config", "/nowhere.toml"]);
    assert!(complaint(&output).contains("/nowhere.toml"));
    let output = run(&["--socket", "/proc/nowhere/x"]);
    assert!(complaint(&output).contains("/proc/nowhere"));
    let output = run(&["--socket", &format!("/{}", "x".repeat(200))]);
    assert!(complaint(&output).contains("too long"));
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
    let output = run(&["--socket", socket]);
    assert!(complaint(&output).contains("by other users"));
    fs::write(folder.socket(), "").unwrap();
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
    let output = run(&["--socket", socket]);
    assert!(complaint(&output).contains("is not a socket"));
}

#[test]
fn a_socket_has_one_daemon() {
    let folder = Folder::new();
    let socket = folder.socket();
    let mut first = Daemon::start(&socket, &[]);
    let output = run(&["--socket", socket.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let text = complaint(&output);
    assert!(text.contains(&format!("pid {}", first.0.id())), "{text}");
    // A clean end leaves no socket; kill -9 leaves one, which the next daemon replaces.
    first.signal("-TERM");
    assert!(first.0.wait().unwrap().success());
    assert!(!socket.exists());
    let mut second = Daemon::start(&socket, &[]);
    second.0.kill().unwrap();
    second.0.wait().unwrap();
    assert!(socket.exists());
    Daemon::start(&socket, &[]);
}

#[test]
fn an_idle_daemon_ends_when_told_so() {
    let folder = Folder::new();
    let mut daemon = Daemon::start(&folder.socket(), &["--idle-exit", "1"]);
    let client = omniverb_sys::seqpacket::connect(&folder.socket()).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(daemon.0.try_wait().unwrap().is_none(), "a client is there");
    drop(client);
    let mut ended = None;
    until(|| {
        ended = daemon.0.try_wait().unwrap();
        ended.is_some()
    });
    assert!(ended.unwrap().success());
    assert!(!folder.socket().exists());
}

#[test]
fn a_daemon_started_on_demand_makes_way_for_a_permanent_one() {
    let folder = Folder::new();
    let socket = folder.socket();
    let mut on_demand = Daemon::start(&socket, &["--idle-exit", "600"]);
    let client = omniverb_sys::seqpacket::connect(&socket).unwrap();
    // Another one on demand does not take its place.
    let output = run(&["--idle-exit", "600", "--socket", socket.to_str().unwrap()]);
    assert!(complaint(&output).contains(&format!("pid {}", on_demand.0.id())));
    assert!(on_demand.0.try_wait().unwrap().is_none());
    let command = |words: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.arg("--socket").arg(&socket).args(words);
        command.spawn().unwrap()
    };
    let mut permanent = Daemon(command(&[]));
    let mut ended = None;
    until(|| {
        ended = on_demand.0.try_wait().unwrap();
        ended.is_some()
    });
    assert!(ended.unwrap().success());
    drop(client);
    until(|| omniverb_sys::seqpacket::is_alive(&socket));
    assert!(permanent.0.try_wait().unwrap().is_none());
    let lock = fs::read_to_string(files_of(&socket).with_added_extension("lock")).unwrap();
    assert_eq!(lock.trim(), permanent.0.id().to_string());
}

#[test]
fn many_starters_start_one_daemon() {
    let folder = Folder::new();
    let socket = folder.socket();
    let starters: Vec<_> = (0..8)
        .map(|_| {
            let mut command = Command::new(PROGRAM);
            command.args(["--detach", "--idle-exit", "2", "--socket"]).arg(&socket);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for starter in starters {
        // Ends although the daemon lives: the daemon holds none of its pipes.
        let output = starter.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.is_empty(), "{text}");
    }
    assert!(omniverb_sys::seqpacket::is_alive(&socket));
    let lock = fs::read_to_string(files_of(&socket).with_added_extension("lock")).unwrap();
    let (pid, lifetime) = lock.trim().split_once(' ').unwrap();
    assert_eq!(lifetime, "on-demand");
    let status = fs::File::open(format!("/proc/{pid}/status")).unwrap();
    let name = BufReader::new(status).lines().next().unwrap().unwrap();
    assert!(name.ends_with("omniverbd"), "{name}");
    if rustix::process::geteuid().is_root() {
        // The broker's comes a little later.
        let brokers = socket.with_added_extension("sockets");
        until(|| brokers.exists());
        let names = fs::read_dir(&folder.0).unwrap().map(|e| e.unwrap().file_name());
        let names: BTreeSet<_> = names.collect();
        let wanted = ["omniverbd.sock", "omniverbd.sock.sockets"].map(Into::into);
        assert_eq!(names, wanted.into(), "nothing but two sockets where containers look");
        assert!(files_of(&socket).with_extension("log").exists());
    }
    until(|| !socket.exists());
}

#[test]
fn a_failed_start_in_the_background_says_why() {
    let output = run(&["--detach", "--socket", "/proc/nowhere/x.sock"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(complaint(&output).contains("/proc/nowhere"));
    let folder = Folder::new();
    let config = folder.0.join("x.toml");
    fs::write(&config, "nonsense = 1\n").unwrap();
    let (socket, config) = (folder.socket(), config.display().to_string());
    let output = run(&["--detach", "--socket", socket.to_str().unwrap(), "--config", &config]);
    assert!(complaint(&output).contains("x.toml:1"));
}
