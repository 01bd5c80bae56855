//! Makes a C program that looks up every symbol of a library and calls those that are not offered.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::built_libraries;
use crate::run_program::{run, target_directory};
use crate::symbol_tables::{Table, UnsupportedReturn, VerbStatus};

const PRELUDE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
typedef long (*function)(long, long, long, long, long, long);
static void *library;
static int faults;
static void *find(const char *name, const char *node)
{
	void *found = dlvsym(library, name, node);
	if (!found) {
		printf("%s@%s: not found\n", name, node);
		faults++;
	}
	return found;
}
static void answer(const char *name, const char *node, int bits, long value, int number)
{
	function call = (function)find(name, node);
	if (!call)
		return;
	errno = 0;
	long result = call(7, 0, 0, 0, 0, 0);
	int seen = errno;
	if (bits == 32)
		result = (int)result;
	if ((bits && result != value) || seen != number) {
		printf("%s@%s: %ld, errno %d\n", name, node, result, seen);
		faults++;
	}
}
static void variable(const char *name, const char *node)
{
	unsigned char *found = find(name, node);
	if (found && *found > 1) {
		printf("%s@%s is no boolean\n", name, node);
		faults++;
	}
}
/* Found by those who name the node, and by nobody else. */
static void own(const char *name, const char *node)
{
	find(name, node);
	if (dlsym(library, name)) {
		printf("%s is a default version\n", name);
		faults++;
	}
}
int main(int argc, char **argv)
{
	library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
	if (!library) {
		puts(dlerror());
		return 1;
	}
"#;

/// Builds and runs the program.
pub(crate) fn check(table: &Table, library: &Path) -> Result<()> {
    let folder = target_directory()?.join("dist");
    std::fs::create_dir_all(&folder)?;
    let (source, program) = (folder.join("probe.c"), folder.join("probe"));
    std::fs::write(&source, text(table))?;
    run(Command::new("cc").arg("-o").arg(&program).arg(&source).arg("-ldl"))?;
    run(Command::new(&program).arg(library).env("LD_LIBRARY_PATH", built_libraries::folder()))
}

fn text(table: &Table) -> String {
    let mut out = PRELUDE.to_owned();
    for (node, symbols) in &table.nodes {
        for (name, symbol) in symbols {
            match (symbol.status, symbol.returns) {
                (VerbStatus::Unsupported, Some(returns)) => answer(&mut out, name, node, returns),
                _ => _ = writeln!(out, "\tfind(\"{name}\", \"{node}\");"),
            }
        }
    }
    let private = &table.private;
    for number in &private.nodes {
        let node = format!("IBVERBS_PRIVATE_{number}");
        for (names, returns) in [
            (&private.errno, UnsupportedReturn::Errno),
            (&private.null, UnsupportedReturn::Null),
            (&private.minus_one, UnsupportedReturn::MinusOne),
            (&private.nothing, UnsupportedReturn::Nothing),
        ] {
            names.iter().for_each(|name| answer(&mut out, name, &node, returns));
        }
        for name in &private.numbered_nothing {
            answer(&mut out, &format!("{name}_{number}"), &node, UnsupportedReturn::Nothing);
        }
        for name in &private.first_argument {
            writeln!(out, "\tanswer(\"{name}\", \"{node}\", 32, 7, 0);").ok();
        }
        for name in &private.works {
            writeln!(out, "\tfind(\"{name}\", \"{node}\");").ok();
        }
        for name in &private.data {
            writeln!(out, "\tvariable(\"{name}\", \"{node}\");").ok();
        }
    }
    if let Some(own) = &table.own {
        for name in &own.functions {
            writeln!(out, "\town(\"{name}\", \"{}\");", own.node).ok();
        }
    }
    out + "\treturn faults != 0;\n}\n"
}

/// The call, how many bits of its result count, and the result and errno that are right.
fn answer(out: &mut String, name: &str, node: &str, returns: UnsupportedReturn) {
    let (bits, value, errno) = match returns {
        UnsupportedReturn::Errno => (32, "EOPNOTSUPP", "0"),
        UnsupportedReturn::NegativeErrno => (64, "-EOPNOTSUPP", "0"),
        UnsupportedReturn::Null => (64, "0", "EOPNOTSUPP"),
        UnsupportedReturn::MinusOne => (32, "-1", "EOPNOTSUPP"),
        UnsupportedReturn::Zero => (64, "0", "EOPNOTSUPP"),
        UnsupportedReturn::Nothing => (0, "0", "0"),
    };
    writeln!(out, "\tanswer(\"{name}\", \"{node}\", {bits}, {value}, {errno});").ok();
}
