//! Keeps the entries of this host in etcd, on a lease that ends soon after the agent does: that it
//! is there, and the addresses that its vNICs have in virtual networks.

use crate::applier::Report;
use crate::etcd_connection::{connect, within};
use crate::log::{Level, log};
use anyhow::{Context, bail};
use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp, TxnOpResponse};
use omniverb_agent_arguments::EtcdOptions;
use omniverb_cluster::announcements::host_of;
use omniverb_cluster::layout::{Key, addresses};
use omniverb_cluster::object::Fields;
use omniverb_cluster::reports::{Line, Reports};
use omniverb_cluster::value::parse;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::{interval, sleep};

/// The time until the next attempt.
const PAUSE: Duration = Duration::from_secs(1);
/// The time between two changes of the entry.
const QUIET: Duration = Duration::from_millis(200);

/// The time between two attempts to announce an address that another host has.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Entries that are compared at once: etcd takes 128 by default.
const COMPARED_MAX: usize = 100;
/// What etcd says of a user without a right.
const DENIED: &str = "permission denied";

/// The entries of a host.
pub(crate) struct HostEntry {
    host: String,
    key: String,
    /// Tells this host from another of the same name: its boot, and its daemon's socket.
    instance: String,
    lease_seconds: i64,
    /// Addresses that could not be announced.
    conflicts: Reports,
}

impl HostEntry {
    pub(crate) fn new(host: &str, socket: &Path, lease_seconds: i64) -> HostEntry {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        HostEntry {
            host: host.to_owned(),
            key: Key::Live(host.to_owned()).text(),
            instance: format!("{} {}", boot.trim(), socket.display()),
            lease_seconds,
            conflicts: Reports::default(),
        }
    }

    /// Keeps them until `ended`, and deletes that of the host then.
    pub(crate) async fn keep(
        mut self,
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

    /// Makes the entries and renews their lease; returns when the agent ends.
    async fn renew(
        &mut self,
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
        let mut report = reports.borrow_and_update().clone();
        if let Err(error) = self.begin(&mut client, lease, &report).await {
            let _ = within(client.lease_revoke(lease)).await;
            return Err(error);
        }
        *said = None;
        // What is on this lease; on an earlier one of this host's there may be more.
        let mut held = BTreeMap::new();
        let (mut keeper, mut answers) = within(client.lease_keep_alive(lease)).await?;
        let every = Duration::from_secs(self.lease_seconds.unsigned_abs()) / 3;
        let (mut ticks, mut attempts) = (interval(every), interval(ATTEMPT));
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    within(keeper.keep_alive()).await?;
                    let answer = within(answers.message()).await?.context("the lease has ended")?;
                    if answer.ttl() <= 0 {
                        bail!("the lease has ended");
                    }
                    forget_lost(&mut client, &mut held).await?;
                }
                _ = attempts.tick() => {
                    if self.announce(&mut client, lease, &report, &mut held).await? {
                        self.update(&mut client, lease, &report).await?;
                    }
                }
                changed = reports.changed() => {
                    changed.context("nothing is applied any more")?;
                    report = reports.borrow_and_update().clone();
                    self.announce(&mut client, lease, &report, &mut held).await?;
                    self.update(&mut client, lease, &report).await?;
                    sleep(QUIET).await;
                }
                _ = &mut *ended => {
                    if held.is_empty() {
                        let _ = within(client.lease_revoke(lease)).await;
                    }
                    // Addresses end with the lease: the next agent may be there sooner.
                    let _ = within(client.delete(self.key.as_str(), None)).await;
                    return Ok(());
                }
            }
        }
    }

    /// Makes the entry of the host, unless another host has it.
    async fn begin(&self, client: &mut Client, lease: i64, report: &Report) -> anyhow::Result<()> {
        let is_ours = |fields: &Fields| {
            fields.get("instance").is_some_and(|instance| *instance == self.instance)
        };
        match claim(client, lease, &self.key, &self.value(report), is_ours).await? {
            // Or an earlier agent of this host's own had it.
            Claim::Made => Ok(()),
            Claim::Theirs(_) => {
                bail!("another host has this name: use --host, or wait until its lease has ended")
            }
        }
    }

    /// Writes the entry of the host.
    async fn update(&self, client: &mut Client, lease: i64, report: &Report) -> anyhow::Result<()> {
        let options = PutOptions::new().with_lease(lease);
        within(client.put(self.key.as_str(), self.value(report), Some(options))).await.map(drop)
    }

    /// Has the addresses in etcd that this host announces. Of two hosts with one address the first
    /// keeps it. True: other addresses have problems than before.
    async fn announce(
        &mut self,
        client: &mut Client,
        lease: i64,
        report: &Report,
        held: &mut BTreeMap<String, String>,
    ) -> anyhow::Result<bool> {
        let wanted = &report.announced;
        let gone: Vec<String> =
            held.keys().filter(|key| !wanted.contains_key(*key)).cloned().collect();
        for key in gone {
            let Some(value) = held.remove(&key) else { continue };
            let is_ours = Compare::value(key.as_str(), CompareOp::Equal, value);
            let delete = Txn::new().when([is_ours]).and_then([TxnOp::delete(key, None)]);
            within(client.txn(delete)).await?;
        }
        let mut problems = BTreeMap::new();
        for (key, value) in wanted.iter() {
            if held.get(key) == Some(value) {
                continue;
            }
            let is_ours = |fields: &Fields| host_of(fields) == Some(self.host.as_str());
            let problem = match claim(client, lease, key, value, is_ours).await {
                Ok(Claim::Made) => {
                    held.insert(key.clone(), value.clone());
                    continue;
                }
                Ok(Claim::Theirs(fields)) => match host_of(&fields) {
                    Some(host) => format!(
                        "host {host} has it, and keeps it: give one of both vNICs another address"
                    ),
                    None => format!("etcd has an entry of no host: delete {key} there"),
                },
                // The daemon's objects are followed all the same.
                Err(error) if error.to_string().contains(DENIED) => {
                    format!("{error}: the agent's user of etcd has to write {}", addresses())
                }
                Err(error) => return Err(error),
            };
            held.remove(key);
            let name = key.strip_prefix(&addresses()).unwrap_or(key);
            problems.insert(format!("address {name} of this host"), problem);
        }
        let before = self.conflicts.count();
        for line in self.conflicts.update(problems) {
            match line {
                Line::Problem(text) => log(Level::Error, &text),
                Line::Over(text) => log(Level::Info, &text),
            }
        }
        Ok(self.conflicts.count() != before)
    }

    fn value(&self, report: &Report) -> String {
        json!({
            "instance": self.instance,
            "version": env!("CARGO_PKG_VERSION"),
            "revision": report.revision,
            "objects": report.objects,
            "problems": report.problems + self.conflicts.count(),
            "daemon": report.has_daemon,
        })
        .to_string()
    }
}

