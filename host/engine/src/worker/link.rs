//! Serves one link of a packet thread.

use super::checked_packet::CheckedPacket;
use super::pending_work::WorkLeft;
use super::timers::{Alarm, Due, Timers};
use crate::command::{LimitUnit, PerUnit, QpCounters};
use crate::pages::link_grants::Connected;
use omniverb_datapath::missed_doorbell_poll::Recheck;
use omniverb_datapath::pacing::unreliable_message_window::PacketRoute;
use omniverb_datapath::packet_train::Train;
use omniverb_datapath::queue_pair::datagram::Datagrams;
use omniverb_sys::futex;
use omniverb_terms::{Operations, Qpn, Service, VnicId};
use omniverb_transport::{Counters, Ecn, OperationPermit, Status};
use omniverb_wire::{IcrcFlow, WriteRun};
use std::net::IpAddr;

/// Budget: threads of an application that are woken from naps on one link at once. One naps as a
/// rule; how many a hostile one has is not for us to go through.
const NAPPERS: u32 = 8;
/// How long an acknowledgement waits for the application's answer, in nanoseconds, or for one turn
/// of the application, where it has to share our processor: less than a system call takes.
const HOLD_MAX: u64 = 2_000;

/// Why a link is to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// Something has happened.
    News,
    /// Time has passed; nothing is known to have happened.
    Look,
}

/// The far end of a link.
pub(super) enum Kind {
    /// An RC or UC queue pair.
    Connected(Box<Connected>),
    /// A UD queue pair, and one of its destinations.
    Datagrams(Box<Datagrams>),
}

/// The ends of a link. They never change.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub(super) vnic: VnicId,
    /// The application's QP.
    pub(super) qpn: Qpn,
    /// The QP at the other side of the network.
    pub(super) peer_qpn: Qpn,
    pub(super) service: Service,
    /// From us to the peer.
    pub(super) flow: IcrcFlow,
    /// The interface that packets leave by, if the peer is link-local; otherwise 0.
    pub(super) interface: u32,
    /// The peer's vNIC, if it is one of this engine.
    pub(super) within: Option<VnicId>,
}

/// A link whose far end is the engine, with what its thread has to remember of it between turns.
pub(super) struct Link {
    ends: Ends,
    kind: Kind,
    /// The number of its doorbell, and its bit there.
    bell: (u64, u32),
    /// The UDP port that its peer's packets go to.
    peer_port: u16,
    alarm: Alarm,
    /// It is in the list of those to be served.
    queued: bool,
    /// It waits for a limit of its vNIC.
    parked: PerUnit<bool>,
    /// Its acknowledgement has been waiting for company since then.
    waiting_since: Option<u64>,
    /// When it is looked at again if it waits for its application.
    recheck: Recheck,
    /// Packets and bytes; the rest is the transport's to count.
    counted: QpCounters,
}

/// The result of serving a link.
pub(super) struct Served {
    pub(super) left: WorkLeft,
    /// It takes packets, from now on.
    pub(super) is_new: bool,
}

impl Link {
    pub(super) fn new(ends: Ends, kind: Kind, bell: (u64, u32), peer_port: u16) -> Link {
        Link {
            ends,
            kind,
            bell,
            peer_port,
            alarm: Alarm::default(),
            queued: false,
            parked: PerUnit::default(),
            waiting_since: None,
            recheck: Recheck::default(),
            counted: QpCounters::default(),
        }
    }

    pub(super) fn ends(&self) -> &Ends {
        &self.ends
    }

    /// The number of its doorbell, and its bit there.
    pub(super) fn bell(&self) -> (u64, u32) {
        self.bell
    }

    /// The UDP port that its peer's packets go to.
    pub(super) fn peer_port(&self) -> u16 {
        self.peer_port
    }

    /// They go to this one from now on.
    pub(super) fn set_peer_port(&mut self, port: u16) {
        self.peer_port = port;
    }

    /// Its queue pair, if it is RC or UC.
    pub(super) fn connected_mut(&mut self) -> Option<&mut Connected> {
        match &mut self.kind {
            Kind::Connected(connected) => Some(connected),
            Kind::Datagrams(_) => None,
        }
    }

    /// Its application may not ask the peer for these.
    pub(super) fn refuse(&mut self, refused: Operations) {
        match &mut self.kind {
            Kind::Connected(connected) => connected.application.refuse(refused),
            Kind::Datagrams(datagrams) => datagrams.refuse(refused),
        }
    }

    /// Whether it takes packets.
    pub(super) fn is_ready(&self) -> bool {
        match &self.kind {
            Kind::Connected(connected) => connected.is_ready(),
            Kind::Datagrams(_) => true,
        }
    }

    /// Notes that it is to be served. True: it is not on the list yet.
    pub(super) fn is_wanted(&mut self, reason: Reason) -> bool {
        if reason == Reason::News {
            self.recheck.news();
        }
        !std::mem::replace(&mut self.queued, true)
    }

