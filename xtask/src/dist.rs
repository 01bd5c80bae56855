//! Builds everything that is installed: programs into dist/bin, the libraries into dist/lib, the
//! header of our own API into dist/include, stand-ins for other programs into dist/libexec, man
//! pages, shell completions and what debuggers are told into dist/share.
//!
//! A library is a Rust archive that we link ourselves: rustc passes a version script of its own
//! to the linker, beside which ours would be ignored or refused (docs/decisions has the trials).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::build_preload_library;
use crate::built_libraries::{self, Library};
use crate::export_stubs::{Machine, assembly, version_script};
use crate::library_symbols;
use crate::license_notices;
use crate::lower_glibc_version;
use crate::man_pages;
use crate::run_program::{cargo, output, replace, root, run as execute, target_directory};
use crate::symbol_tables::{Table, VerbStatus};

/// The library that shows programs the files of their device.
const PATHS: &str = "libomniverb_paths.so";
const PATHS_SOURCES: [&str; 2] =
    ["app/presented_files/path_redirection.c", "app/presented_files/replace_bundled_libibverbs.c"];
const SUPPRESSIONS: [&str; 2] = ["valgrind.supp", "tsan.supp"];
const PROGRAMS: [&str; 5] =
    ["omniverbd", "omniverb", "omniverb-agent", "omniverb-gateway", "omniverb-limits"];
const PACKAGES: [&str; 3] = ["omniverb_agent", "omniverb_gateway", "omniverb_limits"];
/// These two run in every image, whatever its C library: they are linked statically, where there is
/// a static one to link with.
const EVERYWHERE: [&str; 2] = ["omniverbd", "omniverb"];

/// It is there while dist/ is being made, or if that has failed. Tests do not begin then.
const UNFINISHED: &str = "dist/.unfinished";

/// `cargo xtask dist`.
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
    // Programs and libraries of two builds do not understand each other.
    let unfinished = root().join(UNFINISHED);
    std::fs::create_dir_all(root().join("dist"))?;
    std::fs::write(&unfinished, "")?;
    build(debug, programs)?;
    std::fs::remove_file(&unfinished).context(UNFINISHED)
}

fn build(debug: bool, programs: bool) -> Result<()> {
    if programs {
        build_programs(debug)?;
        man_pages::write(if debug { &[] } else { &["--release"] })?;
    }
    copy_suppressions()?;
    copy_files()?;
    // Only packages need them.
    if let Err(error) = license_notices::write() {
        eprintln!("no dist/NOTICES: {error:#}");
    }
    built_libraries::ALL.iter().try_for_each(|library| build_library(library, debug))?;
    build_paths()?;
    build_preload_library::build()
}

/// What is installed as it is: from where, into which folder of dist/.
const FILES: [(&str, &str); 6] = [
    ("app/dma/include/omniverb/dma.h", "include/omniverb"),
    ("app/dma/python/omniverb_dma.py", "share/omniverb/python"),
    ("app/dma/man/omniverb_dma.7", "share/man/man7"),
    ("app/dma/man/omv_dma_init.3", "share/man/man3"),
    ("app/dma/man/omv_dma_alloc.3", "share/man/man3"),
    ("app/dma/man/omv_dma_start.3", "share/man/man3"),
];

fn copy_files() -> Result<()> {
    for (from, folder) in FILES {
        let (from, to) = (root().join(from), root().join("dist").join(folder));
        std::fs::create_dir_all(&to)?;
        replace(&from, &to.join(from.file_name().context("a file has a name")?))?;
    }
    Ok(())
}

/// What valgrind and ThreadSanitizer are told of the libraries.
fn copy_suppressions() -> Result<()> {
    let to = root().join("dist/share/omniverb");
    std::fs::create_dir_all(&to)?;
    for name in SUPPRESSIONS {
        replace(&root().join("deploy/suppressions").join(name), &to.join(name))?;
    }
    Ok(())
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
    let found = output(Command::new("cc").arg("-print-file-name=libc.a"))?;
    let is_static = Path::new(found.trim()).is_absolute();
    for package in EVERYWHERE {
        let mut build = cargo();
        build.args(["rustc", "-p", package, "--bin", package]);
        if !debug {
            build.arg("--release");
        }
        if is_static {
            build.args(["--", "-C", "target-feature=+crt-static"]);
        }
        execute(&mut build)?;
    }
    let from = target_directory()?.join(if debug { "debug" } else { "release" });
    let to = root().join("dist/bin");
    std::fs::create_dir_all(&to)?;
    for program in PROGRAMS {
        replace(&from.join(program), &to.join(program))?;
    }
    // What the command line does when it is called so.
    let stand_ins = root().join("dist/libexec");
    std::fs::create_dir_all(&stand_ins)?;
    let rdma = stand_ins.join("rdma");
    std::fs::remove_file(&rdma).ok();
    std::os::unix::fs::symlink("../bin/omniverb", &rdma).context("libexec/rdma")
}

