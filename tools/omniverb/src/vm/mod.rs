//! `omniverb vm`: virtual machines that have a device; and `omniverb agent`, which runs in them.
//!
//! Here is what a person asks for; the window, QEMU's options, who keeps a machine, and the two
//! ends of the port are in files beside this one.

mod address_list;
mod agent;
mod boot;
mod border;
mod keeper;
mod network;
mod options;
mod place;
mod porter;
mod relay;
mod sharing;
mod start;
mod wakes;
mod window;
mod windows;

pub(crate) use agent::agent;

use crate::operator::Operator;
use crate::table::Table;
use crate::{output, vnic};
use anyhow::{Context, bail};
use border::{Border, Side};
use omniverb_session::machine::MachineName;
use omniverb_session::rate::{show_size, size};
use omniverb_sys::{inherit, memfd, privileges};
use options::Plugged;
use place::User;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use start::Wanted;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use window::{Neighbours, STEP};

/// Sessions of a machine at a time.
const SESSIONS_MAX: usize = 1024;
/// Descriptors that are not for sessions: the port, and what is on its way to processes.
const DESCRIPTORS_KEPT: u64 = 64;

fn name(text: &str) -> anyhow::Result<MachineName> {
    MachineName::new(text).with_context(|| {
        format!("{text:?} is no name for a machine: up to 28 letters, digits, `-`, `_` and `.`")
    })
}

/// What is asked for.
fn wanted(window: &str, count: u8, pair: &str) -> anyhow::Result<Wanted> {
    let pairs = Neighbours { count, bytes: window_bytes(pair)? };
    Ok(Wanted { bytes: window_bytes(window)?, pairs })
}

fn all_bytes(wanted: Wanted) -> u64 {
    let Wanted { bytes, pairs } = wanted;
    bytes.saturating_add(pairs.bytes.saturating_mul(pairs.count.into()))
}

fn plugged(wanted: Wanted, index: usize, path: String) -> Plugged {
    Plugged { path, bytes: if index == 0 { wanted.bytes } else { wanted.pairs.bytes } }
}

/// Does not return if all goes well: QEMU takes our place. `window`, `pair`: how large it is to be,
/// and each of what it shares with so many neighbours.
pub(crate) fn run(
    text: &str,
    window: &str,
    neighbours: u8,
    pair: &str,
    command: &[OsString],
) -> anyhow::Result<ExitCode> {
    let Some((program, arguments)) = command.split_first() else { bail!("no QEMU to run") };
    let wanted = wanted(window, neighbours, pair)?;
    name(text)?;
    let room = options::memory(arguments, all_bytes(wanted))?;
    let kept = start::start(text, wanted, None)?;
    let mut windows = Vec::new();
    for (index, file) in std::iter::once(&kept.window).chain(&kept.pairs).enumerate() {
        fcntl_setfd(file, FdFlags::empty())?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        windows.push(plugged(wanted, index, path));
    }
    let words = options::words(&windows, &kept.port_path, room.as_deref());
    let error = Command::new(program).args(arguments).args(words).exec();
    Err(error).with_context(|| program.to_string_lossy().into_owned())
}

/// Attaches a machine, and prints what QEMU is to be told, or libvirt, for who starts it himself.
/// `memory`: how much it may have at most. `user`: whose QEMU is.
pub(crate) fn args(
    text: &str,
    (window, neighbours, pair): (&str, u8, &str),
    memory: &str,
    user: Option<&str>,
    libvirt: bool,
) -> anyhow::Result<ExitCode> {
    let wanted = wanted(window, neighbours, pair)?;
    name(text)?;
    let memory = size(memory).map_err(anyhow::Error::msg)?;
    let user = user.map(str::parse).transpose().map_err(anyhow::Error::msg)?;
    let kept = start::start(text, wanted, Some(user.unwrap_or_else(User::ourselves)))?;
    let paths = std::iter::once(kept.window_path).chain(kept.pair_paths).enumerate();
    let windows: Vec<_> = paths.map(|(index, path)| plugged(wanted, index, path)).collect();
    let port = &kept.port_path;
    output::write(&match libvirt {
        true => options::xml(&windows, port, memory),
        false => {
            let room = options::room(memory, all_bytes(wanted));
            let words = options::words(&windows, port, Some(&room));
            let quoted: Vec<String> = words.iter().map(|word| options::quoted(word)).collect();
            quoted.join(" ") + "\n"
        }
    })
}

fn window_bytes(text: &str) -> anyhow::Result<u64> {
    let bytes = size(text).map_err(anyhow::Error::msg)?;
    bytes.checked_next_multiple_of(STEP).context("a window of that size?")
}

/// For those who are started so: see [`keeper`].
pub(crate) fn keep(
    text: &str,
    (bytes, count, pair_bytes): (u64, u8, u64),
    user: Option<&str>,
    alone: bool,
) -> anyhow::Result<ExitCode> {
    let wanted = Wanted { bytes, pairs: Neighbours { count, bytes: pair_bytes } };
    let user = user.map(str::parse).transpose().map_err(anyhow::Error::msg)?;
    keeper::keep(name(text)?, wanted, user, alone)
}

