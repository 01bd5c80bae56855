//! Attributes of a queue pair as processes tell them each other that have the same one open.

use omniverb_abi::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr};
use omniverb_session::shared_qp_messages::Attributes;
use omniverb_terms::{Gid, Qkey, Qpn};

/// The GIDs of a connection: of its other end, and of this one.
pub(super) type Gids = (Gid, Gid);

/// What a program gives, to the process that has made the queue pair. An alternate path has been
/// looked at, and is not kept.
pub(super) fn words(attr: &ibv_qp_attr, gids: Option<Gids>) -> Attributes {
    let ibv_ah_attr { grh, dlid, sl, is_global, port_num, .. } = attr.ah_attr;
    Attributes {
        state: attr.qp_state,
        current: attr.cur_qp_state,
        path_mtu: attr.path_mtu,
        qkey: Qkey(attr.qkey),
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qpn: Qpn(attr.dest_qp_num),
        access_flags: attr.qp_access_flags,
        flow_label: grh.flow_label,
        pkey_index: attr.pkey_index,
        dlid,
        sgid_index: grh.sgid_index,
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
        service_level: sl,
        is_global,
        address_port: port_num,
        port: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        min_rnr_timer: attr.min_rnr_timer,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        reserved: [0; 3],
        dgid: Gid::new(grh.dgid.raw),
        sgid: gids.map_or(Gid::ZERO, |(_, sgid)| sgid),
    }
}

/// What was given, or is known.
pub(super) fn attr_of(words: &Attributes) -> ibv_qp_attr {
    let grh = ibv_global_route {
        dgid: ibv_gid { raw: words.dgid.bytes() },
        flow_label: words.flow_label,
        sgid_index: words.sgid_index,
        hop_limit: words.hop_limit,
        traffic_class: words.traffic_class,
    };
    let ah_attr = ibv_ah_attr {
        grh,
        dlid: words.dlid,
        sl: words.service_level,
        is_global: words.is_global,
        port_num: words.address_port,
        ..ibv_ah_attr::default()
    };
    ibv_qp_attr {
        qp_state: words.state,
        cur_qp_state: words.current,
        path_mtu: words.path_mtu,
        qkey: words.qkey.0,
        rq_psn: words.rq_psn,
        sq_psn: words.sq_psn,
        dest_qp_num: words.dest_qpn.0,
        qp_access_flags: words.access_flags,
        ah_attr,
        pkey_index: words.pkey_index,
        port_num: words.port,
        timeout: words.timeout,
        retry_cnt: words.retry_cnt,
        rnr_retry: words.rnr_retry,
        min_rnr_timer: words.min_rnr_timer,
        max_rd_atomic: words.max_rd_atomic,
        max_dest_rd_atomic: words.max_dest_rd_atomic,
        ..ibv_qp_attr::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_arrives() {
        let mut attr = ibv_qp_attr { qp_state: 2, dest_qp_num: 0x1234, ..ibv_qp_attr::default() };
        (attr.path_mtu, attr.rq_psn, attr.min_rnr_timer) = (3, 77, 12);
        (attr.max_dest_rd_atomic, attr.port_num, attr.qp_access_flags) = (4, 1, 7);
        attr.ah_attr.grh.dgid.raw = [5; 16];
        (attr.ah_attr.grh.sgid_index, attr.ah_attr.is_global, attr.ah_attr.sl) = (6, 1, 2);
        let sent = words(&attr, Some((Gid::new([5; 16]), Gid::new([9; 16]))));
        assert_eq!((sent.dgid, sent.sgid), (Gid::new([5; 16]), Gid::new([9; 16])));
        let again = words(&attr_of(&sent), Some((sent.dgid, sent.sgid)));
        assert_eq!(sent, again);
        let back = attr_of(&sent);
        assert_eq!((back.dest_qp_num, back.rq_psn, back.ah_attr.sl), (0x1234, 77, 2));
    }
}
