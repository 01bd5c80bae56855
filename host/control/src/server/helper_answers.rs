//! Passes the answers of the namespace helper on to the requests that wait for them.

use crate::daemon_log::Level;
use crate::engine::ENCRYPTION_BYTES;
use crate::helper_requests::FromHelper;
use crate::running_helper_requests::Subject;
use crate::server::Server;
use crate::vnics::usable;
use omniverb_netns::{Found, Kind};
use omniverb_sys::clock;
use omniverb_tenancy::VnicId;
use std::io;
use std::sync::Arc;

/// Budget: answers of the helper that are handled before others get their turn.
const ANSWERS_PER_TURN: usize = 64;

impl Server {
    pub(super) fn helper_ready(&mut self) -> io::Result<()> {
        for _ in 0..ANSWERS_PER_TURN {
            let news = self.helper.next(clock::now()).map_err(|error| {
                io::Error::new(error.kind(), "its helper for network namespaces is gone")
            })?;
            let Some(news) = news else { break };
            self.heard_from_helper(news);
            self.settle();
        }
        Ok(())
    }

    pub(super) fn heard_from_helper(&mut self, news: FromHelper) {
        let (kind, subject, found) = match news {
            FromHelper::Answer(kind, subject, found) => (kind, subject, found),
            FromHelper::Restarted => {
                let text = "the helper for network namespaces had died and was started again";
                self.journal.log(Level::Warning, text);
                self.addresses.begin_again();
                return self.watch_containers();
            }
            FromHelper::Appeared(identity, cookie, facts) => {
                return self.container_appeared(identity, cookie, facts);
            }
            FromHelper::Vanished(identity) => return self.container_vanished(identity),
            FromHelper::Addresses(states) => return self.addresses_became(states),
        };
        match (kind, subject, found) {
            (Kind::Process, subject, found) => {
                let found = found.and_then(|found| match found {
                    Found::Process(process) => Ok(process),
                    _ => Err(io::ErrorKind::InvalidData.into()),
                });
                match subject {
                    Subject::Arrival(id) => self.identified(id, found),
                    Subject::Named(id) => self.name_found(id, found),
                    Subject::Sockets(number) => self.sockets_found(number, found),
                    Subject::Vnic(_)
                    | Subject::Underlay
                    | Subject::UnderlaySocket(_)
                    | Subject::Containers => {}
                }
            }
            (Kind::Interfaces, subject, found) => {
                let found = found.and_then(|found| match found {
                    Found::Interfaces(facts) => Ok(facts),
                    _ => Err(io::ErrorKind::InvalidData.into()),
                });
                self.looked(subject, found);
            }
            (Kind::UnderlaySocket, Subject::UnderlaySocket(socket), found) => {
                let found = found.and_then(|found| match found {
                    Found::Socket(file) => Ok(file),
                    _ => Err(io::ErrorKind::InvalidData.into()),
                });
                self.engine_ports().underlay_socket_found(socket, found);
            }
            (Kind::Watch, _, found) => self.watching(found.map(drop)),
            (Kind::Addresses, Subject::Vnic(vnic), found) => self.addresses_found(vnic, found),
            (Kind::Port, Subject::Vnic(vnic), found) => {
                let port = found.and_then(|found| match found {
                    Found::UdpPort(port) => Ok(Arc::new(port)),
                    _ => Err(io::ErrorKind::InvalidData.into()),
                });
                self.engine_ports().port_found(vnic, port);
            }
            (Kind::PspPort, subject, found) => {
                let port = found.and_then(|found| match found {
                    Found::UdpPort(port) => Ok(Arc::new(port)),
                    _ => Err(io::ErrorKind::InvalidData.into()),
                });
                match subject {
                    Subject::Vnic(vnic) => self.engine_ports().psp_port_found(vnic, port),
                    _ => self.engine_ports().underlay_psp_port_found(port),
                }
            }
            _ => {}
        }
    }

    fn addresses_found(&mut self, vnic: VnicId, found: io::Result<Found>) {
        let addresses = match found {
            Ok(Found::Addresses(list)) => {
                let is_encrypted = self.tables.policy(vnic).encryption.is_some();
                usable(&list, if is_encrypted { ENCRYPTION_BYTES as u32 } else { 0 })
            }
            Ok(_) => Vec::new(),
            Err(error) => {
                let text = format_args!("cannot read the addresses of a vNIC: {error}");
                self.journal.log(Level::Warning, text);
                Vec::new()
            }
        };
        self.tables.decide(|tables| tables.addresses(vnic, &addresses, clock::now()));
    }
}
