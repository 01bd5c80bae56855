//! Runs: packets of one WRITE, one behind the other, each of which names what is left of it.
//!
//! Such a packet is as the one before it but for its PSN, the address and the length, so many can
//! be made, and taken, in one go. They travel between two Omniverbs only; plain RoCE names address
//! and length in the first packet of a WRITE (9.7.4.1.2).

use crate::{Bth, Opcode, Operation, Packet, PacketPosition, Reth, SUFFIX_BYTES};
use omniverb_terms::Service;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of the headers.
const HEAD: usize = Bth::BYTES + Reth::BYTES;

/// How the packets of a run follow each other.
#[derive(Clone, Copy, Debug)]
pub struct WritePattern {
    bth: Bth,
    reth: Reth,
    /// Bytes of a datagram, and of its payload.
    length: usize,
    payload: usize,
}

impl WritePattern {
    /// Whether it is worth a closer look: all other packets are passed by at the price of a byte.
    #[inline]
    pub fn may_begin(datagram: &[u8]) -> bool {
        let begins = Operation::Write { place: PacketPosition::First, immediate: false };
        datagram.first() == Some(&Opcode::new(Service::Rc, begins).to_byte())
    }

    /// That of a run which begins with this datagram: a packet of a reliable WRITE that goes on
    /// behind it, full, and which nobody is to acknowledge at once.
    pub fn of(datagram: &[u8]) -> Option<WritePattern> {
        if !WritePattern::may_begin(datagram) {
            return None;
        }
        let (bth, rest) = Bth::read_from_prefix(datagram).ok().filter(|it| it.0.asks_nothing())?;
        let (reth, rest) = Reth::read_from_prefix(rest).ok()?;
        let payload = rest.len().checked_sub(SUFFIX_BYTES)?;
        let whole = payload > 0 && payload.is_multiple_of(4);
        whole.then_some(WritePattern { bth, reth, length: datagram.len(), payload })
    }

    /// The headers of packet `index` of the run. They say nonsense where the WRITE is over.
    #[inline]
    pub fn head(&self, index: usize) -> [u8; HEAD] {
        let before = self.payload.wrapping_mul(index);
        let bth = self.bth.later(index as u32);
        let address = self.reth.address().wrapping_add(before as u64);
        let left = self.reth.length().wrapping_sub(before as u32);
        let reth = Reth::new(address, self.reth.key(), left);
        let mut head = [0; HEAD];
        let (first, second) = head.split_at_mut(Bth::BYTES);
        first.copy_from_slice(bth.as_bytes());
        second.copy_from_slice(reth.as_bytes());
        head
    }

    /// Writes the headers of packets 1 to `count` of the run, or of as many as fit; gives where
    /// their payloads go.
    pub fn write<'a>(&self, datagrams: &'a mut [u8], count: usize) -> PacketSlots<'a> {
        let count = count.min(datagrams.len() / self.length);
        let datagrams = &mut datagrams[..count * self.length];
        for (index, datagram) in (1..).zip(datagrams.chunks_exact_mut(self.length)) {
            datagram[..HEAD].copy_from_slice(&self.head(index));
        }
        PacketSlots { datagrams, length: self.length }
    }
}

/// Where the payloads of a run go that is being made.
#[derive(Debug)]
pub struct PacketSlots<'a> {
    datagrams: &'a mut [u8],
    length: usize,
}

impl PacketSlots<'_> {
    /// One by one, all equally long.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = &mut [u8]> {
        let end = self.length - SUFFIX_BYTES;
        self.datagrams.chunks_exact_mut(self.length).map(move |datagram| &mut datagram[HEAD..end])
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.datagrams.len() / self.length
    }

    /// Bytes that go into all of them.
    pub fn bytes(&self) -> usize {
        self.count() * (self.length - SUFFIX_BYTES - HEAD)
    }
}

/// A run that arrived.
#[derive(Clone, Copy, Debug)]
pub struct WriteRun<'a> {
    datagrams: &'a [u8],
    length: usize,
}

impl<'a> WriteRun<'a> {
    /// The run that a train of datagrams begins with, each as long as the first. `None`: not even
    /// the second belongs to it.
    pub fn of(train: &'a [u8], length: usize) -> Option<WriteRun<'a>> {
        let pattern = WritePattern::of(train.get(..length)?)?;
        // What is behind this would not be a packet in the middle of the WRITE.
        let most = (pattern.reth.length() as usize).div_ceil(pattern.payload).saturating_sub(1);
        let belongs = |(index, datagram): &(usize, &[u8])| datagram[..HEAD] == pattern.head(*index);
        let count = train.chunks_exact(length).take(most).enumerate().take_while(belongs).count();
        let datagrams = train.get(..count * length)?;
        (count > 1).then_some(WriteRun { datagrams, length })
    }

    /// Packets, at least two.
    pub fn count(&self) -> usize {
        self.datagrams.len() / self.length
    }

    /// Its beginning. `None`: that would be no run.
    pub fn first(self, count: usize) -> Option<WriteRun<'a>> {
        let datagrams = self.datagrams.get(..count * self.length)?;
        (count > 1).then_some(WriteRun { datagrams, ..self })
    }

    /// The packets with their ICRCs.
    pub fn datagrams(&self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        self.datagrams.chunks_exact(self.length)
    }

    /// What they carry, all equally long.
    pub fn payloads(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone {
        let end = self.length - SUFFIX_BYTES;
        self.datagrams.chunks_exact(self.length).map(move |datagram| &datagram[HEAD..end])
    }

    /// Bytes that they carry together.
    pub fn bytes(&self) -> usize {
        self.count() * (self.length - SUFFIX_BYTES - HEAD)
    }

    /// The first packet; `None` never.
    pub fn packet(&self) -> Option<Packet<'a>> {
        Packet::parse(self.datagrams.get(..self.length)?).ok()
    }
}
