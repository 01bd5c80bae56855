//! Calls the daemon by its operators' socket: which objects of the cluster it has, which virtual
//! networks, and changes.

use omniverb_cluster::address_announcements::Networks;
use omniverb_cluster::object_name::{Kind, ObjectId};
use omniverb_cluster::reconcile_objects::CallError;
use omniverb_operator_client::Connection;
use omniverb_session::operator::{OBJECT_TEXT_BYTES, QueryNetworks, QueryObjects};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Bytes of text in one call.
pub(crate) const CALL_BYTES_MAX: usize = OBJECT_TEXT_BYTES;
/// The time that the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to the daemon.
#[derive(Debug)]
pub(crate) struct DaemonConnection(Connection);

impl DaemonConnection {
    /// Connects to the daemon at `path`: root's, or our own user's.
    pub(crate) fn connect(path: &Path) -> io::Result<DaemonConnection> {
        let connection = Connection::connect(path)?;
        let owner = connection.owner();
        match owner == 0 || owner == rustix::process::geteuid().as_raw() {
            true => Ok(DaemonConnection(connection)),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Whether the daemon has closed the connection.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// The objects of the cluster that the daemon has.
    pub(crate) fn cluster_objects(&self) -> Result<BTreeSet<ObjectId>, String> {
        let mut found = BTreeSet::new();
        let take = |_: &str, row: Value| {
            found.extend(id_of(&row));
            Ok(())
        };
        let rows = self.0.rows(PATIENCE, |from| QueryObjects { from }.into(), take);
        rows.map_err(|error| error.to_string())?;
        Ok(found)
    }

    /// The daemon's virtual networks, and the number of its changes so far. `None`: it is `known`.
    pub(crate) fn networks(&self, known: u64) -> Result<Option<(u64, Networks)>, String> {
        let read = |known: u64| {
            let (mut revision, mut networks) = (0, Networks::default());
            let take = |kind: &str, row: Value| {
                match kind {
                    "revision" => revision = row.as_u64().unwrap_or(0),
                    _ => networks.add(kind, row)?,
                }
                Ok(())
            };
            let rows = self.0.rows(PATIENCE, |from| QueryNetworks { from, known }.into(), take);
            let pieces = rows.map_err(|error| error.to_string())?;
            Ok::<_, String>((pieces, revision, networks))
        };
        let (pieces, revision, networks) = read(known)?;
        if revision == known {
            return Ok(None);
        }
        // Several pieces may be of different times.
        let is_torn = pieces > 1 && read(revision)?.1 != revision;
        Ok((!is_torn).then_some((revision, networks)))
    }

    /// Makes the changes that a text describes.
    pub(crate) fn change(&self, text: &str) -> Result<(), CallError> {
        let changed = self.0.change_objects(text, PATIENCE);
        changed.map_err(|error| CallError::Lost(error.to_string()))?.map_err(CallError::Refused)
    }
}

/// The object of a row, if the cluster has a part in it.
fn id_of(row: &Value) -> Option<ObjectId> {
    let is_clusters = row["source"] == "cluster" || row["hides"] == "cluster";
    let kind = Kind::of_row(row["kind"].as_str()?)?;
    is_clusters.then(|| row["name"].as_str().map(|name| ObjectId::new(kind, name))).flatten()
}
