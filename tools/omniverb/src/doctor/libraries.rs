//! Checks which libibverbs a program would load, and which files it is shown.

use super::findings::Findings;
use crate::elf;
use crate::find_drop_in_library::{self, VERBS};
use crate::present;
use crate::program_check::{FOR_MUSL, is_musl, locate};
use rustix::fs::{FileType, stat};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The library is there and loads.
pub(super) fn library(findings: &mut Findings) {
    let folder = match find_drop_in_library::folder() {
        Ok(folder) => folder,
        Err(error) => {
            findings.bad(format_args!("{error:#}"), "install it, or run make build");
            return;
        }
    };
    let file = folder.join(VERBS);
    let shown = file.display();
    // The loader itself is asked: a harmless program with the library preloaded, everything
    // resolved at once.
    match quiet(Command::new("true").env("LD_PRELOAD", &file).env("LD_BIND_NOW", "1")) {
        Some(output) if output.status.success() && output.stderr.is_empty() => {
            findings.good(format_args!("{shown} loads"));
        }
        Some(output) => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let line = text.lines().next().unwrap_or("it ends the program").to_owned();
            findings.bad(
                format_args!("{shown} does not load: {line}"),
                "it needs glibc 2.28 or newer and libgcc_s.so.1: use a newer image, or install it",
            );
        }
        None => findings.note(format_args!("{shown} is there"), "whether it loads was not tried"),
    }
}

/// The library that a program gets without `omniverb run`.
pub(super) fn stock(findings: &mut Findings) {
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let named = std::env::split_paths(&path).find(|folder| folder.join(VERBS).exists());
    let ours = find_drop_in_library::folder().ok();
    match named {
        Some(folder) if folder.canonicalize().ok() == ours => {
            findings.good("LD_LIBRARY_PATH leads to the Omniverb library");
        }
        Some(folder) => findings.note(
            format_args!("LD_LIBRARY_PATH leads to {}", folder.join(VERBS).display()),
            "programs load that one unless omniverb run starts them: use it, or unset the variable",
        ),
        None => findings.good("programs use Omniverb when started by omniverb run"),
    }
    if std::env::var_os("LD_PRELOAD").is_some_and(|list| list.to_string_lossy().contains("ibverbs"))
    {
        findings.note(
            "LD_PRELOAD names an ibverbs library",
            "programs load it instead of ours: unset it",
        );
    }
}

/// Which library `program` would load under `omniverb run`.
pub(super) fn program(findings: &mut Findings, program: &OsStr) {
    let Ok(folder) = find_drop_in_library::folder() else { return };
    let Some(path) = locate(program) else {
        findings.bad(format_args!("{}", program.display()), "no such program");
        return;
    };
    let shown = path.display();
    let bytes = std::fs::read(&path).unwrap_or_default();
    let Some(known) = elf::read(&bytes) else {
        let is_script = bytes.starts_with(b"#!");
        let (what, advice) = match is_script {
            true => ("is a script", "omniverb run reaches what its interpreter loads"),
            false => ("is no program for this machine", "omniverb run cannot reach it"),
        };
        findings.note(format_args!("{shown} {what}"), advice);
        return;
    };
    if known.loader.as_deref().is_some_and(is_musl) {
        findings.bad(format_args!("{shown} is built for musl"), FOR_MUSL);
        return;
    }
    let is_built_in = contains(&bytes, BUILT_IN);
    if known.loader.is_none() && !known.needed.iter().any(|name| name.starts_with("libc.")) {
        findings.bad(
            format_args!("{shown} is linked statically"),
            "omniverb run cannot reach it; link it with libibverbs.so.1",
        );
        return;
    }
    let mut command = Command::new("ldd");
    command
        .arg(&path)
        .env("LD_LIBRARY_PATH", find_drop_in_library::before(&folder, "LD_LIBRARY_PATH"));
    let Some(output) = quiet(&mut command) else {
        findings.note(format_args!("{shown}"), "ldd is missing: install libc-bin");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let named = |start: &str| {
        let mut lines = text.lines().map(str::trim);
        lines.find(|line| line.starts_with(start)).and_then(|line| line.split_whitespace().nth(2))
    };
    match (named("libibverbs.so"), named("libibverbs-")) {
        (Some(found), _) if Path::new(found).starts_with(&folder) => {
            findings.good(format_args!("{shown} would load {found}"));
        }
        (Some(found), _) => findings
            .bad(format_args!("{shown} would load its own {found}"), "use omniverb run --preload"),
        (None, Some(found)) => match find_drop_in_library::paths() {
            Ok(_) => findings.good(format_args!(
                "{shown} brings {found} along; omniverb run puts ours before it"
            )),
            Err(_) => findings.bad(
                format_args!("{shown} brings {found} along"),
                "use omniverb run --preload, or install libomniverb_paths.so beside our library",
            ),
        },
        (None, None) if is_built_in => findings.bad(
            format_args!("{shown} has a copy of libibverbs built in"),
            "it never asks for another one; link it with libibverbs.so.1",
        ),
        (None, None) => findings.note(
            format_args!("{shown} does not name libibverbs"),
            "it may load it later, also under another name as wheels do: omniverb run sees to \
             that; it does not reach a copy that is built into a module statically",
        ),
    }
}

/// A text in the warnings of every libibverbs of rdma-core, and so in programs with one built in.
const BUILT_IN: &[u8] = b"libibverbs: Warning: ";

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|part| part == text)
}

/// Programs can be shown the files of their device.
pub(super) fn files(findings: &mut Findings, socket: &Path) {
    match present::possible(socket) {
        Ok(folder) => findings.good(format_args!(
            "omniverb run shows programs /sys/class/infiniband and /dev/infiniband from {}",
            folder.display()
        )),
        Err(error) => findings.bad(
            format_args!("programs cannot be shown /sys/class/infiniband: {error:#}"),
            "install libomniverb_paths.so beside the library, and give this user a folder of its \
             own (XDG_RUNTIME_DIR, /tmp or /dev/shm); UCX and Mooncake need no more than a \
             character device at /dev/infiniband/uverbs0, such as /dev/full mounted there",
        ),
    }
    // Without `omniverb run`, as in a container that sets LD_LIBRARY_PATH.
    let node = stat("/dev/infiniband/uverbs0").map(|status| status.st_mode);
    let device = node.is_ok_and(|mode| FileType::from_raw_mode(mode) == FileType::CharacterDevice);
    if device {
        findings.good("/dev/infiniband/uverbs0 is there for programs started otherwise");
    } else {
        findings.note(
            "there is no /dev/infiniband/uverbs0",
            "UCX and Mooncake started otherwise than by omniverb run do not use omv0 then; \
             a container gets one by --device /dev/full:/dev/infiniband/uverbs0",
        );
    }
}

fn quiet(command: &mut Command) -> Option<Output> {
    command.stdin(Stdio::null()).output().ok()
}
