//! Checks QEMU's processors for emulation without atomic operations.
//!
//! QEMU makes atomic instructions of the guest into atomic ones of its own only where the machine
//! may have more than one processor; of one alone it makes a load and a store. A write from outside
//! to the same word in between is lost: a doorbell loses bits, and links stand still. So a machine
//! that is emulated must be one that *may* have two (`-smp 1,maxcpus=2`), and may well have one.
//! With KVM processors are what they are.

use super::qemu_options;
use anyhow::bail;
use std::ffi::OsString;

/// The `-smp` option to add to a command line of QEMU's. `None`: it has, or may have, two
/// processors, or is not emulated.
///
/// # Errors
/// It allows no more than one.
pub(super) fn room(command: &[OsString]) -> anyhow::Result<Option<String>> {
    if is_never_emulated(command) {
        return Ok(None);
    }
    let said = qemu_options::said(command, "smp")?;
    let (mut count, mut most, mut shape, mut is_shaped) = (1, None, 1, false);
    for part in said.split(',').filter(|part| !part.is_empty()) {
        let (name, number) = part.split_once('=').unwrap_or(("cpus", part));
        // QEMU refuses a malformed number.
        let Ok(number) = number.parse::<u32>() else { return Ok(None) };
        match name {
            "cpus" => count = number,
            "maxcpus" => most = Some(number),
            _ => {
                shape *= number.max(1);
                is_shaped |= ["sockets", "cores", "threads"].contains(&name);
            }
        }
    }
    match most.unwrap_or(count).max(shape) {
        2.. => Ok(None),
        _ if most.is_some() || is_shaped => bail!(
            "-smp {said}: the only processor of a machine that is emulated has no atomic \
             operations towards others; say -smp 1,maxcpus=2"
        ),
        _ if said.is_empty() => Ok(Some("1,maxcpus=2".into())),
        _ => Ok(Some(format!("{said},maxcpus=2"))),
    }
}

/// Whether KVM is asked for, and nothing else.
fn is_never_emulated(command: &[OsString]) -> bool {
    let words: Vec<_> = command.iter().filter_map(|word| word.to_str()).collect();
    let emulates = |word: &&str| word.contains("tcg");
    let has_kvm = |word: &&str| {
        word.trim_start_matches('-') == "enable-kvm"
            || *word == "kvm"
            || word.starts_with("kvm,")
            || word.split(',').any(|part| part == "accel=kvm")
    };
    words.iter().any(has_kvm) && !words.iter().any(emulates)
}

/// Whether this very machine's only processor is emulated, in that way.
pub(crate) fn is_emulated_alone() -> bool {
    let possible = || std::fs::read_to_string("/sys/devices/system/cpu/possible");
    omniverb_ring::is_emulated() && possible().is_ok_and(|text| text.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> anyhow::Result<Option<String>> {
        let command: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        room(&command)
    }

    #[test]
    fn an_emulated_machine_may_have_two_processors() {
        for (line, expected) in [
            ("-m 512", Some("1,maxcpus=2")),
            ("-smp 1", Some("1,maxcpus=2")),
            ("-smp cpus=1 -accel tcg", Some("cpus=1,maxcpus=2")),
            ("-accel kvm -accel tcg", Some("1,maxcpus=2")),
            ("-machine q35,accel=kvm:tcg", Some("1,maxcpus=2")),
            ("-smp 4 --smp 1", Some("1,maxcpus=2")),
            ("-smp 2", None),
            ("-smp 1,maxcpus=8", None),
            ("-smp sockets=1,cores=2", None),
            ("-smp some", None),
            ("-accel kvm", None),
            ("--accel kvm,dirty-ring-size=4096 -smp 1", None),
            ("-enable-kvm", None),
            ("-M q35,accel=kvm -smp 1", None),
        ] {
            assert_eq!(told(line).unwrap().as_deref(), expected, "{line}");
        }
        for wrong in ["-smp", "-smp 1,maxcpus=1", "-smp 1,sockets=1,cores=1"] {
            assert!(told(wrong).is_err(), "{wrong}");
        }
    }
}
