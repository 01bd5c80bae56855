//! Defines the command line of `omniverb-agent`.
//!
//! Its comments are what `--help` and the man pages say.
#![expect(missing_docs, reason = "comments are texts for users here")]

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Seconds after which a host that is gone is forgotten.
const LEASE_SECONDS: i64 = 30;

/// Tenants, policies and devices of many hosts, from etcd.
///
/// `omniverb-agent cluster` runs on each host. The other commands are for people, who reach them as
/// `omniverb cluster` too.
#[derive(Debug, Parser)]
#[command(name = "omniverb-agent", version)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Keep this host's tenants, policies and devices as the cluster has them.
    ///
    /// Reads all objects from etcd, gives them to the daemon by its operators' socket, and watches
    /// etcd for changes. What an operator of this host sets by command decides before them. They
    /// decide before the configuration file. If etcd cannot be reached, all stays as it is. One
    /// agent runs for each daemon.
    Cluster {
        #[command(flatten)]
        etcd: EtcdOptions,
        /// Take the objects from this file instead of etcd, and again when it changes.
        #[arg(short, long, value_name = "FILE", conflicts_with = "etcd_endpoints")]
        file: Option<PathBuf>,
        /// The name of this host in the cluster [default: its host name].
        #[arg(long, value_name = "NAME")]
        host: Option<String>,
        /// Seconds after which the entry of this host ends when the agent does not renew it.
        #[arg(
            long, value_name = "SECONDS", default_value_t = LEASE_SECONDS,
            value_parser = clap::value_parser!(i64).range(2..=3600)
        )]
        lease_seconds: i64,
        /// The operators' socket of the daemon [default: /run/omniverb-operator/omniverbd.sock].
        #[arg(long, value_name = "PATH")]
        operator_socket: Option<PathBuf>,
    },
    /// Give the cluster the objects of a file.
    ///
    /// The file has the tables `tenant`, `policy` and `vnic` of the daemon's configuration;
    /// `[host.NAME.vnic.NAME]` is for one host. Objects that the file does not have stay.
    Apply {
        #[command(flatten)]
        etcd: EtcdOptions,
        /// The file; `-` is standard input.
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Delete objects of the cluster that the file does not have.
        #[arg(long)]
        prune: bool,
    },
    /// Print the objects of the cluster as such a file.
    Get {
        #[command(flatten)]
        etcd: EtcdOptions,
        /// Write them into this file instead.
        #[arg(short, long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Print what `apply` would change, one line an object.
    ///
    /// Exits with 1 if there is something.
    Diff {
        #[command(flatten)]
        etcd: EtcdOptions,
        /// The file; `-` is standard input.
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// As of `apply`.
        #[arg(long)]
        prune: bool,
    },
    /// Delete an object of the cluster.
    Delete {
        #[command(flatten)]
        etcd: EtcdOptions,
        /// What it is.
        kind: ObjectKind,
        /// The name of the object.
        name: String,
        /// The one that is for this host only.
        #[arg(long, value_name = "NAME")]
        host: Option<String>,
    },
    /// List hosts whose agents run, and whether they have what the cluster has.
    Hosts {
        #[command(flatten)]
        etcd: EtcdOptions,
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// List the addresses of virtual networks that hosts announce.
    Addresses {
        #[command(flatten)]
        etcd: EtcdOptions,
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Make the file of a seal key, which all hosts of a cluster have in common.
    NewSealKey {
        /// The file, which must not exist.
        file: PathBuf,
    },
}

/// The kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ObjectKind {
    Tenant,
    Policy,
    Vnic,
}

/// How etcd is reached, as etcdctl has it.
#[derive(Clone, Debug, Args)]
pub struct EtcdOptions {
    /// The members of etcd: http://HOST:PORT or https://HOST:PORT.
    #[arg(
        long,
        value_name = "URL,...",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:2379"
    )]
    pub etcd_endpoints: Vec<String>,
    /// Certificates that the servers' are verified with [default: those of this machine].
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// The certificate that we show.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// The user, and the password unless a file has it.
    #[arg(long, value_name = "NAME[:PASSWORD]")]
    pub user: Option<String>,
    /// A file that has the user's password.
    #[arg(long, value_name = "FILE", requires = "user")]
    pub password_file: Option<PathBuf>,
    /// The file of the key that tenants' keys are sealed with in etcd.
    #[arg(long, value_name = "FILE")]
    pub seal_key_file: Option<PathBuf>,
}
