//! Manages memory windows: keys for a part of a region, with some of its rights, which come and go
//! by work requests (specification 10.6.7).
//!
//! A window has 256 keys of its own: their upper 24 bits are the window's, the low eight are chosen
//! by the binder. While it is bound, one of them opens a part of a region, as a region of its own
//! would. The daemon knows nothing of windows, so what peers do by such a key their owner's queue
//! pair executes: from the moment a key has ended nothing passes.

use crate::limits::WINDOWS_MAX;
use crate::memory_region::{Region, RegionKind, Regions, Window, WindowTable, WindowType, write};
use crate::spin_lock::lock;
use crate::verbs_constants::access;
use omniverb_terms::{Lkey, Qpn, Rkey};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Which of its 256 keys a window has.
const CHOSEN: u32 = 0xff;

/// What a window is to be bound to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bind {
    /// The key that it is to have: one of the window's.
    pub(crate) rkey: Rkey,
    /// The region that it is bound to, by its L_Key.
    pub(crate) lkey: Lkey,
    /// First address, as the region's owner names it.
    pub(crate) address: u64,
    /// Bytes from there on; 0: it is to be bound to nothing.
    pub(crate) length: u64,
    /// `IBV_ACCESS_*`: what peers may do.
    pub(crate) access: u32,
}

fn name(rkey: Rkey) -> u32 {
    rkey.0 & !CHOSEN
}

impl Regions {
    /// A new window of a protection domain, which is bound to nothing, and its first key. `draw`:
    /// random numbers. `None`: there are too many.
    pub fn add_window(
        &self,
        of: WindowType,
        pd: u32,
        mut draw: impl FnMut() -> u32,
    ) -> Option<Rkey> {
        let mut windows = lock(&self.windows.0);
        let windows = &mut windows.by_name;
        if windows.len() >= WINDOWS_MAX {
            return None;
        }
        let rkey = loop {
            let rkey = Rkey(draw());
            let keys = name(rkey)..=name(rkey) | CHOSEN;
            let taken = windows.contains_key(&name(rkey)) || self.has_key_in(keys);
            if name(rkey) != 0 && !taken {
                break rkey;
            }
        };
        windows.insert(name(rkey), Window { of, pd, rkey, bound: None });
        Some(rkey)
    }

    /// The window of this key ends. When this returns no queue pair uses what it opened. Says
    /// whether there was one. Not to be called with a queue pair's lock held.
    pub fn remove_window(&self, rkey: Rkey) -> bool {
        let mut windows = lock(&self.windows.0);
        if !windows.by_name.contains_key(&name(rkey)) {
            return false;
        }
        self.unbind(&mut windows, name(rkey));
        windows.by_name.remove(&name(rkey));
        drop(windows);
        self.readers.finish_access();
        true
    }

    /// Whether a key is one of a window's.
    pub(crate) fn is_windows_key(&self, rkey: Rkey) -> bool {
        lock(&self.windows.0).by_name.contains_key(&name(rkey))
    }

    /// A queue pair binds a window. Says whether it may.
    pub(crate) fn bind(&self, qpn: Qpn, pd: u32, bind: &Bind) -> bool {
        let mut windows = lock(&self.windows.0);
        let name = name(bind.rkey);
        let Some(window) = windows.by_name.get(&name) else { return false };
        let second = window.of == WindowType::Two;
        // A key that may be in use still, or was just now, is no new one.
        let fresh = window.bound.is_none() && bind.length > 0 && window.rkey != bind.rkey;
        if window.pd != pd || (second && !fresh) {
            return false;
        }
        let bound = match bind.length {
            0 => None,
            _ => match self.opened_by(pd, second.then_some(qpn), bind) {
                Some(region) => Some(region),
                None => return false,
            },
        };
        self.unbind(&mut windows, name);
        if let Some(region) = &bound {
            if let Some(only) = region.extras.only {
                windows.bound_by.entry(only).or_default().insert(name);
            }
            if let Some(whole) = &region.extras.part_of {
                whole.extras.windows.fetch_add(1, Ordering::AcqRel);
            }
            write(&self.by_rkey).insert(bind.rkey, region.clone());
        }
        if let Some(window) = windows.by_name.get_mut(&name) {
            (window.rkey, window.bound) = (bind.rkey, bound);
        }
        true
    }

