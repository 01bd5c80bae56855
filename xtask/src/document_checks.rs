//! Checks documents: the files they name exist, lists are whole, numbers are those of the code.

use std::collections::BTreeSet;

/// What is wrong in a document: `names` are all files of the repository.
pub(crate) fn faults(document: &str, text: &str, names: &[&str], targets: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut about = SectionSubjects::of(document);
    let mut fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        let mut fault = |what: String| found.push(format!("{document}:{number}: {what}"));
        if line.starts_with('#') {
            about = SectionSubjects::of(document);
        }
        if line.starts_with("```") {
            fenced = !fenced;
            continue;
        }
        // What is shown as it stands has no backticks.
        let shown = fenced || line.starts_with("    ");
        let words: Vec<&str> = if shown { plain(line).collect() } else { quoted(line).collect() };
        for word in words {
            about.note_word(word);
            if is_path(word) {
                let places = places(word, names);
                let is_one = || names.contains(&word) || about.means_one(&places);
                if places.is_empty() {
                    fault(format!("there is no {word}"));
                } else if places.len() > 1 && !is_folder(word) && !is_of_each(word) && !is_one() {
                    fault(format!("{word} may be {}", places.join(" or ")));
                }
            }
            let target = word.strip_prefix("make ").and_then(|rest| rest.split(' ').next());
            if let Some(target) = target.filter(|target| !targets.contains(target)) {
                fault(format!("there is no make {target}"));
            }
        }
    }
    found
}

/// Names in chains of calls, `    express    device/src/express.rs    what it is`, that are not in
/// their files. `read` reads files of the repository.
pub(crate) fn chain_faults(
    document: &str,
    text: &str,
    names: &[&str],
    read: &dyn Fn(&str) -> Option<String>,
) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| line.starts_with("    ")) {
        let words: Vec<&str> = plain(line).collect();
        let (name, file) = match words[..] {
            ["or", name, file, ..] | [name, file, ..] if is_path(file) => (name, file),
            _ => continue,
        };
        let name = name.rsplit("::").next().unwrap_or(name);
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let texts: Vec<String> = match is_folder(file) {
            true => places(file, names).iter().filter_map(|file| read(file)).collect(),
            false => read(file).into_iter().collect(),
        };
        if is_name && !texts.iter().any(|text| has_words(text, name)) {
            found.push(format!("{document}:{number}: {file} has no {name}"));
        }
    }
    found
}

/// Whether these words stand in a text as words, not as a part of others.
pub(crate) fn has_words(text: &str, words: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(words).any(|(at, _)| {
        !inside(text[..at].chars().next_back()) && !inside(text[at + words.len()..].chars().next())
    })
}

/// What is between backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The words of a line that is shown as it stands.
fn plain(line: &str) -> impl Iterator<Item = &str> {
    line.split_whitespace().map(|word| word.trim_matches([',', ';', ':', '(', ')']))
}

/// Which crates a section of a document is about, the one named last first. A README is about the
/// folder that it is in.
struct SectionSubjects<'a> {
    /// The folder of a README, but for that of the project.
    own: Option<&'a str>,
    named: Vec<&'a str>,
}

impl<'a> SectionSubjects<'a> {
    fn of(document: &'a str) -> SectionSubjects<'a> {
        SectionSubjects { own: document.strip_suffix("/README.md"), named: vec![] }
    }

    /// A word that may name a crate, or something in one.
    fn note_word(&mut self, word: &'a str) {
        self.named.extend(crate_of(word));
    }

    /// Whether the first crate that has any of these files has only one of them, tests apart.
    fn means_one(&self, files: &[&str]) -> bool {
        let crates = self.own.iter().chain(self.named.iter().rev());
        let inside = |folder: &str| {
            let is_in =
                |name: &&&str| name.strip_prefix(folder).is_some_and(|r| r.starts_with('/'));
            let all = files.iter().filter(is_in);
            let (tests, code): (Vec<&str>, Vec<&str>) = all.partition(|name| is_test(name));
            if code.is_empty() { tests.len() } else { code.len() }
        };
        crates.map(|folder| inside(folder)).find(|count| *count > 0) == Some(1)
    }
}

/// The crate's folder that a path leads to or into.
fn crate_of(path: &str) -> Option<&str> {
    let (top, rest) = path.split_once('/')?;
    let folder = rest.split('/').next().filter(|folder| !folder.is_empty())?;
    let tops = ["app", "rnic", "host", "sockets", "support", "tools"];
    (tops.contains(&top) && !folder.contains(' ')).then(|| &path[..top.len() + 1 + folder.len()])
}

fn is_test(name: &str) -> bool {
    name.contains("/tests/") || name.contains("/testing/")
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

fn is_folder(word: &str) -> bool {
    word.ends_with('/')
}

/// Names of which each folder has one.
fn is_of_each(word: &str) -> bool {
    ["mod.rs", "lib.rs", "README.md"].contains(&word)
}

/// The files that end in this, or are in such a folder.
fn places<'a>(word: &str, names: &[&'a str]) -> Vec<&'a str> {
    let inside = format!("/{word}");
    let is_there = |name: &&&str| match is_folder(word) {
        true => name.starts_with(word) || name.contains(&inside),
        false => **name == word || name.ends_with(&inside),
    };
    names.iter().filter(is_there).copied().collect()
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

