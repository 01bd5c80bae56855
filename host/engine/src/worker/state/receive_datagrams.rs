//! Receives trains of datagrams from sockets.

use super::State;
use crate::network::roce_port::{Arrival, Buffers};
use crate::worker::checked_packet::CheckedPacket;
use crate::worker::link::Reason;
use crate::worker::pending_work::WorkLeft;
use crate::worker::thread_sleep::PSP_SOCKET;
use crate::worker::vnic_psp_tunnel::Decrypted;
use omniverb_datapath::train_numbering::Numbering;
use omniverb_terms::{Service, VnicId};
use omniverb_transport::Ecn;
use omniverb_wire::{Opcode, Operation, Packet, PreparedIcrc, WriteRun};

/// Buffers for receiving, for all sockets of a thread.
pub(in crate::worker) struct Receiving {
    buffers: Buffers,
    /// For packets as those that arrived last.
    prepared: Option<PreparedIcrc>,
    /// Packets that were encrypted.
    decrypted: Decrypted,
    /// Nothing will come any more out of what was looked at last.
    over: bool,
}

impl Receiving {
    pub(in crate::worker) fn new() -> Receiving {
        let decrypted = Decrypted::default();
        Receiving { buffers: Buffers::new(), prepared: None, decrypted, over: false }
    }

    /// Whether nothing will come any more out of the socket that was looked at last.
    pub(in crate::worker) fn take_over(&mut self) -> bool {
        std::mem::take(&mut self.over)
    }

    /// A socket of a vNIC's PSP port has something.
    fn receive_encrypted(&mut self, state: &mut State, vnic: VnicId, socket: usize) -> WorkLeft {
        let Some(home) = state.vnics.get(vnic) else { return WorkLeft::Nothing };
        let Some(sockets) = home.tunnel.as_ref().and_then(|tunnel| tunnel.sockets().cloned())
        else {
            return WorkLeft::Nothing;
        };
        let fault_queue = home.fault_queue.is_some();
        let now = state.now().links;
        let Receiving { buffers, prepared, decrypted, .. } = self;
        let more = sockets.receive_in_place(socket, buffers, |arrival, train, stride| {
            state.decrypt(vnic, arrival, (train, stride), decrypted);
            for (source_port, train, stride) in decrypted.trains() {
                let mut arrival = *arrival;
                arrival.flow.source_port = source_port;
                let train = (train, stride);
                take_train(state, vnic, &arrival, train, fault_queue, prepared, now);
            }
        });
        if fault_queue {
            state.delayed(vnic);
        }
        WorkLeft::if_more(more)
    }

    /// A socket of a vNIC is ready. The poller reports it again if it is not empty.
    pub(in crate::worker) fn receive(
        &mut self,
        state: &mut State,
        vnic: VnicId,
        socket: usize,
    ) -> WorkLeft {
        if socket >= PSP_SOCKET {
            return self.receive_encrypted(state, vnic, socket - PSP_SOCKET);
        }
        let Some(home) = state.vnics.get(vnic) else { return WorkLeft::Nothing };
        let encrypted = home.tunnel.is_some();
        let (sockets, fault_queue) = (home.sockets.clone(), home.fault_queue.is_some());
        let now = state.now().links;
        let Receiving { buffers, prepared, over, .. } = self;
        let more = sockets.receive(socket, buffers, |arrival, train, stride| {
            if encrypted {
                return state.plain_arrived(vnic, arrival, train, stride);
            }
            take_train(state, vnic, arrival, (train, stride), fault_queue, prepared, now);
        });
        *over = sockets.is_over();
        if fault_queue {
            state.delayed(vnic);
        }
        WorkLeft::if_more(more)
    }
}

/// Takes a train of datagrams that came out of a socket, or that were decrypted.
fn take_train(
    state: &mut State,
    vnic: VnicId,
    arrival: &Arrival,
    (mut train, stride): (&[u8], usize),
    fault_queue: bool,
    prepared: &mut Option<PreparedIcrc>,
    now: u64,
) {
    // An acknowledgement that travelled with what answers it is heard first.
    let last = (train.len().max(1) - 1) / stride * stride;
    if last > 0 && acknowledges(&train[last..]) {
        let (before, acknowledgement) = train.split_at(last);
        let none = &mut Numbering::new(None);
        match fault_queue {
            true => state.fault_queue(vnic, arrival, acknowledgement),
            false => state.arrived(vnic, arrival, acknowledgement, none, now),
        }
        train = before;
    }
    if fault_queue {
        return train.chunks(stride).for_each(|one| state.fault_queue(vnic, arrival, one));
    }
    let mut ids = Numbering::new(*prepared);
    while !train.is_empty() {
        let together = arrived_together(state, vnic, arrival, train, stride, &mut ids, now);
        if together == 0 {
            let one = &train[..stride.min(train.len())];
            state.arrived(vnic, arrival, one, &mut ids, now);
        }
        train = &train[(together.max(1) * stride).min(train.len())..];
    }
    *prepared = ids.prepared;
}

/// Whether a datagram says that it is an acknowledgement.
fn acknowledges(datagram: &[u8]) -> bool {
    let opcode = Opcode::new(Service::Rc, Operation::Acknowledge);
    datagram.first() == Some(&opcode.to_byte())
}

/// Takes the run that a train begins with. So many datagrams of it were taken.
fn arrived_together(
    state: &mut State,
    vnic: VnicId,
    arrival: &Arrival,
    train: &[u8],
    stride: usize,
    ids: &mut Numbering,
    now: u64,
) -> usize {
    // Packets that are reported or captured one by one.
    let watched = state.vnics.get(vnic).is_none_or(|home| home.capture.is_on());
    if watched || arrival.ecn == Ecn::CongestionExperienced || arrival.identification.is_some() {
        return 0;
    }
    let Some(run) = WriteRun::of(train, stride) else { return 0 };
    let Some(index) = run.packet().and_then(|p| state.links.connected(p.bth().destination()))
    else {
        return 0;
    };
    let Some(link) = state.links.get_mut(index) else { return 0 };
    if link.ends().vnic != vnic || link.ends().flow.destination != arrival.flow.source {
        return 0;
    }
    let sound = run.datagrams().take_while(|one| ids.sound(&arrival.flow, one)).count();
    // The one that ended it is damaged, and dropped.
    let looked_at = (sound + 1).min(run.count());
    if let Some(run) = run.first(sound)
        && link.take_run(&run, now)
    {
        state.links.touch(index, Reason::News);
        return looked_at;
    }
    let sound = run.datagrams().take(sound);
    for (packet, one) in sound.filter_map(|one| Some((Packet::parse(one).ok()?, one))) {
        state.dispatch(vnic, &CheckedPacket::new(packet, one, arrival, now));
    }
    looked_at
}
