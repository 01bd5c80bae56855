//! Keeps the doorbells of all processes that have links on this thread.
//!
//! A turn looks at those of processes that rang lately only. The others are *quiet*: they wake us,
//! as all do while we sleep, and so processes that do nothing make no turn longer. While few
//! processes are there, none is quiet: to wake us costs a process a system call.

use super::doorbell::{Bell, DueRings};
use crate::command::Memory;
use omniverb_link::Doorbell;
use omniverb_sys::udp_socket::UdpPort;
use omniverb_sys::{DoorbellListener, EventFd, clock, futex, lock};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex};

/// Budget: doorbells that a turn looks at though nothing came by them lately.
const IDLE_MAX: usize = 64;
/// Events within this time, in nanoseconds, are recent.
const LATELY: u64 = 2_000_000;
/// For so long a doorbell that is to be quiet is looked at still, in nanoseconds: until then a ring
/// may not have seen that we want to be woken (`support/ring/src/doorbell.rs`).
const QUIETENING: u64 = 2_000_000;

/// By the control plane's numbers.
pub(super) struct Bells {
    bells: BTreeMap<u64, Bell>,
    /// Those that are looked at, and since when nothing came by each of them.
    looked_at: BTreeMap<u64, Look>,
    /// How many of them are, though nothing came by them lately.
    idle_max: usize,
    /// Those that are to be rung.
    due_rings: DueRings,
    /// Hears them while we sleep, and those that are quiet all the time.
    listener: DoorbellListener,
    /// Signalled by it when one of them was rung.
    rung: Arc<EventFd>,
    /// The names of rung doorbells, until they are polled.
    heard: Arc<Mutex<HashSet<u64>>>,
    /// Doorbells by what the listener calls them.
    by_name: HashMap<u64, u64>,
}

/// How a doorbell is looked at.
struct Look {
    /// When something came by it last.
    news: u64,
    /// Since when it wakes us, if it is to be quiet.
    quietening: Option<u64>,
}

