//! What all threads have.

use crate::offers::Offers;
use crate::seats::Seats;
use std::sync::Mutex;

/// All that the threads share.
#[derive(Debug, Default)]
pub(crate) struct Broker {
    pub(crate) offers: Mutex<Offers>,
    pub(crate) seats: Mutex<Seats>,
}
