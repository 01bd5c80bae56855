//! Composes a man page: name, synopsis, description and options from clap, environment, files, exit
//! status and examples from a file of `sections/`.

use anyhow::{Context, bail};
use clap::Command;
use clap_mangen::Man;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

/// Sections that are written by hand, in their order. Each stands in the page's own file, or in
/// `common.roff` if it has none.
const SECTIONS: [&str; 4] = ["ENVIRONMENT", "FILES", "EXIT STATUS", "EXAMPLES"];
const COMMON: &str = "common";

/// Writes the page of a command, and of each command below it.
pub(crate) fn write_all(
    command: &Command,
    section: &str,
    sections: &Path,
    share: &Path,
    written: &mut BTreeSet<String>,
) -> anyhow::Result<()> {
    let mut command = without_hidden(command).disable_help_subcommand(true);
    command.build();
    let folder = share.join("man").join(format!("man{section}"));
    std::fs::create_dir_all(&folder)?;
    let mut left = vec![(command, String::new())];
    while let Some((command, parent)) = left.pop() {
        let name = page_name(&command);
        let by_hand = by_hand(sections, &name, section)?;
        let siblings = command.get_subcommands().map(page_name);
        let related = related(&name, section, &parent, siblings.collect());
        let text = compose(&command, section, &by_hand, &related)?;
        std::fs::write(folder.join(format!("{name}.{section}")), text)?;
        left.extend(command.get_subcommands().cloned().map(|inner| (inner, name.clone())));
        written.insert(format!("{name}.{section}"));
        written.insert(name);
    }
    Ok(())
}

/// Fails if a file of `sections/` is of no page that was written.
pub(crate) fn refuse_unused(sections: &Path, written: &BTreeSet<String>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(sections)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if name != COMMON && !written.contains(&name) {
            bail!("{} is of no command", path.display());
        }
    }
    Ok(())
}

/// The command without what programs start each other by.
pub(crate) fn without_hidden(command: &Command) -> Command {
    let inner: Vec<Command> = command
        .get_subcommands()
        .filter(|inner| !inner.is_hide_set())
        .map(without_hidden)
        .collect();
    let mut bare = Command::new(for_clap(command.get_name()));
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        bare = bare.arg(argument.clone());
    }
    if let Some(about) = command.get_about() {
        bare = bare.about(about.clone());
    }
    if let Some(about) = command.get_long_about() {
        bare = bare.long_about(about.clone());
    }
    if let Some(version) = command.get_version() {
        bare = bare.version(for_clap(version));
    }
    bare.subcommand_required(command.is_subcommand_required_set()).subcommands(inner)
}

/// A text as clap keeps it: for as long as this program runs.
fn for_clap(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

/// The name of a page: that of the command, with `-` between its words.
fn page_name(command: &Command) -> String {
    command.get_bin_name().unwrap_or_else(|| command.get_name()).replace(' ', "-")
}

/// The sections of a page that are written by hand: title and text.
fn by_hand(folder: &Path, name: &str, section: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let mut found = split(&std::fs::read_to_string(folder.join(format!("{COMMON}.roff")))?)?;
    // A command and a program may have the same page name.
    let of_section = folder.join(format!("{name}.{section}.roff"));
    let path = match of_section.exists() {
        true => of_section,
        false => folder.join(format!("{name}.roff")),
    };
    if path.exists() {
        let own = std::fs::read_to_string(&path)?;
        found.extend(split(&own).with_context(|| path.display().to_string())?);
    }
    Ok(found)
}

fn split(text: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for part in text.split(".SH ").skip(1) {
        let (title, body) = part.split_once('\n').context("a section without text")?;
        let title = title.trim_matches('"');
        if !SECTIONS.contains(&title) {
            bail!("{title:?} is not one of {}", SECTIONS.join(", "));
        }
        found.insert(title.to_owned(), body.trim_end().to_owned());
    }
    Ok(found)
}

/// Pages that a page refers to: the one above it, those below it, and those of the daemon.
fn related(name: &str, section: &str, parent: &str, below: Vec<String>) -> Vec<String> {
    let above = (!parent.is_empty()).then(|| parent.to_owned());
    let own = above.into_iter().chain(below).map(|page| format!("{page} {section}"));
    let others = ["omniverb 1", "omniverbd 8"].map(str::to_owned);
    let mut pages: Vec<String> = Vec::new();
    for page in own.chain(others).filter(|page| *page != format!("{name} {section}")) {
        if !pages.contains(&page) {
            pages.push(page);
        }
    }
    pages.push("omniverbd.toml 5".into());
    pages
}

fn compose(
    command: &Command,
    section: &str,
    by_hand: &BTreeMap<String, String>,
    related: &[String],
) -> anyhow::Result<String> {
    let name = page_name(command);
    let version = env!("CARGO_PKG_VERSION");
    let man = Man::new(command.clone().display_name(for_clap(&name)));
    let mut out = Vec::new();
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    // Without a date: the same sources make the same page.
    let title = name.to_uppercase();
    let mut page = format!(".TH {title} {section} \"\" \"Omniverb {version}\" Omniverb\n");
    page += &literal(&tidied(&String::from_utf8(out)?));
    for title in SECTIONS {
        if let Some(body) = by_hand.get(title) {
            let _ = write!(page, ".SH \"{title}\"\n{body}\n");
        }
    }
    page += ".SH \"SEE ALSO\"\n";
    for (index, page_and_section) in related.iter().enumerate() {
        let (title, number) = page_and_section.rsplit_once(' ').context("a page of a section")?;
        let comma = if index + 1 < related.len() { " ," } else { "" };
        let _ = writeln!(page, ".BR {} ({number}){comma}", title.replace('-', "\\-"));
    }
    Ok(page)
}

/// The apostrophe is defined once, and paragraphs are parted by requests, as `mandoc` wants it.
fn tidied(text: &str) -> String {
    const APOSTROPHE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";
    let once = text.replacen(APOSTROPHE, "\0", 1).replace(APOSTROPHE, "");
    let parted = once.replace(".br\n\n.br\n", ".sp\n").replace("\n\n", "\n.sp\n");
    parted.replace(" \n", "\n").replace('\0', APOSTROPHE)
}

/// What stands between backticks is set in bold.
fn literal(text: &str) -> String {
    let mut parts = text.split('`');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for (index, part) in parts.enumerate() {
        out += if index.is_multiple_of(2) { "\\fB" } else { "\\fR" };
        out += part;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_parted_by_requests() {
        assert_eq!(tidied("a\n\nb\n.br\n\n.br\nc \n"), "a\n.sp\nb\n.sp\nc\n");
        let apostrophe = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";
        assert_eq!(tidied(&apostrophe.repeat(2)), apostrophe);
    }

    #[test]
    fn backticks_become_bold() {
        assert_eq!(literal("say `a b` or `c`."), "say \\fBa b\\fR or \\fBc\\fR.");
    }

    #[test]
    fn sections_are_found_by_their_titles() {
        let found = split(".SH FILES\n.B x\n.SH \"EXIT STATUS\"\n0\n\n").unwrap();
        assert_eq!(found["FILES"], ".B x");
        assert_eq!(found["EXIT STATUS"], "0");
        assert!(split(".SH BUGS\nnone\n").is_err());
    }

    #[test]
    fn pages_refer_to_those_above_and_below() {
        let pages = related("omniverb-vnic", "1", "omniverb", vec!["omniverb-vnic-set".into()]);
        let expected = ["omniverb 1", "omniverb-vnic-set 1", "omniverbd 8", "omniverbd.toml 5"];
        assert_eq!(pages, expected);
    }
}
