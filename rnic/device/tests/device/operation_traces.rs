//! Tests what a queue pair traces while packets are captured: every request and every answer, once.

use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::{
    Options, Pair, QKEY, gid, outcomes, post, receive, to_init, to_rts,
};
use crate::work_request_helpers::{Work, part, remote, whole};
use omniverb_device::FarEnd;
use omniverb_device::granted_peer_pages::Grant;
use omniverb_device::send_work_request::Destination;
use omniverb_device::{Qp, access, status};
use omniverb_link::captured_operations_ring::{
    ACKNOWLEDGED, Key, Kind, NOT_READY, TRACE_BYTES, Trace,
};
use omniverb_link::record::IMMEDIATE;
use omniverb_link::{TraceReader, Tracer};
use omniverb_ring::Window;
use omniverb_terms::{Placement, Rkey, Selectivity, Service};
use std::sync::Arc;

const PSN: u32 = 0xff_fffe;

struct TraceCapture {
    tracer: Arc<Tracer>,
    reader: TraceReader,
}

impl TraceCapture {
    fn new() -> TraceCapture {
        let memory = Window::private(TRACE_BYTES);
        let mut reader = TraceReader::new(&memory).unwrap();
        reader.want(4096);
        reader.publish();
        TraceCapture { tracer: Arc::new(Tracer::new(&memory).unwrap()), reader }
    }

    fn all(&mut self) -> Vec<(Trace, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some((trace, payload)) = self.reader.take().unwrap() {
            all.push((trace, payload.to_vec()));
        }
        self.reader.publish();
        all
    }

    fn kinds(&mut self) -> Vec<(Kind, u32)> {
        self.all().iter().map(|(trace, _)| (trace.kind, trace.psn.number())).collect()
    }
}

fn options(service: Service) -> Options {
    Options::new(service).with(|options| {
        options.attributes.sq_psn = PSN;
        options.attributes.path_mtu = 1;
    })
}

fn traced(pair: &Pair, options: &Options) -> ([Arc<Qp>; 2], TraceCapture) {
    let (qps, trail) = (pair.connected(options), TraceCapture::new());
    qps[0].trace(qps[1].number, &trail.tracer);
    (qps, trail)
}

#[test]
fn sends_and_their_acknowledgements() {
    let pair = Pair::new();
    let (qps, mut trail) = traced(&pair, &options(Service::Rc));
    let (here, there) = (Buffer::pattern(40_000, 1), Buffer::new(40_000));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    // Promised, and done at once.
    receive(&qps[1], 1, &[whole(&target)]);
    pair.clock.store(5_000_000_000, std::sync::atomic::Ordering::Relaxed);
    post(&qps[0], &Work::send(1).sge(part(&local, 0, 300)).immediate(77));
    let written = trail.all();
    let [(trace, payload)] = &written[..] else { panic!("{written:?}") };
    let flags = IMMEDIATE | ACKNOWLEDGED;
    assert_eq!((trace.kind, trace.flags, trace.psn.number()), (Kind::Send, flags, PSN));
    assert_eq!((trace.qpn, trace.peer_qpn), (qps[0].number, qps[1].number));
    assert_eq!((trace.messages, trace.path_mtu, trace.immediate), (1, 1, 77));
    assert_eq!((trace.first, trace.second, trace.time), (300, 0, 5_000_000_000));
    assert_eq!(payload, &here.read(0, 300));
    // Too long to be promised: traced when it leaves, in pieces, and when it was consumed.
    receive(&qps[1], 2, &[part(&target, 0, 100)]);
    receive(&qps[1], 3, &[whole(&target)]);
    post(&qps[0], &Work::send(2).sge(part(&local, 0, 100)));
    post(&qps[0], &Work::send(3).sge(whole(&local)));
    let written = trail.all();
    let what: Vec<_> =
        written.iter().map(|(t, bytes)| (t.psn.number(), t.second, bytes.len())).collect();
    assert_eq!(what, [(0, 0, 100), (1, 0, 16384), (1, 16384, 16384), (1, 32768, 7232)]);
    let whole: Vec<u8> = written[1..].iter().flat_map(|(_, payload)| payload.clone()).collect();
    assert_eq!(whole, here.all());
    assert_eq!(written.last().unwrap().0.flags, 0);
    pair.settle();
    let written = trail.all();
    let [(trace, _)] = &written[..] else { panic!("{written:?}") };
    assert_eq!((trace.kind, trace.psn.number(), trace.messages), (Kind::Acknowledge, 157, 3));
    assert_eq!(outcomes(&qps[0].send_cq).len(), 3);
    // What the peer receives it does not tell; what it sends, it tells for itself.
    assert_eq!(trail.kinds(), []);
}

