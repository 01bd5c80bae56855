//! Looks up which channel leads to an address, without waiting for the broker.

use omniverb_connection::light::frame::Endpoint;

use super::broker::{
    ANSWER, ChannelRoute, NO_LISTENER_KEPT, Route, RouteState, answer, asks, asks_anew, goes_from,
    no_listener, routes,
};
use super::local_addresses::source;
use super::state::State;
use crate::tsc_clock;

/// How long a client connects by the kernel after there was no room for other clients, in
/// nanoseconds: those ask again that often.
const FULL: u64 = 1_100_000_000;

/// How an address is reached by a connection that was refused there.
pub(super) enum RouteLookup {
    /// By a channel.
    Channel(ChannelRoute),
    /// The kernel has this socket there, or an unknown one (0), and no process has registered it.
    Unannounced(u64),
    /// That is not known yet.
    Pending,
    /// There is no listener.
    Nowhere,
}

/// How an address is reached now. `may_ask`: whether the broker may be asked, also again where no
/// listener was registered.
pub(super) fn look_up_route(
    state: &mut State,
    to: Endpoint,
    (may_ask, may_ask_again): (bool, bool),
) -> RouteLookup {
    let now = tsc_clock::nanoseconds();
    let known = routes(state).0.iter().find(|one| one.way != RouteState::Free && one.to == to);
    if let Some(route) = known.copied() {
        match route.way {
            RouteState::Channel(name)
                if state.left_by(name) == Some(route.left)
                    && (route.until == 0 || now < route.until) =>
            {
                let Route { from, socket, left, .. } = route;
                return RouteLookup::Channel(ChannelRoute { name, from, socket, left });
            }
            RouteState::Asked if now.saturating_sub(route.asked) < ANSWER => {
                return RouteLookup::Pending;
            }
            // The broker is late.
            RouteState::Asked if !may_ask_again => return RouteLookup::Unannounced(0),
            RouteState::NoListener(at) if now.saturating_sub(at) < NO_LISTENER_KEPT => {
                match route.is_heard || at > now {
                    false => return RouteLookup::Nowhere,
                    true if !may_ask_again => return RouteLookup::Unannounced(route.socket),
                    true => {}
                }
            }
            _ => {}
        }
    }
    if !may_ask {
        return RouteLookup::Pending;
    }
    let tag = asks_anew(state, to, now);
    let Some(own) = source(to).ok().flatten() else {
        answer(state, tag, no_listener());
        return RouteLookup::Nowhere;
    };
    goes_from(state, tag, (own, to));
    if asks(tag, (own, to)) {
        return RouteLookup::Pending;
    }
    answer(state, tag, RouteState::Free);
    RouteLookup::Unannounced(0)
}

/// There is no room for more at an address.
pub(super) fn is_full(state: &State, to: &Endpoint) {
    let until = tsc_clock::nanoseconds() + FULL;
    let known = routes(state).0.iter_mut().filter(|one| one.to == *to);
    known.for_each(|route| route.full = until);
}
