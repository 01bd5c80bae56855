//! `omniverb-agent`: keeps a host's objects as etcd has them, and changes those by command.
//!
//! It is a program of its own so that the daemon is not linked with what speaks to etcd: it drives
//! the daemon by the operators' socket, as the command line does.
#![forbid(unsafe_code)]

mod agent_lock;
mod commands;
mod daemon_call_pacing;
mod daemon_connection;
mod etcd_connection;
mod etcd_host_entries;
mod etcd_watch;
mod file_watch;
mod log;
mod newest_objects_for_applier;
mod object_applier;
mod secret_file;

use crate::object_applier::Applier;
use crate::secret_file::seal_key;
use anyhow::{Context, bail};
use clap::Parser;
use omniverb_agent_arguments::{Arguments, Command, EtcdOptions};
use omniverb_cluster::object_name::is_name;
use omniverb_session::operator::{SOCKET_VARIABLE, SYSTEM_SOCKET};
use omniverb_session::printable;
use omniverb_sys::{eventfd, sd_notify, signal_fds, user_daemon_socket};
use std::future::Future;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use tokio::sync::{oneshot, watch};

/// The exit code of a failure that is not a difference.
const FAILURE: u8 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    omniverb_sys::spare_fds::keep();
    command(arguments.command).unwrap_or_else(|error| {
        eprintln!("omniverb-agent: {}", printable::clean_lines(&format!("{error:#}")));
        ExitCode::from(FAILURE)
    })
}

fn command(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Cluster { etcd, file, host, lease_seconds, operator_socket } => {
            let host = host.map_or_else(host_name, Ok)?;
            if !is_name(&host) {
                bail!("{host:?} cannot be the name of a host: use --host");
            }
            let socket = operator_socket
                .or_else(|| user_daemon_socket::variable(SOCKET_VARIABLE).map(PathBuf::from))
                .unwrap_or_else(|| SYSTEM_SOCKET.into());
            cluster(&etcd, file, &host, lease_seconds, &std::path::absolute(socket)?)
        }
        Command::Apply { etcd, file, prune } => run(commands::apply(&etcd, &file, prune)),
        Command::Get { etcd, file } => run(commands::get(&etcd, file.as_deref())),
        Command::Diff { etcd, file, prune } => run(commands::diff(&etcd, &file, prune)),
        Command::Delete { etcd, kind, name, host } => {
            run(commands::delete(&etcd, kind, &name, host))
        }
        Command::Hosts { etcd, json } => run(commands::hosts(&etcd, json)),
        Command::Addresses { etcd, json } => run(commands::addresses(&etcd, json)),
        Command::NewSealKey { file } => secret_file::new_seal_key(&file),
    }
}

fn run<T>(task: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(task)
}

fn host_name() -> anyhow::Result<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    let name = name.trim();
    // As containers and clouds have it: the name without the domain is the host's.
    name.split('.').next().map(str::to_owned).context("this host has no name: use --host")
}

/// `omniverb-agent cluster`.
fn cluster(
    etcd: &EtcdOptions,
    file: Option<PathBuf>,
    host: &str,
    lease_seconds: i64,
    socket: &std::path::Path,
) -> anyhow::Result<ExitCode> {
    // Before the first thread is started: threads inherit the signal mask.
    let termination = signal_fds::termination()?;
    let _lock = agent_lock::take(socket)?;
    let key = seal_key(etcd)?;
    let (input, inputs) = newest_objects_for_applier::channel();
    let (report, reports) = watch::channel(object_applier::Report::default());
    let applier = Applier::new(host, socket.to_owned(), inputs, report);
    thread::Builder::new().name("applier".into()).spawn(move || applier.run())?;
    let (end, ended) = oneshot::channel();
    thread::Builder::new().name("signals".into()).spawn(move || {
        while !matches!(eventfd::readable(termination.as_fd(), None), Ok(true)) {}
        let _ = end.send(());
    })?;
    sd_notify::tell("READY=1");
    run(async {
        match file {
            Some(file) => tokio::select! {
                _ = file_watch::watch(&file, host, key.as_deref(), &input) => {}
                _ = ended => {}
            },
            None => {
                let entry = etcd_host_entries::HostEntry::new(host, socket, lease_seconds);
                tokio::select! {
                    _ = etcd_watch::watch(etcd, host, key, &input) => {}
                    _ = entry.keep(etcd, reports, ended) => {}
                }
            }
        }
        sd_notify::tell("STOPPING=1");
        Ok(ExitCode::SUCCESS)
    })
}
