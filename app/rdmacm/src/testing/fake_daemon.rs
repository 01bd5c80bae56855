//! A daemon that connects identifiers of this process with each other, as the real one would.

use std::collections::BTreeMap;
use std::sync::Mutex;

use omniverb_session::Message;
use omniverb_session::body::Done;
use omniverb_session::cm::*;
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_sys::lock;
use omniverb_terms::{Errno, Gid, Qpn};

use super::fake_ibverbs;

struct Id {
    address: CmAddress,
    remote: CmAddress,
    listens: bool,
    /// Requests of a listener.
    requests: Vec<u32>,
    peer: u32,
    qpn: Qpn,
    known: u32,
    parameters: CmParameters,
}

/// What was asked, and what there is.
#[derive(Default)]
struct Daemon {
    latest: u32,
    ids: BTreeMap<u32, Id>,
    /// Requests that a listener's end refused.
    refused: u32,
    /// Requests are not answered.
    silent: bool,
}

static DAEMON: Mutex<Option<Daemon>> = Mutex::new(None);

fn with<T>(work: impl FnOnce(&mut Daemon) -> T) -> T {
    work(lock(&DAEMON).get_or_insert_with(Daemon::default))
}

/// How many identifiers there are, and how many requests were refused since the last time.
pub(crate) fn counts() -> (usize, u32) {
    with(|daemon| (daemon.ids.len(), core::mem::take(&mut daemon.refused)))
}

/// Requests are answered from now on, or not.
pub(crate) fn be_silent(silent: bool) {
    with(|daemon| daemon.silent = silent);
}

/// It is gone, and another is there.
pub(crate) fn die() {
    with(|daemon| *daemon = Daemon { latest: 1000, ..Daemon::default() });
    fake_ibverbs::tell(None);
}

/// An event, which is told when the daemon's lock is free.
pub(crate) fn happens(happened: CmHappened) {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let length = omniverb_session::encode(0, &happened.into(), &mut bytes);
    fake_ibverbs::tell(Some(&bytes[..length]));
}

/// Something happened to this identifier.
pub(crate) fn nothing_but(event: u32, id: u32, status: i32) -> CmHappened {
    CmHappened {
        status,
        sgid: Gid::new(fake_ibverbs::GID),
        dgid: Gid::new(fake_ibverbs::GID),
        ifindex: 2,
        path_mtu: 3,
        flow_label: 7,
        hop_limit: 64,
        ..CmHappened::new(event, id)
    }
}

/// With what the other end said; as long as its message has room.
fn with_words(event: u32, id: u32, from: (&Id, u8), private: [u8; CM_PRIVATE_BYTES]) -> CmHappened {
    let (of, private_length) = from;
    let CmParameters { responder_resources, initiator_depth, .. } = of.parameters;
    let parameters = CmParameters {
        responder_resources: initiator_depth,
        initiator_depth: responder_resources,
        private_length,
        ..of.parameters
    };
    let (local, remote) = (of.remote, of.address);
    CmHappened { qpn: of.qpn, parameters, local, remote, private, ..nothing_but(event, id, 0) }
}

pub(crate) fn ask(asked: Message) -> Result<Message, Errno> {
    let mut told = Vec::new();
    let answer = with(|daemon| daemon.answer(asked, &mut told));
    told.into_iter().for_each(happens);
    answer
}

impl Daemon {
    fn make(&mut self) -> u32 {
        self.latest += 1;
        let fresh = Id {
            address: CmAddress::NONE,
            remote: CmAddress::NONE,
            listens: false,
            requests: Vec::new(),
            peer: 0,
            qpn: Qpn(0),
            known: 0,
            parameters: CmParameters::NONE,
        };
        self.ids.insert(self.latest, fresh);
        self.latest
    }

    fn id(&mut self, id: u32) -> Result<&mut Id, Errno> {
        self.ids.get_mut(&id).ok_or(Errno::ENOENT)
    }

    fn bound(&mut self, id: u32) -> Result<Message, Errno> {
        let address = self.id(id)?.address;
        let wildcard = address.ip.bytes()[12..] == [0; 4];
        let gid = if wildcard { Gid::ZERO } else { Gid::new(fake_ibverbs::GID) };
        Ok(CmIdBound { id, ifindex: 2, address, gid, mtu: 1500, reserved: 0 }.into())
    }

