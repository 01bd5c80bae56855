//! Checks whether a program's sockets can be carried (docs/decisions/0046).

use super::findings::Findings;
use crate::elf::{self, Program};
use crate::find_drop_in_library;
use crate::program_check::{is_musl, locate};
use omniverb_formats::broker_message::SUFFIX;
use omniverb_sys::seqpacket;
use rustix::fs::getxattr;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Interpreters of interpreters that are looked at: the kernel's own limit.
const DEPTH: usize = 4;
/// Bytes of a program that are looked at.
const MOST: u64 = 1 << 30;
/// Set user or group by executing (chmod(2)).
const SET_ID: u32 = 0o6000;

/// A daemon brings sockets together.
pub(super) fn broker(findings: &mut Findings, daemon: &Path) {
    let mut path = daemon.as_os_str().to_owned();
    path.push(SUFFIX);
    match seqpacket::connect(Path::new(&path)) {
        Ok(_) => findings.good(format_args!(
            "the daemon brings sockets together at {}",
            Path::new(&path).display()
        )),
        Err(error) => findings.note(
            format_args!("sockets are not carried: {}: {error}", Path::new(&path).display()),
            "all of them are the kernel's: does the daemon's configuration say sockets = false, or \
             name cgroups in [allow]?",
        ),
    }
}

/// Obstacles of a program, and operations that bypass the library.
pub(super) fn program(findings: &mut Findings, program: &OsStr) {
    let Some(path) = locate(program) else { return };
    let (path, by) = match interpreter(&path, DEPTH) {
        Some(found) if found != path => {
            let by = format!(" (its interpreter, {})", found.display());
            (found, by)
        }
        _ => (path.clone(), String::new()),
    };
    let shown = format!("sockets of {}{by}", program.display());
    let mut reasons = obstacles(&path);
    let mut doubts = Vec::new();
    let mut bytes = Vec::new();
    let read = File::open(&path).and_then(|file| file.take(MOST).read_to_end(&mut bytes));
    if let Err(error) = read {
        return findings
            .note(format_args!("{shown}"), format_args!("cannot be looked at: {error}"));
    }
    match elf::read(&bytes) {
        Some(found) => {
            let (obstacles, doubtful) = judge(&found, own_machine());
            reasons.extend(obstacles);
            doubts.extend(doubtful);
        }
        None => reasons.push("it is no program of 64 bits".into()),
    }
    if let Err(error) = find_drop_in_library::sockets() {
        reasons.push(format!("{error:#}"));
    }
    for reason in &reasons {
        findings.note(format_args!("{shown} cannot be carried"), reason);
    }
    for doubt in &doubts {
        findings.note(format_args!("{shown} may be carried in part only"), doubt);
    }
    if reasons.is_empty() && doubts.is_empty() {
        findings.good(format_args!("{shown} can be carried: omniverb run --sockets"));
    }
}

/// The attributes of the program's file for which the loader takes no libraries from a user
/// (ld.so(8)).
fn obstacles(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    if fs::metadata(path).is_ok_and(|of| of.mode() & SET_ID != 0) {
        found.push(
            "it changes its user or group when it is started: no library is preloaded".into(),
        );
    }
    if getxattr(path, "security.capability", &mut [0; 64][..]).is_ok() {
        found.push("its file has capabilities: no library is preloaded".into());
    }
    found
}

