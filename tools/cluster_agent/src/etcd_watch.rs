//! Follows the objects of a host in etcd: a snapshot at one revision, then every change after it.
//!
//! Whatever goes wrong, the answer is the same: connect anew, and take a snapshot. That holds for
//! an etcd that is gone, for a watch whose revisions were compacted, and for answers too long to
//! read. Meanwhile the host keeps what it has.

use crate::etcd_connection::{ANSWER_BYTES_MAX, PATIENCE, connect, read_each, reason};
use crate::log::{Level, log};
use crate::newest_objects_for_applier::{Input, InputSender};
use anyhow::{Context, bail};
use etcd_client::{EventType, KeyValue, WatchOptions, WatchResponse, WatchStream};
use omniverb_agent_arguments::EtcdOptions;
use omniverb_cluster::cluster_objects::ClusterObjects;
use omniverb_cluster::etcd_key_layout::{addresses, objects_of};
use omniverb_cluster::object_name::Scope;
use omniverb_cluster::sealed_field::SealKey;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout, timeout_at};

/// The time until the next attempt, at first and at last.
const PAUSE: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(5)];
/// The time for which changes that come together are gathered.
const GATHER: Duration = Duration::from_millis(10);
/// Changes that are gathered before they are applied, at most.
const GATHER_MAX: usize = 1000;

/// The least time between two times that all is read since there is room again for what was left
/// out: others decide how often that is.
const AGAIN: Duration = Duration::from_secs(60);

/// The parameters of following etcd.
struct Follower<'a> {
    host: &'a str,
    key: Option<Arc<SealKey>>,
    input: &'a InputSender,
    /// The cluster that the host's objects are of.
    cluster: Option<String>,
    /// Why nothing that etcd says counts, as it was said.
    said: Option<String>,
}

/// Follows etcd, for ever.
pub(crate) async fn watch(
    etcd: &EtcdOptions,
    host: &str,
    key: Option<Arc<SealKey>>,
    input: &InputSender,
) -> Infallible {
    let mut follower = Follower { host, key, input, cluster: None, said: None };
    let (mut pause, mut was_said) = (PAUSE[0], false);
    loop {
        let (mut has_begun, began) = (false, Instant::now());
        let Err(error) = follower.follow(etcd, || has_begun = true).await;
        was_said &= !has_begun;
        // An etcd that ends each watch at once is not read again and again.
        if has_begun && began.elapsed() >= PAUSE[1] {
            pause = PAUSE[0];
        }
        if !std::mem::replace(&mut was_said, true) {
            let text = format!("{error:#}; what this host has stays as it is; trying again");
            log(Level::Warning, &text);
        }
        sleep(pause).await;
        pause = (2 * pause).min(PAUSE[1]);
    }
}

impl Follower<'_> {
    /// Takes a snapshot, and follows what comes after it until something goes wrong.
    async fn follow(
        &mut self,
        etcd: &EtcdOptions,
        begun: impl FnOnce(),
    ) -> anyhow::Result<Infallible> {
        let client = connect(etcd).await?;
        let again = tokio::time::Instant::now() + AGAIN;
        let [all, ours] = [Scope::All, Scope::Host(self.host.to_owned())].map(|s| objects_of(&s));
        let prefixes = [all, ours, addresses()];
        let mut objects = ClusterObjects::new(self.host, self.key.clone());
        let mut at = None;
        for prefix in &prefixes {
            let each = |entry: &KeyValue| objects.put(entry.key(), entry.value());
            let read = read_each(&client, prefix, at, each).await;
            at = Some(read.context("cannot read from etcd")?);
        }
        complete(&objects)?;
        let mut revision = at.context("etcd has no revision")?;
        let mut kinds = client.watch_client().max_decoding_message_size(ANSWER_BYTES_MAX);
        let [first, others @ ..] = &prefixes;
        let options = || WatchOptions::new().with_prefix().with_start_revision(revision + 1);
        let begin = timeout(PATIENCE, kinds.watch(first.as_str(), Some(options()))).await;
        let mut stream = answered(begin.context("etcd does not begin a watch")?)?;
        for other in others {
            answered(stream.watch(other.as_str(), Some(options())).await)?;
        }
        log(Level::Info, &format!("etcd answers: revision {revision}"));
        begun();
        self.say(&objects, revision);
        loop {
            let first = match objects.announcements().is_stale() {
                true => timeout_at(again, next(&mut stream)).await,
                false => Ok(next(&mut stream).await),
            };
            let Ok(first) = first else {
                bail!("there is room again for addresses that were too many: all is read again");
            };
            let mut count = take(&first?, &mut objects, &mut revision)?;
            if count == 0 {
                continue;
            }
            while count < GATHER_MAX
                && let Ok(more) = timeout(GATHER, next(&mut stream)).await
            {
                count += take(&more?, &mut objects, &mut revision)?;
            }
            complete(&objects)?;
            self.say(&objects, revision);
        }
    }

    /// Hands on what holds now, if this is the cluster that the host is of.
    fn say(&mut self, objects: &ClusterObjects, revision: i64) {
        let known = objects.identity().and_then(|found| match &self.cluster {
            Some(known) if known != found => Err(format!(
                "etcd has another cluster ({found:?} instead of {known:?}): restart this agent to \
                 take that"
            )),
            _ => Ok(found.to_owned()),
        });
        match known {
            Ok(cluster) => {
                self.cluster = Some(cluster);
                self.said = None;
                // The applier ends with this process only.
                self.input.send(Input {
                    wanted: objects.wanted(),
                    announcements: objects.announcements().clone(),
                    problems: objects.problems(),
                    revision,
                });
            }
            Err(why) => {
                if self.said.as_ref() != Some(&why) {
                    log(Level::Warning, &format!("{why}; what this host has stays as it is"));
                    self.said = Some(why);
                }
            }
        }
    }
}

/// None of the objects is left out.
fn complete(objects: &ClusterObjects) -> anyhow::Result<()> {
    match objects.excess() {
        Some(why) => bail!(why),
        None => Ok(()),
    }
}

fn answered<T>(answer: Result<T, etcd_client::Error>) -> anyhow::Result<T> {
    answer.map_err(|error| anyhow::anyhow!("etcd: {}", reason(&error)))
}

async fn next(stream: &mut WatchStream) -> anyhow::Result<WatchResponse> {
    answered(stream.message().await)?.context("etcd has ended the watch")
}

/// Takes the changes of an answer; how many there were.
fn take(
    answer: &WatchResponse,
    objects: &mut ClusterObjects,
    revision: &mut i64,
) -> anyhow::Result<usize> {
    if answer.compact_revision() != 0 {
        bail!("etcd has compacted what was not seen yet: all is read again");
    }
    if answer.canceled() {
        bail!("etcd has ended a watch: {}", answer.cancel_reason());
    }
    for event in answer.events() {
        let Some(entry) = event.kv() else { continue };
        match event.event_type() {
            EventType::Put => objects.put(entry.key(), entry.value()),
            EventType::Delete => objects.delete(entry.key()),
        }
        *revision = (*revision).max(entry.mod_revision());
    }
    Ok(answer.events().len())
}
