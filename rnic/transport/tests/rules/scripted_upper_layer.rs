//! A layer above that does what it is told and writes down what happens, and packets by hand.

use omniverb_terms::{Psn, Qpn, Rkey};
use omniverb_transport::{
    AtomicOperation, AtomicRequest, Config, Connection, Delivery, Ecn, Event, FetchOutcome,
    FlushRequest, GatherOutcome, Kind, Operation, Part, PlaceOutcome, ReadRequest, Request,
    RequestId, RunOutcome, Status, Ticket, Time, UpperLayer,
};
use omniverb_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Builder, CREDITS_INVALID, DATAGRAM_MAX, Feth, ImmDt,
    Opcode, Packet, PacketPosition, Reth, Syndrome, WriteRun, XrcEth,
};
use std::collections::VecDeque;

pub const MTU: usize = 256;
pub const ME: Qpn = Qpn(0x11);
pub const PEER: Qpn = Qpn(0x22);

/// The layer above.
#[derive(Default)]
pub struct ScriptedUpperLayer {
    /// Answers to what is handed over, in order; "done" when there is none left.
    pub answers: VecDeque<Delivery>,
    /// Answers to [`UpperLayer::gather`].
    pub gathers: VecDeque<GatherOutcome>,
    /// Answers to [`UpperLayer::fetch`].
    pub fetches: VecDeque<FetchOutcome>,
    pub placements: VecDeque<PlaceOutcome>,
    pub log: Vec<String>,
    pub tickets: Vec<Ticket>,
    pub counter: u64,
    pub released: Vec<Ticket>,
    pub places_runs: bool,
    /// The SRQs that what was handed over is for.
    pub srqs: Vec<u32>,
}

impl ScriptedUpperLayer {
    fn answer(&mut self, ticket: Ticket) -> Delivery {
        self.tickets.push(ticket);
        self.answers.pop_front().unwrap_or(Delivery::Done)
    }
    /// What happened since the last call.
    pub fn take_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }
}

impl UpperLayer for ScriptedUpperLayer {
    fn gather(&mut self, request: RequestId, offset: u64, target: &mut [u8]) -> GatherOutcome {
        for (at, target) in (offset..).zip(target) {
            *target = (request.0 + at) as u8;
        }
        self.gathers.pop_front().unwrap_or(GatherOutcome::Filled)
    }
    fn place(&mut self, request: RequestId, offset: u64, data: &[u8]) -> PlaceOutcome {
        self.log.push(format!("place {} {offset}+{}", request.0, data.len()));
        self.placements.pop_front().unwrap_or(PlaceOutcome::Done)
    }
    fn deliver(&mut self, ticket: Ticket, part: &Part<'_>) -> Delivery {
        let kind = match part.kind {
            Kind::Send => "send".to_string(),
            Kind::Write { address, key, total } => format!("write {address:x} {:x} {total}", key.0),
        };
        self.srqs.push(part.srq);
        self.log.push(format!("{kind} {:?} {}+{}", part.place, part.offset, part.data.len()));
        self.answer(ticket)
    }
    fn deliver_run(&mut self, part: &Part<'_>, run: &WriteRun<'_>) -> RunOutcome {
        if self.places_runs {
            let lengths: Vec<usize> = run.payloads().map(<[u8]>::len).collect();
            self.log.push(format!("run {:?} {}+{lengths:?}", part.place, part.offset));
            return RunOutcome::All;
        }
        RunOutcome::Nothing
    }
    fn read(&mut self, ticket: Ticket, request: &ReadRequest) -> Delivery {
        self.srqs.push(request.srq);
        self.log.push(format!("read {:x} {:x} {}", request.address, request.key.0, request.length));
        self.answer(ticket)
    }
    fn fetch(&mut self, _: Ticket, offset: u64, target: &mut [u8]) -> FetchOutcome {
        target.fill(offset as u8);
        self.fetches.pop_front().unwrap_or(FetchOutcome::Filled)
    }
    fn release(&mut self, ticket: Ticket) {
        self.released.push(ticket);
    }
    fn atomic(&mut self, ticket: Ticket, request: &AtomicRequest) -> Result<u64, Delivery> {
        self.srqs.push(request.srq);
        self.log.push(format!("atomic {:x}", request.address));
        match self.answer(ticket) {
            Delivery::Done => {
                let original = self.counter;
                match request.operation {
                    AtomicOperation::FetchAdd { add } => self.counter += add,
                    AtomicOperation::Write { value } => self.counter = u64::from_ne_bytes(value),
                    AtomicOperation::CompareSwap { .. } => {}
                }
                Ok(original)
            }
            other => Err(other),
        }
    }
    fn flush(&mut self, ticket: Ticket, request: &FlushRequest) -> Result<u64, Delivery> {
        self.log.push(format!("flush {:x} {}", request.address, request.length));
        match self.answer(ticket) {
            Delivery::Done => Ok(0),
            other => Err(other),
        }
    }
}

