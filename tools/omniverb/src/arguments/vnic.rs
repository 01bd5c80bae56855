//! Defines the commands about vNICs, and their options.

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use omniverb_session::network_fault_text::{self, Faults};
use omniverb_session::tc_units::{self, size};
use std::net::{IpAddr, Ipv4Addr};

#[derive(Debug, Subcommand)]
pub enum VnicCommand {
    /// Describe a virtual device: what holds for it whenever it is there.
    ///
    /// The device is that of a network namespace, whose path --attach gives, as
    /// `/run/netns/web`; it need not exist yet. What is described so outlives the daemon. Needs the
    /// operators' socket.
    Create {
        /// A name for it.
        name: String,
        #[command(flatten)]
        vnic: VnicOptions,
        #[command(flatten)]
        policy: PolicyOptions,
    },
    /// Change a virtual device: tenant, datapath, rate, adoption, faults.
    ///
    /// Options that are not given stay as they are. What is set outlives the daemon; of a device
    /// that was not described by `vnic create` it holds while the network namespace exists. With
    /// another tenant all links of the device end. Needs the operators' socket: root where the
    /// daemon runs, or the daemon's own user.
    #[command(
        override_usage = "omniverb vnic set <NAME> <OPTIONS>",
        group = changes(&["tenant", "policies", "attach", "address", "underlay", "qpn_offset",
            "qpns", "datapath", "rate", "burst", "ops", "adoption",
            "faults"]),
    )]
    Set {
        /// The device, as `omniverb vnic list` shows it, a name that `vnic create` gave, or pid:N
        /// for that of process N.
        name: String,
        #[command(flatten)]
        vnic: VnicOptions,
        #[command(flatten)]
        policy: PolicyOptions,
    },
    /// Show what was described of a virtual device. Needs the operators' socket.
    Show {
        /// The name that `vnic create` gave it.
        name: String,
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Delete the description of a virtual device, which belongs to the tenant `default` then.
    ///
    /// Needs the operators' socket.
    Delete {
        /// The name that `vnic create` gave it.
        name: String,
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
    /// List virtual devices, their tenants, datapaths, adoption, rates and faults.
    List {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
}

/// Of these options one at least is given.
pub(super) fn changes(options: &'static [&'static str]) -> ArgGroup {
    ArgGroup::new("changes").args(options).required(true).multiple(true)
}

/// Where a device is, and what it belongs to.
#[derive(Clone, Debug, Default, Args)]
pub struct VnicOptions {
    /// The tenant that the device belongs to [default: default].
    #[arg(long)]
    pub tenant: Option<String>,
    /// A policy of the device; may be given several times, and a later one decides.
    #[arg(long = "policy", value_name = "NAME")]
    pub policies: Vec<String>,
    /// Where the device is: the path of a network namespace, or the name of a device that `omniverb
    /// vnic list` shows [default: the name].
    #[arg(long, value_name = "PLACE")]
    pub attach: Option<String>,
    /// The address of the device in the virtual network of a tenant that has a key.
    #[arg(long, value_name = "IPV4")]
    pub address: Option<Ipv4Addr>,
    /// The address of its host, for a device of another host [default: that of the tenant].
    #[arg(long, value_name = "ADDRESS")]
    pub underlay: Option<IpAddr>,
    /// Where its queue pair numbers begin, as in 0x400000; a device of another host needs it
    /// [default: chosen].
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    pub qpn_offset: Option<u32>,
    /// How many queue pair numbers it has: a multiple of 1024 [default: 1024].
    #[arg(long, value_name = "COUNT")]
    pub qpns: Option<u32>,
}

/// A number in decimal, or behind 0x in hexadecimal digits.
fn number(text: &str) -> Result<u32, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

#[derive(Clone, Debug, Default, Args)]
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
    /// How many operations it may begin per second: 1/s to 1000m/s, or none.
    ///
    /// In numbers as `100k` or `1.5m`. Each SEND, WRITE, READ and atomic is one, and each datagram,
    /// whatever its length and however often it is sent again. A device that was silent may begin
    /// those of a millisecond at once. It holds beside the rate; a device with it is forwarded.
    #[arg(long, value_name = "N", value_parser = ops_limit)]
    pub ops: Option<OperationRate>,
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

/// Operations per second; 0 for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationRate(pub u32);

pub(super) fn rate_limit(text: &str) -> Result<Rate, String> {
    if text == "none" {
        return Ok(Rate(0));
    }
    match tc_units::rate(text)? {
        0 => Err("a rate of 0 would let nothing pass; `none` takes the limit away".into()),
        bits_per_second => Ok(Rate(bits_per_second)),
    }
}

pub(super) fn ops_limit(text: &str) -> Result<OperationRate, String> {
    if text == "none" { Ok(OperationRate(0)) } else { tc_units::ops(text).map(OperationRate) }
}

fn fault_list(text: &str) -> Result<FaultList, String> {
    network_fault_text::faults(text).map(|faults| FaultList(faults.unwrap_or_default()))
}
