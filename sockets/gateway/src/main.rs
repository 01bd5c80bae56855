//! `omniverb-gateway`: carries light connections of a network namespace to other hosts, over RDMA.
//!
//! `omniverb gateway` starts it, beside the programs whose connections it carries. It is a client
//! of the daemon twice: by verbs and rdma_cm, as any program, and of the broker of sockets.

mod broker_connection;
mod channel_handshake;
mod cm_id;
mod gateway_state;
mod letter_outbox;
mod limits;
mod queue_pair;
mod rdma_libraries;
mod rdma_objects;
mod remote_channel;
mod socket_address;
mod start_channels;
mod unproven_peers;

use crate::cm_id::Listener;
use crate::gateway_state::{GatewayState, Verbosity};
use crate::limits::PORT;
use clap::Parser;
use omniverb_formats::address_range::Range;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

/// Carries light connections to other hosts, over RDMA
#[derive(Parser)]
#[command(name = "omniverb-gateway", version)]
struct Arguments {
    /// The port of rdma_cm where gateways listen for each other
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// Log each channel, and what becomes of it
    #[arg(long, short)]
    verbose: bool,
    /// Addresses to serve: ADDRESS[/BITS][:PORT[-PORT]], all of IPv4: 0.0.0.0/0
    #[arg(required = true)]
    to: Vec<Range>,
}

fn main() -> ExitCode {
    let Arguments { port, to, verbose } = Arguments::parse();
    omniverb_sys::spare_fds::keep();
    let verbosity = if verbose { Verbosity::Verbose } else { Verbosity::Quiet };
    match run(GatewayState::new(to, port, verbosity)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("omniverb-gateway: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(state: GatewayState) -> Result<(), String> {
    rdma_libraries::load()?;
    let port = state.port;
    let listener = Listener::new(port)
        .map_err(|error| format!("cannot listen at port {port} of rdma_cm: {error}"))?;
    let state = Arc::new(state);
    let serving = state.clone();
    let thread = thread::Builder::new()
        .name("broker".into())
        .spawn(move || start_channels::serve_broker(&serving));
    thread.map_err(|error| error.to_string())?;
    eprintln!("omniverb-gateway: ready at port {port} of rdma_cm");
    start_channels::accept_gateways(&state, &listener)
        .map_err(|error| format!("the device is gone: {error}"))
}
