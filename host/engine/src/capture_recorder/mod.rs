//! Runs the thread that writes capture files.
//!
//! In: copies of packets that the engine sends and receives ([`packet_queue`]); traces of direct
//! links from processes (rings of `omniverb_link::captured_operations_ring`), which
//! [`packets_of_traces`] turns into the packets that they stand for. Out: one file for each
//! captured vNIC, in the order of time, and counts of lost packets. Without captures it does no
//! work. No thread waits for this one: a writer that finds no room counts the loss and goes on.

mod capture_file;
mod command;
pub(crate) mod packet_queue;
pub(crate) mod packets_of_traces;
mod recorder_loop;
mod traced_process;
mod traced_processes;

use crate::capture_recorder::packet_queue::{CaptureRoom, PacketQueue};
use omniverb_ring::Window;
use omniverb_sys::EventFd;
use omniverb_sys::lock;
use omniverb_sys::thread_watchdog::ThreadPulse;
use omniverb_terms::{Errno, Qpn, VnicId};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use self::command::Task;
pub use command::Summary;
pub use packets_of_traces::TracedEnd;

/// Budget: the share of what captures may keep for what processes tell; packets of the engine have
/// the rest.
const KEPT_BACK_SHARE: usize = 3;

/// The handle that the control plane holds. Dropping it ends all captures; their files are
/// complete then.
pub struct Recorder {
    tasks: Option<mpsc::Sender<Task>>,
    thread: Option<JoinHandle<()>>,
    begun: Mutex<mpsc::Receiver<(u64, Option<Errno>)>>,
    ended: Mutex<mpsc::Receiver<(u64, Summary)>>,
    ready: Arc<EventFd>,
    room: CaptureRoom,
}

impl Recorder {
    /// Starts the thread. `bytes`: what all captures together may keep until it is written.
    ///
    /// # Errors
    /// `EMFILE`, `EAGAIN` and the like.
    pub fn start(pulse: ThreadPulse, bytes: usize) -> io::Result<Recorder> {
        let kept_back = bytes / KEPT_BACK_SHARE;
        let (tasks, work) = mpsc::channel();
        let (tell_begun, begun) = mpsc::channel();
        let (tell, ended) = mpsc::channel();
        let ready = Arc::new(EventFd::new()?);
        let thread = recorder_loop::Thread::new(work, tell_begun, tell, ready.clone(), kept_back);
        let thread = std::thread::Builder::new()
            .name("recorder".into())
            .spawn(move || thread.run(&pulse))?;
        let (tasks, thread) = (Some(tasks), Some(thread));
        let (begun, ended) = (Mutex::new(begun), Mutex::new(ended));
        let room = CaptureRoom::new(bytes - kept_back);
        Ok(Recorder { tasks, thread, begun, ended, ready, room })
    }

    /// Begins to capture a vNIC: `snap_bytes` of each packet. The engine's packets go to the
    /// returned queue. `capture` is the caller's name for it. Only the recorder's thread uses the
    /// file, and reports whether it is usable ([`Recorder::next_begun`]).
    #[must_use]
    pub fn begin(
        &self,
        capture: u64,
        vnic: VnicId,
        file: OwnedFd,
        snap_bytes: u32,
    ) -> Arc<PacketQueue> {
        let queue = Arc::new(PacketQueue::new(snap_bytes as usize, &self.room));
        let kept = queue.clone();
        self.send(Task::Begin { capture, vnic, file, snap_bytes, queue: kept });
        queue
    }

    /// Ends a capture; what came of it is told.
    pub fn end(&self, capture: u64) {
        self.send(Task::End { capture });
    }

    /// A session tells through this memory from now on, which it is to be given after this.
    pub fn read(&self, session: u64, memory: Window) {
        self.send(Task::process(session, memory));
    }

    /// It has ended, or tells no more.
    pub fn read_no_more(&self, session: u64) {
        self.send(Task::EndProcess { session });
    }

    /// The reports of a session about this end of a link may be trusted. `vnics`: its own and the
    /// peer's.
    pub fn trace(&self, session: u64, end: TracedEnd, vnics: [VnicId; 2]) {
        self.send(Task::Link { session, end, vnics });
    }

    /// It no longer is, once what was told until now is read.
    pub fn untrace(&self, session: u64, qpn: Qpn, peer_qpn: Qpn) {
        self.send(Task::EndLink { session, qpn, peer_qpn });
    }

    /// There is a session that cannot tell.
    pub fn miss(&self) {
        self.send(Task::Untraced);
    }

    /// Closes unneeded files, which may block for long.
    pub fn discard(&self, files: Vec<OwnedFd>) {
        self.send(Task::Discard(files));
    }

    /// A capture that has begun; or why its file will not do. It still wants to be ended.
    pub fn next_begun(&self) -> Option<(u64, Option<Errno>)> {
        lock(&self.begun).try_recv().ok()
    }

    /// Readable when [`Recorder::next_begun`] or [`Recorder::next_ended`] has something.
    pub fn ready(&self) -> &EventFd {
        &self.ready
    }

    /// A capture that is over, and its file complete.
    pub fn next_ended(&self) -> Option<(u64, Summary)> {
        lock(&self.ended).try_recv().ok()
    }

    fn send(&self, task: Task) {
        // The thread lives as long as we do.
        let _ = self.tasks.as_ref().map(|tasks| tasks.send(task));
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
