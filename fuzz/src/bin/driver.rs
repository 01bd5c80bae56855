//! Runs the fuzz targets without a fuzzer: on the corpus, its mutations, and seeded random inputs.
//!
//! `driver SECONDS [SEED [TARGET...]]`: every target, or these, for so long. `driver check RUNS`:
//! every target, the corpus and so many inputs more. `driver targets`: their names. `driver seeds
//! DIR`: writes inputs to start a fuzzer from. `driver TARGET FILE...`: runs these inputs.

use omniverb_fuzz::{Random, TARGETS, Target, input, mutated};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["targets"] => {
            TARGETS.iter().for_each(|(name, _)| println!("{name}"));
            ExitCode::SUCCESS
        }
        ["seeds", folder] => seeds(Path::new(folder)),
        ["check", runs] => match runs.parse() {
            Ok(runs) => drive(1, &[], |count, _| count < runs),
            Err(_) => complain("RUNS is a number"),
        },
        [target, _, ..] if TARGETS.iter().any(|(name, _)| *name == target) => {
            replay(target, &words[1..])
        }
        [seconds] => for_seconds(seconds, "1", &[]),
        [seconds, seed, ref names @ ..] => for_seconds(seconds, seed, names),
        _ => complain(
            "usage: driver SECONDS [SEED [TARGET...]] | check RUNS | targets | seeds DIR | \
                       TARGET FILE...",
        ),
    }
}

fn complain(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(2)
}

fn for_seconds(seconds: &str, seed: &str, names: &[&str]) -> ExitCode {
    if let Some(name) = names.iter().find(|name| TARGETS.iter().all(|(known, _)| known != *name)) {
        return complain(&format!("{name} is no target"));
    }
    match (seconds.parse(), seed.parse()) {
        (Ok(seconds), Ok(seed)) => {
            drive(seed, names, |_, time| time < Duration::from_secs(seconds))
        }
        _ => complain("seconds and seed are numbers"),
    }
}

/// What is kept of a target, in an order that does not change.
fn kept(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files.iter().filter_map(|file| std::fs::read(file).ok()).collect()
}

/// Every target, or these, while `more` says so of the inputs so far and the time they took.
fn drive(seed: u64, names: &[&str], more: impl Fn(u64, Duration) -> bool) -> ExitCode {
    let mut failed = false;
    println!("{:22} {:>10} {:>8} {:>9}", "target", "inputs", "of these", "seconds");
    println!("{:22} {:>10} {:>8} {:>9}", "", "", "kept", "");
    for (name, body) in TARGETS.iter().filter(|(name, _)| names.is_empty() || names.contains(name))
    {
        let (start, kept) = (Instant::now(), kept(name));
        let mut count = 0;
        let well = kept.iter().all(|bytes| one((name, *body), bytes, "kept"));
        while well && more(count, start.elapsed()) {
            let mut random = Random::new(seed + count);
            let bytes = match kept.get(random.below(2 * kept.len())) {
                Some(bytes) => mutated(bytes, &mut random),
                None => input(name, &mut random),
            };
            if !one((name, *body), &bytes, &format!("{}", seed + count)) {
                failed = true;
                break;
            }
            count += 1;
        }
        failed |= !well;
        let (all, seconds) = (count + kept.len() as u64, start.elapsed().as_secs_f64());
        println!("{name:22} {all:>10} {:>8} {seconds:>9.1}", kept.len());
    }
    ExitCode::from(u8::from(failed))
}

/// False, and the input in a file, if it fails.
fn one((name, body): Target, bytes: &[u8], what: &str) -> bool {
    if std::panic::catch_unwind(|| body(bytes)).is_ok() {
        return true;
    }
    let file = format!("artifacts/{name}-{what}");
    println!("{name}: {what} fails");
    let folder = std::fs::create_dir_all("artifacts");
    if folder.and_then(|()| std::fs::write(&file, bytes)).is_ok() {
        println!("    again: cargo run --release --bin driver {name} {file}");
    }
    false
}

fn replay(target: &str, files: &[&str]) -> ExitCode {
    for (_, body) in TARGETS.iter().filter(|(name, _)| *name == target) {
        for file in files {
            match std::fs::read(file) {
                Ok(bytes) => body(&bytes),
                Err(why) => return complain(&format!("{file}: {why}")),
            }
        }
    }
    ExitCode::SUCCESS
}

fn seeds(folder: &Path) -> ExitCode {
    for (name, _) in TARGETS {
        let folder = folder.join(name);
        if let Err(why) = std::fs::create_dir_all(&folder) {
            return complain(&format!("{}: {why}", folder.display()));
        }
        for seed in 0..40 {
            let bytes = input(name, &mut Random::new(seed));
            if let Err(why) = std::fs::write(folder.join(format!("seed-{seed}")), bytes) {
                return complain(&why.to_string());
            }
        }
    }
    ExitCode::SUCCESS
}
