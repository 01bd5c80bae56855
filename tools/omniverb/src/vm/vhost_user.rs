//! Encodes and decodes the vhost-user protocol between QEMU and the process that plays a device.
//!
//! It is the part of QEMU's `docs/interop/vhost-user.rst` for a device that has memory and nothing
//! else: virtio-pmem whose memory is a shared region (VIRTIO 1.2, 2.10 and 5.19).
//!
//! In: a head, and what is behind it. Out: what to answer, and what follows. No files and no
//! sockets are here. QEMU runs a hostile guest and may be another program by now: lengths are
//! bounded, what is not asked of such a device is refused, and nothing of the guest's memory is
//! looked at. The device's queue is never served: its only request is to flush what a disk has.

/// Bytes of a head: number of the request, flags, bytes behind it; each in this machine's order.
pub(crate) const HEAD_BYTES: usize = 12;
/// Bytes behind a head that QEMU may send: the most is a table of memory, or a configuration.
const BODY_BYTES_MAX: usize = 512;

/// Flags of a head: the version, an answer, an answer is wanted.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Features of the device: its memory is a shared region; VIRTIO 1; the protocol has features, too.
const REGION: u64 = 1 << 0;
const VERSION_1: u64 = 1 << 32;
const PROTOCOL: u64 = 1 << 30;
/// Features of the protocol: answers on request, requests of the device's, its configuration,
/// descriptors beside its requests, and memory that it has mapped. Not memory piece by piece (bit
/// 15): QEMU 11.1 looks then, when a driver begins, for the pieces that it told the last driver of,
/// by their addresses; mapped ones are not there any more, and QEMU ends (SIGSEGV).
const REPLY_ACK: u64 = 1 << 3;
const OFFERED: u64 = REPLY_ACK | 1 << 5 | 1 << 9 | 1 << 10 | MAPS;
const MAPS: u64 = 1 << 22;

/// Bytes before what a configuration has, and of the most that it has.
const CONFIG_HEAD: usize = 12;
const CONFIG_BYTES_MAX: usize = 256;
/// Regions that are listed, those that there are not with them.
const REGIONS: usize = 256;

/// Requests of QEMU's, by their numbers.
mod request {
    pub(super) const GET_FEATURES: u32 = 1;
    pub(super) const SET_FEATURES: u32 = 2;
    pub(super) const SET_VRING_BASE: u32 = 10;
    pub(super) const GET_VRING_BASE: u32 = 11;
    pub(super) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(super) const GET_QUEUE_NUM: u32 = 17;
    pub(super) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(super) const GET_CONFIG: u32 = 24;
    pub(super) const GET_SHMEM_CONFIG: u32 = 44;
    /// Those that need no more than to be heard: owner, memory, logs, the queue, a configuration
    /// that is written.
    pub(super) const HEARD: [u32; 14] = [3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 18, 23, 25, 34];
}

/// Requests of the device's.
const MAP: u32 = 9;
const UNMAP: u32 = 10;
/// Bytes of such a request, with its head, and of an answer to it.
pub(crate) const REQUEST_BYTES: usize = HEAD_BYTES + 40;
pub(crate) const ANSWER_BYTES: usize = HEAD_BYTES + 8;
/// A mapping that may be written.
const WRITABLE: u64 = 1;

/// It makes no sense, or is nothing that such a device is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The header of each message of QEMU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    request: u32,
    wants_answer: bool,
    /// Bytes behind it.
    pub(crate) length: usize,
}

impl Head {
    /// # Errors
    /// If it is of another version, no request, or longer than any.
    pub(crate) fn read(bytes: &[u8; HEAD_BYTES]) -> Result<Head, Malformed> {
        let [request, flags, length] = [0, 4, 8].map(|at| word(bytes, at).unwrap_or(0));
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        let sound = flags & !NEED_REPLY == VERSION && length <= BODY_BYTES_MAX;
        let wants_answer = flags & NEED_REPLY != 0;
        if sound { Ok(Head { request, wants_answer, length }) } else { Err(Malformed) }
    }
}

