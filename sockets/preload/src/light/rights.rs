//! Whether a trunk to another network namespace may be read still, which the broker says.

use omniverb_connection::light::row::Closing;

use super::state::State;
use super::trunk::Across;
use super::{broker, sleepers};
use crate::carry::broker as mail;

impl State {
    /// Something may be taken out of a trunk: it is not over, as far as the mail says, which is
    /// read first. `false`, for a while: it cannot be read now.
    #[inline]
    pub(super) fn may_go_on(&mut self, index: usize) -> bool {
        match &self.trunks[index] {
            Some(trunk) if trunk.across.is_some() && mail::has_mail() => self.is_still(index),
            trunk => trunk.is_some(),
        }
    }

    #[cold]
    fn is_still(&mut self, index: usize) -> bool {
        let Some(name) = self.trunks[index].as_ref().map(|trunk| trunk.name) else { return false };
        let is_read = broker::take(self);
        let trunk = self.trunk_of(index, name);
        let Some(across) = trunk.and_then(|trunk| trunk.across.as_mut()) else { return false };
        if is_read {
            across.has_read();
        }
        is_read || !across.may_put_off(sleepers::now())
    }

    /// A broker that has come anew hears of trunks to other network namespaces: it may be told by
    /// the daemon that they are over. Without one they are, after a while.
    pub(super) fn say_still(&mut self) {
        let now = broker::connection();
        let is_unsaid = |across: &&mut Across| across.broker != now || now == 0;
        for index in 0..self.trunks_end {
            let Some(trunk) = self.trunks[index].as_mut() else { continue };
            let Some(across) = trunk.across.as_mut().filter(is_unsaid) else { continue };
            let said = broker::still(trunk.name, across.ends);
            if !across.may_be_alone(said, sleepers::now) {
                self.lose(index, Closing::Reset);
            }
        }
    }
}
