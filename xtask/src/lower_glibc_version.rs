//! Lowers the glibc version that the library needs.
//!
//! A linker binds every function to the newest version that the installed glibc has, so a library
//! linked on a new system does not load on an old one, although the old function would do. glibc
//! keeps the old versions. For each function that was bound to a version that is too new we put a
//! jump of the same name into the library, and the jump goes to the old version.
//!
//! Functions that lived in libpthread and libdl once are in libc now; naming those libraries as
//! needed makes an old system load them, and a new one has empty ones for this very purpose.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::export_stubs::{Machine, jump};
use crate::library_symbols::{GlibcFloor, glibc_floor, parse_version};
use crate::run_program::output;

/// RHEL 8 and Debian 10 have it; so does everything newer.
pub(crate) const WANTED: (u32, u32) = (2, 28);

/// What to hand to the linker besides the jumps.
pub(crate) const LIBRARIES: [&str; 3] =
    ["-Wl,--no-as-needed", "-l:libpthread.so.0", "-l:libdl.so.2"];

/// Links a library, and once more when it is known which functions were bound to versions that are
/// too new: with the jumps for these, which `link` takes from that file.
pub(crate) fn link_with_jumps(
    linked: &Path,
    jumps: &Path,
    link: impl Fn() -> Result<()>,
) -> Result<()> {
    std::fs::write(jumps, "")?;
    link()?;
    std::fs::write(jumps, self::jumps(linked, Machine::host())?)?;
    link()
}

/// The jumps that `library`, as linked plainly, needs; empty if it needs none.
fn jumps(library: &Path, machine: Machine) -> Result<String> {
    let floor = glibc_floor(library)?;
    let too_new = too_new(&floor);
    let old = old_versions()?;
    let mut out = String::new();
    let mut missing = Vec::new();
    for name in too_new {
        match old.get(name) {
            Some(version) => jump(&mut out, machine, name, &version.text),
            None => missing.push(name),
        }
    }
    if !missing.is_empty() {
        bail!(
            "glibc {}.{} does not have {}; write them in app/ibverbs/glibc_compat.c",
            WANTED.0,
            WANTED.1,
            missing.join(", ")
        );
    }
    Ok(out)
}

fn too_new(floor: &GlibcFloor) -> impl Iterator<Item = &str> {
    let newer = floor.symbols.iter().filter(|(version, _)| **version > WANTED);
    newer.flat_map(|(_, names)| names.iter().map(String::as_str))
}

/// A version of a function.
struct SymbolVersion {
    text: String,
    number: (u32, u32),
}

/// For each function of the installed glibc: its newest version that is old enough.
fn old_versions() -> Result<BTreeMap<String, SymbolVersion>> {
    let mut old: BTreeMap<String, SymbolVersion> = BTreeMap::new();
    for library in ["libc.so.6", "libm.so.6"] {
        let path = output(Command::new("cc").arg(format!("-print-file-name={library}")))?;
        let text = output(Command::new("nm").args(["-D", "--defined-only", path.trim()]))?;
        for line in text.lines() {
            let mut words = line.split_whitespace().skip(1);
            let (Some(kind), Some(symbol)) = (words.next(), words.next()) else { continue };
            let Some((name, version)) = symbol.split_once('@') else { continue };
            let version = version.trim_start_matches('@');
            let Some(number) = version.strip_prefix("GLIBC_").and_then(parse_version) else {
                continue;
            };
            if !matches!(kind, "T" | "W" | "i") || number > WANTED {
                continue;
            }
            if old.get(name).is_none_or(|best| number > best.number) {
                old.insert(name.to_owned(), SymbolVersion { text: version.to_owned(), number });
            }
        }
    }
    Ok(old)
}
