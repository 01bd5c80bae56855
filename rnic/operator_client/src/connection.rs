//! Connects to the operators' socket: every call has one answer, and long answers come in pieces.

use omniverb_session::body::{Cursor, Status};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::operator::{
    ChangeObjects, Message, OBJECT_TEXT_BYTES, ObjectsChanged, decode, encode,
};
use omniverb_sys::{eventfd, seqpacket};
use serde_json::Value;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Pieces of an answer: more than the largest quotas give.
const PIECES_MAX: usize = 1 << 18;

/// Why a call has no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The kernel's error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// No answer in time.
    #[error("the daemon does not answer")]
    Silent,
    /// The end of the connection.
    #[error("the daemon closed the connection")]
    Closed,
    /// An answer that is not one to this call.
    #[error("the daemon gave an unexpected answer: is it of this version?")]
    Unexpected(Box<Message>),
    /// An answer that is no message.
    #[error("the daemon is of another version")]
    Version,
    /// A row that cannot be read.
    #[error("the daemon's answer cannot be read: {0}")]
    Row(String),
    /// More pieces than an answer has.
    #[error("the answer of the daemon is too long")]
    TooLong,
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    owner: u32,
    /// Of the last call. An answer has that of its call.
    tag: Cell<u64>,
}

impl Connection {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn connect(path: &Path) -> io::Result<Connection> {
        let socket = seqpacket::connect(path)?;
        let owner = seqpacket::peer(socket.as_fd())?.uid;
        Ok(Connection { socket, owner, tag: Cell::new(0) })
    }

    /// The user of the process that listens there.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Whether the daemon has closed the connection: it says nothing by itself.
    #[must_use]
    pub fn is_over(&self) -> bool {
        eventfd::readable(self.socket.as_fd(), Some(Duration::ZERO)).unwrap_or(true)
    }

