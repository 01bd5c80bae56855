//! Asks the broker for channels, keeps the routes that it has told, and reads its messages.

use core::cell::UnsafeCell;
use std::os::fd::{BorrowedFd, OwnedFd};

use omniverb_connection::light::connection_slot::Closing;
use omniverb_connection::light::frame::Endpoint;
use omniverb_formats::broker_message::{Reply, Request, Side};
use omniverb_formats::channel_layout::{BYTES, PORT_ALLOWED_FOR};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mm::{ProtFlags, munmap};
use rustix::thread::nanosleep;

use super::channel::{Channel, CrossNamespace};
use super::local_addresses::source;
use super::mmap_buffers::CHANNELS;
use super::observed_connections::OFTEN;
use super::sleepers;
use super::state::{State, has_mapped, with};
pub(super) use crate::carry::broker::connection;
use crate::carry::broker::{Files, has_mail, mailbox, say};
use crate::carry::broker_dispatch::take_with;
use crate::carry::map_sealed_memfd::map;
use crate::tsc_clock;

/// Addresses of which it is known where they lead.
const ROUTES: usize = 256;
/// How long an answer is waited for: it comes within a fraction of a millisecond.
pub(super) const ANSWER: u64 = 200_000_000;
/// The same while a gateway finds out, which may be in vain.
const BY_GATEWAY: u64 = 20_000_000;
/// And how long in one go.
const LONGEST: u64 = 20_000_000;
/// And where another thread may have taken the answer meanwhile.
const PART: u64 = 1_000_000;
/// How long a thread that connects to the broker is left alone before the next look.
const CONNECTS: i64 = 50_000;
/// How long it is remembered that there is no listener at an address.
pub(super) const NO_LISTENER_KEPT: u64 = 1_000_000_000;
/// How long before the listener's permission ends the client stops using it: the listener may be
/// busy before it looks at new connections. And how long before that the network is asked again.
const SPARE: u64 = PORT_ALLOWED_FOR * 4 / 10;
const EARLY: u64 = PORT_ALLOWED_FOR * 3 / 10;

/// The longest time between two TCP connections that show the route.
const PAUSE_MAX: u64 = 4_000_000_000;

/// Where an address leads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteState {
    /// Nothing is known.
    Free,
    /// The broker was asked.
    Asked,
    /// To the channel of this name.
    Channel(u64),
    /// To no light listener, as it was at some time.
    NoListener(u64),
}

#[derive(Clone, Copy)]
pub(super) struct Route {
    pub to: Endpoint,
    /// The client's address.
    pub from: [u8; 16],
    pub way: RouteState,
    /// Until when, if that is in another network namespace; otherwise 0.
    pub until: u64,
    /// It is in another network namespace.
    is_far: bool,
    /// When a connection last went there by the kernel, so that the route is seen; 0: not since the
    /// broker was asked. And how long none does so afterwards: the longer the more often that was
    /// in vain.
    tried: u64,
    pause: u64,
    /// There was no room there: until when those that connect anew go by the kernel, whose listener
    /// has room of its own, and makes them wait as it ever does.
    pub full: u64,
    /// When that was answered last.
    answered: u64,
    /// When it was asked last, and how often the channel's other end had left sockets when that was
    /// answered: if that is not so any more, it is asked anew.
    pub asked: u64,
    pub left: u64,
    /// The broker's name for the socket that listens there; 0: unknown.
    pub socket: u64,
    /// Several listen there: for each connection it is asked anew which of them gets it.
    is_shared: bool,
    /// A process has the socket that may still register it; or the broker has not said that there
    /// is none.
    pub is_heard: bool,
    /// A gateway may carry the client after a connection by the kernel.
    is_coming: bool,
    /// A gateway is finding out whether it does: clients wait for moments only.
    is_waiting: bool,
    /// The question's tag.
    pub tag: u64,
}

struct Routes(UnsafeCell<([Route; ROUTES], u64)>);
// SAFETY: touched only with the lock of the state, which each function here is given.
unsafe impl Sync for Routes {}
const NOWHERE: Endpoint = Endpoint { address: [0; 16], port: 0 };
const NONE: Route = Route {
    to: NOWHERE,
    way: RouteState::Free,
    tag: 0,
    from: [0; 16],
    until: 0,
    is_far: false,
    tried: 0,
    pause: 0,
    full: 0,
    answered: 0,
    asked: 0,
    left: 0,
    socket: 0,
    is_shared: false,
    is_heard: false,
    is_coming: false,
    is_waiting: false,
};
static ROUTES_NOW: Routes = Routes(UnsafeCell::new(([NONE; ROUTES], 0)));

