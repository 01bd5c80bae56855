//! What an operator asks: the vNICs, their datapaths, limits and faults.

use crate::attached::Attached;
use crate::evidence::Evidence;
use crate::journal::Level;
use crate::policy::{changed, datapath_name, shown};
use crate::registry::News;
use crate::server::Server;
use omniverb_session::operator::{Disconnected, SET_FAULTS, SetVnic, VnicChanged};
use omniverb_tenancy::VnicId;
use omniverb_terms::Errno;
use serde_json::{Value, json};

/// A vNIC that somebody named, and its namespace if that is at hand.
pub(super) type Named = (VnicId, Option<Attached>);

impl Server {
    /// The vNIC of this name, which is not by a process.
    pub(super) fn named(&mut self, name: &[u8]) -> Result<Named, Errno> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::EINVAL)?;
        if name.is_empty() {
            let home = self.registry.home();
            return Ok((home, self.namespaces.attached(home)));
        }
        if name.starts_with("pid:") {
            return Err(Errno::EINVAL);
        }
        let key = self.registry.named(name).ok_or(Errno::ENOENT)?;
        Ok((key, self.namespaces.attached(key)))
    }

    pub(super) fn set_vnic(&mut self, key: VnicId, m: &SetVnic) -> Result<VnicChanged, Errno> {
        let before = self.tenancy.policy(key);
        let policy = changed(before, m)?;
        self.registry.keep(key)?;
        let (direct_links, actions) = self.tenancy.set_policy(key, policy);
        self.work.extend(actions);
        if self.namespaces.has_port(key) {
            self.engine.limit(key, policy.limit);
            // The same ones again: from the start.
            if m.what & SET_FAULTS != 0 {
                self.engine.faults(key, policy.faults);
            }
        }
        if policy.faults != before.faults {
            self.warn_of_faults(key);
        }
        Ok(shown(&policy, direct_links))
    }

    /// Whoever looks for the reason of a bad network finds it in the log, too.
    pub(super) fn warn_of_faults(&mut self, key: VnicId) {
        let name = self.registry.name(key);
        let text = match self.tenancy.policy(key).faults {
            Some(faults) => format!("packets for vNIC {name} are given faults: {}", faults.show()),
            None => format!("packets for vNIC {name} are given no more faults"),
        };
        self.journal.log(Level::Warning, text);
    }

    /// Whose evidence this is.
    pub(super) fn recognize(&mut self, evidence: &Evidence) -> VnicId {
        let vnic = self.registry.recognize(evidence);
        self.tell_registered();
        vnic
    }

    /// Somebody who had a vNIC's attachment open has it no longer.
    pub(super) fn leave(&mut self, vnic: VnicId) {
        self.namespaces.leave(vnic);
        self.registry.release(vnic);
        self.tell_registered();
    }

    /// The tables are told who is new, and who is no more.
    pub(super) fn tell_registered(&mut self) {
        for news in self.registry.news() {
            match news {
                News::New(vnic, identity) => self.tenancy.introduce(vnic, identity),
                News::Gone(vnic) => {
                    let actions = self.tenancy.forget_policy(vnic);
                    self.work.extend(actions);
                    self.tenancy.forget_identity(vnic);
                }
                News::NotMeant(vnic, inode) => {
                    let name = self.registry.name(vnic);
                    let text = format_args!(
                        "what the configuration says of net-{inode} does not hold for vNIC {name}: \
                         the kernel gave that inode number to another namespace before"
                    );
                    self.journal.log(Level::Warning, text);
                }
            }
        }
    }

    /// What was done to packets of a vNIC that is served and has faults.
    fn injected(&self, key: VnicId) -> Option<Value> {
        let done = self.engine.fault_counters(key)?;
        Some(json!({
            "packets": done.sent,
            "lost": done.lost,
            "duplicated": done.duplicated,
            "reordered": done.reordered,
            "corrupted": done.corrupted,
            "marked": done.marked,
            "dropped": done.dropped,
        }))
    }

    /// Ends all links of a vNIC.
    pub(super) fn disconnect_vnic(&mut self, key: VnicId) -> Disconnected {
        let links = self.tenancy.links_of(key);
        let actions = self.tenancy.disconnect_vnic(key);
        self.work.extend(actions);
        let name = self.registry.name(key);
        self.journal.log(Level::Info, format_args!("an operator ended {links} links of {name}"));
        Disconnected { links: u32::try_from(links).unwrap_or(u32::MAX), reserved: 0 }
    }

    /// The first vNIC from this one on that has processes or was given something.
    pub(super) fn vnic_from(&self, key: VnicId) -> Option<VnicId> {
        [self.registry.kept_from(key), self.tenancy.vnic_from(key)].into_iter().flatten().min()
    }

    /// What holds for a vNIC.
    pub(super) fn policy_row(&self, key: VnicId) -> Value {
        let policy = self.tenancy.policy(key);
        json!({
            "name": self.registry.name(key),
            "namespace": self.registry.inode(key),
            "processes": self.tenancy.processes(key),
            "datapath": datapath_name(policy),
            "adoption": policy.adoption.name(),
            "rate": policy.limit.map(|limit| limit.bits_per_second),
            "burst": policy.limit.map(|limit| limit.burst_bytes),
            "faults": policy.faults.map(|faults| faults.show()),
            "injected": self.injected(key),
            "direct_links": self.tenancy.direct_links(key),
        })
    }
}
