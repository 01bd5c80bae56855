//! Lists the fuzz targets as plain functions of bytes. libFuzzer calls them
//! (`src/bin/fuzzer.rs`), and where there is none, a driver with seeded random inputs does
//! (`src/bin/driver.rs`).
//!
//! In: bytes. Out: nothing, or a panic: then the bytes are a bug report.

mod carried_sockets;
mod dma;
mod plausible_inputs;
mod light_connections;
mod ring;
mod rsocket;

// The bench of the device's own tests, and its hostile peer.
#[allow(dead_code)]
#[path = "../../rnic/device/tests/device/fake_engine.rs"]
mod fake_engine;
#[allow(dead_code)]
#[path = "../../rnic/device/tests/device/fake_platform.rs"]
mod fake_platform;
#[allow(dead_code)]
#[path = "../../rnic/device/tests/device/fuzz_input.rs"]
mod fuzz_input;
#[allow(dead_code)]
#[path = "../../rnic/device/tests/device/guarded_buffer.rs"]
mod guarded_buffer;
#[allow(dead_code)]
#[path = "../../rnic/device/tests/device/hostile_peer_input.rs"]
mod hostile_peer_input;
#[allow(dead_code)]
#[path = "../../rnic/device/tests/device/two_device_fixture.rs"]
mod two_device_fixture;
#[allow(dead_code)]
#[path = "../../rnic/device/tests/device/work_request_helpers.rs"]
mod work_request_helpers;

// The daemon's configuration, which is part of a program.
#[allow(dead_code)]
#[path = "../../host/daemon/src/allow_configuration.rs"]
mod allow_configuration;
#[allow(dead_code)]
#[path = "../../host/daemon/src/configuration.rs"]
mod configuration;
#[allow(dead_code)]
#[path = "../../host/daemon/src/vnic_configuration.rs"]
mod vnic_configuration;

// HTTP requests for the daemon's metrics.
#[allow(dead_code)]
#[path = "../../host/daemon/src/metrics/http_request.rs"]
mod http_request;

// What is said at QEMU's monitor, which is part of another.
#[allow(dead_code)]
#[path = "../../tools/omniverb/src/vm/qemu_monitor.rs"]
mod qemu_monitor;

// What QEMU says to who maps memory into a machine.
#[allow(dead_code)]
#[path = "../../tools/omniverb/src/vm/vhost_user.rs"]
mod vhost_user;

pub use carried_sockets::{carry, gateway, socket_broker};
pub use dma::dma_peer;
pub use plausible_inputs::{Random, input, mutated};
pub use light_connections::light;
pub use ring::ring_consumer;
pub use rsocket::rsocket_peer;

