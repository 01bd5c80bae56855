//! Keeps the entries of this host in etcd, on a lease that ends soon after the agent does: that it
//! is there, and the addresses that its vNICs have in virtual networks.

use crate::etcd_connection::{connect, within};
use crate::log::{Level, log};
use crate::object_applier::Report;
use anyhow::{Context, bail};
use etcd_client::{
    Client, Compare, CompareOp, LeaseKeepAliveStream, LeaseKeeper, PutOptions, Txn, TxnOp,
    TxnOpResponse,
};
use omniverb_agent_arguments::EtcdOptions;
use omniverb_cluster::address_announcements::host_of;
use omniverb_cluster::etcd_key_layout::{Key, addresses};
use omniverb_cluster::etcd_value::parse;
use omniverb_cluster::object_name::Fields;
use omniverb_cluster::problem_reports::{Line, Reports};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
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
/// The problem of an entry that others write at the same moment.
const CHANGING: &str = "others change its entry: trying again";

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
        let mut lease = Lease::grant(&mut client, self.lease_seconds).await?;
        let mut report = reports.borrow_and_update().clone();
        if let Err(error) = self.begin(&mut client, lease.id, &report).await {
            let _ = within(client.lease_revoke(lease.id)).await;
            return Err(error);
        }
        *said = None;
        // What is on this lease; on an earlier one of this host's there may be more.
        let mut held = BTreeMap::new();
        let (mut ticks, mut attempts) = (interval(lease.every), interval(ATTEMPT));
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    lease.renew().await?;
                    forget_lost(&mut client, &mut held).await?;
                }
                _ = attempts.tick() => {
                    if self.announce(&mut client, &mut lease, &report, &mut held).await? {
                        self.update(&mut client, lease.id, &report).await?;
                    }
                }
                changed = reports.changed() => {
                    changed.context("nothing is applied any more")?;
                    report = reports.borrow_and_update().clone();
                    self.announce(&mut client, &mut lease, &report, &mut held).await?;
                    self.update(&mut client, lease.id, &report).await?;
                    sleep(QUIET).await;
                }
                _ = &mut *ended => {
                    if held.is_empty() {
                        let _ = within(client.lease_revoke(lease.id)).await;
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
            Claim::Changing => bail!(CHANGING),
        }
    }

    /// Writes the entry of the host.
    async fn update(&self, client: &mut Client, lease: i64, report: &Report) -> anyhow::Result<()> {
        let options = PutOptions::new().with_lease(lease);
        within(client.put(self.key.as_str(), self.value(report), Some(options))).await.map(drop)
    }

    /// Has the addresses in etcd that this host announces. Of two hosts with one address the first
    /// keeps it. One that cannot be announced stands in the way of no other. True: others have
    /// problems than before.
    ///
    /// # Errors
    /// The lease has ended, or etcd does not answer.
    async fn announce(
        &mut self,
        client: &mut Client,
        lease: &mut Lease,
        report: &Report,
        held: &mut BTreeMap<String, String>,
    ) -> anyhow::Result<bool> {
        let wanted = &report.announced;
        let gone: Vec<(String, String)> = held
            .iter()
            .filter(|(key, _)| !wanted.contains_key(*key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let mut problems = BTreeMap::new();
        for (key, value) in gone {
            lease.renew_if_due().await?;
            let is_ours = Compare::value(key.as_str(), CompareOp::Equal, value);
            let delete = Txn::new().when([is_ours]).and_then([TxnOp::delete(key.as_str(), None)]);
            match within(client.txn(delete)).await {
                Ok(_) => drop(held.remove(&key)),
                Err(error) => {
                    lease.renew().await?;
                    problems.insert(shown(&key), problem_of_error(&error));
                }
            }
        }
        let host = self.host.as_str();
        let attempt = async |key: &str, value: &str| -> anyhow::Result<Option<String>> {
            lease.renew_if_due().await?;
            let is_ours = |fields: &Fields| host_of(fields) == Some(host);
            let result = claim(client, lease.id, key, value, is_ours).await;
            if result.is_err() {
                // It is this entry's affair if all else goes on.
                lease.renew().await?;
            }
            Ok(problem_of(result, key))
        };
        problems.extend(claim_each(wanted, held, attempt).await?);
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

/// A lease of etcd.
struct Lease {
    id: i64,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
    /// The time between two renewals.
    every: Duration,
    renewed: Instant,
}

impl Lease {
    async fn grant(client: &mut Client, seconds: i64) -> anyhow::Result<Lease> {
        let id = within(client.lease_grant(seconds, None)).await?.id();
        let (keeper, answers) = within(client.lease_keep_alive(id)).await?;
        let every = Duration::from_secs(seconds.unsigned_abs()) / 3;
        Ok(Lease { id, keeper, answers, every, renewed: Instant::now() })
    }

    async fn renew(&mut self) -> anyhow::Result<()> {
        within(self.keeper.keep_alive()).await?;
        let answer = within(self.answers.message()).await?.context("the lease has ended")?;
        if answer.ttl() <= 0 {
            bail!("the lease has ended");
        }
        self.renewed = Instant::now();
        Ok(())
    }

    /// For what may take longer than the lease: a large host writes thousands of entries.
    async fn renew_if_due(&mut self) -> anyhow::Result<()> {
        match self.renewed.elapsed() >= self.every {
            true => self.renew().await,
            false => Ok(()),
        }
    }
}

/// Claims each wanted entry that is not held yet: `attempt` says the problem with one. Returns all
/// problems, by what they are about.
///
/// # Errors
/// That of an attempt which no other would fare better than.
async fn claim_each(
    wanted: &BTreeMap<String, String>,
    held: &mut BTreeMap<String, String>,
    mut attempt: impl AsyncFnMut(&str, &str) -> anyhow::Result<Option<String>>,
) -> anyhow::Result<BTreeMap<String, String>> {
    let mut problems = BTreeMap::new();
    for (key, value) in wanted {
        if held.get(key) == Some(value) {
            continue;
        }
        match attempt(key, value).await? {
            None => drop(held.insert(key.clone(), value.clone())),
            Some(problem) => {
                held.remove(key);
                problems.insert(shown(key), problem);
            }
        }
    }
    Ok(problems)
}

/// An address of this host for people.
fn shown(key: &str) -> String {
    format!("address {} of this host", key.strip_prefix(&addresses()).unwrap_or(key))
}

/// Why a key could not be claimed, if it could not.
fn problem_of(result: anyhow::Result<Claim>, key: &str) -> Option<String> {
    match result {
        Ok(Claim::Made) => None,
        Ok(Claim::Changing) => Some(CHANGING.into()),
        Ok(Claim::Theirs(fields)) => Some(match host_of(&fields) {
            Some(host) => {
                format!("host {host} has it, and keeps it: give one of both vNICs another address")
            }
            None => format!("etcd has an entry of no host: delete {key} there"),
        }),
        Err(error) => Some(problem_of_error(&error)),
    }
}

fn problem_of_error(error: &anyhow::Error) -> String {
    match error.to_string() {
        // The daemon's objects are followed all the same.
        text if text.contains(DENIED) => {
            format!("{text}: the agent's user of etcd has to write {}", addresses())
        }
        text => format!("{text}: trying again"),
    }
}

/// The result of claiming a key.
enum Claim {
    /// It has our value now, on our lease.
    Made,
    /// Another host has it.
    Theirs(Fields),
    /// Others write it at the same moment.
    Changing,
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
    let Some(entry) = found.kvs().first() else { return Ok(Claim::Changing) };
    let theirs = parse(entry.value()).unwrap_or_default();
    if !is_ours(&theirs) {
        return Ok(Claim::Theirs(theirs));
    }
    let same = Compare::mod_revision(key, CompareOp::Equal, entry.mod_revision());
    let take = Txn::new().when([same]).and_then([put()]);
    Ok(match within(client.txn(take)).await?.succeeded() {
        true => Claim::Made,
        false => Claim::Changing,
    })
}

/// Forgets entries that etcd does not have any more, so that they are made again.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(keys: &[&str]) -> BTreeMap<String, String> {
        keys.iter().map(|key| (format!("{}blue/{key}", addresses()), "{}".to_owned())).collect()
    }

    #[test]
    fn an_entry_that_cannot_be_had_stands_in_the_way_of_no_other() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let wanted = entries(&["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]);
        let mut held = entries(&["10.0.0.1", "10.0.0.2"]);
        // Somebody has written another value of the second one.
        held.insert(wanted.keys().nth(1).unwrap().clone(), "{1}".into());
        let mut asked = Vec::new();
        let attempt = async |key: &str, _: &str| -> anyhow::Result<Option<String>> {
            asked.push(key.rsplit('.').next().unwrap().to_owned());
            Ok(match key.ends_with('2') {
                true => problem_of(Ok(Claim::Changing), key),
                false if key.ends_with('3') => problem_of(Err(anyhow::anyhow!("no space")), key),
                false => problem_of(Ok(Claim::Made), key),
            })
        };
        let problems = runtime.block_on(claim_each(&wanted, &mut held, attempt)).unwrap();
        assert_eq!(asked, ["2", "3", "4"]);
        assert_eq!(held, entries(&["10.0.0.1", "10.0.0.4"]));
        let expected = [("2", CHANGING), ("3", "no space: trying again")]
            .map(|(last, why)| (format!("address blue/10.0.0.{last} of this host"), why.into()));
        assert_eq!(problems, expected.into());
        // Without a lease none can be had.
        let attempt = async |_: &str, _: &str| -> anyhow::Result<Option<String>> {
            bail!("the lease has ended")
        };
        assert!(runtime.block_on(claim_each(&wanted, &mut held, attempt)).is_err());
    }

    #[test]
    fn a_problem_says_what_to_do() {
        let theirs = |text: &str| Ok(Claim::Theirs(serde_json::from_str(text).unwrap()));
        let problem = |result| problem_of(result, "/omniverb/v1/address/blue/10.0.0.1").unwrap();
        assert!(problem(theirs(r#"{"host": "h2"}"#)).contains("host h2 has it"));
        assert!(problem(theirs("{}")).contains("delete /omniverb/v1/address/blue/10.0.0.1"));
        let denied = anyhow::anyhow!("etcdserver: permission denied");
        assert!(problem(Err(denied)).contains("has to write /omniverb/v1/address/"));
    }
}
