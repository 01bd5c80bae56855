//! Answers `rdma` (of iproute2) for omv0 under `omniverb run`, and passes the rest on.
//!
//! In: its arguments. Out: its answers for omv0. Anything else the real one is asked.

use super::{current_device_values, shown_folder};
use crate::{find_drop_in_library, stdout};
use anyhow::Context;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The name by which we are the stand-in.
const NAME: &str = "rdma";

/// A supported question.
#[derive(Debug, PartialEq, Eq)]
enum Question {
    Link,
    Device,
}

/// Whether this process was started as `rdma`.
pub(crate) fn is_meant(called: Option<&OsString>) -> bool {
    called.is_some_and(|name| Path::new(name).file_name().is_some_and(|name| name == NAME))
}

/// Answers, or becomes the real one.
pub(crate) fn answer(arguments: &[OsString]) -> anyhow::Result<ExitCode> {
    let words: Vec<&str> = arguments.iter().map(|word| word.to_str().unwrap_or("?")).collect();
    let Some((question, json)) = understand(&words) else { return ask_the_real_one(arguments) };
    let row = match question {
        Question::Link => link()?,
        Question::Device => device()?,
    };
    let text = if json { format!("{}\n", json!([row])) } else { people(&question, &row) };
    stdout::write(&text)
}

/// The question, and whether the answer is to be JSON.
fn understand(words: &[&str]) -> Option<(Question, bool)> {
    let (flags, words): (Vec<&str>, Vec<&str>) =
        words.iter().partition(|word| word.starts_with('-'));
    let known = ["-j", "--json", "-p", "--pretty", "-d", "--details", "-jp", "-pj", "-dj", "-jd"];
    if !flags.iter().all(|flag| known.contains(flag)) {
        return None;
    }
    let json = flags.iter().any(|flag| *flag == "--json" || flag.contains('j'));
    let question = match words.first() {
        Some(&"link") => Question::Link,
        Some(&("dev" | "device")) => Question::Device,
        _ => return None,
    };
    match words[1..] {
        [] | ["show" | "list"] | ["show" | "list", "omv0" | "omv0/1" | "omv0/"] => {
            Some((question, json))
        }
        _ => None,
    }
}

fn link() -> anyhow::Result<Value> {
    let mut row = json!({
        "ifindex": 0,
        "ifname": "omv0",
        "port": 1,
        "state": after_colon(&shown_folder::read("ports/1/state")?),
        "physical_state": match after_colon(&shown_folder::read("ports/1/phys_state")?).as_str() {
            "LINKUP" => "LINK_UP".to_owned(),
            other => other.to_owned(),
        },
    });
    // That of the entry that programs use; the first one is only of the same link as a rule.
    let of_entry = |index| shown_folder::read(&format!("ports/1/gid_attrs/ndevs/{index}"));
    if let Ok(interface) = of_entry(1).or_else(|_| of_entry(0)) {
        row["netdev_index"] = current_device_values::index_of(&interface).into();
        row["netdev"] = interface.into();
    }
    Ok(row)
}

fn device() -> anyhow::Result<Value> {
    Ok(json!({
        "ifindex": 0,
        "ifname": "omv0",
        "node_type": "ca",
        "fw": shown_folder::read("fw_ver")?,
        "node_guid": shown_folder::read("node_guid")?,
        "sys_image_guid": shown_folder::read("sys_image_guid")?,
    }))
}

/// Of "4: ACTIVE" the word.
fn after_colon(text: &str) -> String {
    text.split_once(": ").map_or(text, |(_, word)| word).to_uppercase()
}

fn people(question: &Question, row: &Value) -> String {
    let text = |name: &str| row[name].as_str().unwrap_or("?").to_owned();
    match question {
        Question::Link => {
            let interface =
                row["netdev"].as_str().map(|name| format!(" netdev {name}")).unwrap_or_default();
            format!(
                "link omv0/1 state {} physical_state {}{interface} \n",
                text("state"),
                text("physical_state")
            )
        }
        Question::Device => format!(
            "0: omv0: node_type ca fw {} node_guid {} sys_image_guid {} \n",
            text("fw"),
            text("node_guid"),
            text("sys_image_guid")
        ),
    }
}

fn ask_the_real_one(arguments: &[OsString]) -> anyhow::Result<ExitCode> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = find_drop_in_library::stand_ins().unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(Into::into);
    let ours = own.join(NAME).canonicalize().ok();
    let found = std::env::split_paths(&path)
        .filter(|folder| *folder != own)
        .chain(system)
        .map(|folder| folder.join(NAME))
        .find(|file| file.exists() && file.canonicalize().ok() != ours)
        .context("this is Omniverb's, which knows `link show` and `dev show`; there is no other")?;
    Err(Command::new(&found).args(arguments).exec()).context(found.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_commands_are_parsed() {
        for (words, expected) in [
            (&["link", "show", "-j"][..], Some((Question::Link, true))),
            (&["-j", "link"], Some((Question::Link, true))),
            (&["link", "show", "omv0/1"], Some((Question::Link, false))),
            (&["-jp", "dev"], Some((Question::Device, true))),
            (&["link", "add", "rxe0", "type", "rxe"], None),
            (&["link", "show", "mlx5_0/1"], None),
            (&["resource"], None),
            (&["-V"], None),
            (&[], None),
        ] {
            assert_eq!(understand(words), expected, "{words:?}");
        }
        assert_eq!(after_colon("5: LinkUp"), "LINKUP");
        assert!(is_meant(Some(&"/opt/omniverb/libexec/rdma".into())));
        assert!(!is_meant(Some(&"omniverb".into())));
    }
}
