//! Checks what the kernel and the sandbox allow.

use super::findings::Findings;
use omniverb_sys::{Access, Extent, memfd};
use rustix::process::{Resource, geteuid, getrlimit};
use std::os::fd::AsFd;

/// Descriptors a program with a thousand peers needs.
const DESCRIPTORS_WANTED: u64 = 4096;
/// The kernel's default.
const MAPPINGS_WANTED: u64 = 65530;

/// Sealed memory files are what everything rests on.
pub(super) fn memory_files(findings: &mut Findings) {
    let tried = || -> std::io::Result<bool> {
        let file = memfd::create_sealable("omniverb-doctor", 4096)?;
        let all = Extent::new(&file, 0, 4096);
        let _writer = all.mapping(Access::ReadWrite)?;
        memfd::seal_future_write(file.as_fd())?;
        Ok(all.mapping(Access::ReadWrite).is_err())
    };
    match tried() {
        Ok(true) => findings.good("memory files and their seals work"),
        Ok(false) => findings.bad(
            "a sealed memory file can still be written",
            "peers could change memory that was checked: do not use Omniverb in this sandbox, or \
             run the container by another runtime (runc, crun)",
        ),
        Err(error) => findings.bad(
            format_args!("no sealed memory files: {error}"),
            "links need them; use Linux 5.3 or newer, and permit memfd_create in the sandbox's \
             filter",
        ),
    }
}

/// Moved pages go back by userfaultfd where the process's threads cannot be stopped.
pub(super) fn userfaultfd(findings: &mut Findings) {
    let permitted = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    let all_users = permitted.is_ok_and(|text| text.trim() == "1");
    let device = rustix::fs::access("/dev/userfaultfd", rustix::fs::Access::READ_OK).is_ok();
    if all_users || device || geteuid().is_root() {
        findings.good("userfaultfd is permitted");
    } else {
        findings.note(
            "userfaultfd is not permitted to this user",
            "it works without; but if a debugger traces the process, ibv_dereg_mr of memory that \
             peers have mapped fails; sysctl vm.unprivileged_userfaultfd=1 avoids that",
        );
    }
}

/// In a virtual machine.
pub(super) fn processors(findings: &mut Findings) {
    if crate::vm::is_emulated_alone() {
        findings.bad(
            "this machine's only processor is emulated, without atomic operations towards others",
            "links to others may stand still; start QEMU with -smp 1,maxcpus=2",
        );
    }
}

/// Limits that many queue pairs run into.
pub(super) fn limits(findings: &mut Findings) {
    let descriptors = getrlimit(Resource::Nofile);
    let current = descriptors.current.unwrap_or(u64::MAX);
    if current >= DESCRIPTORS_WANTED {
        findings.good(format_args!("{current} descriptors per process"));
    } else if descriptors.maximum.is_none_or(|maximum| maximum >= DESCRIPTORS_WANTED) {
        findings.note(
            format_args!("{current} descriptors per process"),
            format_args!("for very many peers use ulimit -n {DESCRIPTORS_WANTED}"),
        );
    } else {
        findings.note(
            format_args!("{current} descriptors per process, and no more to be had"),
            "raise the hard limit (ulimit -Hn) for very many peers",
        );
    }
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    match text.trim().parse::<u64>() {
        Ok(mappings) if mappings < MAPPINGS_WANTED => findings.note(
            format_args!("{mappings} memory mappings per process"),
            format_args!("for many links use sysctl vm.max_map_count={MAPPINGS_WANTED}"),
        ),
        Ok(mappings) => findings.good(format_args!("{mappings} memory mappings per process")),
        Err(_) => {}
    }
    if let Some(bytes) = getrlimit(Resource::As).current {
        findings.note(
            format_args!("address space is limited to {bytes} bytes"),
            "every link takes about 650 KiB of it (ulimit -v unlimited)",
        );
    }
}
