//! Implements `omniverb capture`: writes a vNIC's packets into a file for Wireshark and tcpdump.
//!
//! The daemon writes into a regular file that we open (so it needs no rights of its own, and no
//! slow reader can hold it up). For a pipe that file is a nameless one, and we copy from it.

use crate::operator_connection::Operator;
use crate::vnic::name_bytes;
use anyhow::{Context, bail};
use omniverb_session::operator::{Capture, Captured};
use omniverb_sys::{eventfd, signal_fds};
use omniverb_terms::Errno;
use rustix::fs::{FileType, OFlags};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// How often what was captured is copied to a pipe.
const COPY_EVERY: Duration = Duration::from_millis(50);

pub(crate) fn capture(
    vnic: Option<&str>,
    file: Option<&Path>,
    snap_bytes: u32,
) -> anyhow::Result<ExitCode> {
    let to_stdout = file.is_none_or(|file| file == Path::new("-"));
    if to_stdout && std::io::stdout().is_terminal() {
        bail!("cannot write packets to a terminal: name a file with -w, or use a pipe");
    }
    // Before anything is written: an interruption ends the capture in an orderly way.
    let termination = signal_fds::termination()?;
    let target = match file.filter(|_| !to_stdout) {
        Some(file) => private(file).with_context(|| format!("{}", file.display()))?,
        None => nameless().context("a temporary file")?,
    };
    let name = vnic.unwrap_or_default();
    let client = Operator::connect()?;
    let capture = Capture { name: name_bytes(name)?, snap_bytes, reserved: 0 };
    client.capture(&capture, target.as_fd(), name)?;
    let mut copy = to_stdout.then_some(Copy { from: target, at: 0, buffer: vec![0; 64 << 10] });
    loop {
        let wait = copy.as_ref().map(|_| COPY_EVERY);
        if eventfd::readable(termination.as_fd(), Some(wait.unwrap_or(Duration::from_secs(1))))? {
            break;
        }
        if let Some(copy) = &mut copy
            && !copy.on()?
        {
            return Ok(ExitCode::SUCCESS);
        }
        if client.is_over() {
            bail!("the daemon has ended");
        }
    }
    let captured = client.end_capture()?;
    if let Some(copy) = &mut copy {
        copy.on()?;
    }
    report(&captured);
    match captured.errno {
        Errno::NONE => Ok(ExitCode::SUCCESS),
        errno => {
            let error = std::io::Error::from_raw_os_error(errno.raw());
            bail!("the file ends early: {error}")
        }
    }
}

/// The report that tcpdump makes at the end, and the file.
fn report(captured: &Captured) {
    eprintln!("{} packets captured", captured.packets);
    eprintln!("{} packets dropped", captured.dropped);
    if captured.refused > 0 {
        eprintln!("{} records of processes made no sense", captured.refused);
    }
    if captured.untraced > 0 {
        eprintln!("the direct links of {} processes do not show", captured.untraced);
    }
}

/// A new file, or an own regular one whose contents go, that no other user may read. Folders where
/// root captures to may be others' as well: a link or a pipe that they put there is not touched.
fn private(path: &Path) -> anyhow::Result<File> {
    const MODE: u32 = 0o600;
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(MODE);
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    options.custom_flags(flags.bits().cast_signed());
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        result => return Ok(result?),
    }
    let link = rustix::fs::lstat(path)?;
    if FileType::from_raw_mode(link.st_mode) != FileType::RegularFile {
        bail!("exists and is not a regular file");
    }
    let file = options.open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        bail!("exists and is not a regular file");
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        bail!("belongs to another user");
    }
    if found.nlink() != 1 {
        bail!("the file has several hard links; name another one");
    }
    file.set_permissions(std::fs::Permissions::from_mode(MODE))?;
    file.set_len(0)?;
    Ok(file)
}

/// A regular file without a name.
fn nameless() -> std::io::Result<File> {
    const O_TMPFILE: i32 = 0o20_200_000;
    let folder = std::env::temp_dir();
    OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(O_TMPFILE).open(folder)
}

/// From the nameless file to standard output.
struct Copy {
    from: File,
    /// Our own position: the file's is the daemon's, which writes there.
    at: u64,
    buffer: Vec<u8>,
}

impl Copy {
    /// Copies the new bytes; false if the reader has seen enough.
    fn on(&mut self) -> anyhow::Result<bool> {
        let mut out = std::io::stdout().lock();
        loop {
            let length = self.from.read_at(&mut self.buffer, self.at)?;
            self.at += length as u64;
            if length == 0 {
                return match out.flush() {
                    Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
                    result => Ok(result.map(|()| true)?),
                };
            }
            match out.write_all(&self.buffer[..length]) {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(false),
                result => result?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_an_own_private_regular_file_is_written() {
        let folder = std::env::temp_dir().join(format!("omniverb-files-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let at = |name: &str| folder.join(name);
        let mode = |name: &str| std::fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
        private(&at("new")).unwrap();
        assert_eq!(mode("new"), 0o600);
        std::fs::write(at("old"), "contents").unwrap();
        std::fs::set_permissions(at("old"), std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(private(&at("old")).unwrap().metadata().unwrap().len(), 0);
        assert_eq!(mode("old"), 0o600);
        std::fs::write(at("victim"), "contents").unwrap();
        symlink(at("victim"), at("link")).unwrap();
        symlink(at("nothing"), at("dangling")).unwrap();
        std::fs::hard_link(at("victim"), at("twin")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap();
        assert!(pipe.success());
        for name in ["link", "dangling", "twin", "folder", "pipe"] {
            assert!(private(&at(name)).is_err(), "{name}");
        }
        assert_eq!(std::fs::read(at("victim")).unwrap(), b"contents");
        assert!(!at("nothing").exists());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
