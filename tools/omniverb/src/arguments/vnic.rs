//! Commands about vNICs, and the options that say what holds for one.

use clap::{Args, Subcommand, ValueEnum};
use omniverb_session::faults::{self, Faults};
use omniverb_session::tc_units::{self, size};

#[derive(Debug, Subcommand)]
pub enum VnicCommand {
    /// Change a virtual device: datapath, rate, adoption, faults.
    ///
    /// Options that are not given stay as they are. What is set holds while the network namespace
    /// exists and the daemon runs; for longer, use the daemon's configuration file, whose keys have
    /// the names of these options. Needs the operators' socket: root where the daemon runs, or the
    /// daemon's own user.
    #[command(override_usage = "omniverb vnic set <NAME> <OPTIONS>")]
    Set {
        /// The device, as `omniverb vnic list` shows it, or pid:N for that of process N.
        name: String,
        #[command(flatten)]
        policy: PolicyOptions,
    },
    /// End all links of a virtual device at once.
    ///
    /// Its connected queue pairs, and their peers, fail as when the network between them has gone.
    /// A new connection has the network asked first: to keep the two apart, have the network do so
    /// before. Needs the operators' socket.
    Disconnect {
        /// The device, as `omniverb vnic list` shows it, or pid:N for that of process N.
        name: String,
    },
    /// List virtual devices, their datapaths, adoption, rates and faults.
    List {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Debug, Default, Args)]
#[group(required = true, multiple = true)]
pub struct PolicyOptions {
    /// How traffic within the host goes.
    #[arg(long, value_name = "PATH")]
    pub datapath: Option<DatapathValue>,
    /// What the device may send, whatever its processes do: 8kbit to 1000tbit, or none.
    ///
    /// In the units of tc(8): `300mbit`, `1.5gbit`, `20mbps` (bytes per second). It can be changed
    /// while traffic flows: no operation is lost. A device with a rate is forwarded, since only
    /// what passes through the daemon can be held back; links that exist keep the path they have,
    /// and the answer says how many direct ones there are.
    #[arg(long, value_parser = rate_limit)]
    pub rate: Option<Rate>,
    /// How much it may send at once above the rate: 1500 bytes to 1g. Needs a rate.
    ///
    /// In the units of tc(8): `9000` (bytes), `64k`, `1m`. By default 10 ms of the rate, from 64k
    /// to 16m.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub burst: Option<u64>,
    /// Whether processes may map the pages of each other's memory regions.
    ///
    /// What was mapped before is taken back if that is not allowed any more, and operations go on
    /// through the processes themselves.
    #[arg(long, value_name = "MODE")]
    pub adoption: Option<AdoptionValue>,
    /// Faults of a bad network, for tests, as a list FAULT=VALUE,...; or none.
    ///
    /// In the words of tc-netem(8): `loss=1%`, `duplicate=0.5%`, `reorder=1%` (packets arrive
    /// behind later ones), `corrupt=1%` (packets are dropped by their checksum), `mark=1%`
    /// ("congestion experienced"), `delay=2ms`, `jitter=1ms`, `limit=1000` (packets that may be
    /// delayed at a time; more are lost), `seed=7` (the same seed decides the same about the same
    /// packets). Times have units: us, ms or s.
    ///
    /// Faults happen to packets that arrive for the device, from the wire or forwarded: set them at
    /// both ends for both directions. The list replaces all that were set before. A device with
    /// faults is forwarded, as one with a rate.
    #[arg(long, value_name = "LIST", value_parser = fault_list)]
    pub faults: Option<FaultList>,
}

/// How traffic within the host goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DatapathValue {
    /// Through memory that the two processes share.
    Direct,
    /// Through the daemon.
    Forwarded,
}

/// Whether processes may map the pages of each other's memory regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AdoptionValue {
    /// Where page protection expresses just what a region's access flags allow.
    Exact,
    /// Also where it expresses more, if both devices say so.
    Trusting,
    /// Never, whatever page protection allows.
    Off,
}

/// Bits per second; 0 for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(pub u64);

/// All zeros for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultList(pub Faults);

fn rate_limit(text: &str) -> Result<Rate, String> {
    if text == "none" {
        return Ok(Rate(0));
    }
    match tc_units::rate(text)? {
        0 => Err("a rate of 0 would let nothing pass; `none` takes the limit away".into()),
        bits_per_second => Ok(Rate(bits_per_second)),
    }
}

fn fault_list(text: &str) -> Result<FaultList, String> {
    faults::faults(text).map(|faults| FaultList(faults.unwrap_or_default()))
}
