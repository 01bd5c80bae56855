//! Implements `omniverb vnic`: shows and changes datapath, rate, adoption and faults of vNICs.

use crate::operator_connection::Operator;
use crate::tenant_and_policy;
use crate::tenant_connection::Client;
use crate::text_table::Table;
use crate::{find_daemon, stdout};
use anyhow::bail;
use omniverb_arguments::{AdoptionValue, DatapathValue, PolicyOptions, VnicOptions};
use omniverb_session::network_fault_text::Faults;
use omniverb_session::operator::{
    ADOPTION_EXACT, ADOPTION_OFF, ADOPTION_TRUSTING, DATAPATH_DIRECT, DATAPATH_FORWARDED,
    DisconnectVnic, SET_ADOPTION, SET_BURST, SET_DATAPATH, SET_FAULTS, SET_OPS, SET_RATE, SetVnic,
    VNIC_NAME_BYTES, VnicChanged,
};
use omniverb_session::tc_units::{show_ops, show_rate, show_size};
use serde_json::Value;
use std::process::ExitCode;

/// A vNIC's name as it travels.
pub(crate) fn name_bytes(name: &str) -> anyhow::Result<[u8; VNIC_NAME_BYTES]> {
    let mut bytes = [0; VNIC_NAME_BYTES];
    let Some(room) = bytes.get_mut(..name.len()).filter(|_| name.len() < VNIC_NAME_BYTES) else {
        bail!("the name {name:?} is too long for a vNIC; see `omniverb vnic list`");
    };
    room.copy_from_slice(name.as_bytes());
    Ok(bytes)
}

/// Changes a vNIC; what is not among the options stays.
pub(crate) fn set(
    name: &str,
    vnic: &VnicOptions,
    policy: &PolicyOptions,
) -> anyhow::Result<ExitCode> {
    let operator = Operator::connect()?;
    if !vnic.is_empty() || tenant_and_policy::is_described(&operator, name)? {
        return tenant_and_policy::set_vnic(&operator, name, vnic, policy);
    }
    let changed = operator.set_vnic(&change(name, policy)?, name)?;
    stdout::write(&said(name, &changed))
}

fn change(name: &str, policy: &PolicyOptions) -> anyhow::Result<SetVnic> {
    let PolicyOptions { datapath, rate, burst, ops, adoption, faults } = policy;
    let given = |option: bool, bit| if option { bit } else { 0 };
    if tenant_and_policy::is_nothing(policy) {
        bail!("one option at least is required: see omniverb vnic set --help");
    }
    Ok(SetVnic {
        name: name_bytes(name)?,
        what: given(datapath.is_some(), SET_DATAPATH)
            | given(rate.is_some(), SET_RATE)
            | given(burst.is_some(), SET_BURST)
            | given(ops.is_some(), SET_OPS)
            | given(adoption.is_some(), SET_ADOPTION)
            | given(faults.is_some(), SET_FAULTS),
        datapath: match datapath {
            Some(DatapathValue::Forwarded) => DATAPATH_FORWARDED,
            _ => DATAPATH_DIRECT,
        },
        bits_per_second: rate.map_or(0, |rate| rate.0),
        burst_bytes: burst.unwrap_or(0),
        faults: faults.map_or_else(Faults::default, |list| list.0),
        adoption: match adoption {
            Some(AdoptionValue::Trusting) => ADOPTION_TRUSTING,
            Some(AdoptionValue::Off) => ADOPTION_OFF,
            _ => ADOPTION_EXACT,
        },
        operations_per_second: ops.map_or(0, |ops| ops.0),
    })
}

