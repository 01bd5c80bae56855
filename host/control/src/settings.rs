//! How a daemon is to run.

use crate::allow::Allow;
use crate::watchdog::SignOfLife;
use omniverb_sys::child::Helpers;
use omniverb_sys::pulse::Pulses;
use omniverb_tenancy::{Apart, Layout, Limits, Policies};
use std::time::Duration;

/// How a daemon is to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Quotas.
    pub limits: Limits,
    /// Datapaths and rate limits of vNICs.
    pub policies: Policies,
    /// Descriptors that may wait to be taken by the processes of one vNIC. They are the daemon's
    /// own until then.
    pub queued_descriptors: usize,
    /// Who may use the tenants' socket; nothing: everybody.
    pub allow: Option<Allow>,
    /// Log who is linked with whom.
    pub audit: bool,
    /// End after this time without a client.
    pub idle_exit: Option<Duration>,
    /// What helpers are. If they are processes, this one gives up its privileges to them.
    pub helpers: Helpers,
    /// Have the kernel refuse descriptors at their senders, where it can. Off: as on kernels
    /// before 6.16 (tests).
    pub refuse_descriptors: bool,
    /// How long a turn of a thread's loop may last until that is said; nobody looks if not given.
    pub watchdog: Option<Duration>,
    /// What the service manager wants to hear.
    pub sign_of_life: Option<SignOfLife>,
    /// The threads that are looked at; more can be added.
    pub pulses: Pulses,
    /// Where the memory is that regions' pages are moved to.
    pub layout: fn() -> Box<dyn Layout>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            limits: Limits::default(),
            policies: Policies::default(),
            queued_descriptors: 8192,
            allow: None,
            audit: false,
            idle_exit: None,
            helpers: Helpers::Threads,
            refuse_descriptors: true,
            watchdog: Some(Duration::from_secs(5)),
            sign_of_life: None,
            pulses: Pulses::default(),
            layout: || Box::<Apart>::default(),
        }
    }
}

/// Why a daemon ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    Terminated,
    /// Nobody needed it.
    Idle,
}
