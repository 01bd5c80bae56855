//! Checks the library in dist/lib: it exports exactly what the table says, everything that the
//! installed libibverbs exports by default, and every program linked to that one loads with ours.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::elf::{self, Export};
use crate::run::{output, root};
use crate::symbols::Table;
use crate::{glibc, matrix, probe};

const INSTALLED: &str = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";

/// The task.
pub(crate) fn run() -> Result<()> {
    let library = root().join("dist/lib/libibverbs.so.1");
    if !library.exists() {
        bail!("{} is missing; run `cargo xtask dist` first", library.display());
    }
    let table = Table::read()?;
    matrix::check_current(&table)?;
    let exported = elf::exports(&library)?;
    let expected = expected(&table);
    same(&exported, &expected)?;
    let nodes = elf::nodes(&library)?;
    for node in table.nodes.keys() {
        if !nodes.contains(node) {
            bail!("the library does not define the node {node}");
        }
    }
    println!("{} symbols in {} nodes, as the table says", exported.len(), nodes.len() - 1);
    if Path::new(INSTALLED).exists() {
        covers(&exported, Path::new(INSTALLED))?;
    } else {
        println!("no installed libibverbs to compare with");
    }
    let (major, minor) = elf::glibc_floor(&library)?.newest;
    if (major, minor) > glibc::WANTED {
        bail!("the library needs glibc {major}.{minor}, more than {:?}", glibc::WANTED);
    }
    println!("needs glibc {major}.{minor}");
    probe::check(&table, &library)?;
    println!("what is not offered answers as the table says");
    programs_load(&library)
}

/// What the table says the library exports.
fn expected(table: &Table) -> BTreeSet<Export> {
    let mut all = BTreeSet::new();
    let mut add = |name: &str, node: &str, default: bool, data: bool| {
        all.insert(Export { name: name.to_owned(), node: node.to_owned(), default, data });
    };
    for (node, symbols) in &table.nodes {
        symbols.keys().for_each(|name| add(name, node, true, false));
    }
    let private = &table.private;
    for number in &private.nodes {
        let node = format!("IBVERBS_PRIVATE_{number}");
        let default = *number == 34;
        private.functions().iter().for_each(|(name, _)| add(name, &node, default, false));
        private.data.iter().for_each(|name| add(name, &node, default, true));
        for name in &private.numbered_nothing {
            add(&format!("{name}_{number}"), &node, default, false);
        }
    }
    all
}

fn same(exported: &BTreeSet<Export>, expected: &BTreeSet<Export>) -> Result<()> {
    let missing: Vec<_> = expected.difference(exported).collect();
    let extra: Vec<_> = exported.difference(expected).collect();
    if !missing.is_empty() || !extra.is_empty() {
        bail!("the library and symbols.toml differ: missing {missing:#?}, too many {extra:#?}");
    }
    Ok(())
}

/// Every default symbol of another libibverbs must be there, in the same node.
fn covers(exported: &BTreeSet<Export>, other: &Path) -> Result<()> {
    let names: BTreeSet<_> = exported.iter().map(|e| (&e.name, &e.node)).collect();
    let theirs = elf::exports(other)?;
    let missing: Vec<_> = theirs
        .iter()
        .filter(|e| e.default && !names.contains(&(&e.name, &e.node)))
        .map(|e| format!("{}@{}", e.name, e.node))
        .collect();
    if !missing.is_empty() {
        bail!("{} has what we lack: {}", other.display(), missing.join(", "));
    }
    println!("every default symbol of {} is there", other.display());
    Ok(())
}

/// Installed programs and libraries that need libibverbs must find all they want in ours.
fn programs_load(library: &Path) -> Result<()> {
    let folder = library.parent().context("the library has no folder")?;
    let mut checked = 0;
    for file in users_of_libibverbs()? {
        let text = output(Command::new("ldd").arg("-r").arg(&file).env("LD_LIBRARY_PATH", folder))?;
        if !text.contains(&format!("=> {}", library.display())) {
            continue;
        }
        let bad = |line: &&str| {
            (line.contains("undefined symbol") || line.contains("not found"))
                && (line.contains("ibv") || line.contains("verbs"))
        };
        if let Some(line) = text.lines().find(bad) {
            bail!("{} does not load: {line}", file.display());
        }
        checked += 1;
    }
    println!("{checked} installed programs and libraries load with it");
    Ok(())
}

/// Files in the usual places whose dynamic section asks for libibverbs.
fn users_of_libibverbs() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for folder in ["/usr/bin", "/usr/sbin", "/usr/lib/x86_64-linux-gnu"] {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for entry in entries {
            let path = entry?.path();
            if path.is_symlink() || !path.is_file() {
                continue;
            }
            let Ok(bytes) = std::fs::read(&path) else { continue };
            let needle = b"libibverbs.so.1";
            let elf = bytes.starts_with(b"\x7fELF");
            if elf && bytes.windows(needle.len()).any(|window| window == needle) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
