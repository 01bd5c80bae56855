//! Serves changes of tenants, policies and vNICs, and applies them to existing vNICs.
//!
//! Changes come by command and by another configuration.

use crate::daemon_log::Level;
use crate::engine::ENGINE_FEATURES;
use crate::objects::{ObjectSet, Place};
use crate::poller_tokens::Wakeup;
use crate::server::Server;
use crate::server::operation_contexts::EnginePorts;
use crate::vnics::Named;
use omniverb_session::operator::{ChangeObjects, OBJECT_TEXT_BYTES, ObjectsChanged};
use omniverb_sys::signal_fds;
use omniverb_tenancy::{KeyGeneration, Policy, TenantId, VnicId};
use omniverb_terms::Errno;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The settings of a configuration that can change while the daemon runs.
#[derive(Clone, Debug, Default)]
pub struct Configured {
    /// What holds where no object says anything.
    pub general: Policy,
    /// Tenants, policies and vNICs.
    pub objects: ObjectSet,
}

/// How the configuration is read again.
pub struct Reload {
    /// Readable when a signal asks for it.
    signal: OwnedFd,
    read: Box<dyn FnMut() -> Result<Configured, String> + Send>,
}

impl Reload {
    /// `signal`: see [`omniverb_sys::signal_fds::reload`]. `read` returns the fault of the
    /// file, if it has one.
    #[must_use]
    pub fn new(
        signal: OwnedFd,
        read: impl FnMut() -> Result<Configured, String> + Send + 'static,
    ) -> Reload {
        Reload { signal, read: Box::new(read) }
    }
}

impl Server {
    /// Reads the configuration again on request.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_reload(&mut self, reload: Reload) -> io::Result<()> {
        self.reactor.watch(reload.signal.as_fd(), Wakeup::Reload)?;
        self.reload = Some(reload);
        Ok(())
    }

    pub(super) fn reload_signalled(&mut self) {
        if let Some(reload) = &self.reload {
            signal_fds::take(reload.signal.as_fd());
        }
        match self.reload_configuration() {
            Ok(()) => self.journal.log(Level::Info, format_args!("the configuration was reloaded")),
            Err(problem) => {
                let text = format_args!("the configuration stays as it was: {problem}");
                self.journal.log(Level::Error, text);
            }
        }
    }

    pub(super) fn reload_asked(&mut self) -> ObjectsChanged {
        answer(self.reload_configuration())
    }

    fn reload_configuration(&mut self) -> Result<(), String> {
        let reload = self.reload.as_mut().ok_or("this daemon has no configuration file")?;
        let Configured { general, objects } = (reload.read)()?;
        self.objects.configure(general, objects)?;
        self.engine_ports().apply_objects();
        self.watch_containers();
        self.end_undescribed();
        Ok(())
    }

    pub(super) fn change_objects(&mut self, m: &ChangeObjects) -> ObjectsChanged {
        let text = m.text.get(..m.length as usize).map(std::str::from_utf8);
        let Some(Ok(text)) = text else { return answer(Err("the change is no text".into())) };
        let changed = self.objects.change(text);
        if changed.is_ok() {
            self.engine_ports().apply_objects();
            self.watch_containers();
            self.end_undescribed();
        }
        answer(changed)
    }

    /// The vNIC of this name, or the one that the object of this name was given to.
    pub(super) fn named(&self, name: &[u8]) -> Result<Named, Errno> {
        let found = self.vnics.named(name);
        let object = std::str::from_utf8(name).ok().and_then(|name| self.objects.vnic_of(name));
        match (found, object) {
            (Err(Errno::ENOENT), Some(vnic)) => self.vnics.by_id(vnic),
            (found, _) => found,
        }
    }
}

fn answer(result: Result<(), String>) -> ObjectsChanged {
    let problem = result.err();
    let text = problem.as_deref().unwrap_or_default();
    let end = (0..=text.len().min(OBJECT_TEXT_BYTES)).rev().find(|end| text.is_char_boundary(*end));
    let bytes = text.as_bytes().get(..end.unwrap_or(0)).unwrap_or_default();
    let mut answer = ObjectsChanged {
        refused: u32::from(problem.is_some()),
        length: bytes.len() as u32,
        text: [0; OBJECT_TEXT_BYTES],
    };
    for (to, from) in answer.text.iter_mut().zip(bytes) {
        *to = *from;
    }
    answer
}

