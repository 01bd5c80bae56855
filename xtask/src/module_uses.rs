//! Finds which modules and crates each file names, tests apart.
//!
//! Code that is only there for tests is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use syn::visit::{self, Visit};

/// A module's place in its crate: `["worker", "send"]`; the root has none.
pub(crate) type Name = Vec<String>;

/// A file of a crate.
pub(crate) struct File {
    /// From the crate's folder.
    pub(crate) path: String,
    /// All paths in it that are not of the file itself, as they are written.
    pub(crate) paths: BTreeSet<Name>,
    /// What `pub use` in it makes known, by the name it gets.
    exports: BTreeMap<String, Name>,
}

/// The files of a crate by the modules that they are.
pub(crate) struct Modules(pub(crate) BTreeMap<Name, File>);

impl Modules {
    /// Reads `folder/src`, without `tests.rs`, `tests/` and `testing/`.
    pub(crate) fn read(folder: &Path) -> Result<Modules> {
        let mut found = BTreeMap::new();
        read_folder(folder, "src", &mut Vec::new(), &mut found)?;
        Ok(Modules(found))
    }

    /// Which files name which others.
    pub(crate) fn edges(&self) -> BTreeMap<&Name, BTreeSet<&Name>> {
        let mut edges: BTreeMap<&Name, BTreeSet<&Name>> = BTreeMap::new();
        for (name, file) in &self.0 {
            let named = file.paths.iter().filter_map(|path| self.file_of(name, path));
            edges.insert(name, named.filter(|to| *to != name).collect());
        }
        edges
    }

    /// The file that has what `path` names in the module `from`, if it is of this crate.
    fn file_of(&self, from: &Name, path: &[String]) -> Option<&Name> {
        let mut path = self.absolute(from, path)?;
        // What another file exports from elsewhere is there. Names are not exported in a ring.
        for _ in 0..8 {
            let (module, end) = self.split(&path)?;
            let exports = &self.0.get(module)?.exports;
            let Some(elsewhere) = path.get(end).and_then(|first| exports.get(first)) else {
                return Some(module);
            };
            path = [self.absolute(module, elsewhere)?, path[end + 1..].to_vec()].concat();
        }
        None
    }

    /// From the root of the crate, if it is of the crate.
    fn absolute(&self, from: &Name, path: &[String]) -> Option<Name> {
        let first = path.first()?;
        match first.as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([from, &path[1..]].concat()),
            "super" => {
                let ups = path.iter().take_while(|word| *word == "super").count();
                let base = &from[..from.len().checked_sub(ups)?];
                Some([base, &path[ups..]].concat())
            }
            _ => {
                let inside = [from.clone(), vec![first.clone()]].concat();
                self.0.contains_key(&inside).then(|| [from, path].concat())
            }
        }
    }

    /// The longest beginning of `path` that is a file, and where it ends.
    fn split(&self, path: &[String]) -> Option<(&Name, usize)> {
        let mut ends = (0..=path.len()).rev();
        ends.find_map(|end| self.0.get_key_value(&path[..end]).map(|(name, _)| (name, end)))
    }

    /// The rings of files that name each other, each in order of names.
    pub(crate) fn circles(&self) -> Vec<Vec<&Name>> {
        circles(&self.edges())
    }

    /// The rings of folders whose files name each other's, each in order of names. A file is of the
    /// outermost folder that it is in; what lies beside `lib.rs` is of none.
    pub(crate) fn folder_circles(&self) -> Vec<Vec<&str>> {
        let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (from, all) in self.edges() {
            if let Some(from) = self.folder_of(from) {
                let to = all.into_iter().filter_map(|to| self.folder_of(to));
                edges.entry(from).or_default().extend(to.filter(|to| *to != from));
            }
        }
        circles(&edges)
    }

    /// The outermost folder that a file is in, if it is in one.
    fn folder_of(&self, name: &Name) -> Option<&str> {
        let (name, file) = self.0.get_key_value(name)?;
        let is_inside = name.len() > 1 || file.path.ends_with("/mod.rs");
        name.first().filter(|_| is_inside).map(String::as_str)
    }
}

