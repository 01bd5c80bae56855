//! Has the helper open sockets at this host's underlay addresses, and says what is wrong.

use crate::daemon_log::Level;
use crate::reactor::Timer;
use crate::roce_port::AGAIN;
use crate::server::operation_contexts::{EnginePorts, StatusRows};
use crate::underlay_sockets::News;
use omniverb_netns::UnderlaySocket;
use omniverb_sys::clock;
use serde_json::{Value, json};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

impl EnginePorts<'_> {
    /// Has sockets at the underlay addresses that objects say now, and at no others.
    pub(super) fn apply_underlay(&mut self) {
        let closed = self.underlay.want(&self.objects.underlay_addresses());
        self.close_underlay_sockets(closed);
        self.ask_underlay_sockets();
    }

    fn close_underlay_sockets(&mut self, closed: Vec<IpAddr>) {
        for address in closed {
            self.engine.set_underlay_socket(address, None);
        }
    }

    /// Asks for the sockets that are to be asked for.
    fn ask_underlay_sockets(&mut self) {
        let namespace = self.underlay.namespace().map(Arc::new);
        let place = namespace.as_ref().ok().map(|namespace| namespace.identity());
        while let Some(socket) = self.underlay.next_due(place) {
            match &namespace {
                Ok(namespace) => {
                    self.helper.ask_underlay_socket(socket, namespace, clock::now());
                }
                Err(error) => {
                    let error = io::Error::new(error.kind(), error.to_string());
                    self.note_underlay_socket(socket, Err(error));
                }
            }
        }
        if self.underlay.is_retry_due() && !std::mem::replace(&mut self.underlay.is_retry_set, true)
        {
            self.reactor.set(Duration::from_nanos(AGAIN), Timer::UnderlaySockets);
        }
    }

    /// Some sockets could not be had a while ago, or another namespace may be there.
    pub(super) fn look_at_underlay(&mut self) {
        self.underlay.is_retry_set = false;
        if let Some(closed) = self.underlay.look_at_namespace() {
            self.close_underlay_sockets(closed);
            self.addresses.begin_again();
            if let Some(port) = self.vnics.underlay_psp.port.close() {
                self.engine.close_underlay_psp_port();
                self.vnics.let_go(&port);
            }
            if !self.vnics.underlay_psp.users().is_empty() {
                self.want_underlay_psp_port();
            }
        }
        self.underlay.try_again();
        self.ask_underlay_sockets();
    }

    /// The helper has opened a socket, or could not.
    pub(super) fn underlay_socket_found(
        &mut self,
        socket: UnderlaySocket,
        found: io::Result<OwnedFd>,
    ) {
        self.note_underlay_socket(socket, found);
        // Also what is wanted another way by now.
        self.ask_underlay_sockets();
    }

    fn note_underlay_socket(&mut self, socket: UnderlaySocket, found: io::Result<OwnedFd>) {
        let address = socket.ip;
        // Without what would carry its packets it is as if it could not be had.
        let found = found.and_then(|file| self.engine.begin_underlay().map(|()| file));
        let (file, outcome) = match found {
            Ok(file) => (Some(file), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let Some(news) = self.underlay.found(socket, outcome) else { return };
        if file.is_some() {
            self.engine.set_underlay_socket(address, file);
        }
        match news {
            Some(News::Failed) if self.objects.is_plain_at(address) => {
                if let Some(text) = self.status_of_underlay(address) {
                    self.journal.log(Level::Warning, format_args!("{text}"));
                }
            }
            Some(News::Opened) => {
                let text =
                    format_args!("UDP port 4791 at the underlay address {address} is open now");
                self.journal.log(Level::Info, text);
            }
            Some(News::Failed) | None => {}
        }
    }

    fn status_of_underlay(&self, address: IpAddr) -> Option<String> {
        Some(problem(address, &self.underlay.place(), self.underlay.problem(address)?))
    }
}

/// Problems that a row has room for.
const PROBLEMS_SHOWN: usize = 3;

impl StatusRows<'_> {
    /// The network namespace of the underlay, and addresses of it that have no socket.
    pub(super) fn underlay_row(&self) -> Value {
        let place = self.underlay.place();
        let problems = self.underlay.problems();
        let problems = problems.filter(|(address, _)| self.objects.is_plain_at(*address));
        let shown = problems.clone().take(PROBLEMS_SHOWN);
        let shown: Vec<_> = shown.map(|(address, error)| problem(address, &place, error)).collect();
        json!({
            "namespace": self.underlay.path(),
            "problems": shown,
            "problem_count": problems.count(),
        })
    }
}

/// Why an underlay address has no socket, and what to do.
fn problem(address: IpAddr, place: &str, error: &io::Error) -> String {
    let mend = match error.kind() {
        io::ErrorKind::AddrInUse => {
            ": another process has it (`ss -ulnp 'sport = 4791'` there names it), or the kernel's \
             rdma_rxe"
        }
        io::ErrorKind::AddrNotAvailable => ": give an interface the address",
        io::ErrorKind::PermissionDenied => ": omniverbd needs CAP_SYS_ADMIN to enter it",
        _ => "",
    };
    format!(
        "cannot open UDP port 4791 at the underlay address {address} in {place}: {error}{mend}; \
         until then its vNICs reach vNICs of this host only; it is tried again every 5 seconds"
    )
}