/// A target's name and body.
pub type Target = (&'static str, fn(&[u8]));

/// All targets; `README.md` says what each is for.
pub const TARGETS: &[Target] = &[
    ("ring_consumer", ring_consumer),
    ("link_records", link_records),
    ("session_decode", session_decode),
    ("daemon_tables", daemon_tables),
    ("pins", pins),
    ("wire_packet", wire_packet),
    ("vgid", vgid),
    ("psp", psp),
    ("transport_connection", transport_connection),
    ("engine_link", engine_link),
    ("handover", handover),
    ("engine_trace", engine_trace),
    ("cm_message", cm_message),
    ("rsocket_peer", rsocket_peer),
    ("dma_peer", dma_peer),
    ("hostile_daemon", hostile_daemon),
    ("imports", imports),
    ("opened", opened),
    ("kernel_addresses", kernel_addresses),
    ("kernel_maps", kernel_maps),
    ("configuration", configuration_file),
    ("metrics_request", metrics_request),
    ("netns_helper", netns_helper),
    ("monitor", qemu_monitor),
    ("vhost", qemu_vhost),
    ("rates_and_faults", rates_and_faults),
    ("carry", carry),
    ("gateway", gateway),
    ("socket_broker", socket_broker),
    ("light", light),
];

/// A GID that claims to be a tenant's: what it says, if it says anything, is said so by it alone.
pub fn vgid(bytes: &[u8]) {
    use omniverb_terms::Gid;
    use omniverb_vgid::{Codec, TenantKey, UnderlayNetwork, VirtualNetwork};
    let Some((gid, key)) = bytes.split_first_chunk::<16>() else { return };
    let key = key.first_chunk::<16>().copied().unwrap_or_default();
    let prefix = [0x2001, 0x0db8, 0, 0, 0, 0, 0, 0].into();
    let wide = UnderlayNetwork::ipv6(prefix, 88);
    for underlay in [Some(UnderlayNetwork::Ipv4), wide].into_iter().flatten() {
        let codec = Codec::new(&TenantKey::new(key), VirtualNetwork::ANY, underlay);
        let codec = codec.expect("a forgery shows");
        // With the key anybody can make one; without, random bytes are none.
        let gid = Gid::new(*gid);
        if let Some(found) = codec.decipher(gid) {
            assert_eq!(codec.encipher(found.address), Some(gid));
        }
    }
}

/// Packets and messages of the handshake, of somebody without the keys.
pub fn psp(bytes: &[u8]) {
    use omniverb_psp::key_handshake::{Accepted, HandshakeAddresses, Pending};
    use omniverb_psp::{Header, MasterKey, Receiver};
    let key = omniverb_vgid::TenantKey::new([1; 16]);
    let here = std::net::Ipv4Addr::LOCALHOST.into();
    let ends = HandshakeAddresses { sender: here, receiver: here };
    if let Ok(header) = Header::decode(bytes) {
        let written = header.encode().expect("what was read fits");
        assert_eq!((&written[..2], &written[3..]), (&bytes[..2], &bytes[3..16]));
    }
    let mut receiver = Receiver::new(MasterKey::new([2; 32]));
    let numbers = bytes.first().map_or(0, |count| count % 4);
    (0..numbers).for_each(|n| drop(receiver.give(7, &[n; 40])));
    assert!(receiver.open(&mut bytes.to_vec()).is_err());
    assert!(Accepted::new(&[&key], ends, bytes).is_none());
    let pending = Pending::new(&key, ends, [3; 16]).expect("a request");
    assert!(pending.finish(bytes).is_err());
}

/// A whole device whose peer does what the bytes say: requests with any fields, words of the
/// shared memory changed at any time, doorbells, floods.
pub fn link_records(bytes: &[u8]) {
    hostile_peer_input::run(bytes);
}

/// What QEMU says at its monitor while a window is plugged in, in pieces of any size: it is said so
/// much only, all of it whole lines, and the window's file goes along once.
pub fn qemu_monitor(bytes: &[u8]) {
    use qemu_monitor::{Beside, Next, Talk};
    let Some((step, said)) = bytes.split_first() else { return };
    let (mut talk, mut asked, mut files) = (Talk::new(60, 8 << 20), 0, 0);
    for piece in said.chunks(usize::from(*step) + 1) {
        talk.hear(piece);
        loop {
            match talk.next() {
                Next::Listen => break,
                Next::Say(text, beside) => {
                    (asked, files) = (asked + 1, files + usize::from(beside == Beside::Window));
                    assert!(asked <= 6 && files <= 1);
                    assert!(text.len() < 1024 && text.find('\n') == Some(text.len() - 1), "{text}");
                }
                Next::Over(_) => return,
            }
        }
    }
}

/// What QEMU says to a device that is played, a message after the other: each is answered once at
/// most, by a message of the same kind; and what is said to be an answer to the device's requests.
pub fn qemu_vhost(bytes: &[u8]) {
    use vhost_user::{Change, Device, HEAD_BYTES, Head, State};
    for change in [Change::Map, Change::Unmap] {
        if let Some(answer) = bytes.first_chunk() {
            let _ = change.is_done(answer);
        }
    }
    let mut device = Device::new(4 << 30, State::default());
    let mut rest = bytes;
    while let Some((first, more)) = rest.split_first_chunk::<HEAD_BYTES>() {
        let Ok(head) = Head::read(first) else { return };
        let Some((body, next)) = more.split_at_checked(head.length) else { return };
        rest = next;
        let files = body.first().map_or(0, |byte| usize::from(byte % 3));
        let Ok((answer, _)) = device.hear(head, body, files) else { return };
        let Some(answer) = answer else { continue };
        let field = |at: usize| u32::from_ne_bytes(answer[at..at + 4].try_into().unwrap());
        assert_eq!((&answer[..4], field(4)), (&first[..4], 5));
        assert_eq!(answer.len(), HEAD_BYTES + field(8) as usize);
        assert!(answer.len() <= HEAD_BYTES + 2056);
    }
}

/// A control message: accepted ones mean the same when written again.
pub fn session_decode(bytes: &[u8]) {
    use omniverb_session::{decode, encode, limits::MESSAGE_BYTES_MAX};
    machine_says(bytes);
    carried(bytes);
    let Ok((tag, message)) = decode(bytes) else { return };
    let mut out = [0; MESSAGE_BYTES_MAX];
    let length = encode(tag, &message, &mut out);
    assert_eq!(decode(&out[..length]), Ok((tag, message)));
}

/// Which pages of its memory a guest names: what is accepted is in that memory, each page once, and
/// as much as was asked for.
pub fn pins(bytes: &[u8]) {
    use omniverb_session::pinned_pages::{Layout, RUNS_MAX, Run};
    let (words, _) = bytes.as_chunks();
    let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
    let [below, above, all, length] = [(); 4].map(|()| words.next().unwrap_or(0));
    let layout = Layout { below, above, bytes: all };
    if !layout.is_sound(all) {
        return;
    }
    let runs: Vec<Run> = words.map(|word| Run { word }).collect();
    let Ok(places) = layout.places(&runs, length) else { return };
    assert!(!places.is_empty() && places.len() <= RUNS_MAX);
    let mut ranges: Vec<_> = places.iter().map(|p| p.offset..p.offset + p.length).collect();
    ranges.sort_by_key(|range| range.start);
    assert_eq!(places.iter().map(|place| place.length).sum::<u64>(), length);
    assert!(ranges.iter().all(|range| range.start < range.end && range.end <= all));
    let firmware = |at: u64| (0xa_0000..0x10_0000).contains(&at) && at < below;
    assert!(!ranges.iter().any(|range| firmware(range.start) || firmware(range.end - 1)));
    assert!(ranges.windows(2).all(|two| two[0].end <= two[1].start));
}

/// What comes by a virtual machine's port, however it is cut, and at its door.
fn machine_says(bytes: &[u8]) {
    use omniverb_session::{limits::MESSAGE_BYTES_MAX, vm};
    let step = bytes.first().map_or(1, |first| usize::from(*first) + 1);
    let mut frames = vm::Frames::default();
    'stream: for piece in bytes.chunks(step) {
        frames.feed(piece);
        loop {
            match frames.next_frame() {
                Ok(Some(frame)) => {
                    assert!(frame.bytes.len() <= frame.kind.bytes_max());
                    carried(&frame.bytes);
                }
                Ok(None) => break,
                Err(_) => break 'stream,
            }
        }
    }
    if let Ok((tag, message)) = vm::decode(bytes) {
        match &message {
            vm::Message::TellPinned(told) => {
                assert_eq!(
                    told.runs().map(<[_]>::len),
                    Some(told.count as usize)
                        .filter(|n| { *n <= omniverb_session::pinned_pages::RUNS_MAX })
                );
            }
            vm::Message::QueryPins(asked) => {
                assert!([0, asked.count as usize].contains(&asked.named().len()));
            }
            _ => {}
        }
        let mut out = [0; MESSAGE_BYTES_MAX];
        let length = vm::encode(tag, &message, &mut out);
        assert_eq!(vm::decode(&out[..length]), Ok((tag, message)));
    }
}