fn said(name: &str, changed: &VnicChanged) -> String {
    let VnicChanged {
        bits_per_second,
        burst_bytes,
        datapath,
        direct_links,
        faults,
        adoption,
        shares_limit,
        operations_per_second: ops,
        reserved: _,
    } = *changed;
    let limited = bits_per_second != 0;
    let datapath = match datapath {
        DATAPATH_DIRECT if shares_limit != 0 && !limited => {
            "forwarded (because of a rate that it shares)"
        }
        DATAPATH_DIRECT if limited => "forwarded (because of its rate)",
        DATAPATH_DIRECT if ops != 0 => "forwarded (because of its operations)",
        DATAPATH_DIRECT if !faults.is_nothing() => "forwarded (because of its faults)",
        DATAPATH_DIRECT => "direct",
        _ => "forwarded",
    };
    let adoption = match adoption {
        ADOPTION_OFF => ", adoption off",
        ADOPTION_TRUSTING => ", adoption trusting",
        _ => "",
    };
    let faults = match faults.is_nothing() {
        true => adoption.to_owned(),
        false => format!("{adoption}, faults {}", faults.show()),
    };
    let ops = match ops {
        0 => String::new(),
        ops => format!(", ops {}", show_ops(ops.into())),
    };
    let mut out = match limited {
        true => format!(
            "{name}: rate {} burst {}{ops}, datapath {datapath}{faults}\n",
            show_rate(bits_per_second),
            show_size(burst_bytes)
        ),
        false => format!("{name}: no rate limit{ops}, datapath {datapath}{faults}\n"),
    };
    if direct_links > 0 && datapath != "direct" {
        out += &format!(
            "{direct_links} direct links exist and stay: they end with their connections, and \
             neither a rate nor faults apply to them\n"
        );
    }
    out
}

/// Ends all links of a vNIC.
pub(crate) fn disconnect(name: &str) -> anyhow::Result<ExitCode> {
    let which = DisconnectVnic { name: name_bytes(name)? };
    let links = Operator::connect()?.disconnect(&which, name)?;
    stdout::write(&format!("{name}: {links} links ended\n"))
}

pub(crate) fn list(json: bool) -> anyhow::Result<ExitCode> {
    let found = match Operator::connect() {
        Ok(operator) => operator.vnics()?,
        Err(_) => {
            let path = find_daemon::serving()?;
            Client::connect(&path)?.vnics(&path)?
        }
    };
    let text = if json { serde_json::to_string_pretty(&found)? + "\n" } else { people(&found) };
    stdout::write(&text)
}

fn people(found: &Value) -> String {
    let mut table = Table::new(&[
        "vNIC",
        "tenant",
        "namespace",
        "processes",
        "datapath",
        "adoption",
        "rate",
        "burst",
        "ops",
        "shared rates",
        "direct links",
        "faults",
    ]);
    for vnic in found["vnics"].as_array().map_or(&[][..], Vec::as_slice) {
        let text = |key: &str| vnic[key].as_str().unwrap_or("?").to_owned();
        let number = |key: &str| vnic[key].as_u64();
        table.row(vec![
            text("name"),
            vnic["tenant"].as_str().unwrap_or("default").to_owned(),
            number("namespace").map_or("-".into(), |inode| inode.to_string()),
            number("processes").unwrap_or(0).to_string(),
            text("datapath"),
            text("adoption"),
            number("rate").map_or("none".into(), show_rate),
            number("burst").map_or("-".into(), show_size),
            number("ops").map_or("none".into(), show_ops),
            shared_rates(vnic),
            number("direct_links").unwrap_or(0).to_string(),
            vnic["faults"].as_str().unwrap_or("none").to_owned(),
        ]);
    }
    let text = table.render("");
    if text.is_empty() { "no vNIC has processes or was given a policy\n".into() } else { text }
}

