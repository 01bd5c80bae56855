//! What documents say and a machine can check: that the files they name exist, that lists of files
//! are whole, that numbers in tables are those of the code.

use std::collections::BTreeSet;

/// What is wrong in a document: `names` are all files of the repository.
pub(crate) fn faults(document: &str, text: &str, names: &[&str], targets: &[&str]) -> Vec<String> {
    let fault = |number: usize, what: String| format!("{document}:{number}: {what}");
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for word in quoted(line) {
            if is_path(word) && !exists(word, names) {
                found.push(fault(number, format!("there is no {word}")));
            }
            let target = word.strip_prefix("make ").and_then(|rest| rest.split(' ').next());
            if let Some(target) = target.filter(|target| !targets.contains(target)) {
                found.push(fault(number, format!("there is no make {target}")));
            }
        }
    }
    found
}

/// What is between backticks, in running text (not in what is shown indented).
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    let text = if line.starts_with("    ") { "" } else { line };
    text.split('`').skip(1).step_by(2)
}

/// Whether a word is meant as a file or folder of the repository.
fn is_path(word: &str) -> bool {
    const ENDINGS: [&str; 8] = [".rs", ".toml", ".py", ".md", ".c", ".h", ".sh", "/"];
    const MADE: [&str; 3] = ["target/", "dist/", "artifacts/"];
    let letters = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    word.chars().all(letters)
        && !word.starts_with(['/', '.', '-'])
        && ENDINGS.iter().any(|ending| word.ends_with(ending) && word != *ending)
        && !MADE.iter().any(|made| word.starts_with(made))
}

/// Whether some file, or folder, ends in this.
fn exists(word: &str, names: &[&str]) -> bool {
    let folder = word.strip_suffix('/');
    names.iter().any(|name| match folder {
        Some(folder) => name.starts_with(word) || name.contains(&format!("/{folder}/")),
        None => *name == word || name.strip_suffix(word).is_some_and(|rest| rest.ends_with('/')),
    })
}

/// The first words in backticks of the rows of the table behind `heading`, which is the beginning
/// of its first line.
pub(crate) fn first_column<'a>(text: &'a str, heading: &str) -> BTreeSet<&'a str> {
    let table = text.lines().skip_while(|line| !line.starts_with(heading)).skip(2);
    table.take_while(|line| line.starts_with('|')).filter_map(|line| quoted(line).next()).collect()
}

/// Two lists that must have the same in them.
pub(crate) fn same(
    what: &str,
    said: &BTreeSet<&str>,
    there: &BTreeSet<&str>,
    faults: &mut Vec<String>,
) {
    faults.extend(there.difference(said).map(|one| format!("{what} lacks {one}")));
    faults.extend(said.difference(there).map(|one| format!("{what} has {one}, which is no more")));
}

/// The words of a link as a table of the architecture has them: `| 0x00 | NAME |`.
pub(crate) fn words_of_table(text: &str) -> BTreeSet<String> {
    let row = |line: &str| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        Some((cells.next()?.to_owned(), cells.next()?.to_owned()))
    };
    let rows = text.lines().filter(|line| line.starts_with("| 0x")).filter_map(row);
    rows.map(|(offset, name)| format!("{name} {offset}")).collect()
}

/// The same as the code has them: `pub const NAME: usize = 0x00;` in its module of words.
pub(crate) fn words_of_code(text: &str) -> BTreeSet<String> {
    let row = |line: &str| {
        let (name, offset) = line.trim().strip_prefix("pub const ")?.split_once(": usize = ")?;
        let offset = offset.strip_suffix(';').filter(|offset| offset.starts_with("0x"))?;
        Some(format!("{name} {offset}"))
    };
    text.lines().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 3] = ["docs/a.md", "host/engine/src/pages/held.rs", "fuzz/run.sh"];

    fn count(text: &str) -> usize {
        faults("x.md", text, &NAMES, &["test"]).len()
    }

    #[test]
    fn files_that_are_named_exist() {
        assert_eq!(count("see `held.rs`, `pages/held.rs` and `host/engine/`, or `src/pages/`"), 0);
        assert_eq!(count("see `eld.rs`"), 1);
        assert_eq!(count("see `host/engines/` and `engine/`"), 1);
        assert_eq!(count("`/etc/x.toml`, `.rs`, `target/x.md`, `a b.rs`, `libx.so.1`"), 0);
        assert_eq!(count("    `shown.rs`"), 0);
    }

    #[test]
    fn targets_that_are_named_exist() {
        assert_eq!(count("`make test`, `make test TESTS=x`"), 0);
        assert_eq!(count("`make tests`"), 1);
    }

    #[test]
    fn tables_are_compared() {
        let text = "x\n| target | what |\n|---|---|\n| `a` | b |\n| `c` | `d` |\n\n| `e` |\n";
        let said = first_column(text, "| target");
        assert_eq!(said, BTreeSet::from(["a", "c"]));
        let mut faults = Vec::new();
        same("list", &said, &BTreeSet::from(["a", "b"]), &mut faults);
        assert_eq!(faults.len(), 2);
        let table = words_of_table("| offset | word |\n|---|---|\n| 0x08 | WAKE | wakes |\n");
        assert_eq!(table, words_of_code("    pub const WAKE: usize = 0x08;\nconst X: usize = 0;"));
    }
}
