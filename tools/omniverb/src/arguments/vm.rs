//! Defines the commands about virtual machines, and their options.

use clap::{Args, Subcommand, ValueEnum};
use omniverb_session::tc_units::size;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub enum VmCommand {
    /// Start a virtual machine that has a device, `vm-NAME`.
    ///
    /// Attaches the machine to the daemon and becomes QEMU, with the options that the machine needs
    /// for it: a window of memory (virtio-pmem) and a port (virtio-serial). In the machine,
    /// `omniverb agent` serves its processes. The device is there as long as QEMU runs. Needs the
    /// operators' socket: root where the daemon runs, or the daemon's own user.
    Run {
        /// The machine's name: letters, digits, `-`, `_` and `.`.
        name: String,
        #[command(flatten)]
        windows: WindowOptions,
        /// Share all of the machine's memory with the daemon, and with no other process.
        ///
        /// What peers that are reached by the engine do to memory regions is done without asking
        /// the machine's processes then, and pages stay where they are, if the agent is told so
        /// (`omniverb agent --in-place`). QEMU's memory is made here (-m says how much), of a pc or
        /// q35, and QEMU ends when the guest is reset.
        #[arg(long)]
        shared_memory: bool,
        /// QEMU and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// List attached machines.
    List {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Show one attached machine.
    Show {
        /// The machine's name.
        name: String,
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Take a machine's device away. It runs on; its processes see that the daemon is gone.
    Detach {
        /// The machine's name.
        name: String,
    },
    /// Attach a machine, and print the options of QEMU that give it its device.
    ///
    /// Until QEMU has been started with them, and has ended, or `omniverb vm detach`, a process
    /// keeps the machine's window, which is for one start only. QEMU has to run as the user
    /// that is said here, on this host, and outside containers, since it opens the window by way
    /// of that process.
    Args {
        /// The machine's name: letters, digits, `-`, `_` and `.`.
        name: String,
        #[command(flatten)]
        windows: WindowOptions,
        /// How much memory the machine has, at most: QEMU makes room for the window beyond it.
        #[arg(long, value_name = "SIZE", default_value = "32g", value_parser = size)]
        memory: u64,
        /// The user that runs QEMU: a name, or UID:GID [default: the user that runs this].
        #[arg(long)]
        user: Option<String>,
        /// Print what a domain of libvirt needs instead. Its user is `libvirt-qemu` in Debian.
        #[arg(long)]
        libvirt: bool,
    },
    /// For `omniverb vm run` and `args`: have what a machine needs, and start proxies.
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
        whose: InPlace,
        /// Where the one before and the one after this are found.
        folder: PathBuf,
    },
}

#[derive(Debug, Args)]
pub struct WindowOptions {
    /// How much memory its processes may share with others; what they do not use costs nothing.
    #[arg(long, value_name = "SIZE", default_value = "256m", value_parser = size)]
    pub window: u64,
    /// With how many neighbours, containers or others of this host, it may share memory.
    ///
    /// These windows are for links that do not pass through the daemon. A neighbour that has one
    /// keeps it as long as the machine runs, and can write what a guest's kernel reads when it
    /// boots afresh.
    #[arg(long, value_name = "N", default_value = "0",
          value_parser = clap::value_parser!(u8).range(0..=60))]
    pub neighbours: u8,
    /// The same, with windows that are plugged in while it runs, as they are wanted: so many at
    /// most [default: as many as --neighbours says].
    ///
    /// Those of other machines are among them with which it shares memory from the second
    /// connection on; such a machine's guest may have written what this one's kernel reads when it
    /// is plugged in.
    #[arg(long, value_name = "N", default_value = "0", hide_default_value = true,
          value_parser = clap::value_parser!(u8).range(0..=60))]
    pub most_neighbours: u8,
    /// How much memory it shares with each: about 640 KiB for a link.
    #[arg(long, value_name = "SIZE", default_value = "8m", value_parser = size)]
    pub pair_size: u64,
    /// How windows for neighbours come into the machine.
    ///
    /// `mapped` takes QEMU 11.1 or newer and a guest with Linux 6.9 or newer (else they are plugged
    /// in); `plugged` makes each a device of its own. A window that is mapped goes again when its
    /// neighbour is gone and there is no slot left. QEMU plugs in few other devices with memory,
    /// then; and a process of the guest that has a link in one can read and write them all, links
    /// of other processes and neighbours included. `auto` maps where QEMU is new enough, ends at a
    /// reset anyway and is not told to use KVM.
    #[arg(long, value_name = "MODE", default_value = "auto", hide_possible_values = true)]
    pub windows: WindowMode,
}

/// How windows for neighbours come into a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WindowMode {
    /// Mapped, where that is known to work.
    Auto,
    /// Mapped into one device.
    Mapped,
    /// Plugged in, each as a device of its own.
    Plugged,
}

/// Processes of a machine whose memory the host may use in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InPlace {
    /// That of no process.
    Nobody,
    /// That of processes of root with all capabilities, which may write the kernel's memory anyway.
    Root,
    /// That of all processes.
    All,
}