#[test]
fn one_sided_requests_whichever_way_they_take() {
    let pair = Pair::new();
    let (qps, mut trail) = traced(&pair, &options(Service::Rc));
    let (here, there) = (Buffer::pattern(4096, 1), Buffer::new(4096));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    let shadow = Buffer::new(4096);
    let run = |trail: &mut TraceCapture| {
        let at = remote(&target, 0);
        let mut written = Vec::new();
        let mut all = |work: Work| {
            post(&qps[0], &work);
            pair.settle();
            written.extend(trail.all());
        };
        all(Work::write(1, at).sge(part(&local, 1024, 600)));
        all(Work::read(2, at).sge(part(&local, 0, 512)));
        all(Work::fetch_add(3, at, 5).sge(part(&local, 2048, 8)));
        all(Work::compare_swap(4, at, 1, 2).sge(part(&local, 2048, 8)));
        all(Work::atomic_write(5, at).sge(part(&local, 3000, 8)));
        all(Work::flush(6, at, 100, (Placement::GLOBAL, Selectivity::Range)));
        let expected = [1, 2, 3, 4, 5, 6].map(|id| (id, status::SUCCESS));
        assert_eq!(outcomes(&qps[0].send_cq), expected);
        written
    };
    let mediated = run(&mut trail);
    let grant = Grant {
        rkey: target.rkey,
        access: access::REMOTE,
        address: target.iova,
        length: 4096,
        page_start: target.iova,
        epoch: qps[1].epoch() as u32,
        window: shadow.window(0, 4096),
        backing: omniverb_device::granted_peer_pages::Backing::File,
    };
    assert!(qps[0].granted(qps[1].number, grant));
    let mapped = run(&mut trail);
    let content = here.read(1024, 600);
    for (written, first, way) in [(mediated, PSN, "mediated"), (mapped, 7, "mapped")] {
        let wrapped = |distance: u32| (first + distance) & 0xff_ffff;
        let written: Vec<_> = written.iter().filter(|(t, _)| t.kind != Kind::Acknowledge).collect();
        let kinds: Vec<_> =
            written.iter().map(|(trace, _)| (trace.kind, trace.psn.number())).collect();
        let expected = [
            (Kind::Write, wrapped(0)),
            (Kind::Read, wrapped(3)),
            (Kind::ReadData, wrapped(3)),
            (Kind::FetchAdd, wrapped(5)),
            (Kind::AtomicResult, wrapped(5)),
            (Kind::CompareSwap, wrapped(6)),
            (Kind::AtomicResult, wrapped(6)),
            (Kind::AtomicWrite, wrapped(7)),
            (Kind::ReadData, wrapped(7)),
            (Kind::Flush, wrapped(8)),
            (Kind::ReadData, wrapped(8)),
        ];
        assert_eq!(kinds, expected, "{way}");
        assert_eq!(written[0].1, content, "{way}");
        assert_eq!(
            (written[0].0.address, written[0].0.key),
            (target.iova, Key::Remote(target.rkey))
        );
        assert_eq!(written[2].1, content[..512], "{way}: what the READ brought");
        assert_eq!((written[5].0.first, written[5].0.second), (1, 2), "{way}");
        assert_eq!(written[7].1, here.read(3000, 8), "{way}: what was written");
        assert_eq!((written[9].0.first, written[9].0.immediate), (100, 1), "{way}");
        let before = u64::from_ne_bytes(content[..8].try_into().unwrap());
        assert_eq!(
            (written[4].0.first, written[6].0.first),
            (before, before.wrapping_add(5)),
            "{way}"
        );
    }
}

#[test]
fn what_is_refused_and_what_waits() {
    let pair = Pair::new();
    let (qps, mut trail) = traced(&pair, &options(Service::Rc));
    let (here, there) = (Buffer::pattern(4096, 1), Buffer::new(4096));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    post(&qps[0], &Work::send(1).sge(part(&local, 0, 10)));
    pair.settle();
    pair.wait(100_000);
    let written = trail.all();
    let [(trace, _)] = &written[..] else { panic!("{written:?}") };
    assert_eq!((trace.flags, trace.psn.number(), trace.code), (NOT_READY, PSN, 12));
    receive(&qps[1], 1, &[whole(&target)]);
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, 0)]);
    assert_eq!(trail.kinds(), [(Kind::Send, PSN)], "again, and this time it is taken");
    post(&qps[0], &Work::write(2, (target.iova, Rkey(target.rkey.0 + 1))).sge(part(&local, 0, 10)));
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(2, status::REM_ACCESS_ERR)]);
    let written = trail.all();
    let kinds: Vec<_> =
        written.iter().map(|(t, _)| (t.kind, t.psn.number(), t.messages, t.code)).collect();
    let psn = PSN + 1;
    assert_eq!(kinds, [(Kind::Write, psn, 2, 0), (Kind::Refusal, psn, 1, 2)]);
}

