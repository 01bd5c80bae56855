//! Registers and deregisters regions with remote access.

use crate::accounts::Kind;
use crate::decision_context::Context;
use crate::memory::Grants;
use crate::queue_pairs::qp_numbers;
use crate::row_keys::SessionId;
use crate::sessions::memory_region::Mr;
use crate::vnics_and_policies::Tenants;
use omniverb_session::body::{DeregMr, Done, MrRegistered, RegMr};
use omniverb_terms::{Errno, Rkey};

impl Grants<'_> {
    pub(crate) fn dereg_mr(&mut self, id: SessionId, m: &DeregMr) -> Result<Done, Errno> {
        let session = self.tenants.sessions.get_mut(&id).ok_or(Errno::EPROTO)?;
        session.regions.remove(m.rkey)?;
        self.remove_extents(id, m.rkey);
        // A grant of it that is under way finds no region when the owner answers.
        Ok(Done { take_back: 0 })
    }
}

impl Tenants {
    pub(crate) fn reg_mr(
        &mut self,
        context: &mut Context,
        id: SessionId,
        m: &RegMr,
    ) -> Result<MrRegistered, Errno> {
        let session = self.sessions.get_mut(&id).ok_or(Errno::EPROTO)?;
        if m.addr.checked_add(m.length).is_none() {
            return Err(Errno::EINVAL);
        }
        let receipt = session.account().charge(&[Kind::Mr])?;
        let rkey = if m.rkey == Rkey(0) {
            let regions = &session.regions;
            qp_numbers::key(context.entropy.as_mut(), |key| regions.has(key))
                .ok_or(Errno::ENOMEM)?
        } else if !session.resumes() {
            // Needs no ticket: keys are the session's own, and another's are not touched.
            return Err(Errno::EINVAL);
        } else {
            m.rkey
        };
        session.regions.add(rkey, Mr::from(m), receipt)?;
        Ok(MrRegistered { rkey, reserved: 0 })
    }
}
