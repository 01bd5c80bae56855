//! Sets up the encryption of vNICs' packets between hosts: keys, the port of PSP, and log lines
//! about hosts without.

use crate::daemon_log::Level;
use crate::engine::{Encryption, Refusal};
use crate::reactor::Timer;
use crate::roce_port::{PAUSE, PortUse};
use crate::server::subsystems::EnginePorts;
use omniverb_sys::clock;
use omniverb_sys::udp_socket::UdpPort;
use omniverb_tenancy::VnicId;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

/// What `omniverb status` and the log say of an address that gets nothing.
pub(super) fn phrase(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::NoAnswer => {
            "the peer did not answer the handshake of PSP: its host does not encrypt this tenant, \
             has another key, or cannot be reached on UDP port 1000"
        }
        Refusal::Plain => "the peer sends RoCE in plain: its host does not encrypt this tenant",
    }
}

impl EnginePorts<'_> {
    /// The vNIC's packets are encrypted and it is not known yet what becomes of its port of PSP:
    /// the other port is kept for then, so that nothing is lost meanwhile.
    pub(super) fn waits_for_psp_port(&mut self, vnic: VnicId, port: &Arc<UdpPort>) -> bool {
        if self.tables.policy(vnic).encryption.is_none() || port.carried().is_some() {
            return false;
        }
        let wanted = self.vnics.want_psp_port(vnic, self.helper, clock::now());
        let is_open = self.vnics.psp_port(vnic).is_some_and(|port| port.open().is_some());
        if wanted == PortUse::Vain || is_open {
            return false;
        }
        self.vnics.keep_port(vnic, port.clone());
        true
    }

    /// The helper has opened a vNIC's port of PSP, or could not.
    pub(super) fn psp_port_found(&mut self, vnic: VnicId, port: io::Result<Arc<UdpPort>>) {
        let in_use = port.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::AddrInUse);
        let closed = self.vnics.closed();
        let Some(own) = self.vnics.psp_port_mut(vnic) else { return };
        if in_use && own.tries_again(closed) {
            return self.reactor.set(PAUSE, Timer::PspPort(vnic));
        }
        match port {
            Ok(port) => drop(own.opened(port)),
            Err(error) => {
                if own.failed(clock::now()).is_some() && self.vnics.is_warning_due(vnic) {
                    let name = self.vnics.registry().name(vnic);
                    let text = format_args!(
                        "cannot bind UDP port 1000 in the network namespace of vNIC {name}: \
                         {error}; its tenant is encrypted, so it reaches no other host"
                    );
                    self.journal.log(Level::Warning, text);
                }
            }
        }
        match self.vnics.take_kept_port(vnic) {
            Some(kept) => self.port_found(vnic, Ok(kept)),
            None if self.vnics.has_port(vnic) => self.set_encryption(vnic),
            None => {}
        }
    }

    /// Tells the engine how a vNIC's packets are encrypted.
    pub(super) fn set_encryption(&mut self, vnic: VnicId) {
        if self.tables.policy(vnic).encryption.is_none() {
            self.engine.encryption(vnic, None);
            if let Some(port) = self.vnics.close_psp(vnic) {
                self.vnics.let_go(&port);
            }
            return;
        }
        let (keys, lifetime) = self.objects.keys_of(vnic);
        // Without keys nothing passes.
        let port = self.vnics.psp_port(vnic).and_then(|port| port.shared());
        self.engine.encryption(vnic, Some(Encryption { port, keys, lifetime }));
    }

    /// A vNIC's encryption is another one, or it has none any more.
    pub(super) fn encryption_is_other(&mut self, vnic: VnicId) {
        let now = clock::now();
        self.vnics.read_addresses(vnic, self.helper, now);
        if !self.vnics.has_port(vnic) {
            return;
        }
        if self.tables.policy(vnic).encryption.is_some() {
            self.vnics.want_psp_port(vnic, self.helper, now);
        }
        self.set_encryption(vnic);
    }

    /// An address gets nothing of a vNIC, or does again: said once.
    pub(super) fn encryption_changed(
        &mut self,
        vnic: VnicId,
        remote: IpAddr,
        refusal: Option<Refusal>,
    ) {
        if !self.vnics.note_refusal(vnic, remote, refusal) {
            return;
        }
        let name = self.vnics.registry().name(vnic);
        let text = match refusal {
            Some(why) => format!("vNIC {name} sends nothing to {remote}: {}", phrase(why)),
            None => format!("vNIC {name} exchanges encrypted packets with {remote} now"),
        };
        self.journal.log(if refusal.is_some() { Level::Warning } else { Level::Info }, text);
    }
}
