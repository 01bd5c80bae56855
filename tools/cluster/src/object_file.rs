//! Reads and writes objects as a TOML file: the tables of the daemon's configuration.
//!
//! `[host.NAME.vnic.NAME]` is an object for one host.

use crate::object_name::{Fields, Kind, ObjectId, Scope, is_name};
use serde_json::Value;
use std::collections::BTreeMap;
use toml::{Table, Value as TomlValue};

/// Bytes of the longest file.
pub const FILE_BYTES_MAX: usize = 16 << 20;

/// Objects and the hosts that they are for.
pub type Entries = BTreeMap<(ObjectId, Scope), Fields>;

/// The objects of a file.
///
/// # Errors
/// The line, and what is wrong there.
pub fn parse(text: &str) -> Result<Entries, String> {
    let table: Table = toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = 1 + text.bytes().take(start).filter(|byte| *byte == b'\n').count();
        let problem = error.message().lines().next().unwrap_or_default();
        format!("line {line}: {problem}")
    })?;
    let mut entries = Entries::new();
    for (key, value) in &table {
        if key != "host" {
            add_kind(&mut entries, text, &Scope::All, key, value)?;
            continue;
        }
        for (host, kinds) in tables(text, "host", value)? {
            if !is_name(host) {
                return Err(at_line(text, &format!("[host.{host}"), &name_error(host)));
            }
            let head = format!("host.{host}");
            for (kind, objects) in tables(text, &head, kinds)? {
                add_kind(&mut entries, text, &Scope::Host(host.clone()), kind, objects)?;
            }
        }
    }
    Ok(entries)
}

fn add_kind(
    entries: &mut Entries,
    text: &str,
    scope: &Scope,
    word: &str,
    objects: &TomlValue,
) -> Result<(), String> {
    let head = match scope {
        Scope::All => word.to_owned(),
        Scope::Host(host) => format!("host.{host}.{word}"),
    };
    let Some(kind) = Kind::from_word(word) else {
        let known = "tenant, policy, vnic and host";
        return Err(at_line(text, word, &format!("{head:?} is none of {known}")));
    };
    for (name, object) in tables(text, &head, objects)? {
        let at = |problem: &str| at_line(text, &format!("[{head}.{name}"), problem);
        if !is_name(name) {
            return Err(at(&name_error(name)));
        }
        let TomlValue::Table(table) = object else {
            return Err(at(&format!("{head}.{name} is not a table")));
        };
        let fields = fields_of(table).map_err(|problem| at(&problem))?;
        entries.insert((ObjectId::new(kind, name), scope.clone()), fields);
    }
    Ok(())
}

fn tables<'a>(text: &str, head: &str, value: &'a TomlValue) -> Result<&'a Table, String> {
    value.as_table().ok_or_else(|| at_line(text, head, &format!("{head} is not a table")))
}

fn name_error(name: &str) -> String {
    format!("{name:?}: a name has 1 to 63 letters, digits and any of . _ - @")
}

/// A problem, with the line that begins so; names may stand between quotation marks there.
fn at_line(text: &str, head: &str, problem: &str) -> String {
    let begins = |line: &str| {
        line.replace('"', "")
            .trim_start()
            .trim_start_matches('[')
            .starts_with(head.trim_start_matches('['))
    };
    match text.lines().position(begins) {
        Some(number) => format!("line {}: {problem}", number + 1),
        None => problem.to_owned(),
    }
}

fn fields_of(table: &Table) -> Result<Fields, String> {
    table.iter().map(|(key, value)| Ok((key.clone(), json_of(key, value)?))).collect()
}

fn json_of(key: &str, value: &TomlValue) -> Result<Value, String> {
    Ok(match value {
        TomlValue::String(text) => text.clone().into(),
        TomlValue::Integer(number) => (*number).into(),
        TomlValue::Boolean(is) => (*is).into(),
        TomlValue::Array(list) => {
            list.iter().map(|value| json_of(key, value)).collect::<Result<Vec<_>, _>>()?.into()
        }
        TomlValue::Table(table) => fields_of(table)?.into(),
        TomlValue::Float(_) | TomlValue::Datetime(_) => {
            return Err(format!("{key}: fractions and dates are not used: write a text"));
        }
    })
}