/// One end, whose peer is the test.
pub struct End {
    pub connection: Connection,
    pub script: ScriptedUpperLayer,
    pub now: Time,
}

pub fn config() -> Config {
    Config { path_mtu: MTU, sq_psn: Psn::new(1000), rq_psn: Psn::new(500), ..Config::new(PEER) }
}

pub fn end() -> End {
    End::new(config())
}

impl End {
    pub fn new(config: Config) -> End {
        let connection = Connection::new(config).unwrap();
        End { connection, script: ScriptedUpperLayer::default(), now: 1_000_000 }
    }

    /// A packet arrives.
    pub fn receive(&mut self, packet: &HandmadePacket) {
        self.receive_marked(packet, Ecn::Unmarked);
    }

    pub fn receive_marked(&mut self, packet: &HandmadePacket, ecn: Ecn) {
        let packet = Packet::parse(&packet.0).unwrap();
        self.connection.handle_packet(self.now, &packet, ecn, &mut self.script);
    }

    /// A train arrives. True: as a run.
    pub fn receive_run(&mut self, packets: &[HandmadePacket]) -> bool {
        let train: Vec<u8> = packets.iter().flat_map(|packet| packet.0.clone()).collect();
        let run = WriteRun::of(&train, packets[0].0.len()).expect("a run");
        assert_eq!(run.count(), packets.len());
        self.connection.handle_run(&run, &mut self.script) == RunOutcome::All
    }

    /// All packets it sends now, each as a [`line`].
    pub fn sent(&mut self) -> Vec<String> {
        let mut datagram = [0; DATAGRAM_MAX];
        let mut list = Vec::new();
        while let Some(sent) =
            self.connection.poll_transmit(self.now, &mut datagram, &mut self.script)
        {
            let packet = Packet::parse(&datagram[..sent.length]).unwrap();
            list.push(line(&packet));
            assert!(list.len() < 1000);
        }
        list
    }

    /// Time passes until the next timer; returns how much.
    pub fn wait(&mut self) -> Time {
        let time = self.connection.poll_timeout().expect("a timer runs").max(self.now);
        let passed = time - self.now;
        self.now = time;
        self.connection.handle_timeout(time);
        passed
    }

    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.connection.poll_event()).collect()
    }

    /// Statuses of what is over.
    pub fn statuses(&mut self) -> Vec<(u64, Status)> {
        let completed = |event| match event {
            Event::Completed { id, status, .. } => Some((id.0, status)),
            _ => None,
        };
        self.events().into_iter().filter_map(completed).collect()
    }

    pub fn submit(&mut self, id: u64, operation: Operation, length: u64) {
        let id = RequestId(id);
        let request = Request {
            id,
            operation,
            srq: 0,
            length,
            place: PacketPosition::Only,
            is_fenced: false,
        };
        self.connection.submit(request).unwrap();
    }
}

pub const SEND: Operation = Operation::Send { immediate: None, invalidate: None, solicited: false };
pub const READ: Operation = Operation::Read { address: 0x1000, key: Rkey(7) };
pub const ADD: Operation = Operation::FetchAdd { address: 0x2000, key: Rkey(7), add: 1 };

/// A packet as it prints itself, but for the QP that all are for.
pub fn line(packet: &Packet<'_>) -> String {
    assert_eq!(packet.bth().destination(), PEER);
    packet.to_string().replace(" qpn 0x22", "")
}

/// Opcodes (9.2.1, table 38).
macro_rules! opcodes {
    ($($name:ident $code:literal)*) => { $(pub const $name: u8 = $code;)* };
}