/// The consequence of a message, beside an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Nothing,
    /// The descriptor that came along is where the device asks QEMU.
    Channel,
    /// A driver of the guest's begins, and nothing is mapped unless it began before. It knows of
    /// memory in a region, or does not.
    Begun {
        knows: bool,
    },
}

/// The device, as far as QEMU has come with it.
#[derive(Debug)]
pub(crate) struct Device {
    /// Bytes of its region.
    region: u64,
    state: State,
}

/// How far that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Features of the protocol that QEMU has taken.
    pub(crate) protocol: u64,
    /// The beginning of the queue, which is not served.
    pub(crate) base: u32,
}

impl State {
    /// Whether a device can be so.
    pub(crate) fn is_sound(self) -> bool {
        self.protocol == 0 || may_be_taken(self.protocol)
    }
}

/// Whether QEMU may take these features of the protocol: such as are offered. One that does not
/// know of mappings has no use for this device.
fn may_be_taken(protocol: u64) -> bool {
    protocol & !OFFERED == 0 && protocol & MAPS != 0
}

impl Device {
    /// One with a region of so many bytes, with which QEMU has come so far.
    pub(crate) fn new(region: u64, state: State) -> Device {
        Device { region, state }
    }

    /// How far QEMU has come.
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// The answer, if any, and the consequence. `files`: descriptors that came along.
    ///
    /// # Errors
    /// If it is malformed: then no more is to be read.
    pub(crate) fn hear(
        &mut self,
        head: Head,
        body: &[u8],
        files: usize,
    ) -> Result<(Option<Vec<u8>>, News), Malformed> {
        let answer = |bytes: &[u8]| Some(message(head.request, VERSION | REPLY, bytes));
        let number = |value: u64| answer(&value.to_ne_bytes());
        let said = match head.request {
            request::GET_FEATURES => number(VERSION_1 | PROTOCOL | REGION),
            request::GET_PROTOCOL_FEATURES => number(OFFERED),
            request::GET_QUEUE_NUM => number(1),
            request::GET_VRING_BASE => {
                let index = word(body, 0).ok_or(Malformed)?;
                answer(&[index.to_ne_bytes(), self.state.base.to_ne_bytes()].concat())
            }
            request::GET_CONFIG => answer(&config(body)?),
            request::GET_SHMEM_CONFIG => answer(&regions(self.region)),
            _ => return self.told(head, body, files),
        };
        Ok((said, News::Nothing))
    }

    /// QEMU tells something, and wants to hear at most that it was heard.
    fn told(
        &mut self,
        head: Head,
        body: &[u8],
        files: usize,
    ) -> Result<(Option<Vec<u8>>, News), Malformed> {
        let mut news = News::Nothing;
        match head.request {
            request::SET_FEATURES => {
                news = News::Begun { knows: long(body).ok_or(Malformed)? & REGION != 0 };
            }
            request::SET_PROTOCOL_FEATURES => {
                let taken = long(body).ok_or(Malformed)?;
                if !may_be_taken(taken) {
                    return Err(Malformed);
                }
                self.state.protocol = taken;
            }
            request::SET_VRING_BASE => self.state.base = word(body, 4).ok_or(Malformed)?,
            request::SET_BACKEND_REQ_FD if files == 1 => news = News::Channel,
            other if request::HEARD.contains(&other) => {}
            _ => return Err(Malformed),
        }
        let wanted = head.wants_answer && self.state.protocol & REPLY_ACK != 0;
        let heard = || message(head.request, VERSION | REPLY, &0_u64.to_ne_bytes());
        Ok((wanted.then(heard), news))
    }
}

/// A part of the region, and of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Where in the region it begins, and in the file.
    pub(crate) at: u64,
    pub(crate) in_file: u64,
    pub(crate) length: u64,
}

/// A mapping that QEMU is to make, of the file that goes along, or to take away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Map,
    Unmap,
}

impl Change {
    fn request(self) -> u32 {
        match self {
            Change::Map => MAP,
            Change::Unmap => UNMAP,
        }
    }

