//! Waits until processes have ended whose connections are gone but which still map a pair window.

use crate::client::DepartedProcess;
use crate::reactor::Reactor;
use crate::wakeup::Wakeup;
use omniverb_tenancy::SessionId;
use std::collections::BTreeMap;
use std::io;

/// All of them, by the numbers that their connections had. Each one's end is watched.
#[derive(Debug, Default)]
pub(crate) struct Departed(BTreeMap<SessionId, DepartedProcess>);

impl Departed {
    /// One more. What it has is given to nobody else if its end cannot be seen.
    ///
    /// # Errors
    /// What the kernel says: its end will not be seen.
    pub(crate) fn add(
        &mut self,
        id: SessionId,
        leaver: DepartedProcess,
        reactor: &Reactor,
    ) -> io::Result<()> {
        if let Err(error) = reactor.watch(leaver.life(), Wakeup::DepartedProcess(id)) {
            leaver.retire();
            return Err(error);
        }
        self.0.insert(id, leaver);
        Ok(())
    }

    /// One has ended: what it had comes back, when the machine's process has let go of it, too.
    pub(crate) fn ended(&mut self, id: SessionId, reactor: &Reactor) {
        if let Some(leaver) = self.0.remove(&id) {
            reactor.forget(leaver.life());
        }
    }

    /// Nobody keeps windows that are over; who has nothing else is not waited for.
    pub(crate) fn drop_over(&mut self, reactor: &Reactor) {
        for (_, leaver) in self.0.extract_if(.., |_, leaver| !leaver.drop_over()) {
            reactor.forget(leaver.life());
        }
    }
}
