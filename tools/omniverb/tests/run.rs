//! Tests `omniverb run`: the program's exit code, environment and signals.
//!
//! Needs no daemon: the socket is named, and the library is a stand-in.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The command line, installed the way `dist/` is.
struct Installed(PathBuf);

impl Installed {
    fn new(name: &str) -> Installed {
        let folder =
            std::env::temp_dir().join(format!("omniverb-run-{name}-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("bin")).unwrap();
        std::fs::create_dir_all(folder.join("lib")).unwrap();
        // By another process: were the copy open for writing here while a parallel test forks, the
        // child would have it open too, and running it would fail (ETXTBSY).
        let copied = Command::new("cp")
            .args([Path::new(env!("CARGO_BIN_EXE_omniverb")), &folder.join("bin/omniverb")])
            .status();
        assert!(copied.unwrap().success());
        std::fs::write(folder.join("lib/libibverbs.so.1"), "").unwrap();
        Installed(folder.canonicalize().unwrap())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.0.join("bin/omniverb"));
        command.args(words).env("OMNIVERB_SOCKET", "/nowhere/socket");
        command.env_remove("LD_LIBRARY_PATH");
        command
    }

    fn output(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn exit_codes_and_signals_are_the_programs_own() {
    let installed = Installed::new("codes");
    for (words, code) in [
        (&["run", "true"][..], 0),
        (&["run", "--", "sh", "-c", "exit 7"], 7),
        (&["run", "sh", "-c", "exit 9"], 9),
        (&["run", "no-such-program"], 127),
        (&["run", "/no/such/program"], 127),
        (&["run", "/etc/passwd"], 126),
        (&["run"], 2),
        (&["walk"], 2),
    ] {
        let output = installed.output(words);
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        if code > 100 {
            let text = String::from_utf8(output.stderr).unwrap();
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    }
    let output = installed.output(&["run", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(output.status.signal(), Some(15));
    // SIGPIPE still ends a program that writes to a closed pipe.
    let output = installed.output(&["run", "sh", "-c", "kill -PIPE $$"]);
    assert_eq!(output.status.signal(), Some(13));
}

#[test]
fn the_program_finds_daemon_and_library() {
    let installed = Installed::new("environment");
    let show = "echo $OMNIVERB_SOCKET; echo $LD_LIBRARY_PATH; echo $LD_PRELOAD";
    let lib = installed.0.join("lib");
    let lib = lib.to_str().unwrap();
    let output = installed.output(&["run", "sh", "-c", show]);
    assert_eq!(text(&output), format!("/nowhere/socket\n{lib}\n\n"));
    let mut command = installed.command(&["run", "sh", "-c", show]);
    let output = command.env("LD_LIBRARY_PATH", "/other").output().unwrap();
    assert_eq!(text(&output), format!("/nowhere/socket\n{lib}:/other\n\n"));
    // (The loader complains about the stand-in on stderr and goes on.)
    let output = installed.output(&["run", "--preload", "sh", "-c", show]);
    assert_eq!(text(&output), format!("/nowhere/socket\n{lib}\n{lib}/libibverbs.so.1\n"));
}

#[test]
fn without_a_library_there_is_a_clear_word() {
    let installed = Installed::new("missing");
    std::fs::remove_file(installed.0.join("lib/libibverbs.so.1")).unwrap();
    if Path::new("/usr/lib/omniverb/libibverbs.so.1").exists() {
        return;
    }
    let output = installed.output(&["run", "true"]);
    assert_eq!(output.status.code(), Some(125));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("libibverbs.so.1") && text.lines().count() == 1, "{text}");
}

#[test]
fn status_without_a_daemon_says_where_it_looked() {
    let installed = Installed::new("status");
    let output = installed.output(&["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("/nowhere/socket"));
    let output = installed.output(&["doctor"]);
    assert_eq!(output.status.code(), Some(1), "a daemon that is named must be there");
    let found = text(&output);
    assert!(
        found.lines().any(|l| l.starts_with("BAD") && l.contains("/nowhere/socket")),
        "{found}"
    );
}