    /// Whether it is on the list.
    pub(super) fn is_queued(&self) -> bool {
        self.queued
    }

    /// It is not on the list any more.
    pub(super) fn begin(&mut self) {
        self.queued = false;
    }

    /// Notes that it waits for a limit of its vNIC. True: it did not yet.
    pub(super) fn park(&mut self, unit: LimitUnit) -> bool {
        !std::mem::replace(self.parked.of(unit), true)
    }

    /// It waits no more.
    pub(super) fn unpark(&mut self, unit: LimitUnit) {
        *self.parked.of(unit) = false;
    }

    /// Whether its application's next operation may begin; `None`: it can send none.
    pub(super) fn operations(&mut self) -> Option<&mut OperationPermit> {
        match &mut self.kind {
            Kind::Connected(connected) => connected.operations(),
            Kind::Datagrams(datagrams) => Some(datagrams.operations()),
        }
    }

    /// Takes what its application did.
    pub(super) fn serve(&mut self, now: u64) -> Served {
        match &mut self.kind {
            Kind::Connected(connected) => {
                let was_ready = connected.is_ready();
                let left = WorkLeft::if_more(connected.serve(now));
                Served { left, is_new: !was_ready && connected.is_ready() }
            }
            Kind::Datagrams(datagrams) => {
                datagrams.serve(now);
                Served { left: WorkLeft::Nothing, is_new: false }
            }
        }
    }

    /// Tells its application what became of its requests; why the connection failed, once.
    pub(super) fn settle(&mut self) -> Option<Status> {
        let connected = self.connected_mut()?;
        connected.after();
        connected.take_failure()
    }

    /// Packets from now on take this route.
    pub(super) fn take_way(&mut self, way: PacketRoute) {
        match &mut self.kind {
            Kind::Connected(connected) => connected.take_way(way),
            Kind::Datagrams(datagrams) => datagrams.take_way(way),
        }
    }

    /// Writes its next packet to the end of a train. `message`: memory for a datagram's message.
    pub(super) fn transmit(
        &mut self,
        now: u64,
        train: &mut Train,
        message: &mut Vec<u8>,
    ) -> Option<usize> {
        let length = match &mut self.kind {
            Kind::Connected(connected) => connected.transmit(now, train.tail()),
            Kind::Datagrams(datagrams) => datagrams.transmit(now, train.tail(), message),
        }?;
        self.count_sent(1, length);
        Some(length)
    }

    /// Adds up to `most` packets to a train that are like its last one, of `length` bytes, as far
    /// as `count_max` packets in all allow. How many.
    pub(super) fn transmit_alike(
        &mut self,
        now: u64,
        train: &mut Train,
        length: usize,
        (most, count_max): (usize, usize),
    ) -> usize {
        let Kind::Connected(connected) = &mut self.kind else { return 0 };
        let (datagrams, room) = train.behind(count_max);
        let alike = connected.transmit_alike(now, datagrams, length, room.min(most));
        train.extend(alike);
        self.count_sent(alike, length);
        alike
    }

    /// Writes a packet to the end of a train that tells the peer that nothing can leave for `wait`,
    /// if it should know.
    pub(super) fn delay(&mut self, now: u64, wait: u64, train: &mut Train) -> Option<usize> {
        let length = self.connected_mut()?.delay(now, wait, train.tail())?;
        self.count_sent(1, length);
        Some(length)
    }

    fn count_sent(&mut self, packets: usize, length: usize) {
        self.counted.sent_packets += packets as u64;
        self.counted.sent_bytes += (packets * length) as u64;
    }

    /// Packets that were to be sent could not be.
    pub(super) fn count_unsent(&mut self, packets: usize) {
        self.counted.unsent_packets += packets as u64;
    }

    /// A packet for this link.
    pub(super) fn take(&mut self, checked: &CheckedPacket<'_>) {
        self.take_marked(checked, checked.ecn);
    }

    /// A notification about what this link sends. The mark that it came with itself says nothing of
    /// the way there.
    pub(super) fn notify(&mut self, checked: &CheckedPacket<'_>) {
        self.take_marked(checked, Ecn::Unmarked);
    }

    fn take_marked(&mut self, checked: &CheckedPacket<'_>, ecn: Ecn) {
        self.counted.received_packets += 1;
        self.counted.received_bytes += checked.datagram.len() as u64;
        match &mut self.kind {
            Kind::Connected(connected) => connected.packet(checked.now, &checked.packet, ecn),
            Kind::Datagrams(datagrams) => datagrams.packet(checked.now, &checked.packet),
        }
    }

    /// A packet to the group that its queue pair is attached to by it.
    /// `sender`: the address that programs know it by, and its QPN.
    pub(super) fn take_copy(
        &mut self,
        checked: &CheckedPacket<'_>,
        sender: (IpAddr, Qpn),
        group: IpAddr,
    ) {
        self.counted.received_packets += 1;
        self.counted.received_bytes += checked.datagram.len() as u64;
        if let Kind::Datagrams(datagrams) = &mut self.kind {
            datagrams.copy(checked.now, &checked.packet, sender, group);
        }
    }

