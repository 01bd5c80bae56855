//! Random inputs that get past the first check of their target.

use omniverb_session::{VERSION, decode, limits::MESSAGE_BYTES_MAX};
use std::sync::OnceLock;

/// A small generator that can be repeated.
pub struct Random(u64);

impl Random {
    /// Started with any number.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() >> 16) as usize % end.max(1)
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.number() as u8).collect()
    }
}

/// An input for this target.
pub fn input(target: &str, random: &mut Random) -> Vec<u8> {
    match target {
        "session_decode" => message(random),
        "handover" => omniverb_datapath::testing::fuzz_entry_points::plausible_handover(|end| {
            random.below(end as usize) as u64
        }),
        "engine_trace" => (0..random.below(12)).flat_map(|_| record(random)).collect(),
        "daemon_tables" => (0..random.below(60)).flat_map(|_| step(random)).collect(),
        "wire_packet" | "transport_connection" => packets(target, random),
        "psp" => sealed(random),
        "rsocket_peer" => socket(random),
        "dma_peer" => crate::dma::input(random),
        "kernel_addresses" => (0..random.below(6)).flat_map(|_| netlink(random)).collect(),
        "kernel_maps" => text(random, &MAPS),
        "configuration" => text(random, &SETTINGS),
        "metrics_request" => text(random, &REQUESTS),
        "rates_and_faults" => text(random, &WORDS),
        "monitor" => conversation(random),
        "vhost" => (0..random.below(20)).flat_map(|_| vhost(random)).collect(),
        "pins" => pins(random),
        _ => {
            let length = random.below(3000);
            random.bytes(length)
        }
    }
}

/// A header that is right but for what it says, or the beginning of a request or an answer.
fn sealed(random: &mut Random) -> Vec<u8> {
    let length = random.below(100);
    let mut bytes = random.bytes(36 + length);
    if random.below(3) == 0 {
        bytes[..8].copy_from_slice(b"OVPSP\0\x01\x01");
        bytes[7] += random.below(2) as u8;
        bytes.truncate([40, 60, 41][random.below(3)]);
    } else {
        let spi = random.below(4) as u8;
        bytes[..8].copy_from_slice(&[17, 1, random.below(6) as u8, 1, 0, 0, 0, spi]);
    }
    bytes
}

/// A machine's memory, and runs of pages that are mostly there.
fn pins(random: &mut Random) -> Vec<u8> {
    // Around the firmware's.
    let below = random.below(300) as u64;
    let (above, rest) = (below + random.below(64) as u64, random.below(64) as u64);
    let mut runs = Vec::new();
    let mut pages = 0;
    for _ in 0..random.below(8) {
        let (first, more) = (random.below(400) as u64, random.below(4) as u64);
        pages += more + 1;
        runs.push(if random.below(20) == 0 { random.number() } else { first << 12 | more });
    }
    let head = [below, above, below + rest, pages].map(|pages| pages << 12);
    head.into_iter().chain(runs).flat_map(u64::to_le_bytes).collect()
}

/// What QEMU says: mostly what was asked, in its order.
fn conversation(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![random.number() as u8];
    bytes.extend(b"{\"QMP\": {}}\r\n");
    for id in 1..=6 {
        let line = match random.below(12) {
            0 => format!("{{\"error\": {{}}, \"id\": {id}}}"),
            1 => "{\"event\": \"X\"}".to_owned(),
            2 => String::from_utf8_lossy(&random.bytes(9)).into_owned(),
            _ => {
                let fd = random.number() >> random.below(64);
                format!("{{\"return\": {{\"fd\": {fd}, \"fdset-id\": {id}}}, \"id\": {id}}}")
            }
        };
        bytes.extend(line.as_bytes());
        bytes.extend(b"\r\n");
    }
    bytes
}

/// A message of QEMU's to a device, mostly of a right length.
fn vhost(random: &mut Random) -> Vec<u8> {
    let request = random.below(46) as u32;
    let length = [0, 8, 8, 12, 28, random.below(520)][random.below(6)];
    let flags = if random.below(12) == 0 { random.number() as u32 } else { 1 | 8 * (request % 2) };
    let mut body = random.bytes(length);
    if random.below(2) == 0 {
        body.iter_mut().skip(random.below(9)).for_each(|byte| *byte = 0);
    }
    let head = [request, flags, length as u32].map(u32::to_ne_bytes).concat();
    [head, body].concat()
}

