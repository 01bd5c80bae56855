//! Asks the daemon, as an operator.

use crate::find_daemon;
use crate::tenant_connection::{PATIENCE, listen, pages};
use anyhow::{Context, bail};
use omniverb_session::body::Extent;
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::operator::{
    AttachMachine, AttachMemory, AttachPair, AwaitPair, CAN_JOIN, CAN_TAKE_OUT, Capture, Captured,
    ChangeObjects, DetachMachine, DisconnectVnic, EndCapture, JoinPair, Message, OBJECT_TEXT_BYTES,
    ObjectsChanged, PartPair, QueryAll, QueryObjects, QueryVnics, ReloadConfiguration, SetVnic,
    ShowSockets, VNIC_NAME_BYTES, VnicChanged, decode, encode,
};
use omniverb_session::pair_window::PlugTrouble;
use omniverb_session::pinned_pages::Layout;
use omniverb_sys::{eventfd, seqpacket};
use rustix::io::Errno;
use serde_json::Value;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the daemon may take to complete a capture file.
const LAST_WORDS: Duration = Duration::from_secs(60);

/// A connection to the operators' socket, where that is, and whose daemon is at the other end.
pub(crate) struct Operator(OwnedFd, Home);

/// The next task of a machine's supervisor.
pub(crate) enum PairCall {
    /// Another pair window of this machine's.
    Own,
    /// This one, another machine's.
    Another(OwnedFd),
    /// The window of this number is unused: it is to be unplugged.
    Over(u8),
    /// There are to be no more.
    Nothing,
}

/// A daemon: where operators connect to it, and its user.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    path: PathBuf,
    uid: u32,
}

impl Home {
    /// The folder of its machines: named by its socket, since there may be others in that folder.
    pub(crate) fn machines(&self) -> PathBuf {
        self.path.with_extension("machines")
    }

