//! Compares the symbol tables with a release of rdma-core: which nodes and symbols a program built
//! against that one may ask for, and would not find.
//!
//! In: the root of a source tree of rdma-core. Of it only the version scripts of the libraries and
//! the number of the private node are read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::symbol_tables::Table;
use crate::{built_libraries, check_library_symbols};

/// The symbols of each node.
type Nodes = BTreeMap<String, BTreeSet<String>>;

/// `cargo xtask follow`.
pub(crate) fn run(flags: &[&str]) -> Result<()> {
    let [tree] = flags else { bail!("which source tree of rdma-core?") };
    let tree = Path::new(tree);
    let read = |name: &str| {
        let path = tree.join(name);
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    let settings = read("CMakeLists.txt")?;
    let private = setting(&settings, "IBVERBS_PABI_VERSION")
        .context("CMakeLists.txt does not set IBVERBS_PABI_VERSION")?;
    let release = setting(&settings, "PACKAGE_VERSION").unwrap_or("of unknown number");
    let (mut theirs, mut all_ours) = (Nodes::new(), Nodes::new());
    for library in built_libraries::ALL {
        let Some(script) = library.script else { continue };
        theirs.extend(nodes(&read(script)?, private)?);
        all_ours.extend(ours(&Table::read(library)?));
    }
    forget_first_interface(&mut theirs);
    let missing = missing(&theirs, &all_ours);
    for (node, names) in &missing {
        println!("{node}: {}", names.iter().map(String::as_str).collect::<Vec<_>>().join(" "));
    }
    if !missing.is_empty() {
        bail!("the symbol tables lack this of release {release}");
    }
    let count: usize = theirs.values().map(BTreeSet::len).sum();
    println!("{count} symbols in {} nodes of release {release} are there", theirs.len());
    Ok(())
}

/// The value of a variable of CMake.
fn setting<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let start =
        text.lines().find_map(|line| line.trim().strip_prefix("set(")?.strip_prefix(name))?;
    Some(start.trim().trim_end_matches(')').trim_matches('"'))
}

/// The nodes of a version script, `private` in place of the number that is filled in.
fn nodes(script: &str, private: &str) -> Result<Nodes> {
    let mut plain = String::new();
    let mut rest = script;
    while let Some((before, comment)) = rest.split_once("/*") {
        plain.push_str(before);
        rest = comment.split_once("*/").context("a comment has no end")?.1;
    }
    plain.push_str(rest);
    let plain = plain.replace("@IBVERBS_PABI_VERSION@", private);
    let mut found = Nodes::new();
    for part in plain.split('}') {
        let Some((head, body)) = part.split_once('{') else { continue };
        // Before the name stands the end of the node before: what it depends on.
        let name = head.rsplit(';').next().unwrap_or(head).trim();
        let (global, _) = body.split_once("local:").unwrap_or((body, ""));
        let global = global.replacen("global:", "", 1);
        let names = global.split(';').map(str::trim).filter(|name| !name.is_empty());
        found.insert(name.to_owned(), names.map(str::to_owned).collect());
    }
    if found.is_empty() {
        bail!("no node in the version script");
    }
    Ok(found)
}

/// The first interface of all, with structs of its own, has the names of the second one. What asks
/// for it was linked before 2008, and we do not offer it.
fn forget_first_interface(nodes: &mut Nodes) {
    let second = nodes.get("IBVERBS_1.1").cloned().unwrap_or_default();
    if let Some(first) = nodes.get_mut("IBVERBS_1.0") {
        first.retain(|name| !second.contains(name));
    }
}

/// What we export, by node. A node may be empty.
fn ours(table: &Table) -> Nodes {
    let mut all: Nodes = table.nodes.keys().map(|node| (node.clone(), BTreeSet::new())).collect();
    for export in check_library_symbols::expected(table) {
        all.entry(export.node).or_default().insert(export.name);
    }
    all
}

/// What they have and we have not, in the same node.
fn missing(theirs: &Nodes, ours: &Nodes) -> Nodes {
    let none = BTreeSet::new();
    let lacks = |(node, names): (&String, &BTreeSet<String>)| {
        let own = ours.get(node);
        let names: BTreeSet<_> = names.difference(own.unwrap_or(&none)).cloned().collect();
        (!names.is_empty() || own.is_none()).then(|| (node.clone(), names))
    };
    theirs.iter().filter_map(lacks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "/* of a { test; } */\nIBVERBS_1.0 {\n\tglobal:\n\t\tone;\n\t\ttwo;\n\
        \tlocal: *;\n};\nIBVERBS_1.1 {\n\tglobal:\n\t\tthree;\n} IBVERBS_1.0;\n/* private */\n\
        IBVERBS_PRIVATE_@IBVERBS_PABI_VERSION@ {\n\tglobal:\n\
        \t\tfour_@IBVERBS_PABI_VERSION@;\n};\n";

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_version_script_is_read() {
        let found = nodes(SCRIPT, "65").unwrap();
        let expected = [
            ("IBVERBS_1.0", set(&["one", "two"])),
            ("IBVERBS_1.1", set(&["three"])),
            ("IBVERBS_PRIVATE_65", set(&["four_65"])),
        ];
        assert_eq!(found, expected.map(|(node, names)| (node.to_owned(), names)).into());
        assert!(nodes("nothing", "65").is_err());
        assert!(nodes("/* no end", "65").is_err());
    }

    #[test]
    fn only_what_the_second_interface_has_is_forgotten() {
        let script = SCRIPT.replace("three;", "three; two;");
        let mut found = nodes(&script, "65").unwrap();
        forget_first_interface(&mut found);
        assert_eq!(found["IBVERBS_1.0"], set(&["one"]));
        assert_eq!(found["IBVERBS_1.1"], set(&["three", "two"]));
    }

    #[test]
    fn a_setting_is_found() {
        let text = "set(A \"1\")\n  set(PACKAGE_VERSION \"65.0\")\n";
        assert_eq!(setting(text, "PACKAGE_VERSION"), Some("65.0"));
        assert_eq!(setting(text, "IBVERBS_PABI_VERSION"), None);
    }

    #[test]
    fn what_is_missing_is_named() {
        let theirs = nodes(SCRIPT, "65").unwrap();
        assert_eq!(missing(&theirs, &theirs), Nodes::new());
        let mut ours = theirs.clone();
        ours.remove("IBVERBS_1.1");
        ours.get_mut("IBVERBS_1.0").unwrap().remove("two");
        let found = missing(&theirs, &ours);
        assert_eq!(found.len(), 2);
        assert_eq!(
            (&found["IBVERBS_1.0"], &found["IBVERBS_1.1"]),
            (&set(&["two"]), &set(&["three"]))
        );
        // An empty node is one to be there, too.
        let empty = Nodes::from([("IBVERBS_1.9".to_owned(), set(&[]))]);
        assert_eq!(missing(&empty, &theirs), empty);
    }
}
