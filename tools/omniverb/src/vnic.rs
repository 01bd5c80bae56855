//! `omniverb vnic`: which way a vNIC's traffic takes, how fast, and how bad its network is.

use crate::client::Client;
use crate::operator::Operator;
use crate::table::Table;
use crate::{daemon, output};
use anyhow::bail;
use omniverb_session::faults::{self, Faults};
use omniverb_session::operator::{
    ADOPTION_EXACT, ADOPTION_OFF, ADOPTION_TRUSTING, DATAPATH_DIRECT, DATAPATH_FORWARDED,
    DisconnectVnic, SET_ADOPTION, SET_BURST, SET_DATAPATH, SET_FAULTS, SET_RATE, SetVnic,
    VNIC_NAME_BYTES, VnicChanged,
};
use omniverb_session::tc_units::{self, show_rate, show_size};
use serde_json::Value;
use std::process::ExitCode;

/// A vNIC's name as it travels.
pub(crate) fn name_bytes(name: &str) -> anyhow::Result<[u8; VNIC_NAME_BYTES]> {
    let mut bytes = [0; VNIC_NAME_BYTES];
    let Some(room) = bytes.get_mut(..name.len()).filter(|_| name.len() < VNIC_NAME_BYTES) else {
        bail!("no vNIC has a name as long as {name:?}");
    };
    room.copy_from_slice(name.as_bytes());
    Ok(bytes)
}

const SETTINGS: [&str; 5] = ["rate", "burst", "datapath", "adoption", "faults"];
const WORDS: &str = "rate, burst, datapath, adoption or faults";

/// `words`: what to change, as pairs.
pub(crate) fn set(name: &str, words: &[String]) -> anyhow::Result<ExitCode> {
    let change = change(name, words)?;
    let changed = Operator::connect()?.set_vnic(&change, name)?;
    output::write(&said(name, &changed))
}

fn change(name: &str, words: &[String]) -> anyhow::Result<SetVnic> {
    let mut change = SetVnic {
        name: name_bytes(name)?,
        what: 0,
        datapath: 0,
        bits_per_second: 0,
        burst_bytes: 0,
        faults: Faults::default(),
        adoption: ADOPTION_EXACT,
        reserved: 0,
    };
    for pair in words.chunks(2) {
        let [word, value] = pair else {
            let word = pair.concat();
            if SETTINGS.contains(&word.as_str()) {
                bail!("{word} has no value: say omniverb vnic set {name} {word} VALUE");
            }
            bail!(
                "{word:?} is no setting but {WORDS}: is the vNIC's name missing before {name:?}? \
                 `omniverb vnic list` shows names"
            );
        };
        let bit = match word.as_str() {
            "rate" => {
                let none = matches!(value.as_str(), "none" | "unlimited");
                change.bits_per_second = if none { 0 } else { number(tc_units::rate(value))? };
                if !none && change.bits_per_second == 0 {
                    bail!("a rate of 0 would let nothing pass; `rate none` takes the limit away");
                }
                SET_RATE
            }
            "burst" => {
                change.burst_bytes = number(tc_units::size(value))?;
                SET_BURST
            }
            "datapath" => {
                change.datapath = match value.as_str() {
                    "direct" => DATAPATH_DIRECT,
                    "forwarded" => DATAPATH_FORWARDED,
                    other => bail!("{other:?} is neither direct nor forwarded"),
                };
                SET_DATAPATH
            }
            "faults" => {
                let faults = faults::faults(value).map_err(anyhow::Error::msg)?;
                change.faults = faults.unwrap_or_default();
                SET_FAULTS
            }
            "adoption" => {
                change.adoption = match value.as_str() {
                    "exact" | "on" => ADOPTION_EXACT,
                    "trusting" => ADOPTION_TRUSTING,
                    "off" => ADOPTION_OFF,
                    other => bail!("{other:?} is none of exact (on), trusting and off"),
                };
                SET_ADOPTION
            }
            other => bail!("{other:?} cannot be set: use {WORDS}"),
        };
        if change.what & bit != 0 {
            bail!("{word} is there twice");
        }
        change.what |= bit;
    }
    if change.what == 0 {
        bail!("say what to set: {WORDS}");
    }
    Ok(change)
}

fn number(found: Result<u64, String>) -> anyhow::Result<u64> {
    found.map_err(anyhow::Error::msg)
}

