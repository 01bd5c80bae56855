//! Takes in a machine's memory, and the pages of its processes that are kept where they are.

use crate::daemon_log::Level;
use crate::engine::Row;
use crate::guest_memory::Ram;
use crate::server::Server;
use crate::server::operation_contexts::Guests;
use omniverb_session::body::Adopted;
use omniverb_session::operator::AttachMemory;
use omniverb_session::pinned_pages::InvalidRuns;
use omniverb_session::vm::{MachineName, PinsOver, QueryPins, TellPinned};
use omniverb_sys::clock;
use omniverb_tenancy::{Arrived, Channel, FileId, MemoryFacts, SessionId};
use omniverb_terms::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl Guests<'_> {
    /// An operator brings the memory of a machine that is attached.
    pub(super) fn attach_memory(
        &mut self,
        asked: &AttachMemory,
        mut files: Vec<OwnedFd>,
    ) -> Result<(), Errno> {
        let file = if files.len() == 1 { files.pop() } else { None };
        self.captures.discard(files);
        let file = file.ok_or(Errno::EINVAL)?;
        let bin = self.disposal.bin();
        // Closing a file that is not memory may block for ever: it is checked first.
        let checked = Ram::check(&file, asked.layout).map_err(|_| Errno::EINVAL);
        let found = checked.and_then(|()| {
            let name = MachineName::read(&asked.name).ok_or(Errno::EINVAL)?;
            let id = self.machines.named(name).ok_or(Errno::ENOENT)?;
            self.machines.get_mut(id).filter(|record| record.ram.is_none()).ok_or(Errno::EBUSY)
        });
        let record = match found {
            Ok(record) => record,
            Err(errno) => {
                self.captures.discard(vec![file]);
                return Err(errno);
            }
        };
        record.ram = Some(Arc::new(Ram::new(file, asked.layout, bin)));
        let (vnic, name) = (record.vnic(), record.machine.name);
        self.tables.note(|tables| tables.set_has_memory(vnic, true));
        let text = format_args!("the memory of machine {name} is there: pages may stay in place");
        self.journal.log_of(Some(&name.to_string()), Level::Info, text);
        Ok(())
    }

    /// Which pages a machine's agent need not keep any more.
    pub(super) fn pins_over(&self, id: SessionId, asked: &QueryPins) -> PinsOver {
        let vnic = self.machines.get(id).map(|record| record.vnic());
        let over = vnic.map(|vnic| self.pins.over(vnic, asked.named()));
        PinsOver::new(&over.unwrap_or_default())
    }

    /// What has this name, if it is pages that stay where they are.
    pub(super) fn kept(&self, file: FileId) -> Option<Arc<Row>> {
        self.pins.row(file)
    }

    /// Ends grants of these, if they are pinned pages.
    pub(super) fn forget_kept(&mut self, file: FileId) {
        if let Some((vnic, row)) = self.pins.forget(file) {
            self.engine.withdraw(vnic, row);
        }
    }
}

impl Server {
    /// A machine's agent has looked at pages that a process was asked to keep.
    pub(super) fn machine_tells_pinned(&mut self, id: SessionId, told: &TellPinned) {
        let Some(record) = self.machines.get(id) else { return };
        let session = SessionId(told.session);
        if !record.sessions.contains(&session) {
            return;
        }
        let (vnic, name) = (record.vnic(), record.machine.name);
        let asked = self.tables.asked_to_keep(session, told.token).ok_or(Errno::ETIMEDOUT);
        let row = match (told.errno, asked) {
            (Errno::NONE, Ok((file, bytes))) => {
                let runs = told.runs().ok_or(InvalidRuns::Count);
                let ram = record.ram.as_ref().ok_or(InvalidRuns::Outside);
                let row = ram.and_then(|ram| ram.row(runs?, bytes)).map_err(|refused| {
                    // Not louder: a guest may say so without end.
                    let text = format_args!("machine {name} names no such memory: {refused:?}");
                    self.journal.log_of(Some(&name.to_string()), Level::Debug, text);
                    Errno::EINVAL
                });
                row.map(|row| (file, row))
            }
            (Errno::NONE, Err(errno)) | (errno, _) => Err(errno),
        };
        let (file, row) = match row {
            Ok(found) => found,
            Err(errno) => {
                let token = told.token;
                self.tables.decide(|tables| tables.keeps_in_vain(session, token, errno));
                return self.carry_on();
            }
        };
        self.pins.add((file, told.token), vnic, row);
        // The memory is the daemon's; its seals were looked at when it came.
        let memory = Some(MemoryFacts { is_final: true, is_write_sealed: true });
        let message = Adopted { token: told.token, errno: Errno::NONE, epoch: told.epoch }.into();
        let arrived = Arrived { channel: Channel::Events, tag: 0, message, memory };
        self.tables.decide(|tables| tables.handle(session, &arrived, clock::now()));
        self.carry_on();
    }
}
