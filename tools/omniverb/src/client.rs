//! A short conversation with the daemon.

use anyhow::{Context, bail};
use omniverb_session::body::{
    Capture, Captured, EndCapture, Gids, Hello, QueryGids, QueryStatus, QueryVnics, ROLE_TOOL,
    ROLE_VERBS, SetVnic, VnicChanged, Welcome,
};
use omniverb_session::limits::{MESSAGE_BYTES_MAX, STATISTICS_SLOT_BYTES, STATISTICS_SLOTS};
use omniverb_session::{Message, decode, encode};
use omniverb_sys::{event, memfd, socket};
use rustix::io::Errno;
use serde_json::Value;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long it may take to complete a capture file.
const LAST_WORDS: Duration = Duration::from_secs(60);

/// Most bytes of status: more than the largest quotas give.
const STATUS_BYTES_MAX: usize = 64 << 20;

/// A connection to the daemon.
pub(crate) struct Client {
    calls: OwnedFd,
    /// The events socket: closing it would end the session.
    _events: Vec<OwnedFd>,
}

impl Client {
    /// Connects as a tool.
    pub(crate) fn tool(path: &Path) -> anyhow::Result<Client> {
        Ok(Client::hello(path, ROLE_TOOL, &[])?.0)
    }

    /// Connects as a program that wants a device.
    pub(crate) fn verbs(path: &Path) -> anyhow::Result<(Client, Welcome)> {
        let area =
            memfd::create("omniverb-doctor", (STATISTICS_SLOTS * STATISTICS_SLOT_BYTES) as u64)?;
        Client::hello(path, ROLE_VERBS, &[area.as_fd()])
    }

    fn hello(
        path: &Path,
        role: u32,
        files: &[BorrowedFd<'_>],
    ) -> anyhow::Result<(Client, Welcome)> {
        let calls = socket::connect(path).with_context(|| format!("{}", path.display()))?;
        let mut client = Client { calls, _events: Vec::new() };
        let hello = Hello { role, resume: 0, name: *b"omniverb\0\0\0\0\0\0\0\0" };
        client.send(&hello.into(), files)?;
        let (answer, files) = client.answer_with_files(PATIENCE)?;
        client._events = files;
        match answer {
            Message::Welcome(welcome) => Ok((client, welcome)),
            Message::Failed(errno) => {
                let error = io::Error::from_raw_os_error(errno.cast_signed());
                bail!("the daemon at {} refuses us: {error}", path.display())
            }
            _ => bail!("{} is served by something else", path.display()),
        }
    }

    /// The GID table.
    pub(crate) fn gids(&self) -> anyhow::Result<Gids> {
        self.send(&QueryGids { reserved: 0 }.into(), &[])?;
        match self.answer()? {
            Message::Gids(gids) => Ok(gids),
            other => bail!("no GID table but {other:?}"),
        }
    }

    /// What the daemon says about itself and its clients.
    pub(crate) fn status(&self) -> anyhow::Result<Value> {
        self.text(&QueryStatus { reserved: 0 }.into())
    }

    /// What the daemon says about vNICs.
    pub(crate) fn vnics(&self) -> anyhow::Result<Value> {
        self.text(&QueryVnics { reserved: 0 }.into())
    }

    /// Changes the vNIC of this name.
    pub(crate) fn set_vnic(&self, change: &SetVnic, name: &str) -> anyhow::Result<VnicChanged> {
        self.send(&(*change).into(), &[])?;
        match self.answer()? {
            Message::VnicChanged(changed) => Ok(changed),
            other => refused(&other, name),
        }
    }

    /// Has the packets of the vNIC of this name written into `file`, while we are connected.
    pub(crate) fn capture(
        &self,
        capture: &Capture,
        file: BorrowedFd<'_>,
        name: &str,
    ) -> anyhow::Result<()> {
        self.send(&(*capture).into(), &[file])?;
        match self.answer()? {
            Message::Done(_) => Ok(()),
            other => refused(&other, name),
        }
    }

    /// Ends it: everything is in the file then.
    pub(crate) fn end_capture(&self) -> anyhow::Result<Captured> {
        self.send(&EndCapture { reserved: 0 }.into(), &[])?;
        // There may be a lot to write down.
        match self.answer_with_files(LAST_WORDS)?.0 {
            Message::Captured(captured) => Ok(captured),
            _ => bail!("the daemon answers something else"),
        }
    }

    /// The daemon has closed the connection: it says nothing by itself.
    pub(crate) fn is_over(&self) -> bool {
        event::readable(self.calls.as_fd(), Some(Duration::ZERO)).unwrap_or(true)
    }

    fn text(&self, question: &Message) -> anyhow::Result<Value> {
        self.send(question, &[])?;
        let mut text = Vec::new();
        while text.len() < STATUS_BYTES_MAX {
            match self.answer()? {
                Message::Status(piece) => {
                    let length = piece.text.len().min(piece.length as usize);
                    text.extend(&piece.text[..length]);
                    if piece.more == 0 {
                        break;
                    }
                }
                Message::Failed(errno) => {
                    bail!(io::Error::from_raw_os_error(errno.cast_signed()))
                }
                _ => bail!("the daemon answers something else"),
            }
        }
        serde_json::from_slice(&text).context("the daemon's answer cannot be read")
    }

    fn send(&self, message: &Message, files: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(1, message, &mut bytes);
        Ok(socket::send(self.calls.as_fd(), &bytes[..length], files)?)
    }

    fn answer(&self) -> anyhow::Result<Message> {
        Ok(self.answer_with_files(PATIENCE)?.0)
    }

    fn answer_with_files(&self, patience: Duration) -> anyhow::Result<(Message, Vec<OwnedFd>)> {
        if !event::readable(self.calls.as_fd(), Some(patience))? {
            bail!("the daemon does not answer");
        }
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let (length, files) = socket::receive(self.calls.as_fd(), &mut bytes, false)?;
        match decode(&bytes[..length]) {
            Ok((_, message)) => Ok((message, files)),
            Err(_) if length == 0 => bail!("the daemon closed the connection"),
            Err(_) => bail!("the daemon is of another version"),
        }
    }
}

/// Why the daemon did not do what concerns a vNIC.
fn refused<T>(answer: &Message, name: &str) -> anyhow::Result<T> {
    let Message::Failed(errno) = answer else { bail!("the daemon answers something else") };
    let error = io::Error::from_raw_os_error(errno.cast_signed());
    match Errno::from_io_error(&error) {
        Some(Errno::PERM) => {
            bail!("only root in the daemon's network namespace, or the daemon's own user, may")
        }
        Some(Errno::NOENT) => bail!("no vNIC is called {name:?}; see `omniverb vnic list`"),
        Some(Errno::BUSY) => bail!("somebody else captures the packets of that vNIC"),
        Some(Errno::INVAL) => bail!(
            "this makes no sense to the daemon: rates are 8kbit to 1000tbit, bursts 1500 to 1g \
             and need a rate, a capture needs a regular file"
        ),
        _ => bail!(error),
    }
}
