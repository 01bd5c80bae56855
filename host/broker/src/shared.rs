//! What all threads have.

use crate::client::Client;
use crate::limits::PROCESSES_OF_NAMESPACE;
use crate::offers::Offers;
use omniverb_sys::lock;
use std::sync::{Mutex, Weak};

/// All that the threads share.
#[derive(Debug, Default)]
pub(crate) struct Broker {
    pub(crate) offers: Mutex<Offers>,
    pub(crate) clients: Mutex<Vec<Weak<Client>>>,
}

impl Broker {
    /// A process has proven where it is. `false` if there is no room for another one of that
    /// network namespace.
    pub(crate) fn settles(&self, client: &Client, namespace: u64) -> bool {
        let clients = lock(&self.clients);
        let others = clients.iter().filter_map(Weak::upgrade);
        let count = others.filter(|one| one.namespace.get() == Some(&namespace)).count();
        let has_room = count < PROCESSES_OF_NAMESPACE;
        has_room && client.namespace.set(namespace).is_ok()
    }
}
