//! Build, link and check tasks: `cargo xtask <task>`. One module per task.

mod build_preload_library;
mod built_libraries;
mod check_budgets;
mod check_environment_variables;
mod check_interposed_functions;
mod check_library_symbols;
mod check_readme_verbs;
mod code_constants;
mod compare_rdma_core_symbols;
mod dist;
mod document_checks;
mod document_links;
mod document_numbers;
mod documented_messages;
mod empty_doc_comments;
mod export_stubs;
mod folder_readme_contract;
mod layers;
mod library_symbols;
mod license_notices;
mod lower_glibc_version;
mod man_pages;
mod module_uses;
mod run_program;
mod symbol_probe;
mod symbol_tables;
mod tidy;
mod unclear_bool_names;
mod verbs_matrix;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask <task>

  dist [--debug] [--library]
               everything into dist/bin and dist/lib; --debug builds fast and unoptimised,
               --library leaves the programs out
  man          man pages and shell completions into dist/share; dist does it, too
  abi          the libraries in dist/lib against their symbol tables, the installed ones and the
               programs linked to those
  follow TREE  what a release of rdma-core (its source tree) exports and we do not
  matrix [--check]
               write docs/verbs-matrix.md (or fail if it is not current)
  layers       fail where the structure is not what layers.toml says
  tidy         file lengths, line lengths, forbidden words, doc comments that say nothing, what
               `true` means, and what documents say of files";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut words = arguments.iter().map(String::as_str);
    let task = words.next().unwrap_or("help");
    let flags: Vec<&str> = words.collect();
    let result = match task {
        "dist" => dist::run(&flags),
        "abi" => run_program::no_flags(&flags).and_then(|()| check_library_symbols::run()),
        "follow" => compare_rdma_core_symbols::run(&flags),
        "man" => run_program::no_flags(&flags).and_then(|()| man_pages::write(&[])),
        "matrix" => verbs_matrix::run(&flags),
        "layers" => run_program::no_flags(&flags).and_then(|()| layers::run()),
        "tidy" => run_program::no_flags(&flags).and_then(|()| tidy::run()),
        "help" | "--help" | "-h" => {
            println!("{HELP}");
            Ok(())
        }
        _ => Err(anyhow::anyhow!("unknown task {task}\n\n{HELP}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {task}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
