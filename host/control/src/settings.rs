//! Holds the settings of a daemon.

use crate::allowed_processes::Allow;
use crate::client_memory_shares::Totals;
use crate::objects::ObjectSet;
use crate::watchdog::SignOfLife;
use omniverb_sys::helper_process::HelperStart;
use omniverb_sys::thread_watchdog::ThreadPulses;
use omniverb_tenancy::{FilePerExtent, Layout, Limits, Policies};
use std::path::PathBuf;
use std::time::Duration;

/// How a daemon is to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Quotas of processes, vNICs and the host, and times.
    pub limits: Limits,
    /// Memory of the daemon.
    pub memory: Totals,
    /// Datapaths and rate limits of vNICs.
    pub policies: Policies,
    /// Tenants, policies and vNICs of the configuration.
    pub objects: ObjectSet,
    /// The file with those that were set at run time; `None`: they end with the daemon.
    pub state_file: Option<PathBuf>,
    /// The network namespace of the underlay; `None`: the daemon's own.
    pub underlay_namespace: Option<PathBuf>,
    /// Descriptors that may wait to be taken by the processes of one vNIC. They are the daemon's
    /// own until then.
    pub queued_descriptors: usize,
    /// The processes that may use the tenants' socket; `None`: all.
    pub allow: Option<Allow>,
    /// Whether links between vNICs are logged.
    pub has_audit: bool,
    /// Whether processes may carry their connections to other hosts themselves.
    pub has_carried_queue_pairs: bool,
    /// After so long without a client the daemon ends; `None`: never.
    pub idle_exit: Option<Duration>,
    /// What helpers are. If they are processes, this one gives up its privileges to them.
    pub helpers: HelperStart,
    /// How descriptors that clients send are treated.
    pub unwanted: Unwanted,
    /// How long an iteration of a thread's loop may last before it is logged; `None`: it is not
    /// watched.
    pub watchdog: Option<Duration>,
    /// The signs of life for the service manager; `None`: it wants none.
    pub sign_of_life: Option<SignOfLife>,
    /// The threads that are looked at; more can be added.
    pub pulses: ThreadPulses,
    /// Where the memory is that regions' pages are moved to.
    pub layout: fn() -> Box<dyn Layout>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            limits: Limits::default(),
            memory: Totals::default(),
            policies: Policies::default(),
            objects: ObjectSet::default(),
            state_file: None,
            underlay_namespace: None,
            queued_descriptors: 8192,
            allow: None,
            has_audit: false,
            has_carried_queue_pairs: false,
            idle_exit: None,
            helpers: HelperStart::Threads,
            unwanted: Unwanted::Refused,
            watchdog: Some(Duration::from_secs(5)),
            sign_of_life: None,
            pulses: ThreadPulses::default(),
            layout: || Box::<FilePerExtent>::default(),
        }
    }
}

/// How descriptors that clients send are treated. No client has a reason to send any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwanted {
    /// The kernel refuses them at their senders, where it can (from 6.16 on).
    Refused,
    /// Each message is looked at for them before it is taken.
    LookedFor,
}

/// Why a daemon ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its starter wanted that.
    Terminated,
    /// No client was connected for [`Settings::idle_exit`].
    Idle,
}
