//! Serves one HTTP request on one non-blocking connection, in bounded time and memory.
//!
//! In: bytes of a scraper, which may be anything, at any pace. Out: one answer; then the connection
//! ends. A connection that is late is ended as well.

use super::http_request::{REQUEST_BYTES_MAX, Refusal, Verdict, Wanted, head, read};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Budget: time in which a request has to arrive.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(5);
/// Budget: time in which an answer has to be taken.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Bytes that are read or written before others get their turn.
const PIECE_BYTES: usize = 256 << 10;

/// The media type of metrics.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT_TYPE: &str = "text/plain; charset=utf-8";

/// What a connection does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It waits for bytes.
    Read,
    /// It waits for room.
    Write,
    End,
}

/// A connection of a scraper.
#[derive(Debug)]
pub(super) struct Connection<S> {
    stream: S,
    request: Vec<u8>,
    answer: Option<Answer>,
    deadline: Instant,
}

#[derive(Debug)]
struct Answer {
    head: Vec<u8>,
    body: Arc<str>,
    /// Bytes of both that are written.
    written: usize,
}

impl<S: Read + Write> Connection<S> {
    pub(super) fn new(stream: S, now: Instant) -> Connection<S> {
        Connection { stream, request: Vec::new(), answer: None, deadline: now + REQUEST_TIME }
    }

    pub(super) fn stream(&self) -> &S {
        &self.stream
    }

    /// Whether its request has not arrived yet.
    pub(super) fn is_asking(&self) -> bool {
        self.answer.is_none()
    }

    /// When it ends if nothing happens.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Goes on as far as it can without waiting. `metrics` is asked for once, when the request is
    /// there.
    pub(super) fn proceed(
        &mut self,
        now: Instant,
        metrics: impl FnOnce() -> Option<Arc<str>>,
    ) -> Next {
        if self.answer.is_none() {
            match self.receive() {
                Ok(Verdict::Incomplete) => return Next::Read,
                Ok(Verdict::Complete(wanted)) => self.answer = Some(answer(wanted, metrics())),
                Ok(Verdict::Refused(refusal)) => self.answer = Some(refused(refusal)),
                Err(_) => return Next::End,
            }
            // Making the metrics may have taken a while, which is not the scraper's.
            self.deadline = now.max(Instant::now()) + ANSWER_TIME;
        }
        self.send().unwrap_or(Next::End)
    }

    /// Says that there are too many, if that needs no waiting.
    pub(super) fn refuse(&mut self) {
        self.answer = Some(refused(Refusal::Unavailable));
        let _ = self.send();
    }

