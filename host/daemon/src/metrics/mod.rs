//! Serves metrics of vNICs, tenants and policies to scrapers (`--metrics ADDR`).
//!
//! In: HTTP requests, and what the daemon answers an operator (`daemon_query.rs`). Out: text in the
//! OpenMetrics format (`exposition.rs`). One thread does it all; it shares nothing with the threads
//! that decide and that move packets. The number of connections, their bytes and their time are
//! bounded, and the daemon is asked once a second at most, however many ask.

mod counter_totals;
mod daemon_query;
mod exposition;
mod http_connection;
mod http_request;

use anyhow::Context;
use counter_totals::Totals;
use http_connection::{Connection, Next};
use omniverb_control::{Journal, Level};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Budget: scrapers that are connected at a time. The oldest without a request yields.
const CONNECTIONS_MAX: usize = 16;
/// How long what the daemon said is served.
const FRESH: Duration = Duration::from_secs(1);
/// How long after an error the address is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// An address, and the listener there or why there is none yet.
pub(crate) struct Endpoint {
    address: SocketAddr,
    listener: io::Result<TcpListener>,
}

impl Endpoint {
    /// Listens at an address. One that is in use is tried again later: the daemon that had it may
    /// be about to end, and programs are served without metrics.
    pub(crate) fn bind(address: SocketAddr) -> Endpoint {
        let bound = TcpListener::bind(address);
        let listener = bound.and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        Endpoint { address, listener }
    }
}

/// Serves metrics from now on, in a thread of its own. `operators` is the daemon's own socket.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn serve(endpoint: Endpoint, operators: &Path, journal: Journal) -> anyhow::Result<()> {
    let source = Source { socket: operators.into(), totals: Totals::default(), latest: None };
    let server = Server { source, journal, connections: Vec::new(), refused: 0 };
    std::thread::Builder::new()
        .name("metrics".into())
        .spawn(move || server.run(endpoint))
        .context("cannot start the thread that serves metrics")?;
    Ok(())
}

/// Where metrics come from.
struct Source {
    socket: PathBuf,
    totals: Totals,
    /// When the daemon was asked last, and the text that was made of its answer, if it gave one.
    latest: Option<(Instant, Option<Arc<str>>)>,
}

struct Server {
    source: Source,
    journal: Journal,
    connections: Vec<Connection<TcpStream>>,
    refused: u64,
}

impl Source {
    /// The metrics now, or those of a moment ago; `None`: the daemon does not answer, or did not a
    /// moment ago.
    fn metrics(&mut self, refused: u64, journal: &mut Journal) -> Option<Arc<str>> {
        if let Some((at, text)) = &self.latest
            && at.elapsed() < FRESH
        {
            return text.clone();
        }
        let text = match self.render(refused) {
            Ok(text) => Some(text),
            Err(error) => {
                let text = format_args!("cannot answer a scrape of metrics: {error:#}");
                journal.log(Level::Warning, text);
                None
            }
        };
        self.latest = Some((Instant::now(), text.clone()));
        text
    }

    /// Asks the daemon.
    ///
    /// # Errors
    /// It does not answer.
    fn render(&mut self, refused: u64) -> anyhow::Result<Arc<str>> {
        let begun = Instant::now();
        self.totals.update(daemon_query::sample(&self.socket)?);
        let query_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let server = exposition::Server { refused, query_ns };
        Ok(exposition::render(&self.totals, &server)?.into())
    }
}

impl Server {
    fn run(mut self, endpoint: Endpoint) {
        let listener = self.listener(endpoint);
        loop {
            if let Err(error) = self.turn(&listener) {
                self.journal.log(Level::Warning, format_args!("cannot serve metrics: {error}"));
                std::thread::sleep(RETRY);
            }
        }
    }

    fn listener(&mut self, mut endpoint: Endpoint) -> TcpListener {
        let address = endpoint.address;
        let mut is_told = false;
        loop {
            match endpoint.listener {
                Ok(listener) => {
                    let text = format_args!("serving metrics at http://{address}/metrics");
                    self.journal.log(Level::Info, text);
                    return listener;
                }
                Err(error) if !is_told => {
                    let text = format_args!(
                        "cannot serve metrics at {address}: {error}; trying again every {RETRY:?}"
                    );
                    self.journal.log(Level::Warning, text);
                    is_told = true;
                }
                Err(_) => {}
            }
            std::thread::sleep(RETRY);
            endpoint = Endpoint::bind(address);
        }
    }

