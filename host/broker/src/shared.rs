//! What all threads have.

use crate::links::Links;
use crate::listeners::Listeners;
use crate::offers::Offers;
use crate::relations::Relations;
use crate::seats::Seats;
use crate::trunks::Trunks;
use omniverb_carry::range::Range;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

/// All that the threads share.
#[derive(Debug, Default)]
pub(crate) struct Broker {
    pub(crate) offers: Mutex<Offers>,
    pub(crate) seats: Mutex<Seats>,
    pub(crate) links: Mutex<Links>,
    pub(crate) relations: Mutex<Relations>,
    pub(crate) listeners: Mutex<Listeners>,
    pub(crate) trunks: Mutex<Trunks>,
    /// To which addresses connections are light.
    pub(crate) light: Vec<Range>,
    /// By which the daemon is asked.
    pub(crate) daemon: Option<OwnedFd>,
}