/// What is said of a datagram that a machine's agent carries: accepted, it means the same when
/// written again.
fn carried(bytes: &[u8]) {
    use omniverb_sys::proxied_udp::ProxiedHeader;
    if let Some((head, payload)) = ProxiedHeader::read(bytes) {
        let again = [&head.written()[..], payload].concat();
        assert_eq!(ProxiedHeader::read(&again), Some((head, payload)));
    }
}

/// The daemon's tables under clients that say anything.
pub fn daemon_tables(bytes: &[u8]) {
    omniverb_tenancy::testing::random_driver::exercise(bytes);
}

/// A datagram from the network, and the identification it may have had.
pub fn wire_packet(bytes: &[u8]) {
    omniverb_wire::testing::fuzz_entry_points::packet(bytes);
}

/// A connection whose peer sends anything.
pub fn transport_connection(bytes: &[u8]) {
    omniverb_transport::testing::fuzz_entry_points::connection(bytes);
}

/// A queue pair in a state that a hostile process has written.
pub fn handover(bytes: &[u8]) {
    omniverb_datapath::testing::fuzz_entry_points::handover(bytes);
}

/// A queue pair of the engine whose application and network both do anything.
pub fn engine_link(bytes: &[u8]) {
    omniverb_engine::testing::fuzz_entry_points::link(bytes);
}