/// Starts a thread that hears doorbells.
fn spawn(name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

impl Bells {
    pub(super) fn new() -> io::Result<Bells> {
        let rung = Arc::new(EventFd::new()?);
        let heard = Arc::new(Mutex::new(HashSet::new()));
        let (signal, note) = (rung.clone(), heard.clone());
        let listener = DoorbellListener::naming(spawn, move |names| {
            lock(&note).extend(names);
            signal.signal();
        });
        let (bells, looked_at, due_rings) = Default::default();
        // Where a thread waits for each doorbell, to be heard costs more than to be looked at.
        let idle_max = if futex::has_wait_any() { IDLE_MAX } else { usize::MAX };
        let by_name = HashMap::new();
        Ok(Bells { bells, looked_at, idle_max, due_rings, listener, rung, heard, by_name })
    }

    /// Readable when one of them was rung while we slept.
    pub(super) fn rung(&self) -> &EventFd {
        &self.rung
    }

    /// A new one, over this memory: two pages, of which ours is the second. `carrier`: as in
    /// [`Bell::new`].
    pub(super) fn add(
        &mut self,
        number: u64,
        memory: &Memory,
        carrier: Option<Arc<UdpPort>>,
    ) -> io::Result<()> {
        let bell = Bell::new(number, memory, carrier, (&self.listener, &self.due_rings))?;
        self.by_name.insert(bell.heard_as(), number);
        self.bells.insert(number, bell);
        self.look_at(number);
        Ok(())
    }

    /// From now on a turn looks at this one.
    fn look_at(&mut self, number: u64) {
        self.looked_at.insert(number, Look { news: clock::now(), quietening: None });
    }

    /// The doorbell that the far end of its links rings.
    pub(super) fn doorbell(&self, number: u64) -> Option<Arc<dyn Doorbell>> {
        self.bells.get(&number).map(Bell::doorbell)
    }

    /// A doorbell's bit stands for link `index`.
    pub(super) fn bind(&mut self, (number, slot): (u64, u32), index: usize) {
        if let Some(bell) = self.bells.get_mut(&number) {
            bell.bind(slot, index);
        }
    }

    /// The link at a doorbell's bit is gone.
    pub(super) fn unbind(&mut self, (number, slot): (u64, u32), index: usize) {
        if let Some(bell) = self.bells.get_mut(&number) {
            bell.unbind(slot, index);
        }
        self.drop_unused(number);
    }

    /// The control plane releases a doorbell with its last link; no later command would come.
    pub(super) fn drop_unused(&mut self, number: u64) {
        if let Some(bell) = self.bells.get(&number).filter(|bell| bell.is_unused()) {
            bell.ring();
            self.listener.remove(bell.heard_as());
            self.by_name.remove(&bell.heard_as());
            self.looked_at.remove(&number);
            self.bells.remove(&number);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bells.is_empty()
    }

    /// Has applications wake us.
    pub(super) fn want_kicks(&self) {
        self.those_looked_at().for_each(|(_, bell)| bell.want_kick());
    }

    /// Whether some link has news.
    pub(super) fn have_news(&self) -> bool {
        self.those_looked_at().any(|(_, bell)| bell.has_ready())
    }

    fn those_looked_at(&self) -> impl Iterator<Item = (u64, &Bell)> {
        let bell = |number: &u64| Some((*number, self.bells.get(number)?));
        self.looked_at.keys().filter_map(bell)
    }

    /// Takes the links that have news.
    pub(super) fn take_news(&mut self, mut each: impl FnMut(usize)) {
        self.hear();
        let now = clock::now();
        let Bells { bells, looked_at, idle_max, .. } = self;
        looked_at.retain(|number, look| {
            let Some(bell) = bells.get(number) else { return false };
            if bell.has_ready() {
                bell.ready(&mut each);
                *look = Look { news: now, quietening: None };
                return true;
            }
            let is_over = |since: u64| now.saturating_sub(since) > QUIETENING;
            !look.quietening.is_some_and(is_over) || bell.has_ready()
        });
        let awake = looked_at.values().filter(|look| look.quietening.is_none()).count();
        let surplus = awake.saturating_sub(*idle_max);
        if surplus > 0 {
            self.quieten(surplus, now);
        }
    }

    /// So many doorbells are to be quiet: of those that nothing came by lately those that it did
    /// for longest.
    fn quieten(&mut self, surplus: usize, now: u64) {
        let idle = |(number, look): (&u64, &Look)| {
            let is_idle = look.quietening.is_none() && now.saturating_sub(look.news) > LATELY;
            is_idle.then_some((look.news, *number))
        };
        let mut idle: Vec<(u64, u64)> = self.looked_at.iter().filter_map(idle).collect();
        if surplus < idle.len() {
            idle.select_nth_unstable(surplus);
            idle.truncate(surplus);
        }
        for (_, number) in idle {
            let Some(bell) = self.bells.get(&number) else { continue };
            bell.want_kick();
            if let Some(look) = self.looked_at.get_mut(&number) {
                // Not before: a ring that has not seen it may be that old.
                look.quietening = Some(clock::now());
            }
        }
    }

    /// Those that were rung are looked at.
    fn hear(&mut self) {
        let names = std::mem::take(&mut *lock(&self.heard));
        for name in names {
            if let Some(number) = self.by_name.get(&name) {
                self.look_at(*number);
            }
        }
    }

    /// The end of a turn: wakes applications that are to be woken.
    pub(super) fn ring(&self) {
        let due = std::mem::take(&mut *lock(&self.due_rings));
        due.iter().filter_map(|number| self.bells.get(number)).for_each(Bell::ring);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_ring::{DoorbellPage, Window, doorbell::PAGE_BYTES};
    use omniverb_sys::{Extent, doorbell_listener, memfd};
    use std::time::Duration;

    const MANY: u64 = 200;

    /// A doorbell, and our page of it as its process sees it.
    fn add(bells: &mut Bells, number: u64) -> DoorbellPage<Window> {
        let bytes = 2 * PAGE_BYTES;
        let file = Arc::new(memfd::create("bell", bytes as u64).unwrap());
        let memory = Memory { extent: Extent::new(file, 0, bytes as u64), keep: None };
        bells.add(number, &memory, None).unwrap();
        bells.bind((number, 5), number as usize);
        let mapped = memory.map_exactly(bytes).unwrap();
        DoorbellPage::new(mapped.part(PAGE_BYTES, PAGE_BYTES).unwrap())
    }

    /// A process tells of news.
    fn tell(page: &DoorbellPage<Window>) {
        page.set_ready(5);
        if page.take_kick() {
            doorbell_listener::ring(page);
        }
    }

    fn until(bells: &mut Bells, mut done: impl FnMut(&mut Bells) -> bool) {
        for _ in 0..20_000 {
            if done(bells) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("it never came");
    }

    #[test]
    fn an_iteration_polls_few_quiet_doorbells_and_hears_all() {
        let mut bells = Bells::new().unwrap();
        let pages: Vec<_> = (0..MANY).map(|number| add(&mut bells, number)).collect();
        for _ in 0..3 {
            until(&mut bells, |bells| {
                bells.take_news(|_| panic!("nothing was told"));
                bells.looked_at.len() <= IDLE_MAX
            });
            pages.iter().for_each(tell);
            let mut heard = Vec::new();
            until(&mut bells, |bells| {
                bells.take_news(|index| heard.push(index));
                heard.len() as u64 == MANY
            });
            heard.sort_unstable();
            assert!(heard.iter().copied().eq(0..MANY as usize));
        }
        // Those that are gone leave nothing.
        (0..MANY).for_each(|number| bells.unbind((number, 5), number as usize));
        bells.take_news(|_| panic!("nothing was told"));
        assert!(bells.is_empty() && bells.looked_at.is_empty() && bells.by_name.is_empty());
    }

    #[test]
    fn the_quietest_doorbells_are_polled_no_more() {
        let mut bells = Bells::new().unwrap();
        let _pages: Vec<_> = (0..MANY).map(|number| add(&mut bells, number)).collect();
        let now = clock::now();
        for (number, look) in &mut bells.looked_at {
            look.news = now - LATELY - 1_000 * (1 + number * 7 % MANY);
        }
        bells.quieten(MANY as usize - IDLE_MAX, now);
        for (number, look) in &bells.looked_at {
            let is_quiet = look.quietening.is_some_and(|since| since >= now);
            assert_eq!(is_quiet, number * 7 % MANY >= IDLE_MAX as u64, "{number}");
        }
    }

    #[test]
    fn all_doorbells_are_polled_if_a_thread_waits_for_each() {
        let mut bells = Bells { idle_max: usize::MAX, ..Bells::new().unwrap() };
        let _pages: Vec<_> = (0..MANY).map(|number| add(&mut bells, number)).collect();
        bells.looked_at.values_mut().for_each(|look| look.news = 0);
        bells.take_news(|_| panic!("nothing was told"));
        assert!(bells.looked_at.values().all(|look| look.quietening.is_none()));
    }

    #[test]
    fn few_doorbells_are_polled_all_the_time() {
        let mut bells = Bells::new().unwrap();
        let _pages: Vec<_> = (0..IDLE_MAX as u64).map(|number| add(&mut bells, number)).collect();
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
            bells.take_news(|_| panic!("nothing was told"));
        }
        assert_eq!(bells.looked_at.len(), IDLE_MAX);
    }
}