    /// Sends a call, with descriptors beside it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send(&self, message: &Message, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        self.tag.set(self.tag.get() + 1);
        let length = encode(self.tag.get(), message, &mut bytes);
        seqpacket::send(self.socket.as_fd(), bytes.get(..length).unwrap_or_default(), files)
    }

    /// Waits for an answer, or for the end of the connection; without a limit for ever.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(&self, limit: Option<Duration>) -> io::Result<bool> {
        eventfd::readable(self.socket.as_fd(), limit)
    }

    /// The answer to the last call, with the descriptors that come beside it. Answers to earlier
    /// calls, which came too late, are left out: one for each call at most, so that no daemon
    /// prolongs the wait.
    ///
    /// # Errors
    /// There is none in time, or it is no message.
    pub fn receive(&self, limit: Duration) -> Result<(Message, Vec<OwnedFd>), CallError> {
        for _ in 0..self.tag.get() {
            if !self.wait(Some(limit))? {
                break;
            }
            let mut bytes = [0; MESSAGE_BYTES_MAX];
            let mode = seqpacket::BlockingMode::NonBlocking;
            let (length, files) = seqpacket::receive(self.socket.as_fd(), &mut bytes, mode)?;
            if length == 0 {
                return Err(CallError::Closed);
            }
            match decode(bytes.get(..length).unwrap_or_default()) {
                Ok((tag, _)) if (1..self.tag.get()).contains(&tag) => {}
                Ok((_, answer)) => return Ok((answer, files)),
                Err(_) => return Err(CallError::Version),
            }
        }
        Err(CallError::Silent)
    }

    /// Sends a call and waits for its answer.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn call(&self, message: &Message, limit: Duration) -> Result<Message, CallError> {
        self.send(message, &[])?;
        self.receive(limit).map(|(answer, _)| answer)
    }

    /// Asks piece by piece, and takes the text of each: lines of JSON. The number of pieces.
    ///
    /// # Errors
    /// A piece has no answer, or `take` fails.
    pub fn pieces<E: From<CallError>>(
        &self,
        limit: Duration,
        ask: impl Fn(Cursor) -> Message,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut from = Cursor::START;
        for pieces in 1..=PIECES_MAX {
            let Status { length, more, next, text } = match self.call(&ask(from), limit)? {
                Message::Status(piece) => piece,
                other => return Err(CallError::Unexpected(Box::new(other)).into()),
            };
            let length = text.len().min(length as usize);
            take(text.get(..length).unwrap_or_default())?;
            if more == 0 {
                return Ok(pieces);
            }
            from = next;
        }
        Err(CallError::TooLong.into())
    }

    /// As [`pieces`](Self::pieces), each row with its kind.
    ///
    /// # Errors
    /// A piece has no answer, or `take` says what is wrong with a row.
    pub fn rows(
        &self,
        limit: Duration,
        ask: impl Fn(Cursor) -> Message,
        mut take: impl FnMut(&str, Value) -> Result<(), String>,
    ) -> Result<usize, CallError> {
        self.pieces(limit, ask, |text| each_row(text, &mut take))
    }

    /// Makes the changes of objects that a text describes. The inner error is the daemon's refusal.
    ///
    /// # Errors
    /// There is no answer.
    pub fn change_objects(
        &self,
        text: &str,
        limit: Duration,
    ) -> Result<Result<(), String>, CallError> {
        let mut message = ChangeObjects { length: 0, reserved: 0, text: [0; OBJECT_TEXT_BYTES] };
        let (Some(room), Ok(length)) =
            (message.text.get_mut(..text.len()), u32::try_from(text.len()))
        else {
            return Ok(Err("that is too long for a message".into()));
        };
        room.copy_from_slice(text.as_bytes());
        message.length = length;
        self.objects_changed(&message.into(), limit)
    }

    /// Makes a call that changes objects. The inner error is the daemon's refusal.
    ///
    /// # Errors
    /// There is no answer.
    pub fn objects_changed(
        &self,
        message: &Message,
        limit: Duration,
    ) -> Result<Result<(), String>, CallError> {
        match self.call(message, limit)? {
            Message::ObjectsChanged(ObjectsChanged { refused: 0, .. }) => Ok(Ok(())),
            Message::ObjectsChanged(changed) => {
                let text = changed.text.get(..changed.length as usize).unwrap_or_default();
                Ok(Err(String::from_utf8_lossy(text).into_owned()))
            }
            other => Err(CallError::Unexpected(Box::new(other))),
        }
    }
}

