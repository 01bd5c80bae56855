//! Builds everything that is installed: programs into dist/bin, the library into dist/lib.
//!
//! The library is a Rust archive that we link ourselves: rustc passes a version script of its own
//! to the linker, beside which ours would be ignored or refused (docs/decisions has the trials).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::elf;
use crate::exports::{Machine, assembly, version_script};
use crate::run::{cargo, root, run as execute, target_directory};
use crate::symbols::{Status, Table};

const SONAME: &str = "libibverbs.so.1";
const PROGRAMS: [&str; 3] = ["omniverbd", "omniverb", "omniverb-limits"];
const PACKAGES: [&str; 3] = ["omniverbd", "omniverb", "omniverb_limits"];

/// The task.
pub(crate) fn run(flags: &[&str]) -> Result<()> {
    let mut debug = false;
    let mut release = false;
    let mut programs = true;
    for flag in flags {
        match *flag {
            "--debug" => debug = true,
            "--release" => release = true,
            "--library" => programs = false,
            _ => bail!("unknown flag {flag}"),
        }
    }
    if debug && release {
        bail!("--debug and --release exclude each other");
    }
    if programs {
        build_programs(debug)?;
    }
    build_library(debug, release)
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

fn build_library(debug: bool, release: bool) -> Result<()> {
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
    let script = work.join("libibverbs.map");
    let entries = work.join("entries.S");
    std::fs::write(&script, version_script(&table))?;
    std::fs::write(&entries, assembly(&table, Machine::host()))?;
    let linked = work.join(SONAME);
    link(&linked, &entries, &archive, &script, debug, release)?;

    let folder = root().join("dist/lib");
    std::fs::create_dir_all(&folder)?;
    let library = folder.join(SONAME);
    replace(&linked, &library)?;
    let plain = folder.join("libibverbs.so");
    std::fs::remove_file(&plain).ok();
    std::os::unix::fs::symlink(SONAME, &plain).context("libibverbs.so")?;
    report(&library)
}

/// Every `ov_` function must be meant by a line of the table; the linker checks the reverse.
fn check_functions(table: &Table, archive: &Path) -> Result<()> {
    let wanted = table.wanted_functions();
    for function in elf::functions(archive)? {
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

fn link(
    to: &Path,
    entries: &Path,
    archive: &Path,
    script: &Path,
    debug: bool,
    release: bool,
) -> Result<()> {
    let mut cc = compiler(release)?;
    cc.arg("-shared").arg("-o").arg(to).arg(entries).arg(archive);
    cc.arg(format!("-Wl,--version-script={}", script.display()));
    cc.arg(format!("-Wl,-soname,{SONAME}"));
    cc.args(["-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,nodelete", "-Wl,-z,defs"]);
    cc.args(["-Wl,--gc-sections", "-Wl,--as-needed"]);
    if !debug {
        cc.args(["-Wl,-O1", "-Wl,--strip-debug"]);
    }
    cc.args(["-lpthread", "-ldl", "-lm"]);
    execute(&mut cc)
}

/// What links the library.
fn compiler(_release: bool) -> Result<Command> {
    Ok(Command::new("cc"))
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
