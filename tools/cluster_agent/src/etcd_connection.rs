//! Connects to etcd, and reads objects from it.

use crate::secret_file;
use anyhow::{Context, bail};
use etcd_client::{
    Certificate, Client, ConnectOptions, GetOptions, Identity, KeyValue, KvClient, TlsOptions,
};
use omniverb_agent_arguments::EtcdOptions;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

/// The time that a request may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// The time between two signs of life, and for the answer to one.
const KEEP_ALIVE: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(3)];
/// Entries that are read in one request, at most.
const PAGE: i64 = 1000;
/// Bytes of an answer: a page of the longest values that count.
pub(crate) const ANSWER_BYTES_MAX: usize = 72 << 20;
/// The text of tonic's error for a longer one.
const TOO_LARGE: &str = "message length too large";
/// Entries that are read at all.
const ENTRIES_MAX: usize = 1 << 20;
/// Where Debian and others have the certificates that the machine trusts.
const MACHINE_CERTIFICATES: [&str; 2] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// Connects.
///
/// # Errors
/// What an option is wrong about, or why etcd does not answer.
pub(crate) async fn connect(options: &EtcdOptions) -> anyhow::Result<Client> {
    let mut connect = ConnectOptions::new()
        .with_keep_alive(KEEP_ALIVE[0], KEEP_ALIVE[1])
        .with_keep_alive_while_idle(true)
        .with_connect_timeout(PATIENCE)
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    if let Some(user) = &options.user {
        let (name, password) = match (user.split_once(':'), &options.password_file) {
            (_, Some(file)) => (user.as_str(), secret_file::password(file)?.to_string()),
            (Some((name, password)), None) => (name, password.to_owned()),
            (None, None) => bail!("--user {user}: NAME:PASSWORD, or --password-file"),
        };
        connect = connect.with_user(name, password);
    }
    if let Some(tls) = tls(options)? {
        connect = connect.with_tls(tls);
    }
    let endpoints = options.etcd_endpoints.join(", ");
    within(Client::connect(&options.etcd_endpoints, Some(connect)))
        .await
        .with_context(|| format!("cannot reach etcd at {endpoints}"))
}

fn tls(options: &EtcdOptions) -> anyhow::Result<Option<TlsOptions>> {
    let is_asked = options.cacert.is_some() || options.cert.is_some();
    let is_https = |endpoint: &String| endpoint.starts_with("https://");
    if !is_asked && !options.etcd_endpoints.iter().any(is_https) {
        return Ok(None);
    }
    let read = |path: &Path| {
        std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
    };
    let trusted = match &options.cacert {
        Some(path) => read(path)?,
        None => MACHINE_CERTIFICATES
            .iter()
            .find_map(|path| std::fs::read(path).ok())
            .context("this machine trusts no certificates: use --cacert")?,
    };
    let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(trusted));
    if let (Some(cert), Some(key)) = (&options.cert, &options.key) {
        tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    Ok(Some(tls))
}

/// The answer to a request, if it comes in time.
pub(crate) async fn within<T>(
    request: impl Future<Output = Result<T, etcd_client::Error>>,
) -> anyhow::Result<T> {
    match tokio::time::timeout(PATIENCE, request).await {
        Ok(answer) => answer.map_err(|error| anyhow::anyhow!("{}", reason(&error))),
        Err(_) => bail!("no answer within {} seconds", PATIENCE.as_secs()),
    }
}

/// The error of etcd, without the library's additions.
pub(crate) fn reason(error: &etcd_client::Error) -> String {
    match error {
        etcd_client::Error::GRpcStatus(status) => status.message().to_owned(),
        other => other.to_string(),
    }
}

/// All entries whose keys begin with `prefix`, as of one revision: the one that is given, or the
/// newest, which is returned.
pub(crate) async fn read_all(
    client: &Client,
    prefix: &str,
    revision: Option<i64>,
) -> anyhow::Result<(Vec<KeyValue>, i64)> {
    let mut all = Vec::new();
    let revision = read_each(client, prefix, revision, |entry| all.push(entry.clone())).await?;
    Ok((all, revision))
}

/// As [`read_all`], each entry by itself: no more than a page is kept.
pub(crate) async fn read_each(
    client: &Client,
    prefix: &str,
    revision: Option<i64>,
    mut each: impl FnMut(&KeyValue),
) -> anyhow::Result<i64> {
    let mut kv = client.kv_client().max_decoding_message_size(ANSWER_BYTES_MAX);
    let end = range_end(prefix);
    let (mut from, mut revision, mut page) = (prefix.as_bytes().to_vec(), revision, PAGE);
    let mut count = 0;
    loop {
        let answer = read_page(&mut kv, &from, &end, revision, page).await;
        let answer = match answer {
            // Values too long to count are in the way: fewer of them at once.
            Err(error) if page > 1 && error.to_string().contains(TOO_LARGE) => {
                page = (page / 8).max(1);
                continue;
            }
            answer => answer?,
        };
        let header = answer.header().context("an answer without a revision")?;
        revision = revision.or(Some(header.revision()));
        let entries = answer.kvs();
        entries.iter().for_each(&mut each);
        count += entries.len();
        match entries.last() {
            Some(last) if answer.more() => {
                from = last.key().to_vec();
                from.push(0);
            }
            _ => return Ok(revision.unwrap_or_default()),
        }
        if count > ENTRIES_MAX {
            bail!("etcd has more than {ENTRIES_MAX} entries below {prefix}");
        }
    }
}

async fn read_page(
    kv: &mut KvClient,
    from: &[u8],
    end: &[u8],
    revision: Option<i64>,
    page: i64,
) -> anyhow::Result<etcd_client::GetResponse> {
    let mut options = GetOptions::new().with_range(end).with_limit(page);
    if let Some(revision) = revision {
        options = options.with_revision(revision);
    }
    within(kv.get(from, Some(options))).await
}

/// The first key behind all that begin with `prefix`, which ends with a slash.
fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}
