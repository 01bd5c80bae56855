//! Compares docs/reference/environment.md with the environment variables that the code reads.
//!
//! A read names its variable by a literal or by a constant whose name ends in `VARIABLE`; anything
//! else in capitals is a fault, since it could not be compared. Code for tests is compared with a
//! table of its own.

use std::collections::BTreeSet;

/// Calls that read one, up to their argument.
const READS: [&str; 4] = ["env::var(", "env::var_os(", "variable(", "getenv("];
/// What a constant with a name of one looks like.
const CONSTANT: &str = "VARIABLE: &str = \"";
/// What the names of those begin with that are ours.
const OURS: &str = "\"OMNIVERB_";
/// The first lines of the tables: of what is installed, and of tests.
const INSTALLED: &str = "| variable |";
const TESTS: &str = "| variable of tests |";

/// What the code reads.
#[derive(Debug, Default)]
pub(crate) struct Variables {
    installed: BTreeSet<String>,
    tests: BTreeSet<String>,
    faults: Vec<String>,
}

impl Variables {
    /// Adds what a file reads, if it is code of Omniverb's.
    pub(crate) fn add(&mut self, path: &str, text: &str) {
        let folder = path.split('/').next().unwrap_or_default();
        let language = path.rsplit('.').next().unwrap_or_default();
        if !["app", "host", "rnic", "sockets", "support", "tools"].contains(&folder)
            || !["rs", "c", "h"].contains(&language)
        {
            return;
        }
        if path.contains("/tests/") || path.ends_with("/tests.rs") {
            self.tests.extend(ours(text));
            return;
        }
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
        for read in READS {
            for argument in code.split(read).skip(1) {
                match name(argument) {
                    Ok(Some(name)) => drop(self.installed.insert(name)),
                    Ok(None) => {}
                    Err(word) => self.faults.push(format!(
                        "{path}: {word} names an environment variable: call it ..VARIABLE, so that \
                         docs/reference/environment.md is compared with it"
                    )),
                }
            }
        }
        let constants = code.split(CONSTANT).skip(1).filter_map(|rest| rest.split('"').next());
        self.installed.extend(constants.map(str::to_owned));
    }

    /// Where the page and the code differ.
    pub(crate) fn faults(self, document: &str, text: &str) -> Vec<String> {
        let mut faults = self.faults;
        let tests: BTreeSet<String> = self.tests.difference(&self.installed).cloned().collect();
        for (heading, there) in [(INSTALLED, &self.installed), (TESTS, &tests)] {
            let said = crate::document_checks::first_column(text, heading);
            let there = there.iter().map(String::as_str).collect();
            crate::document_checks::same(document, &said, &there, &mut faults);
        }
        faults
    }
}

/// The variable that an argument names: `None` if it is a parameter; the word, if it is a constant
/// of another name than those have.
fn name(argument: &str) -> Result<Option<String>, String> {
    let literal = argument.trim_start().trim_start_matches('c');
    if let Some(rest) = literal.strip_prefix('"') {
        return Ok(rest.split('"').next().map(str::to_owned));
    }
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let path = argument.split(|letter| !is_part(letter)).next().unwrap_or_default();
    let word = path.rsplit(':').next().unwrap_or_default();
    let is_constant = !word.is_empty() && !word.contains(|letter: char| letter.is_lowercase());
    if is_constant && !word.ends_with("VARIABLE") { Err(word.to_owned()) } else { Ok(None) }
}

/// All literals that are nothing but a name of ours.
fn ours(text: &str) -> BTreeSet<String> {
    let is_name = |name: &&str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    };
    let names = text.split(OURS).skip(1).filter_map(|rest| rest.split_once('"')).map(|(n, _)| n);
    names.filter(is_name).map(|name| format!("{}{name}", &OURS[1..])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "| variable |\n|---|\n| `A` | x |\n| `OMNIVERB_B` | y |\n\n\
                        | variable of tests |\n|---|\n| `OMNIVERB_T` | z |\n";

    fn faults(page: &str, code: &str) -> usize {
        let mut variables = Variables::default();
        variables.add("app/x/src/a.rs", code);
        let test = "env::var(\"OMNIVERB_T\"); set(\"OMNIVERB_B\"); \"OMNIVERB_T=1\"";
        variables.add("app/x/tests/a.rs", test);
        variables.add("xtask/src/a.rs", "env::var(\"OTHER\")");
        variables.faults("page", page).len()
    }

    #[test]
    fn the_page_has_what_the_code_reads() {
        let code = "const B_VARIABLE: &str = \"OMNIVERB_B\"; env::var_os(B_VARIABLE); \
                    libc::getenv(c\"A\".as_ptr()); env::var(name)";
        assert_eq!(faults(PAGE, code), 0);
        assert_eq!(faults(PAGE, &format!("{code} own::variable(\"NEW\")")), 1, "not on the page");
        assert_eq!(faults(PAGE, "variable(\"OMNIVERB_B\")"), 1, "A is no longer read");
        assert_eq!(faults(&PAGE.replace("`OMNIVERB_T`", ""), code), 1, "of tests");
        assert_eq!(faults(PAGE, &format!("{code} env::var(x::NAME)")), 1, "a constant not seen");
    }

    #[test]
    fn tests_within_a_file_do_not_count() {
        let code = "env::var(\"A\"); variable(\"OMNIVERB_B\");\n#[cfg(test)]\nmod tests {\n \
                    env::var(\"X\") }";
        assert_eq!(faults(PAGE, code), 0);
    }
}
