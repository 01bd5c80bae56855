//! Serves one process, on a thread of its own.
//!
//! In: its requests, with descriptors. Out: links and channels, for it and for those at the other
//! ends. A descriptor that came is closed before any process is told anything: so no duplicate that
//! is here delays the end of a connection.

use crate::broker_state::Broker;
use crate::channel_requests;
use crate::client::Client;
use crate::cross_namespace_matching;
use crate::introduce_link::{end_link, introduce_link};
use crate::limits::{HELLO, PATIENCE};
use crate::remote_channel_requests;
use crate::status;
use crate::unmatched_offers::Offer;
use omniverb_formats::broker_message::{BYTES, Refusal, Reply, Request};
use omniverb_sys::tcp_connection_state::TcpConnection;
use omniverb_sys::{clock, lock, seqpacket, unsolicited_fds};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How long one is waited for that has sent what cannot be taken, and room for a descriptor.
const PAUSE: Duration = Duration::from_millis(100);

/// Until it goes, or says something that is none. Others may find its offers meanwhile, and so may
/// be the last to have its socket: nothing is in that any more when this thread lets go of it.
pub(crate) fn serve_client(broker: &Broker, client: Arc<Client>) {
    _ = handle_requests(broker, &client);
    lock(&broker.offers).gone(&client);
    channel_requests::forget_client(broker, &client);
    client.links().into_iter().for_each(|link| end_link(broker, &client, link));
    drain(&client.socket);
    lock(&broker.admissions).release(client.number);
}

/// Ends a connection and lets go of what waits in its socket, which may take for ever.
fn drain(socket: &OwnedFd) {
    while !unsolicited_fds::is_spent(socket) {
        let mode = seqpacket::BlockingMode::NonBlocking;
        if seqpacket::receive(socket.as_fd(), &mut [0; BYTES], mode).is_err() {
            // No message that could be received whole: its sender can wait.
            thread::sleep(PAUSE);
        }
    }
}

fn handle_requests(broker: &Broker, client: &Arc<Client>) -> Option<()> {
    seqpacket::limit_receiving(client.socket.as_fd(), Some(HELLO)).ok()?;
    let (request, diagnosis) = next_request(client)?;
    match (request, diagnosis) {
        (Request::Hello { name }, Some(diagnosis)) => {
            client.take_diagnosis(diagnosis)?;
            client.set_name(name);
        }
        (Request::ShowSockets, None) => {
            status::show_status(broker, client.socket.as_fd(), Some(client.namespace));
            return None;
        }
        (Request::ShowRanges, None) => {
            return send_ranges(broker, client);
        }
        _ => return None,
    }
    lock(&broker.admissions).mark_greeted(client.number);
    seqpacket::limit_receiving(client.socket.as_fd(), None).ok()?;
    client.welcome().then_some(())?;
    loop {
        let said = next_request(client)?;
        // A process that sends may have read before, and so have room.
        lock(&broker.links).tell(client.number);
        match said {
            (Request::Offer { tag, is_new }, Some(socket)) => {
                let accepted = is_new.then(clock::now);
                if let Err(why) = handle_offer(broker, client, (tag, accepted), socket) {
                    client.refuse(tag, why);
                }
            }
            (Request::LinkEnded { link }, None) => end_link(broker, client, link),
            (Request::Listen { tag }, Some(socket)) => {
                channel_requests::add_listener(broker, client, tag, socket)
            }
            (Request::Unlisten { tag }, None) => {
                channel_requests::remove_listener(broker, client, tag)
            }
            (Request::OpenChannel { tag, address, port, from }, None) => {
                channel_requests::request_channel(broker, client, tag, (address, port), from);
            }
            (Request::ChannelEnded { name }, None) => {
                channel_requests::end_channel(broker, client, name)
            }
            (Request::ReclaimChannel { name, ends }, None) => {
                channel_requests::claim_inherited(broker, client, name, ends)
            }
            (Request::BecomeGateway, socket) => {
                remote_channel_requests::register_gateway(broker, client, socket)?
            }
            (Request::GatewayAccepts { token, wanted }, None) => {
                remote_channel_requests::route_opened(broker, client, token, wanted);
            }
            (Request::GatewayRefuses { token, wanted, why }, None) => {
                remote_channel_requests::route_failed(broker, client, token, (wanted, why));
            }
            (Request::RemoteConnects { tag, token, names }, None) => {
                remote_channel_requests::admit_incoming(broker, (client, tag), token, &names);
            }
            _ => return None,
        }
    }
}

/// Sends all ranges. A client that does not read is sent no more.
fn send_ranges(broker: &Broker, client: &Client) -> Option<()> {
    seqpacket::limit_sending_time(client.socket.as_fd(), PATIENCE).ok()?;
    let all = broker.light.iter().map(|range| Reply::Range(*range).encode());
    for range in all {
        seqpacket::send(client.socket.as_fd(), &range, &[]).ok()?;
    }
    None
}