    /// As it is said.
    pub(crate) fn of(self, part: Part) -> Vec<u8> {
        let mut body = [0; REQUEST_BYTES - HEAD_BYTES];
        let Part { at, in_file, length } = part;
        // Region 0, seven bytes of nothing, four numbers.
        for (room, field) in body[8..].chunks_exact_mut(8).zip([in_file, at, length, WRITABLE]) {
            room.copy_from_slice(&field.to_ne_bytes());
        }
        message(self.request(), VERSION | NEED_REPLY, &body)
    }

    /// Whether it was done, as QEMU says.
    ///
    /// # Errors
    /// If that is no answer to it.
    pub(crate) fn is_done(self, answer: &[u8; ANSWER_BYTES]) -> Result<bool, Malformed> {
        let [request, flags, length] = [0, 4, 8].map(|at| word(answer, at).unwrap_or(0));
        let ours = request == self.request() && length == 8;
        if !ours || flags & (VERSION_MASK | REPLY) != VERSION | REPLY {
            return Err(Malformed);
        }
        Ok(long(&answer[HEAD_BYTES..]) == Some(0))
    }
}

fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(0);
    let head = [request, flags, length].map(u32::to_ne_bytes).concat();
    [&head[..], body].concat()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

fn long(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|long| u64::from_ne_bytes(*long))
}

/// The configuration has where memory is and how much: of a driver that asks for it that is none,
/// since it does not know of regions.
fn config(asked: &[u8]) -> Result<Vec<u8>, Malformed> {
    let [head, length] = [asked.get(..CONFIG_HEAD), asked.get(4..8)];
    let length = length.and_then(|bytes| word(bytes, 0)).and_then(|n| usize::try_from(n).ok());
    let length = length.filter(|length| *length <= CONFIG_BYTES_MAX).ok_or(Malformed)?;
    Ok([head.ok_or(Malformed)?, &[0; CONFIG_BYTES_MAX][..length]].concat())
}

