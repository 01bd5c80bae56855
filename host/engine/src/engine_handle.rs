//! Provides the handle that the control plane holds.

use crate::command::{Command, Event, QpCounters};
use crate::event_outbox::Outbox;
use crate::event_queues::Events;
use crate::kept_memory_limits::{HOST_BYTES, Store};
use crate::network::pending_probes::Questions;
use crate::network::underlay_relay::UnderlayRelay;
use crate::pages::mapped_memory_budget::{Mappings, Remains};
use crate::worker::event_loop::{Inbox, Worker};
use crate::worker::shared_counters::Counters;
use omniverb_datapath::peer_features;
use omniverb_sys::EventFd;
use omniverb_sys::thread_watchdog::ThreadPulses;
use omniverb_terms::{Qpn, VnicId};
use omniverb_transport::fault_injection::FaultCounts as FaultCounters;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// How an engine is to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Packet threads. A vNIC belongs to one of them.
    pub threads: usize,
    /// How long a thread without work looks for more before it sleeps.
    pub spin: Duration,
    /// Bytes that are kept on behalf of tenants, of all vNICs together.
    pub kept_bytes: usize,
    /// Bits of [`crate::peer_features`] that other Omniverbs are told of.
    pub features: u32,
    /// Where its threads show that they go on.
    pub pulses: ThreadPulses,
}

impl Default for Settings {
    fn default() -> Settings {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Settings {
            threads: (processors / 4).clamp(1, 4),
            spin: Duration::from_micros(50),
            kept_bytes: HOST_BYTES,
            features: peer_features::ALL,
            pulses: ThreadPulses::default(),
        }
    }
}

struct Thread {
    commands: Option<mpsc::Sender<Command>>,
    wake: Arc<EventFd>,
    handle: Option<JoinHandle<()>>,
}

/// The engine. Dropping it ends its threads.
pub struct Engine {
    threads: Vec<Thread>,
    /// Takes down what is mapped no more; ends with the last packet thread.
    undertaker: Option<JoinHandle<()>>,
    events: Events,
    questions: Questions,
    ready: Arc<EventFd>,
    counters: Counters,
}

impl Engine {
    /// Starts the threads.
    ///
    /// # Errors
    /// `EMFILE`, `EAGAIN` and the like.
    pub fn start(settings: &Settings) -> io::Result<Engine> {
        let (events, questions) = (Events::default(), Questions::default());
        let ready = Arc::new(EventFd::new()?);
        let counters = Counters::default();
        let mut engine =
            Engine { threads: Vec::new(), undertaker: None, events, questions, ready, counters };
        let (bury, gone) = mpsc::channel::<Remains>();
        let pulse = settings.pulses.minor("engine-unmap");
        let undertaker =
            std::thread::Builder::new().name("engine-unmap".into()).spawn(move || {
                while let Ok(remains) = gone.recv() {
                    pulse.work();
                    drop(remains);
                    pulse.rest();
                }
            })?;
        engine.undertaker = Some(undertaker);
        let mappings = Mappings::new(bury);
        let store = Store::new(settings.kept_bytes);
        for number in 0..settings.threads.max(1) {
            let (commands, work) = mpsc::channel();
            let wake = Arc::new(EventFd::new()?);
            let inbox = Inbox { commands: work, wake: wake.clone() };
            let outbox = Outbox::new(engine.events.clone(), engine.ready.clone());
            let counters = engine.counters.clone();
            let name = format!("engine-{number}");
            let pulse = settings.pulses.vital(&name);
            let questions = (engine.questions.clone(), settings.features);
            store.add_thread(wake.clone());
            let (store, mappings) = (store.clone(), mappings.clone());
            let shared = (store, mappings, questions);
            let mut worker = Worker::new(inbox, outbox, counters, settings.spin, shared)?;
            let handle = std::thread::Builder::new().name(name).spawn(move || {
                // Without its packet threads a daemon is useless; a restarted one is not, and
                // direct links do not notice.
                let work = std::panic::AssertUnwindSafe(|| worker.run(&pulse));
                if std::panic::catch_unwind(work).is_err() {
                    std::process::abort();
                }
            })?;
            let (commands, handle) = (Some(commands), Some(handle));
            engine.threads.push(Thread { commands, wake, handle });
        }
        Ok(engine)
    }

