//! Disconnects clients and releases what they had, outside this thread where that may block: see
//! `omniverb_sys::unsolicited_fds`.

use crate::daemon_log::Level;
use crate::qp_counters::Slot;
use crate::server::Server;
use omniverb_sys::clock;
use omniverb_tenancy::SessionId;
use omniverb_terms::Errno;

impl Server {
    /// Ends a client's connection; everything it had goes.
    pub(super) fn end(&mut self, id: SessionId, reason: &'static str) {
        for slot in self.tables.slots_of(id) {
            if let Some(words) = self.clients.get(id).and_then(|client| client.counters(slot)) {
                self.count(id, &words);
            }
        }
        let Some(mut client) = self.clients.remove(id, &self.reactor) else { return };
        let pid = client.pid();
        self.journal.log(Level::Debug, format_args!("client {} (pid {pid}): {reason}", id.0));
        self.tables.decide(|tables| tables.end(id, clock::now()));
        // While its namespace is still known: the engine must hear of what is closed.
        self.carry_on();
        self.engine.forget_doorbell(id);
        self.machines.session_over(id);
        if let Some(leaver) = client.leave_behind() {
            self.wait_for_end(id, leaver);
        }
        client.into_sockets().for_each(|socket| self.disposal.close_socket(socket));
        self.pair_windows().look_for_unused();
        self.engine_ports().tell_registered();
    }

    /// Adds the counters of a client's queue pair to its vNIC's.
    pub(super) fn count(&mut self, id: SessionId, words: &Slot) {
        let Some(client) = self.clients.get(id) else { return };
        if let Ok(vnic) = client.vnic() {
            self.counted.add(vnic, words);
        }
    }

    /// A call of this client was refused.
    pub(super) fn count_refusal(&mut self, id: SessionId, errno: Errno) {
        if let Some(Ok(vnic)) = self.clients.get(id).map(|client| client.vnic()) {
            self.counted.refuse(vnic, errno);
        }
    }

    /// Lets go of everything that others have a hand in, before the daemon ends. Links go on.
    pub(super) fn close(&mut self) {
        self.remove_addresses();
        // Before their clients are: what those have of its window stays as it is.
        for id in self.machines.numbers() {
            self.part_with_machine(id, "the daemon ends");
        }
        if let Some(broker) = &mut self.broker {
            broker.close(&self.disposal);
        }
        // The listeners are closed; connections made before may carry messages.
        let (operators, left) = self.operators.close();
        let sockets = self.arrivals.close().into_iter().chain(left);
        let clients = self.clients.drain().flat_map(|client| client.into_sockets());
        sockets.chain(clients).for_each(|socket| self.disposal.close_socket(socket));
        for id in operators {
            self.end_operator(id);
        }
        self.dispose();
    }

    /// Ends finished closes by other threads.
    pub(super) fn dispose(&mut self) {
        for trouble in self.disposal.turn() {
            let level = if trouble.is_grave { Level::Error } else { Level::Warning };
            self.journal.log(level, format_args!("{}", trouble.text));
        }
    }
}
