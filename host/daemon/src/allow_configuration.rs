//! Reads the `[allow]` table: the processes that may use the tenants' socket.
//!
//! Users and groups are numbers, or names of `/etc/passwd` and `/etc/group`.

use omniverb_control::Allow;
use omniverb_sys::user_and_group_check::UsersAndGroups;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// The table, with names looked up.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, try_from = "Written")]
pub(crate) struct AllowTable(Allow);

impl AllowTable {
    /// The processes that it allows.
    pub(crate) fn allow(&self) -> Allow {
        self.0.clone()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Written {
    #[serde(deserialize_with = "users")]
    users: Vec<u32>,
    #[serde(deserialize_with = "groups")]
    groups: Vec<u32>,
    #[serde(deserialize_with = "cgroups")]
    cgroups: Vec<String>,
}

impl TryFrom<Written> for AllowTable {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<AllowTable, &'static str> {
        let Written { users, groups, cgroups } = written;
        if users.is_empty() && groups.is_empty() && cgroups.is_empty() {
            return Err("[allow] names no user or group; without it, all processes are allowed");
        }
        Ok(AllowTable(Allow { people: UsersAndGroups { users, groups }, cgroups }))
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    Number(u32),
    Name(String),
}

fn users<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u32>, D::Error> {
    numbers(from, "user", "/etc/passwd")
}

fn groups<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u32>, D::Error> {
    numbers(from, "group", "/etc/group")
}

fn numbers<'de, D: Deserializer<'de>>(
    from: D,
    what: &str,
    file: &str,
) -> Result<Vec<u32>, D::Error> {
    let number = |entry| match entry {
        Entry::Number(number) => Ok(number),
        Entry::Name(name) => {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            named(&text, &name)
                .ok_or_else(|| D::Error::custom(format!("{file} has no {what} {name:?}")))
        }
    };
    Vec::<Entry>::deserialize(from)?.into_iter().map(number).collect()
}

/// The third field of the line that begins with a name.
fn named(text: &str, name: &str) -> Option<u32> {
    let mut lines = text.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| {
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

fn cgroups<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let paths = Vec::<String>::deserialize(from)?;
    match paths.iter().find(|path| !path.starts_with('/') || path.contains("..")) {
        Some(path) => Err(D::Error::custom(format!("{path:?} is no path of a cgroup"))),
        None => Ok(paths),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_names_are_resolved_by_the_user_file() {
        let text = "root:x:0:0:root:/root:/bin/sh\nrdma:x:114:\nbroken\nodd:x:y:\n";
        assert_eq!((named(text, "root"), named(text, "rdma")), (Some(0), Some(114)));
        assert_eq!(
            (named(text, "broken"), named(text, "odd"), named(text, "ro")),
            (None, None, None)
        );
    }
}
