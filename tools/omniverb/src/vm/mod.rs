//! Implements `omniverb vm` (virtual machines with a device) and `omniverb agent` (runs in them).
//!
//! This file has the commands; the window, QEMU's options, the supervisor with its hotplug, and the
//! two ends of the port are in files beside it.

mod agent;
mod agent_windows;
mod create_guest_memory_file;
mod engine_wakes;
mod guest_address_message;
mod guest_window_discovery;
mod list_machines;
mod machine_folder;
mod machine_window;
mod own_boot_id;
mod page_pinner;
mod pair_window_mode;
mod pair_window_wakes;
mod pair_windows;
mod pin_requests;
mod privileged_device_opener;
mod proxy;
mod proxy_restart_delay;
mod qemu_atomics_check;
mod qemu_monitor;
mod qemu_options;
mod serial_port_multiplexer;
mod start_supervisor;
mod supervisor;
mod udp_port_relay;
mod vhost_user;
mod window_hotplug;
mod window_mapper;
mod window_mapper_process;
mod window_slots;

pub(crate) use agent::agent;
pub(crate) use list_machines::list;
pub(crate) use page_pinner::serve as pin;
pub(crate) use qemu_atomics_check::is_emulated_alone;

use crate::operator_connection::Operator;
use crate::{stdout, vnic};
use anyhow::{Context, bail};
use machine_folder::User;
pub(crate) use machine_window::Neighbours;
use machine_window::STEP;
use omniverb_session::vm::MachineName;
use omniverb_sys::{fd_inheritance, privileges};
pub(crate) use pair_window_mode::WindowMethod;
use pair_window_wakes::{Side, WakeBridge};
use proxy::PairWindows;
use qemu_options::{Maps, Plugged, Room};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use start_supervisor::MachineRequest;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Sessions of a machine at a time.
const SESSIONS_MAX: usize = 1024;
/// Descriptors that are not for sessions: the port, and what is on its way to processes.
const DESCRIPTORS_KEPT: u64 = 64;

fn name(text: &str) -> anyhow::Result<MachineName> {
    MachineName::new(text).with_context(|| {
        format!(
            "{text:?} cannot be the name of a machine: up to 28 letters, digits, `-`, `_` and `.`"
        )
    })
}

/// The windows of a machine, as people ask for them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    /// How large its own is to be.
    pub(crate) own: u64,
    /// How many it shares with neighbours from the beginning, and with those that are plugged in
    /// later, at most.
    pub(crate) neighbours: u8,
    pub(crate) most: u8,
    /// How large each of these is to be.
    pub(crate) pair: u64,
    /// How they come into the machine.
    pub(crate) way: WindowMethod,
}

/// The request for a machine, by the options.
fn wanted(windows: Windows) -> anyhow::Result<MachineRequest> {
    let Windows { own, neighbours: count, most, pair, way } = windows;
    let pairs = Neighbours { count, most: most.max(count), bytes: window_bytes(pair)? };
    // Where there are none to be, nothing is needed for them.
    let none = pairs.most == 0 || way == WindowMethod::Auto;
    let way = if none { WindowMethod::Plugged } else { way };
    Ok(MachineRequest { bytes: window_bytes(own)?, pairs, way, memory: None })
}

fn all_bytes(wanted: MachineRequest) -> u64 {
    let MachineRequest { bytes, pairs, .. } = wanted;
    bytes.saturating_add(pairs.bytes.saturating_mul(pairs.most.into()))
}

fn plugged(wanted: MachineRequest, index: usize, path: String) -> Plugged {
    Plugged { path, bytes: if index == 0 { wanted.bytes } else { wanted.pairs.bytes } }
}

