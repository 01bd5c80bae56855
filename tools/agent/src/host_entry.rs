//! Keeps the entry of this host in etcd, on a lease that ends soon after the agent does.

use crate::applier::Report;
use crate::etcd_connection::{connect, within};
use crate::log::{Level, log};
use anyhow::{Context, bail};
use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp, TxnOpResponse};
use omniverb_agent_arguments::EtcdOptions;
use omniverb_cluster::layout::Key;
use omniverb_cluster::value;
use serde_json::json;
use std::path::Path;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

/// The time until the next attempt.
const PAUSE: Duration = Duration::from_secs(1);
/// The time between two changes of the entry.
const QUIET: Duration = Duration::from_millis(200);

/// The entry of a host.
pub(crate) struct HostEntry {
    key: String,
    /// Tells this host from another of the same name: its boot, and its daemon's socket.
    instance: String,
    lease_seconds: i64,
}

impl HostEntry {
    pub(crate) fn new(host: &str, socket: &Path, lease_seconds: i64) -> HostEntry {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        HostEntry {
            key: Key::Live(host.to_owned()).text(),
            instance: format!("{} {}", boot.trim(), socket.display()),
            lease_seconds,
        }
    }

    /// Keeps it until `ended`, and deletes it then.
    pub(crate) async fn keep(
        self,
        etcd: &EtcdOptions,
        mut reports: watch::Receiver<Report>,
        mut ended: oneshot::Receiver<()>,
    ) {
        let mut said = None;
        loop {
            let kept = self.renew(etcd, &mut reports, &mut said, &mut ended).await;
            match kept {
                Ok(()) => return,
                Err(error) => {
                    let text = format!("the entry of this host: {error:#}");
                    // That etcd is gone is said by what follows the objects.
                    if said.as_ref() != Some(&text) && text.contains("another host") {
                        log(Level::Warning, &text);
                    }
                    said = Some(text);
                }
            }
            tokio::select! {
                () = sleep(PAUSE) => {}
                _ = &mut ended => return,
            }
        }
    }

    /// Makes the entry and renews its lease; returns when the agent ends.
    async fn renew(
        &self,
        etcd: &EtcdOptions,
        reports: &mut watch::Receiver<Report>,
        said: &mut Option<String>,
        ended: &mut oneshot::Receiver<()>,
    ) -> anyhow::Result<()> {
        let mut client = tokio::select! {
            client = connect(etcd) => client?,
            _ = &mut *ended => return Ok(()),
        };
        let lease = within(client.lease_grant(self.lease_seconds, None)).await?.id();
        let report = reports.borrow_and_update().clone();
        if let Err(error) = self.begin(&mut client, lease, &report).await {
            let _ = within(client.lease_revoke(lease)).await;
            return Err(error);
        }
        *said = None;
        let (mut keeper, mut answers) = within(client.lease_keep_alive(lease)).await?;
        let every = Duration::from_secs(self.lease_seconds.unsigned_abs()) / 3;
        let mut ticks = tokio::time::interval(every);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    within(keeper.keep_alive()).await?;
                    let answer = within(answers.message()).await?.context("the lease has ended")?;
                    if answer.ttl() <= 0 {
                        bail!("the lease has ended");
                    }
                }
                changed = reports.changed() => {
                    changed.context("nothing is applied any more")?;
                    let report = reports.borrow_and_update().clone();
                    let options = PutOptions::new().with_lease(lease);
                    let value = self.value(&report);
                    within(client.put(self.key.as_str(), value, Some(options))).await?;
                    sleep(QUIET).await;
                }
                _ = &mut *ended => {
                    let _ = within(client.lease_revoke(lease)).await;
                    return Ok(());
                }
            }
        }
    }

    /// Makes the entry, unless another host has it.
    async fn begin(&self, client: &mut Client, lease: i64, report: &Report) -> anyhow::Result<()> {
        let put = |lease| {
            let options = PutOptions::new().with_lease(lease);
            TxnOp::put(self.key.as_str(), self.value(report), Some(options))
        };
        let absent = Compare::create_revision(self.key.as_str(), CompareOp::Equal, 0);
        let make = Txn::new()
            .when([absent])
            .and_then([put(lease)])
            .or_else([TxnOp::get(self.key.as_str(), None)]);
        let answer = within(client.txn(make)).await?;
        if answer.succeeded() {
            return Ok(());
        }
        let responses = answer.op_responses();
        let Some(TxnOpResponse::Get(found)) = responses.first() else { bail!("no answer") };
        let Some(entry) = found.kvs().first() else { bail!("it changes: trying again") };
        let theirs = value::parse(entry.value()).unwrap_or_default();
        let instance = theirs.get("instance").and_then(|instance| instance.as_str());
        if instance != Some(self.instance.as_str()) {
            bail!("another host has this name: use --host, or wait until its lease has ended");
        }
        // An earlier agent of this host's own.
        let same = Compare::mod_revision(self.key.as_str(), CompareOp::Equal, entry.mod_revision());
        let take = Txn::new().when([same]).and_then([put(lease)]);
        match within(client.txn(take)).await?.succeeded() {
            true => Ok(()),
            false => bail!("it changes: trying again"),
        }
    }

    fn value(&self, report: &Report) -> String {
        json!({
            "instance": self.instance,
            "version": env!("CARGO_PKG_VERSION"),
            "revision": report.revision,
            "objects": report.objects,
            "problems": report.problems,
            "daemon": report.has_daemon,
        })
        .to_string()
    }
}
