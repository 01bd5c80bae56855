//! House rules that no compiler checks: file lengths, line lengths, words that must not be
//! committed, the six lines that every folder's README has, and what documents say of files, lists
//! and numbers.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::documents;
use crate::run::{output, root};

const WARN_LINES: usize = 400;
const FAIL_LINES: usize = 600;
const COLUMNS: usize = 100;

/// Split so that this file does not contain them itself.
const FORBIDDEN: [(&str, &str); 6] = [
    (concat!("dbg", "!("), "left from debugging"),
    (concat!("FIX", "ME"), "mend it or write it down in docs/limitations.md"),
    (concat!("XX", "X "), "mend it or write it down in docs/limitations.md"),
    (concat!("/ho", "me/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/wor", "k/"), "a path of one machine"),
];

const README_LINES: [&str; 6] =
    ["In:", "Out:", "May use:", "Must not use:", "Where tested:", "Start reading at:"];

/// The task.
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
    }
    for top in ["app", "rnic", "host", "support", "tools"] {
        check_readmes(top, &names, &mut faults);
    }
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
        if (code || extension == "toml") && line.chars().count() > COLUMNS {
            faults.push(format!("{name}:{number}: more than {COLUMNS} columns"));
        }
        for (word, reason) in FORBIDDEN {
            if line.contains(word) {
                faults.push(format!("{name}:{number}: {word}: {reason}"));
            }
        }
    }
}

/// What documents say is so. Decisions, and the page on what moved, say how things were.
fn check_documents(names: &[&str], faults: &mut Vec<String>) -> Result<()> {
    let read =
        |name: &str| std::fs::read_to_string(root().join(name)).with_context(|| name.to_owned());
    let makefile = read("Makefile")?;
    let targets: Vec<&str> = makefile
        .lines()
        .filter_map(|line| Some(line.split_once(':')?.0))
        .filter(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'))
        .collect();
    for name in names.iter().filter(|name| name.ends_with(".md")) {
        if !name.starts_with("docs/decisions/0") && *name != "docs/moved.md" {
            faults.extend(documents::faults(name, &read(name)?, names, &targets));
        }
    }
    let architecture = read("docs/architecture.md")?;
    if documents::words_of_table(&architecture)
        != documents::words_of_code(&read("rnic/link/src/layout.rs")?)
    {
        faults.push("docs/architecture.md: the words of a link are others in layout.rs".into());
    }
    let fuzz = read("fuzz/src/lib.rs")?;
    let listed = fuzz.lines().skip_while(|line| !line.starts_with("pub const TARGETS"));
    let listed: BTreeSet<&str> = listed
        .take_while(|line| !line.starts_with("];"))
        .filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').next())
        .collect();
    let readme = read("fuzz/README.md")?;
    let said = documents::first_column(&readme, "| target");
    documents::same("fuzz/README.md", &said, &listed, faults);
    let index = read("docs/decisions/README.md")?;
    let pages = names.iter().filter_map(|name| name.strip_prefix("docs/decisions/0"));
    for page in pages.filter(|page| !index.contains(&format!("(0{page})"))) {
        faults.push(format!("docs/decisions/README.md lacks 0{page}"));
    }
    Ok(())
}

/// Every folder right below `top` that holds files needs a README with the six lines.
fn check_readmes(top: &str, names: &[&str], faults: &mut Vec<String>) {
    let inside = names.iter().filter_map(|name| name.strip_prefix(top)?.strip_prefix('/'));
    let mut folders: Vec<&str> = inside.filter_map(|name| Some(name.split_once('/')?.0)).collect();
    folders.sort_unstable();
    folders.dedup();
    for folder in folders {
        let name = format!("{top}/{folder}/README.md");
        match std::fs::read_to_string(root().join(&name)) {
            Err(_) => faults.push(format!("{name} is missing")),
            Ok(text) => faults.extend(readme_fault(&name, &text)),
        }
    }
}

fn readme_fault(name: &str, text: &str) -> Option<String> {
    let stripped = |line: &str| line.trim_start_matches(['-', '*', ' ']).replace("**", "");
    let missing: Vec<_> = README_LINES
        .iter()
        .filter(|label| !text.lines().any(|line| stripped(line).starts_with(*label)))
        .collect();
    (!missing.is_empty()).then(|| format!("{name} lacks the lines {missing:?}"))
}

#[cfg(test)]
mod tests {
    use super::{check_file, readme_fault};

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
        assert_eq!(check("a.md", &"x".repeat(101)), (0, 0));
        assert_eq!(check("a.rs", concat!("dbg", "!(1)")), (1, 0));
    }

    #[test]
    fn readmes_need_all_six_lines() {
        let good = "- **In:** a\nOut: b\nMay use: c\nMust not use: d\nWhere tested: e\n\
                    Start reading at: f\n";
        assert_eq!(readme_fault("README.md", good), None);
        assert!(readme_fault("README.md", &good.replace("Out:", "out:")).is_some());
    }
}
