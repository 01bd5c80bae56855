//! Holds a packet thread's state, and runs one iteration of its loop.

mod apply_commands;
mod attach;
mod encryption;
mod fault_injection;
mod incoming_packets;
mod management_datagrams;
mod page_grant_requests;
pub(super) mod receive_datagrams;
mod serve_link;
#[cfg(test)]
mod tests;

use super::doorbells::Bells;
use super::link::Reason;
use super::links::Links;
use super::pending_work::WorkLeft;
use super::processor_yield::Yielding;
use super::rate_limit_tree::RateLimits;
use super::shared_counters::Showing;
use super::timers::{Due, Timers};
use super::vnics::Vnics;
use crate::command::{Grant, PerUnit};
use crate::event_outbox::Outbox;
use crate::kept_memory_limits::Store;
use crate::network::local_forwarding::Passages;
use crate::network::pending_probes::Questions;
use crate::pages::mapped_memory_budget::Mappings;
use crate::pages::pinned_guest_page_mappings::Rows;
use crate::pages::shared_extent_mappings::SharedMappings;
use omniverb_datapath::link_clock::{LinkClock, Now};
use omniverb_datapath::packet_train::Train;
use omniverb_sys::{EventFd, clock};
use std::io;

/// Budget: links served between two looks at sockets and timers.
const LINKS_PER_TURN: usize = 32;

/// Its parts, each of which keeps its own order.
pub(super) struct State {
    outbox: Outbox,
    /// Bits of [`omniverb_datapath::peer_features`] that other Omniverbs are told of.
    features: u32,
    /// Questions of ours, of which answers are heard first.
    questions: Questions,
    showing: Showing,
    bells: Bells,
    yielding: Yielding,
    vnics: Vnics,
    links: Links,
    /// Rate limits of vNICs.
    limits: PerUnit<RateLimits>,
    /// Alarms of links, by their time.
    timers: Timers,
    /// Alarms of vNICs, by the clock.
    clocked: Timers,
    link_clock: LinkClock,
    /// So many turns there were: tells what belongs to the present one.
    turns: u64,
    /// Packets of links of ours to links of ours.
    passages: Passages,
    /// Packets to send; in use while a link is served.
    train: Option<Train>,
    /// A message of a datagram while a packet is made of it.
    message: Vec<u8>,
    /// Memory kept for all vNICs of the host.
    store: Store,
    /// How often a holder was made to yield by the last check.
    asked: u64,
    /// Mappings of this thread's links.
    together: SharedMappings,
    /// Rows that are being mapped, with the grants that wait for them.
    rows: Rows<Box<Grant>>,
}

impl State {
    pub(super) fn new(
        outbox: Outbox,
        showing: Showing,
        store: Store,
        mappings: Mappings,
        (questions, features): (Questions, u32),
    ) -> io::Result<State> {
        Ok(State {
            outbox,
            features,
            questions,
            showing,
            bells: Bells::new()?,
            yielding: Yielding::default(),
            vnics: Vnics::default(),
            links: Links::default(),
            limits: PerUnit::default(),
            timers: Timers::default(),
            clocked: Timers::default(),
            link_clock: LinkClock::new(clock::now()),
            turns: 0,
            passages: Passages::default(),
            train: Some(Train::new()),
            message: Vec::new(),
            asked: store.asked(),
            store,
            together: SharedMappings::new(mappings),
            rows: Rows::default(),
        })
    }

    /// One turn. [`WorkLeft::Something`] also if it had something to do: then more may follow at
    /// once.
    pub(super) fn turn(&mut self, now: Now) -> WorkLeft {
        self.turns = self.turns.wrapping_add(1);
        self.give_way_to_small(now.clock);
        let mut busy = self.hear_bells();
        busy |= self.time_passes(now);
        busy |= self.serve_limited(now.clock);
        busy |= self.serve_links();
        busy |= self.map_some();
        self.wake_applications();
        busy |= self.let_answer();
        WorkLeft::if_more(busy || self.links.waiting() > 0 || self.link_clock.is_behind())
    }

    /// The time, by the clock and for links.
    pub(super) fn now(&mut self) -> Now {
        self.link_clock.look(clock::now())
    }

    /// The sockets were looked at, and this is what is left in them.
    pub(super) fn has_read(&mut self, left: WorkLeft) {
        match left {
            WorkLeft::Something => self.link_clock.has_read(),
            WorkLeft::Nothing => self.link_clock.is_back(),
        }
    }

    /// Links whose applications did something are to be served.
    fn hear_bells(&mut self) -> bool {
        let State { bells, links, .. } = self;
        let before = links.waiting();
        bells.take_news(|index| links.touch(index, Reason::News));
        links.waiting() > before
    }

