//! Implements `omniverb vm list` and `omniverb vm show`.

use crate::operator_connection::Operator;
use crate::stdout;
use crate::text_table::Table;
use anyhow::Context;
use omniverb_session::tc_units::show_size;
use serde_json::Value;
use std::process::ExitCode;

/// Those that are attached, or the one of this name.
pub(crate) fn list(which: Option<&str>, json: bool) -> anyhow::Result<ExitCode> {
    let found = Operator::connect()?.vnics()?;
    let all = found["vnics"].as_array().map_or(&[][..], Vec::as_slice);
    let machines: Vec<&Value> = all.iter().filter(|vnic| vnic["machine"].is_object()).collect();
    let Some(which) = which else {
        let text =
            if json { serde_json::to_string_pretty(&machines)? + "\n" } else { people(&machines) };
        return stdout::write(&text);
    };
    let one = machines.iter().find(|vnic| vnic["machine"]["name"] == which);
    let one =
        one.with_context(|| format!("no machine is called {which:?}; see `omniverb vm list`"))?;
    let text = if json { serde_json::to_string_pretty(one)? + "\n" } else { people(&[one]) };
    stdout::write(&text)
}

fn people(machines: &[&Value]) -> String {
    let mut table = Table::new(&[
        "machine",
        "vNIC",
        "processes",
        "window",
        "used",
        "direct links",
        "neighbours",
        "by the engine",
        "network",
        "memory",
        "supervisor",
        "addresses",
    ]);
    for vnic in machines {
        let machine = &vnic["machine"];
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let addresses = machine["addresses"].as_array().map_or(&[][..], Vec::as_slice);
        let addresses: Vec<&str> = addresses.iter().filter_map(Value::as_str).collect();
        table.row(vec![
            machine["name"].as_str().unwrap_or("?").to_owned(),
            vnic["name"].as_str().unwrap_or("?").to_owned(),
            number(&machine["sessions"]).to_string(),
            show_size(number(&machine["window"])),
            show_size(number(&machine["used"])),
            direct(machine),
            neighbours(&machine["pairs"]),
            number(&machine["engine"]).to_string(),
            if machine["network"] == true { "yes" } else { "no" }.to_owned(),
            shared(machine),
            number(&machine["supervisor"]).to_string(),
            addresses.join(" "),
        ]);
    }
    let text = table.render("");
    if text.is_empty() { "no machine is attached\n".into() } else { text }
}

/// How much of a machine's memory the engine reaches where it is, if it has it.
fn shared(machine: &Value) -> String {
    let pinned = machine["pinned"].as_u64().unwrap_or(0);
    match machine["memory"].as_u64() {
        Some(all) => format!("{} of {} in place", show_size(pinned), show_size(all)),
        None => "not shared".to_owned(),
    }
}

/// Direct links, and how many of them are in pair windows.
fn direct(machine: &Value) -> String {
    let all = machine["direct"].as_u64().unwrap_or(0);
    match machine["pairs"]["links"].as_u64().unwrap_or(0) {
        0 => all.to_string(),
        pairs => format!("{all}, {pairs} of them in pair windows"),
    }
}

/// The neighbours with pair windows, the number of windows, and how many more there may be, or why
/// not.
fn neighbours(pairs: &Value) -> String {
    let number = |name: &str| pairs[name].as_u64().unwrap_or(0);
    let names = pairs["neighbours"].as_array().map_or(&[][..], Vec::as_slice);
    let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
    let mut text = format!("{} of {}", number("given"), number("windows"));
    if pairs["way"] == "mapped" {
        text += " mapped";
    }
    if number("more") > 0 {
        text += &format!(" and {} more", number("more"));
    }
    if let Some(trouble) = pairs["trouble"].as_str() {
        text += &format!(" ({trouble})");
    }
    if names.is_empty() { text } else { format!("{text}: {}", names.join(" ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_reads_well() {
        let vnic = serde_json::json!({"name": "vm-web-1", "machine": {
            "name": "web-1", "supervisor": 17, "window": 268_427_264_u64, "used": 528_384,
            "sessions": 1, "direct": 2, "engine": 3, "network": true,
            "pairs": {"windows": 2, "present": 2, "given": 1, "links": 1,
                      "neighbours": ["net-5"]},
            "addresses": ["10.0.0.1", "fe80::1"]}});
        let text = people(&[&vnic]);
        assert!(text.contains("web-1") && text.contains("vm-web-1") && text.contains("17"));
        assert!(text.contains("10.0.0.1 fe80::1"), "{text}");
        assert!(text.contains("1 of 2: net-5"), "{text}");
        assert!(text.contains("2, 1 of them in pair windows"), "{text}");
        assert!(people(&[]).contains("no machine"));
        let mut more =
            serde_json::json!({"windows": 1, "given": 1, "more": 3, "trouble": "no room"});
        assert_eq!(neighbours(&more), "1 of 1 and 3 more (no room)");
        more["way"] = "mapped".into();
        assert_eq!(neighbours(&more), "1 of 1 mapped and 3 more (no room)");
    }
}
