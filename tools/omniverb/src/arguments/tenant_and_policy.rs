//! Commands about tenants and policies, and what they have in common with those about vNICs.

use super::vnic::{OperationRate, PolicyOptions, Rate, changes, ops_limit, rate_limit};
use super::{AdoptionValue, VnicOptions};
use clap::{Args, Subcommand, ValueEnum};
use omniverb_session::tc_units::{operations, size};
use std::net::IpAddr;
use std::path::PathBuf;

/// What there is to do with objects of one kind.
#[derive(Debug, Subcommand)]
pub enum TenantCommand {
    /// Make a tenant.
    ///
    /// The devices of two tenants do not reach each other: neither links nor datagrams, requests of
    /// rdma_cm or carried sockets. Those of one tenant may map the pages of each other's memory
    /// regions. What is made so outlives the daemon. Needs the operators' socket.
    Create {
        /// The name of the tenant.
        name: String,
        #[command(flatten)]
        tenant: TenantOptions,
    },
    /// Change a tenant, and every device that belongs to it. Needs the operators' socket.
    #[command(group = changes(&["adoption", "rate", "burst", "ops", "encryption", "key_file",
        "key_lifetime", "underlay", "underlay_prefix", "address_prefix", "mtu"]))]
    Set {
        /// The name of the tenant.
        name: String,
        #[command(flatten)]
        tenant: TenantOptions,
    },
    /// Show a tenant. Needs the operators' socket.
    Show {
        /// The name of the tenant.
        name: String,
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Delete a tenant that no device belongs to. Needs the operators' socket.
    Delete {
        /// The name of the tenant.
        name: String,
    },
    /// List tenants. Needs the operators' socket.
    List {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
}

/// What holds for the devices of a tenant.
#[derive(Clone, Debug, Default, Args)]
pub struct TenantOptions {
    /// Whether devices of the tenant may map the pages of each other's memory regions
    /// [default: trusting].
    #[arg(long, value_name = "MODE")]
    pub adoption: Option<AdoptionValue>,
    /// Whether packets between devices of the tenant on different hosts are encrypted
    /// [default: none].
    #[arg(long, value_name = "HOW")]
    pub encryption: Option<EncryptionValue>,
    /// The file with the tenant's key, of mode 0600: 32 hexadecimal digits, the same on all hosts.
    #[arg(long, value_name = "PATH")]
    pub key_file: Option<PathBuf>,
    /// Seconds after which the keys of packets change, 1 to 86400 [default: 3600].
    #[arg(long, value_name = "SECONDS")]
    pub key_lifetime: Option<u32>,
    /// What all devices of the tenant may send together: 8kbit to 1000tbit, or none.
    ///
    /// It holds beside the rates of single devices and policies. All devices of a tenant with a
    /// rate are forwarded.
    #[arg(long, value_parser = rate_limit)]
    pub rate: Option<Rate>,
    /// How much they may send at once above the rate: 1500 bytes to 1g. Needs a rate.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub burst: Option<u64>,
    /// How many operations they may begin together per second: 1/s to 1000m/s, or none.
    #[arg(long, value_name = "N", value_parser = ops_limit)]
    pub ops: Option<OperationRate>,
    /// The address of this host that packets of the tenant's devices carry: these have virtual
    /// addresses, and GIDs that only hosts with the tenant's key can read. Needs a key file.
    #[arg(long, value_name = "ADDRESS")]
    pub underlay: Option<IpAddr>,
    /// The prefix in which the underlay addresses of all hosts are, of 56 bits or more: needed for
    /// an IPv6 underlay. The longer it is the sooner a forged GID shows.
    #[arg(long, value_name = "PREFIX")]
    pub underlay_prefix: Option<String>,
    /// The prefix in which the virtual addresses of the tenant's devices are. It makes forged GIDs
    /// show, too: both prefixes together have 88 bits or more for an IPv6 underlay.
    #[arg(long, value_name = "PREFIX")]
    pub address_prefix: Option<String>,
    /// Bytes of the largest packet on the underlay, on all hosts: 576 to 65535
    /// [default: 1500; 9000 if the underlay address is a loopback address].
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u32>,
}

/// By what packets between hosts are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EncryptionValue {
    /// They are in plain.
    None,
    /// By PSP, version 0: AES-GCM with keys of 128 bits, on UDP port 1000.
    Psp,
}

/// Rules of a policy.
#[derive(Clone, Debug, Default, Args)]
pub struct RuleOptions {
    /// One rule; all of the policy's rules are given anew, or `none`.
    ///
    /// DIRECTION ACTION OPERATIONS [from|to PEER] [port PORT] [priority NUMBER], as
    /// `ingress deny read,write from 10.0.0.0/8`. DIRECTION is `egress` for what the device asks of
    /// others, `ingress` for what they ask of it. ACTION is `accept` or `deny`. OPERATIONS are
    /// `all`, or some of connect, datagram, send, read, write, atomic. PEER is `any`, a prefix,
    /// `vnic NAME` or `policy NAME`. PORT is one that rdma_cm connects to. A lower NUMBER decides
    /// first; it is 100 by default. What no rule of a direction accepts is denied.
    #[arg(long = "rule", value_name = "RULE")]
    pub rules: Vec<String>,
}

