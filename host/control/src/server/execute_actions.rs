//! Executes the actions that the tables decided.

use crate::client::Origin;
use crate::client_outbox::Letter;
use crate::daemon_log::Level;
use crate::engine::Pages;
use crate::link_memory::Shared;
use crate::roce_port::VnicPort;
use crate::server::Server;
use crate::server::operation_contexts::PairWindows;
use omniverb_session::Message;
use omniverb_session::body::{Extent, Welcome};
use omniverb_sys::clock;
use omniverb_tenancy::{Action, FileId, LinkEnd, SessionId};
use omniverb_terms::{Errno, UnderlayRoute};
use std::io;

impl Server {
    pub(super) fn execute(&mut self, action: Action) {
        match action {
            Action::Welcome { session, .. } if self.related.has(session) => {
                self.socket_pairs().sockets_welcome(session);
            }
            Action::Reply { session, .. } if self.related.has(session) => {
                self.socket_pairs().sockets_unwelcome(session);
            }
            Action::Drop { session, .. } if self.related.has(session) => {
                self.socket_pairs().sockets_unwelcome(session);
            }
            Action::Related { number, verdict } => self.socket_pairs().related(number, verdict),
            Action::Welcome { session, tag, welcome } => self.welcome(session, tag, &welcome),
            Action::Reply { session, tag, message } => {
                if let Message::Failed(errno) = &message {
                    self.count_refusal(session, *errno);
                }
                self.delivery().answer(session, tag, Letter::of(message));
            }
            Action::Event { session, message } => {
                self.delivery().tell(session, Letter::of(message))
            }
            Action::LookAgain { session } => self.delivery().look_at_backlog(session),
            Action::CreateLink { first, second } => self.create_link(&first, &second),
            Action::AttachEngine(end) => self.engine_ports().attach_engine(*end),
            Action::RefuseEngine { vnic, qpn, peer_qpn, inbound, outbound } => {
                if let Some(port) = self.vnics.port_mut(vnic) {
                    port.refuse((qpn, peer_qpn), inbound, outbound);
                }
                self.engine.refuse(vnic, (qpn, peer_qpn), outbound);
            }
            Action::AttachCarried { qpn, peer_qpn, peer_port, state } => {
                if !self.engine.attach_carried((qpn, peer_qpn), peer_port, state) {
                    self.tables.decide(|tables| tables.carried_link_lost(qpn, peer_qpn));
                }
            }
            Action::SetPeerPort { vnic, qpn, peer_qpn, port } => {
                self.engine.set_peer_port(vnic, (qpn, peer_qpn), port);
            }
            Action::SendNotice { vnic, underlay, datagram } => {
                if let Some(port) = self.vnics.port(vnic).and_then(VnicPort::open) {
                    let UnderlayRoute { local, remote, interface, .. } = underlay;
                    // No route, or a packet filter: it is sent again, or the peer's comes.
                    let _ = port.send(&datagram, Some(local), remote, interface);
                }
            }
            Action::DetachEngine { vnic, qpn, peer_qpn } => {
                self.engine_ports().detach_engine(vnic, qpn, peer_qpn);
            }
            Action::Adopt { session, adopt, home, file, new_file } => {
                self.page_lender().adopt(session, &adopt, (home, file), new_file);
            }
            Action::Pin { session, pin, .. } => self.delivery().tell(session, Letter::of(pin)),
            Action::ForgetFile { file, watch } => self.forget_file(file, watch),
            Action::Unwatch { file } => self.watched_files.forget(file),
            Action::EmptyPlace { place } => self.extents.empty(&place),
            Action::Grant { session, file, granted, occasion } => {
                self.page_lender().grant(session, file, &granted, occasion);
            }
            Action::GrantEngine { vnic, file, granted } => {
                if let Some(row) = self.guests().kept(file) {
                    return self.engine.grant(vnic, &granted, Pages::InPlace(row));
                }
                let lending = self.extents.get(file);
                if let Some(file) = lending.and_then(|lending| lending.memory.enclosed()) {
                    let Extent { offset, length } = granted.memory;
                    let extent = omniverb_sys::Extent::new(file, offset, length);
                    self.engine.grant(vnic, &granted, Pages::Moved(extent));
                }
            }
            Action::DenyEngine { vnic, denied } => self.engine.deny(vnic, &denied),
            Action::BeginTrace { session } => self.engine_ports().begin_trace(session),
            Action::EndTrace { session } => self.captures.end_trace(session),
            Action::Trace(end) => self.engine_ports().trace(&end),
            Action::Untrace { session, qpn, peer_qpn } => {
                let (qpn, peer_qpn) = self.tables.shown_ends(session, qpn, peer_qpn);
                self.captures.untrace(session, qpn, peer_qpn);
            }
            // Our sockets are in the vNIC's own network.
            Action::Probe { id, key: Some(_), .. } => self.engine_ports().fail_probe(id),
            Action::Probe { id, vnic, interface, source, destination, key: None } => {
                self.engine_ports().start_probe(id, vnic, interface, (source, destination));
            }
            Action::ForgetProbe { id } => {
                self.engine.expect_no_more(id);
                self.probes.forget(id);
            }
            Action::ReadAddresses { vnic } => {
                if !self.guests().addresses_of_machine(vnic) {
                    self.vnics.read_addresses(vnic, &mut self.helper, clock::now());
                }
            }
            Action::OpenPort { vnic } => {
                self.engine_ports().want_port(vnic);
            }
            Action::Manage { vnic, underlay, services, datagram, to } => {
                self.engine.manage(vnic, (underlay, services), datagram, to);
            }
            Action::Audit(audited) => self.audit_lines().audit(&audited),
            Action::Drop { session, reason } => self.clients.part(session, reason),
            Action::VnicGone { vnic } => self.engine_ports().close_port(vnic),
        }
    }