    /// Packets for this link that follow each other. False: they have to come one by one.
    pub(super) fn take_run(&mut self, run: &WriteRun<'_>, now: u64) -> bool {
        let Kind::Connected(connected) = &mut self.kind else { return false };
        let taken = connected.take_run(now, run);
        if taken {
            self.counted.received_packets += run.count() as u64;
            self.counted.received_bytes += run.datagrams().map(|one| one.len() as u64).sum::<u64>();
        }
        taken
    }

    /// Its alarm went off.
    pub(super) fn timeout(&mut self, now: u64) {
        self.alarm.went_off();
        match &mut self.kind {
            Kind::Connected(connected) => connected.timeout(now),
            Kind::Datagrams(datagrams) => datagrams.timeout(now),
        }
    }

    /// Drops what it keeps while its vNIC keeps more than it may.
    pub(super) fn give_way(&mut self) {
        match &mut self.kind {
            Kind::Connected(connected) => connected.application.give_way(),
            Kind::Datagrams(datagrams) => datagrams.give_way(),
        }
    }

    /// Has its alarm go off when it wants to be looked at.
    pub(super) fn set_alarm(&mut self, index: usize, timers: &mut Timers, now: u64) {
        let rings_since = match &mut self.kind {
            Kind::Connected(connected) => connected.take_rings_since(),
            Kind::Datagrams(datagrams) => datagrams.take_rings_since(),
        };
        if rings_since {
            self.recheck.news();
        }
        self.recheck.served(now);
        let next = self.next_timeout();
        self.alarm.set(timers, Due::Link(index), next);
    }

    pub(super) fn counters(&self) -> QpCounters {
        let reliable = match &self.kind {
            Kind::Connected(connected) => connected.numbers(),
            Kind::Datagrams(_) => Counters::default(),
        };
        let (mapped_operations, in_place) = match &self.kind {
            Kind::Connected(connected) => {
                (connected.application.mapped(), connected.application.taken_in_place())
            }
            Kind::Datagrams(_) => (0, 0),
        };
        QpCounters {
            resent_packets: reliable.resent,
            duplicate_packets: reliable.duplicates,
            out_of_order: reliable.out_of_order,
            not_ready_heard: reliable.not_ready_heard,
            not_ready_said: reliable.not_ready_said,
            gaps_heard: reliable.gaps_heard,
            retries: reliable.retries,
            window: reliable.window,
            mapped_operations,
            in_place,
            ..self.counted
        }
    }

    /// Whether something waits for the application.
    fn waits(&self) -> bool {
        match &self.kind {
            Kind::Connected(connected) => connected.waits(),
            Kind::Datagrams(datagrams) => datagrams.waits(),
        }
    }

    /// When it wants to be looked at.
    fn next_timeout(&self) -> Option<u64> {
        let own = match &self.kind {
            Kind::Connected(connected) => connected.next_timeout(),
            Kind::Datagrams(datagrams) => datagrams.next_timeout(),
        };
        let again = self.recheck.due().filter(|_| self.waits());
        own.into_iter().chain(again).min()
    }

    /// Whether to let the application answer before an acknowledgement leaves, so that both are one
    /// system call: a short message came, alone, and a short time ago.
    pub(super) fn waits_for_company(&mut self, now: u64) -> bool {
        let may = match &mut self.kind {
            Kind::Connected(connected) => connected.may_wait(),
            Kind::Datagrams(_) => false,
        };
        let since = *self.waiting_since.get_or_insert(now);
        let waits = may && now.saturating_sub(since) < HOLD_MAX;
        if !waits {
            self.waiting_since = None;
        }
        waits
    }

    /// Whether its application sleeps, and waits for what has happened by now.
    pub(super) fn nap_is_over(&mut self) -> bool {
        match &mut self.kind {
            Kind::Connected(connected) => connected.application.nap_is_over(),
            Kind::Datagrams(_) => false,
        }
    }

    /// Wakes the threads of its application that nap on this link.
    pub(super) fn wake_napping(&mut self) {
        if let Kind::Connected(connected) = &mut self.kind {
            futex::wake(connected.application.answer_nap(), NAPPERS);
        }
    }

    /// Its application is going.
    pub(super) fn leave(&mut self, now: u64) {
        match &mut self.kind {
            Kind::Connected(connected) => connected.leave(now),
            Kind::Datagrams(datagrams) => datagrams.leave(),
        }
    }

    /// Nothing is taken or sent any more.
    pub(super) fn close(&mut self, index: usize, timers: &mut Timers) {
        self.alarm.cancel(timers, Due::Link(index));
        match &mut self.kind {
            Kind::Connected(connected) => connected.close(),
            Kind::Datagrams(datagrams) => datagrams.close(),
        }
    }
}
