//! Describes a client's connection.

use super::vnic_identity::Client;
use crate::accounts::{Account, Receipt};
use crate::sessions::regions::Regions;
use crate::sessions::revocations_caused_by_peers::TakenBack;
use crate::sessions::unanswered_page_questions::Questions;
use omniverb_session::Message;
use omniverb_session::body::Hello;
use omniverb_session::printable;
use omniverb_terms::Errno;

/// A call that is answered later.
#[derive(Clone, Debug)]
pub(crate) enum Waiting {
    /// `Hello`, until the addresses are known.
    Hello { tag: u64 },
    /// `QueryGids`, until they have been read anew.
    Gids { tag: u64 },
    /// A call that names an address which is not known, until they have been read anew.
    Address { tag: u64, message: Box<Message> },
    /// A call over a rate, until it is its turn.
    Paced { tag: u64, message: Box<Message> },
}

/// A session's speed in taking its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As it comes, or nearly.
    KeepsUp,
    /// It has left more than a little.
    Behind,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has not said hello, or not in vain only.
    New,
    /// It is a process of its vNIC's; its hello is answered when the addresses are known.
    Admitted,
    /// Its hello was accepted.
    Welcomed,
    /// It ends: nothing is said to it any more.
    Over,
}

/// A client's connection, and what its process has.
#[derive(Debug)]
pub(crate) struct Session {
    client: Client,
    /// Its own name.
    name: String,
    stage: Stage,
    /// It was connected to an earlier daemon, and may announce what it has of that.
    resumes: bool,
    /// Its call that is answered later, if there is one.
    waiting: Option<Waiting>,
    /// Below its vNIC's once it has one.
    account: Account,
    /// Its receipt as a connection.
    receipt: Receipt,
    /// Its receipt as a process of its vNIC, once it is one.
    process: Option<Receipt>,
    /// Its speed in taking events; see `event_backpressure.rs`.
    pace: Pace,
    /// The number that an id of the connection manager was given last.
    last_cm_id: u32,
    pub(crate) regions: Regions,
    pub(crate) questions: Questions,
    pub(crate) taken: TakenBack,
}

impl Session {
    /// One that has not said anything yet.
    pub(crate) fn new(client: Client, account: Account, receipt: Receipt) -> Session {
        Session {
            client,
            name: String::new(),
            stage: Stage::New,
            resumes: false,
            waiting: None,
            account,
            receipt,
            process: None,
            pace: Pace::KeepsUp,
            last_cm_id: 0,
            regions: Regions::default(),
            questions: Questions::default(),
            taken: TakenBack::default(),
        }
    }

    /// The client as the kernel describes it.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Its own name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its counts and quotas.
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// Its receipt as a connection.
    pub(crate) fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// Its receipt as a process of its vNIC, if it is one.
    pub(crate) fn process(&self) -> Option<&Receipt> {
        self.process.as_ref()
    }

    /// It may say hello: it has not, or was refused.
    pub(crate) fn is_new(&self) -> bool {
        self.stage == Stage::New
    }

    /// Its hello was accepted, and it has not ended.
    pub(crate) fn is_welcomed(&self) -> bool {
        self.stage == Stage::Welcomed
    }

    /// It was connected to an earlier daemon, and may announce what it has of that.
    pub(crate) fn resumes(&self) -> bool {
        self.resumes
    }

    /// Takes its name and role from its hello, whether or not it is admitted.
    pub(crate) fn introduce(&mut self, hello: &Hello) {
        self.name = printable::name(&hello.name);
    }

    /// It is one of its vNIC's processes, pays for that, and has an account below the vNIC's.
    pub(crate) fn join(&mut self, process: Receipt, account: Account) {
        (self.process, self.account) = (Some(process), account);
    }

    /// Its hello is answered when the addresses are known.
    pub(crate) fn admit(&mut self, hello: &Hello, tag: u64) {
        self.stage = Stage::Admitted;
        self.resumes = hello.resume != 0;
        self.waiting = Some(Waiting::Hello { tag });
    }

    /// Its hello is accepted.
    pub(crate) fn welcome(&mut self) {
        self.stage = Stage::Welcomed;
    }

    /// From here on nothing is said to it any more.
    pub(crate) fn end(&mut self) {
        (self.stage, self.waiting) = (Stage::Over, None);
    }

    /// A call of it is not answered yet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Its call is answered later.
    pub(crate) fn wait(&mut self, call: Waiting) {
        self.waiting = Some(call);
    }

    /// Its call that can be answered now, if there is one.
    pub(crate) fn take_waiting(&mut self) -> Option<Waiting> {
        self.waiting.take()
    }

    /// Its speed in taking events.
    pub(crate) fn pace(&self) -> Pace {
        self.pace
    }

    /// That has changed.
    pub(crate) fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// A number for an id of the connection manager, which none of its others had.
    ///
    /// # Errors
    /// `ENOMEM`: all were given. No process makes 2^32 of them.
    pub(crate) fn next_cm_id(&mut self) -> Result<u32, Errno> {
        self.last_cm_id = self.last_cm_id.checked_add(1).ok_or(Errno::ENOMEM)?;
        Ok(self.last_cm_id)
    }
}