    fn welcome(&mut self, id: SessionId, tag: u64, welcome: &Welcome) {
        if self.clients.get(id).is_none() {
            return;
        }
        match self.clients.welcome(id, &self.reactor) {
            Ok((events, area)) => {
                let welcome = Welcome { area: area.said(), ..*welcome };
                self.pair_windows().look_at_pairs_of(id);
                let files = std::iter::once(events).chain(area.enclosed()).collect();
                self.delivery().answer(id, tag, Letter::with(welcome, files));
            }
            Err(error) => {
                self.journal.log(
                    Level::Warning,
                    format_args!("cannot make an events socket for a client: {error}"),
                );
                self.delivery().answer(id, tag, Letter::of(Message::Failed(Errno::ENOMEM)));
                self.clients.part(id, "its events socket could not be made");
            }
        }
    }

    fn create_link(&mut self, first: &LinkEnd, second: &LinkEnd) {
        let sources = [first, second].map(|end| self.clients.source(end.session));
        let made = match sources[0].of_both(&sources[1]) {
            Some(source) => Shared::make(source, &first.ready),
            None => return self.pair_windows().create_pair_link([first, second]),
        };
        match made {
            Ok(shared) => {
                for end in [first, second] {
                    self.clients.keep_link(end.session, end.ready.qpn, &shared, Origin::ItsMachine);
                    self.delivery().tell(end.session, shared.letter(&end.ready));
                }
            }
            Err(error) => self.pair_windows().link_failed(first, second, &error),
        }
    }

    /// No process is given this one any more. Closing a large one takes the kernel long.
    fn forget_file(&mut self, file: FileId, watch: bool) {
        self.guests().forget_kept(file);
        if watch && let Some(lending) = self.extents.get(file) {
            self.watched_files.watch(file, &lending.memory.extent.file);
        }
        if let Some(file) = self.extents.forget(file) {
            self.disposal.close_memory(file);
        }
    }
}

impl PairWindows<'_> {
    /// There is no memory for a link.
    pub(super) fn link_failed(&mut self, first: &LinkEnd, second: &LinkEnd, error: &io::Error) {
        self.journal.log(Level::Warning, format_args!("no memory for a link: {error}"));
        let (one, other) = (first.ready.qpn, second.ready.qpn);
        self.tables.decide(|tables| tables.link_failed(one, other, clock::now()));
    }
}
