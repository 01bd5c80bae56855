//! Fails where the structure is not what `layers.toml` says: which crates use which, no circles of
//! files or folders, and what a crate must not name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::module_uses::{File, Modules, Name};
use crate::run_program::{metadata, root};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Layers {
    /// Folder of a crate: those of the crates that it uses, for other things than tests.
    pub(crate) crates: BTreeMap<String, BTreeSet<String>>,
    /// A word: beginnings of paths that it stands for.
    banned: BTreeMap<String, Vec<String>>,
    /// Folder of a crate: words for what it does not name.
    pub(crate) never: BTreeMap<String, BTreeSet<String>>,
    /// A file: words for what it does name, and why.
    except: BTreeMap<String, BTreeMap<String, String>>,
    /// Folder of a crate: files of it that may be in circles.
    circles: BTreeMap<String, usize>,
    /// Folder of a crate: folders in it whose files name each other's in a circle, and why.
    folder_circles: BTreeMap<String, BTreeMap<String, String>>,
}

/// `cargo xtask layers`.
pub(crate) fn run() -> Result<()> {
    let layers = Layers::read()?;
    let crates = crates(UsePurpose::Itself)?;
    let mut faults = layers.crate_faults(&crates);
    for (folder, uses) in &self::crates(UsePurpose::Tests)? {
        faults.extend(direction_faults(folder, uses).iter().map(|fault| format!("tests: {fault}")));
    }
    let mut files = 0;
    let mut unused: BTreeSet<(&str, &str)> = BTreeSet::new();
    for (file, words) in &layers.except {
        unused.extend(words.keys().map(|word| (file.as_str(), word.as_str())));
    }
    for folder in crates.keys() {
        let modules = Modules::read(&root().join(folder))?;
        files += modules.0.len();
        for file in modules.0.values() {
            let path = format!("{folder}/{}", file.path);
            for (word, named) in layers.banned_in(folder, file) {
                let reasons = layers.except.get_key_value(&path);
                match reasons.and_then(|(path, words)| Some((path, words.get_key_value(word)?))) {
                    Some((path, (word, _))) => _ = unused.remove(&(path.as_str(), word.as_str())),
                    None => faults.push(format!("{path} names {named}: no {word} in {folder}")),
                }
            }
        }
        faults.extend(layers.circle_faults(folder, &modules.circles()));
        faults.extend(layers.folder_faults(folder, &modules.folder_circles()));
    }
    faults.extend(unused.iter().map(|(file, word)| format!("{file} has no {word} any more")));
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    let edges: usize = crates.values().map(BTreeSet::len).sum();
    println!("{} crates, {edges} edges, {files} files, all as layers.toml has them", crates.len());
    Ok(())
}

impl Layers {
    /// What `layers.toml` says.
    pub(crate) fn read() -> Result<Layers> {
        let path = root().join("layers.toml");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }

    fn crate_faults(&self, crates: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
        let mut faults = Vec::new();
        for (folder, uses) in crates {
            faults.extend(direction_faults(folder, uses));
            let Some(allowed) = self.crates.get(folder) else {
                faults.push(format!("layers.toml has no line for {folder}"));
                continue;
            };
            let more = uses.difference(allowed).map(|to| format!("{folder} uses {to}"));
            let less = allowed.difference(uses).map(|to| format!("{folder} does not use {to}"));
            faults.extend(more.chain(less));
        }
        let rows = self.crates.keys().chain(self.never.keys()).chain(self.circles.keys());
        let rows = rows.chain(self.folder_circles.keys());
        let gone: BTreeSet<_> = rows.filter(|folder| !crates.contains_key(*folder)).collect();
        faults.extend(gone.iter().map(|folder| format!("there is no {folder}")));
        faults
    }