/// What a process tells of its direct links while packets are captured.
pub fn engine_trace(bytes: &[u8]) {
    omniverb_engine::testing::fuzz_entry_points::trace(bytes);
}

/// A message of the connection manager.
pub fn cm_message(bytes: &[u8]) {
    omniverb_cm::testing::fuzz_entry_points::message(bytes);
}

/// A process whose daemon says and hands over anything.
pub fn hostile_daemon(bytes: &[u8]) {
    omniverb_client::testing::hostile_daemon::daemon_says(bytes);
}

/// A process of which another imports, and one that imports, where the other says anything.
pub fn imports(bytes: &[u8]) {
    omniverb_client::testing::imports(bytes);
}

/// Two processes that have a queue pair of an XRC domain open, where the other says anything.
pub fn opened(bytes: &[u8]) {
    omniverb_client::testing::opened(bytes);
}

/// What the kernel says of interfaces and addresses.
pub fn kernel_addresses(bytes: &[u8]) {
    omniverb_sys::testing::fuzz_entry_points::addresses(bytes);
}

/// `/proc/self/maps`, in pieces.
pub fn kernel_maps(bytes: &[u8]) {
    omniverb_sys::testing::fuzz_entry_points::maps(bytes);
}

/// What the daemon and its privileged helper say to each other.
pub fn netns_helper(bytes: &[u8]) {
    omniverb_netns::testing::fuzz_entry_points::protocol(bytes);
}

/// A configuration file.
pub fn configuration_file(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(configuration) = configuration::Configuration::parse(&text, "x") {
        let _ = (configuration.limits(), configuration.configured());
    }
}

/// An HTTP request for metrics, in pieces: its verdict comes by the byte that completes it, and
/// stays.
pub fn metrics_request(bytes: &[u8]) {
    use http_request::{REQUEST_BYTES_MAX, Verdict, read};
    let Some((length, bytes)) = bytes.split_first() else { return };
    let mut verdict = Verdict::Incomplete;
    for end in (0..=bytes.len()).step_by(usize::from(*length).max(1)) {
        let now = read(&bytes[..end]);
        assert!(verdict == Verdict::Incomplete || now == verdict, "{verdict:?}, then {now:?}");
        assert!(now != Verdict::Incomplete || end < REQUEST_BYTES_MAX);
        verdict = now;
    }
}

/// Rates, sizes and faults as people write them: what is shown is understood, and means the same.
pub fn rates_and_faults(bytes: &[u8]) {
    use omniverb_session::{network_fault_text, tc_units};
    let text = String::from_utf8_lossy(bytes);
    if let Ok(number) = tc_units::rate(&text) {
        assert_eq!(tc_units::rate(&tc_units::show_rate(number)), Ok(number));
        let _ = tc_units::burst_for(number);
    }
    if let Ok(number) = tc_units::size(&text) {
        assert_eq!(tc_units::size(&tc_units::show_size(number)), Ok(number));
    }
    if let Ok(count) = tc_units::ops(&text) {
        assert_eq!(tc_units::ops(&tc_units::show_ops(count.into())), Ok(count));
    }
    if let Ok(Some(faults)) = network_fault_text::faults(&text) {
        assert_eq!(network_fault_text::faults(&faults.show()), Ok(Some(faults)));
    }
}
