//! Checks the daemon that serves us, and the GIDs of its device.

use super::findings::Findings;
use crate::find_daemon;
use crate::operator_connection::Operator;
use crate::tenant_connection::{Client, ISOLATED};
use serde_json::Value;
use std::io::ErrorKind;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

/// The daemon that serves us, if one does.
pub(super) fn daemon(findings: &mut Findings) -> Option<PathBuf> {
    for path in find_daemon::candidates() {
        let shown = path.display();
        match find_daemon::connect(&path) {
            Ok(_) => {
                return match Client::connect(&path).and_then(|client| client.vnics(&path)) {
                    Ok(_) => {
                        findings.good(format_args!("a daemon answers at {shown}"));
                        Some(path)
                    }
                    Err(error) if error.to_string().ends_with(ISOLATED) => {
                        let mend = "its operator has to describe this network namespace, by \
                                    [vnic] or [[container]] in omniverbd.toml, or omniverb vnic \
                                    create";
                        findings.bad(format_args!("{error:#}"), mend);
                        None
                    }
                    Err(error) => {
                        let mend = "use library, daemon and command line of one build; a daemon \
                                    without privilege serves only its own network namespace";
                        findings.bad(format_args!("{error:#}"), mend);
                        None
                    }
                };
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                findings.bad(
                    format_args!("{shown} may not be opened"),
                    "the daemon is another user's: unset OMNIVERB_SOCKET to have one of your \
                     own, or ask to be in its [allow]",
                );
            }
            Err(_) => {}
        }
    }
    match find_daemon::named() {
        Some(path) => findings.bad(
            format_args!("no daemon answers at {}, which OMNIVERB_SOCKET names", path.display()),
            "start omniverbd --socket there, or unset the variable",
        ),
        None => findings.note(
            "no daemon is running",
            "omniverb run starts one; for a whole host, run omniverbd as root",
        ),
    }
    None
}

/// Underlay addresses of virtual networks that have no socket, if an operator asks.
pub(super) fn underlay(findings: &mut Findings) {
    let status = Operator::connect().and_then(|operator| operator.status());
    let Ok(status) = status else { return };
    let problems = status["daemon"]["underlay"]["problems"].as_array();
    for problem in problems.into_iter().flatten().filter_map(Value::as_str) {
        let mend = "omniverb status shows all of them; another network namespace for the underlay \
                    is said by underlay_namespace in omniverbd.toml";
        findings.bad(problem, mend);
    }
}

/// The GID table, fetched as a program would.
pub(super) fn gids(findings: &mut Findings, path: &Path) {
    let gids = Client::verbs(path).and_then(|(client, _)| client.gids());
    let gids = match gids {
        Ok(gids) => gids,
        Err(error) => {
            findings.bad(
                format_args!("no device: {error:#}"),
                "the daemon's log says why (journalctl -u omniverbd, or its stderr)",
            );
            return;
        }
    };
    let count = (gids.count as usize).min(gids.entries.len());
    let table: Vec<Ipv6Addr> =
        gids.entries[..count].iter().map(|entry| Ipv6Addr::from(entry.gid.bytes())).collect();
    let shown: Vec<String> =
        table.iter().enumerate().map(|(index, gid)| format!("{index}={gid}")).collect();
    let outside = table.iter().any(|gid| {
        let four = gid.to_ipv4_mapped();
        let six_global =
            four.is_none() && !gid.is_loopback() && gid.segments()[0] & 0xffc0 != 0xfe80;
        six_global || four.is_some_and(|four| !four.is_loopback())
    });
    let text = format!("{count} GIDs: {}", shown.join(" "));
    if outside {
        findings.good(text);
    } else {
        findings.note(
            text,
            "only loopback: peers elsewhere cannot reach this network namespace; give it an \
             address (ip address add)",
        );
    }
}