/// The library of `app/presented_files`. Programs are not linked with it, so it has neither
/// versions nor a name of its own.
fn build_paths() -> Result<()> {
    let work = target_directory()?.join("dist");
    std::fs::create_dir_all(&work)?;
    let (linked, jumps) = (work.join(PATHS), work.join("paths-glibc.S"));
    lower_glibc_version::link_with_jumps(&linked, &jumps, || link_paths(&linked, &jumps))?;
    if library_symbols::glibc_floor(&linked)?.newest > lower_glibc_version::WANTED {
        bail!("{PATHS} needs a newer glibc than {:?}", lower_glibc_version::WANTED);
    }
    replace(&linked, &root().join("dist/lib").join(PATHS))
}

fn link_paths(to: &Path, jumps: &Path) -> Result<()> {
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]);
    cc.args(["-shared", "-o"]).arg(to);
    cc.args(PATHS_SOURCES.map(|file| root().join(file)));
    cc.arg(jumps);
    cc.args(["-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,nodelete", "-Wl,-z,defs", "-s"]);
    cc.arg("-Wl,-z,noexecstack").args(lower_glibc_version::LIBRARIES);
    execute(&mut cc)
}

fn build_library(library: &Library, debug: bool) -> Result<()> {
    let table = Table::read(library)?;
    let mut build = cargo();
    build.args(["build", "-p", library.package, "--lib"]);
    if !debug {
        build.args(["--profile", "shim"]);
    }
    execute(&mut build)?;
    let target = target_directory()?;
    let archive = format!("lib{}.a", library.package);
    let archive = target.join(if debug { "debug" } else { "shim" }).join(archive);
    let work = target.join("dist").join(library.package);
    std::fs::create_dir_all(&work)?;
    let objects = compile(library, &work)?;
    check_functions(&table, objects.iter().chain([&archive]))?;
    let parts = LinkInputs {
        script: work.join("library.map"),
        entries: work.join("entries.S"),
        jumps: work.join("glibc.S"),
        objects,
        archive,
    };
    std::fs::write(&parts.script, version_script(&table))?;
    std::fs::write(&parts.entries, assembly(&table, Machine::host()))?;
    let linked = work.join(library.soname);
    lower_glibc_version::link_with_jumps(&linked, &parts.jumps, || {
        link(library, &linked, &parts, debug)
    })?;

    let folder = built_libraries::folder();
    std::fs::create_dir_all(&folder)?;
    replace(&linked, &library.built())?;
    let plain = folder.join(library.plain);
    std::fs::remove_file(&plain).ok();
    std::os::unix::fs::symlink(library.soname, &plain).context(library.plain)?;
    built_libraries::report(library.soname)
}

/// Every line of the table that needs a function has one, and every function has such a line.
fn check_functions<'a>(table: &Table, parts: impl Iterator<Item = &'a PathBuf>) -> Result<()> {
    let wanted = table.wanted_functions();
    let mut defined = BTreeSet::new();
    for part in parts {
        defined.extend(library_symbols::functions(part)?);
    }
    if let Some(function) = wanted.iter().find(|function| !defined.contains(*function)) {
        bail!("symbols.toml wants {function}, which nothing defines");
    }
    for function in defined {
        if function.starts_with("ov_unsupported_") || wanted.contains(&function) {
            continue;
        }
        let symbol = function.trim_start_matches("ov_");
        let listed = table.nodes.values().find_map(|symbols| symbols.get(symbol));
        match listed.map(|symbol| symbol.status) {
            Some(VerbStatus::Unsupported) => {
                bail!("{function} exists, but symbols.toml calls {symbol} unsupported")
            }
            _ => bail!("{function} exists, but symbols.toml does not list {symbol}"),
        }
    }
    Ok(())
}

/// What is linked together.
struct LinkInputs {
    script: PathBuf,
    entries: PathBuf,
    jumps: PathBuf,
    objects: Vec<PathBuf>,
    archive: PathBuf,
}

/// The objects of what of a library is written in C.
fn compile(library: &Library, work: &Path) -> Result<Vec<PathBuf>> {
    let mut objects = Vec::new();
    for source in library.sources {
        let object = work.join(source).with_extension("o");
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O2", "-fPIC", "-fexceptions", "-Wall", "-Wextra", "-Werror"]);
        cc.arg("-c").arg("-o").arg(&object).arg(root().join(library.folder).join(source));
        execute(&mut cc)?;
        objects.push(object);
    }
    Ok(objects)
}

fn link(library: &Library, to: &Path, parts: &LinkInputs, debug: bool) -> Result<()> {
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-fPIC", "-shared", "-o"]).arg(to);
    cc.arg(&parts.entries).arg(&parts.jumps).arg(root().join("app/ibverbs/glibc_compat.c"));
    cc.args(&parts.objects).arg(&parts.archive);
    cc.args(library.beside.iter().map(|beside| built_libraries::folder().join(beside)));
    cc.arg(format!("-Wl,--version-script={}", parts.script.display()));
    cc.arg(format!("-Wl,-soname,{}", library.soname));
    cc.args(["-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,nodelete", "-Wl,-z,defs"]);
    cc.args(["-Wl,-z,noexecstack", "-Wl,--gc-sections"]);
    if !debug {
        cc.args(["-Wl,-O1", "-Wl,--strip-debug"]);
    }
    cc.arg("-lm").args(lower_glibc_version::LIBRARIES);
    execute(&mut cc)
}
