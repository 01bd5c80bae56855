//! Checks links between documents: the file and the heading that a link names exist, and the book's
//! table of contents has each of its pages once.

use std::collections::BTreeMap;

/// Where the book is; its pages link to no file outside.
const BOOK: &str = "docs/";
/// Its table of contents.
const CONTENTS: &str = "docs/SUMMARY.md";

/// The links of a document that lead nowhere. `read` reads files of the repository.
pub(crate) fn faults(
    document: &str,
    text: &str,
    names: &[&str],
    read: &dyn Fn(&str) -> Option<String>,
) -> Vec<String> {
    let mut found = Vec::new();
    for (number, target) in targets(text) {
        let mut fault = |what: &str| found.push(format!("{document}:{number}: {target}: {what}"));
        let (file, heading) = target.split_once('#').unwrap_or((target, ""));
        let file = match file {
            "" => Some(document.to_owned()),
            _ => resolved(document, file),
        };
        let Some(file) = file else {
            fault("leads out of the repository");
            continue;
        };
        let is_folder = names.iter().any(|name| name.starts_with(&format!("{file}/")));
        if !names.contains(&file.as_str()) && !is_folder {
            fault("there is no such file");
        } else if document.starts_with(BOOK) && !file.starts_with(BOOK.trim_end_matches('/')) {
            fault("leads out of the book: name the file in backticks");
        } else if file.starts_with(BOOK)
            && document.starts_with(BOOK)
            && document != CONTENTS
            && is_renamed(&file)
        {
            fault("is index.html in the book: link to its folder, or call it otherwise");
        } else if !heading.is_empty() {
            let there = read(&file).unwrap_or_default();
            if !headings(&there).any(|one| one == heading) {
                fault("there is no such heading");
            }
        }
    }
    found
}

/// Whether mdBook gives a page another name, and does not follow with links to it. In the contents
/// it does.
fn is_renamed(file: &str) -> bool {
    file.ends_with("/README.md")
}

/// Pages of the book that its table of contents lacks, or has twice.
pub(crate) fn missing(contents: &str, names: &[&str]) -> Vec<String> {
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for (_, target) in targets(contents) {
        *count.entry(resolved(CONTENTS, target).unwrap_or_default()).or_default() += 1;
    }
    let pages = names.iter().filter(|name| name.starts_with(BOOK) && name.ends_with(".md"));
    let wrong = pages.filter(|name| **name != CONTENTS).filter_map(|name| {
        match count.get(*name).copied().unwrap_or(0) {
            1 => None,
            0 => Some(format!("{CONTENTS} lacks {name}")),
            _ => Some(format!("{CONTENTS} has {name} more than once")),
        }
    });
    wrong.collect()
}

/// Line numbers and targets of links to files, `[text](target)`, outside of code.
fn targets(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_fenced = false;
    let lines = (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fenced && !is_fence && !line.starts_with("    ")
    });
    lines.flat_map(|(number, line)| {
        // What is between backticks is no link.
        let plain = line.split('`').step_by(2);
        let all = plain.flat_map(|part| part.split("](").skip(1));
        let ends = all.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
        ends.filter(|target| !target.contains(':')).map(move |target| (number, target))
    })
}

/// A path as it is seen from a document; `None`: it leads out of the repository.
fn resolved(document: &str, path: &str) -> Option<String> {
    let folder = document.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// How GitHub and mdBook call the headings of a document in links.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().filter(|line| line.starts_with('#'));
    lines.map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 5] =
        ["README.md", "docs/SUMMARY.md", "docs/a.md", "docs/user/b.md", "tests/README.md"];

    fn count(document: &str, text: &str) -> usize {
        let read = |name: &str| (name == "docs/a.md").then(|| "# One\n## Why `x`, so?\n".into());
        faults(document, text, &NAMES, &read).len()
    }

    #[test]
    fn files_that_links_name_exist() {
        assert_eq!(count("README.md", "[a](docs/a.md) [b](docs/user/b.md) [c](docs/)"), 0);
        assert_eq!(count("docs/user/b.md", "[a](../a.md) [web](https://x.y/z.md)"), 0);
        assert_eq!(count("docs/a.md", "[a](b.md)\n[b](user/b.md)\n"), 1);
        assert_eq!(count("docs/a.md", "[a](../../x.md)"), 1);
    }

    #[test]
    fn headings_that_links_name_exist() {
        assert_eq!(count("README.md", "[a](docs/a.md#why-x-so) [a](docs/a.md#one)"), 0);
        assert_eq!(count("README.md", "[a](docs/a.md#two)"), 1);
        assert_eq!(count("docs/a.md", "[a](#one) [a](#three)"), 1);
    }

    #[test]
    fn code_has_no_links() {
        assert_eq!(count("README.md", "`[a](x.md)`\n    [a](x.md)\n```\n[a](x.md)\n```\n"), 0);
    }

    #[test]
    fn the_book_links_to_its_own_pages() {
        assert_eq!(count("docs/a.md", "[a](../tests/README.md)"), 1);
        assert_eq!(count("README.md", "[a](tests/README.md)"), 0);
    }

    #[test]
    fn pages_that_the_book_renames_are_not_linked_to() {
        let names = ["docs/SUMMARY.md", "docs/a.md", "docs/b/README.md"];
        let count = |document: &str, text: &str| faults(document, text, &names, &|_| None).len();
        assert_eq!(count("docs/SUMMARY.md", "[b](b/README.md)"), 0);
        assert_eq!(count("docs/a.md", "[b](b/README.md)"), 1);
        assert_eq!(count("docs/a.md", "[b](b/)"), 0);
    }

    #[test]
    fn the_contents_have_every_page_once() {
        assert_eq!(missing("[a](a.md)\n- [b](user/b.md)\n", &NAMES).len(), 0);
        assert_eq!(missing("[a](a.md)\n", &NAMES).len(), 1);
        assert_eq!(missing("[a](a.md)\n[a](./a.md)\n[b](user/b.md)", &NAMES).len(), 1);
    }
}