    /// What a bound window opens, if it may.
    fn opened_by(&self, pd: u32, only: Option<Qpn>, bind: &Bind) -> Option<Arc<Region>> {
        let whole = self.get(bind.lkey)?;
        let rights = bind.access & access::REMOTE;
        let writes = rights & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
        // To flush is for the region to allow.
        let needed = access::MW_BIND
            | if writes { access::LOCAL_WRITE } else { 0 }
            | rights & access::FLUSH_GLOBAL;
        if whole.pd != pd || whole.access & needed != needed || whole.is_everywhere() {
            return None;
        }
        let memory = whole.part(bind.address, bind.length)?;
        let zero_based = bind.access & access::ZERO_BASED != 0;
        Some(Arc::new(Region {
            lkey: whole.lkey,
            rkey: bind.rkey,
            pd,
            access: rights,
            iova: if zero_based { 0 } else { bind.address },
            memory,
            moved: Default::default(),
            own: Default::default(),
            extras: RegionKind {
                looks: whole.extras.looks,
                part_of: Some(whole),
                only,
                ..RegionKind::default()
            },
        }))
    }

    /// A queue pair, or its peer, asks that a key be void from now on. Says whether that was done:
    /// only the keys of windows that this queue pair bound can be given up so. Keys of regions that
    /// a program registered never are: others hold them, too, and only the program ends them.
    pub(crate) fn invalidate(&self, qpn: Qpn, rkey: Rkey) -> bool {
        let mut windows = lock(&self.windows.0);
        let Some(window) = windows.by_name.get(&name(rkey)) else { return false };
        let ours = window.bound.as_ref().is_some_and(|region| region.extras.only == Some(qpn));
        if window.rkey != rkey || !ours {
            return false;
        }
        self.unbind(&mut windows, name(rkey));
        true
    }

    /// Ends what a queue pair bound for its peers: the next one of its number, or the next peer of
    /// this one, has no part in it.
    pub(crate) fn end_windows_of(&self, qpn: Qpn) {
        let mut windows = lock(&self.windows.0);
        for name in windows.bound_by.remove(&qpn).unwrap_or_default() {
            self.unbind(&mut windows, name);
        }
    }

    /// Ends windows on a region, which is about to go.
    pub(crate) fn end_windows_on(&self, region: &Region) {
        // A thread that binds one at this moment has done so, or does not find the region any more.
        let mut windows = lock(&self.windows.0);
        if !region.is_bound() {
            return;
        }
        let is_on = |window: &Window| {
            let whole = window.bound.as_ref().and_then(|bound| bound.extras.part_of.as_ref());
            whole.is_some_and(|whole| std::ptr::eq(&**whole, region))
        };
        let on_it = windows.by_name.iter().filter(|(_, window)| is_on(window));
        for name in on_it.map(|(name, _)| *name).collect::<Vec<_>>() {
            self.unbind(&mut windows, name);
        }
    }