/// The result of claiming a key.
enum Claim {
    /// It has our value now, on our lease.
    Made,
    /// Another host has it.
    Theirs(Fields),
}

/// Writes an entry, unless another host has one of this key.
async fn claim(
    client: &mut Client,
    lease: i64,
    key: &str,
    value: &str,
    is_ours: impl Fn(&Fields) -> bool,
) -> anyhow::Result<Claim> {
    let put = || TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)));
    let absent = Compare::create_revision(key, CompareOp::Equal, 0);
    let make = Txn::new().when([absent]).and_then([put()]).or_else([TxnOp::get(key, None)]);
    let answer = within(client.txn(make)).await?;
    if answer.succeeded() {
        return Ok(Claim::Made);
    }
    let responses = answer.op_responses();
    let Some(TxnOpResponse::Get(found)) = responses.first() else { bail!("no answer") };
    let Some(entry) = found.kvs().first() else { bail!("it changes: trying again") };
    let theirs = parse(entry.value()).unwrap_or_default();
    if !is_ours(&theirs) {
        return Ok(Claim::Theirs(theirs));
    }
    let same = Compare::mod_revision(key, CompareOp::Equal, entry.mod_revision());
    let take = Txn::new().when([same]).and_then([put()]);
    match within(client.txn(take)).await?.succeeded() {
        true => Ok(Claim::Made),
        false => bail!("it changes: trying again"),
    }
}

/// Forgets entries that are not in etcd any more, whoever deleted them: they are made again.
async fn forget_lost(
    client: &mut Client,
    held: &mut BTreeMap<String, String>,
) -> anyhow::Result<()> {
    let all: Vec<(String, String)> =
        held.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    for part in all.chunks(COMPARED_MAX) {
        let is_there = |(key, value): &(String, String)| {
            Compare::value(key.as_str(), CompareOp::Equal, value.as_str())
        };
        let compare = Txn::new().when(part.iter().map(is_there).collect::<Vec<_>>());
        if !within(client.txn(compare)).await?.succeeded() {
            part.iter().for_each(|(key, _)| drop(held.remove(key)));
        }
    }
    Ok(())
}
