//! A short conversation with the daemon.

use anyhow::{Context, bail};
use omniverb_session::body::{Gids, Hello, QueryGids, QueryStatus, ROLE_TOOL, ROLE_VERBS, Welcome};
use omniverb_session::limits::{MESSAGE_BYTES_MAX, STATISTICS_SLOT_BYTES, STATISTICS_SLOTS};
use omniverb_session::{Message, decode, encode};
use omniverb_sys::{event, memfd, socket};
use serde_json::Value;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

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
        let (answer, files) = client.answer_with_files()?;
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
        self.send(&QueryStatus { reserved: 0 }.into(), &[])?;
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
                _ => bail!("the daemon gives no status"),
            }
        }
        serde_json::from_slice(&text).context("the daemon's status cannot be read")
    }

    fn send(&self, message: &Message, files: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(1, message, &mut bytes);
        Ok(socket::send(self.calls.as_fd(), &bytes[..length], files)?)
    }

    fn answer(&self) -> anyhow::Result<Message> {
        Ok(self.answer_with_files()?.0)
    }

    fn answer_with_files(&self) -> anyhow::Result<(Message, Vec<OwnedFd>)> {
        if !event::readable(self.calls.as_fd(), Some(PATIENCE))? {
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
