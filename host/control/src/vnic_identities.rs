//! Identifies vNICs: the only place that compares their attachments.
//!
//! In: evidence, the kernel's description of the attachment through which a process reaches a vNIC
//! (for a network namespace: device, inode, cookie). Out: the vNIC's number, which is counted here
//! and never given again, and values that follow from the evidence alone: name, node GUID, proof.
//! No other module compares evidence, and nothing here depends on the kind of attachment.

use crate::vnic_attachment_identity::{Attachment, Evidence};
use crate::vnic_names::{Marks, guid, inode_in, name};
use omniverb_tenancy::{Access, Identity, VnicId};
use omniverb_terms::Errno;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// vNICs that something may be set for.
const KEPT_MAX: usize = 65536;
/// vNICs that are remembered after their last process, so that they are the same when they come
/// back. A user gains nothing by making more namespaces than that.
const RESTING_MAX: usize = 4096;

#[derive(Debug)]
struct Entry {
    evidence: Evidence,
    name: String,
    /// A process has its attachment open.
    is_held: bool,
    /// Something is set for it.
    kept: bool,
    /// When it was last either, as a number of [`Registry::clock`]; `None`: it is.
    resting: Option<u64>,
}

/// What there is to say about changes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// There is a new vNIC: its identity, and how it is attached.
    New(VnicId, Identity, Access),
    /// Nothing refers to this one any more.
    Gone(VnicId),
    /// Configuration names this inode number, and meant another namespace by it.
    NotMeant(VnicId, u64),
}

/// All vNICs that are in use, that something is set for, or that are remembered.
#[derive(Debug)]
pub(crate) struct Registry {
    marks: Marks,
    home: VnicId,
    last: u64,
    entries: BTreeMap<VnicId, Entry>,
    by_slot: HashMap<(Attachment, [u64; 2]), VnicId>,
    by_name: HashMap<String, VnicId>,
    /// In the order of their going.
    resting: BTreeMap<u64, VnicId>,
    clock: u64,
    /// Those that something is set for.
    kept: BTreeSet<VnicId>,
    /// Inode numbers that configuration names, and the serials of those that had them first.
    configured: HashMap<u64, Option<u64>>,
    news: Vec<News>,
}

