//! `omniverb-gateway`: brings light connections of a network namespace to other hosts, over RDMA.
//!
//! It is started by `omniverb gateway`, beside the programs whose connections it brings. It is a
//! client of the daemon twice: by verbs and rdma_cm, as any program, and by the broker of sockets.

mod broker_connection;
mod cm_id;
mod crossing;
mod dispatch;
mod fleet;
mod limits;
mod outbox;
mod part;
mod queue_pair;
mod rdma_libraries;
mod strangers;

use crate::cm_id::Listener;
use crate::fleet::{Fleet, Voice};
use crate::limits::PORT;
use clap::Parser;
use omniverb_formats::range::Range;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

/// Brings light connections to other hosts, over RDMA
#[derive(Parser)]
#[command(name = "omniverb-gateway", version)]
struct Arguments {
    /// The port of rdma_cm where gateways listen for each other
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// Say who is brought where, and what becomes of it
    #[arg(long, short)]
    verbose: bool,
    /// To which addresses: ADDRESS[/BITS][:PORT[-PORT]], all of IPv4: 0.0.0.0/0
    #[arg(required = true)]
    to: Vec<Range>,
}

fn main() -> ExitCode {
    let Arguments { port, to, verbose } = Arguments::parse();
    omniverb_sys::spare::keep();
    let voice = if verbose { Voice::Loud } else { Voice::Quiet };
    match run(Fleet::new(to, port, voice)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("omniverb-gateway: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(fleet: Fleet) -> Result<(), String> {
    rdma_libraries::load()?;
    let port = fleet.port;
    let listener = Listener::new(port)
        .map_err(|error| format!("cannot listen at port {port} of rdma_cm: {error}"))?;
    let fleet = Arc::new(fleet);
    let serving = fleet.clone();
    let thread =
        thread::Builder::new().name("broker".into()).spawn(move || dispatch::serve(&serving));
    thread.map_err(|error| error.to_string())?;
    eprintln!("omniverb-gateway: ready at port {port} of rdma_cm");
    dispatch::receive(&fleet, &listener).map_err(|error| format!("the device is gone: {error}"))
}
