//! `omniverbd`: reads its arguments and configuration, takes its place, and runs
//! `omniverb_control`.
#![forbid(unsafe_code)]

mod allow_configuration;
mod configuration;
mod daemonize;
mod metrics;
mod paths;
mod sd_watchdog;
mod vnic_configuration;

use anyhow::Context;
use clap::Parser;
use clap::error::ErrorKind;
use configuration::{Configuration, metrics_address};
use omniverb_broker::BROKER;
use omniverb_control::{
    Audience, DaemonLifetime, Form, Journal, Level, Reload, RuntimeFolder, Server, Settings,
    StartError, Undescribed, Unwanted,
};
use omniverb_formats::broker_message::SUFFIX;
use omniverb_netns::{self as netns, HELPER, STARTER};
use omniverb_sys::deferred_close::{DISPOSER, dispose};
use omniverb_sys::helper_process::{self, HelperStart, OWN_PROGRAM};
use omniverb_sys::{sd_notify, signal_fds};
use omniverb_tenancy::{Policies, Policy};
use omniverbd_arguments::{Arguments, LogLevel};
use paths::{files, operator_socket, socket};
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// A process takes three descriptors; the fourth is for what it has on the way, and for vNICs.
const DESCRIPTORS_PER_SESSION: usize = 4;

