//! The broker of carried sockets: a helper that is given a socket to listen at, and given it again
//! when it has died. What it had introduced goes on without it.

use crate::journal::{Journal, Level};
use crate::place::Place;
use crate::reactor::{Reactor, Timer};
use crate::ready::Ready;
use omniverb_broker::{BROKER, serve};
use omniverb_sys::child::{Helper, Helpers};
use omniverb_sys::socket;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// When one that has died is started again.
const AGAIN: Duration = Duration::from_secs(1);

/// The place where processes find it, and the helper.
#[derive(Debug)]
pub(crate) struct Broker {
    helpers: Helpers,
    place: Place,
    helper: Option<Helper>,
}

impl Broker {
    /// At that place.
    pub(crate) fn open(helpers: Helpers, place: Place, reactor: &Reactor) -> io::Result<Broker> {
        let mut broker = Broker { helpers, place, helper: None };
        broker.start(reactor)?;
        Ok(broker)
    }

    fn start(&mut self, reactor: &Reactor) -> io::Result<()> {
        let helper = self.helpers.start(BROKER, serve)?;
        socket::try_send(helper.socket(), b"L", &[self.place.listener().as_fd()])?;
        reactor.watch(helper.socket(), Ready::Broker)?;
        self.helper = Some(helper);
        Ok(())
    }

    /// It has nothing to say: so it has died.
    pub(crate) fn died(&mut self, reactor: &mut Reactor, journal: &mut Journal) {
        let Some(helper) = self.helper.take() else { return };
        reactor.forget(helper.socket());
        let text = "the broker of sockets has ended; another one is started";
        journal.log(Level::Warning, format_args!("{text}"));
        reactor.set(AGAIN, Timer::Broker);
    }

    /// It is time for another one.
    pub(crate) fn again(&mut self, reactor: &mut Reactor, journal: &mut Journal) {
        if self.helper.is_none()
            && let Err(error) = self.start(reactor)
        {
            journal.log(Level::Error, format_args!("cannot start the broker: {error}"));
            reactor.set(AGAIN, Timer::Broker);
        }
    }

    /// Nobody finds it any more.
    pub(crate) fn close(&mut self) {
        self.place.close();
        self.helper = None;
    }
}