impl Registry {
    /// With the daemon's own vNIC, which stays. `names`: those of the configuration.
    pub(crate) fn new<'a>(
        marks: Marks,
        home: &Evidence,
        names: impl IntoIterator<Item = &'a String>,
    ) -> Registry {
        let inodes = names.into_iter().filter_map(|name| inode_in(name));
        let mut registry = Registry {
            marks,
            home: VnicId(1),
            last: 0,
            entries: BTreeMap::new(),
            by_slot: HashMap::new(),
            by_name: HashMap::new(),
            resting: BTreeMap::new(),
            clock: 0,
            kept: BTreeSet::new(),
            configured: inodes.map(|inode| (inode, None)).collect(),
            news: Vec::new(),
        };
        registry.home = registry.recognize(home);
        registry.hold(registry.home);
        registry
    }

    /// The daemon's own vNIC.
    pub(crate) fn home(&self) -> VnicId {
        self.home
    }

    /// Whether this is the daemon's own vNIC.
    pub(crate) fn is_home(&self, evidence: &Evidence) -> bool {
        self.by_slot.get(&evidence.slot()) == Some(&self.home)
    }

    /// What has changed since this was asked last.
    pub(crate) fn news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// The vNIC with this evidence. A new one gets a number.
    pub(crate) fn recognize(&mut self, evidence: &Evidence) -> VnicId {
        if let Some(id) = self.by_slot.get(&evidence.slot()).copied() {
            let known = self.entries.get(&id);
            // A held attachment cannot have been given to another. If the kernel does not tell now,
            // no vNIC escapes a limit by that.
            let same = known.is_some_and(|known| {
                let serials = [known.evidence.serial, evidence.serial];
                known.is_held || serials[1].is_none() || serials[0] == serials[1]
            });
            if same {
                return id;
            }
            self.remove(id);
        }
        self.last += 1;
        let id = VnicId(self.last);
        let home = self.entries.is_empty();
        let name = if home { "host".to_owned() } else { name(&self.marks, evidence, id) };
        let alias = if home { None } else { self.alias(id, evidence) };
        let proof = [evidence.attachment.code(), evidence.place[0], evidence.place[1]];
        let [one, two, three] = proof;
        let identity = Identity {
            name: name.clone(),
            alias,
            guid: guid(self.marks.boot, evidence),
            proof: [one, two, three, evidence.serial.unwrap_or(0)],
        };
        self.news.push(News::New(id, identity, evidence.attachment.access()));
        self.by_slot.insert(evidence.slot(), id);
        self.by_name.insert(name.clone(), id);
        let (evidence, resting) = (*evidence, None);
        self.entries.insert(id, Entry { evidence, name, is_held: false, kept: false, resting });
        self.rest(id);
        id
    }

    /// The old name that configuration has for it: an inode number, which denotes the first
    /// namespace with it that was seen.
    fn alias(&mut self, id: VnicId, evidence: &Evidence) -> Option<String> {
        let inode = evidence.inode()?;
        let meant = self.configured.get_mut(&inode)?;
        let first = *meant.get_or_insert(evidence.serial.unwrap_or(0));
        if evidence.serial.is_some_and(|serial| serial != first) {
            self.news.push(News::NotMeant(id, inode));
            return None;
        }
        Some(format!("net-{inode}"))
    }

    /// Its attachment is open from now on.
    pub(crate) fn hold(&mut self, id: VnicId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.is_held = true;
        }
        self.rest(id);
    }

    /// Its attachment is no longer open, but for our own. Without a serial it cannot be told
    /// whether the next attachment at that place is the same, so its settings end, too.
    pub(crate) fn release(&mut self, id: VnicId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.is_held = id == self.home;
        if !entry.is_held && entry.evidence.serial.is_none() {
            return self.remove(id);
        }
        self.rest(id);
    }

    /// The attachment is gone: its vNIC is forgotten, unless it is open.
    pub(crate) fn end_unused(&mut self, evidence: &Evidence) {
        let found = self.by_slot.get(&evidence.slot()).copied();
        let is_held = |id: &VnicId| self.entries.get(id).is_some_and(|entry| entry.is_held);
        if let Some(id) = found.filter(|id| !is_held(id)) {
            self.remove(id);
        }
    }

    /// Whether its attachment is open, or it has settings.
    pub(crate) fn is_in_use(&self, id: VnicId) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.is_held || entry.kept)
    }

    /// Something is set for it: it is remembered.
    pub(crate) fn keep(&mut self, id: VnicId) -> Result<(), Errno> {
        let full = self.kept.len() >= KEPT_MAX;
        let entry = self.entries.get_mut(&id).ok_or(Errno::ENOENT)?;
        if !entry.kept && full {
            return Err(Errno::ENOMEM);
        }
        entry.kept = true;
        self.kept.insert(id);
        self.rest(id);
        Ok(())
    }

    /// Something was set for it.
    pub(crate) fn is_kept(&self, id: VnicId) -> bool {
        self.kept.contains(&id)
    }

    /// The first one from this on that something is set for.
    pub(crate) fn kept_from(&self, id: VnicId) -> Option<VnicId> {
        self.kept.range(id..).next().copied()
    }

    /// Its name for people.
    pub(crate) fn name(&self, id: VnicId) -> &str {
        self.entries.get(&id).map_or("?", |entry| &entry.name)
    }

    /// The inode number of its namespace, if that is how it is attached.
    pub(crate) fn inode(&self, id: VnicId) -> Option<u64> {
        self.entries.get(&id)?.evidence.inode()
    }

    /// All of them, in order.
    pub(crate) fn ids(&self) -> Vec<VnicId> {
        self.entries.keys().copied().collect()
    }

    /// Device and inode number of its namespace, and the old name that configuration has for it.
    pub(crate) fn place(&self, id: VnicId) -> Option<([u64; 2], Option<String>)> {
        let evidence = &self.entries.get(&id)?.evidence;
        let inode = evidence.inode()?;
        let meant = self.configured.get(&inode).copied().flatten();
        let is_meant = meant.is_some() && meant == Some(evidence.serial.unwrap_or(0));
        Some((evidence.place, is_meant.then(|| format!("net-{inode}"))))
    }

    /// What tells its attachment from others for ever, where the kernel says: of a network
    /// namespace its cookie.
    pub(crate) fn serial(&self, id: VnicId) -> Option<u64> {
        self.entries.get(&id)?.evidence.serial
    }

    /// The vNIC with this name, of those that are open or have settings. `net-INODE` is a name,
    /// too, of a namespace that is held: only then that number is certainly its own.
    pub(crate) fn named(&self, name: &str) -> Option<VnicId> {
        let by_inode = |inode| {
            let is = |entry: &Entry| entry.evidence.inode() == Some(inode) && entry.name != "host";
            let of = |entry: &Entry| entry.is_held && is(entry);
            self.entries.iter().find(|(_, entry)| of(entry)).map(|(id, _)| *id)
        };
        let by_name = self.by_name.get(name).copied();
        let found = by_name.or_else(|| by_inode(inode_in(name)?))?;
        self.entries.get(&found).filter(|entry| entry.is_held || entry.kept).map(|_| found)
    }

    /// Notes whether it is only remembered, and forgets the oldest of those.
    fn rest(&mut self, id: VnicId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let rests = !entry.is_held && !entry.kept;
        if let Some(since) = entry.resting.take() {
            self.resting.remove(&since);
        }
        if !rests {
            return;
        }
        self.clock += 1;
        entry.resting = Some(self.clock);
        self.resting.insert(self.clock, id);
        if self.resting.len() > RESTING_MAX
            && let Some((_, oldest)) = self.resting.first_key_value()
        {
            self.remove(*oldest);
        }
    }

    fn remove(&mut self, id: VnicId) {
        let Some(entry) = self.entries.remove(&id) else { return };
        if let Some(since) = entry.resting {
            self.resting.remove(&since);
        }
        self.kept.remove(&id);
        self.by_slot.remove(&entry.evidence.slot());
        self.by_name.remove(&entry.name);
        self.news.push(News::Gone(id));
    }
}

#[cfg(test)]
mod tests;
