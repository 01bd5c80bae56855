//! Checks the six lines of the README in each folder of code, by `layers.toml`.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::document_checks::has_words;
use crate::layers::Layers;
use crate::run_program::root;

const LINES: [&str; 6] =
    ["In:", "Out:", "May use:", "Must not use:", "Where tested:", "Start reading at:"];
const TOPS: [&str; 6] = ["app", "rnic", "host", "sockets", "support", "tools"];

/// How a README says what `layers.toml` has a word for.
const PROMISES: [(&str, &str); 6] = [
    ("io", "I/O"),
    ("std's files and sockets", "std's files and sockets"),
    ("threads", "threads"),
    ("clocks", "clocks"),
    ("atomics", "atomics"),
    ("unsafe", "unsafe code"),
];

/// What is wrong with the READMEs: `names` are all files of the repository.
pub(crate) fn check(names: &[&str], layers: &Layers, faults: &mut Vec<String>) -> Result<()> {
    for top in TOPS {
        let inside = names.iter().filter_map(|name| name.strip_prefix(top)?.strip_prefix('/'));
        let folders = inside.filter_map(|name| Some(name.split_once('/')?.0));
        for folder in folders.collect::<BTreeSet<_>>() {
            let folder = format!("{top}/{folder}");
            let name = format!("{folder}/README.md");
            let Ok(text) = std::fs::read_to_string(root().join(&name)) else {
                faults.push(format!("{name} is missing"));
                continue;
            };
            faults.extend(lacking(&text).map(|line| format!("{name} lacks the line {line}")));
            // A folder that is no crate has no rules in layers.toml.
            if let Some(uses) = layers.crates.get(&folder) {
                faults.extend(edge_faults(&text, uses).iter().map(|what| format!("{name} {what}")));
                let none = BTreeSet::new();
                let never = layers.never.get(&folder).unwrap_or(&none);
                let wrong = promise_faults(&text, never);
                faults.extend(wrong.iter().map(|what| format!("{name} {what}")));
            }
        }
    }
    Ok(())
}

/// The lines that are not there.
fn lacking(text: &str) -> impl Iterator<Item = &'static str> {
    LINES.into_iter().filter(|label| section(text, label).is_none())
}

/// What is said behind a label, up to the next item of the list.
fn section(text: &str, label: &str) -> Option<String> {
    let plain = |line: &str| line.trim_start_matches(['-', '*', ' ']).replace("**", "");
    let mut lines = text.lines().skip_while(|line| !plain(line).starts_with(label));
    let first = plain(lines.next()?)[label.len()..].to_owned();
    let more = lines.take_while(|line| line.starts_with("  "));
    Some(more.fold(first, |said, line| format!("{said} {}", line.trim())))
}

/// The crates that a text names: `rnic/terms`, with or without a backtick.
fn crates_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '/' || c == '_'));
    let is_crate = |word: &&str| {
        let (top, rest) = word.split_once('/').unwrap_or((word, ""));
        TOPS.contains(&top) && !rest.is_empty()
    };
    words.filter(is_crate).map(str::to_owned).collect()
}

/// Where "May use" and the crate's uses differ, and what "Must not use" names that is used.
fn edge_faults(text: &str, uses: &BTreeSet<String>) -> Vec<String> {
    let said = crates_in(&section(text, "May use:").unwrap_or_default());
    let banned = crates_in(&section(text, "Must not use:").unwrap_or_default());
    let more = uses.difference(&said).map(|to| format!("does not say that it uses {to}"));
    let less = said.difference(uses).map(|to| format!("says that it uses {to}, and does not"));
    let both = banned.intersection(uses).map(|to| format!("must not use {to}, and does"));
    more.chain(less).chain(both).collect()
}

/// Where "Must not use" and what the crate is checked for differ.
fn promise_faults(text: &str, never: &BTreeSet<String>) -> Vec<String> {
    let said = section(text, "Must not use:").unwrap_or_default();
    let words = PROMISES.iter().filter_map(|(word, promise)| {
        match (has_words(&said, promise), never.contains(*word)) {
            (true, false) => {
                Some(format!("promises no {promise}, which layers.toml does not check"))
            }
            (false, true) => Some(format!("does not say what layers.toml checks: no {promise}")),
            _ => None,
        }
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# x\n\n- **In:** a\n- Out: b\n- **May use:** rnic/terms; `support/ring`,\n\
        \x20 and rnic/link.\n- Must not use: I/O, clocks\n  or threads.\n- Where tested: e\n\
        - Start reading at: f\n";

    fn set(words: &[&str]) -> BTreeSet<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn all_six_lines_are_needed() {
        assert_eq!(lacking(GOOD).count(), 0);
        assert_eq!(lacking(&GOOD.replace("Out:", "out:")).collect::<Vec<_>>(), ["Out:"]);
    }

    #[test]
    fn what_may_be_used_is_what_is() {
        let faults = |uses: &[&str]| edge_faults(GOOD, &set(uses)).len();
        assert_eq!(faults(&["rnic/terms", "support/ring", "rnic/link"]), 0);
        assert_eq!(faults(&["rnic/terms", "support/ring"]), 1);
        assert_eq!(faults(&["rnic/terms", "support/ring", "rnic/link", "rnic/cm"]), 1);
        let banned = GOOD.replace("I/O", "rnic/link");
        let uses = set(&["rnic/terms", "support/ring", "rnic/link"]);
        assert_eq!(edge_faults(&banned, &uses).len(), 1);
    }

    #[test]
    fn what_must_not_be_used_is_checked() {
        let faults = |never: &[&str]| promise_faults(GOOD, &set(never)).len();
        assert_eq!(faults(&["io", "clocks", "threads"]), 0);
        assert_eq!(faults(&["io", "clocks"]), 1);
        assert_eq!(faults(&["io", "clocks", "threads", "unsafe"]), 1);
    }
}
