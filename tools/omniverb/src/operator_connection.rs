//! Asks the daemon, as an operator.

use crate::find_daemon;
use crate::status_pages::Pages;
use crate::tenant_connection::PATIENCE;
use anyhow::{Context, bail};
use omniverb_operator_client::Connection;
use omniverb_session::body::{Cursor, Extent};
use omniverb_session::operator::{
    AttachMachine, AttachMemory, AttachPair, AwaitPair, CAN_JOIN, CAN_TAKE_OUT, Capture, Captured,
    DetachMachine, DisconnectVnic, EndCapture, JoinPair, Message, PartPair, QueryAll, QueryObjects,
    QueryVnics, ReloadConfiguration, SetVnic, ShowSockets, VNIC_NAME_BYTES, VnicChanged,
};
use omniverb_session::pair_window::PlugTrouble;
use omniverb_session::pinned_pages::Layout;
use rustix::io::Errno;
use serde_json::Value;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the daemon may take to complete a capture file.
const LAST_WORDS: Duration = Duration::from_secs(60);

/// A connection to the operators' socket, where that is, and whose daemon is at the other end.
pub(crate) struct Operator(Connection, Home);

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
        let connection = Connection::connect(&self.path)?;
        match connection.owner() == self.uid {
            true => Ok(Operator(connection, self.clone())),
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
                Ok(connection) => {
                    let uid = connection.owner();
                    return Ok(Operator(connection, Home { path, uid }));
                }
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
        Ok(self.pages(|from| QueryAll { from }.into())?.status())
    }

    /// The daemon's status of vNICs.
    pub(crate) fn vnics(&self) -> anyhow::Result<Value> {
        Ok(self.pages(|from| QueryVnics { from }.into())?.vnics())
    }

    /// Tenants, policies and vNICs as they were described.
    pub(crate) fn objects(&self) -> anyhow::Result<Vec<Value>> {
        Ok(self.pages(|from| QueryObjects { from }.into())?.objects())
    }

    /// Changes one of them.
    pub(crate) fn change_objects(&self, change: &Value) -> anyhow::Result<()> {
        self.0.change_objects(&change.to_string(), PATIENCE)?.map_err(anyhow::Error::msg)
    }

    /// Has the daemon read its configuration again.
    pub(crate) fn reload(&self) -> anyhow::Result<()> {
        let reload = ReloadConfiguration { reserved: 0 }.into();
        self.0.objects_changed(&reload, PATIENCE)?.map_err(anyhow::Error::msg)
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

    fn pages(&self, ask: impl Fn(Cursor) -> Message) -> anyhow::Result<Pages> {
        let mut pages = Pages::default();
        self.0.pieces(PATIENCE, ask, |lines| {
            pages.add(lines).context("the daemon's answer cannot be read")
        })?;
        Ok(pages)
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
        self.0.send(&AwaitPair { name, left, trouble, can }.into(), &[])?;
        while !self.0.wait(None)? {}
        match self.0.receive(PATIENCE)? {
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
        while !self.0.wait(None)? {}
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
        self.0.is_over()
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
        self.0.send(message, files)?;
        Ok(self.0.receive(patience)?)
    }
}

/// A connection whose other end is root's or ours, unless the user named it: our messages are not
/// meant for others.
fn open(path: &Path) -> io::Result<Connection> {
    let connection = Connection::connect(path)?;
    let owner = connection.owner();
    let named = find_daemon::named().is_some() || find_daemon::named_operators().is_some();
    if named || owner == 0 || owner == rustix::process::geteuid().as_raw() {
        return Ok(connection);
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
             1g and with a rate, operations 1/s to 1000m/s, the file of a capture a regular file"
        ),
        _ => bail!(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_sys::seqpacket;

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
