//! Does what people ask of a cluster: `apply`, `get`, `diff`, `delete`, `hosts`.

use crate::etcd_connection::{connect, read_all, within};
use crate::file_watch::text_of;
use crate::secret_file::{random, seal_key};
use anyhow::{Context, bail};
use etcd_client::{Client, Compare, CompareOp, DeleteOptions, KeyValue, Txn, TxnOp};
use omniverb_agent_arguments::{EtcdOptions, ObjectKind};
use omniverb_cluster::etcd_key_layout::{self, Key, PREFIX};
use omniverb_cluster::etcd_value;
use omniverb_cluster::object_differences::{ClusterEntries, Difference, Extra, What, differences};
use omniverb_cluster::object_file::{self, Entries};
use omniverb_cluster::object_name::{Fields, Kind, ObjectId, Scope, is_name};
use omniverb_cluster::sealed_field::{self, SealKey, has_secrets, hex};
use omniverb_session::printable;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Write, stdin, stdout};
use std::path::Path;
use std::process::ExitCode;

/// Changes of one transaction: etcd takes 128 by default.
const CHANGES_MAX: usize = 100;

/// The entries of a cluster.
struct Cluster {
    entries: ClusterEntries,
    /// Revisions at which they were written.
    revisions: BTreeMap<(ObjectId, Scope), i64>,
    /// Whether something was ever applied.
    is_begun: bool,
}

impl Cluster {
    async fn read(client: &Client) -> anyhow::Result<Cluster> {
        let mut cluster =
            Cluster { entries: BTreeMap::new(), revisions: BTreeMap::new(), is_begun: false };
        let (all, revision) =
            read_all(client, &etcd_key_layout::objects_of(&Scope::All), None).await?;
        let (of_hosts, _) = read_all(client, &format!("{PREFIX}host/"), Some(revision)).await?;
        all.iter().chain(&of_hosts).for_each(|entry| cluster.add(entry));
        Ok(cluster)
    }

    fn add(&mut self, entry: &KeyValue) {
        match Key::parse(entry.key()) {
            Ok(Key::Cluster) => self.is_begun = true,
            Ok(Key::Object(scope, id)) => {
                let at = (id, scope);
                self.revisions.insert(at.clone(), entry.mod_revision());
                self.entries.insert(at, etcd_value::parse(entry.value()));
            }
            Ok(_) => {}
            Err(problem) => {
                let key = String::from_utf8_lossy(entry.key()).escape_default().to_string();
                eprintln!("omniverb-agent: {key} is left alone: {problem}");
            }
        }
    }

    /// The objects of a file as etcd is to have them: what is secret sealed, but left as it is
    /// where it has not changed.
    fn sealed(&self, file: Entries, key: Option<&SealKey>) -> anyhow::Result<Entries> {
        let mut sealed = Entries::new();
        for ((id, scope), fields) in file {
            let at = (id.clone(), scope);
            let fields = match has_secrets(&id, &fields) {
                true => self.sealed_fields(&at, fields, key).with_context(|| id.to_string())?,
                false => fields,
            };
            sealed.insert(at, fields);
        }
        Ok(sealed)
    }

    fn sealed_fields(
        &self,
        at: &(ObjectId, Scope),
        fields: Fields,
        key: Option<&SealKey>,
    ) -> anyhow::Result<Fields> {
        // As `get` printed them.
        if sealed_field::is_sealed(&at.0, &fields) {
            return Ok(fields);
        }
        let key = key.context("it has a key: that is sealed with --seal-key-file")?;
        if let Some(Ok(before)) = self.entries.get(at)
            && sealed_field::open(&at.0, before, Some(key)).as_ref() == Ok(&fields)
        {
            return Ok(before.clone());
        }
        let mut nonces = vec![[0; 12]; fields.len()];
        for nonce in &mut nonces {
            random(nonce)?;
        }
        let mut nonces = nonces.into_iter();
        let next = || nonces.next().unwrap_or_default();
        key.seal(&at.0, &fields, next).map_err(anyhow::Error::msg)
    }
}