/// Kinds of messages and their lengths, found out by asking.
fn kinds() -> &'static [(u16, usize)] {
    static KINDS: OnceLock<Vec<(u16, usize)>> = OnceLock::new();
    KINDS.get_or_init(|| {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let mut found = Vec::new();
        for kind in 1..100u16 {
            bytes[..2].copy_from_slice(&VERSION.to_ne_bytes());
            bytes[2..4].copy_from_slice(&kind.to_ne_bytes());
            found.extend(
                (16..bytes.len()).find(|end| decode(&bytes[..*end]).is_ok()).map(|end| (kind, end)),
            );
        }
        found
    })
}

/// A message whose numbers are small enough to mean something, sometimes.
fn message(random: &mut Random) -> Vec<u8> {
    let (kind, length) = kinds()[random.below(kinds().len())];
    let mut bytes = vec![0; length];
    for word in bytes.chunks_mut(4) {
        let number = match random.below(6) {
            0 => random.number() as u32,
            1 => 0,
            _ => random.below(8) as u32,
        };
        word.copy_from_slice(&number.to_ne_bytes()[..word.len()]);
    }
    // The vNICs of the bench have these addresses.
    for at in (16..length.saturating_sub(16)).step_by(4) {
        if random.below(6) == 0 {
            let address =
                [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, random.below(5) as u8];
            bytes[at..at + 16].copy_from_slice(&address);
        }
    }
    bytes[..2].copy_from_slice(&VERSION.to_ne_bytes());
    bytes[2..4].copy_from_slice(&kind.to_ne_bytes());
    if random.below(20) != 0 {
        bytes[4..8].fill(0);
    }
    if random.below(20) == 0 {
        let end = random.below(length + 1);
        bytes.truncate(end);
    }
    bytes
}

/// A record of a trace, right in most of its words.
fn record(random: &mut Random) -> Vec<u8> {
    let kind = [1, 2, 3, 4, 5, 6, 16, 17, 18, 19][random.below(10)];
    let flags = if random.below(3) == 0 { random.number() & 0x7ff_ff00 } else { 0 };
    let (mtu, keep) = ([1, 3, 5, 6][random.below(4)], [4096, 4096, 10, 0][random.below(4)]);
    let first = random.below(900) as u64;
    let second = [0, 0, 0, 16384, random.number()][random.below(5)];
    let length = if [1, 2, 6, 17].contains(&kind) && keep == 4096 { first } else { 0 };
    let position = random.number() & 0xffff_ffff_ffff | keep << 48;
    let header = 1 << 63 | 7 << 59 | (kind | flags) << 32 | length;
    let mut words = [header, random.number(), 0x22_0000_11, position, 0x7000, 9, first, second];
    words[2] |= mtu << 48 | random.number() << 56;
    if random.below(20) == 0 {
        words[random.below(8)] = random.number();
    }
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend(random.bytes(length as usize));
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// What a socket's peer says, small numbers mostly.
fn socket(random: &mut Random) -> Vec<u8> {
    let mut bytes = crate::rsocket::beginning(random.number() as u8);
    for _ in 0..random.below(60) {
        bytes.push(random.number() as u8);
        let number = match random.below(4) {
            0 => random.number() as u32,
            1 => 4 << 29 | random.below(200) as u32,
            _ => random.below(5000) as u32,
        };
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

fn step(random: &mut Random) -> Vec<u8> {
    let mut bytes = random.bytes(2);
    if bytes[0] % 16 == 5 {
        bytes.extend(random.bytes(4));
    }
    if bytes[0] % 16 > 6 {
        let message = loop {
            let message = message(random);
            if message.len() < 256 {
                break message;
            }
        };
        bytes.push(message.len() as u8);
        bytes.extend(message);
    }
    bytes
}

/// `input` with something changed, as fuzzers do.
pub fn mutated(input: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        match random.below(5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.number() as u8),
            2 => bytes.extend_from_within(at..),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = [random.number() as u8, *byte ^ 1 << random.below(8), 0, 0xff]
                        [random.below(4)];
                }
            }
        }
        bytes.truncate(4096);
    }
    bytes
}

