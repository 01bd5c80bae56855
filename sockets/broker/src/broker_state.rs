//! Holds the tables that all threads of the broker share.

use crate::admission::AdmissionTable;
use crate::channels::Channels;
use crate::cross_host_gateways::Gateways;
use crate::cross_namespace_permissions::AddressPairs;
use crate::inherited_channels::InheritedChannels;
use crate::links::Links;
use crate::listeners::Listeners;
use crate::observed_routes::ObservedRoutes;
use crate::unmatched_offers::Offers;
use omniverb_formats::address_range::Range;
use omniverb_sys::EventFd;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

/// All that the threads share.
#[derive(Debug, Default)]
pub(crate) struct Broker {
    pub(crate) offers: Mutex<Offers>,
    pub(crate) admissions: Mutex<AdmissionTable>,
    pub(crate) links: Mutex<Links>,
    pub(crate) pairs: Mutex<AddressPairs>,
    pub(crate) observed: Mutex<ObservedRoutes>,
    pub(crate) listeners: Mutex<Listeners>,
    pub(crate) channels: Mutex<Channels>,
    pub(crate) inherited: Mutex<InheritedChannels>,
    pub(crate) gateways: Mutex<Gateways>,
    /// To which addresses connections are light.
    pub(crate) light: Vec<Range>,
    /// By which the daemon is asked.
    pub(crate) daemon: Option<OwnedFd>,
    /// By which the thread that lets processes in is woken: there is something to be done later.
    pub(crate) later: Option<EventFd>,
}

impl Broker {
    /// Wakes the thread that does deferred tasks.
    pub(crate) fn wake(&self) {
        if let Some(later) = &self.later {
            later.signal();
        }
    }
}