#[test]
fn datagrams_those_held_back_included() {
    let pair = Pair::new();
    let options = options(Service::Ud);
    let qps = [0, 1].map(|side| {
        let qp = pair.sides[side].qp(&options);
        to_init(&qp, &options);
        to_rts(&qp, &options);
        qp
    });
    let here = Buffer::pattern(4096, 1);
    let local = pair.sides[0].register(&here);
    let to = Destination { dgid: gid(1), sgid: gid(0), qpn: qps[1].number };
    post(&qps[0], &Work::send(1).sge(part(&local, 0, 10)).to(to, QKEY));
    let mut trail = TraceCapture::new();
    let joint = pair.joint(options.ring_bytes);
    let peer = omniverb_device::Peer {
        qpn: to.qpn,
        dgid: to.dgid,
        sgid: to.sgid,
        far_end: FarEnd::Process,
    };
    qps[0].attach_traced(peer, pair.endpoint(0, &joint), Some(&trail.tracer)).unwrap();
    post(&qps[0], &Work::send(2).sge(part(&local, 0, 4096)).to(to, QKEY));
    let written = trail.all();
    let what: Vec<_> = written
        .iter()
        .map(|(t, bytes)| (t.kind, t.psn.number(), t.key, t.path_mtu, bytes.len()))
        .collect();
    let second = (PSN + 1) & 0xff_ffff;
    let key = Key::Queue(QKEY);
    assert_eq!(what, [(Kind::Datagram, PSN, key, 5, 10), (Kind::Datagram, second, key, 5, 4096)]);
}

#[test]
fn a_reader_is_not_waited_for() {
    let pair = Pair::new();
    let (qps, mut trail) = traced(&pair, &options(Service::Rc));
    let (here, there) = (Buffer::pattern(1 << 20, 1), Buffer::new(1 << 20));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    let mut packets = 0;
    for id in 0..20 {
        receive(&qps[1], id, &[whole(&target)]);
        post(&qps[0], &Work::send(id).sge(whole(&local)));
        pair.settle();
        assert_eq!(outcomes(&qps[0].send_cq), [(id, 0)]);
        assert_eq!(there.all(), here.all());
        packets += (1 << 20) / 256 + 1;
    }
    let written: u64 = trail
        .all()
        .iter()
        .map(|(trace, bytes)| {
            (bytes.len() as u64).div_ceil(256)
                + u64::from(
                    trace.kind == Kind::Acknowledge
                        || trace.flags & ACKNOWLEDGED != 0
                            && trace.second + bytes.len() as u64 == trace.first,
                )
        })
        .sum();
    assert!(written > 7 << 20 >> 8, "{written}");
    assert_eq!(written + trail.reader.lost(), packets);
}

#[test]
fn only_what_is_asked_for_and_as_long() {
    let pair = Pair::new();
    let (qps, mut trail) = traced(&pair, &options(Service::Rc));
    let others = pair.connected(&options(Service::Rc));
    let (here, there) = (Buffer::pattern(64, 1), Buffer::new(64));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    let send = |qps: &[Arc<Qp>; 2]| {
        receive(&qps[1], 1, &[whole(&target)]);
        post(&qps[0], &Work::send(1).sge(whole(&local)));
        pair.settle();
        assert_eq!(outcomes(&qps[0].send_cq), [(1, 0)]);
    };
    send(&others);
    assert_eq!(trail.kinds(), []);
    // Little of each packet, if that is what is wanted.
    trail.reader.want(3);
    send(&qps);
    assert_eq!(trail.all()[0].1, here.read(0, 3));
    qps[0].untrace(Some(others[1].number));
    send(&qps);
    assert_eq!(trail.all().len(), 1);
    qps[0].untrace(Some(qps[1].number));
    send(&qps);
    assert_eq!(trail.kinds(), []);
    // From the beginning again.
    qps[0].trace(qps[1].number, &trail.tracer);
    send(&qps);
    assert_eq!(trail.kinds(), [(Kind::Send, PSN)]);
    qps[0].untrace(None);
    send(&qps);
    assert_eq!(trail.kinds(), []);
}