/// For those who are started so: see [`keeper`].
pub(crate) fn hold() -> anyhow::Result<ExitCode> {
    keeper::hold()
}

/// What a machine's porter does. Its two sockets are its input and its output, so that it has
/// nothing else; `pairs` are descriptors of the machine's pair windows, of which it keeps the
/// bells.
pub(crate) fn carry(number: u64, pairs: &[i32]) -> anyhow::Result<ExitCode> {
    let take = |file: std::io::Result<OwnedFd>| file.context("not started as a porter");
    let door = take(std::io::stdin().as_fd().try_clone_to_owned())?;
    let port = take(std::io::stdout().as_fd().try_clone_to_owned())?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let sessions = sessions();
    rustix::process::setsid().context("cannot leave the starter's session")?;
    std::env::set_current_dir("/").context("cannot leave the starter's folder")?;
    privileges::become_nobody().context("cannot become a user that nobody is")?;
    privileges::keep_only(&[]).context("cannot give up privileges")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    // Nothing is said where somebody might not read it.
    rustix::stdio::dup2_stderr(&null)?;
    drop(null);
    // Its threads are nobody's, too.
    let mut border = Border::new(Side::Host)?;
    for number in pairs {
        let file = inherit::taken(*number).context("not started as a porter")?;
        border.add(&file, window::data(memfd::size(file.as_fd())?))?;
    }
    Ok(porter::serve(port, door, number, sessions, border).code())
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
    output::write(&format!("machine {text} has no device any more\n"))
}

/// Those that are attached, or the one of this name.
pub(crate) fn list(which: Option<&str>, json: bool) -> anyhow::Result<ExitCode> {
    let found = Operator::connect()?.vnics()?;
    let all = found["vnics"].as_array().map_or(&[][..], Vec::as_slice);
    let machines: Vec<&Value> = all.iter().filter(|vnic| vnic["machine"].is_object()).collect();
    let Some(which) = which else {
        let text =
            if json { serde_json::to_string_pretty(&machines)? + "\n" } else { people(&machines) };
        return output::write(&text);
    };
    let one = machines.iter().find(|vnic| vnic["machine"]["name"] == which);
    let one =
        one.with_context(|| format!("no machine is called {which:?}; see `omniverb vm list`"))?;
    let text = if json { serde_json::to_string_pretty(one)? + "\n" } else { people(&[one]) };
    output::write(&text)
}

fn people(machines: &[&Value]) -> String {
    let mut table = Table::new(&[
        "machine",
        "vNIC",
        "processes",
        "window",
        "used",
        "direct links",
        "neighbours",
        "by the engine",
        "network",
        "keeper",
        "addresses",
    ]);
    for vnic in machines {
        let machine = &vnic["machine"];
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let addresses = machine["addresses"].as_array().map_or(&[][..], Vec::as_slice);
        let addresses: Vec<&str> = addresses.iter().filter_map(Value::as_str).collect();
        table.row(vec![
            machine["name"].as_str().unwrap_or("?").to_owned(),
            vnic["name"].as_str().unwrap_or("?").to_owned(),
            number(&machine["sessions"]).to_string(),
            show_size(number(&machine["window"])),
            show_size(number(&machine["used"])),
            direct(machine),
            neighbours(&machine["pairs"]),
            number(&machine["engine"]).to_string(),
            if machine["network"] == true { "yes" } else { "no" }.to_owned(),
            number(&machine["keeper"]).to_string(),
            addresses.join(" "),
        ]);
    }
    let text = table.render("");
    if text.is_empty() { "no machine is attached\n".into() } else { text }
}

/// Direct links, and how many of them are in pair windows.
fn direct(machine: &Value) -> String {
    let all = machine["direct"].as_u64().unwrap_or(0);
    match machine["pairs"]["links"].as_u64().unwrap_or(0) {
        0 => all.to_string(),
        pairs => format!("{all}, {pairs} of them in pair windows"),
    }
}

/// Who has pair windows, and how many windows there are.
fn neighbours(pairs: &Value) -> String {
    let number = |name: &str| pairs[name].as_u64().unwrap_or(0);
    let names = pairs["neighbours"].as_array().map_or(&[][..], Vec::as_slice);
    let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
    let counted = format!("{} of {}", number("given"), number("windows"));
    if names.is_empty() { counted } else { format!("{counted}: {}", names.join(" ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_reads_well() {
        let vnic = serde_json::json!({"name": "vm-web-1", "machine": {
            "name": "web-1", "keeper": 17, "window": 268_427_264_u64, "used": 528_384,
            "sessions": 1, "direct": 2, "engine": 3, "network": true,
            "pairs": {"windows": 2, "present": 2, "given": 1, "links": 1,
                      "neighbours": ["net-5"]},
            "addresses": ["10.0.0.1", "fe80::1"]}});
        let text = people(&[&vnic]);
        assert!(text.contains("web-1") && text.contains("vm-web-1") && text.contains("17"));
        assert!(text.contains("10.0.0.1 fe80::1"), "{text}");
        assert!(text.contains("1 of 2: net-5"), "{text}");
        assert!(text.contains("2, 1 of them in pair windows"), "{text}");
        assert!(people(&[]).contains("no machine"));
    }
}
