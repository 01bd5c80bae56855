//! Implements `omniverb tenant`, `policy`, `reload`, and `vnic`'s descriptions: shows and changes
//! objects.

use crate::operator_connection::Operator;
use crate::stdout;
use crate::text_table::Table;
use anyhow::{Context, bail};
use omniverb_arguments::{
    AdoptionValue, ControlOptions, DatapathValue, EncryptionValue, ModeValue, OperationRate,
    PolicyAddress, PolicyCommand, PolicyMode, PolicyOptions, Rate, RuleOptions, TenantCommand,
    TenantOptions, VnicOptions,
};
use serde_json::{Map, Value, json};
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;

/// The kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tenant,
    Policy,
    Vnic,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Tenant => "tenant",
            Kind::Policy => "policy",
            Kind::Vnic => "vnic",
        }
    }
}

/// How objects are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Table,
    Json,
}

impl Form {
    /// By the option `--json`.
    pub(crate) fn with_json(json: bool) -> Form {
        if json { Form::Json } else { Form::Table }
    }
}

pub(crate) fn tenant(command: TenantCommand) -> anyhow::Result<ExitCode> {
    match command {
        TenantCommand::Create { name, tenant } => {
            let fields = tenant_fields(&tenant)?;
            change(&Operator::connect()?, "create", Kind::Tenant, &name, fields)
        }
        TenantCommand::Set { name, tenant } => {
            let fields = tenant_fields(&tenant)?;
            change(&Operator::connect()?, "set", Kind::Tenant, &name, fields)
        }
        TenantCommand::Show { name, json } => show(Kind::Tenant, &name, Form::with_json(json)),
        TenantCommand::Delete { name } => delete(Kind::Tenant, &name),
        TenantCommand::List { json } => list(Kind::Tenant, Form::with_json(json)),
    }
}

pub(crate) fn policy(command: PolicyCommand) -> anyhow::Result<ExitCode> {
    match command {
        PolicyCommand::Create { name, mode, policy, control, rules } => {
            let fields = policy_fields(&mode, &policy, &control, &rules);
            change(&Operator::connect()?, "create", Kind::Policy, &name, fields)
        }
        PolicyCommand::Set { name, mode, policy, control, rules } => {
            let fields = policy_fields(&mode, &policy, &control, &rules);
            if fields.is_empty() {
                bail!("one option at least is required: see omniverb policy set --help");
            }
            change(&Operator::connect()?, "set", Kind::Policy, &name, fields)
        }
        PolicyCommand::Show { name, json } => show(Kind::Policy, &name, Form::with_json(json)),
        PolicyCommand::Delete { name } => delete(Kind::Policy, &name),
        PolicyCommand::List { json } => list(Kind::Policy, Form::with_json(json)),
    }
}

pub(crate) fn create_vnic(
    name: &str,
    vnic: &VnicOptions,
    policy: &PolicyOptions,
) -> anyhow::Result<ExitCode> {
    let fields = vnic_fields(vnic, policy);
    change(&Operator::connect()?, "create", Kind::Vnic, name, fields)
}

/// Changes the description of a vNIC, which is made if there is none.
pub(crate) fn set_vnic(
    operator: &Operator,
    name: &str,
    vnic: &VnicOptions,
    policy: &PolicyOptions,
) -> anyhow::Result<ExitCode> {
    let name = match name.strip_prefix("pid:") {
        Some(pid) => &name_of_process(operator, pid)?,
        None => name,
    };
    let verb = if is_described(operator, name)? { "set" } else { "create" };
    change(operator, verb, Kind::Vnic, name, vnic_fields(vnic, policy))
}

/// The name of the vNIC that a process has.
fn name_of_process(operator: &Operator, pid: &str) -> anyhow::Result<String> {
    let path = format!("/proc/{pid}/ns/net");
    let inode = std::fs::metadata(&path).with_context(|| format!("cannot read {path}"))?.ino();
    let found = operator.vnics()?;
    let vnic = found["vnics"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|vnic| vnic["namespace"].as_u64() == Some(inode));
    let name = |vnic: &Value| vnic["object"].as_str().or(vnic["name"].as_str()).map(String::from);
    vnic.and_then(name).with_context(|| {
        format!("process {pid} has no device yet: describe it by `omniverb vnic create --attach`")
    })
}

/// Whether a vNIC of this name was described.
pub(crate) fn is_described(operator: &Operator, name: &str) -> anyhow::Result<bool> {
    let objects = operator.objects()?;
    Ok(objects.iter().any(|object| object["kind"] == "vnic" && object["name"] == name))
}

