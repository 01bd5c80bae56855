//! Checks that `sockets/preload/interposed_functions.toml` has every function that leads to a
//! socket.
//!
//! A name must be in the table if it is another name of a function that is; if its function makes
//! one of the system calls below; or if it calls, within the C library, one that does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::build_preload_library::{PreloadNames, SONAME};
use crate::built_libraries;
use crate::export_stubs::Machine;
use crate::library_symbols;
use crate::run_program::output;

/// System calls by which a program comes to a socket, a set, or another table of descriptors, on
/// x86-64.
const CALLS: [u32; 53] = [
    0, 1, 3, 7, 16, 17, 18, 19, 20, 23, 32, 33, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52,
    53, 54, 55, 57, 58, 59, 72, 213, 232, 233, 270, 271, 272, 275, 276, 278, 281, 288, 291, 292,
    295, 296, 299, 307, 322, 326, 436, 441,
];
/// Those that are new since: `preadv2`, `pwritev2`, `setns`, `clone`, `clone3`.
const MORE_CALLS: [u32; 5] = [327, 328, 308, 56, 435];
/// The C library's own ways past cancellation points, which make such calls, too.
const INNER: [&str; 5] = [
    "__read_nocancel",
    "__write_nocancel",
    "__close_nocancel",
    "__fcntl64_nocancel",
    "__pread64_nocancel",
];
/// For the C library itself.
const PRIVATE: &str = "GLIBC_PRIVATE";
/// Instructions between a number and the call.
const NEAR: usize = 40;
/// What programs name that are linked with the C library.
const LIBC: &str = "libc.so.6";
/// Programs that are compared, of those that are installed; the tests run them, and more.
const FOLDERS: [&str; 2] = ["/usr/bin", "/usr/sbin"];

/// A part of `cargo xtask abi`.
pub(crate) fn run() -> Result<()> {
    if !matches!(Machine::host(), Machine::X86_64) {
        return Ok(());
    }
    println!("{SONAME}:");
    let names = PreloadNames::read()?;
    let library = built_libraries::folder().join(SONAME);
    if !library.exists() {
        bail!("{} is missing; run `cargo xtask dist` first", library.display());
    }
    exported(&names, &library)?;
    let libc = output(Command::new("cc").arg(format!("-print-file-name={LIBC}")))?;
    let libc = std::fs::canonicalize(libc.trim()).context("the C library")?;
    let functions = Functions::read(&libc)?;
    let code = output(Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(&libc))?;
    let code = CallGraph::read(&code, &functions);
    let missing = missing(&names, &functions, &code);
    if !missing.is_empty() {
        bail!("sockets/preload/interposed_functions.toml lacks\n{}", missing.join("\n"));
    }
    let interposed = names.interposed().count();
    println!("{interposed} names are interposed, and no other of libc's leads to such a call");
    programs(&names, &functions, &code)
}

/// The library exports the names of the table, and its two for tests.
fn exported(names: &PreloadNames, library: &Path) -> Result<()> {
    let there = library_symbols::exports(library)?;
    let there: BTreeSet<&str> = there.iter().map(|export| export.name.as_str()).collect();
    if let Some(name) = names.interposed().find(|name| !there.contains(name)) {
        bail!("{SONAME} does not export {name}");
    }
    let wanted: BTreeSet<&str> = names.interposed().collect();
    let more = there.iter().filter(|name| !wanted.contains(**name));
    match more.copied().find(|name| !name.starts_with("omniverb_")) {
        Some(name) => bail!("{SONAME} exports {name}, which is not in the table"),
        None => Ok(()),
    }
}

/// What a library exports, by address.
struct Functions {
    /// Address: size, and the names without their versions.
    all: BTreeMap<u64, (u64, BTreeSet<String>)>,
}

impl Functions {
    fn read(library: &Path) -> Result<Self> {
        let text = output(Command::new("nm").args(["-D", "-S", "--defined-only"]).arg(library))?;
        let mut all: BTreeMap<u64, (u64, BTreeSet<String>)> = BTreeMap::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [address, size, kind, symbol] = words[..] else { continue };
            let (name, version) = symbol.split_once('@').unwrap_or((symbol, ""));
            if !matches!(kind, "T" | "W" | "i") {
                continue;
            }
            let address = u64::from_str_radix(address, 16)?;
            let function = all.entry(address).or_default();
            function.0 = function.0.max(u64::from_str_radix(size, 16)?);
            if !version.ends_with(PRIVATE) || INNER.contains(&name) {
                function.1.insert(name.to_owned());
            }
        }
        Ok(Self { all })
    }

    /// The function that an instruction is in.
    fn of(&self, address: u64) -> Option<u64> {
        let (begin, (size, _)) = self.all.range(..=address).next_back()?;
        (address < begin + size).then_some(*begin)
    }

    fn names(&self, address: u64) -> impl Iterator<Item = &str> {
        self.all.get(&address).into_iter().flat_map(|(_, names)| names).map(String::as_str)
    }
}

/// What functions do, by their addresses.
#[derive(Default)]
struct CallGraph {
    /// They make one of the system calls.
    makes: BTreeSet<u64>,
    /// Who is called, and by whom.
    callers: BTreeMap<u64, BTreeSet<u64>>,
}

