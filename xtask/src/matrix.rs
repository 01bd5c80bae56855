//! Writes docs/verbs-matrix.md from the symbol table.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};

use crate::run::root;
use crate::symbols::{Status, Table};

/// Writes the page, or with `--check` compares it.
pub(crate) fn run(flags: &[&str]) -> Result<()> {
    let path = root().join("docs/verbs-matrix.md");
    let page = page(&Table::read()?);
    match flags {
        [] => {
            std::fs::write(&path, page).with_context(|| path.display().to_string())?;
            println!("wrote {}", path.display());
            Ok(())
        }
        ["--check"] => check(&page),
        _ => bail!("unknown flags {flags:?}"),
    }
}

/// Fails if the committed page is not what the table says.
pub(crate) fn check_current(table: &Table) -> Result<()> {
    check(&page(table))
}

fn check(page: &str) -> Result<()> {
    let path = root().join("docs/verbs-matrix.md");
    if std::fs::read_to_string(&path).unwrap_or_default() != page {
        bail!("docs/verbs-matrix.md is not current; run `cargo xtask matrix`");
    }
    Ok(())
}

fn mark(status: Status) -> &'static str {
    match status {
        Status::Works => "yes",
        Status::Partly => "partly",
        Status::Unsupported => "no",
    }
}

fn page(table: &Table) -> String {
    let mut out = String::from(
        "# Which verbs work\n\n\
         Made by `cargo xtask matrix` from `app/ibverbs/symbols.toml`; do not edit. Every symbol\n\
         of libibverbs up to release 64 is exported. What is not offered answers as hardware\n\
         without the feature does: `EOPNOTSUPP`.\n",
    );
    let public: Vec<_> = table.nodes.values().flatten().collect();
    let count = |status| public.iter().filter(|(_, s)| s.status == status).count();
    let inline = |status| table.inline.values().filter(|s| s.status == status).count();
    out += "\n| | works | partly | not offered |\n|---|---|---|---|\n";
    let all = [Status::Works, Status::Partly, Status::Unsupported];
    let rows = [("exported symbols", all.map(count)), ("inline verbs", all.map(inline))];
    for (what, count) in rows {
        writeln!(out, "| {what} | {} | {} | {} |", count[0], count[1], count[2]).ok();
    }
    out += "\n## Exported symbols\n\n| symbol | node | works | note |\n|---|---|---|---|\n";
    for (node, symbols) in table.nodes_in_order() {
        for (name, symbol) in symbols {
            let answer = symbol.returns.map_or("", |returns| returns.words());
            let note = [answer, &symbol.note].into_iter().filter(|s| !s.is_empty());
            let note = note.collect::<Vec<_>>().join("; ");
            writeln!(out, "| `{name}` | {node} | {} | {note} |", mark(symbol.status)).ok();
        }
    }
    out += "\n## Inline verbs\n\nFunctions of verbs.h that call a function pointer in one of our \
            structs. An empty slot makes\nthe inline itself answer `EOPNOTSUPP`.\n\n\
            | verb | slot | works | note |\n|---|---|---|---|\n";
    for (name, verb) in &table.inline {
        let (status, note) = (mark(verb.status), &verb.note);
        writeln!(out, "| `{name}` | `{}` | {status} | {note} |", verb.slot).ok();
    }
    let numbers: Vec<_> = table.private.nodes.iter().map(u32::to_string).collect();
    let names = table.private.functions().len()
        + table.private.data.len()
        + table.private.numbered_nothing.len();
    write!(
        out,
        "\n## Private nodes\n\n`IBVERBS_PRIVATE_` {}: {names} names each, so that programs linked \
         to provider libraries\n(libmlx5, libefa, ...) load. {} answer for real, the others as \
         not offered.\n",
        numbers.join(", "),
        table.private.works.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(" and "),
    )
    .ok();
    write!(
        out,
        "\n`{}`: {} functions for Omniverb's own other libraries; no default versions, so no \
         program\nis bound to them (decisions/0027).\n",
        table.own.node,
        table.own.functions.len(),
    )
    .ok();
    out
}
