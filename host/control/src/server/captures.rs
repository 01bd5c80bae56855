//! Begins and ends captures for operators, with the engine, its recorder and the clients of direct
//! links.

use crate::captures::Outcome;
use crate::client_outbox::Letter;
use crate::daemon_log::Level;
use crate::engine::Summary;
use crate::operators::Call;
use crate::server::Server;
use crate::server::operation_contexts::EnginePorts;
use crate::vnics::Named;
use omniverb_session::body::{Done, TraceBegin};
use omniverb_session::operator::{Captured, Message};
use omniverb_tenancy::{SessionId, TracedEnd, VnicId};
use omniverb_terms::Errno;
use rustix::fs::{OFlags, fcntl_getfl};

impl Server {
    /// Begins a capture; answered when the recorder has checked the file. This thread asks no file
    /// system about it and does not close it: both may block for ever.
    pub(super) fn capture(
        &mut self,
        id: SessionId,
        call: &mut Call,
        snap_bytes: u32,
        (vnic, attached): Named,
    ) -> Result<(), Errno> {
        let attached = attached.ok_or(Errno::ENOENT)?;
        let file = call.files.first().ok_or(Errno::EINVAL)?;
        // The only question that no file system is asked; the recorder asks the others.
        let flags = fcntl_getfl(file).map_err(|_| Errno::EINVAL)?;
        if !flags.intersects(OFlags::RDWR | OFlags::WRONLY) || flags.contains(OFlags::PATH) {
            return Err(Errno::EINVAL);
        }
        self.captures.may_begin(id, vnic)?;
        let file = call.files.remove(0);
        // Open from now on: also before the first process comes, and between two of them.
        let hold = self.vnics.hold(vnic, attached);
        self.captures.begin(id, call.tag, hold, file, snap_bytes);
        self.engine_ports().want_port(vnic);
        self.engine_ports().record(vnic);
        self.tables.decide(|tables| tables.begin_capture(vnic));
        Ok(())
    }

    /// A client wants its capture to end; answered when that is written down.
    pub(super) fn end_capture(&mut self, id: SessionId, tag: u64) {
        match self.captures.finish(id, tag) {
            Ok(()) => self.engine_ports().end_recording(id),
            Err(errno) => self.answer_operator(id, tag, &Message::Failed(errno)),
        }
    }

    /// The recorder has looked at some files, or finished some.
    pub(super) fn recorder_ready(&mut self) {
        self.captures.take_ready();
        while let Some((id, tag, outcome)) = self.captures.next_outcome() {
            let answer = match outcome {
                Outcome::Begun => Done { take_back: 0 }.into(),
                Outcome::Refused(errno) => {
                    self.engine_ports().end_recording(id);
                    Message::Failed(errno)
                }
                Outcome::Ended(summary) => captured(&summary).into(),
            };
            self.answer_operator(id, tag, &answer);
        }
    }
}

impl EnginePorts<'_> {
    /// Has the engine leave a vNIC's packets, if a capture wants them and the vNIC is served.
    pub(super) fn record(&mut self, vnic: VnicId) {
        if self.vnics.has_port(vnic)
            && let Some(queue) = self.captures.queue_of(vnic)
        {
            self.engine.capture(vnic, Some(queue.clone()));
        }
    }

    /// Ends a recording, by command or because its operator is gone.
    pub(super) fn end_recording(&mut self, id: SessionId) {
        let Some(vnic) = self.captures.vnic_of(id) else { return };
        if self.vnics.has_port(vnic) {
            self.engine.capture(vnic, None);
        }
        // First: what was told until now belongs to it.
        self.captures.end(id);
        self.tables.decide(|tables| tables.end_capture(vnic));
        if !self.tables.has_vnic(vnic) {
            self.close_port(vnic);
        }
        self.tell_registered();
    }

    /// A session is to tell what happens on some of its links.
    pub(super) fn begin_trace(&mut self, id: SessionId) {
        match self.captures.begin_trace(id, &self.clients.source(id)) {
            Ok(Some(memory)) => {
                self.clients.keep(id, &memory);
                let message = TraceBegin { memory: memory.said() };
                self.delivery()
                    .tell(id, Letter::with(message, memory.enclosed().into_iter().collect()));
            }
            Ok(None) => {}
            Err(error) => {
                self.journal.log(Level::Warning, format_args!("no memory for a trace: {error}"));
            }
        }
    }

    /// The reports of a session about this end of a link may be trusted.
    pub(super) fn trace(&mut self, end: &TracedEnd) {
        if self.vnics.are_open(&end.vnics) {
            let (qpn, peer_qpn) = self.tables.shown_ends(end.session, end.qpn, end.peer_qpn);
            self.captures.trace(&TracedEnd { qpn, peer_qpn, ..end.clone() });
        }
    }
}

fn captured(summary: &Summary) -> Captured {
    Captured {
        packets: summary.packets,
        dropped: summary.dropped,
        refused: summary.refused,
        untraced: summary.untraced,
        errno: summary.errno.unwrap_or_default(),
    }
}
