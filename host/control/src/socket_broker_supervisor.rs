//! Runs the socket broker as a helper process, and starts it again with its listener when it dies.
//!
//! Connections that it had introduced go on without it.

use crate::daemon_log::{Journal, Level};
use crate::poller_tokens::Wakeup;
use crate::reactor::{Reactor, Timer};
use crate::runtime_folder::RuntimeFolder;
use omniverb_broker::broker_daemon_messages::{BYTES, FromDaemon, ToDaemon};
use omniverb_broker::{BROKER, serve};
use omniverb_sys::deferred_close::DeferredClose;
use omniverb_sys::helper_process::{Helper, HelperStart};
use omniverb_sys::seqpacket;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// When one that has died is started again, and how often those are looked at that have not ended.
const AGAIN: Duration = Duration::from_secs(1);
/// When it is told again what there was no room for.
const SOON: Duration = Duration::from_millis(10);
/// Answers that wait, of which it has asked for fewer: it does not listen.
const UNHEARD: usize = 16 << 10;
/// Budget: questions that are heard before others get their turn.
pub(crate) const PER_TURN: usize = 64;

/// The place where processes find it, and the helper.
#[derive(Debug)]
pub(crate) struct Broker {
    helpers: HelperStart,
    place: RuntimeFolder,
    order: Vec<u8>,
    helper: Option<Helper>,
    /// They have died, or were told to: what others sent them can keep them from ending.
    ending: Vec<Helper>,
    /// Messages to it that had no room, with an operator's socket.
    unheard: VecDeque<(FromDaemon, Option<OwnedFd>)>,
}

/// Events of the broker.
#[derive(Debug)]
pub(crate) enum FromBroker {
    /// A question, and descriptors of processes.
    Said(ToDaemon, Vec<OwnedFd>),
    /// It has died, or sent a malformed message.
    Died,
}

impl Broker {
    /// A broker at that place, without a helper so far. `order`: the helper's instructions.
    pub(crate) fn new(helpers: HelperStart, place: RuntimeFolder, order: Vec<u8>) -> Broker {
        let (ending, unheard) = (Vec::new(), VecDeque::new());
        Broker { helpers, place, order, helper: None, ending, unheard }
    }

    pub(crate) fn start(&mut self, reactor: &Reactor) -> io::Result<()> {
        let helper = self.helpers.start(BROKER, serve)?;
        seqpacket::try_send(helper.socket(), &self.order, &[self.place.listener().as_fd()])?;
        reactor.watch(helper.socket(), Wakeup::Broker)?;
        self.helper = Some(helper);
        Ok(())
    }

    /// There is one at this moment.
    pub(crate) fn is_there(&self) -> bool {
        self.helper.is_some()
    }