/// Which of these lead to each other, all that do together.
fn circles<T: Copy + Ord>(edges: &BTreeMap<T, BTreeSet<T>>) -> Vec<Vec<T>> {
    let reach: BTreeMap<T, BTreeSet<T>> =
        edges.keys().map(|from| (*from, reachable(*from, edges))).collect();
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for (from, there) in &reach {
        if !there.contains(from) || seen.contains(from) {
            continue;
        }
        let back = |to: &&T| reach.get(to).is_some_and(|back| back.contains(from));
        let circle: Vec<T> = there.iter().filter(back).copied().collect();
        seen.extend(circle.iter().copied());
        circles.push(circle);
    }
    circles
}

fn reachable<T: Copy + Ord>(from: T, edges: &BTreeMap<T, BTreeSet<T>>) -> BTreeSet<T> {
    let mut found = BTreeSet::new();
    let mut left = vec![from];
    while let Some(one) = left.pop() {
        for to in edges.get(&one).into_iter().flatten() {
            if found.insert(*to) {
                left.push(*to);
            }
        }
    }
    found
}

fn read_folder(
    top: &Path,
    at: &str,
    module: &mut Name,
    found: &mut BTreeMap<Name, File>,
) -> Result<()> {
    let folder = top.join(at);
    let entries = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{at}/{name}");
        if entry.file_type()?.is_dir() {
            if name != "tests" && name != "testing" {
                module.push(name);
                read_folder(top, &path, module, found)?;
                module.pop();
            }
        } else if let Some(stem) = name.strip_suffix(".rs").filter(|stem| *stem != "tests") {
            let text = std::fs::read_to_string(entry.path())?;
            let mut full = module.clone();
            if !matches!(stem, "lib" | "main" | "mod") {
                full.push(stem.to_owned());
            }
            found.insert(full, parse(&text, path)?);
        }
    }
    Ok(())
}

/// Reads one file.
pub(crate) fn parse(text: &str, path: String) -> Result<File> {
    let tree = syn::parse_file(text).with_context(|| path.clone())?;
    let mut reader = UseReader { paths: BTreeSet::new(), exports: BTreeMap::new() };
    reader.visit_file(&tree);
    Ok(File { path, paths: reader.paths, exports: reader.exports })
}

struct UseReader {
    paths: BTreeSet<Name>,
    exports: BTreeMap<String, Name>,
}

impl UseReader {
    fn tree(&mut self, tree: &syn::UseTree, before: &mut Name, exported: bool) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(&path.tree, before, exported);
                before.pop();
            }
            syn::UseTree::Name(name) => self.found(&name.ident, &name.ident, before, exported),
            syn::UseTree::Rename(both) => self.found(&both.ident, &both.rename, before, exported),
            syn::UseTree::Glob(_) => {
                self.paths.insert(before.clone());
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.tree(tree, before, exported);
                }
            }
        }
    }

    fn found(&mut self, name: &syn::Ident, known: &syn::Ident, before: &Name, exported: bool) {
        let mut path = before.clone();
        // `use a::{self}` names `a`.
        if name != "self" || path.is_empty() {
            path.push(name.to_string());
        }
        if exported {
            self.exports.insert(known.to_string(), path.clone());
        } else {
            self.paths.insert(path);
        }
    }
}