/// Rates that a vNIC has in common with others: `policy gold 5gbit 100k/s`.
fn shared_rates(vnic: &Value) -> String {
    let limits = vnic["shared_limits"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |limit: &Value| {
        let word = |key: &str| limit[key].as_str().unwrap_or("?").to_owned();
        let rate = limit["rate"].as_u64().map(|rate| format!(" {}", show_rate(rate)));
        let ops = limit["ops"].as_u64().map(|ops| format!(" {}", show_ops(ops)));
        let limits = rate.into_iter().chain(ops).collect::<String>();
        format!("{} {}{limits}", word("of"), word("name"))
    };
    if limits.is_empty() {
        "-".into()
    } else {
        limits.iter().map(text).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use omniverb_arguments::{Arguments, Command, VnicCommand};
    use omniverb_session::network_fault_text;

    fn change(options: &str) -> Result<SetVnic, String> {
        change_of("net-5", options)
    }

    fn change_of(name: &str, options: &str) -> Result<SetVnic, String> {
        let words = ["omniverb", "vnic", "set", name].into_iter().chain(options.split_whitespace());
        let parsed = Arguments::try_parse_from(words).map_err(|error| error.to_string())?;
        let Command::Vnic(VnicCommand::Set { name, policy, .. }) = parsed.command else {
            return Err("another command".into());
        };
        super::change(&name, &policy).map_err(|error| error.to_string())
    }

    #[test]
    fn options_say_what_changes() {
        let all = change("--rate 300mbit --burst 64k --datapath forwarded").unwrap();
        assert_eq!(all.what, SET_RATE | SET_BURST | SET_DATAPATH);
        assert_eq!((all.bits_per_second, all.burst_bytes), (300_000_000, 65536));
        assert_eq!((&all.name[..5], all.name[5], all.datapath), (&b"net-5"[..], 0, 1));
        let none = change("--rate none").unwrap();
        assert_eq!((none.what, none.bits_per_second), (SET_RATE, 0));
        let faults = change("--faults loss=1%,delay=2ms").unwrap();
        assert_eq!((faults.what, faults.faults.loss), (SET_FAULTS, 10_000));
        let ops = change("--ops 100k").unwrap();
        assert_eq!((ops.what, ops.operations_per_second), (SET_OPS, 100_000));
        assert_eq!(change("--ops none").unwrap().operations_per_second, 0);
        assert!(change("--faults none").unwrap().faults.is_nothing());
        for (word, value) in
            [("exact", ADOPTION_EXACT), ("trusting", ADOPTION_TRUSTING), ("off", ADOPTION_OFF)]
        {
            let adoption = change(&format!("--adoption={word}")).unwrap();
            assert_eq!((adoption.what, adoption.adoption), (SET_ADOPTION, value));
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_reason() {
        for (options, reason) in [
            ("", "required"),
            ("--rate", "a value is required"),
            ("--rate fast", "\"fast\""),
            ("--rate 0", "let nothing pass"),
            ("--speed 5", "--speed"),
            ("--ops 0", "1/s to"),
            ("--rate 1mbit --rate 2mbit", "multiple times"),
            ("--adoption maybe", "exact, trusting, off"),
            ("--datapath fast", "direct, forwarded"),
            ("--faults lose=1%", "\"lose\""),
            ("rate 300mbit", "unexpected argument 'rate'"),
        ] {
            let error = change(options).unwrap_err();
            assert!(error.contains(reason), "{options}: {error}");
        }
        assert!(change_of(&"x".repeat(64), "--rate none").is_err());
    }

    #[test]
    fn links_that_stay_direct_are_reported() {
        let mut changed = VnicChanged {
            bits_per_second: 20_000_000,
            burst_bytes: 65536,
            datapath: DATAPATH_DIRECT,
            direct_links: 3,
            faults: Faults::default(),
            adoption: ADOPTION_EXACT,
            shares_limit: 0,
            operations_per_second: 0,
            reserved: 0,
        };
        let text = said("host", &changed);
        assert!(
            text.contains("rate 20mbit burst 64k") && text.contains("3 direct links"),
            "{text}"
        );
        changed.bits_per_second = 0;
        assert_eq!(said("host", &changed), "host: no rate limit, datapath direct\n");
        changed.operations_per_second = 100_000;
        let text = said("host", &changed);
        let counted = "no rate limit, ops 100k/s, datapath forwarded (because of its operations)";
        assert!(text.contains(counted), "{text}");
        changed.operations_per_second = 0;
        changed.adoption = ADOPTION_OFF;
        let off = "host: no rate limit, datapath direct, adoption off\n";
        assert_eq!(said("host", &changed), off);
        changed.adoption = ADOPTION_EXACT;
        changed.faults = network_fault_text::faults("loss=1%").unwrap().unwrap();
        let text = said("host", &changed);
        assert!(text.contains("because of its faults), faults loss=1%,seed=1\n3 direct"), "{text}");
    }

    #[test]
    fn the_list_reads_well() {
        let found = serde_json::json!({"vnics": [
            {"name": "host", "namespace": 4_026_531_840_u64, "processes": 2,
             "datapath": "forwarded", "rate": 20_000_000,
             "burst": 65536, "adoption": "off", "direct_links": 1, "faults": "loss=1%,seed=1",
             "shared_limits": [{"of": "policy", "name": "gold", "rate": 5_000_000_000_u64,
                                "ops": 1500}]}]});
        let text = people(&found);
        assert!(
            text.contains("4026531840") && text.contains("20mbit") && text.contains("64k"),
            "{text}"
        );
        assert!(text.contains("loss=1%,seed=1\n"), "{text}");
        assert!(text.contains("policy gold 5gbit 1500/s"), "{text}");
        assert!(people(&Value::Null).contains("no vNIC"));
    }
}