fn regions(bytes: u64) -> Vec<u8> {
    let mut all = vec![0; 8 + 8 * REGIONS];
    all[..4].copy_from_slice(&1_u32.to_ne_bytes());
    all[8..16].copy_from_slice(&bytes.to_ne_bytes());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn head(request: u32, flags: u32, length: usize) -> [u8; HEAD_BYTES] {
        let length = u32::try_from(length).unwrap();
        [request, flags, length].map(u32::to_ne_bytes).concat().try_into().unwrap()
    }

    fn hear(
        device: &mut Device,
        request: u32,
        flags: u32,
        body: &[u8],
        files: usize,
    ) -> Result<(Option<Vec<u8>>, News), Malformed> {
        device.hear(Head::read(&head(request, flags, body.len()))?, body, files)
    }

    /// As QEMU 11.1 begins with such a device, and as its guest's driver does.
    #[test]
    fn requests_of_qemu_are_answered() {
        let mut device = Device::new(4 * GIB, State::default());
        let mut asked = |request, body: &[u8]| {
            let (answer, news) = hear(&mut device, request, 1, body, 0).unwrap();
            assert_eq!(news, News::Nothing);
            answer.map(|answer| {
                let length = u32::try_from(answer.len() - HEAD_BYTES).unwrap();
                let first = [request, 5, length].map(u32::to_ne_bytes).concat();
                assert_eq!(answer[..HEAD_BYTES], first);
                answer[HEAD_BYTES..].to_vec()
            })
        };
        let mut number = |request| long(&asked(request, &[]).unwrap()).unwrap();
        assert_eq!(number(1), 1 << 32 | 1 << 30 | 1);
        assert_eq!(number(15), 1 << 3 | 1 << 5 | 1 << 9 | 1 << 10 | 1 << 22);
        assert_eq!(number(17), 1);
        let regions = asked(44, &[]).unwrap();
        assert_eq!((regions.len(), word(&regions, 0)), (2056, Some(1)));
        assert_eq!((long(&regions[8..]), long(&regions[16..])), (Some(4 * GIB), Some(0)));
        let config = [[0_u32, 16, 0].map(u32::to_ne_bytes).concat(), vec![7; 16]].concat();
        let said = asked(24, &config).unwrap();
        assert_eq!((said[..12].to_vec(), &said[12..]), (config[..12].to_vec(), &[0; 16][..]));
        assert_eq!(asked(10, &[[0_u32, 77].map(u32::to_ne_bytes).concat()].concat()), None);
        assert_eq!(word(&asked(11, &[0; 8]).unwrap(), 4), Some(77));
        for heard in request::HEARD {
            assert_eq!(asked(heard, &[0; 264]), None, "{heard}");
        }
    }

    #[test]
    fn state_of_the_device_follows_its_messages() {
        let mut device = Device::new(4 * GIB, State::default());
        let taken = OFFERED.to_ne_bytes();
        assert_eq!(hear(&mut device, 3, 9, &[], 0).unwrap().0, None, "not agreed on yet");
        assert_eq!(hear(&mut device, 16, 1, &taken, 0).unwrap(), (None, News::Nothing));
        let (answer, news) = hear(&mut device, 21, 9, &[], 1).unwrap();
        assert_eq!((answer.map(|answer| answer.len()), news), (Some(20), News::Channel));
        for (features, knows) in [(1 << 32 | 1, true), (1_u64 << 32, false)] {
            let news = hear(&mut device, 2, 1, &features.to_ne_bytes(), 0).unwrap().1;
            assert_eq!(news, News::Begun { knows });
        }
    }

    #[test]
    fn invalid_messages_are_refused() {
        for wrong in [head(1, 0, 0), head(1, 2, 0), head(1, 5, 0), head(1, 1, 513), head(1, 17, 0)]
        {
            assert_eq!(Head::read(&wrong), Err(Malformed));
        }
        let mut device = Device::new(GIB, State::default());
        let long = |number: u64| number.to_ne_bytes().to_vec();
        for (request, body, files) in [
            (0, vec![], 0),
            (45, vec![], 0),
            (2, vec![0; 7], 0),
            (10, vec![0; 4], 0),
            (11, vec![], 0),
            (16, long(OFFERED | 1 << 23), 0),
            (16, long(OFFERED | 1 << 15), 0),
            (37, vec![0; 32], 1),
            (16, long(OFFERED & !MAPS), 0),
            (21, vec![], 0),
            (21, vec![], 2),
            (24, vec![0; 11], 0),
            (24, [0, 257, 0].map(u32::to_ne_bytes).concat(), 0),
        ] {
            assert_eq!(hear(&mut device, request, 1, &body, files), Err(Malformed), "{request}");
        }
    }

    #[test]
    fn a_mapping_is_asked_for_and_answered() {
        let part = Part { at: 2 << 20, in_file: 8192, length: 4096 };
        for (change, number) in [(Change::Map, 9_u32), (Change::Unmap, 10)] {
            let said = change.of(part);
            assert_eq!(said.len(), REQUEST_BYTES);
            assert_eq!(said[..12], [number, 9, 40].map(u32::to_ne_bytes).concat());
            let fields: Vec<u64> = said[12..].chunks(8).filter_map(super::long).collect();
            assert_eq!(fields, [0, 8192, 2 << 20, 4096, 1]);
            let answer = |request: u32, flags: u32, length: u32, outcome: u64| {
                let head = [request, flags, length].map(u32::to_ne_bytes).concat();
                let bytes: Vec<u8> = [head, outcome.to_ne_bytes().to_vec()].concat();
                change.is_done(&bytes.try_into().unwrap())
            };
            assert_eq!(answer(number, 5, 8, 0), Ok(true));
            assert_eq!(answer(number, 13, 8, 1), Ok(false));
            for (request, flags, length) in [(number + 1, 5, 8), (number, 1, 8), (number, 5, 16)] {
                assert_eq!(answer(request, flags, length, 0), Err(Malformed));
            }
        }
    }
}