#[allow(clippy::mut_from_ref, reason = "the state is the lock")]
pub(super) fn routes(_: &State) -> &'static mut ([Route; ROUTES], u64) {
    // SAFETY: as above; no two of these live at a time.
    unsafe { &mut *ROUTES_NOW.0.get() }
}

/// The one of a question, unless it was asked anew meanwhile.
fn tagged(state: &State, tag: u64) -> Option<&'static mut Route> {
    routes(state).0.iter_mut().find(|one| one.tag == tag)
}

/// In a child, whose lock is free: nothing is known.
pub(super) fn begin_anew(state: &State) {
    *routes(state) = ([NONE; ROUTES], 0);
}

/// Takes the mail.
pub(super) fn look(state: &mut State) {
    if has_mail() {
        _ = take_with(&mut |reply, files| came(state, reply, files));
    }
}

/// Takes the broker's messages if the socket says that there are some. `false`: another thread
/// does.
pub(super) fn take(state: &mut State) -> bool {
    let is_taken = take_with(&mut |reply, files| came(state, reply, files));
    if let Some(mailbox) = mailbox() {
        sleepers::hears_broker(mailbox);
    }
    is_taken
}

/// Takes all messages that the page announces. `false`: another thread takes them, or sends to the
/// broker just now; that may be this thread, interrupted.
pub(super) fn take_all(state: &mut State) -> bool {
    !has_mail() || take(state)
}

fn came(state: &mut State, reply: Reply, files: Files) {
    let is_for_strays = matches!(
        reply,
        Reply::Channel { .. } | Reply::ChannelKnown { .. } | Reply::NoChannel { .. }
    );
    if is_for_strays {
        state.unaccepted.set_due();
    }
    match (reply, files) {
        (Reply::Channel { tag, name, side, ends }, [Some(memory), Some(bell)]) => {
            let across = ends.map(|ends| CrossNamespace::new(ends, connection()));
            let is_across = across.is_some();
            let is_made = make(state, &memory, &bell, (name, side), across).is_some();
            if !is_made {
                Channel::cut_unused(&memory, side);
            }
            // Until when comes behind it.
            if side == Side::First && !is_across {
                answer(state, tag, if is_made { RouteState::Channel(name) } else { no_listener() });
            }
            if !is_made {
                note_gone_channel(state, name);
            }
        }
        // There was no room for its descriptors.
        (Reply::Channel { tag, name, side, .. }, _) => {
            if side == Side::First {
                answer(state, tag, no_listener());
            }
            note_gone_channel(state, name);
        }
        (Reply::ChannelKnown { tag, name, until }, _) => {
            let is_there = state.channel_named(name).is_some();
            if !is_there {
                // The broker takes it for one that is.
                note_gone_channel(state, name);
            }
            let until = if until == 0 { 0 } else { believed(until).saturating_sub(SPARE).max(1) };
            // The clocks of two time namespaces may differ.
            let is_well = is_there && (until == 0 || until > tsc_clock::nanoseconds());
            let or_else = if state.unaccepted.are_any() && !is_there {
                RouteState::Free
            } else {
                no_listener()
            };
            answer(state, tag, if is_well { RouteState::Channel(name) } else { or_else });
            if let Some(route) = tagged(state, tag) {
                (route.until, route.answered) = (until, tsc_clock::nanoseconds());
            }
        }
        (Reply::PortAllowed { name, port, until }, _) => {
            let channel =
                state.channel_named(name).and_then(|index| state.channels[index].as_mut());
            if let Some(across) = channel.and_then(|channel| channel.across.as_mut()) {
                across.add_way(port, believed(until));
            }
        }
        (Reply::RemoteSeen { address, port }, _) => {
            expire_routes(state, &Endpoint { address, port })
        }
        (Reply::Ended { link: name }, _) => {
            if let Some(index) = state.channel_named(name) {
                state.lose(index, Closing::Reset);
            }
        }
        (Reply::NoChannel { tag, is_heard, is_coming }, _) => {
            answer(state, tag, no_listener());
            if let Some(route) = tagged(state, tag) {
                (route.is_heard, route.is_coming) = (is_heard, is_coming);
            }
        }
        (Reply::AskingGateway { tag }, _) => {
            if let Some(route) = tagged(state, tag) {
                route.is_waiting = true;
            }
        }
        (Reply::Listening { tag, why: None }, _) => {
            if let Some(listener) = state.listeners.of_id(tag as u32) {
                listener.is_under_way = false;
            }
        }
        (Reply::ListenerIs { tag, socket, is_shared }, _) => {
            if let Some(route) = tagged(state, tag) {
                (route.socket, route.is_shared) = (socket, is_shared);
            }
        }
        (Reply::Unlistened { .. }, _) => {
            let unheard = &mut state.unheard;
            unheard.heard = (unheard.heard + 1).min(unheard.said);
        }
        // No client is to come there, by any channel.
        (Reply::Listening { tag, .. }, _) => state.refuses(tag as u32),
        _ => {}
    }
}

