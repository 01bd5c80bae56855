//! Finds declared fields and parameters of type `bool` whose names do not say what `true` means.
//!
//! A field that others see and that has to be explained is an enum, whose values explain
//! themselves, or is called so that its name is the whole explanation (`is_ready`, `may_wait`). A
//! function takes one only if its own name says of what (`set_blocked(blocked)`).

use anyhow::{Context, Result};
use syn::visit::{self, Visit};

/// Files with some all the same, and why.
const ALLOWED: [(&str, &str); 9] = [
    ("rnic/wire/src/opcode.rs", "two comparisons make one of four places, nowhere with literals"),
    ("tools/cluster_agent/src/commands.rs", FLAG),
    ("tools/omniverb/src/run.rs", FLAG),
    ("tools/omniverb/src/status.rs", FLAG),
    ("tools/omniverb/src/vm/supervisor.rs", FLAG),
    ("tools/omniverb/src/vm/list_machines.rs", FLAG),
    ("tools/omniverb/src/vm/mod.rs", FLAG),
    (
        "tools/omniverb/src/vm/agent_windows.rs",
        "what the relay says of itself, nowhere with literals",
    ),
    ("tools/omniverb/src/vnic.rs", FLAG),
];
const FLAG: &str = "a flag of the command line, handed on";

/// What the name of a field begins with that is true or false.
const PREDICATES: [&str; 7] = ["is_", "has_", "may_", "can_", "was_", "must_", "needs_"];

/// Whether the code of a file, or a part of it, is a product's.
fn is_product(name: &str) -> bool {
    let folder = ["app/", "host/", "rnic/", "sockets/", "support/", "tools/"];
    folder.iter().any(|folder| name.starts_with(folder))
        && name.contains("/src/")
        && name.ends_with(".rs")
        && !["/testing/", "/tests/", "/tests.rs", "_tests.rs"].iter().any(|one| name.contains(one))
}

/// What is wrong with a file.
///
/// # Errors
/// It is not Rust.
pub(crate) fn faults(name: &str, text: &str, faults: &mut Vec<String>) -> Result<()> {
    if !is_product(name) {
        return Ok(());
    }
    let found = found(text).with_context(|| name.to_owned())?;
    match ALLOWED.iter().find(|(file, _)| *file == name) {
        Some((_, reason)) if found.is_empty() => {
            faults.push(format!("{name}: nothing is true or false there any more: {reason}"));
        }
        Some(_) => {}
        None => faults.extend(found.iter().map(|one| format!("{name}: {one}: an enum says more"))),
    }
    Ok(())
}

fn found(text: &str) -> Result<Vec<String>> {
    let mut finder = BoolNameFinder(Vec::new());
    finder.visit_file(&syn::parse_file(text)?);
    Ok(finder.0)
}

struct BoolNameFinder(Vec<String>);

fn is_bool(kind: &syn::Type) -> bool {
    matches!(kind, syn::Type::Path(path) if path.path.is_ident("bool"))
}

fn is_seen(visibility: &syn::Visibility) -> bool {
    !matches!(visibility, syn::Visibility::Inherited)
}

impl BoolNameFinder {
    fn function(&mut self, signature: &syn::Signature) {
        let name = signature.ident.to_string();
        for argument in &signature.inputs {
            if let syn::FnArg::Typed(argument) = argument
                && let syn::Pat::Ident(of) = &*argument.pat
                && is_bool(&argument.ty)
                && !name.contains(&of.ident.to_string())
            {
                self.0.push(format!("{name}({})", of.ident));
            }
        }
    }
}

impl<'a> Visit<'a> for BoolNameFinder {
    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if !item.attrs.iter().any(crate::module_uses::is_for_tests) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'a syn::ItemStruct) {
        for field in &item.fields {
            let has = |what| field.attrs.iter().any(|one| one.path().is_ident(what));
            let Some(name) = field.ident.as_ref().map(ToString::to_string) else { continue };
            let named = PREDICATES.iter().any(|prefix| name.starts_with(prefix));
            // The command line's help is documentation, and its flags have their names.
            if is_seen(&field.vis) && is_bool(&field.ty) && has("doc") && !has("arg") && !named {
                self.0.push(format!("{}.{name}", item.ident));
            }
        }
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        if is_seen(&item.vis) {
            self.function(&item.sig);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        if is_seen(&item.vis) {
            self.function(&item.sig);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{faults, found, is_product};

    #[test]
    fn what_has_to_be_explained_is_found() {
        let found = |text: &str| found(text).unwrap().join(" ");
        assert_eq!(found("pub struct A { /// Why.\n pub(crate) late: bool }"), "A.late");
        assert_eq!(found("pub(super) fn f(a: u32, late: bool) {}"), "f(late)");
        assert_eq!(found("impl A { pub fn new(late: bool, b: bool) {} }"), "new(late) new(b)");
    }

    #[test]
    fn what_explains_itself_is_left() {
        let found = |text: &str| found(text).unwrap().join(" ");
        assert_eq!(found("pub struct A { /// Why.\n pub is_late: bool, pub b: bool }"), "");
        assert_eq!(found("struct A { /// Why.\n late: bool, /// Some.\n pub count: u32 }"), "");
        assert_eq!(found("pub fn set_late(late: bool) {} fn f(late: bool) {}"), "");
        assert_eq!(found("struct A { /// Help.\n #[arg(long)]\n pub late: bool }"), "");
        assert_eq!(found("#[cfg(test)] mod tests { pub fn f(late: bool) {} }"), "");
    }

    #[test]
    fn a_file_is_allowed_some_while_it_has_some() {
        let count = |name: &str, text: &str| {
            let mut all = Vec::new();
            faults(name, text, &mut all).unwrap();
            all.len()
        };
        let text = "pub fn f(late: bool) {}";
        assert_eq!(count("rnic/wire/src/bth.rs", text), 1);
        assert_eq!(count("rnic/wire/src/opcode.rs", text), 0);
        assert_eq!(count("rnic/wire/src/opcode.rs", "fn f() {}"), 1);
        assert!(!is_product("rnic/wire/tests/vectors.rs") && !is_product("xtask/src/tidy.rs"));
        assert!(!is_product("app/client/src/testing/hostile_opener.rs"));
    }
}