    fn answer(&mut self, asked: Message, told: &mut Vec<CmHappened>) -> Result<Message, Errno> {
        let done = Ok(Done { take_back: 0 }.into());
        match asked {
            Message::CreateCmId(_) => Ok(CmIdCreated { id: self.make(), reserved: 0 }.into()),
            Message::BindCmId(BindCmId { id, mut address, .. }) => {
                if address.port == 1 {
                    return Err(Errno::EADDRINUSE);
                }
                if address.port == 0 {
                    address.port = 40_000;
                }
                let of = self.id(id)?;
                (of.address, of.known) = (address, of.known | CM_KNOWN_INIT);
                self.bound(id)
            }
            Message::ListenCmId(ListenCmId { id, .. }) => {
                self.id(id)?.listens = true;
                self.bound(id)
            }
            Message::ResolveCmId(ResolveCmId { id, mut local, remote, .. }) => {
                if remote.port == 2 {
                    return Err(Errno::ENODEV);
                }
                local.port = 50_000;
                let of = self.id(id)?;
                (of.address, of.remote, of.known) = (local, remote, CM_KNOWN_INIT);
                let gid = Gid::new(fake_ibverbs::GID);
                Ok(CmIdResolved {
                    id,
                    ifindex: 2,
                    local,
                    remote,
                    sgid: gid,
                    dgid: gid,
                    mtu: 1500,
                    path_mtu: 3,
                    flow_label: 7,
                    partition_key: 0xffff,
                    hop_limit: 64,
                    traffic_class: 0,
                }
                .into())
            }
            Message::ConnectCmId(ConnectCmId { id, qpn, parameters, private }) => {
                if parameters.private_length > 56 {
                    return Err(Errno::EINVAL);
                }
                let of = self.id(id)?;
                (of.qpn, of.parameters) = (qpn, parameters);
                let port = of.remote.port;
                if self.silent {
                    return done;
                }
                let listeners = self.ids.iter();
                let mut listeners =
                    listeners.filter(|(_, of)| of.listens && of.address.port == port);
                let Some(listener) = listeners.next().map(|(number, _)| *number) else {
                    told.push(nothing_but(event::REJECTED, id, 8));
                    return done;
                };
                let child = self.make();
                self.id(id)?.peer = child;
                let known = CM_KNOWN_INIT | CM_KNOWN_RTR | CM_KNOWN_RTS;
                let of = self.id(child)?;
                (of.peer, of.known) = (id, known);
                let of = self.id(listener)?;
                of.requests.push(child);
                let number = of.requests.len() as u32;
                let words = with_words(event::CONNECT_REQUEST, child, (self.id(id)?, 56), private);
                told.push(CmHappened { listener, number, ..words });
                done
            }
            Message::AcceptCmId(AcceptCmId { id, qpn, parameters, private }) => {
                let of = self.id(id)?;
                (of.qpn, of.parameters) = (qpn, parameters);
                let peer = of.peer;
                self.id(peer)?.known = CM_KNOWN_INIT | CM_KNOWN_RTR | CM_KNOWN_RTS;
                let words = with_words(event::CONNECT_RESPONSE, peer, (self.id(id)?, 196), private);
                told.push(words);
                done
            }
            Message::RejectCmId(RejectCmId { id, reason, private, .. }) => {
                let peer = self.id(id)?.peer;
                let mut words = with_words(event::REJECTED, peer, (self.id(id)?, 148), private);
                words.status = if reason == 0 { 28 } else { i32::from(reason) };
                told.push(words);
                done
            }
            Message::EstablishCmId(EstablishCmId { id, .. }) => {
                told.push(nothing_but(event::ESTABLISHED, self.id(id)?.peer, 0));
                done
            }
            Message::DisconnectCmId(DisconnectCmId { id, .. }) => {
                let peer = self.id(id)?.peer;
                for id in [id, peer].into_iter().filter(|_| peer != 0) {
                    if core::mem::take(&mut self.id(id)?.peer) != 0 {
                        told.push(nothing_but(event::DISCONNECTED, id, 0));
                        told.push(nothing_but(event::TIMEWAIT_EXIT, id, 0));
                    }
                }
                done
            }
            Message::DestroyCmId(DestroyCmId { id, taken }) => {
                let of = self.ids.remove(&id).ok_or(Errno::ENOENT)?;
                for child in &of.requests[taken as usize..] {
                    self.refused += 1;
                    self.ids.remove(child);
                }
                done
            }
            Message::QueryCmId(QueryCmId { id, .. }) => {
                let of = self.id(id)?;
                let (known, peer) = (of.known, of.peer);
                let dest_qpn = self.ids.get(&peer).map_or(Qpn(0), |peer| peer.qpn);
                let gid = Gid::new(fake_ibverbs::GID);
                Ok(CmIdQueried {
                    id,
                    known,
                    access: 2,
                    qkey: CM_QUEUE_KEY,
                    path_mtu: 3,
                    dest_qpn,
                    rq_psn: 1,
                    ifindex: 2,
                    flow_label: 7,
                    sq_psn: 2,
                    sgid: gid,
                    dgid: gid,
                    traffic_class: 0,
                    hop_limit: 64,
                    max_dest_rd_atomic: 1,
                    min_rnr_timer: 0,
                    timeout: 17,
                    retry_count: 7,
                    rnr_retry: 7,
                    max_rd_atomic: 1,
                }
                .into())
            }
            _ => Err(Errno::EINVAL),
        }
    }
}
