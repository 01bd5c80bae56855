//! `omniverb doctor`: looks at everything that has to be right, one line a finding.

mod kernel;
mod libraries;
mod network;
mod processes;

use omniverb_session::text;
use std::ffi::OsStr;
use std::fmt::Display;
use std::process::ExitCode;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grade {
    Good,
    /// Works, but worse than it could.
    Note,
    Bad,
}

/// What was found.
#[derive(Debug, Default)]
struct Findings(Vec<(Grade, String)>);

impl Findings {
    fn good(&mut self, text: impl Display) {
        self.add(Grade::Good, text.to_string());
    }

    /// Something that could be better, and how.
    fn note(&mut self, text: impl Display, mend: impl Display) {
        self.add(Grade::Note, format!("{text}: {mend}"));
    }

    /// Something that does not work, and how to mend it.
    fn bad(&mut self, text: impl Display, mend: impl Display) {
        self.add(Grade::Bad, format!("{text}: {mend}"));
    }

    fn add(&mut self, grade: Grade, text: String) {
        self.0.push((grade, text::clean(&text.replace('\n', " "))));
    }
}

/// Exit code 1 if something does not work.
pub(crate) fn doctor(program: Option<&OsStr>) -> anyhow::Result<ExitCode> {
    let mut findings = Findings::default();
    let daemon = network::daemon(&mut findings);
    if let Some(path) = &daemon {
        network::gids(&mut findings, path);
        network::port(&mut findings, path);
        libraries::files(&mut findings, path);
    }
    libraries::library(&mut findings);
    libraries::stock(&mut findings);
    if let Some(program) = program {
        libraries::program(&mut findings, program);
    }
    kernel::memory_files(&mut findings);
    kernel::userfaultfd(&mut findings);
    kernel::limits(&mut findings);
    processes::daemons(&mut findings);
    processes::sockets(&mut findings);
    for (grade, text) in &findings.0 {
        let word = match grade {
            Grade::Good => "ok  ",
            Grade::Note => "note",
            Grade::Bad => "BAD ",
        };
        println!("{word}  {text}");
    }
    let bad = findings.0.iter().any(|(grade, _)| *grade == Grade::Bad);
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