    /// Waits until something happens, and does it.
    ///
    /// # Errors
    /// The kernel cannot wait, or has no descriptor for a connection.
    fn turn(&mut self, listener: &TcpListener) -> io::Result<()> {
        let (accepts, ready) = self.wait(listener)?;
        let mut ready = ready.into_iter();
        let Server { source, journal, connections, refused } = self;
        // What arrives while metrics are made for one is looked at before it is late.
        let now = Instant::now();
        connections.retain_mut(|connection| {
            if !ready.next().unwrap_or(false) {
                return now < connection.deadline();
            }
            connection.proceed(now, || source.metrics(*refused, journal)) != Next::End
        });
        if accepts { self.accept(listener) } else { Ok(()) }
    }

    /// Whether there is a connection to accept, and for each that there is whether it can go on.
    fn wait(&self, listener: &TcpListener) -> io::Result<(bool, Vec<bool>)> {
        let mut files = vec![PollFd::new(listener, PollFlags::IN)];
        files.extend(self.connections.iter().map(|connection| {
            let is_asking = connection.is_asking();
            PollFd::new(connection.stream(), if is_asking { PollFlags::IN } else { PollFlags::OUT })
        }));
        let deadline = self.connections.iter().map(Connection::deadline).min();
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        // A little longer, so that what is late is late then.
        let left = left.map(|left| left + Duration::from_millis(1));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut files, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = files.iter().map(|file| !file.revents().is_empty());
        Ok((ready.next().unwrap_or(false), ready.collect()))
    }

    /// Accepts one connection. If there are too many, the oldest without a request yields.
    fn accept(&mut self, listener: &TcpListener) -> io::Result<()> {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::WouldBlock
                    | io::ErrorKind::Interrupted
                    | io::ErrorKind::ConnectionAborted => Ok(()),
                    _ => Err(error),
                };
            }
        };
        stream.set_nonblocking(true)?;
        let mut connection = Connection::new(stream, Instant::now());
        if self.connections.len() >= CONNECTIONS_MAX {
            self.refused = self.refused.saturating_add(1);
            match self.connections.iter().position(Connection::is_asking) {
                Some(oldest) => drop(self.connections.remove(oldest)),
                None => {
                    connection.refuse();
                    return Ok(());
                }
            }
        }
        self.connections.push(connection);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_control::Form;
    use std::io::{Read, Write};

    fn server() -> (Server, TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let text = Some(Arc::from("one 1\n# EOF\n"));
        let latest = Some((Instant::now() + Duration::from_secs(60), text));
        let source = Source { socket: "/nowhere".into(), totals: Totals::default(), latest };
        let journal = Journal::new(Level::Error, Form::Words);
        let server = Server { source, journal, connections: Vec::new(), refused: 0 };
        (server, listener, address)
    }

    #[test]
    fn silent_connections_yield_to_one_that_asks() {
        let (mut server, listener, address) = server();
        let silent: Vec<_> = (0..3 * CONNECTIONS_MAX)
            .map(|_| {
                let stream = TcpStream::connect(address).unwrap();
                server.turn(&listener).unwrap();
                stream
            })
            .collect();
        assert_eq!(server.connections.len(), CONNECTIONS_MAX);
        assert_eq!(server.refused, 2 * CONNECTIONS_MAX as u64);
        let mut asks = TcpStream::connect(address).unwrap();
        asks.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        while server.connections.iter().all(Connection::is_asking) && server.refused < 100 {
            let before = server.connections.len();
            server.turn(&listener).unwrap();
            if server.connections.len() < before {
                break;
            }
        }
        let mut text = String::new();
        asks.read_to_string(&mut text).unwrap();
        assert!(
            text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("one 1\n# EOF\n"),
            "{text}"
        );
        drop(silent);
        while !server.connections.is_empty() {
            server.turn(&listener).unwrap();
        }
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_503() {
        let (mut server, listener, address) = server();
        server.source.latest = None;
        let mut asks = TcpStream::connect(address).unwrap();
        asks.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        server.turn(&listener).unwrap();
        while !server.connections.is_empty() {
            server.turn(&listener).unwrap();
        }
        let mut text = String::new();
        asks.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_asked_once_a_second() {
        let (mut server, ..) = server();
        let asked = Instant::now() + Duration::from_secs(60);
        server.source.latest = Some((asked, None));
        assert_eq!(server.source.metrics(0, &mut server.journal), None);
        assert_eq!(server.source.latest, Some((asked, None)), "it was asked again");
        server.source.latest = None;
        assert_eq!(server.source.metrics(0, &mut server.journal), None);
        assert!(matches!(server.source.latest, Some((_, None))));
    }
}