pub(crate) fn delete(kind: Kind, name: &str) -> anyhow::Result<ExitCode> {
    change(&Operator::connect()?, "delete", kind, name, Map::new())
}

pub(crate) fn reload() -> anyhow::Result<ExitCode> {
    Operator::connect()?.reload()?;
    stdout::write("the configuration was reloaded\n")
}

/// Whether no option of a policy was given.
pub(crate) fn is_nothing(policy: &PolicyOptions) -> bool {
    fields_of(policy).is_empty()
}

fn change(
    operator: &Operator,
    verb: &str,
    kind: Kind,
    name: &str,
    fields: Map<String, Value>,
) -> anyhow::Result<ExitCode> {
    let one = json!({ "do": verb, "kind": kind.word(), "name": name, "fields": fields });
    operator.change_objects(&json!({ "changes": [one] }))?;
    let done = match verb {
        "create" => "created",
        "delete" => "deleted",
        _ => "changed",
    };
    stdout::write(&format!("{} {name}: {done}\n", kind.word()))
}

/// The fields of a tenant, in the words of the configuration file.
fn tenant_fields(tenant: &TenantOptions) -> anyhow::Result<Map<String, Value>> {
    let TenantOptions {
        adoption,
        encryption,
        key_file,
        key_lifetime,
        rate,
        burst,
        ops,
        underlay,
        underlay_prefix,
        address_prefix,
        mtu,
    } = tenant;
    let mut fields = Map::new();
    let mut add = |key: &str, value: Option<Value>| {
        fields.extend(value.map(|value| (key.to_owned(), value)));
    };
    add("adoption", adoption.map(|adoption| adoption_word(adoption).into()));
    let encryption = encryption.map(|encryption| match encryption {
        EncryptionValue::None => "none".into(),
        EncryptionValue::Psp => "psp".into(),
    });
    add("encryption", encryption);
    if let Some(path) = key_file {
        // The daemon is in another folder.
        let path = std::path::absolute(path)
            .with_context(|| format!("cannot tell where {} is", path.display()))?;
        let text = path.to_str().context("the path of a key file has to be UTF-8")?;
        add("key_file", Some(text.into()));
    }
    add("key_lifetime", key_lifetime.map(Value::from));
    add("underlay", underlay.map(|address| address.to_string().into()));
    add("underlay_prefix", underlay_prefix.clone().map(Value::from));
    add("address_prefix", address_prefix.clone().map(Value::from));
    add("mtu", mtu.map(Value::from));
    add("ops", ops.map(per_second));
    fields.extend(limit_fields(*rate, *burst));
    Ok(fields)
}

fn policy_fields(
    mode: &PolicyMode,
    policy: &PolicyOptions,
    control: &ControlOptions,
    rules: &RuleOptions,
) -> Map<String, Value> {
    let mut fields = fields_of(policy);
    fields.extend(control_fields(control));
    let word = mode.mode.map(|mode| match mode {
        ModeValue::Each => "each",
        ModeValue::Shared => "shared",
    });
    fields.extend(word.map(|word| ("mode".to_owned(), word.into())));
    let address = |PolicyAddress(address)| address.map_or(Value::Null, |it| it.to_string().into());
    fields.extend(mode.underlay.map(|underlay| ("underlay".to_owned(), address(underlay))));
    let rules = match rules.rules.as_slice() {
        [] => return fields,
        [none] if none == "none" => Value::Null,
        rules => rules.into(),
    };
    fields.insert("rule".to_owned(), rules);
    fields
}

/// The fields about control operations.
fn control_fields(control: &ControlOptions) -> impl Iterator<Item = (String, Value)> {
    let ControlOptions { control_rate, qp_rate, queue_pairs } = control;
    let fields = [
        ("control_rate", control_rate.map(per_second)),
        ("qp_rate", qp_rate.map(per_second)),
        ("queue_pairs", queue_pairs.map(|count| count.0.map_or(Value::Null, Value::from))),
    ];
    fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)))
}

/// A number of operations per second.
fn per_second(rate: OperationRate) -> Value {
    match rate.0 {
        0 => "none".into(),
        count => format!("{count}/s").into(),
    }
}