impl<'a> Visit<'a> for UseReader {
    fn visit_item(&mut self, item: &'a syn::Item) {
        let attributes = match item {
            syn::Item::Mod(one) => &one.attrs,
            syn::Item::Fn(one) => &one.attrs,
            syn::Item::Use(one) => &one.attrs,
            syn::Item::Impl(one) => &one.attrs,
            syn::Item::Struct(one) => &one.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !attributes.iter().any(is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        let exported = !matches!(item.vis, syn::Visibility::Inherited);
        self.tree(&item.tree, &mut Vec::new(), exported);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.segments.len() > 1 {
            self.paths.insert(path.segments.iter().map(|one| one.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    /// What lets a file do what is denied elsewhere: it names the lint.
    fn visit_attribute(&mut self, attribute: &'a syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta
            && (list.path.is_ident("expect") || list.path.is_ident("allow"))
        {
            let lints = list.tokens.to_string();
            self.paths.extend(lints.split(',').map(|lint| vec![lint.trim().to_owned()]));
        }
    }

    /// `pub(in crate::x)` says who may use it, not what it uses.
    fn visit_visibility(&mut self, _: &'a syn::Visibility) {}
}

pub(crate) fn is_for_tests(attribute: &syn::Attribute) -> bool {
    let text = match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => list.tokens.to_string(),
        _ => return false,
    };
    let names = ["test", "fuzzing", r#"feature = "fuzz""#];
    names.contains(&text.as_str())
        || text
            .strip_prefix("any (")
            .and_then(|text| text.strip_suffix(')'))
            .is_some_and(|any| any.split(" , ").all(|one| names.contains(&one)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules(files: &[(&str, &str)]) -> Modules {
        let name =
            |text: &str| text.split("::").filter(|w| !w.is_empty()).map(Into::into).collect();
        let file =
            |(module, text): &(&str, &str)| (name(module), parse(text, String::new()).unwrap());
        Modules(files.iter().map(file).collect())
    }

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let modules = modules(files);
        let circles = modules.circles();
        let line = |circle: &Vec<&Name>| {
            circle.iter().map(|name| name.join("::")).collect::<Vec<_>>().join(" ")
        };
        circles.iter().map(line).collect()
    }

    #[test]
    fn circles_are_found() {
        let straight = [("", "pub mod a; mod b;"), ("a", "use crate::b::B;"), ("b", "")];
        assert!(circles(&straight).is_empty());
        let round = [("", ""), ("a", "use crate::b::B;"), ("b", "fn f(_: super::a::A) {}")];
        assert_eq!(circles(&round), ["a b"]);
        let long = [("a", "use super::b;"), ("b", "use super::c;"), ("c", "use crate::{a, d};")];
        assert_eq!(circles(&[("", ""), ("d", ""), long[0], long[1], long[2]]), ["a b c"]);
    }

    #[test]
    fn folders_that_name_each_other_are_found() {
        let found = |files: &[(&str, &str)]| {
            let modules = modules(files);
            let circles = modules.folder_circles();
            circles.iter().map(|circle| circle.join(" ")).collect::<Vec<_>>()
        };
        // No circle of files, and one of folders.
        let files = [
            ("", "mod a; mod b; mod g;"),
            ("a::c", "use crate::b::e::E;"),
            ("a::d", ""),
            ("b::e", ""),
            ("b::f", "use crate::a::d::D;"),
        ];
        assert!(circles(&files).is_empty());
        assert_eq!(found(&files), ["a b"]);
        assert!(found(&files[..4]).is_empty());
        // One by way of a third.
        let long = [files[0], files[1], files[2], files[3], ("b::f", "use crate::g::h::H;")];
        let back = [("g::h", ""), ("g::i", "use crate::a::d::D;")];
        assert_eq!(found(&[&long[..], &back[..]].concat()), ["a b g"]);
        // What lies beside `lib.rs` is of no folder, and a folder's folder is of that.
        let beside = [("a", "use crate::b::c::C;"), ("b::c", "use crate::a;")];
        assert!(found(&beside).is_empty());
        let nested = [("a::b::c", "use crate::a::d::D;"), ("a::d", "use crate::a::b::c::C;")];
        assert!(found(&nested).is_empty());
    }

    #[test]
    fn what_the_root_exports_is_where_it_was_made() {
        let root = ("", "mod a; mod b; pub use a::A; pub use b::B;");
        assert!(circles(&[root, ("a", ""), ("b", "use crate::A;")]).is_empty());
        assert_eq!(circles(&[root, ("a", "use crate::B;"), ("b", "use crate::A;")]), ["a b"]);
    }

    #[test]
    fn tests_do_not_count() {
        let tests = "#[cfg(test)] mod tests { use crate::b::B; }";
        assert!(circles(&[("", ""), ("a", tests), ("b", "use crate::a::A;")]).is_empty());
    }

    #[test]
    fn a_folder_is_a_module_and_so_are_its_files() {
        let files =
            [("", ""), ("a", "mod c;"), ("a::c", "use super::A;"), ("b", "use crate::a::c::C;")];
        assert!(circles(&files).is_empty());
        let back = [("", ""), ("a", "mod c; use c::C;"), ("a::c", "use super::A;")];
        assert_eq!(circles(&back), ["a a::c"]);
    }
}
