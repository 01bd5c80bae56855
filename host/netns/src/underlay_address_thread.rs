//! Runs the thread that gives interfaces the addresses of policies, and takes them back.
//!
//! The daemon says which it wants, whenever that changes. An interface that loses one gets it
//! again, and what failed is tried again. With the daemon they end. The daemon is told what has
//! become of each.

use crate::helper_protocol::underlay_messages::{self, AddressState, UNDERLAY_ADDRESSES_MAX};
use crate::underlay_address_plan::{Step, UnderlayAddresses};
use omniverb_sys::address_assignment::{self, AddressEvents};
use omniverb_sys::netns::{Namespace, NetnsIdentity};
use omniverb_sys::{EventFd, lock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two looks because something has happened: interfaces may change all the time.
const PAUSE: Duration = Duration::from_millis(200);
/// Until what failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How long what a daemon that died has left may wait for the vNICs of the next one: processes
/// connect again, and their links go on.
const LEFT_KEPT: Duration = Duration::from_secs(5);

/// The thread, once there is one. Dropped, it removes all that it has added, and is waited for.
pub(crate) struct UnderlayAddressThread {
    socket: Arc<OwnedFd>,
    running: Option<(Arc<Orders>, JoinHandle<()>)>,
}

/// What the thread is told.
struct Orders {
    wake: EventFd,
    next: Mutex<Option<Order>>,
}

enum Order {
    /// These are wanted in this namespace, each beside another address.
    Want(Namespace, BTreeMap<IpAddr, IpAddr>),
    End,
}

impl Orders {
    fn give(&self, order: Order) {
        *lock(&self.next) = Some(order);
        self.wake.signal();
    }
}

impl UnderlayAddressThread {
    /// None yet. What there is to tell goes to `socket`.
    pub(crate) fn new(socket: Arc<OwnedFd>) -> UnderlayAddressThread {
        UnderlayAddressThread { socket, running: None }
    }

    /// These are wanted from now on, and no others.
    pub(crate) fn want(&mut self, namespace: Namespace, wanted: BTreeMap<IpAddr, IpAddr>) {
        if self.running.as_ref().is_none_or(|(_, thread)| thread.is_finished()) {
            self.running = self.start().ok();
        }
        match &self.running {
            Some((orders, _)) => orders.give(Order::Want(namespace, wanted)),
            None => {
                let all = wanted.keys().map(|ip| (*ip, Errno::AGAIN.raw_os_error())).collect();
                let _ = underlay_messages::send_states(self.socket.as_fd(), &all);
            }
        }
    }

    fn start(&self) -> io::Result<(Arc<Orders>, JoinHandle<()>)> {
        let orders = Arc::new(Orders { wake: EventFd::new()?, next: Mutex::new(None) });
        let thread = Thread {
            socket: self.socket.clone(),
            orders: orders.clone(),
            addresses: UnderlayAddresses::default(),
            begun: Instant::now(),
            target: None,
            place: None,
            events: None,
            is_undone: false,
            told: None,
        };
        let builder = std::thread::Builder::new().name("addresses".into());
        Ok((orders, builder.spawn(move || thread.run())?))
    }
}

impl Drop for UnderlayAddressThread {
    fn drop(&mut self) {
        if let Some((orders, thread)) = self.running.take() {
            orders.give(Order::End);
            let _ = thread.join();
        }
    }
}

struct Thread {
    socket: Arc<OwnedFd>,
    orders: Arc<Orders>,
    addresses: UnderlayAddresses,
    /// When it began, or came to another namespace.
    begun: Instant,
    /// The namespace that it is to be in, until it is there.
    target: Option<Namespace>,
    /// The namespace that it is in.
    place: Option<NetnsIdentity>,
    /// What happens there, as long as something is wanted.
    events: Option<AddressEvents>,
    /// Something has failed that may succeed later.
    is_undone: bool,
    /// What the daemon was told last.
    told: Option<AddressState>,
}

impl Thread {
    fn run(mut self) {
        loop {
            if self.wait().is_err() {
                // Without memory: it looks again, and orders are obeyed, if later.
                std::thread::sleep(RETRY);
            }
            self.orders.wake.take();
            if self.begun.elapsed() >= LEFT_KEPT {
                self.addresses.end_waiting();
            }
            let order = lock(&self.orders.next).take();
            match order {
                Some(Order::Want(namespace, wanted)) => {
                    self.target = Some(namespace);
                    let has_come = self.go_to_target();
                    self.told = None;
                    self.addresses.want(wanted);
                    self.act(has_come);
                }
                Some(Order::End) => return self.end(),
                None => {
                    let heard = self.events.as_ref().map_or(Ok(()), AddressEvents::take);
                    let ready = heard.and_then(|()| self.go_to_target());
                    self.act(ready);
                    // The next order need not wait.
                    let _ = self.orders.wake.wait(Some(PAUSE));
                }
            }
        }
    }

    fn wait(&self) -> io::Result<()> {
        let mut files = vec![PollFd::new(&self.orders.wake, PollFlags::IN)];
        files.extend(self.events.iter().map(|events| PollFd::new(events, PollFlags::IN)));
        let left = LEFT_KEPT.saturating_sub(self.begun.elapsed());
        let left = self.addresses.is_any_left().then_some(left);
        let limits = left.into_iter().chain(self.is_undone.then_some(RETRY));
        let limit = limits.min().map(|limit| Timespec {
            tv_sec: limit.as_secs().cast_signed(),
            tv_nsec: limit.subsec_nanos().into(),
        });
        match poll(&mut files, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Takes all back.
    fn end(mut self) {
        self.take_back();
    }

    fn take_back(&mut self) {
        self.addresses.want(BTreeMap::new());
        self.addresses.end_waiting();
        self.act(Ok(()));
    }

    fn go_to_target(&mut self) -> io::Result<()> {
        let Some(target) = self.target.as_ref().map(Namespace::identity) else { return Ok(()) };
        if self.place == Some(target) {
            self.target = None;
            return Ok(());
        }
        if self.place.is_some() {
            self.take_back();
            (self.place, self.events) = (None, None);
            (self.addresses, self.begun) = (UnderlayAddresses::default(), Instant::now());
        }
        self.target.as_ref().map_or(Ok(()), Namespace::enter)?;
        self.place = Some(target);
        // Its file would keep the mount busy that names it.
        self.target = None;
        Ok(())
    }

    /// Does what has to be done, if nothing was in the way, and tells the daemon.
    fn act(&mut self, ready: io::Result<()>) {
        let mut states: AddressState = self.addresses.wanted().map(|ip| (ip, 0)).collect();
        let done = ready.and_then(|()| self.carry_out(&mut states));
        if let Err(error) = &done {
            states.values_mut().for_each(|state| *state = number(error));
        }
        // That nothing is wanted, and nothing of ours is left, cannot be said after an error.
        let is_unknown = done.is_err() && states.is_empty();
        self.is_undone = done.map_or(true, |is_undone| is_undone);
        // If the daemon is gone it need not hear.
        if !is_unknown && self.told.as_ref() != Some(&states) {
            let _ = underlay_messages::send_states(self.socket.as_fd(), &states);
            self.told = Some(states);
        }
    }

    /// Whether something has failed that may succeed later.
    fn carry_out(&mut self, states: &mut AddressState) -> io::Result<bool> {
        if self.place.is_none() {
            return Ok(false);
        }
        match self.addresses.is_any_wanted() {
            // First, so that nothing happens unheard.
            true if self.events.is_none() => self.events = Some(AddressEvents::open()?),
            true => {}
            false => self.events = None,
        }
        let mut is_undone = false;
        let found = address_assignment::list()?;
        for step in self.addresses.plan(&found) {
            let (ip, state) = match step {
                Step::Remove(ip, interface) => {
                    match address_assignment::remove(ip, interface) {
                        Err(error) if !is_gone(&error) => {
                            is_undone = true;
                            // One that is wanted is there.
                            if states.len() < UNDERLAY_ADDRESSES_MAX {
                                states.entry(ip).or_insert(number(&error));
                            }
                        }
                        _ => self.addresses.removed(ip, interface),
                    }
                    continue;
                }
                Step::Homeless(ip) => (ip, Errno::ADDRNOTAVAIL.raw_os_error()),
                Step::Add(ip, interface) => match address_assignment::add(ip, interface) {
                    Ok(()) => {
                        self.addresses.added(ip, interface);
                        (ip, 0)
                    }
                    // Another was faster.
                    Err(error) if number(&error) == Errno::EXIST.raw_os_error() => (ip, 0),
                    Err(error) => {
                        // A privilege does not come by waiting.
                        is_undone |= error.kind() != io::ErrorKind::PermissionDenied;
                        (ip, number(&error))
                    }
                },
            };
            states.insert(ip, state);
        }
        Ok(is_undone)
    }
}

/// Whether an address that was to be removed is not there.
fn is_gone(error: &io::Error) -> bool {
    [Errno::ADDRNOTAVAIL, Errno::NODEV].map(Errno::raw_os_error).contains(&number(error))
}

/// The number of an error, which is never 0.
fn number(error: &io::Error) -> i32 {
    error.raw_os_error().filter(|number| *number > 0).unwrap_or(Errno::IO.raw_os_error())
}
