//! Starts channels to other hosts, for the broker's clients and for other gateways.

use crate::broker_connection::BrokerConnection;
use crate::channel_handshake::{Incoming, Outgoing, Role};
use crate::cm_id::{CmId, Listener};
use crate::gateway_state::{CountGuard, GatewayState, Mailbox, RouteKey, ends};
use crate::limits::{RECONNECT_PAUSE, REMOTE_CHANNELS, REMOTE_CHANNELS_OF};
use crate::remote_channel::RemoteChannel;
use crate::unproven_peers::UnprovenPeer;
use omniverb_formats::address_range::Range;
use omniverb_formats::broker_message::{Failure, Reply, Wanted};
use omniverb_sys::lock;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

/// An outgoing channel in the table; when dropped, a request that is left over fails.
struct OutgoingGuard {
    state: Arc<GatewayState>,
    mailbox: Arc<Mailbox>,
    _counted: CountGuard<u64>,
}

impl Drop for OutgoingGuard {
    fn drop(&mut self) {
        self.state.remove_outgoing(&self.mailbox);
        if let Some(wanted) = self.mailbox.take() {
            self.state.report_failure(wanted, Failure::NotThere);
        }
    }
}

/// Accepts other gateways, for good.
///
/// # Errors
/// There is no device any more.
pub(crate) fn accept_gateways(state: &Arc<GatewayState>, listener: &Listener) -> io::Result<()> {
    loop {
        let Some(id) = listener.next()? else { continue };
        // Dropping the identifier refuses a gateway that is not admitted.
        start_incoming(state, id);
    }
}

fn start_incoming(state: &Arc<GatewayState>, id: CmId) -> Option<()> {
    let [_, other] = id.addresses()?;
    let unproven = UnprovenPeer::new(&state.unproven, other)?;
    let state = state.clone();
    spawn(move || {
        let role = Role::Incoming(Incoming::new(state, unproven));
        if let Ok(channel) = RemoteChannel::new(role, id) {
            channel.run();
        }
    });
    Some(())
}

/// Serves requests of the broker, for good; connects again when the broker has gone.
pub(crate) fn serve_broker(state: &Arc<GatewayState>) {
    let mut is_said = false;
    loop {
        state.token.store(0, Ordering::Relaxed);
        if let Err(why) = serve_broker_once(state)
            && state.token() == 0
            && !is_said
        {
            eprintln!(
                "omniverb-gateway: the broker does not take this for a gateway so far: {why}"
            );
            is_said = true;
        }
        thread::sleep(RECONNECT_PAUSE);
    }
}

fn serve_broker_once(state: &Arc<GatewayState>) -> io::Result<()> {
    let broker = Arc::new(BrokerConnection::new()?);
    broker.register_gateway()?;
    *lock(&state.broker) = Some(broker.clone());
    loop {
        match broker.receive()? {
            (Reply::GatewayToken { token }, _) => state.token.store(token, Ordering::Relaxed),
            (Reply::GatewayWanted(wanted), _) => {
                if let Err(why) = start_outgoing(state, wanted) {
                    state.report_failure(wanted, why);
                }
            }
            _ => {}
        }
    }
}

/// Starts a channel to another host, or hands the request to the one that is there.
fn start_outgoing(state: &Arc<GatewayState>, wanted: Wanted) -> Result<(), Failure> {
    let Wanted { client, names, .. } = wanted;
    let [from, other] = ends(&names);
    let route: RouteKey = (client, [from, other], names.ports[1]);
    let is_meant = |range: &Range| range.has(names.addresses[1], names.ports[1]);
    if !state.to.iter().any(is_meant) {
        return Err(Failure::NotBrought);
    }
    let mut going = lock(&state.outgoing);
    if let Some(mailbox) = going.get(&route) {
        mailbox.put(wanted);
        return Ok(());
    }
    if state.has_failed_lately(other) {
        return Err(Failure::NotThere);
    }
    let counted = CountGuard::new(&state.per_client, client, REMOTE_CHANNELS_OF, REMOTE_CHANNELS);
    let counted = counted.ok_or(Failure::NotBrought)?;
    let mailbox = Arc::new(Mailbox::new(wanted).map_err(|_| Failure::NotBrought)?);
    going.insert(route, mailbox.clone());
    drop(going);
    let going = OutgoingGuard { state: state.clone(), mailbox, _counted: counted };
    spawn(move || {
        let OutgoingGuard { state, mailbox, .. } = &going;
        let to = SocketAddr::new(other, state.port);
        let role = Role::Outgoing(Outgoing::new(state.clone(), mailbox.clone()));
        match CmId::resolve(from, to).and_then(|id| RemoteChannel::new(role, id)) {
            Ok(channel) => channel.run(),
            Err(why) => {
                state.log(&names, &format!("no gateway accepts it: {why}"));
                if has_no_gateway(&why) {
                    state.mark_failed(other);
                }
            }
        }
        drop(going);
    });
    Ok(())
}

/// Whether an error says that there is no gateway, not that it has no room.
fn has_no_gateway(why: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, TimedOut};
    [ConnectionRefused, HostUnreachable, TimedOut].contains(&why.kind())
}

/// Without a thread it is as if the other host did not answer.
fn spawn(run: impl FnOnce() + Send + 'static) {
    _ = thread::Builder::new().name("channel".into()).spawn(run);
}