/// The part of a document below a heading, up to the next one.
pub(crate) fn section<'a>(text: &'a str, heading: &str) -> impl Iterator<Item = &'a str> {
    let lines = text.lines().skip_while(move |line| *line != heading);
    lines.skip(1).take_while(|line| !line.starts_with('#'))
}

/// The words of some shared memory as a table has them: `| 0x00 | NAME |`, or `| 8 | NAME |`.
pub(crate) fn words_of_table<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let row = |line: &str| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        let (offset, name) = (number(cells.next()?)?, cells.next()?);
        Some(format!("{name} at {offset:#x}"))
    };
    lines.filter_map(row).collect()
}

/// The same as the code has them: `pub const NAME: usize = 0x00;`, with or without `pub` as
/// `begins` says.
pub(crate) fn words_of_code(text: &str, begins: &str) -> BTreeSet<String> {
    let row = |line: &str| {
        let (name, offset) = line.trim().strip_prefix(begins)?.split_once(": usize = ")?;
        Some(format!("{name} at {:#x}", number(offset.strip_suffix(';')?)?))
    };
    text.lines().filter_map(row).collect()
}

fn number(text: &str) -> Option<usize> {
    match text.strip_prefix("0x") {
        Some(digits) => usize::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 7] = [
        "docs/a.md",
        "host/engine/src/pages/held.rs",
        "host/engine/src/send.rs",
        "host/engine/tests/send.rs",
        "app/client/src/send.rs",
        "app/client/src/in/send.rs",
        "fuzz/run.sh",
    ];

    fn count(text: &str) -> usize {
        faults("x.md", text, &NAMES, &["test"]).len()
    }

    #[test]
    fn files_that_are_named_exist() {
        assert_eq!(count("see `held.rs`, `pages/held.rs` and `host/engine/`, or `src/pages/`"), 0);
        assert_eq!(count("see `eld.rs`"), 1);
        assert_eq!(count("see `host/engines/` and `engine/`"), 1);
        assert_eq!(count("`/etc/x.toml`, `.rs`, `target/x.md`, `a b.rs`, `libx.so.1`"), 0);
    }

    #[test]
    fn files_that_are_shown_exist() {
        assert_eq!(count("    fuzz/run.sh 60\n    held.rs    what it does"), 0);
        assert_eq!(count("    fuzz/runs.sh 60"), 1);
        assert_eq!(count("```\n(host/engine/src/held.rs)\n```\n"), 1);
    }

    #[test]
    fn a_name_that_several_files_have_is_of_the_crate_that_is_spoken_of() {
        assert_eq!(count("`send.rs`"), 1);
        assert_eq!(count("In `host/engine/` there is `send.rs`."), 0);
        assert_eq!(count("`host/engine/`\n# Another section\n`send.rs`"), 1);
        assert_eq!(count("`app/client/src/in/send.rs` and `send.rs`"), 1);
        assert_eq!(count("`app/client` has `in/send.rs`, `host/engine` `send.rs`"), 0);
        let readme = |text: &str| faults("host/engine/README.md", text, &NAMES, &[]).len();
        assert_eq!(readme("`send.rs`"), 0);
    }

    #[test]
    fn calls_that_are_shown_are_in_their_files() {
        let read = |file: &str| (file == "app/client/src/send.rs").then(|| "fn go_on()".into());
        let count = |text: &str| chain_faults("x.md", text, &NAMES, &read).len();
        assert_eq!(count("    Qp::go_on    app/client/src/send.rs    what it does\n"), 0);
        assert_eq!(count("    go    app/client/src/send.rs\n"), 1);
        assert_eq!(count("    or go    app/client/src/\n    go_on    app/client/src/"), 1);
        assert_eq!(count("    when it goes on    app/client/src/send.rs\n"), 0);
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
    }

    #[test]
    fn words_are_compared() {
        let text =
            "# A\n| 1 | NOT |\n# B\n| offset | word |\n|---|---|\n| 0x08 | WAKE | wakes |\n# C\n";
        let table = words_of_table(section(text, "# B"));
        let code = "    pub const WAKE: usize = 8;\nconst X: usize = 0;";
        assert_eq!(table, words_of_code(code, "pub const "));
        assert_ne!(table, words_of_code(code, "const "));
        assert_ne!(table, words_of_code("pub const WAKE: usize = 0x10;", "pub const "));
    }
}