    fn unbind(&self, windows: &mut WindowTable, name: u32) {
        let window = windows.by_name.get_mut(&name);
        let Some(region) = window.and_then(|window| window.bound.take()) else { return };
        if let Some(only) = region.extras.only
            && let Some(names) = windows.bound_by.get_mut(&only)
        {
            names.remove(&name);
            if names.is_empty() {
                windows.bound_by.remove(&only);
            }
        }
        write(&self.by_rkey).remove(&region.rkey);
        if let Some(whole) = &region.extras.part_of {
            whole.extras.windows.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_ring::UserMemory;
    use std::collections::HashSet;

    const PD: u32 = 3;
    const OURS: Qpn = Qpn(5);

    /// A region of 4096 bytes that stays untouched, for windows.
    fn with_region(access: u32) -> (Regions, Arc<Region>) {
        let regions = Regions::default();
        let region = UserMemory::lend(&[0; 4096], |memory| {
            Arc::new(Region {
                lkey: regions.new_lkey(),
                rkey: crate::memory_region::NO_RKEY,
                pd: PD,
                access,
                iova: 0x10000,
                memory,
                moved: Default::default(),
                own: Default::default(),
                extras: RegionKind::default(),
            })
        });
        regions.insert(region.clone());
        (regions, region)
    }

    fn on(region: &Region, rkey: Rkey) -> Bind {
        let (address, length) = (0x10100, 0x200);
        Bind { rkey, lkey: region.lkey, address, length, access: access::REMOTE_WRITE }
    }

    fn next(rkey: Rkey) -> Rkey {
        Rkey(name(rkey) | (rkey.0 + 1) & CHOSEN)
    }

    #[test]
    fn a_window_opens_its_part_to_its_binder_until_invalidated() {
        let (regions, region) = with_region(access::LOCAL_WRITE | access::MW_BIND);
        let first = regions.add_window(WindowType::Two, PD, || 0x1234_56ff).unwrap();
        assert!(!regions.bind(OURS, PD, &on(&region, first)), "its key is no new one");
        let rkey = next(first);
        assert_eq!(rkey, Rkey(0x1234_5600));
        assert!(regions.get_remote(rkey).is_none());
        assert!(!regions.bind(OURS, PD + 1, &on(&region, rkey)), "another PD");
        assert!(regions.bind(OURS, PD, &on(&region, rkey)));
        let bound = regions.get_remote(rkey).unwrap();
        assert!(bound.part(0x10100, 0x200).is_some() && bound.opens_by(OURS));
        assert!(bound.part(0x100ff, 1).is_none() && bound.part(0x10300, 1).is_none());
        assert!(!bound.opens_by(Qpn(6)) && region.is_bound());
        assert_eq!(bound.access, access::REMOTE_WRITE);
        assert!(!regions.bind(OURS, PD, &on(&region, next(rkey))), "it is bound");
        assert!(!regions.invalidate(Qpn(6), rkey) && !regions.invalidate(OURS, next(rkey)));
        assert!(regions.invalidate(OURS, rkey));
        assert!(regions.get_remote(rkey).is_none() && !region.is_bound());
        assert!(!regions.invalidate(OURS, rkey), "once");
        let again = next(rkey);
        assert!(regions.bind(OURS, PD, &on(&region, again)));
        regions.end_windows_of(Qpn(6));
        assert!(regions.get_remote(again).is_some());
        regions.end_windows_of(OURS);
        assert!(regions.get_remote(again).is_none() && !region.is_bound());
    }

    #[test]
    fn a_reset_looks_at_windows_of_its_queue_pair_only() {
        let (regions, region) = with_region(access::LOCAL_WRITE | access::MW_BIND);
        let mut draw = (1..).map(|number| number << 8);
        let mut bound = |qpn| {
            let first = regions.add_window(WindowType::Two, PD, || draw.next().unwrap()).unwrap();
            assert!(regions.bind(qpn, PD, &on(&region, next(first))));
            next(first)
        };
        let (ours, theirs) = ([bound(OURS), bound(OURS)], bound(Qpn(6)));
        let names = |qpn| lock(&regions.windows.0).bound_by.get(&qpn).map(HashSet::len);
        assert_eq!((names(OURS), names(Qpn(6))), (Some(2), Some(1)));
        assert!(regions.invalidate(OURS, ours[0]));
        assert_eq!(names(OURS), Some(1));
        regions.end_windows_of(OURS);
        assert!(ours.iter().all(|rkey| regions.get_remote(*rkey).is_none()));
        assert!(regions.get_remote(theirs).is_some());
        assert!(regions.remove_window(theirs));
        assert!(lock(&regions.windows.0).bound_by.is_empty(), "nothing is left of it");
    }

    #[test]
    fn rights_are_the_regions_to_give() {
        let (regions, region) = with_region(access::MW_BIND);
        let rkey = next(regions.add_window(WindowType::Two, PD, || 0x700).unwrap());
        assert!(!regions.bind(OURS, PD, &on(&region, rkey)), "not even its owner may write");
        let reads = Bind { access: access::REMOTE_READ, ..on(&region, rkey) };
        let beyond = Bind { length: 0xf01, ..reads };
        assert!(!regions.bind(OURS, PD, &beyond));
        assert!(regions.bind(OURS, PD, &reads));
        let (regions, region) = with_region(access::LOCAL_WRITE);
        let rkey = next(regions.add_window(WindowType::Two, PD, || 0x700).unwrap());
        assert!(!regions.bind(OURS, PD, &on(&region, rkey)), "no windows on this one");
    }

    #[test]
    fn windows_of_the_first_type_are_bound_anew_and_to_nothing() {
        let (regions, region) = with_region(access::LOCAL_WRITE | access::MW_BIND);
        let rkey = regions.add_window(WindowType::One, PD, || 0x700).unwrap();
        let (one, two, three) = (next(rkey), next(next(rkey)), next(next(next(rkey))));
        assert!(regions.bind(OURS, PD, &on(&region, one)));
        assert!(regions.get_remote(one).unwrap().opens_by(Qpn(77)));
        assert!(regions.bind(OURS, PD, &on(&region, two)));
        assert!(regions.get_remote(one).is_none() && regions.get_remote(two).is_some());
        assert!(!regions.invalidate(OURS, two), "it is not made for that");
        assert!(regions.bind(OURS, PD, &Bind { length: 0, ..on(&region, three) }));
        assert!(regions.get_remote(two).is_none() && regions.get_remote(three).is_none());
        assert!(regions.bind(OURS, PD, &on(&region, rkey)));
        regions.remove(region.lkey);
        assert!(regions.get_remote(rkey).is_none(), "it goes with its region");
        assert!(regions.remove_window(rkey) && !regions.remove_window(rkey));
    }
}