/// Exit code for a wrong command line.
const WRONG_USE: u8 = 2;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error)
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
        {
            print!("{error}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            eprintln!("omniverbd: {}; see omniverbd --help", line.trim_start_matches("error: "));
            return ExitCode::from(WRONG_USE);
        }
    };
    if let Some(name) = &arguments.helper {
        return helper(name);
    }
    let result = if arguments.detach { daemonize::start(&arguments) } else { serve(&arguments) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("omniverbd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Does what a helper does, if it was started as one.
fn helper(name: &str) -> ExitCode {
    // A terminal's signal to the daemon's process group is for the daemon, which ends us.
    let _ = rustix::process::setpgid(None, None);
    let served = match name {
        STARTER => {
            helper_process::socket_of_helper(STARTER).and_then(|socket| netns::start(&socket))
        }
        HELPER => helper_process::socket_of_helper(HELPER).map(netns::serve_alone),
        DISPOSER => helper_process::socket_of_helper(DISPOSER).map(dispose),
        BROKER => helper_process::socket_of_helper(BROKER).map(omniverb_broker::serve),
        _ => Err(std::io::ErrorKind::InvalidInput.into()),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("omniverbd: cannot be the helper {name:?}: {error}");
            ExitCode::from(WRONG_USE)
        }
    }
}

fn level(named: LogLevel) -> Level {
    match named {
        LogLevel::Error => Level::Error,
        LogLevel::Warning => Level::Warning,
        LogLevel::Info => Level::Info,
        LogLevel::Debug => Level::Debug,
    }
}

fn serve(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.own_session {
        // Fails for a leader of a process group, which we are only if a user passed that flag by
        // hand; it does not matter then.
        let _ = rustix::process::setsid();
        let _ = std::env::set_current_dir("/");
    }
    let configuration = Configuration::load(arguments.config.as_deref())?;
    // Before the first thread is started: threads inherit the signal mask.
    let termination = signal_fds::termination()?;
    let reload = signal_fds::reload()?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let descriptors = raise_descriptor_limit();
    let idle = arguments.idle_exit.or(configuration.idle_exit_seconds);
    let mut limits = configuration.limits();
    limits.sessions = limits.sessions.min(descriptors / DESCRIPTORS_PER_SESSION);
    let memory = configuration.memory();
    let metrics = arguments.metrics.or(configuration.metrics);
    let metrics = metrics.map(metrics_address).transpose().map_err(anyhow::Error::msg)?;
    let underlay_namespace =
        arguments.underlay_namespace.clone().or(configuration.underlay_namespace.clone());
    let checked = underlay_namespace.as_deref().map(configuration::underlay_namespace);
    checked.transpose().map_err(anyhow::Error::msg)?;
    let isolate = arguments.isolate;
    let mut configured = configuration.configured();
    if isolate {
        configured.objects.undescribed = Undescribed::Isolated;
    }
    let path = socket(arguments);
    let state_file = paths::state_file(arguments, &path).context("cannot make the state folder")?;
    let settings = Settings {
        limits,
        memory,
        policies: policies(configured.general),
        objects: configured.objects,
        state_file: Some(state_file),
        underlay_namespace,
        queued_descriptors: (descriptors / 8).clamp(128, 65536),
        allow: configuration.allow(),
        has_audit: configuration.audit.unwrap_or(false),
        has_carried_queue_pairs: configuration.carried_queue_pairs.unwrap_or(false),
        idle_exit: idle.map(Duration::from_secs),
        helpers: HelperStart::Program(OWN_PROGRAM.into()),
        unwanted: if arguments.no_refusal { Unwanted::LookedFor } else { Unwanted::Refused },
        watchdog: configuration.watchdog(),
        sign_of_life: sd_watchdog::sign_of_life(),
        ..Settings::default()
    };
    let level =
        arguments.log_level.map(level).or(configuration.log_level).unwrap_or(Level::Warning);
    let form = match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => Form::Priorities,
        None => Form::Words,
    };
    let mut journal = Journal::new(level, form);
    let audience = if geteuid().is_root() { Audience::AllUsers } else { Audience::Owner };
    // Before the daemon answers, so that metrics are there when it does.
    let metrics = metrics.map(metrics::Endpoint::bind);
    // A service that the configuration has end is not one that was started on demand.
    let lifetime = match arguments.idle_exit {
        Some(_) => DaemonLifetime::OnDemand,
        None => DaemonLifetime::Permanent,
    };
    let place = RuntimeFolder::take_apart(&path, &files(&path)?, audience, lifetime)?;
    let at = operator_socket(arguments)?;
    // Not the name of the other one's files, which may be in this folder.
    let its_files = at.with_added_extension("operators");
    let operators = RuntimeFolder::take_apart(&at, &its_files, Audience::Owner, lifetime)?;
    journal.log(Level::Info, format_args!("serving at {}", path.display()));
    let mebibytes = memory.whole >> 20;
    journal.log(Level::Info, format_args!("memory: {mebibytes} MiB at most (memory_max_mib)"));
    let mut server = Server::new(place, operators, settings, journal)?;
    let file = arguments.config.clone();
    server.set_reload(Reload::new(reload, move || {
        let read = Configuration::load(file.as_deref());
        let mut read = read.map(|read| read.configured()).map_err(|error| format!("{error:#}"))?;
        if isolate {
            read.objects.undescribed = Undescribed::Isolated;
        }
        Ok(read)
    }))?;
    if configuration.has_sockets() {
        let opened = server.bring_sockets_together(configuration.light(), || {
            sockets(&path, &at, audience, lifetime)
        });
        if let Err(error) = opened {
            // Programs with sockets go on by TCP then.
            eprintln!("omniverbd: no sockets are brought together: {error}");
        }
    }
    if geteuid().is_root() && !server.is_privileged() {
        eprintln!(
            "omniverbd: without CAP_SYS_ADMIN only processes of this network namespace are served"
        );
    }
    // Behind all that gives up privileges: this thread has none, either.
    if let Some(endpoint) = metrics {
        metrics::serve(endpoint, &at, Journal::new(level, form))?;
    }
    sd_notify::tell("READY=1");
    let ended = server.run(Some(termination.as_fd()));
    sd_notify::tell("STOPPING=1");
    ended?;
    Ok(())
}

/// The policy of vNICs that no object is attached to.
fn policies(general: Policy) -> Policies {
    let mut policies = Policies::default();
    policies.general = general;
    policies
}

/// Where processes with sockets to be carried connect, beside the other place.
fn sockets(
    path: &Path,
    operators: &Path,
    audience: Audience,
    lifetime: DaemonLifetime,
) -> Result<RuntimeFolder, StartError> {
    let with = |path: &Path, end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        std::path::PathBuf::from(name)
    };
    RuntimeFolder::take_apart(&with(path, SUFFIX), &with(operators, SUFFIX), audience, lifetime)
}

/// Takes as many descriptors as we may have, and says how many that is. An eighth may wait in
/// queues for the processes of one vNIC, so that no vNIC can take them all.
fn raise_descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit { current: limit.maximum.or(limit.current), maximum: limit.maximum },
    );
    let current = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    usize::try_from(current).unwrap_or(usize::MAX)
}
