//! The path to the peer, as `id->route` shows it.

use omniverb_abi::{ibv_gid, ibv_path_data, ibv_path_record, ibv_sa_path_rec, rdma_cm_id};
use omniverb_terms::{Errno, Gid};

/// "Exactly", of an MTU, a rate, a lifetime.
const EXACTLY: u8 = 2;
/// 4.096 us times two to the power of this: a quarter of a second.
const PACKET_LIFETIME: u8 = 16;

/// The path to the peer as `RDMA_ROUTE` of a socket has it; `None`: it is not known yet.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe fn path_data(id: *mut rdma_cm_id) -> Option<ibv_path_data> {
    // SAFETY: the caller's promise; what `set_path` made, or null.
    let known = unsafe { (*id).route.path_rec.as_ref() }?;
    let selected = |selector: u8, value: u8| selector << 6 | value;
    let path = ibv_path_record {
        dgid: known.dgid,
        sgid: known.sgid,
        dlid: known.dlid,
        slid: known.slid,
        flowlabel_hoplimit: label_and_limit(known.flow_label, known.hop_limit),
        tclass: known.traffic_class,
        reversible_numpath: (known.reversible as u8) << 7 | known.numb_path,
        pkey: known.pkey,
        qosclass_sl: u16::from(known.sl).to_be(),
        mtu: selected(known.mtu_selector, known.mtu),
        rate: selected(known.rate_selector, known.rate),
        packetlifetime: selected(known.packet_life_time_selector, known.packet_life_time),
        ..ibv_path_record::default()
    };
    Some(ibv_path_data { path, ..ibv_path_data::default() })
}

/// A flow label (both in network order) above a hop limit of eight bits.
fn label_and_limit(label: u32, limit: u8) -> u32 {
    (u32::from_be(label) << 8 | u32::from(limit)).to_be()
}

/// What programs see of a path.
#[derive(Clone, Copy)]
pub(crate) struct PathRecord {
    pub(crate) sgid: Gid,
    pub(crate) dgid: Gid,
    pub(crate) mtu: u32,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

/// Shows the path in `id->route`.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe fn set_path(id: *mut rdma_cm_id, path: &PathRecord) -> Result<(), Errno> {
    // SAFETY: calloc has no preconditions.
    let record: *mut ibv_sa_path_rec =
        unsafe { libc::calloc(1, size_of::<ibv_sa_path_rec>()) }.cast();
    if record.is_null() {
        return Err(Errno::ENOMEM);
    }
    let value = ibv_sa_path_rec {
        dgid: ibv_gid { raw: path.dgid.bytes() },
        sgid: ibv_gid { raw: path.sgid.bytes() },
        flow_label: path.flow_label.to_be(),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: 0xffff,
        mtu_selector: EXACTLY,
        mtu: path.mtu as u8,
        rate_selector: EXACTLY,
        packet_life_time_selector: EXACTLY,
        packet_life_time: PACKET_LIFETIME,
        ..ibv_sa_path_rec::default()
    };
    // SAFETY: room for one; the caller's promise, and the owner of the one before may have it no
    // more.
    unsafe {
        record.write(value);
        libc::free((*id).route.path_rec.cast());
        (*id).route.path_rec = record;
        (*id).route.num_paths = 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::label_and_limit;

    #[test]
    fn a_label_stands_above_the_hop_limit() {
        let both = label_and_limit(0x12345_u32.to_be(), 64);
        assert_eq!(both.to_ne_bytes(), [0x01, 0x23, 0x45, 0x40]);
    }
}
