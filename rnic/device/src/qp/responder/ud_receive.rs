//! Serves a datagram: places it behind the 40 bytes where hardware puts the GRH or, for RoCE v2,
//! the IP header.

use super::Outcome;
use super::send::scatter;
use crate::cq::SolicitedEvent;
use crate::link_peer::Peer;
use crate::memory_region::RegionCache;
use crate::qp::{Inner, Qp};
use crate::receive_ring::Receive;
use crate::scatter_gather::{resolve, total};
use crate::verbs_constants::{Wc, access, status, wc_flags, wc_opcode};
use omniverb_link::record::IMMEDIATE;
use omniverb_link::{Broken, Request};
use omniverb_ring::Record;

/// Bytes in front of every datagram.
pub(crate) const GRH_BYTES: u64 = 40;

impl Inner {
    pub(super) fn serve_datagram(
        &mut self,
        qp: &Qp,
        index: usize,
        request: &Request,
        record: &Record,
    ) -> Result<Outcome, Broken> {
        let peer = self.links[index].peer;
        let all = record.length as u64;
        let (flags, immediate, qkey, source, before) = match *request {
            Request::Datagram { flags, immediate, qkey } if !peer.qpn.is_group() => {
                (flags, immediate, qkey, peer.qpn, 0)
            }
            // Only an engine names another sender; what it says stands before the message.
            Request::Grouped { flags, immediate, qkey, source }
                if peer.qpn.is_group() && peer.is_beyond_engine() && all >= GRH_BYTES =>
            {
                (flags, immediate, qkey, source, GRH_BYTES)
            }
            _ => return Err(Broken),
        };
        let length = all - before;
        if qkey != self.machine.attributes().qkey || length > 4096 {
            return Ok(Outcome::Passed); // not for us: silence (specification 10.2.5)
        }
        let receive = match self.take_receive(qp, index, flags) {
            Ok(receive) => receive,
            Err(outcome) => return Ok(outcome),
        };
        if total(receive.sges.as_slice()) < length + GRH_BYTES {
            // Dropped; the receive stays for a message that fits.
            if qp.srq.is_none() {
                self.receives.put_back();
            } else {
                self.deliveries().fail(qp, &receive, status::LOC_LEN_ERR);
            }
            return Ok(Outcome::Passed);
        }
        let list = receive.sges.as_slice();
        let place = |inner: &mut Inner, at| {
            let (link, pd) = (&inner.links[index], qp.receive_pd);
            scatter(qp, &mut inner.recv_cache, pd, link, record, list, at)
        };
        let sound = match before {
            0 => {
                let header = network_header(&peer, record.length);
                place_header(&mut self.recv_cache, qp, &receive, &header) && place(self, GRH_BYTES)
            }
            _ => place(self, 0),
        };
        if !sound {
            self.deliveries().fail(qp, &receive, status::LOC_PROT_ERR);
            return Ok(Outcome::Passed);
        }
        let with_immediate = if flags & IMMEDIATE != 0 { wc_flags::WITH_IMM } else { 0 };
        let wc = Wc {
            wr_id: receive.wr_id,
            opcode: wc_opcode::RECV,
            byte_len: (length + GRH_BYTES) as u32,
            immediate,
            qp_num: qp.number.0,
            src_qp: source.0,
            flags: wc_flags::GRH | with_immediate,
            sl: network_type(&peer),
            ..Wc::default()
        };
        self.meter.received(length);
        self.deliveries().complete(qp, wc, SolicitedEvent::of(flags));
        Ok(Outcome::Passed)
    }
}

fn place_header(cache: &mut RegionCache, qp: &Qp, receive: &Receive, header: &[u8; 40]) -> bool {
    let mut done = 0;
    for sge in receive.sges.as_slice() {
        if done == header.len() {
            break;
        }
        let regions = &qp.shared.regions;
        let (pd, needed) = (qp.receive_pd, access::LOCAL_WRITE);
        let sge = sge.touched(0, header.len() - done);
        let Some(memory) = resolve(regions, cache, pd, &sge, needed) else {
            return false;
        };
        memory.write(&header[done..]);
        done += memory.len();
    }
    true
}

/// What the low bits of a service level tell of a datagram's header on RoCE, as some hardware has
/// it and some programs (UCX up to 1.13) read it for any device.
fn network_type(peer: &Peer) -> u8 {
    const IPV6: u8 = 1;
    const IPV4: u8 = 2;
    if peer.dgid.ipv4().is_some() && peer.sgid.ipv4().is_some() { IPV4 } else { IPV6 }
}

/// What the network would have put there: the IPv6 header, or for IPv4 twenty zero bytes and the
/// IPv4 header (RoCE annex A17.4.5.2), with a valid checksum: that is how consumers tell them
/// apart.
fn network_header(peer: &Peer, length: usize) -> [u8; 40] {
    const UDP_BTH_DETH_ICRC: usize = 8 + 12 + 8 + 4;
    let mut header = [0; 40];
    let payload = length.next_multiple_of(4) + UDP_BTH_DETH_ICRC;
    // From the peer to us.
    match (peer.dgid.ipv4(), peer.sgid.ipv4()) {
        (Some(source), Some(target)) => {
            let ip = &mut header[20..];
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&(20 + payload as u16).to_be_bytes());
            ip[6] = 0x40; // don't fragment
            ip[8] = 64;
            ip[9] = 17;
            ip[12..16].copy_from_slice(&source.octets());
            ip[16..20].copy_from_slice(&target.octets());
            let sum =
                ip.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum::<u32>();
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        _ => {
            header[0] = 0x60;
            header[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
            header[6] = 17;
            header[7] = 64;
            header[8..24].copy_from_slice(&peer.dgid.bytes());
            header[24..40].copy_from_slice(&peer.sgid.bytes());
        }
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link_peer::FarEnd;
    use omniverb_terms::{Gid, Qpn};
    use std::net::Ipv4Addr;

    fn mapped(last: u8) -> Gid {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    #[test]
    fn the_ipv4_checksum_adds_up() {
        let header = network_header(
            &Peer { qpn: Qpn(1), dgid: mapped(1), sgid: mapped(2), far_end: FarEnd::Process },
            5,
        );
        assert_eq!(header[..20], [0; 20]);
        let sum: u32 =
            header[20..].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!(header[32..40], [10, 0, 0, 1, 10, 0, 0, 2]);
    }
}
