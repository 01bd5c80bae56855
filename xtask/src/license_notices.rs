//! Writes the licenses of linked crates, for packages of a distribution.
//!
//! For packages of a distribution.
//!
//! In: cargo's metadata, the sources that cargo has. Out: `dist/NOTICES`.

use crate::run_program::{cargo, output, root};
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const FILES: [&str; 4] = ["LICENSE", "LICENCE", "COPYING", "NOTICE"];
const STANDARD: &str = "Rust's standard library, https://www.rust-lang.org: MIT OR Apache-2.0\n\
                        Copyright (c) The Rust Project Contributors\n";

/// Writes the licences of all crates that are linked into `dist/`.
pub(crate) fn write() -> Result<()> {
    let host = ["--filter-platform", "x86_64-unknown-linux-gnu"];
    let text = output(cargo().args(["metadata", "--format-version", "1", "--locked"]).args(host))?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata")?;
    let linked = linked(&metadata);
    let mut notices = String::from(STANDARD);
    // Many have the same text.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in list(&metadata["packages"]) {
        if !linked.contains(word(&package["id"])) || package["source"].is_null() {
            continue;
        }
        let name = format!("{} {}", word(&package["name"]), word(&package["version"]));
        notices += &format!("{name}: {}\n", word(&package["license"]));
        let folder = Path::new(word(&package["manifest_path"])).parent().context("a folder")?;
        for text in texts_in(folder)? {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    for (text, names) in texts {
        notices += &format!("\n{}\n{}:\n\n{}\n", "-".repeat(72), names.join(", "), text.trim_end());
    }
    std::fs::write(root().join("dist/NOTICES"), notices).context("dist/NOTICES")
}

/// The ids of all packages that members of the workspace are linked with, but for those that run
/// when something is built or tested.
fn linked(metadata: &Value) -> BTreeSet<&str> {
    let mut needs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let normal = |dep: &&Value| list(&dep["dep_kinds"]).iter().any(|k| k["kind"].is_null());
        let deps = list(&node["deps"]).iter().filter(normal).map(|dep| word(&dep["pkg"]));
        needs.insert(word(&node["id"]), deps.collect());
    }
    let ours = |id: &&str| ["/xtask#", "/deploy/manual#"].iter().all(|tool| !id.contains(tool));
    let mut waiting: Vec<&str> =
        list(&metadata["workspace_members"]).iter().map(word).filter(ours).collect();
    let mut found = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if found.insert(id) {
            waiting.extend(needs.get(id).into_iter().flatten());
        }
    }
    found
}

fn texts_in(folder: &Path) -> Result<Vec<String>> {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let named = |path: &&std::path::PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().to_uppercase());
        name.is_some_and(|name| FILES.iter().any(|file| name.starts_with(file))) && path.is_file()
    };
    // Debian has the text of this one.
    let apache = |text: &String| text.contains("Apache License") && text.contains("Version 2.0");
    let texts = paths.iter().filter(named).map(std::fs::read_to_string);
    Ok(texts.collect::<std::io::Result<Vec<_>>>()?.into_iter().filter(|t| !apache(t)).collect())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}
