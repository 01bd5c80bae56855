//! Forwards packets between two QPs of this engine without the network.

use omniverb_terms::VnicId;
use std::net::IpAddr;

/// Where packets arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkLocation {
    pub(crate) vnic: VnicId,
    /// The address that they are for.
    pub(crate) local: IpAddr,
    pub(crate) interface: u32,
}

/// One packet's way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passage {
    pub(crate) to: LinkLocation,
    /// The address that the packet says it comes from.
    pub(crate) from: IpAddr,
    begin: usize,
    end: usize,
}

/// The packets, in one piece of memory that is used again and again.
#[derive(Default)]
pub(crate) struct Passages {
    bytes: Vec<u8>,
    list: Vec<Passage>,
}

impl Passages {
    pub(crate) fn add(&mut self, to: LinkLocation, from: IpAddr, datagram: &[u8]) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(datagram);
        self.list.push(Passage { to, from, begin, end: self.bytes.len() });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Calls `each` with every packet, oldest first, and forgets them.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(&Passage, &[u8])) {
        for passage in &self.list {
            each(passage, &self.bytes[passage.begin..passage.end]);
        }
        self.list.clear();
        self.bytes.clear();
    }
}
