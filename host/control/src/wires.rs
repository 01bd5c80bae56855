//! Links to the engine: their memory, and the sockets the engine needs for them.

use crate::journal::Level;
use crate::memory::Shared;
use crate::namespaces::{Opening, PORT_PAUSE};
use crate::server::{Server, Timer};
use omniverb_sys::clock;
use omniverb_sys::datagram::Port;
use omniverb_tenancy::{VnicId, WireEnd};
use omniverb_terms::Qpn;
use std::io;
use std::sync::Arc;

/// vNICs that a warning is remembered for.
const WARNED_MAX: usize = 4096;

impl Server {
    pub(crate) fn attach_engine(&mut self, end: WireEnd) {
        if !self.namespaces.port_is_coming(end.vnic, clock::now()) {
            return self.wire_failed(&end);
        }
        let Some(entry) = self.namespaces.get_mut(end.vnic) else { return };
        if !matches!(entry.port, Opening::Open(_)) {
            return entry.waiting.push(end);
        }
        match Shared::make(&end.ready) {
            Ok(shared) => {
                self.engine.attach(end.vnic, &end, &shared);
                let (ready, files) = shared.told(&end.ready);
                self.tell(end.session, &ready.into(), files);
            }
            Err(error) => {
                self.journal.log(Level::Warning, format_args!("no memory for a link: {error}"));
                self.wire_failed(&end);
            }
        }
    }

    fn wire_failed(&mut self, end: &WireEnd) {
        let actions = self.tenancy.wire_failed(end.ready.qpn, end.ready.peer_qpn);
        self.work.extend(actions);
    }

    pub(crate) fn detach_engine(&mut self, vnic: VnicId, qpn: Qpn, peer_qpn: Qpn) {
        let waiting = self.namespaces.get_mut(vnic).map(|entry| &mut entry.waiting);
        let names = |end: &WireEnd| (end.ready.qpn, end.ready.peer_qpn) == (qpn, peer_qpn);
        if let Some(waiting) = waiting
            && waiting.iter().any(names)
        {
            for gone in waiting.extract_if(.., |end| names(end)).collect::<Vec<_>>() {
                // It was to bring the bell that others need: the next one of them does.
                let shares = |end: &&mut WireEnd| end.ready.bell == gone.ready.bell;
                if let Some(next) = waiting.iter_mut().find(shares) {
                    next.ready.bell_new |= gone.ready.bell_new;
                }
            }
            return;
        }
        self.engine.detach(qpn, peer_qpn);
    }

    /// The helper has opened a vNIC's sockets, or could not.
    pub(crate) fn port_found(&mut self, vnic: VnicId, port: io::Result<Port>) {
        let now = clock::now();
        let in_use = port.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::AddrInUse);
        if in_use && self.namespaces.port_in_use(vnic) {
            return self.set_timer(PORT_PAUSE, Timer::Port(vnic));
        }
        let Some(entry) = self.namespaces.get_mut(vnic) else { return };
        if !matches!(entry.port, Opening::Asked(_)) {
            return;
        }
        match port {
            Ok(port) => {
                let port = Arc::new(port);
                entry.port = Opening::Open(port.clone());
                let waiting = std::mem::take(&mut entry.waiting);
                self.engine.open(vnic, port);
                let policy = self.tenancy.policy(vnic);
                self.engine.limit(vnic, policy.limit);
                if policy.faults.is_some() {
                    self.engine.faults(vnic, policy.faults);
                    // Those that were set at run time are in the log already.
                    if !self.registry.is_kept(vnic) {
                        self.warn_of_faults(vnic);
                    }
                }
                self.record(vnic);
                self.probes.start_again(vnic, now);
                for end in waiting {
                    self.attach_engine(end);
                }
            }
            Err(error) => {
                entry.port = Opening::Failed(now);
                let waiting = std::mem::take(&mut entry.waiting);
                self.warn_of_port(vnic, &error);
                for id in self.probes.of(vnic) {
                    let actions = self.tenancy.probe_failed(id, now);
                    self.work.extend(actions);
                }
                for end in waiting {
                    self.wire_failed(&end);
                }
            }
        }
    }

    /// Once for each vNIC.
    fn warn_of_port(&mut self, vnic: VnicId, error: &io::Error) {
        if self.warned.len() >= WARNED_MAX {
            self.warned.clear();
        }
        if self.warned.insert(vnic) {
            let name = self.registry.name(vnic);
            let text = format_args!(
                "UDP port 4791 of vNIC {name}: {error}; \
                 its processes reach nobody outside their network namespace"
            );
            self.journal.log(Level::Warning, text);
        }
    }

    /// The vNIC has no processes any more.
    pub(crate) fn close_port(&mut self, vnic: VnicId) {
        let recorded = self.recordings.values().any(|recording| recording.vnic == vnic);
        let Some(entry) = self.namespaces.get_mut(vnic) else { return };
        entry.waiting.clear();
        if recorded {
            return;
        }
        let was = std::mem::replace(&mut entry.port, Opening::No);
        if matches!(was, Opening::Open(_)) {
            self.engine.close(vnic);
        }
    }
}