    /// Has something done, soon.
    pub fn send(&self, command: Command) {
        let vnic = match &command {
            Command::OpenVnic { vnic, .. }
            | Command::CloseVnic { vnic }
            | Command::SetLimit { vnic, .. }
            | Command::SetFaults { vnic, .. }
            | Command::SetEncryption { vnic, .. }
            | Command::SetPlaces { vnic, .. }
            | Command::SetGroupSenders { vnic, .. }
            | Command::Withdraw { vnic, .. }
            | Command::Deny { vnic, .. }
            | Command::Refuse { vnic, .. }
            | Command::SetPeerPort { vnic, .. }
            | Command::Manage { vnic, .. }
            | Command::Capture { vnic, .. }
            | Command::ForgetCounted { vnic } => *vnic,
            Command::Attach(attach) => attach.vnic,
            Command::Grant(grant) => grant.vnic,
            Command::SetGroup { unit, group, within, limit } => {
                let (unit, group, within) = (*unit, *group, *within);
                for thread in &self.threads {
                    let limit = limit.clone();
                    thread.send(Command::SetGroup { unit, group, within, limit });
                }
                return;
            }
            Command::CloseGroup { unit, group } => {
                for thread in &self.threads {
                    thread.send(Command::CloseGroup { unit: *unit, group: *group });
                }
                return;
            }
            Command::Detach { qpn, peer_qpn } => {
                // Only the one that has it does something.
                for thread in &self.threads {
                    thread.send(Command::Detach { qpn: *qpn, peer_qpn: *peer_qpn });
                }
                return;
            }
        };
        self.thread_of(vnic).send(command);
    }

    fn thread_of(&self, vnic: VnicId) -> &Thread {
        let count = self.threads.len() as u64;
        &self.threads[(vnic.0 % count) as usize]
    }

    /// Starts the thread that carries packets of virtual networks. Its events are among the
    /// engine's.
    ///
    /// # Errors
    /// `EMFILE`, `EAGAIN` and the like.
    pub fn start_relay(&self, pulses: &ThreadPulses) -> io::Result<UnderlayRelay> {
        let outbox = Outbox::new(self.events.clone(), self.ready.clone());
        UnderlayRelay::start(pulses.minor("underlay"), outbox)
    }

    /// A question of this number is sent from a vNIC to an address: [`Event::Answered`] tells what
    /// comes of it, whatever else comes meanwhile.
    pub fn expect(&self, number: u128, asker: VnicId, asked: IpAddr) {
        self.questions.begin(number, asker, asked);
    }

    /// A question is under way no more.
    pub fn expect_no_more(&self, number: u128) {
        self.questions.end(number);
    }

    /// Readable when [`Engine::next_event`] has something.
    pub fn ready(&self) -> &EventFd {
        &self.ready
    }

    /// The next event.
    pub fn next_event(&self) -> Option<Event> {
        self.events.take()
    }

    /// The counters of a link, up to a tenth of a second old.
    pub fn status(&self, qpn: Qpn, peer_qpn: Qpn) -> Option<QpCounters> {
        self.counters.link(qpn, peer_qpn)
    }

    /// The counters of a vNIC's ended links.
    pub fn ended(&self, vnic: VnicId) -> QpCounters {
        self.counters.ended(vnic)
    }

    /// What faults did to packets of a vNIC that has or had some, up to a tenth of a second old.
    pub fn faults(&self, vnic: VnicId) -> Option<FaultCounters> {
        self.counters.faults(vnic)
    }
}

impl Thread {
    fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            let _ = commands.send(command);
            self.wake.signal();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for thread in &mut self.threads {
            thread.commands = None;
            thread.wake.signal();
        }
        for thread in &mut self.threads {
            if let Some(handle) = thread.handle.take() {
                let _ = handle.join();
            }
        }
        if let Some(undertaker) = self.undertaker.take() {
            let _ = undertaker.join();
        }
    }
}