/// Why not, and what may be unseen.
fn judge(program: &Program, machine: u16) -> (Vec<String>, Vec<String>) {
    let (mut reasons, mut doubts) = (Vec::new(), Vec::<String>::new());
    if program.machine != machine {
        reasons.push("it is for another kind of machine than the library".into());
    }
    if program.is_go {
        reasons.push("Go calls the kernel by its own instructions, which no library sees".into());
    }
    match &program.loader {
        None => reasons.push("it is linked statically: no library is loaded".into()),
        Some(loader) if is_musl(loader) => {
            reasons.push("its C library is musl; the library is made for glibc".into());
        }
        Some(loader) if !loader.contains("ld-linux") => {
            reasons.push(format!("its loader is {loader}, not glibc's"));
        }
        Some(_) if !program.needed.iter().any(|name| name.starts_with("libc.so.")) => {
            doubts.push("it names no C library: its calls may be its own".into());
        }
        Some(_) => {}
    }
    if program.loader.is_some() && !program.is_go {
        if program.has_socket_calls {
            reasons.push(
                "it has system calls about sockets among its own instructions, which no library \
                 sees: they are left to the kernel"
                    .into(),
            );
        }
        let has_library = program.needed.iter().any(|name| name.starts_with("liburing.so"));
        if has_library || program.has_ring_calls {
            reasons.push(
                "it uses io_uring by its own instructions, or liburing's: they are left to the \
                 kernel"
                    .into(),
            );
        }
    }
    (reasons, doubts)
}

/// The machine of the library: this program's own.
fn own_machine() -> u16 {
    let mut head = [0; 20];
    let own = File::open("/proc/self/exe").and_then(|mut file| file.read_exact(&mut head));
    own.map_or(0, |()| u16::from_le_bytes([head[18], head[19]]))
}

/// The program that executes a script in the end; `None`: it cannot be found.
fn interpreter(path: &Path, depth: usize) -> Option<PathBuf> {
    let mut head = [0; 256];
    let length = File::open(path).and_then(|mut file| file.read(&mut head)).ok()?;
    let Some(line) = head[..length].strip_prefix(b"#!") else { return Some(path.into()) };
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let mut named = OsStr::from_bytes(words.next()?);
    if Path::new(named).file_name() == Some(OsStr::new("env")) {
        // Options of env(1), and variables, are not the program.
        let is_program = |word: &&[u8]| !word.starts_with(b"-") && !word.contains(&b'=');
        named = OsStr::from_bytes(words.find(is_program)?);
    }
    interpreter(&locate(named)?, depth.checked_sub(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual() -> Program {
        Program {
            machine: 62,
            loader: Some("/lib64/ld-linux-x86-64.so.2".into()),
            needed: vec!["libc.so.6".into()],
            ..Program::default()
        }
    }

    #[test]
    fn obstacles_are_named() {
        assert_eq!(judge(&usual(), 62), (vec![], vec![]));
        let reasons = |change: fn(&mut Program)| {
            let mut program = usual();
            change(&mut program);
            let (reasons, doubts) = judge(&program, 62);
            reasons.into_iter().chain(doubts).collect::<Vec<_>>().join("; ")
        };
        assert!(reasons(|one| one.loader = None).contains("statically"));
        assert!(reasons(|one| one.machine = 3).contains("another kind of machine"));
        assert!(reasons(|one| one.is_go = true).contains("Go"));
        let musl = reasons(|one| one.loader = Some("/lib/ld-musl-x86_64.so.1".into()));
        assert!(musl.contains("musl"));
        assert!(reasons(|one| one.needed.clear()).contains("no C library"));
        assert!(reasons(|one| one.has_socket_calls = true).contains("own instructions"));
        assert!(reasons(|one| one.has_ring_calls = true).contains("io_uring"));
        assert!(reasons(|one| one.needed.push("liburing.so.2".into())).contains("liburing"));
    }

    #[test]
    fn a_script_is_checked_by_its_interpreter() {
        let folder = std::env::temp_dir().join(format!("omniverb-doctor-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let script = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let shell = locate(OsStr::new("sh")).unwrap();
        let shown = shell.display();
        let first = script("first", &format!("#! {shown} -e\necho\n"));
        assert_eq!(interpreter(&first, DEPTH), Some(shell.clone()));
        let by_name = script("second", "#!/usr/bin/env -S A=b sh -x\n");
        assert_eq!(interpreter(&by_name, DEPTH), Some(shell.clone()));
        let of_script = script("third", &format!("#!{}\n", first.display()));
        assert_eq!(interpreter(&of_script, DEPTH), Some(shell));
        let own = folder.join("own");
        let endless = script("own", &format!("#!{}\n", own.display()));
        assert_eq!(interpreter(&endless, DEPTH), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