/// Packets whose headers are as long as their opcodes say; for a connection, each with its length
/// before it.
fn packets(target: &str, random: &mut Random) -> Vec<u8> {
    let single = target == "wire_packet";
    let count = if single { 1 } else { random.below(30) };
    let mut bytes = Vec::new();
    for _ in 0..count {
        let opcode = (random.below(8) << 5 | random.below(0x18)) as u8;
        let mut packet = vec![opcode, 0x40, 0xff, 0xff, 0, 0, 0, 7, 0x80, 0, 0];
        packet.push(random.below(40) as u8);
        let length = [0, 4, 8, 16, 28, 32, 64, 256][random.below(8)] + random.below(2) * 4;
        packet.extend(random.bytes(length + 4));
        if !single {
            bytes.push(packet.len() as u8);
        }
        bytes.extend(packet);
    }
    bytes
}

/// A message of the kernel: an interface or an address, with attributes.
fn netlink(random: &mut Random) -> Vec<u8> {
    let (kind, header) = [(16_u16, 16), (20, 8), (20, 8), (3, 4), (2, 4)][random.below(5)];
    let mut body = vec![2, 24, 0, [0, 253, 254][random.below(3)], 1, 0, 0, 0];
    body.resize(header, 1);
    for _ in 0..random.below(5) {
        let length = [4, 16, 0, 3][random.below(4)];
        body.extend((length as u16 + 4).to_ne_bytes());
        body.extend((1 + random.below(8) as u16).to_ne_bytes());
        body.extend(random.bytes(length));
    }
    let mut bytes = (body.len() as u32 + 16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend([0; 10]);
    bytes.extend(body);
    bytes
}

const MAPS: [&str; 12] = [
    "55d0c0a00000-55d0c0b21000 rw-p 00000000 00:00 0",
    "7f00-7f01 r-xs 0000f000 103:1f 4294967296 /tmp/with space (deleted)",
    "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]",
    "\n",
    "\n",
    "-",
    " ",
    "rw-s",
    "0123456789abcdef",
    "99999999999999999999",
    ":",
    "          [heap]",
];
const REQUESTS: [&str; 12] = [
    "\u{1}",
    "\u{9}",
    "GET ",
    "HEAD ",
    "POST ",
    "/metrics",
    "?name=x",
    " HTTP/1.1",
    " HTTP/1.0",
    "\r\n",
    "\r\n\r\n",
    "Host: localhost\r\n",
];
const SETTINGS: [&str; 21] = [
    "[vnic]\n",
    "[vnic.host]\n",
    "[vnic.\"net-5\"]\n",
    "[process]\n",
    "queue_pairs = ",
    "links = ",
    "probes = ",
    "processes = ",
    "log_level = \"debug\"\n",
    "datapath = \"forwarded\"\n",
    "rate = \"8mbit\"\n",
    "burst = \"64k\"\n",
    "ops = \"100k\"\n",
    "faults = \"loss=1%,delay=2ms\"\n",
    "idle_exit_seconds = ",
    "7\n",
    "-1\n",
    "18446744073709551616\n",
    "1e400\n",
    "[[vnic]]\n",
    "= {}\n",
];
const WORDS: [&str; 24] = [
    "loss=",
    "duplicate=",
    "reorder=",
    "corrupt=",
    "mark=",
    "delay=",
    "jitter=",
    "limit=",
    "seed=",
    "1%",
    "0.0001",
    "100%",
    "10s",
    "2ms",
    "1.5",
    "us",
    ",",
    "none",
    "kbit",
    "gibps",
    "k",
    "g",
    "340282366920938463463374607431768211455",
    ".999999999",
];

/// Words in any order.
fn text(random: &mut Random, words: &[&str]) -> Vec<u8> {
    let count = random.below(12);
    let text: String = (0..count).map(|_| words[random.below(words.len())]).collect();
    text.into_bytes()
}
