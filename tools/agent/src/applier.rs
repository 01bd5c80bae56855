//! Brings the daemon's objects to what is wanted, in a thread of its own.
//!
//! In: the wanted objects, whenever they change. Out: calls of the daemon, and reports for the
//! host's entry in etcd. It goes on by itself when the daemon is restarted. It tries again what was
//! refused, ever more rarely: what an operator changes on this host may let it pass.

use crate::daemon_connection::{CALL_BYTES_MAX, DaemonConnection};
use crate::log::{Level, log};
use crate::newest_input::{Input, InputReceiver, NoInput};
use omniverb_cluster::change::{Present, make, plan};
use omniverb_cluster::reports::{Line, Reports};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The time between two looks whether the daemon is still there.
const LOOK: Duration = Duration::from_millis(500);
/// The time after which refused changes are tried again, at first and at last.
const RETRY: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(300)];

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
}

/// The state of the thread.
pub(crate) struct Applier {
    socket: PathBuf,
    inputs: InputReceiver,
    report: watch::Sender<Report>,
    daemon: Option<DaemonConnection>,
    present: Present,
    reports: Reports,
    /// The daemon was said to be gone.
    has_said_gone: bool,
}

impl Applier {
    pub(crate) fn new(
        socket: PathBuf,
        inputs: InputReceiver,
        report: watch::Sender<Report>,
    ) -> Applier {
        Applier {
            socket,
            inputs,
            report,
            daemon: None,
            present: Present::default(),
            reports: Reports::default(),
            has_said_gone: false,
        }
    }

    /// Goes on until no more input can come.
    pub(crate) fn run(mut self) {
        // Without input nothing is known: that is not the same as no objects.
        let mut input: Option<Input> = None;
        let (mut is_due, mut pause, mut retry) = (true, RETRY[0], None);
        loop {
            match self.inputs.receive(LOOK) {
                Ok(newest) => (input, is_due, pause) = (Some(newest), true, RETRY[0]),
                Err(NoInput::NotYet) => {}
                Err(NoInput::Closed) => return,
            }
            is_due |= retry.is_some_and(|at| Instant::now() >= at);
            is_due |= !self.is_connected();
            let Some(input) = input.as_ref().filter(|_| is_due) else { continue };
            match self.apply(input) {
                Ok(refused) => {
                    is_due = false;
                    retry = (refused > 0).then(|| Instant::now() + pause);
                    pause = (2 * pause).min(RETRY[1]);
                }
                Err(why) => self.lose(&why),
            }
        }
    }

    fn is_connected(&self) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| !daemon.is_over())
    }

    /// Makes the differences; how many changes were refused.
    fn apply(&mut self, input: &Input) -> Result<usize, String> {
        if !self.is_connected() {
            let daemon = DaemonConnection::connect(&self.socket).map_err(|e| e.to_string())?;
            // Of another daemon, maybe: what it was given we do not know.
            self.present = Present { names: daemon.cluster_objects()?, given: BTreeMap::new() };
            self.daemon = Some(daemon);
            if std::mem::take(&mut self.has_said_gone) {
                log(Level::Info, "the daemon answers again");
            }
        }
        let Some(daemon) = &self.daemon else { return Err("it is gone".into()) };
        let changes = plan(&input.wanted, &self.present);
        let outcome = make(changes, CALL_BYTES_MAX, &mut self.present, |text| daemon.change(text))?;
        if outcome.made > 0 {
            let revision = input.revision;
            log(Level::Info, &format!("{} objects applied (revision {revision})", outcome.made));
        }
        let refused = outcome.refused.len();
        let mut problems = input.problems.clone();
        problems.extend(outcome.refused.into_iter().map(|(id, why)| (id.to_string(), why)));
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
        });
        Ok(refused)
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
