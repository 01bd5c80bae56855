//! Checks house rules that no compiler checks: lengths, words, comments, documents.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::check_environment_variables::Variables;
use crate::code_constants::Constants;
use crate::layers::Layers;
use crate::run_program::{output, root};
use crate::symbol_tables::Table;
use crate::{
    built_libraries, check_budgets, check_readme_verbs, document_checks, document_links,
    document_numbers, documented_messages, empty_doc_comments, folder_readme_contract,
    unclear_bool_names,
};

const WARN_LINES: usize = 400;
const FAIL_LINES: usize = 600;
const COLUMNS: usize = 100;

/// Split so that this file does not contain them itself.
const FORBIDDEN: [(&str, &str); 6] = [
    (concat!("dbg", "!("), "left from debugging"),
    (concat!("FIX", "ME"), "mend it or write it down in docs/reference/limits"),
    (concat!("XX", "X "), "mend it or write it down in docs/reference/limits"),
    (concat!("/ho", "me/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/wor", "k/"), "a path of one machine"),
];

/// How no module begins: a reader comes from the file's name, not from the page before.
const RIDDLES: [&str; 2] = ["//! The same", "//! What is"];

/// Looks at every file that is committed, or could be.
pub(crate) fn run() -> Result<()> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let names = output(Command::new("git").current_dir(root()).args(list))?;
    let names: Vec<&str> = names.split('\0').filter(|name| !name.is_empty()).collect();
    let mut faults = Vec::new();
    let mut warnings = Vec::new();
    for name in &names {
        // Neither deleted files nor pictures are text.
        let Ok(text) = std::fs::read_to_string(root().join(name)) else { continue };
        check_file(name, &text, &mut faults, &mut warnings);
        unclear_bool_names::faults(name, &text, &mut faults)?;
    }
    folder_readme_contract::check(&names, &Layers::read()?, &mut faults)?;
    check_documents(&names, &mut faults)?;
    for warning in &warnings {
        println!("warning: {warning}");
    }
    if !faults.is_empty() {
        bail!("{} faults\n{}", faults.len(), faults.join("\n"));
    }
    println!("{} files are tidy", names.len());
    Ok(())
}

fn borrowed(words: &BTreeSet<String>) -> BTreeSet<&str> {
    words.iter().map(String::as_str).collect()
}

fn check_file(name: &str, text: &str, faults: &mut Vec<String>, warnings: &mut Vec<String>) {
    let extension = Path::new(name).extension().and_then(|e| e.to_str()).unwrap_or("");
    let code = matches!(extension, "rs" | "c" | "h" | "py" | "sh");
    let lines = text.lines().count();
    if code && lines > FAIL_LINES {
        faults.push(format!("{name}: {lines} lines, more than {FAIL_LINES}"));
    } else if code && lines > WARN_LINES {
        warnings.push(format!("{name}: {lines} lines, more than {WARN_LINES}"));
    }
    for (number, line) in (1..).zip(text.lines()) {
        // mdBook wants an item of the contents on a line.
        let is_table = line.trim_start().starts_with('|') || name.ends_with("SUMMARY.md");
        let is_bounded = code || extension == "toml" || extension == "md" && !is_table;
        if is_bounded && line.chars().count() > COLUMNS {
            faults.push(format!("{name}:{number}: more than {COLUMNS} columns"));
        }
        for (word, reason) in FORBIDDEN {
            if line.contains(word) {
                faults.push(format!("{name}:{number}: {word}: {reason}"));
            }
        }
    }
    if extension == "rs" {
        let first = text.lines().next().unwrap_or("");
        if RIDDLES.iter().any(|begins| first.starts_with(begins)) {
            faults.push(format!("{name}:1: a module says first what it does, as \"Counts ...\""));
        }
        let thin = empty_doc_comments::thin(text).into_iter();
        let said = |(number, words)| format!("{name}:{number}: {words:?} says nothing");
        faults.extend(thin.map(said));
    }
}

fn is_text_of_code(name: &str) -> bool {
    [".rs", ".c", ".h"].iter().any(|end| name.ends_with(end))
}

