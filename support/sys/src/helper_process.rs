//! Starts helpers: copies of the running program that do one thing for it.
//!
//! A helper is started with `--helper NAME` and one end of a `SOCK_SEQPACKET` pair as its standard
//! input; everything else it could have inherited is closed. It ends when the other end does.
//! Nothing here waits for a helper: what it does may hang, and that is why it is one.

use crate::{fd_inheritance, seqpacket};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

/// The running program, whatever has become of its file.
pub const OWN_PROGRAM: &str = "/proc/self/exe";

/// The argument in front of a helper's name.
pub const ARGUMENT: &str = "--helper";

/// How helpers are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HelperStart {
    /// As processes: this program, which does what [`socket_of_helper`] says.
    Program(PathBuf),
    /// As threads of this process, for programs that have no such argument (tests).
    Threads,
}

impl HelperStart {
    /// Starts the helper `name`. As a thread it runs `serve` with its socket.
    ///
    /// Call it from a thread that lives as long as the helper shall: a helper process is killed
    /// when the thread that started it ends.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn start(&self, name: &'static str, serve: fn(OwnedFd)) -> io::Result<Helper> {
        let (ours, theirs) = seqpacket::pair()?;
        let life = match self {
            HelperStart::Program(path) => {
                // Ours are close-on-exec from birth; our starter may have left us others.
                fd_inheritance::nothing_but_standard()?;
                let process = Command::new(path)
                    .arg0("omniverbd")
                    .args([ARGUMENT, name])
                    .current_dir("/")
                    // What the service manager said is for us, not for it (sd_notify(3)).
                    .env_remove("NOTIFY_SOCKET")
                    .env_remove("WATCHDOG_USEC")
                    .env_remove("WATCHDOG_PID")
                    .stdin(Stdio::from(theirs))
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()?;
                HelperHandle::Process(process)
            }
            HelperStart::Threads => {
                let thread = std::thread::Builder::new().name(name.into());
                HelperHandle::Thread(thread.spawn(move || serve(theirs))?)
            }
        };
        Ok(Helper { socket: ours, life })
    }
}

#[derive(Debug)]
enum HelperHandle {
    Process(std::process::Child),
    Thread(JoinHandle<()>),
}

/// A helper that was started. Dropped, it ends; that is not waited for.
#[derive(Debug)]
pub struct Helper {
    socket: OwnedFd,
    life: HelperHandle,
}

impl Helper {
    /// Our end of the pair. It blocks or not as each call says.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Its process, if it is one.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        match &self.life {
            HelperHandle::Process(process) => Some(process.id()),
            HelperHandle::Thread(_) => None,
        }
    }

    /// Asks the kernel to end it, which may never happen. A thread finds its socket closed.
    pub fn kill(&mut self) {
        match &mut self.life {
            HelperHandle::Process(process) => {
                let _ = process.kill();
            }
            HelperHandle::Thread(_) => {
                let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
            }
        }
    }

    /// True once it is no more; it is reaped then. Never waits.
    pub fn has_ended(&mut self) -> bool {
        match &mut self.life {
            HelperHandle::Process(process) => !matches!(process.try_wait(), Ok(None)),
            HelperHandle::Thread(thread) => thread.is_finished(),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.kill();
        // It may take a moment to die; then it stays a zombie until we end, as one of few.
        self.has_ended();
    }
}

/// Makes this process a helper: it is called `name`, ends with the thread that started it, and this
/// is the socket that it serves.
///
/// # Errors
/// `ENOTSOCK` if standard input is none, so if a user gave a program the argument by hand.
pub fn socket_of_helper(name: &str) -> io::Result<OwnedFd> {
    use rustix::net::sockopt;
    let input = std::io::stdin();
    if sockopt::socket_type(&input)? != rustix::net::SocketType::SEQPACKET {
        return Err(io::Error::from_raw_os_error(libc::ENOTSOCK));
    }
    // A starter that ended before this is seen by the end of the socket.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if let Ok(name) = CString::new(format!("omni:{name}")) {
        let _ = rustix::thread::set_name(&name);
    }
    let socket = rustix::io::fcntl_dupfd_cloexec(&input, 3)?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn echo(socket: OwnedFd) {
        let mut buffer = [0; 16];
        while let Ok((length @ 1.., _)) =
            seqpacket::receive(socket.as_fd(), &mut buffer, seqpacket::BlockingMode::Blocking)
        {
            let _ = seqpacket::send(socket.as_fd(), &buffer[..length], &[]);
        }
    }

    fn ends(helper: &mut Helper) -> bool {
        let begun = Instant::now();
        while !helper.has_ended() {
            if begun.elapsed() > Duration::from_secs(10) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    #[test]
    fn a_thread_serves_and_ends_with_its_socket() {
        let mut helper = HelperStart::Threads.start("echo", echo).unwrap();
        seqpacket::send(helper.socket(), b"hello", &[]).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(
            seqpacket::receive(helper.socket(), &mut buffer, seqpacket::BlockingMode::Blocking)
                .unwrap()
                .0,
            5
        );
        assert!(!helper.has_ended() && helper.pid().is_none());
        let (closed, _) = seqpacket::pair().unwrap();
        helper.socket = closed;
        assert!(ends(&mut helper));
    }

    #[test]
    fn a_program_is_reaped_and_gets_nothing_else() {
        let shell = std::env::temp_dir().join(format!("omniverb-child-{}", std::process::id()));
        let list = shell.with_extension("list");
        let script = format!("#!/bin/sh\nls /proc/$$/fd > {}\nexec sleep 60\n", list.display());
        std::fs::write(&shell, script).unwrap();
        std::fs::set_permissions(&shell, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .unwrap();
        let open = std::fs::File::open("/dev/null").unwrap();
        rustix::io::fcntl_setfd(&open, rustix::io::FdFlags::empty()).unwrap();
        let mut helper = HelperStart::Program(shell.clone()).start("x", echo).unwrap();
        let begun = Instant::now();
        let text = loop {
            let text = std::fs::read_to_string(&list).unwrap_or_default();
            if text.ends_with('\n') || begun.elapsed() > Duration::from_secs(10) {
                break text;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        // The shell's own script is among them, as 10 or 255.
        let few = text.lines().filter_map(|fd| fd.parse::<i32>().ok()).filter(|fd| *fd < 10);
        assert!(few.clone().count() >= 3 && few.clone().all(|fd| fd <= 3), "{text}");
        assert!(!helper.has_ended() && helper.pid().is_some());
        helper.kill();
        assert!(ends(&mut helper));
        std::fs::remove_file(shell).unwrap();
        std::fs::remove_file(list).unwrap();
    }

    #[test]
    fn a_process_with_another_input_is_no_helper() {
        let input = std::io::stdin();
        if rustix::net::sockopt::socket_type(&input).is_err() {
            assert!(socket_of_helper("x").is_err());
        }
    }
}
