//! A client's connection, as the tables have it.

use super::identity::Client;
use crate::accounts::{Account, Paid, Receipt};
use crate::memory::grantees::Strain;
use crate::memory::mr::Mr;
use omniverb_session::Message;
use omniverb_terms::Rkey;
use std::collections::HashMap;

/// A call that is answered later.
#[derive(Clone, Debug)]
pub(crate) enum Waiting {
    /// `Hello`, until the addresses are known.
    Hello { tag: u64 },
    /// `QueryGids`, until they have been read anew.
    Gids { tag: u64 },
    /// A call that names an address which is not known, until they have been read anew.
    Address { tag: u64, message: Box<Message> },
}

/// How a session takes what it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As it comes, or nearly.
    KeepsUp,
    /// It has left more than a little.
    Behind,
}

/// A client's connection, and what its process has.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Client,
    /// What it calls itself.
    pub(crate) name: String,
    /// `ROLE_*`; zero until it has said hello.
    pub(crate) role: u32,
    /// It had a daemon before this one, and may announce what it has of that.
    pub(crate) resume: bool,
    /// Its hello was accepted, and it has not ended.
    pub(crate) welcomed: bool,
    /// Its call that is answered later, if there is one.
    pub(crate) waiting: Option<Waiting>,
    /// Below its vNIC's once it has one.
    pub(crate) account: Account,
    /// What it pays as a connection.
    pub(crate) receipt: Receipt,
    /// What it pays as a process of its vNIC's, once it is that.
    pub(crate) process: Option<Receipt>,
    pub(crate) mrs: HashMap<Rkey, Paid<Mr>>,
    /// Whether it takes what it is told; see `pace.rs`.
    pub(crate) pace: Pace,
    /// Questions for pages that it has not answered: any answer, late or not, is to one of them.
    pub(crate) questions: Vec<Receipt>,
    /// How often it was told to take an extent back.
    pub(crate) taken: u64,
    /// What of that was because of whom.
    pub(crate) strain: Strain,
    /// The number that an id of the connection manager was given last.
    pub(crate) last_cm_id: u32,
}

impl Session {
    /// One that has not said anything yet.
    pub(crate) fn new(client: Client, account: Account, receipt: Receipt) -> Session {
        Session {
            client,
            account,
            receipt,
            process: None,
            name: String::new(),
            role: 0,
            resume: false,
            welcomed: false,
            waiting: None,
            mrs: HashMap::new(),
            pace: Pace::KeepsUp,
            questions: Vec::new(),
            taken: 0,
            strain: Strain::default(),
            last_cm_id: 0,
        }
    }
}
