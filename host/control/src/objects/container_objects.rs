//! Gives vNICs of containers the objects that follow from rules.
//!
//! A rule's decision holds until the namespace ends or the rule is deleted: a container that takes
//! another address does not leave its tenant. A namespace that no rule matched is decided again
//! when it changes.

use super::container_rules::{Container, Moment, Verdict, decide};
use super::containers::Known;
use super::inode_at;
use super::object_name_syntax::is_name;
use super::object_set::{Undescribed, VnicObject};
use super::virtual_network_placement::VirtualPlaces;
use super::{Objects, Place};
use omniverb_tenancy::VnicId;

/// How long what no rule matched is believed while it changes unseen.
const FRESH: u64 = 100_000_000;

impl Objects {
    /// Whether there are rules at all.
    pub(crate) fn has_rules(&self) -> bool {
        !self.configured.container.is_empty()
    }

    /// Whether a vNIC that nothing describes is none.
    pub(crate) fn isolates(&self) -> bool {
        self.configured.undescribed == Undescribed::Isolated
    }

    /// Whether rules decide about a vNIC, and have to be asked.
    pub(crate) fn is_undecided(&self, vnic: VnicId, now: u64) -> bool {
        let is_fresh = |known: &Known| {
            // A watcher does not see which cgroup the first process is in.
            known.container.cgroup.is_some() && now.saturating_sub(known.at) < FRESH
        };
        self.has_rules()
            && !self.given.has(vnic)
            && !self.containers.known.get(&vnic).is_some_and(is_fresh)
    }

    /// Whether it is time to look again at what may describe a vNIC: then that is noted.
    pub(crate) fn is_vnic_look_due(&mut self, vnic: VnicId, now: u64) -> bool {
        let before = self.containers.looked_at.get(&vnic);
        let is_due = before.is_none_or(|before| now.saturating_sub(*before) >= FRESH);
        if is_due {
            self.containers.looked_at.insert(vnic, now);
        }
        is_due
    }

    /// Whether the end of a vNIC's namespace will be heard of, or is nothing that rules decide.
    pub(crate) fn is_kept(&self, vnic: VnicId) -> bool {
        self.containers
            .known
            .get(&vnic)
            .is_none_or(|known| known.is_watched || known.decided.is_none())
    }

    /// Hears of a container. `name`: what its vNIC is called; `is_in_use` says whether another vNIC
    /// is. Whether it has got an object.
    pub(crate) fn hear_of_container(
        &mut self,
        (vnic, name): (VnicId, &str),
        mut container: Container,
        (now, is_watched): (u64, bool),
        is_in_use: impl Fn(VnicId) -> bool,
    ) -> bool {
        let moment = if is_watched { Moment::Change } else { Moment::Process };
        let before = self.containers.known.remove(&vnic);
        let mut is_watched = is_watched;
        let mut decided = None;
        if let Some(before) = before {
            container.cgroup = container.cgroup.or(before.container.cgroup);
            is_watched |= before.is_watched;
            decided = before.decided;
        }
        let vnic_name = name.to_owned();
        let known = Known { vnic: vnic_name, container, at: now, is_watched, decided };
        self.containers.known.insert(vnic, known);
        match self.given.has(vnic) {
            true => self.give_address(vnic),
            false => self.decide(vnic, moment, is_in_use),
        }
    }

    /// Gives a container that a rule has put into a virtual network an address, if it has none so
    /// far and there is one by now. Whether it has got one.
    fn give_address(&mut self, vnic: VnicId) -> bool {
        let Some(known) = self.containers.known.get(&vnic) else { return false };
        let Some((rule, name)) = known.decided.clone() else { return false };
        let Some((_, object)) = self.containers.objects.get(&name) else { return false };
        if rule.virtual_address.is_none() || object.address.is_some() {
            return false;
        }
        let rules = std::slice::from_ref(&rule);
        let interface = match decide(rules, &known.container, Moment::Process) {
            Verdict::Matched(_, interface) => interface,
            Verdict::Undecided | Verdict::Unmatched => return false,
        };
        let found = (&known.container, interface);
        let Some(address) = self.virtual_address_for(&rule, found, (vnic, &known.vnic)) else {
            return false;
        };
        if let Some((_, object)) = self.containers.objects.get_mut(&name) {
            object.address = Some(address);
        }
        if let Some(object) = self.all.vnic.get_mut(&name).filter(|it| it.address.is_none()) {
            object.address = Some(address);
        }
        self.place_again();
        true
    }

    /// A vNIC of a container has come to a virtual network, or has left it.
    fn place_again(&mut self) {
        if let Ok(places) = VirtualPlaces::of(&self.all, &self.places) {
            self.places = places;
            self.has_new_places = true;
            self.revision += 1;
        }
    }

