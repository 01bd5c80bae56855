//! Tests the signs of life that the service manager gets.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_omniverbd");

/// A service manager with a daemon.
struct Service {
    folder: PathBuf,
    manager: UnixDatagram,
    daemon: Child,
}

impl Service {
    /// It wants to hear from the daemon every second; a thread may hang for as long.
    fn start(name: &str, errors: Stdio) -> Service {
        let folder = std::env::temp_dir().join(format!("omniverbd-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("configuration"), "watchdog_seconds = 1\n").unwrap();
        let manager = UnixDatagram::bind(folder.join("notify")).unwrap();
        manager.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let daemon = Command::new(PROGRAM)
            .arg("--socket")
            .arg(folder.join("socket"))
            .arg("--config")
            .arg(folder.join("configuration"))
            .args(["--log-level", "debug"])
            .env("NOTIFY_SOCKET", folder.join("notify"))
            .env("WATCHDOG_USEC", "1000000")
            .env_remove("WATCHDOG_PID")
            .stderr(errors)
            .spawn()
            .unwrap();
        let service = Service { folder, manager, daemon };
        service.hears("READY=1", 10);
        service
    }

    /// The next message to it, if one comes for a moment.
    fn next(&self) -> Option<String> {
        let mut text = [0; 64];
        let length = self.manager.recv(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text[..length]).into_owned())
    }

    fn hears(&self, wanted: &str, seconds: u64) {
        let begun = Instant::now();
        while self.next().as_deref() != Some(wanted) {
            assert!(begun.elapsed() < Duration::from_secs(seconds), "{wanted} did not come");
        }
    }

    /// Signs of life come again and again.
    fn is_fine(&self) {
        while self.next().is_some() {}
        (0..4).for_each(|_| self.hears("WATCHDOG=1", 5));
    }

    /// They end, and do not come back by themselves.
    fn is_not(&self) {
        let begun = Instant::now();
        let mut last = Instant::now();
        while last.elapsed() < Duration::from_secs(2) {
            assert!(begun.elapsed() < Duration::from_secs(15), "signs of life come");
            if self.next().is_some() {
                last = Instant::now();
            }
        }
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.daemon.id().to_string()]).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_stopped_process_misses_its_signs_of_life() {
    let mut service = Service::start("stopped", Stdio::null());
    service.is_fine();
    service.signal("-STOP");
    service.is_not();
    service.signal("-CONT");
    service.is_fine();
    service.signal("-TERM");
    service.hears("STOPPING=1", 10);
    assert!(service.daemon.wait().unwrap().success());
}

/// A log without a reader stops its writer.
#[test]
fn a_hung_control_loop_is_logged_and_misses_its_signs_of_life() {
    let (mut log, mut full) = std::io::pipe().unwrap();
    let errors = full.try_clone().unwrap();
    let service = Service::start("hangs", Stdio::from(OwnedFd::from(errors)));
    service.is_fine();
    // As much as a pipe holds; more waits until it is read.
    let filler = std::thread::spawn(move || full.write_all(&[b'\n'; 1 << 16]));
    std::thread::sleep(Duration::from_millis(500));
    let client = Command::new(PROGRAM)
        .args(["--detach", "--socket"])
        .arg(service.folder.join("socket"))
        .status();
    assert!(client.unwrap().success(), "a client connected");
    service.is_not();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let (mut text, mut piece) = (String::new(), [0; 4096]);
        while let Ok(length @ 1..) = log.read(&mut piece) {
            text.push_str(&String::from_utf8_lossy(&piece[..length]));
            if text.contains("control has been stuck") && text.contains("control goes on") {
                let _ = tell.send(());
                return;
            }
        }
    });
    told.recv_timeout(Duration::from_secs(20)).expect("the log says so");
    service.is_fine();
    filler.join().unwrap().unwrap();
}
