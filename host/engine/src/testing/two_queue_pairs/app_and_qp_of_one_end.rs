//! Drives one end of a trial: an application, and the engine's queue pair of its link.

use crate::pages::link_grants::Connected;
use omniverb_datapath::Allowance;
use omniverb_datapath::handover::Handover;
use omniverb_datapath::queue_pair::connection_parameters::Trains;
use omniverb_datapath::testing::{end, end_that_rings};
use omniverb_link::Endpoint;
use omniverb_link::layout::{REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN, link_bytes};
use omniverb_link::qp_attributes_for_engine::{ReceiveAttributes, SendAttributes};
use omniverb_ring::doorbell::{DIED, LIFE_OFFSET, PAGE_BYTES};
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{Window, WordMemory};
use omniverb_terms::{Psn, Qpn, Service};

/// How many bytes a message may have.
pub(super) const RECEIVE: usize = 200;
const MTU: u8 = 1; // 256 bytes

pub(super) struct Side {
    pub(super) application: Endpoint,
    pub(super) engine: Connected,
    /// Of the link.
    memory: Window,
    /// The application's page of the doorbell.
    page: Window,
    kind: (Service, u32),
    /// Operations that queue pairs before this one have executed.
    mapped_before: u64,
}

impl Side {
    /// The application's process ends; the kernel says so.
    pub(super) fn die(&self) {
        self.page.store(LIFE_OFFSET, DIED, Ordering::Relaxed);
    }

    /// Another queue pair goes on with the link, which has no pages yet. False: this one is not at
    /// rest.
    pub(super) fn hand_over(&mut self, now: u64) -> bool {
        let Some(handover) = self.engine.export(now) else { return false };
        let bytes = handover.to_bytes().expect("it is short enough");
        let handover = Handover::from_bytes(&bytes).unwrap();
        let mut next = queue_pair(&self.memory, &self.page, self.kind);
        next.restore(&handover).unwrap();
        self.mapped_before = self.mapped();
        self.engine = next;
        true
    }

    /// Operations of the peer that were executed on pages.
    pub(super) fn mapped(&self) -> u64 {
        self.mapped_before + self.engine.application.mapped()
    }
}

fn queue_pair(memory: &Window, page: &Window, (service, features): (Service, u32)) -> Connected {
    Connected::new(
        end_that_rings(memory, 1, page.clone()).unwrap(),
        service,
        (Qpn(6), Qpn(6)),
        features,
        REQUEST_BYTES_MIN,
        Allowance::default(),
        if service == Service::Rc { Trains::AcknowledgementFirst } else { Trains::OneByOne },
    )
}

pub(super) fn side(service: Service, features: u32) -> Side {
    side_with(service, features, 7, 1 << 20)
}

/// Like `side`, with so many RNR retries, and so many receives of its own.
pub(super) fn side_with(service: Service, features: u32, rnr_retry: u8, receives: u32) -> Side {
    let memory = Window::private(link_bytes(REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN));
    let page = Window::private(PAGE_BYTES);
    let mut application = end(&memory, 0).unwrap();
    application.publish_receiving(&ReceiveAttributes {
        rq_psn: Psn::new(9),
        path_mtu: MTU,
        min_rnr_timer: 1,
        max_dest_rd_atomic: 4,
    });
    application.publish_sending(&SendAttributes {
        sq_psn: Psn::new(9),
        timeout: 10,
        retry_count: 7,
        rnr_retry,
        max_rd_atomic: 4,
    });
    application.publish_credits(receives, RECEIVE as u32);
    application.open(0);
    let kind = (service, features);
    let mut engine = queue_pair(&memory, &page, kind);
    engine.serve(1);
    Side { application, engine, memory, page, kind, mapped_before: 0 }
}