/// Takes the rows of a piece, each with its kind.
///
/// # Errors
/// One cannot be read, or `take` says what is wrong with it.
pub fn each_row(
    text: &[u8],
    take: &mut impl FnMut(&str, Value) -> Result<(), String>,
) -> Result<(), CallError> {
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let rows: BTreeMap<String, Value> =
            serde_json::from_slice(line).map_err(|error| CallError::Row(error.to_string()))?;
        for (kind, row) in rows {
            take(&kind, row).map_err(CallError::Row)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_session::body::Done;
    use omniverb_session::operator::QueryObjects;

    /// A daemon that gives these answers, one to each call, and then closes the connection.
    fn daemon(answers: Vec<Message>) -> Connection {
        let folder = std::env::temp_dir();
        let number = answers.len();
        let name = format!("omniverb-operator-{}-{number}", std::process::id());
        let path = folder.join(name);
        let listener = seqpacket::listen(&path, 0o600).unwrap();
        let connection = Connection::connect(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::thread::spawn(move || {
            while !eventfd::readable(listener.as_fd(), None).unwrap() {}
            let socket = seqpacket::accept(listener.as_fd()).unwrap().unwrap();
            for answer in answers {
                let mut bytes = [0; MESSAGE_BYTES_MAX];
                let mode = seqpacket::BlockingMode::Blocking;
                let (length, _) = seqpacket::receive(socket.as_fd(), &mut bytes, mode).unwrap();
                let (tag, _) = decode(&bytes[..length]).unwrap();
                let length = encode(tag, &answer, &mut bytes);
                seqpacket::send(socket.as_fd(), &bytes[..length], &[]).unwrap();
            }
        });
        connection
    }

    fn piece(lines: &str, next: Option<u64>) -> Message {
        let mut text = [0; omniverb_session::body::STATUS_TEXT_BYTES];
        text[..lines.len()].copy_from_slice(lines.as_bytes());
        let next = next.map(|vnic| Cursor { vnic, ..Cursor::START });
        let (length, more) = (lines.len() as u32, u32::from(next.is_some()));
        Status { length, more, next: next.unwrap_or(Cursor::START), text }.into()
    }

    const LIMIT: Duration = Duration::from_secs(60);

    fn kinds(connection: &Connection) -> Result<(usize, Vec<String>), CallError> {
        let mut kinds = Vec::new();
        let ask = |from| QueryObjects { from }.into();
        let pieces = connection.rows(LIMIT, ask, |kind, row| {
            kinds.push(format!("{kind} {row}"));
            Ok(())
        })?;
        Ok((pieces, kinds))
    }

    #[test]
    fn rows_come_piece_by_piece() {
        let connection =
            daemon(vec![piece("{\"a\":1}\n{\"b\":2}\n", Some(7)), piece("{\"a\":3}\n", None)]);
        let expected = ["a 1", "b 2", "a 3"].map(String::from).to_vec();
        assert_eq!(kinds(&connection).unwrap(), (2, expected));
        assert!(matches!(kinds(&connection), Err(CallError::Closed | CallError::Io(_))));
        assert!(connection.is_over());
    }

    #[test]
    fn an_answer_that_is_late_is_not_the_next_calls() {
        let connection = daemon(vec![piece("", None), Done { take_back: 7 }.into()]);
        connection.send(&QueryObjects { from: Cursor::START }.into(), &[]).unwrap();
        let answer = connection.call(&QueryObjects { from: Cursor::START }.into(), LIMIT);
        assert!(matches!(answer, Ok(Message::Done(Done { take_back: 7 }))));
    }

    #[test]
    fn a_daemon_that_answers_one_call_over_and_over_does_not_prolong_the_wait() {
        let (near, far) = seqpacket::pair().unwrap();
        let connection = Connection { socket: near, owner: 0, tag: Cell::new(3) };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(1, &Done { take_back: 0 }.into(), &mut bytes);
        for _ in 0..4 {
            seqpacket::send(far.as_fd(), &bytes[..length], &[]).unwrap();
        }
        assert!(matches!(connection.receive(LIMIT), Err(CallError::Silent)));
        assert!(connection.wait(Some(Duration::ZERO)).unwrap(), "the fourth is not taken");
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        let connection =
            daemon(vec![Done { take_back: 0 }.into(), piece("{", None), piece("[]\n", None)]);
        assert!(matches!(kinds(&connection), Err(CallError::Unexpected(_))));
        assert!(matches!(kinds(&connection), Err(CallError::Row(_))));
        assert!(matches!(kinds(&connection), Err(CallError::Row(_))));
    }

    #[test]
    fn a_refusal_is_told_from_no_answer() {
        let mut refusal = ObjectsChanged { refused: 1, length: 2, text: [0; OBJECT_TEXT_BYTES] };
        refusal.text[..2].copy_from_slice(b"no");
        let done = ObjectsChanged { refused: 0, ..refusal };
        let connection =
            daemon(vec![refusal.into(), done.into(), piece("", None), piece("", None)]);
        assert_eq!(connection.change_objects("{}", LIMIT).unwrap(), Err("no".into()));
        assert_eq!(connection.change_objects("{}", LIMIT).unwrap(), Ok(()));
        let long = "x".repeat(OBJECT_TEXT_BYTES + 1);
        assert!(connection.change_objects(&long, LIMIT).unwrap().is_err());
        let unexpected = connection.change_objects("{}", LIMIT);
        assert!(matches!(unexpected, Err(CallError::Unexpected(_))));
    }
}
