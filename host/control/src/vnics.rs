//! What an operator asks: the vNICs, their datapaths, limits and faults.

use crate::journal::Level;
use crate::namespaces::{Known, Opening};
use crate::registry::{Evidence, News};
use crate::server::Server;
use omniverb_session::operator::{
    DATAPATH_DIRECT, DATAPATH_FORWARDED, Disconnected, SET_ADOPTION, SET_BURST, SET_DATAPATH,
    SET_FAULTS, SET_RATE, SetVnic, VnicChanged,
};
use omniverb_session::rate::burst_for;
use omniverb_tenancy::{Adoption, Datapath, Policy, RateLimit, SessionId, VnicId};
use omniverb_terms::Errno;
use serde_json::{Value, json};

/// A vNIC that somebody named, and its namespace if that is at hand.
pub(crate) type Named = (VnicId, Option<Known>);

impl Server {
    /// The vNIC that an operator means.
    pub(crate) fn named(&mut self, id: SessionId, name: &[u8]) -> Result<Named, Errno> {
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let name = std::str::from_utf8(&name[..end]).map_err(|_| Errno::EINVAL)?;
        if name.is_empty() {
            let home = self.registry.home();
            return Ok((home, self.namespaces.namespace(home)));
        }
        if let Some(pid) = name.strip_prefix("pid:") {
            let pid: i32 = pid.parse().map_err(|_| Errno::EINVAL)?;
            return self.take_named(id, pid);
        }
        let key = self.registry.named(name).ok_or(Errno::ENOENT)?;
        Ok((key, self.namespaces.namespace(key)))
    }

    pub(crate) fn set_vnic(&mut self, key: VnicId, m: &SetVnic) -> Result<VnicChanged, Errno> {
        let before = self.tenancy.policy(key);
        let policy = changed(before, m)?;
        self.registry.keep(key)?;
        let (direct_links, actions) = self.tenancy.set_policy(key, policy);
        self.work.extend(actions);
        if let Some(entry) = self.namespaces.get_mut(key)
            && matches!(entry.port, Opening::Open(_))
        {
            self.engine.limit(key, policy.limit);
            // The same ones again: from the start.
            if m.what & SET_FAULTS != 0 {
                self.engine.faults(key, policy.faults);
            }
        }
        if policy.faults != before.faults {
            self.warn_of_faults(key);
        }
        Ok(VnicChanged {
            bits_per_second: policy.limit.map_or(0, |limit| limit.bits_per_second),
            burst_bytes: policy.limit.map_or(0, |limit| limit.burst_bytes),
            datapath: match policy.datapath {
                Datapath::Direct => DATAPATH_DIRECT,
                Datapath::Forwarded => DATAPATH_FORWARDED,
            },
            direct_links: u32::try_from(direct_links).unwrap_or(u32::MAX),
            faults: policy.faults.unwrap_or_default(),
            adoption: policy.adoption.code(),
            reserved: 0,
        })
    }

    /// Whoever looks for the reason of a bad network finds it in the log, too.
    pub(crate) fn warn_of_faults(&mut self, key: VnicId) {
        let name = self.registry.name(key);
        let text = match self.tenancy.policy(key).faults {
            Some(faults) => format!("packets for vNIC {name} are given faults: {}", faults.show()),
            None => format!("packets for vNIC {name} are given no more faults"),
        };
        self.journal.log(Level::Warning, text);
    }

    /// Whose evidence this is.
    pub(crate) fn recognize(&mut self, evidence: &Evidence) -> VnicId {
        let vnic = self.registry.recognize(evidence);
        self.tell_registered();
        vnic
    }

    /// Somebody who had a vNIC's attachment open has it no longer.
    pub(crate) fn leave(&mut self, vnic: VnicId) {
        drop(self.namespaces.leave(vnic));
        self.registry.release(vnic);
        self.tell_registered();
    }