impl CallGraph {
    fn read(text: &str, functions: &Functions) -> CallGraph {
        let mut code = CallGraph::default();
        // The number last put into the register, by which function, and how long ago.
        let mut number: Option<(u32, u64)> = None;
        let mut since = 0;
        for line in text.lines() {
            let Some((address, rest)) = line.trim_start().split_once(":\t") else { continue };
            let Ok(address) = u64::from_str_radix(address, 16) else { continue };
            let Some(function) = functions.of(address) else { continue };
            let mut words = rest.split_whitespace();
            let (what, on) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            since += 1;
            if let Some(loaded) = loaded(what, on) {
                (number, since) = (Some((loaded, function)), 0);
            } else if what == "syscall" {
                let near = number.filter(|(_, by)| *by == function && since < NEAR);
                if near.is_some_and(|(n, _)| CALLS.contains(&n) || MORE_CALLS.contains(&n)) {
                    code.makes.insert(function);
                }
            } else if matches!(what, "call" | "jmp")
                && let Ok(target) = u64::from_str_radix(on, 16)
                && target != function
            {
                code.callers.entry(target).or_default().insert(function);
            }
        }
        code
    }
}

/// The number that an instruction puts into `%rax`.
fn loaded(what: &str, on: &str) -> Option<u32> {
    if what == "xor" && on == "%eax,%eax" {
        return Some(0);
    }
    let (value, register) = on.strip_prefix("$0x")?.split_once(',')?;
    let is_number = what.starts_with("mov") && matches!(register, "%eax" | "%rax");
    is_number.then(|| u32::from_str_radix(value, 16).ok())?
}

/// Names that should be in the table, and why.
fn missing(names: &PreloadNames, functions: &Functions, code: &CallGraph) -> Vec<String> {
    let known: BTreeSet<&str> = names.all().collect();
    let interposed: BTreeSet<&str> = names.interposed().collect();
    let mut missing = Vec::new();
    for address in functions.all.keys() {
        let lacking: Vec<&str> = functions
            .names(*address)
            .filter(|name| !known.contains(name) && !INNER.contains(name))
            .collect();
        let Some(first) = lacking.first() else { continue };
        let alias = functions.names(*address).find(|name| interposed.contains(name));
        if let Some(alias) = alias {
            missing.push(format!("{}: also called {alias}", lacking.join(", ")));
        } else if code.makes.contains(address) && *first != "syscall" {
            missing.push(format!("{}: makes such a system call", lacking.join(", ")));
        }
    }
    for (target, callers) in &code.callers {
        let mut of = functions.names(*target);
        let Some(called) = of.find(|name| interposed.contains(name) || INNER.contains(name)) else {
            continue;
        };
        for caller in callers {
            let lacking: Vec<&str> =
                functions.names(*caller).filter(|name| !known.contains(name)).collect();
            if !lacking.is_empty() && lacking.len() == functions.names(*caller).count() {
                missing.push(format!("{}: calls {called} within", lacking.join(", ")));
            }
        }
    }
    missing
}

/// What installed programs ask the C library for, of what leads to such a call.
fn programs(names: &PreloadNames, functions: &Functions, code: &CallGraph) -> Result<()> {
    let known: BTreeSet<&str> = names.all().collect();
    let leads = code.makes.iter().flat_map(|address| functions.names(*address));
    let leads: BTreeSet<&str> = leads.collect();
    let interposed: BTreeSet<&str> = names.interposed().collect();
    let programs = library_symbols::users_of(LIBC, &FOLDERS)?;
    let imports = library_symbols::imports(&programs)?;
    let lacking = leads.iter().filter(|name| !known.contains(*name));
    if let Some((name, program)) = lacking.filter_map(|name| imports.get_key_value(*name)).next() {
        bail!("{} asks for {name}, which is not in the table", program.display());
    }
    let asked = imports.keys().filter(|name| interposed.contains(name.as_str())).count();
    println!("{} installed programs ask for {asked} of them, and for no other", programs.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions() -> Functions {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let all = [(0x10, (0x10, names(&["read", "__read"]))), (0x20, (0x10, names(&["other"])))];
        Functions { all: all.into() }
    }

    fn table(pass: &[&str]) -> PreloadNames {
        PreloadNames {
            pass: pass.iter().map(|name| (*name).to_owned()).collect(),
            look: BTreeMap::new(),
            choose: BTreeMap::new(),
            watch: BTreeMap::new(),
            left: BTreeMap::new(),
            hidden: BTreeMap::new(),
        }
    }

    #[test]
    fn names_that_are_missing_are_found() {
        let text = "      10:\txor    %eax,%eax\n      12:\tsyscall\n\
                    \x20     20:\tcall   10 <read@@GLIBC_2.2.5>\n";
        let functions = functions();
        let code = CallGraph::read(text, &functions);
        let count = |pass: &[&str]| missing(&table(pass), &functions, &code).len();
        assert_eq!(count(&["read", "__read", "other"]), 0);
        // An alias; and who calls it within.
        assert_eq!(count(&["read", "other"]), 1);
        assert_eq!(count(&["read", "__read"]), 1);
        // Both names of what makes the call.
        assert_eq!(count(&["other"]), 1);
    }

    #[test]
    fn other_calls_are_no_matter() {
        let text = "      10:\tmov    $0x27,%eax\n      12:\tsyscall\n";
        let functions = functions();
        let code = CallGraph::read(text, &functions);
        assert!(missing(&table(&["nothing"]), &functions, &code).is_empty());
    }
}