/// What documents say is so. Decisions say how things were.
fn check_documents(names: &[&str], faults: &mut Vec<String>) -> Result<()> {
    let read =
        |name: &str| std::fs::read_to_string(root().join(name)).with_context(|| name.to_owned());
    let makefile = read("Makefile")?;
    let targets: Vec<&str> = makefile
        .lines()
        .filter_map(|line| Some(line.split_once(':')?.0))
        .filter(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'))
        .collect();
    let mut constants = Constants::default();
    let is_code = |name: &&&str| name.contains("/src/") && name.ends_with(".rs");
    for name in names.iter().filter(is_code).filter(|name| !name.contains("/testing/")) {
        constants.add(name, &read(name)?)?;
    }
    let mut variables = Variables::default();
    for name in names.iter().filter(|name| is_text_of_code(name)) {
        variables.add(name, &read(name)?);
    }
    faults.extend(
        variables.faults("docs/reference/environment.md", &read("docs/reference/environment.md")?),
    );
    for name in names.iter().filter(|name| name.ends_with(".md")) {
        if !name.starts_with("docs/decisions/0") {
            let text = read(name)?;
            faults.extend(document_checks::faults(name, &text, names, &targets));
            faults
                .extend(document_checks::chain_faults(name, &text, names, &|file| read(file).ok()));
            faults.extend(document_numbers::faults(name, &text, &constants));
            if *name == "docs/budgets.md" {
                faults.extend(check_budgets::faults(name, &text, &constants));
            }
            faults.extend(document_links::faults(name, &text, names, &|file| read(file).ok()));
        }
    }
    faults.extend(document_links::missing(&read("docs/SUMMARY.md")?, names));
    check_phrases(names, faults)?;
    let architecture = read("docs/architecture.md")?;
    // Tables of words that two parties share: heading, where the code has them, and how.
    let tables = [
        ("### Link memory", "rnic/link/src/layout.rs", "pub mod word", "pub const "),
        ("### Doorbell memory", "support/ring/src/doorbell.rs", "const KICK", "const "),
        ("### Statistics slot", "rnic/device/src/qp/statistics.rs", "const IDENTITY", "const "),
    ];
    for (heading, file, from, begins) in tables {
        let code = read(file)?;
        let code = code.find(from).map_or("", |at| &code[at..]);
        let said =
            document_checks::words_of_table(document_checks::section(&architecture, heading));
        let there =
            document_checks::words_of_code(code.split("\n}").next().unwrap_or(code), begins);
        if there.is_empty() {
            faults.push(format!("{file} has no words for {heading}"));
        }
        let what = format!("docs/architecture.md, {heading},");
        document_checks::same(&what, &borrowed(&said), &borrowed(&there), faults);
    }
    let fuzz = read("fuzz/src/lib.rs")?;
    let listed = fuzz.lines().skip_while(|line| !line.starts_with("pub const TARGETS"));
    let listed: BTreeSet<&str> = listed
        .take_while(|line| !line.starts_with("];"))
        .filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').next())
        .collect();
    let readme = read("fuzz/README.md")?;
    let said = document_checks::first_column(&readme, "| target");
    document_checks::same("fuzz/README.md", &said, &listed, faults);
    let readme = read("README.md")?;
    for library in [&built_libraries::VERBS, &built_libraries::CONNECTIONS] {
        faults.extend(check_readme_verbs::faults(&readme, &Table::read(library)?));
    }
    let index = read("docs/decisions/README.md")?;
    let pages = names.iter().filter_map(|name| name.strip_prefix("docs/decisions/0"));
    for page in pages.filter(|page| !index.contains(&format!("(0{page})"))) {
        faults.push(format!("docs/decisions/README.md lacks 0{page}"));
    }
    Ok(())
}

/// What programs say to their users, and what the configuration has, the guides explain.
fn check_phrases(names: &[&str], faults: &mut Vec<String>) -> Result<()> {
    let read =
        |name: &str| std::fs::read_to_string(root().join(name)).with_context(|| name.to_owned());
    let page = "docs/user/troubleshooting.md";
    let guide = read(page)?;
    for name in names.iter().filter(|name| name.starts_with("tools/omniverb/src/doctor/")) {
        faults.extend(documented_messages::faults(
            page,
            &guide,
            &documented_messages::findings(name, &read(name)?)?,
        ));
    }
    for name in ["host/tenancy/src/qp_data_path.rs", "sockets/formats/src/socket_status_rows.rs"] {
        faults.extend(documented_messages::faults(
            page,
            &guide,
            &documented_messages::reasons(&read(name)?, "=>"),
        ));
    }
    let page = "docs/reference/configuration.md";
    let example = read("deploy/omniverbd.toml")?;
    let keys: Vec<String> =
        documented_messages::keys(&example).into_iter().map(|key| format!("| `{key}` |")).collect();
    faults.extend(documented_messages::faults(page, &read(page)?, &keys));
    let page = "deploy/manual/pages/omniverbd.toml.5";
    let explained = documented_messages::bold_words(&read(page)?);
    let missing =
        documented_messages::keys(&example).into_iter().filter(|key| !explained.contains(*key));
    faults.extend(missing.map(|key| format!("{page} does not explain {key}")));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_file;

    #[test]
    fn faults_are_found() {
        let check = |name: &str, text: &str| {
            let (mut faults, mut warnings) = (Vec::new(), Vec::new());
            check_file(name, text, &mut faults, &mut warnings);
            (faults.len(), warnings.len())
        };
        assert_eq!(check("a.rs", "fn main() {}\n"), (0, 0));
        assert_eq!(check("a.rs", &"\n".repeat(401)), (0, 1));
        assert_eq!(check("a.rs", &"\n".repeat(601)), (1, 0));
        assert_eq!(check("a.rs", &"x".repeat(101)), (1, 0));
        assert_eq!(check("a.md", &"x".repeat(101)), (1, 0));
        assert_eq!(check("a.md", &format!("| {} |", "x".repeat(101))), (0, 0));
        assert_eq!(check("a.rs", concat!("dbg", "!(1)")), (1, 0));
        assert_eq!(check("a.rs", "//! What is known of links.\n"), (1, 0));
        assert_eq!(check("a.rs", "//! Counts links. What is known of them.\n"), (0, 0));
        let thin = "/// Whose.\nwhose: u32,\n";
        assert_eq!((check("a.rs", thin), check("a.md", thin)), ((1, 0), (0, 0)));
    }
}