/// The file that has these objects: what [`parse`] reads again.
#[must_use]
pub fn text(entries: &Entries) -> String {
    let mut text = String::new();
    let scopes: std::collections::BTreeSet<&Scope> =
        entries.keys().map(|(_, scope)| scope).collect();
    for scope in scopes {
        for ((id, _), fields) in entries.iter().filter(|((_, of), _)| of == scope) {
            let mut kinds = Table::new();
            let mut names = Table::new();
            let fields: Table =
                fields.iter().map(|(key, value)| (key.clone(), toml_of(value))).collect();
            names.insert(id.name.clone(), fields.into());
            kinds.insert(id.kind.word().into(), names.into());
            let table = match scope {
                Scope::All => kinds,
                Scope::Host(host) => {
                    let hosts: Table = [(host.clone(), kinds.into())].into_iter().collect();
                    [("host".to_owned(), hosts.into())].into_iter().collect()
                }
            };
            if !text.is_empty() {
                text.push('\n');
            }
            text += &table.to_string();
        }
    }
    text
}

fn toml_of(value: &Value) -> TomlValue {
    match value {
        Value::String(text) => text.clone().into(),
        Value::Bool(is) => (*is).into(),
        // Larger ones than TOML has are none that the daemon knows.
        Value::Number(number) => number
            .as_i64()
            .map_or_else(|| TomlValue::String(number.to_string()), TomlValue::Integer),
        Value::Array(list) => TomlValue::Array(list.iter().map(toml_of).collect()),
        Value::Object(fields) => TomlValue::Table(
            fields.iter().map(|(key, value)| (key.clone(), toml_of(value))).collect(),
        ),
        Value::Null => TomlValue::String(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: &str = "[tenant.blue]\n\n[policy.\"gold\"]\nrate = \"5gbit\"\n\n[vnic.web]\n\
                        tenant = \"blue\"\npolicies = [\"gold\"]\n\n[host.h1.vnic.db]\n\
                        attach = \"/run/netns/db\"\n";

    #[test]
    fn tables_are_objects() {
        let entries = parse(FILE).unwrap();
        assert_eq!(entries.len(), 4);
        let db = (ObjectId::new(Kind::Vnic, "db"), Scope::Host("h1".into()));
        assert_eq!(entries[&db]["attach"], "/run/netns/db");
        assert_eq!(parse(&text(&entries)), Ok(entries));
        assert_eq!(parse(""), Ok(Entries::new()));
    }

    #[test]
    fn faults_have_lines() {
        for (text, line, word) in [
            ("[tenant.blue]\nadoption = \n", 2, ""),
            ("\n[vnic.web]\nrate = 1.5\n", 2, "fractions"),
            ("[tenant.blue]\n[tenant.blue]\n", 2, "duplicate"),
            ("\nlog_level = \"info\"\n", 2, "none of"),
            ("[vnic]\nlinks = 7\n", 0, "not a table"),
            ("\n[tenant.\"a b\"]\n", 2, "a name"),
            ("[host.h1.shape.x]\n", 0, "none of"),
            ("\n[host.\"a/b\".vnic.x]\n", 2, "a name"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(word), "{error}");
            assert!(line == 0 || error.starts_with(&format!("line {line}: ")), "{error}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            "[ -~\n\t\"\\\\é]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[a-z .\"]{1,6}", inner, 0..4)
                    .prop_map(|table| Value::from(table.into_iter().collect::<Fields>())),
            ]
        })
    }

    proptest! {
        #[test]
        fn written_objects_are_read_again(all in proptest::collection::btree_map(
            (0..3usize, "[a-z.@_-]{1,9}", proptest::option::of("[a-z.]{1,9}")),
            proptest::collection::btree_map("[a-z_]{1,6}", value(), 0..4), 0..8,
        )) {
            let entries: Entries = all.into_iter().map(|((kind, name, host), fields)| {
                let scope = host.map_or(Scope::All, Scope::Host);
                ((ObjectId::new(Kind::ALL[kind], &name), scope), fields.into_iter().collect())
            }).collect();
            prop_assert_eq!(parse(&text(&entries)), Ok(entries));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[\\[\\]a-z.=\"\n ]{0,80}") {
            let _ = parse(&text);
        }
    }
}