/// Does not return if all goes well: QEMU takes our place.
/// `shared`: the daemon gets its memory.
pub(crate) fn run(
    text: &str,
    windows: Windows,
    shared: bool,
    command: &[OsString],
) -> anyhow::Result<ExitCode> {
    let Some((program, arguments)) = command.split_first() else {
        bail!("the command line of QEMU is missing: omniverb vm run NAME -- QEMU OPTIONS...")
    };
    let mut wanted = wanted(Windows { way: windows.way.with(program, arguments), ..windows })?;
    name(text)?;
    if shared {
        wanted.memory = Some(create_guest_memory_file::bytes(arguments, all_bytes(wanted))?);
    }
    let memory = qemu_options::memory(arguments, all_bytes(wanted))?;
    let room = Room { memory, processors: qemu_atomics_check::room(arguments)? };
    let kept = start_supervisor::start(text, wanted, None)?;
    let mut windows = Vec::new();
    for (index, file) in std::iter::once(&kept.window).chain(&kept.pairs).enumerate() {
        fcntl_setfd(file, FdFlags::empty())?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        windows.push(plugged(wanted, index, path));
    }
    let later = later(wanted, kept.monitor_path.as_deref());
    let more = (later, kept.mapped_path.as_deref().map(Maps));
    let mut words = qemu_options::words(&windows, &kept.port_path, room, more);
    if let (Some(file), Some(bytes)) = (&kept.memory, wanted.memory) {
        fcntl_setfd(file, FdFlags::empty())?;
        words.extend(create_guest_memory_file::words(
            &format!("/proc/self/fd/{}", file.as_raw_fd()),
            bytes,
        ));
    }
    let error = Command::new(program).args(arguments).args(words).exec();
    Err(error).with_context(|| program.to_string_lossy().into_owned())
}

/// Attaches a machine, and prints the options for QEMU, or the XML for libvirt, if the user starts
/// it. `memory`: how much it may have at most. `user`: the user of QEMU.
pub(crate) fn args(
    text: &str,
    windows: Windows,
    memory: u64,
    user: Option<&str>,
    libvirt: bool,
) -> anyhow::Result<ExitCode> {
    let mut wanted = wanted(windows)?;
    name(text)?;
    if libvirt && wanted.way == WindowMethod::Mapped {
        wanted.way = WindowMethod::MappedOnly;
    }
    if libvirt && wanted.has_monitor() {
        bail!(
            "libvirt has QEMU's monitor: nothing can be plugged in later but by it; with QEMU 11.1 \
             or newer --windows mapped needs none"
        );
    }
    let user = user.map(str::parse).transpose().map_err(anyhow::Error::msg)?;
    let kept = start_supervisor::start(text, wanted, Some(user.unwrap_or_else(User::ourselves)))?;
    let paths = std::iter::once(kept.window_path).chain(kept.pair_paths).enumerate();
    let windows: Vec<_> = paths.map(|(index, path)| plugged(wanted, index, path)).collect();
    let port = &kept.port_path;
    let maps = kept.mapped_path.as_deref().map(Maps);
    stdout::write(&match libvirt {
        true => qemu_options::xml(text, &windows, port, memory, maps),
        false => {
            // The user who starts it gives the number of processors.
            let memory = Some(qemu_options::room(memory, all_bytes(wanted)));
            let room = Room { memory, processors: None };
            let later = later(wanted, kept.monitor_path.as_deref());
            let words = qemu_options::words(&windows, port, room, (later, maps));
            let quoted: Vec<String> = words.iter().map(|word| qemu_options::quoted(word)).collect();
            quoted.join(" ") + "\n"
        }
    })
}

/// The options for windows that are plugged in later, if there are to be any.
fn later(wanted: MachineRequest, monitor: Option<&str>) -> Option<qemu_options::Later<'_>> {
    let (first, last) = (wanted.plugged().saturating_add(1), wanted.pairs.most);
    monitor.map(|monitor| qemu_options::Later { monitor, first, last })
}

fn window_bytes(bytes: u64) -> anyhow::Result<u64> {
    let whole = bytes.checked_next_multiple_of(STEP);
    whole.with_context(|| format!("a window cannot have {bytes} bytes: say less"))
}

/// The main function of a process that is started so: see [`supervisor`].
pub(crate) fn keep(
    text: &str,
    (bytes, pairs, memory): (u64, Neighbours, Option<u64>),
    way: &str,
    user: Option<&str>,
    alone: bool,
) -> anyhow::Result<ExitCode> {
    let way = WindowMethod::read(way).context("not started by a supervisor of omniverb")?;
    let wanted = MachineRequest { bytes, pairs, way, memory };
    let user = user.map(str::parse).transpose().map_err(anyhow::Error::msg)?;
    supervisor::keep(name(text)?, wanted, user, alone)
}

