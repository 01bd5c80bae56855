//! Asks the daemon, as a tenant.

use crate::status_pages::Pages;
use anyhow::{Context, bail};
use omniverb_session::body::{
    Cursor, Gids, Hello, QueryGids, QueryStatus, QueryVnic, ROLE_VERBS, Status, Welcome,
};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::{Message, decode, encode};
use omniverb_sys::{eventfd, seqpacket};
use omniverb_terms::Errno;
use serde_json::Value;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// How long the daemon may take to answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Pieces of status: more than the largest quotas give.
const PIECES_MAX: usize = 1 << 18;

/// Part of the message of an isolating daemon if nothing describes our network namespace.
pub(crate) const ISOLATED: &str = "has no device for this network namespace";

/// A connection to the daemon.
pub(crate) struct Client {
    calls: OwnedFd,
    /// The events socket: closing it would end the session.
    _events: Vec<OwnedFd>,
}

impl Client {
    /// Connects, without wanting a device.
    pub(crate) fn connect(path: &Path) -> anyhow::Result<Client> {
        let calls = crate::find_daemon::connect(path).with_context(|| {
            let named = match crate::find_daemon::named() {
                Some(_) => ", which OMNIVERB_SOCKET names (start omniverbd --socket, or unset it)",
                None => "",
            };
            format!("no daemon answers at {}{named}", path.display())
        })?;
        Ok(Client { calls, _events: Vec::new() })
    }

    /// Connects as a program that wants a device.
    pub(crate) fn verbs(path: &Path) -> anyhow::Result<(Client, Welcome)> {
        let mut client = Client::connect(path)?;
        let hello = Hello { role: ROLE_VERBS, resume: 0, name: *b"omniverb\0\0\0\0\0\0\0\0" };
        client.send(&hello.into())?;
        let (answer, files) = client.answer_with_files()?;
        client._events = files;
        match answer {
            Message::Welcome(welcome) => Ok((client, welcome)),
            other => refused(&other, path),
        }
    }

    /// The GID table.
    pub(crate) fn gids(&self) -> anyhow::Result<Gids> {
        self.send(&QueryGids { reserved: 0 }.into())?;
        match self.answer_with_files()?.0 {
            Message::Gids(gids) => Ok(gids),
            other => bail!("no GID table but {other:?}"),
        }
    }

    /// The daemon's status of our own vNIC.
    pub(crate) fn vnics(&self, path: &Path) -> anyhow::Result<Value> {
        let mut pages = Pages::default();
        add(&mut pages, &self.status_answer(&QueryVnic { reserved: 0 }.into(), path)?)?;
        Ok(pages.vnics())
    }

    fn status_answer(&self, question: &Message, path: &Path) -> anyhow::Result<Status> {
        self.send(question)?;
        match self.answer_with_files()?.0 {
            Message::Status(status) => Ok(status),
            other => refused(&other, path),
        }
    }

    fn send(&self, message: &Message) -> anyhow::Result<()> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(1, message, &mut bytes);
        Ok(seqpacket::send(self.calls.as_fd(), &bytes[..length], &[])?)
    }

    fn answer_with_files(&self) -> anyhow::Result<(Message, Vec<OwnedFd>)> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let (length, files) = listen(self.calls.as_fd(), PATIENCE, &mut bytes)?;
        match decode(&bytes[..length]) {
            Ok((_, message)) => Ok((message, files)),
            Err(_) => bail!("the daemon is of another version"),
        }
    }
}

/// The daemon's status of itself and the processes of our own vNIC.
pub(crate) fn status(path: &Path) -> anyhow::Result<Value> {
    let mut client = Client::connect(path)?;
    let pages = pages(|from| {
        let question = QueryStatus { from }.into();
        // A client without a hello is disconnected after a while; the next connection goes on.
        client.status_answer(&question, path).or_else(|_| {
            client = Client::connect(path)?;
            client.status_answer(&question, path)
        })
    })?;
    Ok(pages.status())
}

/// All pieces, by asking from where the last one ended.
pub(crate) fn pages(
    mut ask: impl FnMut(Cursor) -> anyhow::Result<Status>,
) -> anyhow::Result<Pages> {
    let mut pages = Pages::default();
    let mut from = Cursor::START;
    for _ in 0..PIECES_MAX {
        let piece = ask(from)?;
        add(&mut pages, &piece)?;
        if piece.more == 0 {
            return Ok(pages);
        }
        from = piece.next;
    }
    bail!("the answer of the daemon is too long")
}

/// Adds one piece.
fn add(pages: &mut Pages, piece: &Status) -> anyhow::Result<()> {
    let length = piece.text.len().min(piece.length as usize);
    pages.add(&piece.text[..length]).context("the daemon's answer cannot be read")
}

/// Waits for a message.
pub(crate) fn listen(
    socket: BorrowedFd<'_>,
    patience: Duration,
    bytes: &mut [u8; MESSAGE_BYTES_MAX],
) -> anyhow::Result<(usize, Vec<OwnedFd>)> {
    if !eventfd::readable(socket, Some(patience))? {
        bail!("the daemon does not answer");
    }
    match seqpacket::receive(socket, bytes, seqpacket::BlockingMode::NonBlocking)? {
        (0, _) => bail!("the daemon closed the connection"),
        received => Ok(received),
    }
}

fn refused<T>(answer: &Message, path: &Path) -> anyhow::Result<T> {
    match answer {
        Message::Failed(Errno::ENODEV) => bail!("the daemon at {} {ISOLATED}", path.display()),
        Message::Failed(errno) => {
            let error = io::Error::from_raw_os_error(errno.raw());
            bail!("the daemon at {} refuses us: {error}", path.display())
        }
        _ => bail!("the socket {} is not served by omniverbd", path.display()),
    }
}