/// Until when a permission is believed whose sender's clock may be another one (time namespaces).
fn believed(until: u64) -> u64 {
    until.min(tsc_clock::nanoseconds() + PORT_ALLOWED_FOR)
}

impl State {
    /// The place of a channel.
    pub(super) fn channel_named(&self, name: u64) -> Option<usize> {
        self.channels
            .iter()
            .position(|channel| channel.as_ref().is_some_and(|one| one.name == name))
    }

    fn channel_at(&self, name: u64) -> Option<&Channel> {
        self.channels[self.channel_named(name)?].as_ref()
    }

    /// How often the other end of a channel has left sockets that listen.
    pub(super) fn left_by(&self, name: u64) -> Option<u64> {
        self.channel_at(name).map(Channel::left)
    }
}

pub(super) fn no_listener() -> RouteState {
    RouteState::NoListener(tsc_clock::nanoseconds())
}

pub(super) fn answer(state: &State, tag: u64, way: RouteState) {
    let Some(route) = tagged(state, tag) else { return };
    route.way = way;
    if let RouteState::Channel(name) = way {
        let channel = state.channel_at(name);
        route.left = channel.map_or(0, Channel::left);
        // Perhaps there.
        if channel.is_none_or(|channel| channel.has_left_since(route.asked)) {
            route.way = RouteState::Free;
        }
    }
}

fn make(
    state: &mut State,
    memory: &OwnedFd,
    bell: &OwnedFd,
    as_named: (u64, Side),
    across: Option<CrossNamespace>,
) -> Option<()> {
    // Of one that is gone there may be connections and bytes yet, on the account of a place.
    let free = (0..CHANNELS).filter(|index| state.channels[*index].is_none());
    let index = free.min_by_key(|index| {
        (state.listeners.waiting_of(*index), state.pool.used_by(*index as u16))
    })?;
    let base = map(memory, BYTES, ProtFlags::READ | ProtFlags::WRITE)?;
    let Some(mut channel) = Channel::new(base as usize, as_named, bell, across) else {
        // SAFETY: no other thread has seen it.
        _ = unsafe { munmap(base, BYTES) };
        return None;
    };
    let is_heard = channel.bell().is_some_and(|bell| sleepers::hears(index, bell));
    if !is_heard {
        channel.end();
        return None;
    }
    // A thread that sleeps now has not marked this channel.
    channel.sleeps();
    has_mapped(index, channel.mapped());
    state.channels[index] = Some(channel);
    state.channels_end = state.channels_end.max(index + 1);
    state.has_news = true;
    Some(())
}

/// A channel is of no use any more. The broker is told when no thread is in the middle of its
/// messages.
pub(super) fn note_gone_channel(state: &mut State, name: u64) {
    let (names, count) = &mut state.gone;
    if *count < names.len() {
        names[*count] = name;
        *count += 1;
    }
}

/// A channel is lost. Its listener counts as gone for a while: TCP tells more. Unless a client that
/// was refused there is about to ask.
pub(super) fn loses(state: &mut State, name: u64) {
    let way = if state.unaccepted.are_any() { RouteState::Free } else { no_listener() };
    for route in routes(state).0.iter_mut().filter(|one| one.way == RouteState::Channel(name)) {
        route.way = way;
    }
    note_gone_channel(state, name);
}

/// What is known of an address is old.
fn expire_routes(state: &State, to: &Endpoint) {
    let now = tsc_clock::nanoseconds();
    for route in routes(state).0.iter_mut().filter(|one| one.to == *to) {
        route.pause = OFTEN;
        let is_sure = matches!(route.way, RouteState::Channel(_)) && !route.is_old(now);
        let is_put_off = matches!(route.way, RouteState::NoListener(since) if since > now);
        if !is_sure && !is_put_off && route.way != RouteState::Asked {
            route.way = RouteState::Free;
        }
    }
}

/// What is known of an address may be wrong.
pub(super) fn forgets(state: &State, to: &Endpoint) {
    let known = routes(state).0.iter_mut().filter(|one| one.way != RouteState::Asked);
    known.filter(|route| route.to == *to).for_each(|route| route.way = RouteState::Free);
}

