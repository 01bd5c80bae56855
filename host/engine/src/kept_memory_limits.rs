//! Bounds the memory that the engine keeps for tenants: for the host, each user in a cgroup, and
//! each vNIC.
//!
//! No room takes more of the larger one than it leaves for others. When less than an eighth of the
//! host's or of a holder's is left, the largest holder yields: of the heaviest branch of cgroups,
//! of its heaviest user, the heaviest vNIC drops half of what it keeps, and keeps no more for a
//! second. So a small one always gets some, however many large ones there are.
//!
//! Dropped memory holds packets that a network may lose, or data that can be requested again.
//! Answers to READs cannot be dropped any more: they have a total of their own, and a request for
//! more is refused, as the rings of the link are there in any case.

use omniverb_datapath::Allowance;
use omniverb_datapath::memory_accounts::{Room, WeakRoom};
use omniverb_datapath::vnic_memory_allowance::{VNIC_ANSWERS_BYTES, VNIC_BYTES};
use omniverb_sys::{EventFd, lock};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Budget: bytes that all vNICs together keep, where nothing else is said: what a machine of 8 GiB
/// gives (`omniverb_control::Totals`).
pub(crate) const HOST_BYTES: usize = 256 << 20;
/// Budget: bytes that the vNICs of one holder keep, as a share of the host's.
const HOLDER_SHARE: usize = 2;
/// Budget: bytes of answers that all vNICs together keep, as a share of [`HOST_BYTES`] beside it.
const ANSWERS_SHARE: usize = 4;
/// A vNIC takes so much at a time of its holder's and the host's room, which other threads use.
const STEP: usize = 32 << 10;
/// A holder is made to yield this often at most, in nanoseconds: finding kept memory takes a
/// millisecond with many links.
const PRESS_EVERY: u64 = 10_000_000;

/// For how long a holder that has yielded does not get back its room, in nanoseconds.
const REDUCED: u64 = 1_000_000_000;

/// The way to a holder: cgroups from the root, then the user.
pub type HolderPath = Arc<[Box<str>]>;

/// The host's total. Copies are the same.
#[derive(Clone)]
pub(crate) struct Store(Arc<Shared>);

struct Shared {
    kept: Room,
    answers: Room,
    /// Hardly anything is left of some room.
    tight: Arc<AtomicBool>,
    /// When a holder was made to yield last.
    pressed: AtomicU64,
    /// How often a holder was made to.
    asked: AtomicU64,
    /// A holder has a reduced room at present.
    reduced: AtomicBool,
    holders: Mutex<Holders>,
    /// Wakes the packet threads.
    wakes: Mutex<Vec<Arc<EventFd>>>,
}

#[derive(Default)]
struct Holders {
    rooms: HashMap<HolderPath, (WeakRoom, WeakRoom)>,
    vnics: Vec<(HolderPath, WeakRoom)>,
}

impl Store {
    /// `bytes`: of what can be dropped and what cannot, together.
    pub(crate) fn new(bytes: usize) -> Store {
        let tight = Arc::new(AtomicBool::new(false));
        let answers = bytes / ANSWERS_SHARE;
        Store(Arc::new(Shared {
            kept: Room::with_alarm(bytes - answers, tight.clone()),
            answers: Room::new(answers),
            tight,
            pressed: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            reduced: AtomicBool::new(false),
            holders: Mutex::default(),
            wakes: Mutex::default(),
        }))
    }

    /// A packet thread that is woken when something of its vNICs is to yield.
    pub(crate) fn add_thread(&self, wake: Arc<EventFd>) {
        lock(&self.0.wakes).push(wake);
    }

