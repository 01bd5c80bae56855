//! Brings the daemon's objects to what is wanted, in a thread of its own.
//!
//! In: the wanted objects, whenever they change, and the addresses that other hosts announce. Out:
//! calls of the daemon, and reports for the host's entries in etcd, among them the addresses that
//! this host announces. It goes on by itself when the daemon is restarted. It tries again what was
//! refused, ever more rarely: what an operator changes on this host may let it pass.
//! `daemon_call_pacing.rs` says when.

use crate::daemon_call_pacing::{Acceptance, Extent, Pace, RefusedAddresses};
use crate::daemon_connection::{CALL_BYTES_MAX, DaemonConnection};
use crate::log::{Level, log};
use crate::newest_objects_for_applier::{Input, InputReceiver, NoInput};
use omniverb_cluster::address_announcements::Networks;
use omniverb_cluster::object_name::{Kind, ObjectId, WantedObjects};
use omniverb_cluster::problem_reports::{Line, Reports};
use omniverb_cluster::reconcile_objects::{Outcome, Present, make, plan};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The time between two looks whether the daemon is still there, and has other virtual networks.
const LOOK: Duration = Duration::from_millis(500);

/// How far the host is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The revision of etcd that the host has, but for what was refused.
    pub(crate) revision: i64,
    /// Objects of the cluster that the daemon has.
    pub(crate) objects: usize,
    /// Objects that are not as the cluster has them.
    pub(crate) problems: usize,
    /// Whether the daemon answers.
    pub(crate) has_daemon: bool,
    /// The addresses that this host announces: entries of etcd.
    pub(crate) announced: Arc<BTreeMap<String, String>>,
}

/// The state of the thread.
pub(crate) struct Applier {
    /// The name of this host.
    host: String,
    socket: PathBuf,
    inputs: InputReceiver,
    report: watch::Sender<Report>,
    daemon: Option<DaemonConnection>,
    /// Objects that people describe.
    present: Present,
    /// Addresses of other hosts.
    addresses: Present,
    /// Objects that were refused, and why.
    refused: BTreeMap<ObjectId, String>,
    refused_addresses: RefusedAddresses,
    networks: Networks,
    /// The number of the daemon's changes when these were read.
    revision: u64,
    reports: Reports,
    /// The daemon was said to be gone.
    has_said_gone: bool,
}

impl Applier {
    pub(crate) fn new(
        host: &str,
        socket: PathBuf,
        inputs: InputReceiver,
        report: watch::Sender<Report>,
    ) -> Applier {
        Applier {
            host: host.to_owned(),
            socket,
            inputs,
            report,
            daemon: None,
            present: Present::default(),
            addresses: Present::default(),
            refused: BTreeMap::new(),
            refused_addresses: RefusedAddresses::default(),
            networks: Networks::default(),
            revision: 0,
            reports: Reports::default(),
            has_said_gone: false,
        }
    }

    /// Goes on until no more input can come.
    pub(crate) fn run(mut self) {
        // Without input nothing is known: that is not the same as no objects.
        let mut input: Option<Input> = None;
        let mut pace = Pace::new();
        loop {
            match self.inputs.receive(pace.wait(Instant::now(), LOOK)) {
                Ok(newest) => {
                    let has_same = input.as_ref().is_some_and(|it| it.wanted == newest.wanted);
                    pace.changed(if has_same { Extent::Addresses } else { Extent::All });
                    input = Some(newest);
                }
                Err(NoInput::NotYet) => {}
                Err(NoInput::Closed) => return,
            }
            if !self.is_connected() {
                pace.again();
            }
            match self.read_networks() {
                Ok(true) => pace.changed(Extent::All),
                Ok(false) => {}
                Err(why) => self.lose(&why),
            }
            let Some(input) = &input else { continue };
            let Some(extent) = pace.due(Instant::now()) else { continue };
            match self.apply(input, extent) {
                Ok(acceptance) => pace.applied(extent, acceptance, Instant::now()),
                Err(why) => self.lose(&why),
            }
        }
    }

