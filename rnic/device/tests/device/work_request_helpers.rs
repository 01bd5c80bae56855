//! Work requests, spelled shortly.

use crate::guarded_buffer::Buffer;
use omniverb_device::send_work_request::Destination;
use omniverb_device::{
    Data, DatagramAddress, GlobalRoute, Region, SendWork, Sge, opcode, send_flags,
};
use omniverb_ring::UserMemory;
use omniverb_terms::{Placement, Qkey, Rkey, Selectivity};

/// A send work request that owns its lists.
#[derive(Clone, Default)]
pub struct Work {
    pub wr_id: u64,
    pub opcode: u32,
    pub flags: u32,
    pub immediate: u32,
    pub address: u64,
    pub rkey: Rkey,
    pub compare_add: u64,
    pub swap: u64,
    pub srq: u32,
    pub to: Option<DatagramAddress>,
    pub sges: Vec<Sge>,
    pub inline: Option<Vec<UserMemory>>,
}

impl Work {
    fn new(wr_id: u64, opcode: u32) -> Work {
        Work { wr_id, opcode, flags: send_flags::SIGNALED, ..Work::default() }
    }

    pub fn send(wr_id: u64) -> Work {
        Work::new(wr_id, opcode::SEND)
    }

    pub fn write(wr_id: u64, at: (u64, Rkey)) -> Work {
        Work { address: at.0, rkey: at.1, ..Work::new(wr_id, opcode::RDMA_WRITE) }
    }

    pub fn read(wr_id: u64, at: (u64, Rkey)) -> Work {
        Work { address: at.0, rkey: at.1, ..Work::new(wr_id, opcode::RDMA_READ) }
    }

    pub fn compare_swap(wr_id: u64, at: (u64, Rkey), compare: u64, swap: u64) -> Work {
        let work = Work::new(wr_id, opcode::ATOMIC_CMP_AND_SWP);
        Work { address: at.0, rkey: at.1, compare_add: compare, swap, ..work }
    }

    pub fn fetch_add(wr_id: u64, at: (u64, Rkey), add: u64) -> Work {
        let work = Work::new(wr_id, opcode::ATOMIC_FETCH_AND_ADD);
        Work { address: at.0, rkey: at.1, compare_add: add, ..work }
    }

    /// Its value is eight bytes that are added.
    pub fn atomic_write(wr_id: u64, at: (u64, Rkey)) -> Work {
        Work { address: at.0, rkey: at.1, ..Work::new(wr_id, opcode::ATOMIC_WRITE) }
    }

    pub fn flush(
        wr_id: u64,
        at: (u64, Rkey),
        length: u32,
        (placement, selectivity): (Placement, Selectivity),
    ) -> Work {
        let mut work = SendWork::new(wr_id, opcode::FLUSH, 0);
        work.flush(length, placement, selectivity);
        let (compare_add, swap) = (work.compare_add, work.swap);
        Work { address: at.0, rkey: at.1, compare_add, swap, ..Work::new(wr_id, opcode::FLUSH) }
    }

    pub fn immediate(mut self, immediate: u32) -> Work {
        self.immediate = immediate;
        self.opcode = match self.opcode {
            opcode::SEND => opcode::SEND_WITH_IMM,
            _ => opcode::RDMA_WRITE_WITH_IMM,
        };
        self
    }

    pub fn invalidate(mut self, rkey: Rkey) -> Work {
        self.opcode = opcode::SEND_WITH_INV;
        self.immediate = rkey.0;
        self
    }

    pub fn to(mut self, destination: Destination, qkey: Qkey) -> Work {
        self.to = Some(DatagramAddress { destination, qkey, route: GlobalRoute::default() });
        self
    }

    /// How packets to there are to travel; behind [`Work::to`].
    pub fn by(mut self, route: GlobalRoute) -> Work {
        self.to = self.to.map(|to| DatagramAddress { route, ..to });
        self
    }

    /// XRC: the SRQ it is for.
    pub fn for_srq(mut self, number: u32) -> Work {
        self.srq = number;
        self
    }

    pub fn flags(mut self, flags: u32) -> Work {
        self.flags = flags;
        self
    }

    pub fn and(mut self, flags: u32) -> Work {
        self.flags |= flags;
        self
    }

    /// More bytes, from a registered buffer.
    pub fn sge(mut self, sge: Sge) -> Work {
        self.sges.push(sge);
        self
    }

    /// The whole of a buffer, copied when posted.
    pub fn inline(mut self, buffer: &Buffer) -> Work {
        self.inline.get_or_insert_default().push(buffer.memory());
        self.flags |= send_flags::INLINE;
        self
    }

    pub fn as_send(&self) -> SendWork<'_> {
        SendWork {
            wr_id: self.wr_id,
            opcode: self.opcode,
            flags: self.flags,
            immediate: self.immediate,
            address: self.address,
            rkey: self.rkey,
            compare_add: self.compare_add,
            swap: self.swap,
            srq: self.srq,
            to: self.to,
            data: match &self.inline {
                Some(parts) => Data::Inline(parts),
                None => Data::Gather(&self.sges),
            },
        }
    }
}

/// Bytes of a region, as a gather entry.
pub fn part(region: &Region, offset: usize, length: usize) -> Sge {
    Sge { address: region.iova + offset as u64, length: length as u32, lkey: region.lkey }
}

/// All of a region.
pub fn whole(region: &Region) -> Sge {
    part(region, 0, region.memory.len())
}

/// Where a peer finds byte `offset` of a region.
pub fn remote(region: &Region, offset: usize) -> (u64, Rkey) {
    (region.iova + offset as u64, region.rkey)
}