opcodes! {
    SEND_FIRST 0x00 SEND_MIDDLE 0x01 SEND_LAST 0x02 SEND_ONLY 0x04
    WRITE_FIRST 0x06 WRITE_LAST 0x08 WRITE_LAST_IMM 0x09 WRITE_ONLY 0x0a
    READ_REQUEST 0x0c READ_RESPONSE_FIRST 0x0d READ_RESPONSE_MIDDLE 0x0e READ_RESPONSE_LAST 0x0f
    READ_RESPONSE_ONLY 0x10 ACKNOWLEDGE 0x11 ATOMIC_ACKNOWLEDGE 0x12 COMPARE_SWAP 0x13
    FETCH_ADD 0x14 FLUSH 0x1c ATOMIC_WRITE 0x1d
    UC_SEND_FIRST 0x20 UC_SEND_MIDDLE 0x21 UC_SEND_LAST 0x22 UC_SEND_ONLY 0x24
    UC_WRITE_FIRST 0x26 UC_WRITE_LAST 0x28 UC_WRITE_ONLY 0x2a
}

/// A packet made by hand, without a valid ICRC.
pub struct HandmadePacket(pub Vec<u8>);

/// What to put into it.
#[derive(Default)]
pub struct PacketParts {
    pub ask: bool,
    pub srq: Option<u32>,
    pub flush: Option<Feth>,
    pub reth: Option<Reth>,
    pub atomic: Option<AtomicEth>,
    pub aeth: Option<Aeth>,
    pub result: Option<AtomicAckEth>,
    pub immediate: Option<ImmDt>,
    pub payload: usize,
}

pub fn make(code: u8, psn: u32, parts: PacketParts) -> HandmadePacket {
    let opcode = Opcode::from_byte(code).unwrap();
    let bth = Bth::new(code, ME, Psn::new(psn)).ack_requested(parts.ask);
    let mut buffer = [0; DATAGRAM_MAX];
    let builder = Builder::new(&mut buffer, opcode, bth, parts.payload).unwrap();
    let length = builder
        .maybe(parts.srq.map(XrcEth::new))
        .maybe(parts.flush)
        .maybe(parts.reth)
        .maybe(parts.atomic)
        .maybe(parts.aeth)
        .maybe(parts.result)
        .maybe(parts.immediate)
        .finish();
    HandmadePacket(buffer[..length].to_vec())
}

pub fn send(psn: u32, payload: usize) -> HandmadePacket {
    make(SEND_ONLY, psn, PacketParts { ask: true, payload, ..PacketParts::default() })
}
pub fn read(psn: u32, address: u64, key: u32, length: u32) -> HandmadePacket {
    let reth = Some(Reth::new(address, Rkey(key), length));
    make(READ_REQUEST, psn, PacketParts { ask: true, reth, ..PacketParts::default() })
}
pub fn add(psn: u32, address: u64) -> HandmadePacket {
    let atomic = Some(AtomicEth::new(address, Rkey(7), 5, 0));
    make(FETCH_ADD, psn, PacketParts { ask: true, atomic, ..PacketParts::default() })
}
pub fn write(code: u8, psn: u32, total: Option<u32>, payload: usize) -> HandmadePacket {
    let reth = total.map(|total| Reth::new(0x4000, Rkey(7), total));
    make(code, psn, PacketParts { ask: true, reth, payload, ..PacketParts::default() })
}
pub fn acknowledge(psn: u32, syndrome: u8) -> HandmadePacket {
    let aeth = Some(Aeth::new(Syndrome::from_byte(syndrome), 0));
    make(ACKNOWLEDGE, psn, PacketParts { aeth, ..PacketParts::default() })
}
/// An ACK without credits, of everything up to this PSN.
pub fn ack(psn: u32) -> HandmadePacket {
    acknowledge(psn, Syndrome::Ack(CREDITS_INVALID).to_byte())
}
/// A NAK: this one is missing.
pub fn sequence_nak(psn: u32) -> HandmadePacket {
    acknowledge(psn, Syndrome::SequenceError.to_byte())
}
pub fn read_data(code: u8, psn: u32, payload: usize) -> HandmadePacket {
    let aeth = (code != READ_RESPONSE_MIDDLE).then(|| Aeth::new(Syndrome::Ack(CREDITS_INVALID), 0));
    make(code, psn, PacketParts { aeth, payload, ..PacketParts::default() })
}

impl HandmadePacket {
    /// Hands the packet over.
    pub fn parsed<T>(&self, with: impl FnOnce(&Packet<'_>) -> T) -> T {
        with(&Packet::parse(&self.0).unwrap())
    }
}
