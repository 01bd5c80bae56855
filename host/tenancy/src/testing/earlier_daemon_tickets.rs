//! Makes tickets as an earlier daemon would have given them, for tests of its clients, and of
//! liars.

use crate::queue_pairs::qp_number_tickets::Claim;
use crate::row_keys::SessionId;
use crate::sessions::session::Session;
use crate::tenancy::Tenancy;
use omniverb_terms::{Qpn, Service};

impl Tenancy {
    /// The ticket that a session's process would have been given.
    pub(crate) fn ticket(
        &self,
        id: SessionId,
        (qpn, service): (Qpn, Service),
        issued: u64,
    ) -> [u8; 16] {
        let Some(client) = self.tenants.sessions.get(&id).map(Session::client) else {
            return [0; 16];
        };
        let (vnic, uid) = (self.proof(client.vnic), client.uid);
        self.queue_pairs.ticket(&Claim { qpn, service, vnic, uid, issued })
    }
}