    /// Words for what a file names and its crate must not, with what it names.
    fn banned_in<'a>(&'a self, folder: &str, file: &'a File) -> Vec<(&'a str, String)> {
        let words = self.never.get(folder).into_iter().flatten();
        let paths = |word: &String| self.banned.get(word).map_or(&[][..], Vec::as_slice);
        words
            .filter_map(|word| {
                let named = file.paths.iter().map(|path| path.join("::"));
                let is_one = |named: &String| paths(word).iter().any(|ban| below(named, ban));
                Some((word.as_str(), named.into_iter().find(is_one)?))
            })
            .collect()
    }

    fn circle_faults(&self, folder: &str, circles: &[Vec<&Name>]) -> Option<String> {
        let known = self.circles.get(folder).copied().unwrap_or(0);
        let files: usize = circles.iter().map(Vec::len).sum();
        if files == known {
            return None;
        }
        if files < known {
            let line = "layers.toml is to say so";
            return Some(format!("{folder}: {files} files in circles, not {known}: {line}"));
        }
        let line = |circle: &Vec<&Name>| {
            let names = circle.iter().map(|name| match name.is_empty() {
                true => "lib".to_owned(),
                false => name.join("::"),
            });
            names.collect::<Vec<_>>().join(", ")
        };
        let lines: Vec<String> = circles.iter().map(line).collect();
        Some(format!("{folder}: {files} files in circles, more than {known}: {}", lines.join("; ")))
    }

    fn folder_faults(&self, folder: &str, circles: &[Vec<&str>]) -> Vec<String> {
        let found: BTreeSet<String> = circles.iter().map(|circle| circle.join(" ")).collect();
        let known = self.folder_circles.get(folder);
        let known: BTreeSet<String> = known.into_iter().flat_map(BTreeMap::keys).cloned().collect();
        let more = found.difference(&known);
        let more = more.map(|circle| format!("{folder}: a circle of folders: {circle}"));
        let less = known.difference(&found);
        let less = less.map(|circle| format!("{folder}: no circle of folders any more: {circle}"));
        more.chain(less).collect()
    }
}

/// What a crate uses that is above it, or beside it where that is not to be.
fn direction_faults(folder: &str, uses: &BTreeSet<String>) -> Vec<String> {
    let up = uses.iter().filter(|to| layer(to) > layer(folder));
    let beside = uses
        .iter()
        .filter(|to| layer(to) == layer(folder) && layer(to) == TOP && top(to) != top(folder));
    up.map(|to| format!("{folder} uses {to}, which is above it"))
        .chain(beside.map(|to| format!("{folder} uses {to}, which is beside it")))
        .collect()
}

/// What a crate uses others for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UsePurpose {
    Itself,
    Tests,
}

/// Crates by their folders, with those that they use for this.
fn crates(what_for: UsePurpose) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let mut crates = BTreeMap::new();
    for package in packages {
        let manifest = package["manifest_path"].as_str().context("a package has no path")?;
        let folder = Path::new(manifest).parent().context("a manifest has no folder")?;
        let mut uses = BTreeSet::new();
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let is_it = (dependency["kind"] == "dev") == (what_for == UsePurpose::Tests);
            if let Some(path) = dependency["path"].as_str().filter(|_| is_it) {
                uses.insert(folder_of(Path::new(path))?);
            }
        }
        crates.insert(folder_of(folder)?, uses);
    }
    Ok(crates)
}

/// What stands on all else, and not on each other: `app`, `host`, `tools`.
const TOP: u32 = 3;
/// What makes packages of all others.
const PACKAGES: u32 = 4;

/// How high a crate stands.
fn layer(folder: &str) -> u32 {
    match top(folder) {
        "support" => 0,
        "rnic" => 1,
        "sockets" => 2,
        "deploy" => PACKAGES,
        _ => TOP,
    }
}

/// The outermost folder.
fn top(folder: &str) -> &str {
    folder.split('/').next().unwrap_or(folder)
}

