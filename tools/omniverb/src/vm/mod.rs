//! `omniverb vm`: virtual machines that have a device; and `omniverb agent`, which runs in them.
//!
//! Here is what a person asks for; the window, QEMU's options, who keeps a machine, and the two
//! ends of the port are in files beside this one.

mod agent;
mod keeper;
mod network;
mod options;
mod place;
mod porter;
mod relay;
mod wakes;
mod window;

pub(crate) use agent::agent;

use crate::operator::Operator;
use crate::table::Table;
use crate::{output, vnic};
use anyhow::{Context, bail};
use omniverb_session::machine::MachineName;
use omniverb_session::rate::{show_size, size};
use omniverb_sys::privileges;
use place::User;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use window::STEP;

/// Sessions of a machine at a time.
const SESSIONS_MAX: usize = 1024;
/// Descriptors that are not for sessions: the port, and what is on its way to processes.
const DESCRIPTORS_KEPT: u64 = 64;

fn name(text: &str) -> anyhow::Result<MachineName> {
    MachineName::new(text).with_context(|| {
        format!("{text:?} is no name for a machine: up to 28 letters, digits, `-`, `_` and `.`")
    })
}

/// Does not return if all goes well: QEMU takes our place. `window`: how large it is to be.
pub(crate) fn run(text: &str, window: &str, command: &[OsString]) -> anyhow::Result<ExitCode> {
    let Some((program, arguments)) = command.split_first() else { bail!("no QEMU to run") };
    let bytes = window_bytes(window)?;
    name(text)?;
    let room = options::memory(arguments, bytes)?;
    let kept = keeper::start(text, bytes, None)?;
    fcntl_setfd(&kept.window, FdFlags::empty())?;
    let path = format!("/proc/self/fd/{}", kept.window.as_raw_fd());
    let words = options::words(&path, bytes, &kept.port_path, room.as_deref());
    let error = Command::new(program).args(arguments).args(words).exec();
    Err(error).with_context(|| program.to_string_lossy().into_owned())
}

/// Attaches a machine, and prints what QEMU is to be told, or libvirt, for who starts it himself.
/// `memory`: how much it may have at most. `user`: whose QEMU is.
pub(crate) fn args(
    text: &str,
    window: &str,
    memory: &str,
    user: Option<&str>,
    libvirt: bool,
) -> anyhow::Result<ExitCode> {
    let bytes = window_bytes(window)?;
    name(text)?;
    let memory = size(memory).map_err(anyhow::Error::msg)?;
    let user = user.map(str::parse).transpose().map_err(anyhow::Error::msg)?;
    let kept = keeper::start(text, bytes, Some(user.unwrap_or_else(User::ourselves)))?;
    let (window, port) = (&kept.window_path, &kept.port_path);
    output::write(&match libvirt {
        true => options::xml(window, bytes, port, memory),
        false => {
            let words = options::words(window, bytes, port, Some(&options::room(memory, bytes)));
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
    bytes: u64,
    user: Option<&str>,
    alone: bool,
) -> anyhow::Result<ExitCode> {
    let user = user.map(str::parse).transpose().map_err(anyhow::Error::msg)?;
    keeper::keep(name(text)?, bytes, user, alone)
}

/// For those who are started so: see [`keeper`].
pub(crate) fn hold() -> anyhow::Result<ExitCode> {
    keeper::hold()
}

/// What a machine's porter does. Its two sockets are its input and its output, so that it has
/// nothing else.
pub(crate) fn carry(number: u64) -> anyhow::Result<ExitCode> {
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
    Ok(porter::serve(port, door, number, sessions).code())
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
        "links in it",
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
            number(&machine["direct"]).to_string(),
            number(&machine["engine"]).to_string(),
            if machine["network"] == true { "yes" } else { "no" }.to_owned(),
            number(&machine["keeper"]).to_string(),
            addresses.join(" "),
        ]);
    }
    let text = table.render("");
    if text.is_empty() { "no machine is attached\n".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_reads_well() {
        let vnic = serde_json::json!({"name": "vm-web-1", "machine": {
            "name": "web-1", "keeper": 17, "window": 268_427_264_u64, "used": 528_384,
            "sessions": 1, "direct": 2, "engine": 3, "network": true,
            "addresses": ["10.0.0.1", "fe80::1"]}});
        let text = people(&[&vnic]);
        assert!(text.contains("web-1") && text.contains("vm-web-1") && text.contains("17"));
        assert!(text.contains("10.0.0.1 fe80::1"), "{text}");
        assert!(people(&[]).contains("no machine"));
    }
}
