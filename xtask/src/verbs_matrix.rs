//! Writes docs/verbs-matrix.md from the symbol tables.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};

use crate::libraries;
use crate::run_program::root;
use crate::symbol_tables::{Table, VerbStatus};

/// Writes the page, or with `--check` compares it.
pub(crate) fn run(flags: &[&str]) -> Result<()> {
    let path = root().join("docs/verbs-matrix.md");
    let page = whole_page()?;
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
pub(crate) fn check_current() -> Result<()> {
    check(&whole_page()?)
}

fn whole_page() -> Result<String> {
    Ok(page(&Table::read(&libraries::VERBS)?, &Table::read(&libraries::CONNECTIONS)?))
}

fn check(page: &str) -> Result<()> {
    let path = root().join("docs/verbs-matrix.md");
    if std::fs::read_to_string(&path).unwrap_or_default() != page {
        bail!("docs/verbs-matrix.md is not current; run `cargo xtask matrix`");
    }
    Ok(())
}

fn mark(status: VerbStatus) -> &'static str {
    match status {
        VerbStatus::Works => "yes",
        VerbStatus::Partly => "partly",
        VerbStatus::Unsupported => "no",
    }
}

/// Verbs that are not offered and have another errno than `EOPNOTSUPP`.
const ERRNO_EXCEPTIONS: &str = "\
| what | errno |
|---|---|
| `ibv_export_buf_dmabuf_fd` | `ENODATA`: there is the call, and never such a descriptor |
| access flags of `ibv_reg_mr` and opcodes of work requests that are not known | `EINVAL` |
| queue pair types that are not known (of raw packets, of drivers: `EOPNOTSUPP`) | `EINVAL` |
| `rdma_cm` with addresses of `AF_IB` | `EINVAL` |
| `rdma_set_option` with `RDMA_OPTION_IB_PATH`, or an option that is not known | `ENOSYS` |

Masked and vector atomics have no symbol in these libraries. SRQs for tag matching, which
`ibv_create_srq_ex` makes, have `EOPNOTSUPP`. [Limits](reference/limits/verbs.md) has the rest.
";

/// Every symbol of the nodes that clients ask for.
fn exported(out: &mut String, table: &Table) {
    *out += "| symbol | node | works | note |\n|---|---|---|---|\n";
    for (node, symbols) in table.nodes_in_order() {
        for (name, symbol) in symbols {
            let answer = symbol.returns.map_or("", |returns| returns.words());
            let note = [answer, &symbol.note].into_iter().filter(|s| !s.is_empty());
            let note = note.collect::<Vec<_>>().join("; ");
            writeln!(out, "| `{name}` | {node} | {} | {note} |", mark(symbol.status)).ok();
        }
    }
}

fn page(table: &Table, connections: &Table) -> String {
    let mut out = String::from(
        "# Which verbs and calls work\n\n\
         Made by `cargo xtask matrix` from `app/ibverbs/symbols.toml` and\n\
         `app/rdmacm/symbols.toml`; do not edit. Every symbol of libibverbs and librdmacm up to\n\
         release 65 is there. What is not offered answers as hardware without the feature does:\n\
         `EOPNOTSUPP`, but for these.\n\n",
    );
    out += ERRNO_EXCEPTIONS;
    let public = |table: &Table, status| {
        table.nodes.values().flatten().filter(|(_, s)| s.status == status).count()
    };
    let inline = |status| table.inline.values().filter(|s| s.status == status).count();
    out += "\n| | works | partly | not offered |\n|---|---|---|---|\n";
    let all = [VerbStatus::Works, VerbStatus::Partly, VerbStatus::Unsupported];
    let rows = [
        ("exported symbols of libibverbs", all.map(|status| public(table, status))),
        ("inline verbs", all.map(inline)),
        ("exported symbols of librdmacm", all.map(|status| public(connections, status))),
    ];
    for (what, count) in rows {
        writeln!(out, "| {what} | {} | {} | {} |", count[0], count[1], count[2]).ok();
    }
    out += "\n## Exported symbols\n\n";
    exported(&mut out, table);
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
         to\nprovider libraries (libmlx5, libefa, ...) load.\n{} answer for real,\n\
         the others as not offered.\n",
        numbers.join(", "),
        table.private.works.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(" and "),
    )
    .ok();
    if let Some(own) = &table.own {
        write!(
            out,
            "\n`{}`: {} functions for Omniverb's own other libraries; no default versions, so\n\
         no program is bound to them (decisions/0027).\n",
            own.node,
            own.functions.len(),
        )
        .ok();
    }
    out += "\n## Connections: librdmacm.so.1\n\n";
    exported(&mut out, connections);
    out
}
