//! Reads the symbols that a finished library exports and needs, by binutils.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::run_program::output;

/// A defined symbol of a library: its name, its node, and whether it is the default version.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Debug)]
pub(crate) struct Export {
    pub name: String,
    pub node: String,
    pub default: bool,
    /// A variable, not a function.
    pub data: bool,
}

/// Everything that a library exports, version nodes themselves left out.
pub(crate) fn exports(library: &Path) -> Result<BTreeSet<Export>> {
    let text = output(Command::new("nm").args(["-D", "--defined-only"]).arg(library))?;
    let mut all = BTreeSet::new();
    for line in text.lines() {
        let mut words = line.split_whitespace().skip(1);
        let (Some(kind), Some(symbol)) = (words.next(), words.next()) else { continue };
        if kind == "A" {
            continue;
        }
        let (name, rest) = symbol.split_once('@').unwrap_or((symbol, ""));
        let default = rest.starts_with('@');
        all.insert(Export {
            name: name.to_owned(),
            node: rest.trim_start_matches('@').to_owned(),
            default,
            data: matches!(kind, "B" | "D" | "R"),
        });
    }
    Ok(all)
}

/// The version nodes that a library defines.
pub(crate) fn nodes(library: &Path) -> Result<BTreeSet<String>> {
    let text = output(Command::new("readelf").args(["-V", "-W"]).arg(library))?;
    let definitions = text.split("Version needs section").next().unwrap_or("");
    let names = definitions.lines().filter_map(|line| line.split("Name: ").nth(1));
    Ok(names.map(|name| name.trim().to_owned()).collect())
}

/// The functions called `ov_...` that an archive defines. (By readelf: where an LLVM plug-in is
/// installed nm asks it first, and an old one finds nothing in the objects of a new compiler.)
pub(crate) fn functions(archive: &Path) -> Result<BTreeSet<String>> {
    let text = output(Command::new("readelf").args(["-sW"]).arg(archive))?;
    let symbols = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let defined = symbols.filter(|s| s.len() == 8 && s[4] == "GLOBAL" && s[6] != "UND");
    let names = defined.filter(|s| s[7].starts_with("ov_")).map(|s| s[7].to_owned());
    Ok(names.collect())
}

/// The newest glibc that a library needs, and the symbols that need each version.
pub(crate) struct GlibcFloor {
    pub newest: (u32, u32),
    pub symbols: BTreeMap<(u32, u32), Vec<String>>,
}

/// Finds the glibc floor of a library or program.
pub(crate) fn glibc_floor(library: &Path) -> Result<GlibcFloor> {
    let text = output(Command::new("objdump").arg("-T").arg(library))?;
    let mut symbols: BTreeMap<(u32, u32), Vec<String>> = BTreeMap::new();
    for line in text.lines() {
        let Some((_, rest)) = line.split_once("GLIBC_") else { continue };
        let mut words = rest.split_whitespace();
        let version = words.next().unwrap_or("").trim_end_matches(')');
        let Some(version) = parse_version(version) else { continue };
        symbols.entry(version).or_default().push(words.next().unwrap_or("?").to_owned());
    }
    let newest = symbols.keys().next_back().copied().unwrap_or((0, 0));
    Ok(GlibcFloor { newest, symbols })
}

/// Major and minor of `2.28` or `2.2.5`; nothing for names like `PRIVATE`.
pub(crate) fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Files directly in these folders that name a library, in the order of their names.
pub(crate) fn users_of(soname: &str, folders: &[&str]) -> Result<Vec<PathBuf>> {
    let mut find = Command::new("find");
    find.args(folders).args(["-maxdepth", "1", "-type", "f"]);
    find.args(["-exec", "grep", "-lsF", soname, "{}", "+"]);
    // It fails where a folder is missing, or the last files do not name it.
    let found = find.output().with_context(|| format!("cannot run {find:?}"))?;
    let mut files: Vec<_> =
        String::from_utf8_lossy(&found.stdout).lines().map(PathBuf::from).collect();
    files.sort();
    Ok(files)
}

/// The names that programs or libraries want from others, each with one that does.
pub(crate) fn imports(files: &[PathBuf]) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    // As many at a time as a command line has room for.
    for some in files.chunks(100) {
        let text = output(Command::new("nm").args(["-D", "-A", "--undefined-only"]).args(some))?;
        for line in text.lines() {
            let Some((file, rest)) = line.split_once(": ") else { continue };
            let Some(name) = rest.split_whitespace().last() else { continue };
            let name = name.split('@').next().unwrap_or(name);
            found.entry(name.to_owned()).or_insert_with(|| PathBuf::from(file));
        }
    }
    Ok(found)
}