/// In another network namespace it is not tried again for a while: a listener that refuses what it
/// should not (clocks of time namespaces may differ) is reached by TCP.
pub(super) fn leaves_alone(state: &State, to: &Endpoint) {
    let later = tsc_clock::nanoseconds() + PORT_ALLOWED_FOR;
    let known = routes(state).0.iter_mut().filter(|one| one.way != RouteState::Asked);
    for route in known.filter(|one| one.to == *to) {
        route.way = if route.is_far { RouteState::NoListener(later) } else { RouteState::Free };
    }
}

/// The broker hears that a channel is of no use. `false`: it does not hear that now.
pub(super) fn ended(name: u64) -> bool {
    say(Request::ChannelEnded { name }, &[]) || connection() == 0
}

/// The broker hears of a channel that another one has given: by which connection; `None`: there is
/// none now.
pub(super) fn still(name: u64, ends: [[u8; 16]; 2]) -> Option<u64> {
    mailbox_for(Request::ReclaimChannel { name, ends }, &[]).then(connection)
}

/// Says something, and has the answer heard. `false`: there is no broker.
pub(super) fn mailbox_for(request: Request, files: &[BorrowedFd<'_>]) -> bool {
    let is_said = say(request, files);
    if let Some(mailbox) = mailbox().filter(|_| is_said) {
        sleepers::hears_broker(mailbox);
    }
    is_said
}

/// Waits for mail, until then. `false`: there is none to be expected any more.
pub(super) fn wait(until: u64) -> bool {
    let left = until.saturating_sub(tsc_clock::nanoseconds());
    let (Some(mailbox), 1..) = (mailbox(), left) else { return false };
    let limit = Timespec { tv_sec: 0, tv_nsec: left.min(PART) as i64 };
    let mut wanted = [PollFd::new(&mailbox, PollFlags::IN)];
    matches!(poll(&mut wanted, Some(&limit)), Ok(_) | Err(Errno::INTR))
}

/// By which channel, and to what.
#[derive(Clone, Copy)]
pub(super) struct ChannelRoute {
    pub name: u64,
    /// The client's address.
    pub from: [u8; 16],
    /// What the broker calls the socket.
    pub socket: u64,
    /// How often the other end had left sockets.
    pub left: u64,
}

/// How an address is reached.
#[derive(Clone, Copy)]
pub(super) enum RouteAnswer {
    /// By a channel.
    Channel(ChannelRoute),
    /// By the kernel.
    Kernel,
    /// The same; and the broker is to see it.
    Seen,
}

/// How an address is reached. Waits for the broker if nothing is known.
pub(super) fn reach(to: Endpoint) -> RouteAnswer {
    let tag = match with(|state| known(state, to)) {
        None => return RouteAnswer::Kernel,
        Some(Known::Answer(way)) => return way,
        Some(Known::Wait(tag)) => return answer_of_another(tag),
        Some(Known::Ask(tag)) => tag,
    };
    let is_asked = source(to).ok().flatten().is_some_and(|own| {
        with(|state| goes_from(state, tag, (own, to)));
        asks(tag, (own, to))
    });
    if !is_asked {
        with(|state| answer(state, tag, no_listener()));
        return RouteAnswer::Kernel;
    }
    answer_to(tag)
}

/// Asks the broker for a channel from the one address to the other. `false`: there is no broker, or
/// it does not read now.
pub(super) fn asks(tag: u64, (own, to): (Endpoint, Endpoint)) -> bool {
    // A listener at all addresses is found by any: so the request says that the address is another
    // namespace's.
    let from = if own.leads_to(&to) { [0; 16] } else { own.address };
    mailbox_for(Request::OpenChannel { tag, address: to.address, port: to.port, from }, &[])
}

pub(super) fn goes_from(state: &State, tag: u64, (own, to): (Endpoint, Endpoint)) {
    if let Some(route) = tagged(state, tag) {
        (route.from, route.is_far) = (own.address, !own.leads_to(&to));
    }
}

/// Waits for the answer to a question.
fn answer_to(tag: u64) -> RouteAnswer {
    let (asked, mut until) = (tsc_clock::nanoseconds(), tsc_clock::nanoseconds() + ANSWER);
    loop {
        let reached = with(|state| {
            take(state);
            match tagged(state, tag) {
                Some(route) if route.way == RouteState::Asked => Err(route.is_waiting),
                Some(route) => Ok(route.leads(tsc_clock::nanoseconds())),
                // It was asked anew meanwhile.
                None => Ok(RouteAnswer::Kernel),
            }
        });
        if let Some(Err(true)) = reached {
            until = asked + BY_GATEWAY;
        }
        match reached {
            Some(Ok(reached)) => return reached,
            Some(Err(_)) if wait(until) => {}
            Some(Err(_)) => {
                with(|state| answer(state, tag, no_listener()));
                return RouteAnswer::Kernel;
            }
            None => return RouteAnswer::Kernel,
        }
    }
}

impl Route {
    /// Where it leads now that that is known. One of those that the kernel brings there is seen by
    /// the broker: where it is not known that the network does so, or not for much longer.
    fn leads(&mut self, now: u64) -> RouteAnswer {
        if now < self.full {
            return RouteAnswer::Kernel;
        }
        let is_sure = match self.way {
            RouteState::Channel(_) => !self.is_old(now),
            _ => !self.is_far,
        };
        if !is_sure && now.saturating_sub(self.tried) > self.pause {
            self.tried = now;
            self.pause = (2 * self.pause).clamp(OFTEN, PAUSE_MAX);
            return RouteAnswer::Seen;
        }
        match self.way {
            RouteState::Channel(name) if self.until == 0 || now < self.until => {
                let Route { from, socket, left, .. } = *self;
                RouteAnswer::Channel(ChannelRoute { name, from, socket, left })
            }
            _ => RouteAnswer::Kernel,
        }
    }

    /// A connection has gone there by the kernel just now, and a gateway may have heard of it: the
    /// broker's answer then waits for the gateway.
    fn may_come_soon(&self, now: u64) -> bool {
        self.is_coming && now.saturating_sub(self.tried) < ANSWER
    }

    fn is_old(&self, now: u64) -> bool {
        self.until != 0 && now + EARLY > self.until
    }
}

/// The answer to another thread's question: that thread may be about to connect to the broker. It
/// may also be this thread, interrupted.
fn answer_of_another(tag: u64) -> RouteAnswer {
    let until = tsc_clock::nanoseconds() + LONGEST;
    while mailbox().is_none() && tsc_clock::nanoseconds() < until {
        _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: CONNECTS });
    }
    answer_to(tag)
}