    /// Its process; 0: it is none.
    pub(crate) fn pid(&self) -> i32 {
        let pid = self.helper.as_ref().and_then(Helper::pid);
        pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0)
    }

    /// Its next message; `None`: there is none now.
    pub(crate) fn hear(&self) -> Option<FromBroker> {
        let helper = self.helper.as_ref()?;
        let mut bytes = [0; BYTES];
        match seqpacket::receive(helper.socket(), &mut bytes, seqpacket::BlockingMode::NonBlocking)
        {
            Ok((length, files)) => match ToDaemon::decode(&bytes[..length]) {
                Some(said) => Some(FromBroker::Said(said, files)),
                None => Some(FromBroker::Died),
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(_) => Some(FromBroker::Died),
        }
    }

    /// Tells it something, at once or as soon as it has room.
    pub(crate) fn tell(&mut self, what: FromDaemon, file: Option<OwnedFd>, reactor: &mut Reactor) {
        if self.unheard.len() < UNHEARD {
            self.unheard.push_back((what, file));
        }
        self.tell_what_waits(reactor);
    }

    fn tell_what_waits(&mut self, reactor: &mut Reactor) {
        let Some(helper) = &self.helper else { return };
        while let Some((what, file)) = self.unheard.front() {
            let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
            match seqpacket::try_send(helper.socket(), &what.encode(), &files) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return reactor.set(SOON, Timer::Broker);
                }
                // If it has died that is seen elsewhere.
                _ => _ = self.unheard.pop_front(),
            }
        }
    }

    /// It has died, or is to.
    pub(crate) fn died(&mut self, reactor: &mut Reactor, journal: &mut Journal) {
        let Some(mut helper) = self.helper.take() else { return };
        self.unheard.clear();
        reactor.forget(helper.socket());
        helper.kill();
        self.ending.push(helper);
        let text = "the broker of sockets has ended; another one is started";
        journal.log(Level::Warning, format_args!("{text}"));
        reactor.set(AGAIN, Timer::Broker);
    }

    /// It is time for another one.
    pub(crate) fn again(&mut self, reactor: &mut Reactor, journal: &mut Journal) {
        self.ending.retain_mut(|helper| !helper.has_ended());
        if self.helper.is_none()
            && let Err(error) = self.start(reactor)
        {
            journal.log(Level::Error, format_args!("cannot start the broker: {error}"));
        }
        self.tell_what_waits(reactor);
        if self.helper.is_none() || !self.ending.is_empty() {
            reactor.set(AGAIN, Timer::Broker);
        }
    }

    /// Closes its socket. A connection that was not accepted may carry a message.
    pub(crate) fn close(&mut self, disposal: &DeferredClose) {
        self.place.close();
        self.helper = None;
        while let Some(left) = seqpacket::accept(self.place.listener().as_fd()).ok().flatten() {
            disposal.close_socket(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon_log::Form;
    use crate::runtime_folder::Audience;
    use omniverb_broker::StartupParameters;
    use omniverb_sys::thread_watchdog::ThreadPulses;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    struct Fixture {
        folder: std::path::PathBuf,
        reactor: Reactor,
        journal: Journal,
    }

    impl Fixture {
        fn new(name: &str) -> Fixture {
            let folder = format!("omniverb-broker-{}-{name}", std::process::id());
            let reactor = Reactor::new(ThreadPulses::default().vital("test")).unwrap();
            let journal = Journal::new(Level::Error, Form::Words);
            Fixture { folder: std::env::temp_dir().join(folder), reactor, journal }
        }

        fn open(&self) -> Broker {
            let place = RuntimeFolder::take(&self.folder.join("socket"), Audience::Owner).unwrap();
            let order = StartupParameters {
                helpers: HelperStart::Threads,
                allowed: None,
                light: Vec::new(),
            };
            let order = order.encode().unwrap();
            let mut broker = Broker::new(HelperStart::Threads, place, order);
            broker.start(&self.reactor).unwrap();
            broker
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }

    /// A socket that takes a minute to close, and its other end.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let theirs = listener.accept().unwrap().0;
        rustix::net::sockopt::set_socket_linger(&ours, Some(Duration::from_secs(60))).unwrap();
        ours.set_nonblocking(true).unwrap();
        while (&ours).write(&[0; 65536]).is_ok() {}
        (ours.into(), theirs)
    }

    /// A client that waits while there is no broker has sent a descriptor that takes a minute to
    /// close.
    #[test]
    fn connections_that_were_not_accepted_are_closed_elsewhere() {
        let mut fixture = Fixture::new("left");
        let mut broker = fixture.open();
        broker.died(&mut fixture.reactor, &mut fixture.journal);
        while broker.ending.iter_mut().any(|helper| !helper.has_ended()) {
            std::thread::yield_now();
        }
        let clients: Vec<_> = (0..3)
            .map(|_| {
                let client = seqpacket::connect(broker.place.path()).unwrap();
                let (slow, peer) = lingering();
                seqpacket::send(client.as_fd(), b"text", &[slow.as_fd()]).unwrap();
                (client, peer)
            })
            .collect();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut disposal = DeferredClose::new(HelperStart::Threads).unwrap();
            broker.close(&disposal);
            drop(broker);
            let _ = disposal.turn();
            done.send(()).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(20)).expect("hangs with what was sent");
        drop(clients);
    }

    #[test]
    fn a_dead_broker_is_replaced_and_reaped() {
        let mut fixture = Fixture::new("again");
        let mut broker = fixture.open();
        broker.died(&mut fixture.reactor, &mut fixture.journal);
        assert!(broker.helper.is_none());
        while !broker.ending.is_empty() {
            broker.again(&mut fixture.reactor, &mut fixture.journal);
        }
        let client = seqpacket::connect(broker.place.path()).unwrap();
        seqpacket::send(client.as_fd(), b"nonsense", &[]).unwrap();
        let heard =
            seqpacket::receive(client.as_fd(), &mut [0; 8], seqpacket::BlockingMode::Blocking);
        assert!(heard.is_err() || heard.is_ok_and(|(bytes, _)| bytes == 0), "it is parted with");
    }
}
