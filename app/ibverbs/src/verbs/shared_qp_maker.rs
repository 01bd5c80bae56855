//! Serves other processes that have a queue pair of this process's XRC domain open.

use std::sync::Arc;

use omniverb_abi::ibv_qp_attr;
use omniverb_client::SharedQueuePairs;
use omniverb_device::{Qp, QpMask};
use omniverb_session::shared_qp_messages::Attributes;
use omniverb_terms::{Errno, Qpn};

use super::modify_and_query_qp::{check, known, modify};
use super::qp_attr_codec::{attr_of, words};
use super::xrc_domain::XrcDomain;

impl SharedQueuePairs for XrcDomain {
    fn hold(&self, number: Qpn) -> bool {
        self.begin_hold(number)
    }

    fn let_go(&self, number: Qpn) -> Option<Arc<Qp>> {
        self.end_hold(number)
    }

    fn query(&self, number: Qpn) -> Attributes {
        let found = self.receiver(number);
        found.map_or(Attributes::NONE, |(qp, route)| words(&known(&qp, &route), None))
    }

    fn modify(&self, number: Qpn, mask: u32, to: &Attributes) -> Result<(), Errno> {
        let mask = QpMask::from_bits(mask).ok_or(Errno::EINVAL)?;
        let attr = ibv_qp_attr { alt_port_num: 1, ..attr_of(to) };
        check(mask, &attr)?;
        let gids = mask.contains(QpMask::AV).then_some((to.dgid, to.sgid));
        if gids.is_some_and(|(dgid, _)| dgid.is_zero()) {
            return Err(Errno::EINVAL);
        }
        let (qp, route) = self.receiver(number).ok_or(Errno::EIO)?;
        let membership = self.membership().ok_or(Errno::EIO)?;
        modify(membership.client(), &qp, &route, mask, &attr, gids)
    }
}