enum Known {
    Answer(RouteAnswer),
    /// Another thread has asked.
    Wait(u64),
    Ask(u64),
}

fn known(state: &mut State, to: Endpoint) -> Known {
    let now = tsc_clock::nanoseconds();
    let found = routes(state).0.iter_mut().find(|one| one.way != RouteState::Free && one.to == to);
    if let Some(route) = found {
        match route.way {
            RouteState::Channel(name) => {
                let is_there = state.left_by(name) == Some(route.left);
                // Another process may have been there meanwhile: that is asked first.
                let is_asked = route.tried != 0 || now < route.answered + OFTEN;
                let is_sure = !route.is_old(now) || is_asked && now < route.until;
                if is_there && is_sure && !route.is_shared {
                    return Known::Answer(route.leads(now));
                }
            }
            RouteState::Asked => return Known::Wait(route.tag),
            RouteState::NoListener(at)
                if now.saturating_sub(at) < NO_LISTENER_KEPT
                    && !route.may_come_soon(now)
                    && !route.is_shared =>
            {
                return Known::Answer(route.leads(now));
            }
            _ => {}
        }
    }
    Known::Ask(asks_anew(state, to, now))
}

/// A question is about to be asked: its tag.
pub(super) fn asks_anew(state: &mut State, to: Endpoint, now: u64) -> u64 {
    let end = state.channels_end;
    state.channels[..end]
        .iter_mut()
        .flatten()
        .for_each(|channel| channel.note_closed_listeners(now));
    let (all, latest) = routes(state);
    *latest += 1;
    let found = all.iter_mut().find(|one| one.way != RouteState::Free && one.to == to);
    if let Some(route) = found {
        (route.way, route.tag, route.tried) = (RouteState::Asked, *latest, 0);
        (route.asked, route.socket, route.is_heard) = (now, 0, true);
        (route.is_coming, route.is_waiting, route.is_shared) = (false, false, false);
        return *latest;
    }
    let place = all.iter().position(|one| one.way == RouteState::Free);
    let place = place.unwrap_or(*latest as usize % ROUTES);
    let full = all.iter().filter(|one| one.to == to).map(|one| one.full).max().unwrap_or(0);
    let (way, tag, asked, is_heard) = (RouteState::Asked, *latest, now, true);
    all[place] = Route { to, way, tag, full, asked, is_heard, ..NONE };
    *latest
}
