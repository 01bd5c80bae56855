//! Makes a machine's own memory a file, so that the host's engine can reach it (decision 0045).
//!
//! In: what QEMU is told. Out: a file of that size for ever, and where the guest has it. QEMU would
//! tell that in no way that is meant for programs, so it is told: with `max-ram-below-4g` the two
//! kinds of machine that know that word, pc and q35, have all of their memory from address 0 on, up
//! to that; and the rest from 4 GiB on, as long as all that they may have fits below what AMD's
//! processors keep for themselves. Others do not start with it.

use super::qemu_options;
use crate::operator_connection::Operator;
use anyhow::{Context, bail, ensure};
use omniverb_session::operator::VNIC_NAME_BYTES;
use omniverb_session::pinned_pages::Layout;
use omniverb_sys::memfd;
use std::ffi::OsString;
use std::os::fd::OwnedFd;

/// Where the hole for devices begins, as QEMU is told, and where the memory behind it does.
const BELOW: u64 = 2 << 30;
const ABOVE: u64 = 4 << 30;
/// The most memory of a machine: beyond about 1010 GiB QEMU may put it elsewhere.
const MOST: u64 = 512 << 30;
/// QEMU's name for it.
const NAME: &str = "omniverb-memory";

/// The file, and where the guest has it.
pub(super) struct Memory {
    pub(super) file: OwnedFd,
    layout: Layout,
}

impl Memory {
    /// Of so many bytes.
    pub(super) fn new(bytes: u64) -> anyhow::Result<Memory> {
        let layout = layout(bytes);
        ensure!(layout.is_sound(bytes), "no machine has {bytes} bytes of memory");
        let file = memfd::create("omniverb-memory", bytes).context("cannot make its memory")?;
        Ok(Memory { file, layout })
    }

    /// Brings it to the daemon. One that knows nothing of it does without.
    pub(super) fn attach(&self, operator: &Operator, machine: [u8; VNIC_NAME_BYTES]) {
        if let Err(error) = operator.attach_memory(machine, self.layout, &self.file) {
            eprintln!("omniverb: the daemon does not take the machine's memory: {error}");
        }
    }
}

fn layout(bytes: u64) -> Layout {
    Layout { below: bytes.min(BELOW), above: ABOVE, bytes }
}

/// Bytes of the memory that these words give a machine; an error: it cannot be given it by us.
pub(super) fn bytes(command: &[OsString], others: u64) -> anyhow::Result<u64> {
    let text: Vec<&str> = command.iter().filter_map(|word| word.to_str()).collect();
    let own = text.iter().any(|word| word.contains("memory-backend=") || word.contains("memdev="));
    if own || text.iter().any(|word| matches!(*word, "-mem-path" | "--mem-path")) {
        // A file that another program has made could be cut short under the daemon, and QEMU does
        // not report which descriptor is which.
        bail!(
            "with --shared-memory the machine's memory is made here: leave out memory-backend, \
             memdev and -mem-path, and say with -m how much it has"
        );
    }
    if text
        .iter()
        .any(|word| word.split(',').any(|part| part.starts_with("smm=") && part != "smm=off"))
    {
        // Code of the firmware's that the guest's kernel cannot reach is in this memory, too.
        bail!("with --shared-memory a machine has no management mode: leave out smm");
    }
    let bytes = qemu_options::bytes_said(command)?;
    let most = qemu_options::most_said(command)?.unwrap_or(0).max(bytes.saturating_add(others));
    ensure!(most <= MOST, "with --shared-memory a machine may have 512 GiB at most");
    Ok(bytes)
}

/// QEMU's options for so many bytes at this path. No part of it is to be the firmware's alone, so
/// there is no management mode, whose memory (SMRAM, TSEG) a guest could name for peers to write
/// to. A guest that is reset begins anew in memory that the engine may still be writing to for the
/// earlier boot; so QEMU ends then.
pub(super) fn words(path: &str, bytes: u64) -> [String; 6] {
    let path = path.replace(',', ",,");
    [
        "-object".into(),
        format!("memory-backend-file,id={NAME},mem-path={path},size={bytes},share=on"),
        "-machine".into(),
        format!("memory-backend={NAME},max-ram-below-4g={BELOW},smm=off"),
        "-action".into(),
        "reboot=shutdown".into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> anyhow::Result<u64> {
        let command: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        bytes(&command, 256 << 20)
    }

    #[test]
    fn a_machines_memory_has_the_size_given_to_qemu() {
        for (line, mib) in [
            ("qemu", 128),
            ("qemu -m 512 -M pc,smm=off", 512),
            ("qemu -m size=3G,maxmem=8G -M q35", 3072),
        ] {
            assert_eq!(said(line).unwrap(), mib << 20, "{line}");
        }
        for wrong in [
            "qemu -m 1T",
            "qemu -m 1G,maxmem=1T",
            "qemu -m much",
            "qemu -mem-path /dev/shm/x",
            "qemu -machine q35,memory-backend=m -object memory-backend-memfd,id=m,size=1G",
            "qemu -numa node,memdev=m",
            "qemu -M q35,smm=on",
            "qemu -machine smm=auto",
        ] {
            assert!(said(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_guest_has_its_memory_at_the_given_place() {
        let gib = 1 << 30;
        assert_eq!(layout(gib), Layout { below: gib, above: ABOVE, bytes: gib });
        assert_eq!(layout(5 * gib), Layout { below: 2 * gib, above: ABOVE, bytes: 5 * gib });
        for bytes in [gib, 2 * gib, 2 * gib + 4096, 511 * gib] {
            assert!(layout(bytes).is_sound(bytes), "{bytes}");
        }
        assert!(Memory::new(0).is_err() && Memory::new(1).is_err());
        let words = words("/proc/self/fd/7", gib).join(" ");
        assert!(words.contains("mem-path=/proc/self/fd/7,size=1073741824,share=on"), "{words}");
        assert!(words.contains("max-ram-below-4g=2147483648") && words.contains("reboot="));
        assert!(words.contains(",smm=off"));
    }
}