    fn is_connected(&self) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| !daemon.is_over())
    }

    /// Looks which virtual networks the daemon has, if it is there. True: others than before.
    fn read_networks(&mut self) -> Result<bool, String> {
        let Some(daemon) = self.daemon.as_ref().filter(|daemon| !daemon.is_over()) else {
            return Ok(false);
        };
        let Some((revision, networks)) = daemon.networks(self.revision)? else { return Ok(false) };
        self.revision = revision;
        Ok(std::mem::replace(&mut self.networks, networks) != self.networks)
    }

    /// Makes the differences.
    fn apply(&mut self, input: &Input, extent: Extent) -> Result<Acceptance, String> {
        let mut is_all = extent == Extent::All;
        if !self.is_connected() {
            is_all = true;
            let daemon = DaemonConnection::connect(&self.socket).map_err(|e| e.to_string())?;
            // Of another daemon, maybe: what it was given we do not know.
            let is_address = |id: &ObjectId| id.kind == Kind::Address;
            let (addresses, names) = daemon.cluster_objects()?.into_iter().partition(is_address);
            self.present = Present { names, given: BTreeMap::new() };
            self.addresses = Present { names: addresses, given: BTreeMap::new() };
            (self.daemon, self.revision) = (Some(daemon), 0);
            if std::mem::take(&mut self.has_said_gone) {
                log(Level::Info, "the daemon answers again");
            }
        }
        let Some(daemon) = &self.daemon else { return Err("it is gone".into()) };
        if is_all {
            let objects = lead(daemon, &input.wanted, &mut self.present)?;
            if objects.made > 0 {
                let (made, revision) = (objects.made, input.revision);
                log(Level::Info, &format!("{made} objects applied (revision {revision})"));
            }
            self.refused = objects.refused;
            self.refused_addresses.clear();
            // Which networks there are follows from the objects.
            self.read_networks()?;
        }
        let Some(daemon) = &self.daemon else { return Err("it is gone".into()) };
        let mut wanted = input.announcements.wanted(&self.host, &self.networks);
        self.refused_addresses.hold(&mut wanted);
        let addresses = lead(daemon, &wanted, &mut self.addresses)?;
        if addresses.made > 0 {
            log(Level::Info, &format!("{} addresses of other hosts applied", addresses.made));
        }
        self.refused_addresses.add(addresses.refused, &wanted);
        let mut problems = input.problems.clone();
        problems.extend(input.announcements.problems(&self.networks));
        problems.extend(self.refused.iter().map(|(id, why)| (id.to_string(), why.clone())));
        problems.extend(self.refused_addresses.problems());
        for line in self.reports.update(problems) {
            match line {
                Line::Problem(text) => log(Level::Error, &text),
                Line::Over(text) => log(Level::Info, &text),
            }
        }
        self.report.send_replace(Report {
            revision: input.revision,
            objects: self.present.names.len(),
            problems: self.reports.count(),
            has_daemon: true,
            announced: Arc::new(self.networks.entries(&self.host)),
        });
        let has_refused = !self.refused.is_empty() || !self.refused_addresses.is_empty();
        Ok(if has_refused { Acceptance::Partial } else { Acceptance::Whole })
    }

    fn lose(&mut self, why: &str) {
        self.daemon = None;
        if !std::mem::replace(&mut self.has_said_gone, true) {
            let socket = self.socket.display();
            let text = format!("the daemon at {socket} cannot be reached: {why}; trying again");
            log(Level::Warning, &text);
        }
        self.report.send_if_modified(|report| std::mem::take(&mut report.has_daemon));
    }
}

/// Makes the changes that lead from what the daemon has to what is wanted.
fn lead(
    daemon: &DaemonConnection,
    wanted: &WantedObjects,
    present: &mut Present,
) -> Result<Outcome, String> {
    make(plan(wanted, present), CALL_BYTES_MAX, present, |text| daemon.change(text))
}