    /// Alarms go off.
    fn time_passes(&mut self, now: Now) -> bool {
        let mut any = false;
        // Packets that links wait for may lie in the sockets.
        let behind = self.link_clock.is_behind();
        if !behind {
            self.link_clock.is_back();
        }
        loop {
            let due = self.clocked.next(now.clock);
            let of_links = || if behind { None } else { self.timers.next(now.links) };
            let Some(due) = due.or_else(of_links) else { break };
            any = true;
            match due {
                Due::Link(index) => {
                    if let Some(link) = self.links.get_mut(index) {
                        link.timeout(now.links);
                    }
                    self.links.touch(index, Reason::Look);
                }
                Due::Faults(vnic) => {
                    if let Some(fault_queue) = self.vnics.detour_mut(vnic) {
                        fault_queue.alarm_went_off();
                    }
                    self.delayed(vnic);
                }
                Due::Tunnel(id) => self.tunnel_alarm_went_off(id),
                Due::Early(id) => {
                    let Some(vnic) = self.vnics.get_mut(id) else { continue };
                    vnic.early_alarm_went_off(id, &mut self.clocked, now.clock);
                }
            }
        }
        any
    }

    /// vNICs that are the largest holders of what is kept drop some of it where too little is left.
    fn give_way_to_small(&mut self, now: u64) {
        self.store.look(now);
        let asked = self.store.asked();
        if std::mem::replace(&mut self.asked, asked) == asked {
            return;
        }
        for id in self.vnics.over() {
            let Some(vnic) = self.vnics.get_mut(id) else { continue };
            vnic.give_way();
            let kept = vnic.allowance.kept.clone();
            for index in self.links.of_vnic(id) {
                if !kept.is_over() {
                    break;
                }
                if let Some(link) = self.links.get_mut(index) {
                    link.give_way();
                }
            }
        }
    }

    /// Serves links that are to be served, as many as a turn allows.
    fn serve_links(&mut self) -> bool {
        let mut any = false;
        for _ in 0..LINKS_PER_TURN.min(self.links.waiting()) {
            let Some(index) = self.links.next() else { break };
            any = true;
            self.serve(index);
            self.deliver_passages();
        }
        if any {
            self.show_counters_again();
        }
        any
    }

    /// Wakes applications that were given something in this turn.
    fn wake_applications(&mut self) {
        self.bells.ring();
        self.links.wake();
    }

    /// Lets applications answer what they were given before it is acknowledged.
    fn let_answer(&mut self) -> bool {
        let some = self.links.some_acknowledge_later();
        if some {
            self.give_way();
            self.links.acknowledge_now();
        }
        some
    }

    /// Yields the processor to threads that this one may wait for. False: not now.
    pub(super) fn give_way(&mut self) -> bool {
        self.yielding.give_way()
    }

    /// Shows what was counted, if that was done last long ago.
    fn show_counters_again(&mut self) {
        if self.showing.is_due() {
            self.show_counters();
        }
    }

    /// Shows what was counted.
    fn show_counters(&mut self) {
        let State { showing, links, vnics, .. } = self;
        let links = links.take_served().map(|link| {
            let ends = link.ends();
            ((ends.qpn, ends.peer_qpn), link.counters())
        });
        showing.show(links, vnics.detours().map(|(id, fault_queue)| (id, fault_queue.done())));
    }

    /// The thread is about to sleep. `quiet`: how often it found nothing to do since the last news.
    pub(super) fn prepare_to_sleep(&mut self, quiet: u32) {
        self.bells.want_kicks();
        if quiet >= 2 {
            self.show_counters();
        } else {
            self.show_counters_again();
        }
    }

    /// Readable when one of them did so while we slept.
    pub(super) fn rung(&self) -> &EventFd {
        self.bells.rung()
    }

    /// Whether an application rang that has not been polled.
    pub(super) fn has_news(&self) -> bool {
        self.bells.have_news()
    }

    /// Whether there is an application that may do something.
    pub(super) fn has_bells(&self) -> bool {
        !self.bells.is_empty()
    }

    /// When the next alarm goes off, by the clock.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        let of_links = self.timers.first().map(|time| self.link_clock.clock_at(time));
        let PerUnit { bytes, operations } = &self.limits;
        let of_limits = [bytes.next_at(), operations.next_at()].into_iter().flatten();
        let of_limits = of_limits.map(|at| at.max(1));
        self.clocked.first().into_iter().chain(of_links).chain(of_limits).min()
    }

    /// The thread sleeps, until then if nothing happens.
    pub(super) fn sleeps(&mut self, until: Option<u64>) {
        self.link_clock.sleeps(until);
    }
}
