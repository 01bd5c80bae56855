//! Writes docs/verbs-matrix.md from the symbol tables.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};

use crate::built_libraries;
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
    Ok(page(&Table::read(&built_libraries::VERBS)?, &Table::read(&built_libraries::CONNECTIONS)?))
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

[Limits](reference/limits/verbs.md) has what is bounded, and what differs from hardware.
";

/// Features that are no calls of their own: flags, opcodes, kinds of objects.
const FEATURES: &str = "\
| feature | works | limits, and the errno where it does not |
|---|---|---|
| memory windows of type 1: `ibv_bind_mw` | RC, UC | `EINVAL` |
| memory windows of type 2B: `IBV_WR_BIND_MW`, `ibv_wr_bind_mw` | RC, UC | `EINVAL` |
| memory windows of type 2A | no | those of type 2 belong to a queue pair, as 2B says |
| `IBV_WR_LOCAL_INV`, `IBV_WR_SEND_WITH_INV` | RC, UC | windows of type 2; UC: SENDs on one host |
| XRC | yes | without windows, FLUSH, ATOMIC_WRITE: `EINVAL` |
| compare and swap, fetch and add, of 8 bytes | RC, XRC | `IBV_ATOMIC_GLOB` |
| masked and vector atomics | no | these libraries have no symbol; as an opcode: `EINVAL` |
| ATOMIC_WRITE, of 8 bytes | RC | `EINVAL` |
| FLUSH to global visibility: `ibv_wr_flush` | RC | by `ibv_post_send`: `EINVAL` |
| FLUSH to persistence | no | `IBV_ACCESS_FLUSH_PERSISTENT`: `EINVAL` |
| on-demand paging, explicit: `IBV_ACCESS_ON_DEMAND` | yes | |
| on-demand paging, implicit: address 0, length `SIZE_MAX` | yes | |
| `ibv_advise_mr`: `PREFETCH`, `..._WRITE`, `..._NO_FAULT` | yes | other advice: `EOPNOTSUPP` |
| device memory: `ibv_alloc_dm`, `ibv_reg_dm_mr` | yes | also for atomics; it is ordinary memory |
| `ibv_wr_*` | all but `ibv_wr_send_tso` | `ibv_create_qp_ex`: `EOPNOTSUPP` |
| inline data: `IBV_SEND_INLINE`, `ibv_wr_set_inline_data` | yes | |
| `create_flags` of a queue pair | no | `ibv_create_qp_ex`: `EOPNOTSUPP` |
| queue pairs for raw packets, or of drivers | no | `EOPNOTSUPP` |
| SRQs for tag matching | no | `ibv_create_srq_ex`: `EOPNOTSUPP` |
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
    out += "\n## Features that are no calls\n\n";
    out += FEATURES;
    out += "\n## Calls\n";
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
