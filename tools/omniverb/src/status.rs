//! Implements `omniverb status`: shows the users of devices, as text or JSON.

use crate::operator_connection::Operator;
use crate::text_table::{Table, amount};
use crate::{find_daemon, socket_status, stdout, tenant_connection};
use omniverb_session::tc_units::{show_ops, show_rate};
use omniverb_terms::Qpn;
use serde_json::{Value, json};
use std::process::ExitCode;

pub(crate) fn status(json: bool) -> anyhow::Result<ExitCode> {
    let status = match Operator::connect() {
        Ok(operator) => {
            let mut status = operator.status()?;
            socket_status::add(&mut status, || operator.sockets());
            status
        }
        // A tenant is shown what is its own.
        Err(error) => {
            let path = find_daemon::serving()?;
            let mut status = tenant_connection::status(&path)?;
            socket_status::add(&mut status, || socket_status::connect(&path));
            status["seen"] = json!({"as": "client", "asked": path.display().to_string(),
                "not_as_operator": format!("{error:#}")});
            status
        }
    };
    let text = if json { serde_json::to_string_pretty(&status)? + "\n" } else { people(&status) };
    stdout::write(&text)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("?")
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or(0)
}

fn qpn(value: &Value) -> Qpn {
    Qpn(u32::try_from(number(value, "qpn")).unwrap_or(0))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn people(status: &Value) -> String {
    let daemon = &status["daemon"];
    let scope = if daemon["all_namespaces"].as_bool() == Some(true) {
        "serves all network namespaces"
    } else {
        "serves its own network namespace"
    };
    let mut out = format!(
        "omniverbd {} (pid {}) at {}, up {} s, {scope}\n",
        text(daemon, "version"),
        number(daemon, "pid"),
        text(daemon, "socket"),
        number(daemon, "seconds"),
    );
    let seen = &status["seen"];
    if let (Some(asked), Some(why)) = (seen["asked"].as_str(), seen["not_as_operator"].as_str()) {
        out += &format!(
            "asked {asked} as a client, which is shown its own vNIC only; not as an operator: \
             {why}\n"
        );
    }
    let underlay = &daemon["underlay"];
    if let Some(path) = underlay["namespace"].as_str() {
        out += &format!("the underlay of virtual networks is in {path}\n");
    }
    let problems = list(underlay, "problems");
    for problem in problems.iter().filter_map(Value::as_str) {
        out += &format!("{problem}\n");
    }
    let more = number(underlay, "problem_count").saturating_sub(problems.len() as u64);
    if more > 0 {
        out += &format!("{more} more underlay addresses have no socket\n");
    }
    let vnics = list(status, "vnics");
    if vnics.is_empty() {
        out += match seen.is_null() {
            true => "no process uses a device\n",
            false => "no process of this network namespace uses a device\n",
        };
    }
    for vnic in vnics {
        let gids: Vec<&str> = list(vnic, "gids").iter().filter_map(Value::as_str).collect();
        out += &format!(
            "\nvNIC {}  node {}{}\n  GIDs {}\n",
            text(vnic, "name"),
            text(vnic, "node_guid"),
            policy(vnic) + &adoption(vnic) + &faults(vnic) + port(vnic),
            gids.join("  "),
        );
        for process in list(vnic, "processes") {
            out += &one_process(process);
        }
    }
    out + &socket_status::people(status)
}

/// A vNIC's own policy, if it differs from most.
fn policy(vnic: &Value) -> String {
    let rate = vnic["rate"].as_u64().map(|rate| format!(", rate {}", show_rate(rate)));
    let ops = vnic["ops"].as_u64().map(|ops| format!(", ops {}", show_ops(ops)));
    let limits: String = rate.into_iter().chain(ops).collect();
    match vnic["datapath"].as_str() {
        None | Some("direct") if limits.is_empty() => String::new(),
        _ => format!("  forwarded{limits}"),
    }
}

/// Which of its pages may be mapped, if that is not what holds for most.
fn adoption(vnic: &Value) -> String {
    let other = vnic["adoption"].as_str().filter(|adoption| *adoption != "exact");
    other.map_or(String::new(), |adoption| format!("  adoption {adoption}"))
}

/// The faults set for its packets, if any.
fn faults(vnic: &Value) -> String {
    vnic["faults"].as_str().map_or(String::new(), |faults| format!("  FAULTS {faults}"))
}

/// Empty, unless it reaches no other host.
fn port(vnic: &Value) -> &'static str {
    match vnic["port"].as_str() {
        Some("unavailable") => "  UDP port 4791 unavailable: reaches its own namespace only",
        _ => "",
    }
}