/// The fields `rate` and `burst`.
fn limit_fields(rate: Option<Rate>, burst: Option<u64>) -> impl Iterator<Item = (String, Value)> {
    let is_unlimited = rate.is_some_and(|rate| rate.0 == 0);
    let rate = rate.map(|rate| match rate.0 {
        0 => "none".into(),
        bits => format!("{bits}bit").into(),
    });
    // Without a rate there is no burst.
    let burst = burst.map(|bytes| bytes.to_string().into());
    let burst = burst.or(is_unlimited.then_some(Value::Null));
    let field = |key: &str, value: Option<Value>| value.map(|value| (key.to_owned(), value));
    field("rate", rate).into_iter().chain(field("burst", burst))
}

fn vnic_fields(vnic: &VnicOptions, policy: &PolicyOptions) -> Map<String, Value> {
    let mut fields = fields_of(policy);
    let VnicOptions { tenant, policies, attach, address, underlay, qpn_offset, qpns } = vnic;
    let mut add = |key: &str, value: Option<Value>| {
        fields.extend(value.map(|value| (key.to_owned(), value)));
    };
    add("tenant", tenant.clone().map(Value::from));
    add("attach", attach.clone().map(Value::from));
    add("address", address.map(|address| address.to_string().into()));
    add("underlay", underlay.map(|address| address.to_string().into()));
    add("qpn_offset", qpn_offset.map(Value::from));
    add("qpns", qpns.map(Value::from));
    add("policies", (!policies.is_empty()).then(|| policies.clone().into()));
    fields
}

/// The fields of a policy, in the words of the configuration file.
fn fields_of(policy: &PolicyOptions) -> Map<String, Value> {
    let PolicyOptions { datapath, rate, burst, ops, adoption, faults } = policy;
    let mut fields = Map::new();
    let mut add = |key: &str, value: Option<Value>| {
        fields.extend(value.map(|value| (key.to_owned(), value)));
    };
    let datapath = datapath.map(|path| match path {
        DatapathValue::Direct => "direct".into(),
        DatapathValue::Forwarded => "forwarded".into(),
    });
    add("datapath", datapath);
    add("adoption", adoption.map(|adoption| adoption_word(adoption).into()));
    let faults = faults.map(|list| match list.0.is_nothing() {
        true => "none".into(),
        false => list.0.show().into(),
    });
    add("faults", faults);
    add("ops", ops.map(per_second));
    fields.extend(limit_fields(*rate, *burst));
    fields
}

fn adoption_word(adoption: AdoptionValue) -> &'static str {
    match adoption {
        AdoptionValue::Exact => "exact",
        AdoptionValue::Trusting => "trusting",
        AdoptionValue::Off => "off",
    }
}

pub(crate) fn show(kind: Kind, name: &str, form: Form) -> anyhow::Result<ExitCode> {
    let objects = Operator::connect()?.objects()?;
    let is_it = |object: &Value| object["kind"] == kind.word() && object["name"] == name;
    let Some(object) = objects.into_iter().find(is_it) else {
        bail!("there is no {} {name:?}; see `omniverb {} list`", kind.word(), kind.word());
    };
    let text = match form {
        Form::Json => serde_json::to_string_pretty(&object)? + "\n",
        Form::Table => people(&[object]),
    };
    stdout::write(&text)
}

fn list(kind: Kind, form: Form) -> anyhow::Result<ExitCode> {
    let mut objects = Operator::connect()?.objects()?;
    objects.retain(|object| object["kind"] == kind.word());
    let text = match form {
        Form::Json => serde_json::to_string_pretty(&objects)? + "\n",
        Form::Table if objects.is_empty() => format!("there is no {}\n", kind.word()),
        Form::Table => people(&objects),
    };
    stdout::write(&text)
}

