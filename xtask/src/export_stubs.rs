//! Turns the symbol table into a version script and an assembly file of entry points.
//!
//! One jump per symbol and node, because a linker binds one symbol to one version; jumps need no
//! C prototype, so one answer serves every unsupported verb. Arguments stay in their registers.

use std::fmt::Write as _;

use crate::symbol_tables::{Table, VerbStatus};

/// The node that a program built against our library asks for where a name is in several.
const DEFAULT_PRIVATE: u32 = 34;

/// A processor's way to write an entry point.
#[derive(Clone, Copy)]
pub(crate) enum Machine {
    X86_64,
    Aarch64,
}

impl Machine {
    /// The one we run on.
    pub(crate) fn host() -> Self {
        if cfg!(target_arch = "aarch64") { Self::Aarch64 } else { Self::X86_64 }
    }

    fn jump(self) -> &'static str {
        match self {
            Self::X86_64 => "jmp",
            Self::Aarch64 => "b",
        }
    }

    /// The mark of types, since `@` begins a comment for some assemblers.
    fn type_mark(self) -> char {
        match self {
            Self::X86_64 => '@',
            Self::Aarch64 => '%',
        }
    }
}

/// The version script: public nodes list their symbols; private ones get theirs from `.symver`.
pub(crate) fn version_script(table: &Table) -> String {
    let mut out = String::from("/* Made from symbols.toml. */\n");
    let mut before = String::new();
    for (node, symbols) in table.nodes_in_order() {
        writeln!(out, "{node} {{").ok();
        if !symbols.is_empty() {
            writeln!(out, "  global:").ok();
            symbols.keys().for_each(|name| _ = writeln!(out, "    {name};"));
        }
        if before.is_empty() {
            writeln!(out, "  local: *;").ok();
        }
        writeln!(out, "}}{before};").ok();
        before = format!(" {node}");
    }
    for number in &table.private.nodes {
        writeln!(out, "IBVERBS_PRIVATE_{number} {{ }};").ok();
    }
    if let Some(own) = &table.own {
        writeln!(out, "{} {{ }};", own.node).ok();
    }
    out
}

/// The entry points.
pub(crate) fn assembly(table: &Table, machine: Machine) -> String {
    let mut out = String::from("/* Made from symbols.toml. */\n");
    for symbols in table.nodes.values() {
        for (name, symbol) in symbols {
            let function = match (symbol.status, symbol.returns) {
                (VerbStatus::Unsupported, Some(returns)) => returns.function().to_owned(),
                _ => format!("ov_{name}"),
            };
            entry(&mut out, machine, name, &function);
        }
    }
    for number in &table.private.nodes {
        let mut names: Vec<(String, String)> = Vec::new();
        for (name, function) in table.private.functions() {
            names.push((name.to_owned(), function));
        }
        for name in &table.private.numbered_nothing {
            names.push((format!("{name}_{number}"), "ov_unsupported_nothing".to_owned()));
        }
        for (name, function) in names {
            let label = format!("private_{number}_{name}");
            entry(&mut out, machine, &label, &function);
            bind(&mut out, &label, &name, *number);
        }
        for name in &table.private.data {
            let label = format!("private_{number}_{name}");
            let mark = machine.type_mark();
            write!(
                out,
                ".section .bss.{label},\"aw\",{mark}nobits\n.globl {label}\n\
                 .type {label}, {mark}object\n.size {label}, 1\n{label}: .zero 1\n"
            )
            .ok();
            bind(&mut out, &label, name, *number);
        }
    }
    if let Some(own) = &table.own {
        for name in &own.functions {
            let label = format!("own_{name}");
            entry(&mut out, machine, &label, &format!("ov_{name}"));
            writeln!(out, ".symver {label}, {name}@{}", own.node).ok();
        }
    }
    if let Some(needs) = &table.needs {
        needs.functions.iter().for_each(|name| jump(&mut out, machine, name, &needs.node));
    }
    writeln!(out, ".section .note.GNU-stack,\"\",{}progbits", machine.type_mark()).ok();
    out
}

fn entry(out: &mut String, machine: Machine, label: &str, function: &str) {
    let (mark, jump) = (machine.type_mark(), machine.jump());
    write!(
        out,
        ".section .text.{label},\"ax\",{mark}progbits\n.p2align 4\n.globl {label}\n\
         .type {label}, {mark}function\n{label}: {jump} {function}\n.size {label}, .-{label}\n"
    )
    .ok();
}

fn bind(out: &mut String, label: &str, name: &str, number: u32) {
    let at = if number == DEFAULT_PRIVATE { "@@" } else { "@" };
    writeln!(out, ".symver {label}, {name}{at}IBVERBS_PRIVATE_{number}").ok();
}

/// A function of a name within the library that goes to a version of that name outside.
pub(crate) fn jump(out: &mut String, machine: Machine, name: &str, version: &str) {
    let target = format!("old_{name}");
    let body = match machine {
        Machine::X86_64 => format!("jmp *{target}@GOTPCREL(%rip)"),
        Machine::Aarch64 => {
            format!("adrp x16, :got:{target}; ldr x16, [x16, :got_lo12:{target}]; br x16")
        }
    };
    write!(
        out,
        ".symver {target}, {name}@{version}\n.section .text.{name},\"ax\",%progbits\n\
         .p2align 4\n.globl {name}\n.hidden {name}\n.type {name}, %function\n\
         {name}: {body}\n.size {name}, .-{name}\n"
    )
    .ok();
}
