//! Plays an operator that speaks the protocol by hand.

use super::pages::Pages;
use super::*;
use omniverb_session::operator::{Message, QueryAll, QueryVnics, VNIC_NAME_BYTES, decode, encode};

pub struct Operator {
    pub socket: OwnedFd,
}

pub fn name(text: &str) -> [u8; VNIC_NAME_BYTES] {
    let mut bytes = [0; VNIC_NAME_BYTES];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

impl Operator {
    pub fn connect(daemon: &Daemon) -> Operator {
        Operator { socket: seqpacket::connect(&daemon.operators).unwrap() }
    }

    pub fn call(&mut self, message: impl Into<Message>) -> Message {
        self.call_with(message, &[])
    }

    pub fn call_with(&mut self, message: impl Into<Message>, files: &[BorrowedFd<'_>]) -> Message {
        let (message, files) = self.call_for_files(message, files);
        assert!(files.is_empty());
        message
    }

    /// The same, with the descriptors beside the answer.
    pub fn call_for_files(
        &mut self,
        message: impl Into<Message>,
        files: &[BorrowedFd<'_>],
    ) -> (Message, Vec<OwnedFd>) {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(7, &message.into(), &mut bytes);
        seqpacket::send(self.socket.as_fd(), &bytes[..length], files).unwrap();
        assert!(readable(self.socket.as_fd(), Some(Duration::from_secs(10))).unwrap(), "no answer");
        let (length, files) =
            seqpacket::receive(self.socket.as_fd(), &mut bytes, seqpacket::BlockingMode::Blocking)
                .unwrap();
        let (tag, message) = decode(&bytes[..length]).unwrap();
        assert_eq!(tag, 7);
        (message, files)
    }

    /// Says something that may be answered later.
    pub fn say(&self, message: impl Into<Message>) {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(7, &message.into(), &mut bytes);
        seqpacket::send(self.socket.as_fd(), &bytes[..length], &[]).unwrap();
    }

    /// Its answer within this time; `None`: nothing. A disconnected operator notices at once.
    pub fn heard(&self, patience: Duration) -> Option<Result<Message, ()>> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        readable(self.socket.as_fd(), Some(patience)).unwrap().then(|| {
            let mode = seqpacket::BlockingMode::NonBlocking;
            match seqpacket::receive(self.socket.as_fd(), &mut bytes, mode) {
                Ok((0, _)) | Err(_) => Err(()),
                Ok((length, _)) => Ok(decode(&bytes[..length]).unwrap().1),
            }
        })
    }

    pub fn status(&mut self) -> serde_json::Value {
        self.pages(|from| QueryAll { from }.into()).status()
    }

    pub fn vnics(&mut self) -> serde_json::Value {
        self.pages(|from| QueryVnics { from }.into()).vnics()
    }

    fn pages(&mut self, question: impl Fn(Cursor) -> Message) -> Pages {
        collect(|from| match self.call(question(from)) {
            Message::Status(piece) => piece,
            other => panic!("{other:?}"),
        })
    }
}

/// Asks until there is no more.
pub fn collect(mut ask: impl FnMut(Cursor) -> Status) -> Pages {
    let mut pages = Pages::default();
    let mut from = Cursor::START;
    loop {
        let piece = ask(from);
        pages.add(&piece.text[..piece.length as usize]).unwrap();
        if piece.more == 0 {
            return pages;
        }
        assert_ne!(piece.next, from, "no step");
        from = piece.next;
    }
}

/// The status for a tenant, on a connection that may have sent nothing yet.
pub fn own_status(client: &mut Client) -> serde_json::Value {
    let pages = collect(|from| match client.call_with(QueryStatus { from }, &[]).0 {
        omniverb_session::Message::Status(piece) => piece,
        other => panic!("{other:?}"),
    });
    pages.status()
}