    /// A home without a daemon.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Home {
        Home { path: PathBuf::from("/nowhere/operator.sock"), uid: 0 }
    }

    /// Connects to the daemon that is there now, if it is the same user's.
    pub(crate) fn connect(&self) -> io::Result<Operator> {
        let socket = seqpacket::connect(&self.path)?;
        match seqpacket::peer(socket.as_fd())?.uid == self.uid {
            true => Ok(Operator(socket, self.clone())),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

impl Operator {
    /// Connects to the daemon that serves us.
    pub(crate) fn connect() -> anyhow::Result<Operator> {
        let mut first = None;
        for path in find_daemon::operator_sockets()? {
            match open(&path) {
                Ok((socket, uid)) => return Ok(Operator(socket, Home { path, uid })),
                Err(error) => {
                    first.get_or_insert((path, error));
                }
            }
        }
        let Some((path, error)) = first else { bail!("the daemon has no socket for operators") };
        let shown = path.display();
        if error.kind() == io::ErrorKind::NotFound {
            bail!(
                "no socket for operators at {shown}; if the daemon was started with \
                 --operator-socket, name that by {}",
                omniverb_session::operator::SOCKET_VARIABLE
            )
        }
        bail!("only root where the daemon runs, or the daemon's own user, may: {shown}: {error}")
    }

    /// Where the same daemon, or the next one there, is to be found.
    pub(crate) fn home(&self) -> &Home {
        &self.1
    }

    /// The daemon's status of itself and all its clients.
    pub(crate) fn status(&self) -> anyhow::Result<Value> {
        Ok(pages(|from| self.page(&QueryAll { from }.into()))?.status())
    }

    /// The daemon's status of vNICs.
    pub(crate) fn vnics(&self) -> anyhow::Result<Value> {
        Ok(pages(|from| self.page(&QueryVnics { from }.into()))?.vnics())
    }

    /// Tenants, policies and vNICs as they were described.
    pub(crate) fn objects(&self) -> anyhow::Result<Vec<Value>> {
        Ok(pages(|from| self.page(&QueryObjects { from }.into()))?.objects())
    }

    /// Changes one of them.
    pub(crate) fn change_objects(&self, change: &Value) -> anyhow::Result<()> {
        let text = change.to_string();
        let mut message = ChangeObjects { length: 0, reserved: 0, text: [0; OBJECT_TEXT_BYTES] };
        let room = message.text.get_mut(..text.len()).context("that is too long for a message")?;
        room.copy_from_slice(text.as_bytes());
        message.length = u32::try_from(text.len())?;
        self.objects_changed(&message.into())
    }

    /// Has the daemon read its configuration again.
    pub(crate) fn reload(&self) -> anyhow::Result<()> {
        self.objects_changed(&ReloadConfiguration { reserved: 0 }.into())
    }

    fn objects_changed(&self, message: &Message) -> anyhow::Result<()> {
        match self.call(message, &[], PATIENCE)? {
            Message::ObjectsChanged(ObjectsChanged { refused: 0, .. }) => Ok(()),
            Message::ObjectsChanged(changed) => {
                let text = changed.text.get(..changed.length as usize).unwrap_or_default();
                bail!("{}", String::from_utf8_lossy(text))
            }
            other => refused(&other, ""),
        }
    }

    /// A socket by which the broker shows all sockets; `None`: there is no broker.
    pub(crate) fn sockets(&self) -> anyhow::Result<Option<OwnedFd>> {
        let question = ShowSockets { reserved: 0 }.into();
        match self.call_for_files(&question, &[], PATIENCE)? {
            (Message::SocketsShown(_), mut files) => Ok(files.pop()),
            // An older daemon does not know of it.
            (Message::Failed(_), _) => Ok(None),
            (other, _) => refused(&other, ""),
        }
    }

    fn page(&self, question: &Message) -> anyhow::Result<omniverb_session::body::Status> {
        match self.call(question, &[], PATIENCE)? {
            Message::Status(status) => Ok(status),
            other => refused(&other, ""),
        }
    }

    /// Changes the vNIC of this name.
    pub(crate) fn set_vnic(&self, change: &SetVnic, name: &str) -> anyhow::Result<VnicChanged> {
        match self.call(&(*change).into(), &[], PATIENCE)? {
            Message::VnicChanged(changed) => Ok(changed),
            other => refused(&other, name),
        }
    }

    /// Ends all links of the vNIC of this name; how many there were.
    pub(crate) fn disconnect(&self, which: &DisconnectVnic, name: &str) -> anyhow::Result<u32> {
        match self.call(&(*which).into(), &[], PATIENCE)? {
            Message::Disconnected(done) => Ok(done.links),
            other => refused(&other, name),
        }
    }

    /// Has the packets of the vNIC of this name written into `file`, while we are connected.
    pub(crate) fn capture(
        &self,
        capture: &Capture,
        file: BorrowedFd<'_>,
        name: &str,
    ) -> anyhow::Result<()> {
        match self.call(&(*capture).into(), &[file], PATIENCE)? {
            Message::Done(_) => Ok(()),
            other => refused(&other, name),
        }
    }

    /// Ends it: everything is in the file then.
    pub(crate) fn end_capture(&self) -> anyhow::Result<Captured> {
        // There may be a lot to write down.
        match self.call(&EndCapture { reserved: 0 }.into(), &[], LAST_WORDS)? {
            Message::Captured(captured) => Ok(captured),
            _ => bail!("the daemon gave an unexpected answer: is it of this version?"),
        }
    }

    /// Attaches the machine of this name, which has this window and this ledger: its machine
    /// socket. `None`: there is a machine of this name.
    pub(crate) fn attach_machine(
        &self,
        field: [u8; VNIC_NAME_BYTES],
        data: Extent,
        files: [&OwnedFd; 2],
        name: &str,
    ) -> anyhow::Result<Option<OwnedFd>> {
        let attach = AttachMachine { name: field, data };
        match self.call_for_files(&attach.into(), &files.map(AsFd::as_fd), PATIENCE)? {
            (Message::MachineAttached(_), files) => files
                .into_iter()
                .next()
                .context("the daemon gave an unexpected answer: is it of this version?")
                .map(Some),
            (Message::Failed(errno), _) if is(&errno, Errno::BUSY) => Ok(None),
            (other, _) => refused(&other, name),
        }
    }

    /// Gives the machine of this name a pair window, with its ledger: of this number, and where in
    /// the guest's device it begins.
    pub(crate) fn attach_pair(
        &self,
        name: [u8; VNIC_NAME_BYTES],
        (number, at): (u64, u64),
        data: Extent,
        files: [&OwnedFd; 2],
    ) -> anyhow::Result<()> {
        let attach = AttachPair { name, data, number, at };
        match self.call(&attach.into(), &files.map(AsFd::as_fd), PATIENCE)? {
            Message::Done(_) => Ok(()),
            other => refused(&other, "a machine"),
        }
    }

    /// Gives the daemon the memory of the machine of this name.
    pub(crate) fn attach_memory(
        &self,
        name: [u8; VNIC_NAME_BYTES],
        layout: Layout,
        file: &OwnedFd,
    ) -> anyhow::Result<()> {
        let attach = AttachMemory { name, layout };
        match self.call(&attach.into(), &[file.as_fd()], PATIENCE)? {
            Message::Done(_) => Ok(()),
            other => refused(&other, "a machine"),
        }
    }

    /// The machine of this name has another machine's window, with this number, there.
    pub(crate) fn join_pair(
        &self,
        name: [u8; VNIC_NAME_BYTES],
        (number, at): (u64, u64),
        data: Extent,
        file: &OwnedFd,
    ) -> anyhow::Result<()> {
        let join = JoinPair { name, data, number, at };
        match self.call(&join.into(), &[file.as_fd()], PATIENCE)? {
            Message::Done(_) => Ok(()),
            other => refused(&other, "a machine"),
        }
    }

    /// A window of this machine's that was over is not in it any more.
    pub(crate) fn part_pair(&self, name: [u8; VNIC_NAME_BYTES], number: u8) -> anyhow::Result<()> {
        let part = PartPair { name, number: number.into() };
        match self.call(&part.into(), &[], PATIENCE)? {
            Message::Done(_) => Ok(()),
            other => refused(&other, "a machine"),
        }
    }

    /// Waits until the machine of this name wants another pair window. There may be so many more,
    /// and this went wrong with the last one. `can_join`: it may be another machine's.
    /// `can_take_out`: such a window, while it runs.
    pub(crate) fn await_pair(
        &self,
        name: [u8; VNIC_NAME_BYTES],
        (left, can_join, can_take_out): (u32, bool, bool),
        trouble: Option<PlugTrouble>,
    ) -> anyhow::Result<PairCall> {
        let trouble = trouble.and_then(|trouble| u16::try_from(trouble as u32).ok()).unwrap_or(0);
        let bit = |can, bit| if can { bit } else { 0 };
        let can = bit(can_join, CAN_JOIN) | bit(can_take_out, CAN_TAKE_OUT);
        self.say(&AwaitPair { name, left, trouble, can }.into(), &[])?;
        while !eventfd::readable(self.0.as_fd(), None)? {}
        match self.hear(PATIENCE)? {
            (Message::PairWanted(_), _) => Ok(PairCall::Own),
            (Message::PairOffered(_), files) => {
                let file = files
                    .into_iter()
                    .next()
                    .context("the daemon gave an unexpected answer: is it of this version?")?;
                Ok(PairCall::Another(file))
            }
            (Message::PairOver(over), _) => Ok(PairCall::Over(u8::try_from(over.number)?)),
            (Message::Done(_), _) => Ok(PairCall::Nothing),
            (other, _) => refused(&other, "a machine"),
        }
    }

    /// Waits until the daemon closes the connection.
    pub(crate) fn wait_over(&self) -> anyhow::Result<()> {
        while !eventfd::readable(self.0.as_fd(), None)? {}
        Ok(())
    }

    /// Parts with the machine of this name.
    pub(crate) fn detach_machine(
        &self,
        field: [u8; VNIC_NAME_BYTES],
        name: &str,
    ) -> anyhow::Result<()> {
        match self.call(&DetachMachine { name: field }.into(), &[], PATIENCE)? {
            Message::Done(_) => Ok(()),
            Message::Failed(errno) if is(&errno, Errno::NOENT) => {
                bail!("no machine is called {name:?}; see `omniverb vm list`")
            }
            other => refused(&other, name),
        }
    }

    /// The daemon has closed the connection: it says nothing by itself.
    pub(crate) fn is_over(&self) -> bool {
        eventfd::readable(self.0.as_fd(), Some(Duration::ZERO)).unwrap_or(true)
    }

    fn call(
        &self,
        message: &Message,
        files: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> anyhow::Result<Message> {
        self.call_for_files(message, files, patience).map(|(answer, _)| answer)
    }

    /// Like `call`, with the descriptors that come beside the answer.
    fn call_for_files(
        &self,
        message: &Message,
        files: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> anyhow::Result<(Message, Vec<OwnedFd>)> {
        self.say(message, files)?;
        self.hear(patience)
    }

    fn say(&self, message: &Message, files: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(1, message, &mut bytes);
        Ok(seqpacket::send(self.0.as_fd(), &bytes[..length], files)?)
    }

    fn hear(&self, patience: Duration) -> anyhow::Result<(Message, Vec<OwnedFd>)> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let (length, files) = listen(self.0.as_fd(), patience, &mut bytes)?;
        let (_, answer) =
            decode(&bytes[..length]).ok().context("the daemon is of another version")?;
        Ok((answer, files))
    }
}

/// A socket whose other end is root's or ours, unless the user named it: our messages are not meant
/// for others.
fn open(path: &Path) -> io::Result<(OwnedFd, u32)> {
    let socket = seqpacket::connect(path)?;
    let owner = seqpacket::peer(socket.as_fd())?.uid;
    let named = find_daemon::named().is_some() || find_daemon::named_operators().is_some();
    if named || owner == 0 || owner == rustix::process::geteuid().as_raw() {
        return Ok((socket, owner));
    }
    Err(io::ErrorKind::PermissionDenied.into())
}

fn is(errno: &omniverb_terms::Errno, other: Errno) -> bool {
    errno.raw() == other.raw_os_error()
}

/// Why the daemon did not do what concerns a vNIC.
fn refused<T>(answer: &Message, name: &str) -> anyhow::Result<T> {
    let Message::Failed(errno) = answer else {
        bail!("the daemon gave an unexpected answer: is it of this version?")
    };
    let error = io::Error::from_raw_os_error(errno.raw());
    match Errno::from_io_error(&error) {
        Some(Errno::PERM) => bail!("the daemon does not serve the network namespace of {name:?}"),
        Some(Errno::NOENT) => bail!("no vNIC is called {name:?}; see `omniverb vnic list`"),
        Some(Errno::BUSY) => bail!(
            "another process captures the packets of {name:?} already: one can at a time; end that"
        ),
        Some(Errno::INVAL) => bail!(
            "the daemon refuses these values: a rate has to be 8kbit to 1000tbit, a burst 1500 to \
             1g and with a rate, the file of a capture a regular file"
        ),
        _ => bail!(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_in_one_folder_have_a_folder_of_machines_each() {
        let of = |path: &str| Home { path: path.into(), uid: 0 }.machines().display().to_string();
        assert_eq!(of("/run/x-operator/omniverbd.sock"), "/run/x-operator/omniverbd.machines");
        assert_ne!(of("/tmp/a.operator.sock"), of("/tmp/b.operator.sock"));
    }

    #[test]
    fn a_restarted_daemon_must_be_the_same_users() {
        let path = std::env::temp_dir().join(format!("omniverb-home-{}", std::process::id()));
        let _listener = seqpacket::listen(&path, 0o600).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        assert!(Home { path: path.clone(), uid }.connect().is_ok());
        assert!(Home { path: path.clone(), uid: uid + 1 }.connect().is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
