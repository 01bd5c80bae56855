//! Calls the daemon by its operators' socket: which objects of the cluster it has, which virtual
//! networks, and changes.

use omniverb_cluster::announcements::Networks;
use omniverb_cluster::change::CallError;
use omniverb_cluster::object::{Kind, ObjectId};
use omniverb_session::body::{Cursor, Status};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::operator::{
    ChangeObjects, Message, OBJECT_TEXT_BYTES, ObjectsChanged, QueryNetworks, QueryObjects, decode,
    encode,
};
use omniverb_sys::{eventfd, seqpacket};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Bytes of text in one call.
pub(crate) const CALL_BYTES_MAX: usize = OBJECT_TEXT_BYTES;
/// The time that the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pieces of an answer: more than the largest number of objects gives.
const PIECES_MAX: usize = 1 << 18;

/// A connection to the daemon.
#[derive(Debug)]
pub(crate) struct DaemonConnection(OwnedFd);

impl DaemonConnection {
    /// Connects to the daemon at `path`: root's, or our own user's.
    pub(crate) fn connect(path: &Path) -> io::Result<DaemonConnection> {
        let socket = seqpacket::connect(path)?;
        let owner = seqpacket::peer(socket.as_fd())?.uid;
        match owner == 0 || owner == rustix::process::geteuid().as_raw() {
            true => Ok(DaemonConnection(socket)),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Whether the daemon has closed the connection: it says nothing by itself.
    pub(crate) fn is_over(&self) -> bool {
        eventfd::readable(self.0.as_fd(), Some(Duration::ZERO)).unwrap_or(true)
    }

    /// The objects of the cluster that the daemon has.
    pub(crate) fn cluster_objects(&self) -> Result<BTreeSet<ObjectId>, String> {
        let mut found = BTreeSet::new();
        self.pages(
            |from| QueryObjects { from }.into(),
            |_, row| {
                found.extend(id_of(&row));
                Ok(())
            },
        )?;
        Ok(found)
    }

    /// The daemon's virtual networks, and the number of its changes so far. `None`: it is `known`.
    pub(crate) fn networks(&self, known: u64) -> Result<Option<(u64, Networks)>, String> {
        let read = |known: u64| {
            let (mut revision, mut networks) = (0, Networks::default());
            let pages = self.pages(
                |from| QueryNetworks { from, known }.into(),
                |kind, row| {
                    match kind {
                        "revision" => revision = row.as_u64().unwrap_or(0),
                        _ => networks.add(kind, row)?,
                    }
                    Ok(())
                },
            )?;
            Ok::<_, String>((pages, revision, networks))
        };
        let (pages, revision, networks) = read(known)?;
        if revision == known {
            return Ok(None);
        }
        // Several answers may be of different times.
        let is_torn = pages > 1 && read(revision)?.1 != revision;
        Ok((!is_torn).then_some((revision, networks)))
    }

    /// Takes all rows of an answer, with their kinds; the number of its pieces.
    fn pages(
        &self,
        ask: impl Fn(Cursor) -> Message,
        mut take: impl FnMut(&str, Value) -> Result<(), String>,
    ) -> Result<usize, String> {
        let mut from = Cursor::START;
        for pages in 1..=PIECES_MAX {
            let Message::Status(piece) = self.call(&ask(from))? else {
                return Err("the daemon is of another version".into());
            };
            let Status { length, more, next, text } = piece;
            let text = text.get(..length as usize).unwrap_or_default();
            for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let rows: BTreeMap<String, Value> =
                    serde_json::from_slice(line).map_err(|error| error.to_string())?;
                rows.into_iter().try_for_each(|(kind, row)| take(&kind, row))?;
            }
            if more == 0 {
                return Ok(pages);
            }
            from = next;
        }
        Err("the answer of the daemon is too long".into())
    }

    /// Makes the changes that a text describes.
    pub(crate) fn change(&self, text: &str) -> Result<(), CallError> {
        let mut message = ChangeObjects { length: 0, reserved: 0, text: [0; OBJECT_TEXT_BYTES] };
        let (Some(room), Ok(length)) =
            (message.text.get_mut(..text.len()), u32::try_from(text.len()))
        else {
            return Err(CallError::Refused("it is too large for a call".into()));
        };
        room.copy_from_slice(text.as_bytes());
        message.length = length;
        match self.call(&message.into()).map_err(CallError::Lost)? {
            Message::ObjectsChanged(ObjectsChanged { refused: 0, .. }) => Ok(()),
            Message::ObjectsChanged(changed) => {
                let text = changed.text.get(..changed.length as usize).unwrap_or_default();
                Err(CallError::Refused(String::from_utf8_lossy(text).into_owned()))
            }
            _ => Err(CallError::Lost("the daemon is of another version".into())),
        }
    }

    fn call(&self, message: &Message) -> Result<Message, String> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(1, message, &mut bytes);
        let lost = |error: io::Error| error.to_string();
        seqpacket::send(self.0.as_fd(), &bytes[..length], &[]).map_err(lost)?;
        if !eventfd::readable(self.0.as_fd(), Some(PATIENCE)).map_err(lost)? {
            return Err("it does not answer".into());
        }
        let received =
            seqpacket::receive(self.0.as_fd(), &mut bytes, seqpacket::BlockingMode::NonBlocking);
        match received.map_err(lost)? {
            (0, _) => Err("it closed the connection".into()),
            (length, _) => decode(bytes.get(..length).unwrap_or_default())
                .map(|(_, answer)| answer)
                .map_err(|_| "it is of another version".into()),
        }
    }
}

/// The object of a row, if the cluster has a part in it.
fn id_of(row: &Value) -> Option<ObjectId> {
    let is_clusters = row["source"] == "cluster" || row["hides"] == "cluster";
    let kind = Kind::of_row(row["kind"].as_str()?)?;
    is_clusters.then(|| row["name"].as_str().map(|name| ObjectId::new(kind, name))).flatten()
}