    /// Reads what has come.
    ///
    /// # Errors
    /// The connection is over.
    fn receive(&mut self) -> io::Result<Verdict> {
        let mut piece = [0; 1024];
        loop {
            // No more than a head, so no more reads than this has bytes.
            let verdict = read(&self.request);
            if verdict != Verdict::Incomplete {
                return Ok(verdict);
            }
            let room = piece.len().min(REQUEST_BYTES_MAX - self.request.len());
            match self.stream.read(piece.get_mut(..room).unwrap_or_default()) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => {
                    self.request.extend_from_slice(piece.get(..length).unwrap_or_default());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(verdict),
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes what there is room for.
    ///
    /// # Errors
    /// The connection is over.
    fn send(&mut self) -> io::Result<Next> {
        let Some(answer) = &mut self.answer else { return Ok(Next::Read) };
        let mut left = PIECE_BYTES;
        while let Some(bytes) = answer.rest() {
            if left == 0 {
                return Ok(Next::Write);
            }
            match self.stream.write(bytes.get(..left).unwrap_or(bytes)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => {
                    answer.written += length;
                    left = left.saturating_sub(length);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Next::Write),
                Err(error) => return Err(error),
            }
        }
        Ok(Next::End)
    }
}

impl Answer {
    /// The bytes that are written next, if any are left.
    fn rest(&self) -> Option<&[u8]> {
        let (head, body) = (self.head.as_slice(), self.body.as_bytes());
        match head.get(self.written..) {
            Some(rest) if !rest.is_empty() => Some(rest),
            _ => body.get(self.written - head.len()..).filter(|rest| !rest.is_empty()),
        }
    }
}

fn answer(wanted: Wanted, metrics: Option<Arc<str>>) -> Answer {
    let Some(body) = metrics else { return refused(Refusal::Unavailable) };
    let head = head("200 OK", METRICS_TYPE, body.len()).into_bytes();
    match wanted {
        Wanted::Metrics => Answer { head, body, written: 0 },
        Wanted::Head => Answer { head, body: "".into(), written: 0 },
    }
}

fn refused(refusal: Refusal) -> Answer {
    let body = refusal.text();
    let head = head(refusal.status(), TEXT_TYPE, body.len()).into_bytes();
    Answer { head, body: body.into(), written: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// A peer that sends these pieces, with a pause behind each, and has so much room each time.
    #[derive(Debug, Default)]
    struct Peer {
        pieces: VecDeque<Vec<u8>>,
        is_gone: bool,
        pause: bool,
        room: usize,
        heard: Vec<u8>,
    }

    impl Read for Peer {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.pause = !self.pause;
            if self.pause && !self.is_gone {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let Some(mut piece) = self.pieces.pop_front() else {
                let error = || io::ErrorKind::WouldBlock.into();
                return if self.is_gone { Ok(0) } else { Err(error()) };
            };
            let length = piece.len().min(bytes.len());
            bytes[..length].copy_from_slice(&piece[..length]);
            if length < piece.len() {
                self.pieces.push_front(piece.split_off(length));
            }
            Ok(length)
        }
    }

    impl Write for Peer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.pause = !self.pause;
            if self.pause || self.room == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let length = self.room.min(bytes.len());
            self.heard.extend_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn heard(pieces: impl IntoIterator<Item = Vec<u8>>, room: usize) -> (String, usize) {
        let peer = Peer { pieces: pieces.into_iter().collect(), room, ..Peer::default() };
        let now = Instant::now();
        let mut connection = Connection::new(peer, now);
        let mut asked = 0;
        for _ in 0..100_000 {
            let metrics = || {
                asked += 1;
                Some("one 1\n# EOF\n".into())
            };
            if connection.proceed(now, metrics) == Next::End {
                return (String::from_utf8(connection.stream.heard).unwrap(), asked);
            }
        }
        panic!("it does not end");
    }

    #[test]
    fn a_request_byte_by_byte_is_answered_once_byte_by_byte() {
        let bytes = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        let (text, asked) = heard(bytes.iter().map(|byte| vec![*byte]), 1);
        assert!(text.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text"));
        assert!(
            text.contains("Content-Length: 12\r\n") && text.ends_with("\r\n\r\none 1\n# EOF\n")
        );
        assert_eq!(asked, 1);
        let (text, _) = heard([b"HEAD /metrics HTTP/1.1\r\n\r\n".to_vec()], 1000);
        assert!(text.contains("Content-Length: 12\r\n") && text.ends_with("\r\n\r\n"));
    }

    #[test]
    fn a_long_line_is_refused_after_a_bounded_number_of_bytes() {
        let now = Instant::now();
        let pieces = (0..1000).map(|_| vec![b'x'; 1000]).collect();
        let mut connection = Connection::new(Peer { pieces, room: 1000, ..Peer::default() }, now);
        while connection.proceed(now, || unreachable!("no request")) != Next::End {
            assert!(connection.request.len() <= REQUEST_BYTES_MAX);
        }
        assert!(connection.stream.heard.starts_with(b"HTTP/1.1 431 "));
        assert!(connection.stream.pieces.len() > 990, "it was read on");
    }

    #[test]
    fn a_partial_request_waits_until_its_deadline() {
        let now = Instant::now();
        let pieces = [b"GET /metrics HT".to_vec()].into();
        let mut connection = Connection::new(Peer { pieces, ..Peer::default() }, now);
        for _ in 0..10 {
            assert_eq!(connection.proceed(now, || unreachable!()), Next::Read);
        }
        assert!(connection.is_asking());
        assert_eq!(connection.deadline(), now + REQUEST_TIME);
        connection.stream.is_gone = true;
        assert_eq!(connection.proceed(now, || unreachable!()), Next::End);
    }

    #[test]
    fn a_scraper_that_does_not_read_waits_for_room_until_its_deadline() {
        let now = Instant::now();
        let pieces = [b"GET /metrics HTTP/1.1\r\n\r\n".to_vec()].into();
        let mut connection = Connection::new(Peer { pieces, ..Peer::default() }, now);
        let metrics = || Some(Arc::from("one 1\n"));
        let mut next = Next::Read;
        for _ in 0..10 {
            next = connection.proceed(now, metrics);
        }
        assert_eq!((next, connection.is_asking()), (Next::Write, false));
        assert!(connection.deadline() >= now + ANSWER_TIME);
    }

    #[test]
    fn without_metrics_the_answer_is_503() {
        let now = Instant::now();
        let pieces = [b"GET /metrics HTTP/1.1\r\n\r\n".to_vec()].into();
        let mut connection = Connection::new(Peer { pieces, room: 9, ..Peer::default() }, now);
        while connection.proceed(now, || None) != Next::End {}
        assert!(connection.stream.heard.starts_with(b"HTTP/1.1 503 "));
        let mut connection =
            Connection::new(Peer { room: 900, pause: true, ..Peer::default() }, now);
        connection.refuse();
        assert!(connection.stream.heard.starts_with(b"HTTP/1.1 503 "));
    }
}
