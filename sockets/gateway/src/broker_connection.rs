//! Connects to the broker, which takes each connection for a process.

use crate::limits::BROKER;
use omniverb_formats::broker_message::{BYTES, Reply, Request, SUFFIX};
use omniverb_session::{SOCKET_VARIABLE, SYSTEM_SOCKET};
use omniverb_sys::{clock, seqpacket, seqpacket_deadline};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, netlink, socket_with};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

/// What it is called as a process.
const NAME: [u8; 16] = *b"omniverb-gateway";

/// How often room for a descriptor is looked for.
const ROOM: Duration = Duration::from_millis(10);

/// See the file's head.
pub(crate) struct BrokerConnection(OwnedFd);

/// Where it is.
fn path() -> PathBuf {
    let mut path = std::env::var_os(SOCKET_VARIABLE).unwrap_or_else(|| SYSTEM_SOCKET.into());
    path.push(OsString::from(SUFFIX));
    path.into()
}

impl BrokerConnection {
    /// Connects, and says hello.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn new() -> io::Result<Self> {
        let broker = seqpacket_deadline::connect(&path(), clock::now() + BROKER)?;
        let (flags, protocol) = (SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG));
        let diagnosis = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        let (halves, _) = NAME.as_chunks();
        let name = [halves[0], halves[1]].map(u64::from_ne_bytes);
        let broker = Self(broker);
        broker.send_with(Request::Hello { name }, &[diagnosis.as_fd()])?;
        Ok(broker)
    }

    /// Says something.
    ///
    /// # Errors
    /// The broker is gone, or does not listen.
    pub(crate) fn send(&self, request: Request) -> io::Result<()> {
        self.send_with(request, &[])
    }

    fn send_with(&self, request: Request, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let until = clock::now() + BROKER;
        seqpacket_deadline::send(self.0.as_fd(), &request.encode(), files, until)
    }

    /// Says that this is a gateway, for all if it may be.
    ///
    /// # Errors
    /// As [`BrokerConnection::send`].
    pub(crate) fn register_gateway(&self) -> io::Result<()> {
        let flags = SocketFlags::CLOEXEC;
        let raw = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::TCP));
        let files: Vec<_> = raw.iter().map(AsFd::as_fd).collect();
        self.send_with(Request::BecomeGateway, &files)
    }

    /// The next thing that it says, once it is there.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn receive(&self) -> io::Result<(Reply, Vec<OwnedFd>)> {
        self.next(seqpacket::BlockingMode::Blocking)
    }

    /// The same, if it is there.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn try_receive(&self) -> io::Result<Option<(Reply, Vec<OwnedFd>)>> {
        match self.next(seqpacket::BlockingMode::NonBlocking) {
            Ok(said) => Ok(Some(said)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn next(&self, mode: seqpacket::BlockingMode) -> io::Result<(Reply, Vec<OwnedFd>)> {
        let mut bytes = [0; BYTES];
        let (length, files) = loop {
            match seqpacket::receive_kept(self.0.as_fd(), &mut bytes, mode) {
                // It stays until there is room for what it brings.
                Err(error) if seqpacket::lacks_room(&error) => match mode {
                    seqpacket::BlockingMode::Blocking => std::thread::sleep(ROOM),
                    seqpacket::BlockingMode::NonBlocking => {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                },
                other => break other?,
            }
        };
        let reply = Reply::decode(&bytes[..length]);
        reply.map(|reply| (reply, files)).ok_or(io::ErrorKind::ConnectionReset.into())
    }
}

impl AsFd for BrokerConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
