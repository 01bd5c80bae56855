//! Models memory, messages on their way and waiting receives, for comparison with the devices.

use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::Pair;
use crate::work_request_helpers::part;
use omniverb_device::{Qp, Region, Sge, Srq};
use omniverb_terms::Service;
use std::collections::VecDeque;
use std::sync::Arc;

pub const AREA: usize = 48 << 10;

/// Numbers that look random, the same for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end.max(1)
    }

    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    pub fn size(&mut self, max: usize) -> usize {
        let max = [9, 65, 4096, max + 1][self.below(4)].min(max + 1);
        self.below(max)
    }

    /// A range cut into a few pieces.
    pub fn cut(&mut self, region: &Region, offset: usize, length: usize) -> Vec<Sge> {
        let mut list = Vec::new();
        let mut at = 0;
        while at < length && list.len() < 6 && !self.chance(3) {
            let piece = self.below(length - at + 1);
            list.push(part(region, offset + at, piece));
            at += piece;
        }
        list.push(part(region, offset + at, length - at));
        list
    }
}

/// A registered buffer and what should be in it.
pub struct Area {
    pub buffer: Buffer,
    pub region: Arc<Region>,
    pub model: Vec<u8>,
}

impl Area {
    pub fn new(pair: &Pair, side: usize, length: usize, seed: u64) -> Area {
        let buffer = Buffer::pattern(length, seed);
        let region = pair.sides[side].register(&buffer);
        Area { model: buffer.all(), region, buffer }
    }

    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.model[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    pub fn get(&self, offset: usize, length: usize) -> Vec<u8> {
        self.model[offset..offset + length].to_vec()
    }
}

/// What a receive should bring.
pub struct Message {
    pub bytes: Vec<u8>,
    pub immediate: Option<u32>,
    /// A WRITE with immediate data brings no bytes into the receive.
    pub length: usize,
}

/// One direction between two QPs.
pub struct Flow {
    pub service: Service,
    pub from: Arc<Qp>,
    pub to: Arc<Qp>,
    pub side: usize,
    pub source: Area,
    pub landing: Area,
    pub target: Area,
    /// Signalled sends that are not complete.
    pub sent: VecDeque<u64>,
    pub messages: VecDeque<Message>,
    pub next: u64,
}

/// Receives of one queue: of a QP, or of an SRQ that several share.
pub struct Receives {
    pub qp: Option<Arc<Qp>>,
    pub srq: Option<Arc<Srq>>,
    pub memory: Buffer,
    pub region: Arc<Region>,
    pub free: Vec<usize>,
}

/// Nothing is on its way.
pub fn flow(pair: &Pair, service: Service, side: usize, qps: &[Arc<Qp>; 2], seed: u64) -> Flow {
    Flow {
        service,
        from: qps[side].clone(),
        to: qps[1 - side].clone(),
        side,
        source: Area::new(pair, side, 2 * AREA, seed),
        landing: Area::new(pair, side, AREA, seed + 1),
        target: Area::new(pair, 1 - side, AREA, seed + 2),
        sent: VecDeque::new(),
        messages: VecDeque::new(),
        next: seed << 32,
    }
}
