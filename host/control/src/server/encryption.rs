//! Sets up the encryption of vNICs' packets between hosts: keys, the port of PSP, and log lines
//! about hosts without.

use crate::daemon_log::Level;
use crate::engine::{Encryption, Refusal};
use crate::reactor::Timer;
use crate::roce_port::{AGAIN, PAUSE, PortUse};
use crate::server::operation_contexts::EnginePorts;
use omniverb_sys::clock;
use omniverb_sys::udp_socket::UdpPort;
use omniverb_tenancy::VnicId;
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

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
        if self.tables.policy(vnic).encryption.is_none() {
            return false;
        }
        let wanted = match self.tables.place(vnic) {
            Some(_) if !self.leaves_encrypted(vnic) => return false,
            None if port.carried().is_some() => return false,
            _ => self.want_psp_port(vnic),
        };
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
                let has_failed = own.failed(clock::now()).is_some();
                if has_failed {
                    self.reactor.set(Duration::from_nanos(AGAIN), Timer::PspPort(vnic));
                }
                if has_failed && self.vnics.is_warning_due(vnic) {
                    let name = self.vnics.registry().name(vnic);
                    let text = format_args!(
                        "cannot bind UDP port 1000 in the network namespace of vNIC {name}: \
                         {error}; its tenant is encrypted, so it reaches no other host; it is \
                         tried again every 5 seconds"
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

    /// The port of PSP in a vNIC's own namespace was in use a moment ago, or could not be had a
    /// while ago.
    pub(super) fn try_psp_port_again(&mut self, vnic: VnicId) {
        // Those of a virtual network share the port of the underlay.
        let port = self.vnics.psp_port(vnic).filter(|_| self.tables.place(vnic).is_none());
        let Some(port) = port else { return };
        if port.is_asked_for() {
            return self.vnics.ask_psp_port(vnic, self.helper, clock::now());
        }
        let is_encrypted = self.tables.policy(vnic).encryption.is_some();
        if port.open().is_none() && is_encrypted && self.vnics.has_port(vnic) {
            self.want_psp_port(vnic);
        }
    }

    /// Whether a vNIC has a virtual address and sends to other hosts encrypted. From a loopback
    /// address nothing leaves the host.
    fn leaves_encrypted(&self, vnic: VnicId) -> bool {
        let is_encrypted = self.tables.policy(vnic).encryption.is_some();
        let place = self.tables.place(vnic).filter(|_| is_encrypted);
        place.is_some_and(|(_, place)| !place.underlay.is_loopback())
    }

    /// Asks for the port of PSP that a vNIC's packets are to pass by.
    fn want_psp_port(&mut self, vnic: VnicId) -> PortUse {
        let now = clock::now();
        match self.tables.place(vnic) {
            Some((tenant, _)) => {
                self.vnics.underlay_psp.join(vnic, tenant);
                self.want_underlay_psp_port()
            }
            None => self.vnics.want_psp_port(vnic, self.helper, now),
        }
    }

    /// Asks for the port of PSP in the namespace of the underlay, now or in a while.
    pub(super) fn want_underlay_psp_port(&mut self) -> PortUse {
        let namespace = self.underlay.namespace();
        let wanted = self.vnics.want_underlay_psp_port(self.helper, namespace, clock::now());
        if wanted == PortUse::Vain && !self.vnics.underlay_psp.retry() {
            self.reactor.set(Duration::from_nanos(AGAIN), Timer::UnderlayPspPort);
        }
        wanted
    }

    /// The port of PSP in the namespace of the underlay was in use a moment ago, or could not be
    /// had a while ago.
    pub(super) fn try_underlay_psp_port_again(&mut self) {
        let own = &mut self.vnics.underlay_psp;
        own.is_retry_set = false;
        if own.port.is_asked_for() {
            match self.underlay.namespace() {
                Ok(namespace) => self.helper.ask_underlay_psp_port(namespace, clock::now()),
                Err(error) => self.underlay_psp_port_found(Err(error)),
            }
        } else if !own.users().is_empty() {
            self.want_underlay_psp_port();
        }
    }

    /// How packets of a vNIC with a virtual address are encrypted between hosts.
    pub(super) fn underlay_encryption(&self, vnic: VnicId) -> Option<Encryption> {
        if !self.leaves_encrypted(vnic) {
            return None;
        }
        let (keys, lifetime) = self.objects.keys_of(vnic);
        let port = self.vnics.underlay_psp.port.shared();
        Some(Encryption { port, keys, lifetime })
    }

    /// The helper has opened the port of PSP in the namespace of the underlay, or could not.
    pub(super) fn underlay_psp_port_found(&mut self, port: io::Result<Arc<UdpPort>>) {
        let in_use = port.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::AddrInUse);
        let closed = self.vnics.closed();
        let own = &mut self.vnics.underlay_psp;
        if in_use && own.port.tries_again(closed) {
            return self.reactor.set(PAUSE, Timer::UnderlayPspPort);
        }
        match port {
            Ok(port) => {
                drop(own.port.opened(port));
                own.is_warned_of = false;
            }
            Err(error) => {
                let has_failed = own.port.failed(clock::now()).is_some();
                if has_failed && !std::mem::replace(&mut own.is_warned_of, true) {
                    let place = self.underlay.place();
                    let text = format_args!(
                        "cannot bind UDP port 1000 in {place}: {error}; encrypted virtual networks \
                         reach no other host"
                    );
                    self.journal.log(Level::Warning, text);
                }
            }
        }
        let users = self.vnics.underlay_psp.users();
        if !users.is_empty() {
            // If it has failed it is wanted again in a while.
            self.want_underlay_psp_port();
        }
        for vnic in users {
            match self.vnics.take_kept_port(vnic) {
                Some(kept) => self.port_found(vnic, Ok(kept)),
                None if self.vnics.has_port(vnic) => self.set_encryption(vnic),
                None => {}
            }
        }
    }

    /// A vNIC needs no port of PSP any more.
    pub(super) fn end_psp_port(&mut self, vnic: VnicId) {
        if let Some(port) = self.vnics.underlay_psp.leave(vnic) {
            self.engine.close_underlay_psp_port();
            self.vnics.let_go(&port);
        }
        if let Some(port) = self.vnics.close_psp(vnic) {
            self.vnics.let_go(&port);
        }
    }

    /// Tells the engine how a vNIC's packets are encrypted.
    pub(super) fn set_encryption(&mut self, vnic: VnicId) {
        if let Some((tenant, _)) = self.tables.place(vnic) {
            return match self.underlay_encryption(vnic) {
                Some(encryption) => self.engine.encrypt_network(tenant, Some(encryption)),
                // Whether that holds for all of its network only the tenant's object says.
                None => self.end_psp_port(vnic),
            };
        }
        if self.tables.policy(vnic).encryption.is_none() {
            self.engine.encryption(vnic, None);
            return self.end_psp_port(vnic);
        }
        let (keys, lifetime) = self.objects.keys_of(vnic);
        // Without keys nothing passes.
        let port = self.vnics.psp_port(vnic).and_then(|port| port.shared());
        self.engine.encryption(vnic, Some(Encryption { port, keys, lifetime }));
    }

    /// Virtual networks of tenants whose objects say so are encrypted no more.
    pub(super) fn end_network_encryption(&mut self) {
        let mut plain = BTreeSet::new();
        for vnic in self.vnics.registry().ids() {
            let is_plain = self.objects.is_network_plain(vnic);
            if is_plain && let Some((tenant, _)) = self.objects.place(vnic) {
                plain.insert(tenant);
            }
        }
        for tenant in plain {
            self.engine.encrypt_network(tenant, None);
        }
    }

    /// A vNIC's encryption is another one, or it has none any more.
    pub(super) fn encryption_is_other(&mut self, vnic: VnicId) {
        let now = clock::now();
        self.vnics.read_addresses(vnic, self.helper, now);
        if !self.vnics.has_port(vnic) {
            return;
        }
        let is_flat = self.tables.place(vnic).is_none();
        if self.tables.policy(vnic).encryption.is_some() && (is_flat || self.leaves_encrypted(vnic))
        {
            self.want_psp_port(vnic);
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
        let of = match self.vnics.underlay_psp.tenant_of(vnic) {
            Some(_) => format!("tenant {}", self.objects.tenant_of(vnic)),
            None => format!("vNIC {}", self.vnics.registry().name(vnic)),
        };
        let text = match refusal {
            Some(why) => format!("{of} sends nothing to {remote}: {}", phrase(why)),
            None => format!("{of} exchanges encrypted packets with {remote} now"),
        };
        self.journal.log(if refusal.is_some() { Level::Warning } else { Level::Info }, text);
    }
}
