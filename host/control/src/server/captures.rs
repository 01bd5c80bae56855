//! Captures: what an operator asks, and what the engine, its recorder and the clients of
//! direct links have to do for it.

use crate::engine::Summary;
use crate::journal::Level;
use crate::memory;
use crate::operators::Call;
use crate::outbox::Letter;
use crate::server::Server;
use crate::server::vnics::Named;
use omniverb_link::trace::TRACE_BYTES;
use omniverb_session::body::{Done, TraceBegin};
use omniverb_session::operator::{Captured, Message};
use omniverb_sys::{Access, Extent, clock};
use omniverb_tenancy::{SessionId, TracedEnd, VnicId};
use omniverb_terms::{Errno, Qpn};
use rustix::fs::{OFlags, fcntl_getfl};
use std::io;

impl Server {
    /// Begins a capture; answered when the recorder has looked at the file. Here nobody asks a file
    /// system about it, and nobody closes it: both may take for ever.
    pub(super) fn capture(
        &mut self,
        id: SessionId,
        call: &mut Call,
        snap_bytes: u32,
        (vnic, namespace): Named,
    ) -> Result<(), Errno> {
        let namespace = namespace.ok_or(Errno::ENOENT)?;
        let file = call.files.first().ok_or(Errno::EINVAL)?;
        // The only question that no file system is asked; the recorder asks the others.
        let flags = fcntl_getfl(file).map_err(|_| Errno::EINVAL)?;
        if !flags.intersects(OFlags::RDWR | OFlags::WRONLY) || flags.contains(OFlags::PATH) {
            return Err(Errno::EINVAL);
        }
        self.captures.may_begin(id, vnic)?;
        let file = call.files.remove(0);
        // Open from now on: also before the first process comes, and between two of them.
        self.registry.hold(vnic);
        self.namespaces.hold(vnic, namespace);
        let intake = self.recorder.begin(id.0, vnic, file, snap_bytes);
        self.captures.begin(id, call.tag, vnic, intake);
        self.namespaces.port_is_coming(vnic, clock::now());
        self.record(vnic);
        let actions = self.tenancy.capture(vnic, true);
        self.work.extend(actions);
        Ok(())
    }

    /// Has the engine leave a vNIC's packets, if somebody wants them and it is served.
    pub(super) fn record(&mut self, vnic: VnicId) {
        if self.namespaces.has_port(vnic)
            && let Some(intake) = self.captures.intake_of(vnic)
        {
            self.engine.capture(vnic, Some(intake.clone()));
        }
    }

    /// A client wants its capture to end; answered when that is written down.
    pub(super) fn end_capture(&mut self, id: SessionId, tag: u64) {
        if self.captures.finish(id, tag) {
            self.end_recording(id);
        } else {
            self.answer_operator(id, tag, &Message::Failed(Errno::ENOENT));
        }
    }

    /// A recording is to end, because somebody said so or is gone.
    pub(super) fn end_recording(&mut self, id: SessionId) {
        let Some(vnic) = self.captures.end(id) else { return };
        if self.namespaces.has_port(vnic) {
            self.engine.capture(vnic, None);
        }
        // First: what was told until now belongs to it.
        self.recorder.end(id.0);
        let actions = self.tenancy.capture(vnic, false);
        self.work.extend(actions);
        if !self.tenancy.has_vnic(vnic) {
            self.close_port(vnic);
        }
        self.leave(vnic);
    }

    /// The recorder has finished some files.
    pub(super) fn recorder_ready(&mut self) {
        self.recorder.take_ready();
        while let Some((capture, errno)) = self.recorder.next_begun() {
            let id = SessionId(capture);
            let Some(tag) = self.captures.begun(id) else { continue };
            match errno {
                None => self.answer_operator(id, tag, &Done { take_back: 0 }.into()),
                Some(errno) => {
                    self.end_recording(id);
                    let failed = Message::Failed(Errno(errno.cast_unsigned()));
                    self.answer_operator(id, tag, &failed);
                }
            }
        }
        while let Some((capture, summary)) = self.recorder.next_ended() {
            let id = SessionId(capture);
            if let Some(tag) = self.captures.ended(id) {
                self.answer_operator(id, tag, &captured(&summary).into());
            }
        }
    }

    /// A session is to tell what happens on some of its links.
    pub(super) fn begin_trace(&mut self, id: SessionId) {
        if !self.captures.may_trace() {
            return self.recorder.miss();
        }
        match self.trace_memory(id) {
            Ok(memory) => {
                self.captures.trace(id);
                let message = TraceBegin { memory: memory::said(&memory) };
                self.tell(id, Letter::with(message, vec![memory.file]));
            }
            Err(error) => {
                self.journal.log(Level::Warning, format_args!("no memory for a trace: {error}"));
                self.recorder.miss();
            }
        }
    }

    fn trace_memory(&mut self, id: SessionId) -> io::Result<Extent> {
        let memory = memory::make("omniverb-trace", TRACE_BYTES as u64)?;
        self.recorder.read(id.0, memory.map(Access::ReadWrite)?);
        Ok(memory)
    }

    pub(super) fn end_trace(&mut self, id: SessionId) {
        if self.captures.end_trace(id) {
            self.recorder.read_no_more(id.0);
        }
    }

    /// What a session tells of this end of a link is sound.
    pub(super) fn trace(&mut self, end: &TracedEnd) {
        if end.vnics.iter().all(|vnic| self.namespaces.has(*vnic)) {
            self.recorder.trace(end);
        }
    }

    pub(super) fn untrace(&self, id: SessionId, qpn: Qpn, peer_qpn: Qpn) {
        self.recorder.untrace(id.0, qpn, peer_qpn);
    }
}

fn captured(summary: &Summary) -> Captured {
    Captured {
        packets: summary.packets,
        dropped: summary.dropped,
        refused: summary.refused,
        untraced: summary.untraced,
        errno: Errno(summary.errno.unwrap_or_default().cast_unsigned()),
    }
}