    /// The rooms of one more vNIC of this holder.
    pub(crate) fn vnic(&self, holder: &HolderPath) -> Allowance {
        let Shared { kept, answers, holders, .. } = &*self.0;
        let mut holders = lock(holders);
        holders.forget_gone();
        let known = holders.rooms.get(holder);
        let known = known.and_then(|(kept, answers)| Some((kept.upgrade()?, answers.upgrade()?)));
        let (kept, answers) = known.unwrap_or_else(|| {
            let share = |room: &Room| room.most() / HOLDER_SHARE;
            let rooms = (kept.share(share(kept)), answers.share(share(answers)));
            let weak = (rooms.0.downgrade(), rooms.1.downgrade());
            holders.rooms.insert(holder.clone(), weak);
            rooms
        });
        let allowance = Allowance {
            kept: kept.share_by_steps(VNIC_BYTES, STEP),
            answers: answers.share_by_steps(VNIC_ANSWERS_BYTES, STEP),
        };
        holders.vnics.push((holder.clone(), allowance.kept.downgrade()));
        allowance
    }

    /// How often a holder was made to yield so far: a thread that sees another number checks
    /// whether it is one of its vNICs ([`Room::is_over`]).
    pub(crate) fn asked(&self) -> u64 {
        self.0.asked.load(Ordering::Relaxed)
    }

    /// Makes a holder yield if that is necessary.
    pub(crate) fn look(&self, now: u64) {
        let Shared { tight, pressed, reduced, .. } = &*self.0;
        let last = pressed.load(Ordering::Relaxed);
        if !tight.load(Ordering::Relaxed) {
            let is_over = || now.saturating_sub(last) >= REDUCED;
            if reduced.load(Ordering::Relaxed) && is_over() {
                self.restore();
            }
            return;
        }
        let is_due = now.saturating_sub(last) >= PRESS_EVERY;
        let first = || pressed.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed);
        if is_due && first().is_ok() {
            tight.store(false, Ordering::Relaxed);
            self.press();
        }
    }

    /// Restores the rooms of holders that have yielded.
    fn restore(&self) {
        self.0.reduced.store(false, Ordering::Relaxed);
        let holders = lock(&self.0.holders);
        holders.vnics.iter().filter_map(|(_, room)| room.upgrade()).for_each(|room| room.restore());
    }

    /// The largest holder yields: of all if the host's room is tight, or its own vNICs' if that of
    /// one holder is.
    fn press(&self) {
        let Shared { kept, asked, reduced, holders, wakes, .. } = &*self.0;
        let (mut all, mut yields) = (Vec::new(), Vec::new());
        {
            let mut holders = lock(holders);
            holders.forget_gone();
            let vnics = holders.vnics.iter();
            all.extend(vnics.filter_map(|(path, room)| Some((path.clone(), room.upgrade()?))));
            if !kept.is_tight() {
                let rooms = holders.rooms.iter();
                let tight = |room: &WeakRoom| room.upgrade().is_some_and(|room| room.is_tight());
                yields
                    .extend(rooms.filter(|(_, room)| tight(&room.0)).map(|(path, _)| path.clone()));
            }
        }
        let heaviest: Vec<Room> = if kept.is_tight() {
            heaviest(&all).into_iter().cloned().collect()
        } else {
            let of = |path: &HolderPath| {
                let own = all.iter().filter(|(of, _)| of == path).map(|(_, room)| room);
                own.max_by_key(|room| room.taken()).cloned()
            };
            yields.iter().filter_map(of).collect()
        };
        if heaviest.is_empty() {
            return;
        }
        heaviest.iter().for_each(|room| room.reduce_to(room.taken() / 2));
        reduced.store(true, Ordering::Relaxed);
        asked.fetch_add(1, Ordering::Relaxed);
        lock(wakes).iter().for_each(|wake| wake.signal());
    }

    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.0.kept.taken() + self.0.answers.taken()
    }
}

impl Holders {
    fn forget_gone(&mut self) {
        self.vnics.retain(|(_, room)| room.is_there());
        self.rooms.retain(|_, (kept, _)| kept.is_there());
    }
}

