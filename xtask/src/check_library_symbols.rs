//! Checks the libraries in dist/lib: each exports exactly what its table says, everything that the
//! installed one exports by default, and every program linked to that one loads with ours.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::built_libraries::{self, Library};
use crate::library_symbols::{self, Export};
use crate::symbol_tables::Table;
use crate::{check_interposed_functions, lower_glibc_version, symbol_probe, verbs_matrix};

/// Where programs and libraries are that are loaded with ours.
const FOLDERS: [&str; 3] = ["/usr/bin", "/usr/sbin", "/usr/lib/x86_64-linux-gnu"];

/// `cargo xtask abi`.
pub(crate) fn run() -> Result<()> {
    verbs_matrix::check_current()?;
    built_libraries::ALL.iter().try_for_each(|library| check(library).context(library.soname))?;
    check_interposed_functions::run()
}

fn check(of: &Library) -> Result<()> {
    println!("{}:", of.soname);
    let library = of.built();
    if !library.exists() {
        bail!("{} is missing; run `cargo xtask dist` first", library.display());
    }
    let table = Table::read(of)?;
    let exported = library_symbols::exports(&library)?;
    let expected = expected(&table);
    same(&exported, &expected)?;
    let nodes = library_symbols::nodes(&library)?;
    for node in table.nodes.keys().chain(table.own.iter().map(|own| &own.node)) {
        if !nodes.contains(node) {
            bail!("the library does not define the node {node}");
        }
    }
    println!("{} symbols in {} nodes, as the table says", exported.len(), nodes.len() - 1);
    if of.installed().exists() {
        covers(&exported, &of.installed())?;
    } else {
        println!("no installed one to compare with");
    }
    let (major, minor) = library_symbols::glibc_floor(&library)?.newest;
    if (major, minor) > lower_glibc_version::WANTED {
        bail!(
            "the library needs glibc {major}.{minor}, more than {:?}",
            lower_glibc_version::WANTED
        );
    }
    println!("needs glibc {major}.{minor}");
    symbol_probe::check(&table, &library)?;
    println!("what is not offered answers as the table says");
    programs_load(of)
}

/// What the table says the library exports.
pub(crate) fn expected(table: &Table) -> BTreeSet<Export> {
    let mut all = BTreeSet::new();
    let mut add = |name: &str, node: &str, default: bool, data: bool| {
        all.insert(Export { name: name.to_owned(), node: node.to_owned(), default, data });
    };
    for (node, symbols) in &table.nodes {
        symbols.keys().for_each(|name| add(name, node, true, false));
    }
    if let Some(own) = &table.own {
        own.functions.iter().for_each(|name| add(name, &own.node, false, false));
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

/// Every default symbol of another such library must be there, in the same node.
fn covers(exported: &BTreeSet<Export>, other: &Path) -> Result<()> {
    let names: BTreeSet<_> = exported.iter().map(|e| (&e.name, &e.node)).collect();
    let theirs = library_symbols::exports(other)?;
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

/// Installed programs and libraries that need the installed one must find all they want in ours.
/// Plug-ins want more, of the program that loads them: what they miss with the installed library as
/// well is not our affair.
fn programs_load(of: &Library) -> Result<()> {
    let library = of.built();
    let mut checked = 0;
    for file in library_symbols::users_of(of.soname, &FOLDERS)? {
        let with_ours = linked(&file, Some(&built_libraries::folder()))?;
        if !with_ours.contains(&format!("=> {}", library.display())) {
            continue;
        }
        if let Some(line) = new_complaint(&with_ours, &linked(&file, None)?) {
            bail!("{} does not load: {line}", file.display());
        }
        checked += 1;
    }
    println!("{checked} installed programs and libraries load with it");
    Ok(())
}

/// What `ldd -r` says of a file, whose libraries are looked for in `folder` first.
fn linked(file: &Path, folder: Option<&Path>) -> Result<String> {
    let mut command = Command::new("ldd");
    command.arg("-r").arg(file).env_remove("LD_LIBRARY_PATH");
    if let Some(folder) = folder {
        command.env("LD_LIBRARY_PATH", folder);
    }
    // It fails for what lacks something, and says so in its output.
    let said = command.output().with_context(|| format!("cannot run {command:?}"))?;
    Ok([said.stdout, said.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat())
}

/// The first thing missing with one library that is not missing with another.
fn new_complaint<'a>(with_ours: &'a str, with_theirs: &str) -> Option<&'a str> {
    let bad = |line: &&str| line.contains("undefined symbol") || line.contains("not found");
    // Behind the name stands who misses it, and where it was looked for.
    fn what(line: &str) -> &str {
        line.split(['(', '\t']).find(|part| !part.trim().is_empty()).unwrap_or(line)
    }
    let theirs: BTreeSet<_> = with_theirs.lines().filter(bad).map(what).collect();
    with_ours.lines().filter(bad).find(|line| !theirs.contains(what(line)))
}

#[cfg(test)]
mod tests {
    use super::new_complaint;

    #[test]
    fn what_is_missing_anyway_is_no_fault_of_ours() {
        let theirs = "libibverbs.so.1 => /usr/lib/libibverbs.so.1 (0x1)\n\
                      undefined symbol: opal_common_verbs_port\t(/usr/lib/plugin.so)\n\
                      \tlibother.so.7 => not found\n";
        let ours = theirs.replace("/usr/lib/libibverbs", "/ours/libibverbs");
        assert_eq!(new_complaint(&ours, theirs), None);
        for line in [
            "undefined symbol: ibv_new, version IBVERBS_1.18\t(/usr/bin/program)",
            "/usr/bin/x: /ours/libibverbs.so.1: version `IBVERBS_1.18' not found (required by x)",
        ] {
            assert_eq!(new_complaint(&format!("{ours}{line}\n"), theirs), Some(line));
        }
    }
}