impl EnginePorts<'_> {
    /// Applies to all vNICs what objects say now.
    pub(super) fn apply_objects(&mut self) {
        let general = self.objects.general();
        let ids = self.vnics.registry().ids();
        // The general policy is that of some of them.
        let before: Vec<_> = ids.iter().map(|vnic| self.tables.policy(*vnic).encryption).collect();
        self.tables.decide(|tables| tables.set_general_policy(general));
        self.apply_networks();
        self.apply_underlay();
        for (vnic, before) in ids.into_iter().zip(before) {
            self.apply_since(vnic, before);
        }
        self.end_network_encryption();
        self.review_rules();
        self.engine.close_empty_groups();
        self.warn_of_paths();
    }

    /// Has the tables know the virtual networks of tenants with keys.
    pub(super) fn apply_networks(&mut self) {
        let networks = self.objects.networks(ENGINE_FEATURES);
        self.tables.decide(|tables| tables.describe_networks(networks));
        let mut served: BTreeMap<TenantId, Vec<VnicId>> = BTreeMap::new();
        for vnic in self.vnics.registry().ids() {
            if let Some((tenant, _)) = self.tables.place(vnic).filter(|_| self.vnics.has_port(vnic))
            {
                served.entry(tenant).or_default().push(vnic);
            }
        }
        for (tenant, vnics) in served {
            self.engine.set_places(tenant, &vnics, &self.places_in(tenant));
        }
    }

    /// Gives a vNIC its place in its tenant's virtual network, or none. It has other sockets then.
    fn apply_place(&mut self, key: VnicId) {
        let place = self.objects.place(key);
        let has_moved = self.tables.place(key) != place;
        let has_other_sockets = has_moved && self.vnics.has_port(key);
        self.tables.decide(|tables| tables.set_place(key, place));
        self.addresses.need(key, place.and_then(|_| self.objects.added_address(key)));
        if has_other_sockets {
            self.end_port(key);
            self.want_port(key);
        }
    }

    /// Logs which paths of objects cannot be looked at.
    pub(super) fn warn_of_paths(&mut self) {
        for problem in self.objects.new_problems() {
            self.journal.log(Level::Warning, problem);
        }
    }

    /// Applies rules that have changed to what exists.
    pub(super) fn review_rules(&mut self) {
        self.tables.decide(|tables| tables.review_rules());
    }

    /// Applies to a vNIC what its object says. Of rules that have changed, links that exist hear by
    /// [`Self::review_rules`].
    pub(super) fn apply_object(&mut self, key: VnicId) {
        self.apply_since(key, self.tables.policy(key).encryption);
    }

    /// Applies to a vNIC what its object says. `before`: its encryption so far.
    fn apply_since(&mut self, key: VnicId, before: Option<KeyGeneration>) {
        self.apply_policy(key);
        if self.tables.policy(key).encryption != before {
            self.encryption_is_other(key);
        }
    }

    /// Applies to a vNIC what its object says of all but encryption.
    fn apply_policy(&mut self, key: VnicId) {
        let registry = self.vnics.registry();
        let found = registry.place(key);
        let (inode, alias) = found.map_or((None, None), |(place, alias)| (Some(place), alias));
        let place = Place { name: registry.name(key), alias, inode };
        let before = self.tables.policy(key);
        let policy = self.objects.policy(key, &place);
        let rules = self.objects.rules(key, &place);
        match policy {
            Some(policy) => {
                let is_kept = self.objects.is_described(key) && self.objects.is_kept(key);
                if is_kept && self.vnics.keep(key).is_err() {
                    let text = "too many vNICs have objects of their own";
                    self.journal.log(Level::Warning, format_args!("{text}"));
                }
                self.tables.set_policy(key, policy);
            }
            None => self.tables.decide(|tables| tables.forget_policy(key)),
        }
        self.tables.note(|tables| tables.set_rules(key, rules));
        if self.objects.take_new_places() {
            self.apply_networks();
        }
        self.apply_place(key);
        let policy = self.tables.policy(key);
        if self.vnics.has_port(key) {
            self.engine.limit(key, &policy, self.objects.shared_limits(key));
            if policy.faults != before.faults {
                self.engine.faults(key, policy.faults);
            }
        }
        if policy.faults != before.faults {
            self.warn_of_faults(key);
        }
    }
}
