//! Defines the command line of `omniverb`.
//!
//! Its comments are what `--help` and the man pages say.
#![expect(missing_docs, reason = "comments are texts for users here")]

mod tenant_and_policy;
mod top;
mod vm;
mod vnic;

use clap::{Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
pub use tenant_and_policy::{
    ControlOptions, EncryptionValue, ModeValue, PolicyAddress, PolicyCommand, PolicyMode,
    QueuePairs, RuleOptions, TenantCommand, TenantOptions,
};
pub use top::{TopOptions, TopOrder};
pub use vm::{InPlace, VmCommand, WindowMode, WindowOptions};
pub use vnic::{
    AdoptionValue, DatapathValue, FaultList, OperationRate, PolicyOptions, Rate, VnicCommand,
    VnicOptions,
};

/// Bytes of a packet that a capture keeps by default: all.
const SNAP_BYTES: u32 = 65536;

/// Software RDMA devices for programs, containers and virtual machines.
///
/// Runs programs on a virtual RDMA device, shows and changes the devices of this host, and finds
/// what is wrong where one does not work.
#[derive(Debug, Parser)]
#[command(name = "omniverb", version)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program on the virtual RDMA device.
    Run {
        /// Load the library before the program's own copy of libibverbs.
        #[arg(long)]
        preload: bool,
        /// Also preload the library that stands before the program's calls of sockets.
        ///
        /// With `carry`, which is meant if nothing is said, bytes of TCP connections between two
        /// programs of this host that both have it go through memory that the two share. With
        /// `light` connections of two programs of this host that both have it have no socket of
        /// the kernel's at all, and cannot be handed on to children or other programs; with
        /// `carry` those to addresses that the daemon's configuration names (`sockets_light`), or
        /// OMNIVERB_SOCKETS_LIGHT. With `pass` all sockets are the kernel's, as without it.
        #[arg(
            long, value_name = "MODE", num_args = 0..=1, require_equals = true,
            default_missing_value = "carry"
        )]
        sockets: Option<SocketMode>,
        /// How the program is shown /sys/class/infiniband and /dev/infiniband, where many look
        /// before they ask the library.
        #[arg(long, value_name = "MODE", default_value = "preload")]
        present: PresentMode,
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Bring light connections of this network namespace to other hosts, over RDMA.
    ///
    /// One runs in each network namespace, or container, whose programs are to have that, on both
    /// hosts. Programs of the same user that have light connections, by `run --sockets=light` or
    /// the configuration's `sockets_light`, have them with those of other hosts then; of all users
    /// if this may open raw sockets (CAP_NET_RAW). The first connection to an address, and one now
    /// and then, is TCP, which proves that the network would bring them there; so are all for
    /// which there is no gateway on the other host. When the path is lost those that are light end.
    Gateway {
        /// The port of rdma_cm where gateways listen for each other [default: 7473].
        #[arg(long)]
        port: Option<u16>,
        /// Print which connections are brought where, and what becomes of them.
        #[arg(long, short)]
        verbose: bool,
        /// To which addresses: ADDRESS[/BITS][:PORT[-PORT]]; 0.0.0.0/0 are all of IPv4.
        #[arg(required = true, value_name = "RANGE")]
        to: Vec<String>,
    },
    /// Show virtual devices, processes, queue pairs, their peers and paths.
    ///
    /// A queue pair's path is `direct` (a link between the two processes; one-sided operations may
    /// be mapped or mediated), `forwarded` (through the daemon, to a peer of this host), `wire`
    /// (through the daemon and the network, to another Omniverb), `carried` (by the process itself
    /// and the network, to another Omniverb) or `roce` (through the daemon, to any other RoCE v2
    /// device there). The last column gives the reason. Users that may open the operators'
    /// socket are shown all network namespaces, others their own.
    Status {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Show virtual devices by what they send and receive, again and again.
    ///
    /// On a terminal until q is pressed: s sorts by another column, arrows and page keys scroll.
    /// Without a terminal, or with --batch, --once or --json, it prints tables or JSON. Rates are
    /// those of the time since the table before. Limits, of bits and of operations, are the least
    /// that hold for the device; drops are packets that the daemon could not send and those that
    /// faults dropped. Needs the operators' socket: root where the daemon runs, or the daemon's
    /// own user.
    Top(TopOptions),
    /// Show or change virtual devices: tenant, datapath, rate, faults.
    #[command(subcommand)]
    Vnic(VnicCommand),
    /// Show or change tenants, which do not reach each other.
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// Show or change policies, which devices have in common.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Have the daemon read its configuration file again.
    ///
    /// Tenants, policies, devices, and the general datapath and adoption are as the file says then,
    /// also for links that exist; other keys need a restart of the daemon. If anything in the file
    /// is wrong, nothing changes. SIGHUP does the same. Needs the operators' socket.
    Reload,
    /// Write the packets of a virtual device into a file for Wireshark or tcpdump.
    ///
    /// Captures until it is interrupted. Packets are those that the daemon sends and receives on
    /// UDP port 4791 for this device, and those that it forwards within the host. What travels on
    /// direct links shows as the packets that it stands for, answers included, numbered from the
    /// queue pair's first PSN on: each process with an end of such a link reports, while a capture
    /// runs, what it requests there. Links that exist show from then on. Programs do not wait for
    /// this: what they cannot report in time is dropped, and counted when the capture ends.
    ///
    /// The file is the user's alone (mode 0600). One that exists is overwritten if it is a regular
    /// file of the user's; a symbolic link is not followed. Needs the operators' socket: root where
    /// the daemon runs, or the daemon's own user.
    Capture {
        /// The device, as `omniverb vnic list` shows it, or pid:N for that of process N [default:
        /// that of the daemon's own network namespace].
        #[arg(short = 'i', long, value_name = "NAME")]
        vnic: Option<String>,
        /// The file; `-` is standard output [default: standard output, if it is no terminal].
        #[arg(short = 'w', long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Keep at most so many bytes of each packet, Ethernet header included; at least 128.
        #[arg(short, long, value_name = "BYTES", default_value_t = SNAP_BYTES)]
        snaplen: u32,
    },
    /// Keep a folder with what programs read of their device besides asking the library.
    ///
    /// In it are sys/class/infiniband, sys/class/infiniband_verbs and dev/infiniband as sysfs and
    /// devtmpfs would have them, for the device of the network namespace that this runs in.
    /// Counters and addresses are brought up to date every second, until this is interrupted.
    /// `omniverb run` does this by itself; the folder is for programs in containers that are
    /// started otherwise: OMNIVERB_PRESENTED names it to libomniverb_paths.so, preloaded, which
    /// leads the usual paths there.
    Present {
        /// The folder; it is made.
        folder: PathBuf,
        /// Write it once.
        #[arg(long)]
        once: bool,
        /// For `omniverb run`: start a process that keeps it for this program, and for others that
        /// come later.
        #[arg(long = "for", value_name = "PID", hide = true)]
        start: Option<i32>,
        /// For the same: be that process.
        #[arg(long, value_name = "PID", hide = true)]
        keep: Option<i32>,
    },
    /// Show or change the tenants, policies and devices that hosts have from etcd.
    ///
    /// Runs `omniverb-agent`: `apply`, `get`, `diff`, `delete`, `hosts` and their options are in
    /// `omniverb-agent --help`.
    #[command(disable_help_flag = true)]
    Cluster {
        /// The command, and its options.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Give virtual machines a device.
    #[command(subcommand)]
    Vm(VmCommand),
    /// Serve the processes of a virtual machine; runs in the machine.
    ///
    /// For a machine that was started by `omniverb vm run` or with the options of `omniverb vm
    /// args`. Listens where the daemon of a host would, and passes on what processes say to the
    /// daemon of the host that the machine runs on. Needs the machine's devices, and so root.
    Agent {
        /// Where to listen [default: where the daemon of a host does].
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
        /// Processes whose memory the host may read and write in place, without asking the process.
        ///
        /// Needs a machine that was started with --shared-memory. `root` means processes of root
        /// with all capabilities. A process that lies to the agent can have memory of the machine
        /// overwritten that is not its own.
        #[arg(long, value_name = "PROCESSES", default_value = "nobody")]
        in_place: InPlace,
    },
    /// Find what is wrong, one line a finding, and how to mend it.
    ///
    /// Exits with 1 if something is wrong.
    Doctor {
        /// Also check how this program would find the library, and whether its sockets can be
        /// carried.
        program: Option<OsString>,
    },
}

/// How a program's calls of sockets are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SocketMode {
    /// All sockets are the kernel's.
    Pass,
    /// Bytes of TCP connections go through shared memory.
    Carry,
    /// Connections have no socket of the kernel's; they cannot be handed on.
    Light,
}

/// How a program is shown its device's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PresentMode {
    /// By a preloaded library.
    #[default]
    Preload,
    /// By mounts of the program's own, which static programs see, too; by the library where mounts
    /// are not allowed.
    Mounts,
    /// Not at all.
    Off,
}