/// The main function of a process that is started so: see [`supervisor`].
pub(crate) fn hold() -> anyhow::Result<ExitCode> {
    supervisor::hold()
}

/// The main function of a machine's proxy. Its two sockets are its input and its output, so that it
/// has nothing else; `more` is where it gets windows that are plugged in later, `pairs` are
/// descriptors of the machine's pair windows, of which it keeps the doorbells.
pub(crate) fn carry(number: u64, more: Option<i32>, pairs: &[String]) -> anyhow::Result<ExitCode> {
    let more = more
        .map(fd_inheritance::taken)
        .transpose()
        .context("not started by a supervisor of omniverb: a descriptor is missing")?;
    let sessions = sessions();
    let [machine_socket, port] = drop_rights_keeping_two_sockets()?;
    // Its threads run as the unused user, too.
    let mut windows =
        PairWindows { bridge: WakeBridge::new(Side::Host)?, present: 0, going: 0, more };
    for word in pairs {
        let one = pair_windows::Handed::read(word)
            .context("not started by a supervisor of omniverb: a descriptor is missing")?;
        let file = fd_inheritance::taken(one.descriptor)
            .context("not started by a supervisor of omniverb: a descriptor is missing")?;
        let added = windows.add(one.number, &file, one.whose);
        added.ok().context("not started by a supervisor of omniverb: a descriptor is missing")?;
    }
    Ok(proxy::serve(port, machine_socket, number, sessions, windows).code())
}

/// The main function of a process that is started so, with QEMU's monitor as its input, and as its
/// output a window of so many bytes to plug in there: see [`window_hotplug`].
pub(crate) fn plug(number: u8, bytes: u64) -> anyhow::Result<ExitCode> {
    let [monitor, window] = drop_rights_keeping_two_sockets()?;
    Ok(ExitCode::from(window_hotplug::code(window_hotplug::talk(&monitor, &window, number, bytes))))
}

/// The main function of a process that is started so, with QEMU as its input and its supervisor as
/// its output, and places of so many bytes: see [`window_mapper`].
pub(crate) fn map(bytes: u64, count: u8) -> anyhow::Result<ExitCode> {
    let [qemu, supervisor] = drop_rights_keeping_two_sockets()?;
    let Err(window_mapper::MapperEnd) =
        window_mapper::serve(qemu, supervisor, window_slots::Slots { bytes, count });
    Ok(ExitCode::SUCCESS)
}

/// The main function of a process that is started so: see [`privileged_device_opener`].
pub(crate) fn open() -> anyhow::Result<ExitCode> {
    privileged_device_opener::serve()
}

/// Becomes a process that has nothing but its input and its output.
fn drop_rights_keeping_two_sockets() -> anyhow::Result<[OwnedFd; 2]> {
    let take =
        |file: std::io::Result<OwnedFd>| file.context("not started by a supervisor of omniverb");
    let input = take(std::io::stdin().as_fd().try_clone_to_owned())?;
    let output = take(std::io::stdout().as_fd().try_clone_to_owned())?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::process::setsid().context("cannot leave the starter's session")?;
    std::env::set_current_dir("/").context("cannot leave the starter's folder")?;
    privileges::become_nobody().context("cannot become an unused user id (needs root)")?;
    privileges::keep_only(&[]).context("cannot give up privileges")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    // It logs nothing where the log may have no reader.
    rustix::stdio::dup2_stderr(&null)?;
    Ok([input, output])
}

/// How many sessions there may be at one end of a port: two descriptors for each, of as many as we
/// may have.
fn sessions() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum.or(limit.current), maximum: limit.maximum };
    let _ = setrlimit(Resource::Nofile, most);
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = usize::try_from(most.saturating_sub(DESCRIPTORS_KEPT) / 2).unwrap_or(usize::MAX);
    most.clamp(1, SESSIONS_MAX)
}

/// Parts with a machine; it runs on, without a device.
pub(crate) fn detach(text: &str) -> anyhow::Result<ExitCode> {
    name(text)?;
    Operator::connect()?.detach_machine(vnic::name_bytes(text)?, text)?;
    stdout::write(&format!("machine {text} has no device any more\n"))
}
