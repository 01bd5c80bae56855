//! Builds everything that is installed: programs into dist/bin, the library into dist/lib.
//!
//! The library is a Rust archive that we link ourselves: rustc passes a version script of its own
//! to the linker, beside which ours would be ignored or refused (docs/decisions has the trials).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::elf;
use crate::exports::{Machine, assembly, version_script};
use crate::glibc;
use crate::run::{cargo, root, run as execute, target_directory};
use crate::symbols::{Status, Table};

const SONAME: &str = "libibverbs.so.1";
const PROGRAMS: [&str; 3] = ["omniverbd", "omniverb", "omniverb-limits"];
const PACKAGES: [&str; 3] = ["omniverbd", "omniverb", "omniverb_limits"];

/// The task.
pub(crate) fn run(flags: &[&str]) -> Result<()> {
    let mut debug = false;
    let mut programs = true;
    for flag in flags {
        match *flag {
            "--debug" => debug = true,
            "--library" => programs = false,
            _ => bail!("unknown flag {flag}"),
        }
    }
    if programs {
        build_programs(debug)?;
    }
    build_library(debug)
}

fn build_programs(debug: bool) -> Result<()> {
    let mut build = cargo();
    build.arg("build");
    if !debug {
        build.arg("--release");
    }
    for package in PACKAGES {
        build.args(["-p", package]);
    }
    execute(&mut build)?;
    let from = target_directory()?.join(if debug { "debug" } else { "release" });
    let to = root().join("dist/bin");
    std::fs::create_dir_all(&to)?;
    for program in PROGRAMS {
        replace(&from.join(program), &to.join(program))?;
    }
    Ok(())
}

fn build_library(debug: bool) -> Result<()> {
    let table = Table::read()?;
    let mut build = cargo();
    build.args(["build", "-p", "omniverb_ibverbs", "--lib"]);
    if !debug {
        build.args(["--profile", "shim"]);
    }
    execute(&mut build)?;
    let target = target_directory()?;
    let archive = target.join(if debug { "debug" } else { "shim" }).join("libomniverb_ibverbs.a");
    check_functions(&table, &archive)?;

    let work = target.join("dist");
    std::fs::create_dir_all(&work)?;
    let parts = Parts {
        script: work.join("libibverbs.map"),
        entries: work.join("entries.S"),
        jumps: work.join("glibc.S"),
        archive,
    };
    std::fs::write(&parts.script, version_script(&table))?;
    std::fs::write(&parts.entries, assembly(&table, Machine::host()))?;
    std::fs::write(&parts.jumps, "")?;
    let linked = work.join(SONAME);
    link(&linked, &parts, debug)?;
    // Once more, now that we know which functions were bound to versions that are too new.
    std::fs::write(&parts.jumps, glibc::jumps(&linked, Machine::host())?)?;
    link(&linked, &parts, debug)?;

    let folder = root().join("dist/lib");
    std::fs::create_dir_all(&folder)?;
    let library = folder.join(SONAME);
    replace(&linked, &library)?;
    let plain = folder.join("libibverbs.so");
    std::fs::remove_file(&plain).ok();
    std::os::unix::fs::symlink(SONAME, &plain).context("libibverbs.so")?;
    report(&library)
}

/// Every line of the table that needs a function has one, and every function has such a line.
fn check_functions(table: &Table, archive: &Path) -> Result<()> {
    let wanted = table.wanted_functions();
    let defined = elf::functions(archive)?;
    if let Some(function) = wanted.iter().find(|function| !defined.contains(*function)) {
        bail!("symbols.toml wants {function}, which no crate defines");
    }
    for function in defined {
        if function.starts_with("ov_unsupported_") || wanted.contains(&function) {
            continue;
        }
        let symbol = function.trim_start_matches("ov_");
        let listed = table.nodes.values().find_map(|symbols| symbols.get(symbol));
        match listed.map(|symbol| symbol.status) {
            Some(Status::Unsupported) => {
                bail!("{function} exists, but symbols.toml calls {symbol} unsupported")
            }
            _ => bail!("{function} exists, but symbols.toml does not list {symbol}"),
        }
    }
    Ok(())
}

/// What is linked together.
struct Parts {
    script: PathBuf,
    entries: PathBuf,
    jumps: PathBuf,
    archive: PathBuf,
}

fn link(to: &Path, parts: &Parts, debug: bool) -> Result<()> {
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-fPIC", "-shared", "-o"]).arg(to);
    cc.arg(&parts.entries).arg(&parts.jumps).arg(root().join("app/ibverbs/compat.c"));
    cc.arg(&parts.archive);
    cc.arg(format!("-Wl,--version-script={}", parts.script.display()));
    cc.arg(format!("-Wl,-soname,{SONAME}"));
    cc.args(["-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,nodelete", "-Wl,-z,defs"]);
    cc.args(["-Wl,-z,noexecstack", "-Wl,--gc-sections"]);
    if !debug {
        cc.args(["-Wl,-O1", "-Wl,--strip-debug"]);
    }
    cc.arg("-lm").args(glibc::LIBRARIES);
    execute(&mut cc)
}

/// Puts a file in place in one step: a running program keeps the old one.
fn replace(from: &Path, to: &Path) -> Result<()> {
    let mut temporary = PathBuf::from(to).into_os_string();
    temporary.push(".new");
    std::fs::copy(from, &temporary).with_context(|| format!("cannot copy {}", from.display()))?;
    std::fs::rename(&temporary, to).with_context(|| format!("cannot replace {}", to.display()))
}

fn report(library: &Path) -> Result<()> {
    let floor = elf::glibc_floor(library)?;
    let (major, minor) = floor.newest;
    let size = std::fs::metadata(library)?.len() / 1024;
    println!("dist/lib/{SONAME}: {size} KiB, needs glibc {major}.{minor}");
    Ok(())
}
