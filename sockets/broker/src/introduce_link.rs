//! Introduces two processes by a link: both are given its memory.

use crate::broker_daemon_messages::NamespaceAddress;
use crate::broker_state::Broker;
use crate::client::Client;
use crate::links::LinkRecord;
use crate::unmatched_offers::Offer;
use omniverb_formats::broker_message::{Reach, Refusal, Side};
use omniverb_formats::link_layout;
use omniverb_sys::{clock, lock, memfd};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

static LINKS: AtomicU64 = AtomicU64::new(1);

/// Links are called by other names than by a broker that was here before: processes have links of
/// its still, and would say to this one that they have ended.
pub(crate) fn begin() {
    LINKS.fetch_max(clock::now(), Ordering::Relaxed);
}

/// What the next link is called.
fn next_name() -> u64 {
    LINKS.fetch_add(1, Ordering::Relaxed)
}

/// Gives both the memory of a link; `pair`: it lives by that, if the two are in two network
/// namespaces. The first is told if there is none.
///
/// # Errors
/// Then the second is to be told.
pub(crate) fn introduce_link(
    broker: &Broker,
    first: &Offer,
    second: &Offer,
    pair: Option<[NamespaceAddress; 2]>,
) -> io::Result<()> {
    let has_room = first.client.has_room() && second.client.has_room();
    let memory = match has_room {
        true => memfd::create("omniverb link", link_layout::BYTES as u64),
        false => Err(io::ErrorKind::OutOfMemory.into()),
    };
    let refuse = |_: &io::Error| first.client.refuse(first.tag, Refusal::TooMany);
    let memory = memory.inspect_err(refuse)?;
    let may_keep = {
        let channels = lock(&broker.channels).count();
        lock(&broker.links).may_keep_file(channels)
    };
    let ours = if may_keep { memory.try_clone().ok() } else { None };
    let link = next_name();
    lock(&broker.links).add(link, [first, second], pair, ours);
    let may = pair.is_none_or(|[one, other]| lock(&broker.pairs).add_link(one, other, link));
    let reach = if pair.is_some() { Reach::Across } else { Reach::Within };
    // A process that has not read its messages for long gets no link, and then the other one needs
    // none.
    if !may || !first.client.give(first.tag, (link, Side::First, reach), memory.as_fd()) {
        let given = lock(&broker.links).undo(link);
        release_link(broker, link, given);
        if !may {
            first.client.refuse(first.tag, Refusal::NotProven);
        }
        return Err(io::ErrorKind::WouldBlock.into());
    }
    // Should the second process not take it, the first one has a link without another end.
    if !second.client.give(second.tag, (link, Side::Second, reach), memory.as_fd()) {
        end_link(broker, &second.client, link);
    }
    // The daemon may have said meanwhile that it is over, and they have heard of that before they
    // had it.
    if pair.is_some_and(|[one, other]| !lock(&broker.pairs).has_link(one, other, link)) {
        lock(&broker.links).part([link]);
        broker.wake();
    }
    Ok(())
}

/// A process needs a link no more.
pub(crate) fn end_link(broker: &Broker, client: &Client, link: u64) {
    client.ended(link);
    let given = lock(&broker.links).end(link, client.number);
    release_link(broker, link, given);
}

/// Releases a link that no process has any more.
fn release_link(broker: &Broker, link: u64, given: Option<LinkRecord>) {
    if let Some([one, other]) = given.and_then(|given| given.pair) {
        lock(&broker.pairs).remove_link(one, other, link, clock::now());
    }
}
