//! Makes two ends of one link, with no doorbell to ring.

use omniverb_link::layout;
use omniverb_link::{Doorbell, Endpoint, EndpointParts};
use omniverb_ring::doorbell::PAGE_BYTES;
use omniverb_ring::{DoorbellPage, Window};
use std::sync::Arc;

struct Ringer(DoorbellPage<Window>);

impl Doorbell for Ringer {
    fn page(&self) -> &DoorbellPage<Window> {
        &self.0
    }
    fn kick(&self) {}
}

/// The memory of a link, and its ends: an application's and the engine's.
pub fn ends() -> (Window, [Endpoint; 2]) {
    let sizes = (layout::REQUEST_BYTES_MIN, layout::RESPONSE_BYTES_MIN);
    let memory = Window::private(layout::link_bytes(sizes.0, sizes.1));
    let ends = [0, 1].map(|side| {
        Endpoint::new(EndpointParts {
            memory: memory.clone(),
            side,
            request_bytes: sizes.0,
            response_bytes: sizes.1,
            doorbell: Arc::new(Ringer(DoorbellPage::new(Window::private(PAGE_BYTES)))),
            peer_slot: 0,
        })
        .unwrap()
    });
    (memory, ends)
}