/// What a policy has that a device has not.
#[derive(Clone, Debug, Default, Args)]
pub struct PolicyMode {
    /// Whether the rate and the operations are for each device that has the policy, or for all of
    /// them together [default: each].
    #[arg(long)]
    pub mode: Option<ModeValue>,
    /// The address of this host that packets of its devices carry between hosts, or none for that
    /// of their tenant, which needs one. The daemon adds it to the interface that has the tenant's.
    #[arg(long, value_name = "ADDRESS", value_parser = policy_address)]
    pub underlay: Option<PolicyAddress>,
}

/// An address of a policy; `None` for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyAddress(pub Option<IpAddr>);

fn policy_address(text: &str) -> Result<PolicyAddress, String> {
    match text {
        "none" => Ok(PolicyAddress(None)),
        text => text
            .parse()
            .map(|address| PolicyAddress(Some(address)))
            .map_err(|_| format!("{text:?} is neither an address nor none")),
    }
}

/// What the processes of a device may ask of the daemon.
#[derive(Clone, Debug, Default, Args)]
pub struct ControlOptions {
    /// How many control operations each device may ask for per second: 1/s to 1000000/s, or none.
    ///
    /// Those are what makes or connects queue pairs, regions with remote access, groups and ids of
    /// rdma_cm; what ends something is free. A tenth of a second's worth may come at once. What is
    /// over the rate waits for its turn, up to a second; then it fails with EAGAIN. Other devices
    /// do not notice.
    #[arg(long, value_name = "N/s", value_parser = operation_rate)]
    pub control_rate: Option<OperationRate>,
    /// How many queue pairs each device may make per second, beside the control rate, or none.
    #[arg(long, value_name = "N/s", value_parser = operation_rate)]
    pub qp_rate: Option<OperationRate>,
    /// How many queue pairs each device may have, or none for what all may; then ibv_create_qp
    /// fails with ENOMEM.
    #[arg(long, value_name = "COUNT", value_parser = queue_pairs)]
    pub queue_pairs: Option<QueuePairs>,
}

/// How many queue pairs; `None` for what all may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairs(pub Option<u32>);

fn operation_rate(text: &str) -> Result<OperationRate, String> {
    if text == "none" { Ok(OperationRate(0)) } else { operations(text).map(OperationRate) }
}

fn queue_pairs(text: &str) -> Result<QueuePairs, String> {
    match text {
        "none" => Ok(QueuePairs(None)),
        text => text
            .parse()
            .map(|count| QueuePairs(Some(count)))
            .map_err(|_| format!("{text:?} is neither a number of queue pairs nor none")),
    }
}

/// To what the rate and the operations of a policy apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeValue {
    /// To each device that has the policy.
    Each,
    /// To all devices that have the policy, together.
    Shared,
}

#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Make a policy: what holds for each device that has it.
    ///
    /// What is made so outlives the daemon. Needs the operators' socket.
    Create {
        /// The name of the policy.
        name: String,
        #[command(flatten)]
        mode: PolicyMode,
        #[command(flatten)]
        policy: PolicyOptions,
        #[command(flatten)]
        control: ControlOptions,
        #[command(flatten)]
        rules: RuleOptions,
    },
    /// Change a policy, and every device that has it. Needs the operators' socket.
    #[command(group = changes(&[
        "mode", "underlay", "datapath", "rate", "burst", "ops", "adoption", "faults",
        "control_rate", "qp_rate", "queue_pairs", "rules",
    ]))]
    Set {
        /// The name of the policy.
        name: String,
        #[command(flatten)]
        mode: PolicyMode,
        #[command(flatten)]
        policy: PolicyOptions,
        #[command(flatten)]
        control: ControlOptions,
        #[command(flatten)]
        rules: RuleOptions,
    },
    /// Show a policy. Needs the operators' socket.
    Show {
        /// The name of the policy.
        name: String,
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Delete a policy that no device has. Needs the operators' socket.
    Delete {
        /// The name of the policy.
        name: String,
    },
    /// List policies. Needs the operators' socket.
    List {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
}

impl VnicOptions {
    /// Whether anything was said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let VnicOptions { tenant, policies, attach, address, underlay, qpn_offset, qpns } = self;
        let is_placed = address.is_some() || underlay.is_some() || qpn_offset.is_some();
        tenant.is_none() && policies.is_empty() && attach.is_none() && !is_placed && qpns.is_none()
    }
}