fn said(name: &str, changed: &VnicChanged) -> String {
    let VnicChanged {
        bits_per_second, burst_bytes, datapath, direct_links, faults, adoption, ..
    } = *changed;
    let limited = bits_per_second != 0;
    let datapath = match datapath {
        DATAPATH_DIRECT if limited => "forwarded (because of its rate)",
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
    let mut out = match limited {
        true => format!(
            "{name}: rate {} burst {}, datapath {datapath}{faults}\n",
            show_rate(bits_per_second),
            show_size(burst_bytes)
        ),
        false => format!("{name}: no rate limit, datapath {datapath}{faults}\n"),
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
    output::write(&format!("{name}: {links} links ended\n"))
}

pub(crate) fn list(json: bool) -> anyhow::Result<ExitCode> {
    let found = match Operator::connect() {
        Ok(operator) => operator.vnics()?,
        Err(_) => {
            let path = daemon::serving()?;
            Client::connect(&path)?.vnics(&path)?
        }
    };
    let text = if json { serde_json::to_string_pretty(&found)? + "\n" } else { people(&found) };
    output::write(&text)
}

fn people(found: &Value) -> String {
    let mut table = Table::new(&[
        "vNIC",
        "namespace",
        "processes",
        "datapath",
        "adoption",
        "rate",
        "burst",
        "direct links",
        "faults",
    ]);
    for vnic in found["vnics"].as_array().map_or(&[][..], Vec::as_slice) {
        let text = |key: &str| vnic[key].as_str().unwrap_or("?").to_owned();
        let number = |key: &str| vnic[key].as_u64();
        table.row(vec![
            text("name"),
            number("namespace").map_or("-".into(), |inode| inode.to_string()),
            number("processes").unwrap_or(0).to_string(),
            text("datapath"),
            text("adoption"),
            number("rate").map_or("none".into(), show_rate),
            number("burst").map_or("-".into(), show_size),
            number("direct_links").unwrap_or(0).to_string(),
            vnic["faults"].as_str().unwrap_or("none").to_owned(),
        ]);
    }
    let text = table.render("");
    if text.is_empty() { "no vNIC has processes or was given a policy\n".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn changes_are_read() {
        let change = |text: &str| change("net-5", &words(text));
        let all = change("rate 300mbit burst 64k datapath forwarded").unwrap();
        assert_eq!(all.what, SET_RATE | SET_BURST | SET_DATAPATH);
        assert_eq!((all.bits_per_second, all.burst_bytes), (300_000_000, 65536));
        assert_eq!((&all.name[..5], all.name[5], all.datapath), (&b"net-5"[..], 0, 1));
        let none = change("rate none").unwrap();
        assert_eq!((none.what, none.bits_per_second), (SET_RATE, 0));
        let faults = change("faults loss=1%,delay=2ms").unwrap();
        assert_eq!((faults.what, faults.faults.loss), (SET_FAULTS, 10_000));
        let off = change("adoption off").unwrap();
        assert_eq!((off.what, off.adoption), (SET_ADOPTION, ADOPTION_OFF));
        assert_eq!(change("adoption on").unwrap().adoption, ADOPTION_EXACT);
        assert!(change("adoption maybe").is_err());
        assert!(change("faults none").unwrap().faults.is_nothing());
        let error = change("faults lose=1%").unwrap_err().to_string();
        assert!(error.contains("\"lose\"") && error.lines().count() == 1, "{error}");
        for wrong in ["", "rate", "rate fast", "rate 0", "speed 5", "rate 1mbit rate 2mbit"] {
            assert!(change(wrong).is_err(), "{wrong}");
        }
        assert!(super::change(&"x".repeat(64), &words("rate none")).is_err());
    }

    #[test]
    fn what_stays_direct_is_said() {
        let mut changed = VnicChanged {
            bits_per_second: 20_000_000,
            burst_bytes: 65536,
            datapath: DATAPATH_DIRECT,
            direct_links: 3,
            faults: Faults::default(),
            adoption: ADOPTION_EXACT,
            reserved: 0,
        };
        let text = said("host", &changed);
        assert!(
            text.contains("rate 20mbit burst 64k") && text.contains("3 direct links"),
            "{text}"
        );
        changed.bits_per_second = 0;
        assert_eq!(said("host", &changed), "host: no rate limit, datapath direct\n");
        changed.adoption = ADOPTION_OFF;
        let off = "host: no rate limit, datapath direct, adoption off\n";
        assert_eq!(said("host", &changed), off);
        changed.adoption = ADOPTION_EXACT;
        changed.faults = faults::faults("loss=1%").unwrap().unwrap();
        let text = said("host", &changed);
        assert!(text.contains("because of its faults), faults loss=1%,seed=1\n3 direct"), "{text}");
    }

    #[test]
    fn the_list_reads_well() {
        let found = serde_json::json!({"vnics": [
            {"name": "host", "namespace": 4_026_531_840_u64, "processes": 2,
             "datapath": "forwarded", "rate": 20_000_000,
             "burst": 65536, "adoption": "off", "direct_links": 1, "faults": "loss=1%,seed=1"}]});
        let text = people(&found);
        assert!(
            text.contains("4026531840") && text.contains("20mbit") && text.contains("64k"),
            "{text}"
        );
        assert!(text.contains("loss=1%,seed=1\n"), "{text}");
        assert!(people(&Value::Null).contains("no vNIC"));
    }
}
