//! Waits until processes have ended whose connections are gone but which still map a pair window.

use crate::client::DepartedProcess;
use crate::poller_tokens::Wakeup;
use crate::reactor::Reactor;
use omniverb_tenancy::SessionId;
use std::collections::BTreeMap;
use std::io;

/// All of them, by the numbers that their connections had. Each one's end is watched.
#[derive(Debug, Default)]
pub(crate) struct Departed(BTreeMap<SessionId, DepartedProcess>);

impl Departed {
    /// Adds a process. If its end cannot be seen, its pieces are given to no other.
    ///
    /// # Errors
    /// The kernel's error: its end will not be seen.
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

    /// A process has ended: its pieces come back once the machine's process has released them, too.
    pub(crate) fn ended(&mut self, id: SessionId, reactor: &Reactor) {
        if let Some(leaver) = self.0.remove(&id) {
            reactor.forget(leaver.life());
        }
    }

    /// Windows that are over are kept no longer; a process without other windows is not waited for.
    pub(crate) fn drop_over(&mut self, reactor: &Reactor) {
        for (_, leaver) in self.0.extract_if(.., |_, leaver| !leaver.drop_over()) {
            reactor.forget(leaver.life());
        }
    }
}
