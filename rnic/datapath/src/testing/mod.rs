//! Makes ends of links, for tests; no product uses it.

pub mod fuzz_entry_points;

use omniverb_link::layout::{REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN};
use omniverb_link::{Doorbell, Endpoint, EndpointParts};
use omniverb_ring::{DoorbellPage, Window};
use std::sync::Arc;

struct Silent(DoorbellPage<Window>);

impl Doorbell for Silent {
    fn page(&self) -> &DoorbellPage<Window> {
        &self.0
    }

    fn kick(&self) {}
}

/// One side of a link with the least rings, whose peer is woken by nothing.
#[must_use]
pub fn end(memory: &Window, side: usize) -> Option<Endpoint> {
    end_that_rings(memory, side, Window::private(omniverb_ring::doorbell::PAGE_BYTES))
}

/// One side of a link with the least rings. `page`: the doorbell page that wakes its peer.
#[must_use]
pub fn end_that_rings(memory: &Window, side: usize, page: Window) -> Option<Endpoint> {
    let page = DoorbellPage::new(page);
    Endpoint::new(EndpointParts {
        memory: memory.clone(),
        side,
        request_bytes: REQUEST_BYTES_MIN,
        response_bytes: RESPONSE_BYTES_MIN,
        doorbell: Arc::new(Silent(page)),
        peer_slot: 0,
    })
}
