//! `omniverb`: runs programs on their virtual RDMA device, shows who uses one, and says what is
//! wrong when it does not work.
#![forbid(unsafe_code)]

mod capture;
mod client;
mod daemon;
mod doctor;
mod elf;
mod library;
mod operator;
mod output;
mod pages;
mod present;
mod program;
mod run;
mod sockets;
mod status;
mod table;
mod vm;
mod vnic;

use clap::{Parser, Subcommand};
use omniverb_session::printable;
use present::{Task, Way, rdma};
use run::Sockets;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Bytes of a packet that a capture keeps unless told otherwise: all.
const SNAP_BYTES: u32 = 65536;
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
        /// Also preload the library that stands before the program's calls of sockets.
        ///
        /// With `carry`, which is meant if nothing is said, bytes of TCP connections between two
        /// programs of this host that both have it go through memory that the two share. With
        /// `light` connections of two programs of one network namespace that both have it have no
        /// socket of the kernel's at all, and cannot be handed on to children or other programs;
        /// with `carry` those to addresses that the daemon's configuration names (`sockets_light`),
        /// or OMNIVERB_SOCKETS_LIGHT. With `pass` all sockets are the kernel's, as without it.
        #[arg(
            long, value_name = "WAY", num_args = 0..=1, require_equals = true,
            default_missing_value = "carry"
        )]
        sockets: Option<Sockets>,
        /// How the program is shown /sys/class/infiniband and /dev/infiniband, where many look
        /// before they ask the library.
        #[arg(long, value_name = "HOW", default_value = "preload")]
        present: Way,
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Bring light connections of this network namespace to other hosts, over RDMA, until ended.
    ///
    /// One runs in each network namespace, or container, whose programs are to have that, on both
    /// hosts. Programs of the same user that have light connections, by `run --sockets=light` or
    /// the configuration's `sockets_light`, have them with those of other hosts then; of all users
    /// if this may open raw sockets (CAP_NET_RAW). The first connection to an address, and one now
    /// and then, is TCP, which proves that the network would bring them there; so are all for
    /// which there is no gateway on the other host. When the way is lost those that are light end.
    Gateway {
        /// The port of rdma_cm where gateways listen for each other [default: 7473].
        #[arg(long)]
        port: Option<u16>,
        /// Say who is brought where, and what becomes of it.
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
    /// (through the daemon and the network, to another Omniverb) or `roce` (the same, to whatever
    /// else speaks RoCE v2 there). The last column says why it is that one. Who may open the
    /// daemon's socket for operators is shown all network namespaces, others their own.
    Status {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show or change what holds for a virtual device: its datapath, its rate, its faults.
    #[command(subcommand)]
    Vnic(Vnic),
    /// Write the packets of a virtual device into a file for Wireshark or tcpdump, until
    /// interrupted.
    ///
    /// Packets are those that the daemon sends and receives on UDP port 4791 for this device, and
    /// those that it forwards within the host. What travels on direct links shows as the packets
    /// that it stands for, answers included, numbered from the queue pair's first PSN on: each
    /// process with an end of such a link tells, while somebody captures, what it requests there.
    /// Links that exist show from then on. Programs do not wait for this: what they cannot tell in
    /// time is dropped, and counted when the capture ends. The file is the user's alone (mode
    /// 0600); one that exists is overwritten if it is a regular file of the user's, and a symbolic
    /// link is not followed. Needs the daemon's socket for operators: root where it runs, or its
    /// own user.
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
    /// Virtual machines that have a device.
    #[command(subcommand)]
    Vm(Vm),
    /// In a virtual machine that was started by `omniverb vm run`: serve its processes.
    ///
    /// Listens where the daemon of a host would, and passes on what processes say to the daemon of
    /// the host that the machine runs on. Needs the machine's devices, and so root.
    Agent {
        /// Where to listen [default: where the daemon of a host does].
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
        /// Whose memory the host may read and write where it is, without asking the process, if the
        /// machine was started with --shared-memory: nobody's, that of root's processes with all of
        /// root's rights, or of all. A process that lies to the agent can have memory of the
        /// machine overwritten that is not its own.
        #[arg(long, value_name = "WHOSE", default_value = "nobody")]
        in_place: vm::Whose,
    },
    /// Say what is wrong, one line a finding, and how to mend it.
    Doctor {
        /// Also look at how this program would find the library, and whether its sockets can be
        /// carried.
        program: Option<OsString>,
    },
}

#[derive(Debug, Subcommand)]
enum Vm {
    /// Start a virtual machine that has a device, `vm-NAME`.
    ///
    /// Attaches the machine to the daemon and becomes QEMU, with the options that the machine needs
    /// for it: a window of memory (virtio-pmem) and a port (virtio-serial). In the machine,
    /// `omniverb agent` serves its processes. The device is there as long as QEMU runs. Needs the
    /// daemon's socket for operators: root where it runs, or its own user.
    Run {
        /// What the machine is called: letters, digits, `-`, `_` and `.`.
        name: String,
        /// How much memory its processes may share with others; what they do not use costs nothing.
        #[arg(long, value_name = "SIZE", default_value = "256m")]
        window: String,
        /// With how many neighbours, containers or others of this host, it may share memory, for
        /// links that do not pass through the daemon. One that has such a window keeps it as long
        /// as the machine runs, and can write what a guest's kernel reads when it boots afresh.
        #[arg(long, value_name = "N", default_value = "0",
              value_parser = clap::value_parser!(u8).range(0..=60))]
        neighbours: u8,
        /// The same, with windows that are plugged in while it runs, as they are wanted: so many at
        /// most [default: as many as --neighbours says]. Those of other machines are among them
        /// with which it shares memory from the second connection on; such a machine's guest may
        /// have written what this one's kernel reads when it is plugged in.
        #[arg(long, value_name = "N", default_value = "0", hide_default_value = true,
              value_parser = clap::value_parser!(u8).range(0..=60))]
        most_neighbours: u8,
        /// How much memory it shares with each: about 640 KiB for a link.
        #[arg(long, value_name = "SIZE", default_value = "8m")]
        pair_size: String,
        /// How windows for neighbours come into the machine: mapped, which takes QEMU 11.1 or newer
        /// and a guest with Linux 6.9 or newer (else they are plugged in), or plugged in. One that
        /// is mapped goes again when its neighbour is gone and there is no place left. QEMU plugs
        /// in few other devices with memory, then; and a process of the guest that has a link in
        /// one can read and write them all, links of other processes and neighbours included. auto
        /// maps where QEMU is new enough, ends at a reset anyway and is not told to use KVM.
        #[arg(long, value_name = "WAY", default_value = "auto", hide_possible_values = true)]
        windows: vm::Way,
        /// Share all of the machine's memory with the daemon, and with nobody else: so what peers
        /// that are reached by the engine do to memory regions is done without asking the machine's
        /// processes, and pages stay where they are, if the agent in it is told so (`omniverb agent
        /// --in-place`). QEMU's memory is made here then (-m says how much), of a pc or q35, and
        /// QEMU ends when the guest is reset.
        #[arg(long)]
        shared_memory: bool,
        /// QEMU and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Show the machines that are attached.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show one of them.
    Show {
        /// What it is called.
        name: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Take a machine's device away. It runs on; its processes see that the daemon is gone.
    Detach {
        /// What it is called.
        name: String,
    },
    /// Attach a machine, and print the options that give it its device, for who starts QEMU.
    ///
    /// Until QEMU has been started with them, and has ended, or `omniverb vm detach`, a process
    /// keeps the machine's window, which is for one start only. QEMU has to run as the user
    /// that is said here, on this host, and outside containers, since it opens the window by way
    /// of that process.
    Args {
        /// What the machine is called: letters, digits, `-`, `_` and `.`.
        name: String,
        /// How much memory its processes may share with others; what they do not use costs nothing.
        #[arg(long, value_name = "SIZE", default_value = "256m")]
        window: String,
        /// With how many neighbours, containers or others of this host, it may share memory, for
        /// links that do not pass through the daemon. One that has such a window keeps it as long
        /// as the machine runs, and can write what a guest's kernel reads when it boots afresh.
        #[arg(long, value_name = "N", default_value = "0",
              value_parser = clap::value_parser!(u8).range(0..=60))]
        neighbours: u8,
        /// The same, with windows that are plugged in while it runs, as they are wanted: so many at
        /// most [default: as many as --neighbours says]. Those of other machines are among them
        /// with which it shares memory from the second connection on; such a machine's guest may
        /// have written what this one's kernel reads when it is plugged in.
        #[arg(long, value_name = "N", default_value = "0", hide_default_value = true,
              value_parser = clap::value_parser!(u8).range(0..=60))]
        most_neighbours: u8,
        /// How much memory it shares with each: about 640 KiB for a link.
        #[arg(long, value_name = "SIZE", default_value = "8m")]
        pair_size: String,
        /// How windows for neighbours come into the machine: mapped, which takes QEMU 11.1 or newer
        /// and a guest with Linux 6.9 or newer (else they are plugged in), or plugged in. One that
        /// is mapped goes again when its neighbour is gone and there is no place left. QEMU plugs
        /// in few other devices with memory, then; and a process of the guest that has a link in
        /// one can read and write them all, links of other processes and neighbours included. auto
        /// maps where QEMU is new enough, ends at a reset anyway and is not told to use KVM.
        #[arg(long, value_name = "WAY", default_value = "auto", hide_possible_values = true)]
        windows: vm::Way,
        /// How much memory the machine has, at most: QEMU makes room for the window beyond it.
        #[arg(long, value_name = "SIZE", default_value = "32g")]
        memory: String,
        /// Who runs QEMU: a name, or UID:GID [default: who runs this].
        #[arg(long)]
        user: Option<String>,
        /// Print what a domain of libvirt needs instead. Its user is `libvirt-qemu` in Debian.
        #[arg(long)]
        libvirt: bool,
    },
    /// For `omniverb vm run` and `args`: have what a machine needs, and start porters.
    #[command(hide = true)]
    Keep {
        name: String,
        /// Of its window.
        bytes: u64,
        /// How many pair windows it has, and how many bytes each.
        #[arg(long, default_value = "0")]
        neighbours: u8,
        /// With those that are plugged in later.
        #[arg(long, default_value = "0")]
        most: u8,
        #[arg(long, default_value = "0")]
        pair_bytes: u64,
        /// How these come into it.
        #[arg(long)]
        windows: String,
        /// Of its own memory, if the daemon is to have it.
        #[arg(long)]
        memory: Option<u64>,
        /// Who is to open the window.
        #[arg(long)]
        user: Option<String>,
        /// It has nothing of its starter's any more.
        #[arg(long)]
        alone: bool,
    },
    /// For `omniverb vm args`: have a window that QEMU may open.
    #[command(hide = true)]
    Hold,
    /// For the same: pass on what a machine says.
    #[command(hide = true)]
    Carry {
        /// That of its window.
        number: u64,
        /// The descriptor by which others of its pair windows come.
        more: Option<i32>,
        /// Descriptors of its pair windows, those of other machines' with a `+` before them.
        pairs: Vec<String>,
    },
    /// For who keeps a machine: plug a window into it.
    #[command(hide = true)]
    Plug {
        /// The pair window's.
        number: u8,
        /// How large it is.
        bytes: u64,
    },
    /// For the same: map windows into it.
    #[command(hide = true)]
    Map {
        /// How large each place is.
        bytes: u64,
        /// How many there are.
        count: u8,
    },
    /// For `omniverb agent`: open devices that are plugged in.
    #[command(hide = true)]
    Open,
    /// For the same: keep pages of processes where they are.
    #[command(hide = true)]
    Pin {
        /// Whose pages they may be.
        whose: vm::Whose,
        /// Where the one before and the one after this are found.
        folder: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
enum Vnic {
    /// Change a virtual device: rate RATE|none, burst SIZE, datapath direct|forwarded, faults
    /// FAULTS|none.
    ///
    /// Rates and sizes are written as for tc(8): 300mbit, 1.5gbit, 20mbps (bytes per second); 64k,
    /// 1m. A rate bounds what the device sends, whatever its processes do. It can be changed while
    /// traffic flows: no operation is lost. A device with a rate is forwarded, since only what
    /// passes through the daemon can be held back; links that exist keep the path they have, and
    /// the answer says how many direct ones there are.
    ///
    /// Faults are those of a bad network, for tests. They happen to packets that arrive for the
    /// device, from the wire or forwarded; set them at both ends for both directions. They are one
    /// word, as tc-netem(8) writes them but with commas: loss=1%,duplicate=0.5%,reorder=1%,
    /// corrupt=0.1%,mark=1%,delay=2ms,jitter=1ms,limit=1000,seed=7. A packet that is reordered
    /// arrives behind others, one that is corrupted is found out by its check and dropped, and
    /// mark is the mark "congestion experienced". More packets than the limit are not delayed at a
    /// time, but lost. The same seed decides the same about the same packets. `faults none` ends
    /// it at once. A device with faults is forwarded, as one with a rate.
    ///
    /// Adoption says whether processes may map the pages of each other's memory regions: exact (or
    /// on), where page protection expresses just what a region's access flags allow; trusting, also
    /// where it expresses more, if both devices say so; off, never. What was mapped before is taken
    /// back, and everything goes on through the processes themselves.
    ///
    /// What is set holds while the network namespace exists and the daemon runs; for longer, use
    /// the daemon's configuration file. Needs the daemon's socket for operators: root where it
    /// runs, or its own user.
    Set {
        /// The device, as `omniverb vnic list` shows it, or pid:N for that of process N.
        #[arg(value_name = "NAME")]
        name: String,
        /// What to change, in pairs.
        #[arg(value_name = "WHAT VALUE", required = true)]
        words: Vec<String>,
    },
    /// End all links of a virtual device at once.
    ///
    /// Its connected queue pairs, and their peers, fail as when the network between them has gone.
    /// Whoever connects again has the network asked first: to keep the two apart, have the network
    /// do so before.
    Disconnect {
        /// The device, as `omniverb vnic list` shows it, or pid:N for that of process N.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Show all virtual devices, their datapaths, adoption, rates and faults.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let (result, failure) = match rdma::is_meant(words.next().as_ref()) {
        true => (rdma::answer(&words.collect::<Vec<_>>()), 1),
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
        Command::Vnic(Vnic::Set { name, words }) => (vnic::set(&name, &words), 1),
        Command::Vnic(Vnic::Disconnect { name }) => (vnic::disconnect(&name), 1),
        Command::Vnic(Vnic::List { json }) => (vnic::list(json), 1),
        Command::Vm(Vm::Run {
            name,
            window,
            neighbours,
            most_neighbours,
            pair_size,
            windows,
            shared_memory,
            command,
        }) => {
            let (own, most, pair) = (&window[..], most_neighbours, &pair_size[..]);
            let windows = vm::Windows { own, neighbours, most, pair, way: windows };
            (vm::run(&name, windows, shared_memory, &command), OWN_FAILURE)
        }
        Command::Vm(Vm::List { json }) => (vm::list(None, json), 1),
        Command::Vm(Vm::Show { name, json }) => (vm::list(Some(&name), json), 1),
        Command::Vm(Vm::Detach { name }) => (vm::detach(&name), 1),
        Command::Vm(Vm::Args {
            name,
            window,
            neighbours,
            most_neighbours,
            pair_size,
            windows,
            memory,
            user,
            libvirt,
        }) => {
            let (own, most, pair) = (&window[..], most_neighbours, &pair_size[..]);
            let windows = vm::Windows { own, neighbours, most, pair, way: windows };
            (vm::args(&name, windows, &memory, user.as_deref(), libvirt), 1)
        }
        Command::Vm(Vm::Keep {
            name,
            bytes,
            neighbours,
            most,
            pair_bytes,
            windows,
            memory,
            user,
            alone,
        }) => {
            let pairs = vm::Neighbours { count: neighbours, most, bytes: pair_bytes };
            (vm::keep(&name, (bytes, pairs, memory), &windows, user.as_deref(), alone), 1)
        }
        Command::Vm(Vm::Hold) => (vm::hold(), 1),
        Command::Vm(Vm::Carry { number, more, pairs }) => (vm::carry(number, more, &pairs), 1),
        Command::Vm(Vm::Plug { number, bytes }) => (vm::plug(number, bytes), 1),
        Command::Vm(Vm::Map { bytes, count }) => (vm::map(bytes, count), 1),
        Command::Vm(Vm::Open) => (vm::open(), 1),
        Command::Vm(Vm::Pin { whose, folder }) => (vm::pin(whose, &folder), 1),
        Command::Agent { socket, in_place } => (vm::agent(socket.as_deref(), in_place), 1),
        Command::Capture { vnic, file, snaplen } => {
            (capture::capture(vnic.as_deref(), file.as_deref(), snaplen), 1)
        }
        Command::Doctor { program } => (doctor::doctor(program.as_deref()), 1),
    }
}