/// The room of the vNIC that has most of those of the heaviest user of the heaviest branch.
fn heaviest(all: &[(HolderPath, Room)]) -> Option<&Room> {
    let mut branch: Vec<&(HolderPath, Room)> =
        all.iter().filter(|(_, room)| room.taken() > 0).collect();
    for depth in 0.. {
        let mut weights = BTreeMap::<Option<&str>, usize>::new();
        for (path, room) in &branch {
            *weights.entry(path.get(depth).map(Box::as_ref)).or_default() += room.taken();
        }
        let (heaviest, _) = weights.into_iter().max_by_key(|(_, weight)| *weight)?;
        branch.retain(|(path, _)| path.get(depth).map(Box::as_ref) == heaviest);
        if heaviest.is_none() {
            break;
        }
    }
    branch.into_iter().map(|(_, room)| room).max_by_key(|room| room.taken())
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_datapath::memory_accounts::RoomPart;

    fn holder(path: &str) -> HolderPath {
        path.split('/').map(Box::from).collect()
    }

    /// Takes all that can be had, by pieces; what is to yield drops what it has.
    fn fill(store: &Store, vnics: &mut [(Allowance, Vec<RoomPart>)], now: &mut u64) {
        for _ in 0..200 {
            for (allowance, parts) in vnics.iter_mut() {
                for _ in 0..16 {
                    parts.extend(allowance.kept.part(64 << 10));
                }
            }
            *now += PRESS_EVERY;
            store.look(*now);
            for (allowance, parts) in vnics.iter_mut() {
                while allowance.kept.is_over() && parts.pop().is_some() {}
            }
        }
    }

    #[test]
    fn many_vnics_of_one_holder_leave_room_for_another_and_for_each_other() {
        let (store, mut now) = (Store::new(256 << 20), 0);
        let greedy = holder("kubepods/a/0");
        let mut many: Vec<_> = (0..100).map(|_| (store.vnic(&greedy), Vec::new())).collect();
        fill(&store, &mut many, &mut now);
        assert!(store.taken() <= 128 << 20, "a holder has half at most");
        let weights = many.iter().map(|(allowance, _)| allowance.kept.taken());
        assert!(weights.clone().min() > Some(100 << 10), "{:?}", weights.collect::<Vec<_>>());
        let late = store.vnic(&greedy);
        assert!(late.kept.part(64 << 10).is_some(), "even a further one of the same");
        let other = store.vnic(&holder("kubepods/b/0"));
        let parts: Vec<_> = (0..256).map(|_| other.kept.part(64 << 10)).collect();
        assert!(parts.iter().all(Option::is_some));
        drop((parts, many));
        assert_eq!(store.taken(), 0);
    }

    #[test]
    fn the_largest_of_many_holders_yields() {
        let (store, mut now) = (Store::new(256 << 20), 0);
        // One that spreads itself over cgroups of its own, and three others.
        let mut all: Vec<_> =
            (0..32).map(|n| (store.vnic(&holder(&format!("mean/{n}/0"))), Vec::new())).collect();
        all.extend((0..3).map(|n| (store.vnic(&holder(&format!("good/{n}"))), Vec::new())));
        fill(&store, &mut all, &mut now);
        let total = store.taken();
        assert!(total <= 192 << 20 && total > 96 << 20, "{total}");
        let weight = |vnics: &[(Allowance, Vec<RoomPart>)]| {
            vnics.iter().map(|(allowance, _)| allowance.kept.taken()).sum::<usize>()
        };
        let (mean, good) = (weight(&all[..32]), weight(&all[32..]));
        assert!(good > total / 4 && mean > total / 4, "{mean} and {good}");
    }

    #[test]
    fn answers_have_a_total_of_their_own() {
        let store = Store::new(256 << 20);
        let vnics: Vec<_> = (0..16).map(|n| store.vnic(&holder(&format!("{n}")))).collect();
        let rounds = std::iter::repeat_n(&vnics, 16).flatten();
        let parts: Vec<RoomPart> = rounds.filter_map(|vnic| vnic.answers.part(1 << 20)).collect();
        let total = parts.len() << 20;
        assert!(total <= (256 << 20) / ANSWERS_SHARE && total > 40 << 20, "{total}");
        assert!(store.vnic(&holder("late")).answers.part(64 << 10).is_some());
        assert!(vnics[0].kept.part(1 << 20).is_some());
    }
}
