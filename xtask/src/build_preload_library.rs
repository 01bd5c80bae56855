//! Builds `libomniverb_sockets.so`'s entry points from its table of names
//! (`sockets/preload/interposed_functions.toml`).
//!
//! A name that passes is a jump to the next library's function, from a slot that is filled when the
//! program starts. Names have no versions: whichever a program asks for, it gets ours.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::export_stubs::Machine;
use crate::run_program::{cargo, replace, root, run as execute, target_directory};
use crate::{built_libraries, library_symbols, lower_glibc_version};

pub(crate) const SONAME: &str = "libomniverb_sockets.so";
const PACKAGE: &str = "omniverb_sockets";
const TABLE: &str = "sockets/preload/interposed_functions.toml";
/// Functions that tests look up.
const OWN: [&str; 2] = ["omniverb_sockets_describe", "omniverb_sockets_keep"];

/// The whole table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PreloadNames {
    pub pass: Vec<String>,
    /// A function of ours, and the names before which it looks.
    pub look: BTreeMap<String, Vec<String>>,
    pub choose: BTreeMap<String, Vec<String>>,
    pub watch: BTreeMap<String, Vec<String>>,
    /// A reason, and the names that are left alone for it.
    pub left: BTreeMap<String, Vec<String>>,
    pub hidden: BTreeMap<String, Vec<String>>,
}

impl PreloadNames {
    pub(crate) fn read() -> Result<Self> {
        let path = root().join(TABLE);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let names: Self = toml::from_str(&text).with_context(|| path.display().to_string())?;
        let mut seen = BTreeSet::new();
        if let Some(twice) = names.all().find(|name| !seen.insert(*name)) {
            bail!("{TABLE} has {twice} twice");
        }
        Ok(names)
    }

    /// Those that are interposed.
    pub(crate) fn interposed(&self) -> impl Iterator<Item = &str> {
        let functions = [&self.look, &self.choose, &self.watch];
        let grouped = functions.into_iter().flat_map(BTreeMap::values).flatten();
        self.pass.iter().chain(grouped).map(String::as_str)
    }

    /// Every name in it.
    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        let others = self.left.values().chain(self.hidden.values()).flatten();
        self.interposed().chain(others.map(String::as_str))
    }
}

/// Builds the library into dist/lib.
pub(crate) fn build() -> Result<()> {
    if !matches!(Machine::host(), Machine::X86_64) {
        println!("no dist/lib/{SONAME}: its entry points are for x86-64 only");
        return Ok(());
    }
    let names = PreloadNames::read()?;
    // Always as it is shipped: what unwinds through it must find no frames that stop it.
    execute(cargo().args(["build", "-p", PACKAGE, "--lib", "--profile", "shim"]))?;
    let target = target_directory()?;
    let archive = target.join("shim").join(format!("lib{PACKAGE}.a"));
    let work = target.join("dist").join(PACKAGE);
    std::fs::create_dir_all(&work)?;
    let (linked, jumps) = (work.join(SONAME), work.join("glibc.S"));
    std::fs::write(work.join("library.map"), script(&names))?;
    std::fs::write(work.join("entries.S"), entries(&names))?;
    lower_glibc_version::link_with_jumps(&linked, &jumps, || link(&work, &archive))?;
    let folder = built_libraries::folder();
    std::fs::create_dir_all(&folder)?;
    replace(&linked, &folder.join(SONAME))?;
    if library_symbols::glibc_floor(&linked)?.newest > lower_glibc_version::WANTED {
        bail!("{SONAME} needs a newer glibc than {:?}", lower_glibc_version::WANTED);
    }
    built_libraries::report(SONAME)
}

fn link(work: &Path, archive: &Path) -> Result<()> {
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-fPIC", "-shared", "-o"]).arg(work.join(SONAME));
    cc.arg(work.join("entries.S")).arg(work.join("glibc.S"));
    cc.arg(root().join("app/ibverbs/glibc_compat.c"))
        .arg(root().join("sockets/preload/unwind_stubs.c"));
    cc.arg(archive);
    cc.arg(format!("-Wl,--version-script={}", work.join("library.map").display()));
    cc.arg(format!("-Wl,-soname,{SONAME}"));
    cc.args(["-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,nodelete", "-Wl,-z,defs"]);
    cc.args(["-Wl,-z,noexecstack", "-Wl,--gc-sections"]);
    cc.args(["-Wl,-O1", "-Wl,--strip-debug"]);
    cc.args(lower_glibc_version::LIBRARIES);
    execute(&mut cc)
}

fn script(names: &PreloadNames) -> String {
    let mut out = String::from("/* Made from interposed_functions.toml. */\n{\n  global:\n");
    names.interposed().chain(OWN).for_each(|name| _ = writeln!(out, "    {name};"));
    out.push_str("  local: *;\n};\n");
    out
}

/// Registers that may hold arguments are kept while ours looks: six, `%rax` with the number of
/// those of floating point, and these. 184 bytes leave the stack as a call wants it.
const KEEP: &str = "\
    subq $184, %rsp\n    .cfi_adjust_cfa_offset 184\n\
    movq %rdi, 0(%rsp)\n    movq %rsi, 8(%rsp)\n    movq %rdx, 16(%rsp)\n\
    movq %rcx, 24(%rsp)\n    movq %r8, 32(%rsp)\n    movq %r9, 40(%rsp)\n\
    movq %rax, 48(%rsp)\n\
    movups %xmm0, 56(%rsp)\n    movups %xmm1, 72(%rsp)\n    movups %xmm2, 88(%rsp)\n\
    movups %xmm3, 104(%rsp)\n    movups %xmm4, 120(%rsp)\n    movups %xmm5, 136(%rsp)\n\
    movups %xmm6, 152(%rsp)\n    movups %xmm7, 168(%rsp)\n";