    /// The tables are told who is new, and who is no more.
    pub(crate) fn tell_registered(&mut self) {
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
    pub(crate) fn disconnect_vnic(&mut self, key: VnicId) -> Disconnected {
        let links = self.tenancy.links_of(key);
        let actions = self.tenancy.disconnect_vnic(key);
        self.work.extend(actions);
        let name = self.registry.name(key);
        self.journal.log(Level::Info, format_args!("an operator ended {links} links of {name}"));
        Disconnected { links: u32::try_from(links).unwrap_or(u32::MAX), reserved: 0 }
    }

    /// The first vNIC from this one on that has processes or was given something.
    pub(crate) fn vnic_from(&self, key: VnicId) -> Option<VnicId> {
        [self.registry.kept_from(key), self.tenancy.vnic_from(key)].into_iter().flatten().min()
    }

    /// What holds for a vNIC.
    pub(crate) fn policy_row(&self, key: VnicId) -> Value {
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

/// A limited or faulty vNIC is forwarded whatever was said.
pub(crate) fn datapath_name(policy: Policy) -> &'static str {
    match policy.datapath {
        Datapath::Direct if policy.limit.is_none() && policy.faults.is_none() => "direct",
        _ => "forwarded",
    }
}

fn changed(mut policy: Policy, m: &SetVnic) -> Result<Policy, Errno> {
    let known = SET_RATE | SET_BURST | SET_DATAPATH | SET_FAULTS | SET_ADOPTION;
    if m.what == 0 || m.what & !known != 0 {
        return Err(Errno::EINVAL);
    }
    if m.what & SET_DATAPATH != 0 {
        policy.datapath = match m.datapath {
            DATAPATH_DIRECT => Datapath::Direct,
            DATAPATH_FORWARDED => Datapath::Forwarded,
            _ => return Err(Errno::EINVAL),
        };
    }
    if m.what & SET_ADOPTION != 0 {
        policy.adoption = Adoption::from_code(m.adoption).ok_or(Errno::EINVAL)?;
    }
    if m.what & SET_RATE != 0 {
        let bits_per_second = m.bits_per_second;
        policy.limit = match bits_per_second {
            0 => None,
            _ => Some(RateLimit { bits_per_second, burst_bytes: burst_for(bits_per_second) }),
        };
    }
    if m.what & SET_BURST != 0 {
        let limit = policy.limit.as_mut().ok_or(Errno::EINVAL)?;
        limit.burst_bytes = match m.burst_bytes {
            0 => burst_for(limit.bits_per_second),
            burst => burst,
        };
    }
    if m.what & SET_FAULTS != 0 {
        policy.faults = m.faults.checked().map_err(|_| Errno::EINVAL)?;
    }
    if policy.limit.is_some_and(|limit| !limit.is_sensible()) {
        return Err(Errno::EINVAL);
    }
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_session::faults::Faults;
    use omniverb_session::operator::VNIC_NAME_BYTES;

    #[test]
    fn changes_are_what_was_said_and_nothing_else() {
        let nothing = SetVnic {
            name: [0; VNIC_NAME_BYTES],
            what: 0,
            datapath: 0,
            bits_per_second: 0,
            burst_bytes: 0,
            faults: Faults::default(),
            adoption: 0,
            reserved: 0,
        };
        let start = Policy::default();
        let refused = |m: SetVnic| assert_eq!(changed(start, &m), Err(Errno::EINVAL));
        refused(nothing);
        refused(SetVnic { what: 32, ..nothing });
        refused(SetVnic {
            what: SET_FAULTS,
            faults: Faults { seed: 1, ..nothing.faults },
            ..nothing
        });
        refused(SetVnic { what: SET_DATAPATH, datapath: 2, ..nothing });
        refused(SetVnic { what: SET_BURST, burst_bytes: 65536, ..nothing });
        refused(SetVnic { what: SET_RATE, bits_per_second: 7, ..nothing });
        refused(SetVnic { what: SET_ADOPTION, adoption: 3, ..nothing });
        let off = SetVnic { what: SET_ADOPTION, adoption: 2, ..nothing };
        assert_eq!(changed(start, &off), Ok(Policy { adoption: Adoption::Off, ..start }));
        let rate = SetVnic { what: SET_RATE, bits_per_second: 20_000_000, ..nothing };
        let limited = changed(start, &rate).unwrap();
        assert_eq!(limited.datapath, Datapath::Direct);
        assert_eq!(datapath_name(limited), "forwarded");
        assert_eq!(limited.limit.unwrap().bits_per_second, 20_000_000);
        let burst = SetVnic { what: SET_BURST, burst_bytes: 9000, ..nothing };
        let limit = changed(limited, &burst).unwrap().limit.unwrap();
        assert_eq!((limit.bits_per_second, limit.burst_bytes), (20_000_000, 9000));
        let none = SetVnic { what: SET_RATE | SET_DATAPATH, datapath: 1, ..nothing };
        let forwarded = changed(limited, &none).unwrap();
        assert_eq!(forwarded, Policy { datapath: Datapath::Forwarded, ..start });
        let words = omniverb_session::faults::faults("loss=1%,delay=1ms").unwrap().unwrap();
        let faults = SetVnic { what: SET_FAULTS, faults: words, ..nothing };
        let faulty = changed(limited, &faults).unwrap();
        assert_eq!(faulty, Policy { faults: Some(words), ..limited });
        assert_eq!(datapath_name(Policy { limit: None, ..faulty }), "forwarded");
        assert_eq!(changed(faulty, &SetVnic { what: SET_FAULTS, ..nothing }), Ok(limited));
    }
}