    /// Whether places have changed with a container since this was asked last: then the tables
    /// are to know of them.
    pub(crate) fn take_new_places(&mut self) -> bool {
        std::mem::take(&mut self.has_new_places)
    }

    /// Asks the rules; whether the vNIC has got an object.
    fn decide(&mut self, vnic: VnicId, moment: Moment, is_in_use: impl Fn(VnicId) -> bool) -> bool {
        let Some(known) = self.containers.known.get(&vnic) else { return false };
        let rules = &self.configured.container;
        let Verdict::Matched(rule, interface) = decide(rules, &known.container, moment) else {
            return false;
        };
        let rule = rule.clone();
        let wanted = rule.name_for(&known.container, interface).filter(|name| is_name(name));
        let own = known.vnic.clone();
        let address = self.virtual_address_for(&rule, (&known.container, interface), (vnic, &own));
        let name = wanted.filter(|name| self.is_free(name, &is_in_use)).unwrap_or(own.clone());
        let mut object = VnicObject::of_rule(&rule);
        object.attach = (name != own).then_some(own);
        object.address = address;
        // What was set by command for it is above that.
        self.all.vnic.entry(name.clone()).or_insert_with(|| object.clone());
        self.containers.objects.insert(name.clone(), (vnic, object));
        self.given.insert(vnic, name.clone());
        if let Some(known) = self.containers.known.get_mut(&vnic) {
            known.decided = Some((rule, name));
        }
        if address.is_some() {
            self.place_again();
        }
        true
    }

    /// Whether a name can be given. An unused namespace, whose end cannot be seen, loses its name.
    fn is_free(&mut self, name: &str, is_in_use: impl Fn(VnicId) -> bool) -> bool {
        match self.containers.objects.get(name) {
            Some((vnic, _)) if is_in_use(*vnic) => false,
            Some((vnic, _)) => {
                let vnic = *vnic;
                self.given.remove(vnic);
                self.forget_container(vnic);
                !self.all.vnic.contains_key(name)
            }
            None => !self.all.vnic.contains_key(name),
        }
    }

    /// The name of the object that is attached to a place, if one is.
    pub(super) fn attached_to(&self, place: &Place<'_>) -> Option<String> {
        let is_it = |text: &str| match text.starts_with('/') {
            true => place.inode.is_some() && inode_at(text) == place.inode,
            false => text == place.name || place.alias.as_deref() == Some(text),
        };
        let all = self.all.vnic.iter().filter(|(_, vnic)| !self.all.is_elsewhere(vnic));
        // What follows from rules comes last.
        let described = all.clone().filter(|(name, _)| !self.containers.has_object(name));
        let mut all = described.chain(all);
        all.find(|(name, vnic)| is_it(vnic.attach.as_ref().unwrap_or(name)))
            .map(|(name, _)| name.clone())
    }

    /// What described a vNIC is gone: rules decide, if they were asked about its namespace.
    pub(super) fn ask_rules_again(&mut self, vnic: VnicId) {
        if let Some(known) = self.containers.known.get(&vnic) {
            let moment = known.moment();
            self.decide(vnic, moment, |_| true);
        }
    }

    /// The configuration has other rules: what those that are gone have decided is decided anew.
    pub(super) fn decide_anew(&mut self) {
        let rules = &self.configured.container;
        let mut lost = Vec::new();
        for (vnic, known) in &mut self.containers.known {
            if let Some((_, name)) = known.decided.take_if(|(rule, _)| !rules.contains(rule)) {
                lost.push((*vnic, name));
            }
        }
        for (vnic, name) in lost {
            self.containers.objects.remove(&name);
            self.given.remove(vnic);
            if !self.has_apart_from_rules(&name) {
                self.all.vnic.remove(&name);
            }
        }
        let vnics: Vec<VnicId> = self.containers.known.keys().copied().collect();
        for vnic in vnics {
            if !self.given.has(vnic) {
                self.ask_rules_again(vnic);
            }
        }
    }

    /// A namespace has ended; the object that a rule had given it.
    pub(super) fn forget_container(&mut self, vnic: VnicId) -> Option<String> {
        let (_, name) = self.containers.known.remove(&vnic)?.decided?;
        let (_, object) = self.containers.objects.remove(&name)?;
        if !self.has_apart_from_rules(&name) {
            self.all.vnic.remove(&name);
        }
        if object.address.is_some() {
            self.place_again();
        }
        Some(name)
    }

    /// Whether an object of this name is there without any rule.
    fn has_apart_from_rules(&self, name: &str) -> bool {
        [&self.configured, &self.cluster, &self.set].iter().any(|set| set.vnic.contains_key(name))
    }

    /// Whether something describes a vNIC.
    pub(crate) fn is_described(&self, vnic: VnicId) -> bool {
        self.given.has(vnic)
    }
}