fn people(objects: &[Value]) -> String {
    let mut table = Table::new(&["kind", "name", "by", "fields"]);
    for object in objects {
        let text = |key: &str| object[key].as_str().unwrap_or("?").to_owned();
        let fields = object["fields"].as_object().into_iter().flatten();
        let field = |(key, value): (&String, &Value)| match value {
            Value::String(text) => format!("{key}={text}"),
            Value::Array(list) => {
                let words: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
                // Rules have spaces and commas.
                let separator = if key == "rule" { "; " } else { "," };
                format!("{key}={}", words.join(separator))
            }
            other => format!("{key}={other}"),
        };
        let mut fields: Vec<String> = fields.map(field).collect();
        fields.extend(object["gid"].as_str().map(|gid| format!("gid={gid}")));
        let underlay =
            object["underlay"].as_str().filter(|_| object["fields"]["underlay"].is_null());
        fields.extend(underlay.map(|address| format!("underlay={address}")));
        fields.extend(object["problem"].as_str().map(|problem| format!("({problem})")));
        let source = match object["hides"].as_str() {
            Some(hidden) => format!("{} (hides {hidden})", text("source")),
            None => text("source"),
        };
        table.row(vec![text("kind"), text("name"), source, fields.join(" ")]);
    }
    table.render("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use omniverb_arguments::{Arguments, Command, VnicCommand};

    fn fields(words: &str) -> Map<String, Value> {
        let words = ["omniverb", "vnic", "create", "web"].into_iter().chain(words.split(' '));
        match Arguments::try_parse_from(words.filter(|word| !word.is_empty())).unwrap().command {
            Command::Vnic(VnicCommand::Create { vnic, policy, .. }) => vnic_fields(&vnic, &policy),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_are_fields_of_the_configuration() {
        assert!(fields("").is_empty());
        let text = Value::from(fields(
            "--tenant blue --policy a --policy b --attach /run/netns/web --rate 5gbit --burst 64k \
             --ops 1.5m --datapath forwarded --adoption off --faults loss=1%",
        ));
        assert_eq!(text["tenant"], "blue");
        assert_eq!(text["policies"], json!(["a", "b"]));
        assert_eq!((&text["rate"], &text["burst"]), (&"5000000000bit".into(), &"65536".into()));
        assert_eq!(text["ops"], "1500000/s");
        assert_eq!((&text["datapath"], &text["adoption"]), (&"forwarded".into(), &"off".into()));
        assert!(text["faults"].as_str().unwrap().starts_with("loss=1%"));
        let placed = fields("--address 10.0.0.1 --underlay 192.0.2.2 --qpn-offset 0x400000");
        let expected =
            json!({ "address": "10.0.0.1", "underlay": "192.0.2.2", "qpn_offset": 0x40_0000 });
        assert_eq!(Value::from(placed), expected);
        let none = Value::from(fields("--rate none --faults none --ops none"));
        let expected = json!({ "rate": "none", "burst": null, "faults": "none", "ops": "none" });
        assert_eq!(none, expected);
    }

    #[test]
    fn limits_of_groups_are_fields_too() {
        let parse = |words: &str| Arguments::try_parse_from(words.split(' ')).unwrap().command;
        let words = "omniverb tenant set blue --rate 5gbit --burst 64k --ops 2k --adoption off";
        let Command::Tenant(TenantCommand::Set { tenant, .. }) = parse(words) else { panic!() };
        let expected = json!({
            "rate": "5000000000bit", "burst": "65536", "ops": "2000/s", "adoption": "off"
        });
        assert_eq!(Value::from(tenant_fields(&tenant).unwrap()), expected);
        let of_policy = |words: &str| match parse(words) {
            Command::Policy(PolicyCommand::Create { mode, policy, control, rules, .. }) => {
                Value::from(policy_fields(&mode, &policy, &control, &rules))
            }
            other => panic!("{other:?}"),
        };
        let shared = of_policy("omniverb policy create gold --mode shared --rate none");
        assert_eq!(shared, json!({ "mode": "shared", "rate": "none", "burst": null }));
        let words =
            "omniverb policy create gold --control-rate 1.5k/s --qp-rate 20 --queue-pairs 9";
        let expected = json!({ "control_rate": "1500/s", "qp_rate": "20/s", "queue_pairs": 9 });
        assert_eq!(of_policy(words), expected);
        let addressed = of_policy("omniverb policy create gold --underlay 192.0.2.50");
        assert_eq!(addressed, json!({ "underlay": "192.0.2.50" }));
        let taken = of_policy("omniverb policy create gold --underlay none");
        assert_eq!(taken, json!({ "underlay": null }));
        let words = "omniverb policy create gold --control-rate none --queue-pairs none";
        assert_eq!(of_policy(words), json!({ "control_rate": "none", "queue_pairs": null }));
        for words in ["omniverb tenant set blue", "omniverb tenant create blue --rate 0"] {
            assert!(Arguments::try_parse_from(words.split(' ')).is_err(), "{words}");
        }
    }

    #[test]
    fn a_row_names_fields() {
        let object = json!({ "kind": "vnic", "name": "web", "source": "command",
            "fields": { "policies": ["a", "b"], "tenant": "blue" } });
        assert!(people(&[object]).ends_with("policies=a,b tenant=blue\n"));
        let object = json!({ "kind": "vnic", "name": "web", "source": "command", "fields": {},
            "problem": "cannot look at \"/a\"" });
        assert!(people(&[object]).ends_with("(cannot look at \"/a\")\n"));
    }
}