/// Whether `path` is `beginning` or below it.
fn below(path: &str, beginning: &str) -> bool {
    path.strip_prefix(beginning).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// A crate's folder, from the top of the repository.
fn folder_of(path: &Path) -> Result<String> {
    let top = root();
    let folder = path.strip_prefix(&top);
    let folder = folder.with_context(|| format!("{} is outside", path.display()))?;
    Ok(folder.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::Layers;
    use crate::module_uses::parse;
    use std::collections::{BTreeMap, BTreeSet};

    fn layers() -> Layers {
        toml::from_str(
            r#"
            [crates]
            "app/ibverbs" = ["rnic/device"]
            "rnic/device" = ["support/ring"]
            "support/ring" = []
            [banned]
            threads = ["std::thread"]
            unsafe = ["unsafe_code"]
            [never]
            "rnic/device" = ["threads", "unsafe"]
            [except]
            [circles]
            "app/ibverbs" = 2
            [folder_circles."app/ibverbs"]
            "a b" = "why"
            "#,
        )
        .unwrap()
    }

    fn faults(edges: &[(&str, &[&str])]) -> usize {
        let set = |to: &[&str]| to.iter().map(|one| (*one).to_owned()).collect::<BTreeSet<_>>();
        let crates: BTreeMap<_, _> =
            edges.iter().map(|(from, to)| ((*from).to_owned(), set(to))).collect();
        layers().crate_faults(&crates).len()
    }

    #[test]
    fn crates_use_what_is_said_no_more_and_no_less() {
        let (app, ring): (_, (_, &[&str])) =
            (("app/ibverbs", &["rnic/device"][..]), ("support/ring", &[]));
        let device = ("rnic/device", &["support/ring"][..]);
        assert_eq!(faults(&[app, device, ring]), 0);
        assert_eq!(faults(&[app, ("rnic/device", &[]), ring]), 1);
        // Not said, and upwards.
        assert_eq!(faults(&[app, device, ("support/ring", &["rnic/device"])]), 2);
        assert_eq!(faults(&[app, device]), 1);
        // Neither said, nor ever to be: `app` and `host` do not use each other.
        assert_eq!(faults(&[app, device, ring, ("host/control", &["app/ibverbs"])]), 2);
        assert_eq!(faults(&[app, device, ring, ("rnic/more", &[])]), 1);
    }

    #[test]
    fn what_must_not_be_named_is_found() {
        let banned = |folder: &str, text: &str| {
            layers().banned_in(folder, &parse(text, String::new()).unwrap()).len()
        };
        assert_eq!(banned("rnic/device", "use std::thread;"), 1);
        assert_eq!(banned("rnic/device", "use std::{sync, thread::yield_now};"), 1);
        assert_eq!(banned("rnic/device", "fn f() { std::thread::yield_now() }"), 1);
        assert_eq!(banned("rnic/device", "use std::threading; fn thread() {}"), 0);
        assert_eq!(banned("rnic/device", "#[cfg(test)] mod tests { use std::thread; }"), 0);
        assert_eq!(banned("app/ibverbs", "use std::thread;"), 0);
        assert_eq!(banned("rnic/device", "#[expect(unsafe_code)] fn f() {}"), 1);
        assert_eq!(banned("rnic/device", "#![allow(dead_code, unsafe_code)]"), 1);
        assert_eq!(banned("rnic/device", "#[expect(dead_code)] fn unsafe_code() {}"), 0);
    }

    #[test]
    fn circles_are_as_many_as_is_said() {
        let (a, b) = (vec!["a".to_owned()], vec!["b".to_owned()]);
        let circle = [vec![&a, &b]];
        assert_eq!(layers().circle_faults("app/ibverbs", &circle), None);
        assert!(layers().circle_faults("app/ibverbs", &[]).is_some());
        assert!(layers().circle_faults("rnic/device", &circle).is_some());
        assert_eq!(layers().circle_faults("rnic/device", &[]), None);
    }

    #[test]
    fn folder_circles_are_those_that_are_said() {
        let faults = |folder: &str, circles: &[&[&'static str]]| {
            let circles: Vec<Vec<&str>> = circles.iter().map(|circle| circle.to_vec()).collect();
            layers().folder_faults(folder, &circles).len()
        };
        assert_eq!(faults("app/ibverbs", &[&["a", "b"]]), 0);
        assert_eq!(faults("app/ibverbs", &[]), 1);
        // Another one instead of it, and one more.
        assert_eq!(faults("app/ibverbs", &[&["a", "b", "c"]]), 2);
        assert_eq!(faults("app/ibverbs", &[&["a", "b"], &["c", "d"]]), 1);
        assert_eq!(faults("rnic/device", &[&["a", "b"]]), 1);
        assert_eq!(faults("rnic/device", &[]), 0);
    }
}
