//! `omniverb`: runs programs on their virtual RDMA device, shows who uses one, and says what is
//! wrong when it does not work.
#![forbid(unsafe_code)]

mod client;
mod daemon;
mod doctor;
mod library;
mod run;
mod status;
mod table;

use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// Exit code for our own failure in `run`, as `env` and `nice` use it.
const OWN_FAILURE: u8 = 125;

/// An RDMA device for any program, without RDMA hardware.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program on the virtual RDMA device.
    Run {
        /// Load the library before the program's own copy of libibverbs.
        #[arg(long)]
        preload: bool,
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Show virtual devices, processes, queue pairs and their peers.
    Status {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Say what is wrong, one line a finding, and how to mend it.
    Doctor {
        /// Also look at how this program would find the library.
        program: Option<OsString>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (result, failure) = match arguments.command {
        Command::Run { preload, command } => (run::run(preload, &command), OWN_FAILURE),
        Command::Status { json } => (status::status(json), 1),
        Command::Doctor { program } => (doctor::doctor(program.as_deref()), 1),
    };
    result.unwrap_or_else(|error| {
        eprintln!("omniverb: {error:#}");
        ExitCode::from(failure)
    })
}
