//! Implements `omniverb doctor`: checks everything that has to be right, one line each.

mod daemon;
mod findings;
mod kernel;
mod leftovers;
mod libraries;
mod roce_port;
mod socket_support;

use findings::{Findings, Grade};
use std::ffi::OsStr;
use std::process::ExitCode;

/// Exit code 1 if something does not work.
pub(crate) fn doctor(program: Option<&OsStr>) -> anyhow::Result<ExitCode> {
    let mut findings = Findings::default();
    let daemon = daemon::daemon(&mut findings);
    if let Some(path) = &daemon {
        daemon::gids(&mut findings, path);
        roce_port::port(&mut findings, path);
        daemon::underlay(&mut findings);
        libraries::files(&mut findings, path);
        socket_support::broker(&mut findings, path);
    }
    libraries::library(&mut findings);
    libraries::stock(&mut findings);
    if let Some(program) = program {
        libraries::program(&mut findings, program);
        socket_support::program(&mut findings, program);
    }
    kernel::memory_files(&mut findings);
    kernel::userfaultfd(&mut findings);
    kernel::processors(&mut findings);
    kernel::limits(&mut findings);
    leftovers::daemons(&mut findings);
    leftovers::sockets(&mut findings);
    for (grade, text) in findings.all() {
        let word = match grade {
            Grade::Good => "ok  ",
            Grade::Note => "note",
            Grade::Bad => "BAD ",
        };
        println!("{word}  {text}");
    }
    let bad = findings.all().iter().any(|(grade, _)| *grade == Grade::Bad);
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