/// The objects of a file.
fn read_file(path: &Path) -> anyhow::Result<Entries> {
    let text = match path == Path::new("-") {
        true => text_of(stdin().lock()),
        false => File::open(path).map_err(Into::into).and_then(text_of),
    };
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    object_file::parse(&text).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))
}

/// The changes for `apply`, with the entries that it reads.
async fn compared(
    etcd: &EtcdOptions,
    path: &Path,
    prune: bool,
) -> anyhow::Result<(Client, Cluster, Entries, Vec<Difference>)> {
    let file = read_file(path)?;
    let key = seal_key(etcd)?;
    let client = connect(etcd).await?;
    let cluster = Cluster::read(&client).await.context("cannot read from etcd")?;
    let file = cluster.sealed(file, key.as_deref())?;
    let extra = if prune { Extra::Pruned } else { Extra::Kept };
    let all = differences(&file, &cluster.entries, extra);
    Ok((client, cluster, file, all))
}

/// `diff`.
pub(crate) async fn diff(etcd: &EtcdOptions, path: &Path, prune: bool) -> anyhow::Result<ExitCode> {
    let (_, _, _, all) = compared(etcd, path, prune).await?;
    let lines: String = all.iter().map(|difference| format!("{difference}\n")).collect();
    write(&lines)?;
    Ok(if all.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// `apply`.
pub(crate) async fn apply(
    etcd: &EtcdOptions,
    path: &Path,
    prune: bool,
) -> anyhow::Result<ExitCode> {
    let (mut client, cluster, file, mut all) = compared(etcd, path, prune).await?;
    // Objects that others name come first, and go last.
    let is_gone = |difference: &Difference| difference.what == What::Gone;
    let first_gone = all.iter().position(is_gone).unwrap_or(all.len());
    all[first_gone..].reverse();
    if !cluster.is_begun {
        begin(&mut client).await?;
    }
    for part in all.chunks(CHANGES_MAX) {
        let mut compares = Vec::new();
        let mut changes = Vec::new();
        for difference in part {
            let at = (difference.id.clone(), difference.scope.clone());
            let key = Key::Object(at.1.clone(), at.0.clone()).text();
            let before = cluster.revisions.get(&at).copied().unwrap_or(0);
            compares.push(Compare::mod_revision(key.as_str(), CompareOp::Equal, before));
            changes.push(match file.get(&at) {
                Some(fields) => {
                    let text = etcd_value::text(fields);
                    if text.len() > etcd_value::VALUE_BYTES_MAX {
                        bail!("{} is longer than {} bytes", at.0, etcd_value::VALUE_BYTES_MAX);
                    }
                    TxnOp::put(key, text, None)
                }
                None => TxnOp::delete(key, None),
            });
        }
        let txn = Txn::new().when(compares).and_then(changes);
        if !within(client.txn(txn)).await.context("cannot write to etcd")?.succeeded() {
            bail!("others have changed the cluster meanwhile: see `diff`, and apply again");
        }
        let lines: String = part.iter().map(|difference| format!("{difference}\n")).collect();
        write(&lines)?;
    }
    if all.is_empty() {
        write("nothing to change\n")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Says that there is a cluster, unless that is said meanwhile.
async fn begin(client: &mut Client) -> anyhow::Result<()> {
    let mut id = [0; 16];
    random(&mut id)?;
    let key = Key::Cluster.text();
    let text = json!({ "layout": etcd_key_layout::VERSION, "id": hex(&id) }).to_string();
    let absent = Compare::create_revision(key.as_str(), CompareOp::Equal, 0);
    let txn = Txn::new().when([absent]).and_then([TxnOp::put(key, text, None)]);
    within(client.txn(txn)).await.context("cannot write to etcd").map(drop)
}

/// `get`.
pub(crate) async fn get(etcd: &EtcdOptions, path: Option<&Path>) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::read(&connect(etcd).await?).await.context("cannot read from etcd")?;
    let mut entries = Entries::new();
    for ((id, scope), fields) in cluster.entries {
        match fields {
            Ok(fields) => drop(entries.insert((id, scope), fields)),
            Err(problem) => eprintln!("omniverb-agent: {id} is damaged: {problem}"),
        }
    }
    let text = object_file::text(&entries);
    match path {
        Some(path) => {
            std::fs::write(path, text)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        None => write(&text)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// `delete`.
pub(crate) async fn delete(
    etcd: &EtcdOptions,
    kind: ObjectKind,
    name: &str,
    host: Option<String>,
) -> anyhow::Result<ExitCode> {
    let kind = match kind {
        ObjectKind::Tenant => Kind::Tenant,
        ObjectKind::Policy => Kind::Policy,
        ObjectKind::Vnic => Kind::Vnic,
    };
    if !is_name(name) || host.as_ref().is_some_and(|host| !is_name(host)) {
        bail!("a name has 1 to 63 letters, digits and any of . _ - @");
    }
    let id = ObjectId::new(kind, name);
    let key = Key::Object(host.map_or(Scope::All, Scope::Host), id.clone()).text();
    let mut client = connect(etcd).await?;
    let deleted = within(client.delete(key, Some(DeleteOptions::new()))).await?.deleted();
    if deleted == 0 {
        bail!("the cluster has no {id}; see `omniverb cluster get`");
    }
    write(&format!("{id}: deleted\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// `hosts`.
pub(crate) async fn hosts(etcd: &EtcdOptions, as_json: bool) -> anyhow::Result<ExitCode> {
    let client = connect(etcd).await?;
    let (entries, _) = read_all(&client, &etcd_key_layout::live(), None).await?;
    let mut rows = Vec::new();
    for entry in &entries {
        let Ok(Key::Live(host)) = Key::parse(entry.key()) else { continue };
        let fields = etcd_value::parse(entry.value()).unwrap_or_default();
        let mut row = json!({ "host": host });
        for key in ["version", "revision", "objects", "problems", "daemon"] {
            row[key] = fields.get(key).cloned().unwrap_or_default();
        }
        rows.push(row);
    }
    if as_json {
        write(&(serde_json::to_string_pretty(&rows)? + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text =
        format!("{:<24} {:>9} {:>8} {:>9} daemon\n", "host", "revision", "objects", "problems");
    for row in &rows {
        let number = |key: &str| row[key].as_i64().map_or("?".to_owned(), |n| n.to_string());
        let daemon = if row["daemon"] == Value::Bool(true) { "answers" } else { "gone" };
        text += &format!(
            "{:<24} {:>9} {:>8} {:>9} {daemon}\n",
            row["host"].as_str().unwrap_or("?"),
            number("revision"),
            number("objects"),
            number("problems"),
        );
    }
    write(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// `addresses`.
pub(crate) async fn addresses(etcd: &EtcdOptions, as_json: bool) -> anyhow::Result<ExitCode> {
    let client = connect(etcd).await?;
    let (entries, _) = read_all(&client, &etcd_key_layout::addresses(), None).await?;
    let mut rows = Vec::new();
    for entry in &entries {
        let Ok(Key::Address { tenant, ip }) = Key::parse(entry.key()) else { continue };
        let fields = etcd_value::parse(entry.value()).unwrap_or_default();
        let mut row = json!({ "tenant": tenant, "address": ip });
        for key in ["host", "vnic", "underlay", "qpn_offset", "qpns", "vgid"] {
            row[key] = fields.get(key).cloned().unwrap_or_default();
        }
        rows.push(row);
    }
    if as_json {
        write(&(serde_json::to_string_pretty(&rows)? + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let line = |words: [&str; 5]| {
        let [tenant, address, host, vnic, underlay] = words;
        format!("{tenant:<16} {address:<15} {host:<16} {vnic:<16} {underlay}\n")
    };
    let mut text = line(["tenant", "address", "host", "vnic", "underlay"]);
    for row in &rows {
        let columns = ["tenant", "address", "host", "vnic", "underlay"];
        text += &line(columns.map(|key| row[key].as_str().unwrap_or("?")));
    }
    write(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes for people: what comes from etcd is no instruction for a terminal.
fn write(text: &str) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    out.write_all(printable::clean_lines(text).as_bytes())?;
    Ok(out.flush()?)
}