/// Ids in the connection manager; most processes have none.
fn cm_ids(process: &Value) -> String {
    match process["cm_ids"].as_u64() {
        Some(ids) if ids > 0 => format!("  {ids} CM ids"),
        _ => String::new(),
    }
}

fn one_process(process: &Value) -> String {
    let qps = list(process, "qps");
    let mut out = format!(
        "  process {} {}  user {}  {} QPs  {} MRs  {} links{}\n",
        number(process, "pid"),
        text(process, "name"),
        number(process, "uid"),
        qps.len(),
        number(process, "mrs"),
        number(process, "links"),
        cm_ids(process),
    );
    let mut table = Table::new(&[
        "QP",
        "type",
        "state",
        "path",
        "peer",
        "sent",
        "bytes",
        "received",
        "bytes",
        "mapped",
        "mediated",
        "RNR",
        "why this path",
    ]);
    for qp in qps {
        table.row(vec![
            qpn(qp).to_string(),
            text(qp, "type").into(),
            text(qp, "state").into(),
            path(qp),
            peers(qp),
            number(qp, "messages_sent").to_string(),
            amount(number(qp, "bytes_sent")),
            number(qp, "messages_received").to_string(),
            amount(number(qp, "bytes_received")),
            number(qp, "operations_mapped").to_string(),
            number(qp, "operations_mediated").to_string(),
            number(qp, "receiver_not_ready").to_string(),
            text(qp, "why").into(),
        ]);
    }
    out += &table.render("    ");
    out
}

/// The path, and on a direct one how one-sided operations were done.
fn path(qp: &Value) -> String {
    match (text(qp, "path"), text(qp, "datapath")) {
        (path, operations) if path == operations => path.into(),
        (path, operations) => format!("{path}, {operations}"),
    }
}

fn peers(qp: &Value) -> String {
    let linked = list(qp, "peers");
    let place = |peer: &Value| match (peer["vnic"].as_str(), peer["address"].as_str()) {
        (Some(vnic), _) => vnic.to_owned(),
        (None, Some(address)) => address.to_owned(),
        (None, None) => "?".into(),
    };
    let one = |peer: &Value| format!("{} ({})", qpn(peer), place(peer));
    match (linked, list(qp, "waiting_for")) {
        ([], []) => "-".into(),
        ([], [first, ..]) => format!("waits for {:#08x}", first.as_u64().unwrap_or(0)),
        ([only], _) => one(only),
        ([first, rest @ ..], _) => format!("{} and {} more", one(first), rest.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_like_a_sentence() {
        let status = json!({
            "daemon": {"version": "1", "pid": 5, "socket": "/s", "seconds": 9,
                       "all_namespaces": true},
            "vnics": [{"name": "host", "node_guid": "0200:1", "gids": ["fe80::1"],
                "processes": [{"pid": 77, "uid": 0, "name": "ib_send_bw", "mrs": 1, "links": 1,
                    "cm_ids": 3,
                    "qps": [{"qpn": 0x123, "type": "RC", "state": "RTS", "path": "direct",
                        "why": "same network namespace", "datapath": "mapped",
                        "peers": [{"qpn": 0x124, "vnic": "vnic-5-abcd"}], "waiting_for": [],
                        "messages_sent": 3, "bytes_sent": 3 << 20},
                       {"qpn": 0x125, "type": "UD", "state": "RTS", "path": "wire",
                        "why": "another Omniverb answered the handshake", "datapath": "wire",
                        "peers": [{"qpn": 0x11, "address": "10.0.0.9"}], "waiting_for": []}]}]},
                {"name": "vnic-5-abcd", "gids": [], "processes": [], "rate": 300_000_000,
                 "port": "unavailable"}]
        });
        let text = people(&status);
        for part in [
            "omniverbd 1 (pid 5) at /s",
            "vNIC host",
            "process 77 ib_send_bw",
            "1 links  3 CM ids",
            "0x000123",
            "0x000124 (vnic-5-abcd)",
            "3.0 MiB",
            "direct, mapped",
            "same network namespace",
            "0x000011 (10.0.0.9)",
            "  wire  ",
            "another Omniverb answered the handshake",
            "forwarded, rate 300mbit",
            "UDP port 4791 unavailable",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(people(&json!({})).contains("no process uses"));
        let seen = json!({"seen": {"asked": "/s", "not_as_operator": "/o: not there"}});
        let text = people(&seen);
        for part in ["asked /s as a client", "operator: /o: not there", "no process of this"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
