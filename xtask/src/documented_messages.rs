//! Checks that the guides explain what programs say: findings of the doctor, reasons in
//! `omniverb status`, keys of the configuration.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};

/// Letters that a piece of a text has at least, so that it can be looked for.
const LEAST: usize = 8;

/// The texts of findings in a file of the doctor: what `note` and `bad` are given first, without
/// what is filled in.
///
/// # Errors
/// It is not Rust.
pub(crate) fn findings(name: &str, text: &str) -> Result<Vec<String>> {
    let mut finder = PhraseFinder(Vec::new());
    finder.visit_file(&syn::parse_file(text).with_context(|| name.to_owned())?);
    Ok(finder.0)
}

/// The reasons in a file, of several words each, behind this one, as in `=> "a reason"`: up to a
/// colon or semicolon, behind which a guide may be shorter.
pub(crate) fn reasons<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    let lines = text.lines().map(str::trim).filter(|line| line.ends_with("\",") || is_text(line));
    let said = lines.filter_map(|line| {
        let (head, rest) = line.split_once('"')?;
        let phrase = rest.trim_end_matches(',').strip_suffix('"')?;
        let is_one = head.is_empty() || head.trim_end().ends_with(before) || is_numbered(head);
        (is_one && phrase.contains(' ')).then_some(phrase)
    });
    said.filter_map(|phrase| phrase.split([':', ';']).next()).collect()
}

fn is_text(line: &str) -> bool {
    line.starts_with('"') && line.ends_with('"')
}

fn is_numbered(head: &str) -> bool {
    head.split_once(" = ").is_some_and(|(_, number)| number.trim().parse::<u32>().is_ok())
}

/// The keys of a configuration file with all its defaults, some of them behind `#`.
pub(crate) fn keys(toml: &str) -> BTreeSet<&str> {
    let set = toml.lines().filter_map(|line| {
        let (key, _) = line.strip_prefix('#').unwrap_or(line).split_once(" = ")?;
        key.chars().all(|c| c.is_ascii_lowercase() || c == '_').then_some(key)
    });
    set.collect()
}

/// The words that head the paragraphs of a man page: behind `.TP`, in bold.
pub(crate) fn bold_words(page: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (before, line) in page.lines().zip(page.lines().skip(1)) {
        let bold = line.strip_prefix(".B ").or_else(|| line.strip_prefix(".BR "));
        if let Some(bold) = bold.filter(|_| before == ".TP") {
            let words = bold.split(|c: char| !c.is_ascii_lowercase() && c != '_');
            found.extend(words.map(str::to_owned));
        }
    }
    found
}

/// What a page does not say.
pub(crate) fn faults(page: &str, text: &str, phrases: &[impl AsRef<str>]) -> Vec<String> {
    let missing = phrases.iter().map(AsRef::as_ref).filter(|phrase| !text.contains(*phrase));
    missing.map(|phrase| format!("{page} does not explain {phrase:?}")).collect()
}

struct PhraseFinder(Vec<String>);

impl<'ast> Visit<'ast> for PhraseFinder {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if call.method == "note" || call.method == "bad" {
            let text = call.args.first().and_then(literal);
            let pieces = text.as_deref().map(pieces).unwrap_or_default();
            self.0.extend(pieces.into_iter().max_by_key(String::len));
        }
        visit::visit_expr_method_call(self, call);
    }
}

/// The text of a literal, or the first one in `format_args!`.
fn literal(expression: &syn::Expr) -> Option<String> {
    match expression {
        syn::Expr::Lit(literal) => match &literal.lit {
            syn::Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        syn::Expr::Macro(called) => {
            let parse = Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated;
            literal(called.mac.parse_body_with(parse).ok()?.first()?)
        }
        _ => None,
    }
}

/// What stands between `{...}`, where it is long enough.
fn pieces(text: &str) -> Vec<String> {
    let all = text.split('{').map(|part| part.split_once('}').map_or(part, |(_, rest)| rest));
    let trimmed = all.map(|part| part.trim_matches([' ', ':', ',']));
    trimmed.filter(|part| part.len() >= LEAST).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_known_by_their_longest_piece() {
        let text = r#"fn f() { findings.bad("no socket at all", "make one"); findings.good("fine");
            findings.note(format_args!("{x} would load {y}"), "z");
            findings.bad(text, "mend"); }"#;
        assert_eq!(findings("x.rs", text).unwrap(), ["no socket at all", "would load"]);
    }

    #[test]
    fn reasons_are_found() {
        let text = "Why::One => \"same host\",\nWhy::Two => {\n    \"none yet; later\"\n}\n\
                    Three = 3 \"a stream has it: so\",\nNone = 0 \"\",\nf(\"no reason\");\n";
        assert_eq!(reasons(text, "=>"), ["same host", "none yet", "a stream has it"]);
    }

    #[test]
    fn words_that_head_paragraphs_are_found() {
        let page = ".TP\n.BR a_b \" (default 5)\"\nText.\n.B c\n.TP\n.B users\n.TP\nd\n";
        let found = bold_words(page);
        assert!(found.contains("a_b") && found.contains("users"));
        assert!(!found.contains("c") && !found.contains("d"));
    }

    #[test]
    fn keys_are_found() {
        let text = "# A comment = none.\na_b = 5\n#c = \"x\"\n#[vnic]\n";
        assert_eq!(keys(text), BTreeSet::from(["a_b", "c"]));
        assert_eq!(faults("p.md", "`a_b` is", &["a_b", "`c`"]).len(), 1);
    }
}
