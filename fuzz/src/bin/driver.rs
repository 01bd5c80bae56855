//! The targets without a fuzzer: seeded random inputs for a while, or inputs from files.
//!
//! `driver SECONDS [SEED]`: every target in turn. `driver corpus DIR`: writes inputs to start a
//! fuzzer from. `driver TARGET FILE...`: runs these inputs.

use omniverb_fuzz::{Random, TARGETS, input};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["corpus", folder] => corpus(Path::new(folder)),
        [target, _, ..] if TARGETS.iter().any(|(name, _)| *name == target) => {
            replay(target, &words[1..])
        }
        [seconds] => drive(seconds, "1"),
        [seconds, seed] => drive(seconds, seed),
        _ => complain("usage: driver SECONDS [SEED] | driver corpus DIR | driver TARGET FILE..."),
    }
}

fn complain(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(2)
}

fn drive(seconds: &str, seed: &str) -> ExitCode {
    let (Ok(seconds), Ok(seed)) = (seconds.parse::<u64>(), seed.parse::<u64>()) else {
        return complain("seconds and seed are numbers");
    };
    let mut failed = false;
    for (name, body) in TARGETS {
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut count = 0;
        while Instant::now() < end {
            let bytes = input(name, &mut Random::new(seed + count));
            if std::panic::catch_unwind(|| body(&bytes)).is_err() {
                let file = format!("artifacts/{name}-{}", seed + count);
                println!("{name}: seed {} fails", seed + count);
                let folder = std::fs::create_dir_all("artifacts");
                if folder.and_then(|()| std::fs::write(&file, &bytes)).is_ok() {
                    println!("    again: cargo run --release --bin driver {name} {file}");
                }
                failed = true;
                break;
            }
            count += 1;
        }
        println!("{name}: {count} inputs in {seconds} s");
        failed |= count == 0;
    }
    ExitCode::from(u8::from(failed))
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

fn corpus(folder: &Path) -> ExitCode {
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