/// The next request, with the descriptor that came with it.
fn next_request(client: &Client) -> Option<(Request, Option<OwnedFd>)> {
    let mut bytes = [0; BYTES];
    let received = loop {
        match seqpacket::receive_kept(
            client.socket.as_fd(),
            &mut bytes,
            seqpacket::BlockingMode::Blocking,
        ) {
            // It stays until others have closed something.
            Err(error) if seqpacket::lacks_room(&error) => thread::sleep(PAUSE),
            other => break other,
        }
    };
    let (length, mut files) = received.ok()?;
    let file = files.pop();
    let request = Request::decode(bytes.get(..length)?)?;
    files.is_empty().then_some((request, file))
}

/// A socket was offered.
fn handle_offer(
    broker: &Broker,
    client: &Arc<Client>,
    (tag, accepted): (u64, Option<u64>),
    socket: OwnedFd,
) -> Result<(), Refusal> {
    if !client.has_room() {
        return Err(Refusal::TooMany);
    }
    let mut gone = Vec::new();
    let other = find_other_end(broker, client, (tag, accepted), &socket, &mut gone);
    // At once.
    drop(socket);
    for (one, why) in gone {
        one.client.refuse(one.tag, why);
    }
    match other? {
        Pairing::Complete(other, ours) => {
            introduce_link(broker, &other, &ours, None).map_err(|_| Refusal::TooMany)
        }
        Pairing::Waiting(ours) => {
            client.tell(Reply::Pending { tag });
            cross_namespace_matching::match_offer(broker, &ours);
            remote_channel_requests::connection_offered(broker, &ours);
            Ok(())
        }
    }
}

/// What an offer is.
enum Pairing {
    /// The second of two: here are both, the other one first.
    Complete(Offer, Offer),
    /// It waits for the other end.
    Waiting(Offer),
}

/// Finds the offer of the socket's other end in the same network namespace, if its process still
/// has that. Otherwise this offer waits. Since both sockets are there at one time with these names,
/// they are the ends of one connection. Offers that turn out to be stale are added to `gone`.
fn find_other_end(
    broker: &Broker,
    client: &Arc<Client>,
    (tag, accepted): (u64, Option<u64>),
    socket: &OwnedFd,
    gone: &mut Vec<(Offer, Refusal)>,
) -> Result<Pairing, Refusal> {
    let found = TcpConnection::of(socket.as_fd()).ok().flatten();
    let connection = found.ok_or(Refusal::NotConnected)?;
    if connection.namespace != client.namespace {
        return Err(Refusal::Elsewhere);
    }
    if connection.is_bound {
        return Err(Refusal::Bound);
    }
    let is_there = |one: &TcpConnection| {
        client.look(one).map(|traffic| traffic.is_some()).map_err(|_| Refusal::NotProven)
    };
    if !is_there(&connection)? {
        return Err(Refusal::NotProven);
    }
    let ours = Offer { client: client.clone(), tag, connection, accepted };
    loop {
        let other = lock(&broker.offers).other_or_add(&ours);
        let Some(other) = other else { return Ok(Pairing::Waiting(ours)) };
        let is_another = other.connection.cookie != connection.cookie;
        match is_there(&other.connection) {
            Ok(true) if is_another => return Ok(Pairing::Complete(other, ours)),
            // An earlier connection with these names was offered there.
            Ok(_) => gone.push((other, Refusal::NotProven)),
            Err(why) => {
                gone.push((other, why));
                return Err(why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;

    /// A socket that takes a minute to close, and its other end.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let theirs = listener.accept().unwrap().0;
        rustix::net::sockopt::set_socket_linger(&ours, Some(Duration::from_secs(60))).unwrap();
        ours.set_nonblocking(true).unwrap();
        while (&ours).write(&[0; 65536]).is_ok() {}
        (ours.into(), theirs)
    }

    /// Finds a process's offer at the moment when that process ends with something behind its last
    /// word.
    #[test]
    fn what_one_has_sent_is_let_go_of_by_its_own_thread() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let peer = seqpacket::peer(ours.as_fd()).unwrap();
        let client = Arc::new(Client::new(ours, peer, 0).unwrap());
        let (slow, _peer) = lingering();
        seqpacket::send(theirs.as_fd(), &[9; BYTES], &[]).unwrap();
        // An empty message looks like the end.
        seqpacket::send(theirs.as_fd(), b"", &[]).unwrap();
        seqpacket::send(theirs.as_fd(), b"text", &[slow.as_fd()]).unwrap();
        drop(slow);
        let others = client.clone();
        thread::spawn(move || serve_client(&Broker::default(), client));
        // Until it is shut.
        while seqpacket::receive(theirs.as_fd(), &mut [0; BYTES], seqpacket::BlockingMode::Blocking)
            .is_ok_and(|(bytes, _)| bytes > 0)
        {}
        // Its own thread has let go of it, if it does not hang.
        thread::sleep(Duration::from_millis(200));
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || {
            drop(others);
            done.send(()).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(20)).expect("hangs with what another one sent");
    }
}
