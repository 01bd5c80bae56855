//! Tests captures one after another, and side by side.

use super::*;
use crate::capture_recorder::packet_queue::{CaptureRoom, PacketQueue};
use crate::capture_recorder::packets_of_traces::TracedEnd;
use omniverb_link::Tracer;
use omniverb_link::captured_operations_ring::{KEEP_MAX, Kind, TRACE_BYTES};
use omniverb_ring::Window;
use omniverb_terms::{Qpn, Service};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

const VNIC: VnicId = VnicId(1);

fn file() -> OwnedFd {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("omniverb-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    let file = std::fs::File::create_new(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file.into()
}

struct Bench {
    thread: Thread,
    ended: mpsc::Receiver<(u64, Summary)>,
    memory: Window,
    tracer: Tracer,
}

impl Bench {
    fn new() -> Bench {
        let ((_, tasks), (begun, _), (tell, ended)) =
            (mpsc::channel(), mpsc::channel(), mpsc::channel());
        let ready = Arc::new(EventFd::new().unwrap());
        let thread = Thread::new(tasks, begun, tell, ready, 1 << 20);
        let memory = Window::private(TRACE_BYTES);
        let tracer = Tracer::new(&memory).unwrap();
        Bench { thread, ended, memory, tracer }
    }

    fn begin(&mut self, capture: u64) {
        let (file, queue) = (file(), Arc::new(PacketQueue::new(100, &CaptureRoom::new(1 << 20))));
        let (vnic, snap_bytes) = (VNIC, 100);
        self.thread.apply(Task::Begin { capture, vnic, file, snap_bytes, queue });
    }

    fn process(&mut self) {
        self.thread.apply(Task::process(5, self.memory.clone()));
    }

    fn trace(&mut self) {
        self.process();
        self.link();
    }

    fn link(&mut self) {
        let (local, remote) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let (qpn, peer_qpn, service) = (Qpn(0x11), Qpn(0x22), Service::Rc);
        let end = TracedEnd { qpn, peer_qpn, service, local, remote };
        self.thread.apply(Task::Link { session: 5, end, vnics: [VNIC; 2] });
    }

    fn tell(&self) {
        let (qpn, peer_qpn, time) = (Qpn(0x11), Qpn(0x22), clock::now());
        let (kind, path_mtu) = (Kind::FetchAdd, 1);
        let trace = Trace { kind, qpn, peer_qpn, time, path_mtu, ..Trace::default() };
        assert!(self.tracer.record(&trace, 0, &[]));
    }

    fn end(&mut self, capture: u64) -> Summary {
        self.thread.apply(Task::End { capture });
        let (number, summary) = self.ended.try_recv().unwrap();
        assert_eq!(number, capture);
        summary
    }
}

#[test]
fn a_capture_has_nothing_of_the_one_before() {
    let mut bench = Bench::new();
    bench.begin(1);
    bench.trace();
    bench.tell();
    assert_eq!(bench.end(1).packets, 1);
    // The process has not heard yet that it is over.
    bench.tell();
    bench.thread.apply(Task::EndProcess { session: 5 });
    bench.begin(2);
    let summary = bench.end(2);
    assert_eq!((summary.packets, summary.refused), (0, 0), "{summary:?}");
}

#[test]
fn traces_written_before_the_first_read_are_complete() {
    let mut bench = Bench::new();
    assert_eq!(bench.tracer.keep(), 0);
    let task = Task::process(5, bench.memory.clone());
    assert_eq!(bench.tracer.keep(), KEEP_MAX as u16, "the process may have the memory by now");
    bench.begin(1);
    bench.thread.apply(task);
    assert_eq!(bench.tracer.keep(), 100);
}

#[test]
fn the_later_of_two_captures_has_less() {
    let mut bench = Bench::new();
    bench.begin(1);
    bench.trace();
    bench.tell();
    bench.begin(2);
    bench.tell();
    assert_eq!(bench.end(2).packets, 1);
    assert_eq!(bench.end(1).packets, 2);
}

#[test]
fn traces_of_a_process_that_ends_at_once_are_complete() {
    let mut bench = Bench::new();
    bench.begin(1);
    bench.process();
    // It is quicker than we are: it tells, is read, and ends before we hear of its link.
    bench.tell();
    bench.thread.look();
    bench.link();
    let (session, qpn, peer_qpn) = (5, Qpn(0x11), Qpn(0x22));
    bench.tell();
    bench.thread.apply(Task::EndLink { session, qpn, peer_qpn });
    bench.thread.apply(Task::EndProcess { session });
    let summary = bench.end(1);
    assert_eq!((summary.packets, summary.refused), (2, 0), "{summary:?}");
    assert!(bench.thread.processes.find(session).is_none(), "nothing is kept back");
}
