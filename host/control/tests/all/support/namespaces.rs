//! Makes network namespaces with wires between them.

use super::*;
use crate::support::client_process::Remote;

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A network namespace that lives as long as this does.
pub struct Net(Child);

impl Net {
    pub fn new() -> Net {
        // `cat` says that it is there, which is after the namespace was made.
        let mut child = Command::new("unshare")
            .args(["-n", "sh", "-c", "ip link set lo up; echo up; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = std::io::BufReader::new(child.stdout.as_mut().unwrap());
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        assert_eq!(line, "up\n");
        Net(child)
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn run(&self, command: &str) {
        let status = Command::new("nsenter")
            .args(["-t", &self.pid().to_string(), "-n", "sh", "-ec", command])
            .status()
            .unwrap();
        assert!(status.success(), "{command}");
    }

    /// Joins two by a wire.
    pub fn join(&self, other: &Net, ours: &str, theirs: &str) {
        let peer = other.pid();
        self.run(&format!(
            "ip link add eth0 type veth peer name eth0 netns {peer};
             ip addr add {ours}/24 dev eth0; ip link set eth0 up"
        ));
        other.run(&format!("ip addr add {theirs}/24 dev eth0; ip link set eth0 up"));
    }

    pub fn client(&self, daemon: &Daemon) -> Remote {
        let mut remote = Remote::start(&daemon.path, Some(self.pid()));
        remote.hello().unwrap();
        remote
    }
}

impl From<Child> for Net {
    fn from(child: Child) -> Net {
        Net(child)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
