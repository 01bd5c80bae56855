//! Checks what README.md says of working and missing verbs, by the symbol tables.
//!
//! A symbol table's `words` have what the README calls a feature, and verbs of it. A feature of
//! which all verbs work is not in the right column, and one of which none does is.

use crate::symbol_tables::{Table, VerbStatus};

/// The heading of the README's table.
const HEADING: &str = "| works | not yet |";

/// What the README says that the table does not.
pub(crate) fn faults(readme: &str, table: &Table) -> Vec<String> {
    let [works, missing] = columns(readme);
    let mut found = Vec::new();
    for (word, verbs) in &table.words {
        let statuses: Vec<Option<VerbStatus>> =
            verbs.iter().map(|verb| table.status(verb)).collect();
        for (verb, _) in verbs.iter().zip(&statuses).filter(|(_, status)| status.is_none()) {
            found.push(format!("symbols.toml: {word}: there is no {verb}"));
        }
        let is_missing = |status: &Option<VerbStatus>| *status == Some(VerbStatus::Unsupported);
        let (all, none) = (statuses.iter().all(is_missing), !statuses.iter().any(is_missing));
        if none && missing.contains(word) {
            found.push(format!("README.md: {word} work, and are said not to"));
        }
        if all && (!missing.contains(word) || works.contains(word)) {
            found.push(format!("README.md does not say that {word} do not work yet"));
        }
    }
    found
}

/// All that is said in each of the two columns.
fn columns(readme: &str) -> [String; 2] {
    let rows = readme.lines().skip_while(|line| *line != HEADING).skip(2);
    let mut columns = [String::new(), String::new()];
    for row in rows.take_while(|line| line.starts_with('|')) {
        for (column, cell) in columns.iter_mut().zip(row.split('|').skip(1)) {
            *column += cell;
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::faults;
    use crate::symbol_tables::Table;

    fn count(works: &str, missing: &str) -> usize {
        let table: Table = toml::from_str(
            r#"
            [nodes.A]
            ibv_window = { status = "works" }
            ibv_flow = { status = "unsupported", returns = "errno" }
            ibv_queue = { status = "partly", note = "some" }
            [words]
            "memory windows" = ["ibv_window"]
            "flow steering" = ["ibv_flow"]
            "queues" = ["ibv_queue", "ibv_flow"]
            "#,
        )
        .unwrap();
        let readme = format!("x\n| works | not yet |\n|---|---|\n| {works} | {missing} |\n\n");
        faults(&readme, &table).len()
    }

    #[test]
    fn what_works_is_not_said_to_be_missing() {
        assert_eq!(count("memory windows", "flow steering, queues"), 0);
        assert_eq!(count("", "raw packets, flow steering"), 0);
        assert_eq!(count("", "memory windows, flow steering"), 1);
        assert_eq!(count("memory windows", ""), 1);
        assert_eq!(count("flow steering", "flow steering"), 1);
    }
}