const GIVE_BACK: &str = "\
    movq 0(%rsp), %rdi\n    movq 8(%rsp), %rsi\n    movq 16(%rsp), %rdx\n\
    movq 24(%rsp), %rcx\n    movq 32(%rsp), %r8\n    movq 40(%rsp), %r9\n\
    movq 48(%rsp), %rax\n\
    movups 56(%rsp), %xmm0\n    movups 72(%rsp), %xmm1\n    movups 88(%rsp), %xmm2\n\
    movups 104(%rsp), %xmm3\n    movups 120(%rsp), %xmm4\n    movups 136(%rsp), %xmm5\n\
    movups 152(%rsp), %xmm6\n    movups 168(%rsp), %xmm7\n\
    addq $184, %rsp\n    .cfi_adjust_cfa_offset -184\n";

/// What is in front of all: two words of each thread, the loader's call, and what an empty slot
/// leads to, with the slot's address in `%r11`.
fn head() -> String {
    let mut out = String::from(
        "/* Made from interposed_functions.toml. */\n\
         .section .tbss,\"awT\",@nobits\n.p2align 3\nov_thread: .zero 8\n\
         .section .init_array,\"aw\"\n.p2align 3\n.quad ov_sockets_start\n\
         .section .fini_array,\"aw\"\n.p2align 3\n.quad ov_sockets_end\n\
         .section .data.rel.ro.ov_rows,\"aw\"\n.p2align 3\n\
         .globl ov_sockets_rows\n.hidden ov_sockets_rows\nov_sockets_rows:\n",
    );
    out.push_str(
        ".text\n.globl ov_sockets_thread\n.hidden ov_sockets_thread\n\
         .type ov_sockets_thread, @function\nov_sockets_thread:\n\
         \x20   movq ov_thread@gottpoff(%rip), %rax\n    addq %fs:0, %rax\n    ret\n\
         .type ov_late, @function\nov_late:\n    .cfi_startproc\n",
    );
    // Ours may use `%r11`, so it is kept, too.
    out.push_str("    pushq %r11\n    .cfi_adjust_cfa_offset 8\n");
    out.push_str("    subq $8, %rsp\n    .cfi_adjust_cfa_offset 8\n");
    out.push_str(KEEP);
    out.push_str("    call ov_sockets_late\n");
    out.push_str(GIVE_BACK);
    out.push_str("    addq $8, %rsp\n    .cfi_adjust_cfa_offset -8\n");
    out.push_str("    popq %r11\n    .cfi_adjust_cfa_offset -8\n");
    out.push_str("    jmp *(%r11)\n    .cfi_endproc\n");
    out
}

/// The assembly file.
fn entries(names: &PreloadNames) -> String {
    let mut out = head();
    for name in &names.pass {
        let body = format!("    jmp *ov_next_{name}(%rip)\n");
        entry(&mut out, name, &body);
    }
    for (function, group) in &names.look {
        for name in group {
            let body = format!(
                "{KEEP}    call ov_look_{function}\n{GIVE_BACK}    jmp *ov_next_{name}(%rip)\n"
            );
            entry(&mut out, name, &body);
        }
    }
    for (function, group) in &names.choose {
        for name in group {
            let body = format!(
                "{KEEP}    call ov_choose_{function}\n    movl %eax, %r11d\n{GIVE_BACK}\
                 \x20   testl %r11d, %r11d\n    jnz ov_{function}\n\
                 \x20   jmp *ov_next_{name}(%rip)\n"
            );
            entry(&mut out, name, &body);
        }
    }
    for (function, group) in &names.watch {
        for name in group {
            entry(&mut out, name, &format!("    jmp ov_{function}\n"));
        }
    }
    for name in OWN {
        let body = format!("    jmp ov_{name}\n");
        label(&mut out, name, &body);
    }
    out.push_str(
        ".section .data.rel.ro.ov_rows,\"aw\"\n.globl ov_sockets_rows_end\n\
         .hidden ov_sockets_rows_end\nov_sockets_rows_end:\n\
         .section .note.GNU-stack,\"\",@progbits\n",
    );
    out
}

/// A name's entry point, its slot, what that leads to at first, and its row.
fn entry(out: &mut String, name: &str, body: &str) {
    label(out, name, body);
    write!(
        out,
        ".section .data.ov_next,\"aw\"\n.p2align 3\n.globl ov_next_{name}\n\
         .hidden ov_next_{name}\nov_next_{name}: .quad ov_late_{name}\n\
         .text\nov_late_{name}:\n    leaq ov_next_{name}(%rip), %r11\n    jmp ov_late\n\
         .section .rodata.ov_names,\"a\"\nov_name_{name}: .asciz \"{name}\"\n\
         .section .data.rel.ro.ov_rows,\"aw\"\n\
         .quad ov_name_{name}, ov_next_{name}, ov_late_{name}\n"
    )
    .ok();
}

fn label(out: &mut String, name: &str, body: &str) {
    write!(
        out,
        ".section .text.{name},\"ax\",@progbits\n.p2align 4\n.globl {name}\n\
         .type {name}, @function\n{name}:\n    .cfi_startproc\n{body}    .cfi_endproc\n\
         .size {name}, .-{name}\n"
    )
    .ok();
}
