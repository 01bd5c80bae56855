//! Who begins channels to other hosts: the broker, for processes of this host, and other gateways.

use crate::broker_connection::BrokerConnection;
use crate::cm_id::{CmId, Listener};
use crate::crossing::Crossing;
use crate::fleet::{Counted, Fleet, Journey, Mailbox, ends};
use crate::limits::{AGAIN, CROSSINGS, CROSSINGS_OF};
use crate::part::{Comes, Goes, Part};
use crate::strangers::Stranger;
use omniverb_formats::message::{Failure, Reply, Wanted};
use omniverb_formats::range::Range;
use omniverb_sys::lock;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

/// One that goes: who wants that finds it. At its end he hears that it was in vain, if it was.
struct Going {
    fleet: Arc<Fleet>,
    mailbox: Arc<Mailbox>,
    _counted: Counted<u64>,
}

impl Drop for Going {
    fn drop(&mut self) {
        self.fleet.leaves(&self.mailbox);
        if let Some(wanted) = self.mailbox.take() {
            self.fleet.fails(wanted, Failure::NotThere);
        }
    }
}

/// Brings others to this host, for good.
///
/// # Errors
/// There is no device any more.
pub(crate) fn receive(fleet: &Arc<Fleet>, listener: &Listener) -> io::Result<()> {
    loop {
        let Some(id) = listener.next()? else { continue };
        // Who is not let in is refused by the identifier's end.
        comes(fleet, id);
    }
}

fn comes(fleet: &Arc<Fleet>, id: CmId) -> Option<()> {
    let [_, other] = id.addresses()?;
    let stranger = Stranger::new(&fleet.strangers, other)?;
    let fleet = fleet.clone();
    spawn(move || {
        let part = Part::Comes(Comes::new(fleet, stranger));
        if let Ok(crossing) = Crossing::new(part, id) {
            crossing.run();
        }
    });
    Some(())
}

/// Hears who wants to go to another host, for good. A broker that is gone is looked for again.
pub(crate) fn serve(fleet: &Arc<Fleet>) {
    let mut is_said = false;
    loop {
        fleet.token.store(0, Ordering::Relaxed);
        if let Err(why) = serve_one(fleet)
            && fleet.token() == 0
            && !is_said
        {
            eprintln!(
                "omniverb-gateway: the broker does not take this for a gateway so far: {why}"
            );
            is_said = true;
        }
        thread::sleep(AGAIN);
    }
}

fn serve_one(fleet: &Arc<Fleet>) -> io::Result<()> {
    let broker = Arc::new(BrokerConnection::new()?);
    broker.register_gateway()?;
    *lock(&fleet.broker) = Some(broker.clone());
    loop {
        match broker.receive()? {
            (Reply::Gateways { token }, _) => fleet.token.store(token, Ordering::Relaxed),
            (Reply::Wanted(wanted), _) => {
                if let Err(why) = goes(fleet, wanted) {
                    fleet.fails(wanted, why);
                }
            }
            _ => {}
        }
    }
}

/// Somebody is to be brought to another host.
fn goes(fleet: &Arc<Fleet>, wanted: Wanted) -> Result<(), Failure> {
    let Wanted { client, names, .. } = wanted;
    let [from, other] = ends(&names);
    let journey: Journey = (client, [from, other], names.ports[1]);
    let is_meant = |range: &Range| range.has(names.addresses[1], names.ports[1]);
    if !fleet.to.iter().any(is_meant) {
        return Err(Failure::NotBrought);
    }
    let mut going = lock(&fleet.going);
    if let Some(mailbox) = going.get(&journey) {
        mailbox.put(wanted);
        return Ok(());
    }
    if fleet.is_in_vain(other) {
        return Err(Failure::NotThere);
    }
    let counted = Counted::new(&fleet.of, client, CROSSINGS_OF, CROSSINGS);
    let counted = counted.ok_or(Failure::NotBrought)?;
    let mailbox = Arc::new(Mailbox::new(wanted).map_err(|_| Failure::NotBrought)?);
    going.insert(journey, mailbox.clone());
    drop(going);
    let going = Going { fleet: fleet.clone(), mailbox, _counted: counted };
    spawn(move || {
        let Going { fleet, mailbox, .. } = &going;
        let to = SocketAddr::new(other, fleet.port);
        let part = Part::Goes(Goes::new(fleet.clone(), mailbox.clone()));
        match CmId::resolve(from, to).and_then(|id| Crossing::new(part, id)) {
            Ok(crossing) => crossing.run(),
            Err(why) => {
                fleet.tells(&names, &format!("no gateway takes him: {why}"));
                if is_none(&why) {
                    fleet.is_none_at(other);
                }
            }
        }
        drop(going);
    });
    Ok(())
}

/// That says that there is no gateway, not that it has no room.
fn is_none(why: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, TimedOut};
    [ConnectionRefused, HostUnreachable, TimedOut].contains(&why.kind())
}

/// If there is no thread to be had it is as if nobody were there.
fn spawn(run: impl FnOnce() + Send + 'static) {
    _ = thread::Builder::new().name("crossing".into()).spawn(run);
}
