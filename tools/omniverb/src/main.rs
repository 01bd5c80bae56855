//! `omniverb`: runs programs on their virtual RDMA device, shows and changes devices, and finds
//! faults.
#![forbid(unsafe_code)]

mod capture;
mod doctor;
mod elf;
mod find_daemon;
mod find_drop_in_library;
mod operator_connection;
mod present;
mod program_check;
mod run;
mod socket_status;
mod status;
mod status_pages;
mod stdout;
mod tenant_and_policy;
mod tenant_connection;
mod text_table;
mod top;
mod vm;
mod vnic;

use clap::Parser;
use omniverb_arguments::{Arguments, Command, VmCommand, VnicCommand, WindowOptions};
use omniverb_session::printable;
use present::{Task, rdma_stand_in};
use std::process::ExitCode;
use tenant_and_policy::{Form, Kind};

/// Exit code for our own failure in `run`, as `env` and `nice` use it.
const OWN_FAILURE: u8 = 125;

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let (result, failure) = match rdma_stand_in::is_meant(words.next().as_ref()) {
        true => (rdma_stand_in::answer(&words.collect::<Vec<_>>()), 1),
        false => command(Arguments::parse().command),
    };
    result.unwrap_or_else(|error| {
        eprintln!("omniverb: {}", printable::clean_lines(&format!("{error:#}")));
        ExitCode::from(failure)
    })
}

/// Does it. With what came of that, the exit code for a failure of ours.
fn command(command: Command) -> (anyhow::Result<ExitCode>, u8) {
    match command {
        Command::Run { preload, sockets, present, command } => {
            (run::run(preload, sockets, present, &command), OWN_FAILURE)
        }
        Command::Gateway { port, verbose, to } => (run::gateway(port, verbose, to), OWN_FAILURE),
        Command::Present { folder, once, start, keep } => {
            let task = match (start, keep) {
                (Some(pid), _) => Task::Start(pid),
                (_, Some(pid)) => Task::Keep(pid),
                _ if once => Task::Once,
                _ => Task::Always,
            };
            (present::present(&folder, task), 1)
        }
        Command::Status { json } => (status::status(json), 1),
        Command::Top(options) => (top::top(&options), 1),
        Command::Vnic(command) => (vnic(command), 1),
        Command::Tenant(command) => (tenant_and_policy::tenant(command), 1),
        Command::Policy(command) => (tenant_and_policy::policy(command), 1),
        Command::Reload => (tenant_and_policy::reload(), 1),
        Command::Cluster { arguments } => (run::cluster(&arguments), 1),
        Command::Vm(command) => vm(command),
        Command::Agent { socket, in_place } => (vm::agent(socket.as_deref(), in_place), 1),
        Command::Capture { vnic, file, snaplen } => {
            (capture::capture(vnic.as_deref(), file.as_deref(), snaplen), 1)
        }
        Command::Doctor { program } => (doctor::doctor(program.as_deref()), 1),
    }
}

fn vnic(command: VnicCommand) -> anyhow::Result<ExitCode> {
    match command {
        VnicCommand::Create { name, vnic, policy } => {
            tenant_and_policy::create_vnic(&name, &vnic, &policy)
        }
        VnicCommand::Set { name, vnic, policy } => vnic::set(&name, &vnic, &policy),
        VnicCommand::Show { name, json } => {
            tenant_and_policy::show(Kind::Vnic, &name, Form::with_json(json))
        }
        VnicCommand::Delete { name } => tenant_and_policy::delete(Kind::Vnic, &name),
        VnicCommand::Disconnect { name } => vnic::disconnect(&name),
        VnicCommand::List { json } => vnic::list(json),
    }
}

fn vm(command: VmCommand) -> (anyhow::Result<ExitCode>, u8) {
    let result = match command {
        VmCommand::Run { name, windows, shared_memory, command } => {
            let windows = vm_windows(&windows);
            return (vm::run(&name, windows, shared_memory, &command), OWN_FAILURE);
        }
        VmCommand::List { json } => vm::list(None, json),
        VmCommand::Show { name, json } => vm::list(Some(&name), json),
        VmCommand::Detach { name } => vm::detach(&name),
        VmCommand::Args { name, windows, memory, user, libvirt } => {
            vm::args(&name, vm_windows(&windows), memory, user.as_deref(), libvirt)
        }
        VmCommand::Keep {
            name,
            bytes,
            neighbours,
            most,
            pair_bytes,
            windows,
            memory,
            user,
            alone,
        } => {
            let pairs = vm::Neighbours { count: neighbours, most, bytes: pair_bytes };
            vm::keep(&name, (bytes, pairs, memory), &windows, user.as_deref(), alone)
        }
        VmCommand::Hold => vm::hold(),
        VmCommand::Carry { number, more, pairs } => vm::carry(number, more, &pairs),
        VmCommand::Plug { number, bytes } => vm::plug(number, bytes),
        VmCommand::Map { bytes, count } => vm::map(bytes, count),
        VmCommand::Open => vm::open(),
        VmCommand::Pin { whose, folder } => vm::pin(whose, &folder),
    };
    (result, 1)
}

fn vm_windows(options: &WindowOptions) -> vm::Windows {
    let WindowOptions { window, neighbours, most_neighbours, pair_size, windows } = *options;
    let way = windows.into();
    vm::Windows { own: window, neighbours, most: most_neighbours, pair: pair_size, way }
}
