//! What all threads have.

use crate::client::Client;
use crate::offers::Offers;
use std::sync::{Mutex, Weak};

/// All that the threads share.
#[derive(Debug, Default)]
pub(crate) struct Broker {
    pub(crate) offers: Mutex<Offers>,
    pub(crate) clients: Mutex<Vec<Weak<Client>>>,
}
