//! Compares docs/budgets.md with the budgets of the code: constants whose documentation begins with
//! `Budget:`. Every budget has its number on the page, and every constant there is a budget.

use crate::code_constants::Constants;
use crate::document_checks::has_words;

/// What the page lacks, and what it has that is no budget.
pub(crate) fn faults(document: &str, text: &str, constants: &Constants) -> Vec<String> {
    let comments: Vec<&str> =
        text.split("<!-- ").skip(1).filter_map(|rest| Some(rest.split_once(" -->")?.0)).collect();
    let names_it = |comment: &str, path: &str, name: &str| {
        let (file, expression) = match comment.split_once(".rs ") {
            Some((file, expression)) => (Some(format!("{file}.rs")), expression),
            None => (None, comment),
        };
        let is_in_file =
            file.is_none_or(|file| path == file || path.ends_with(&format!("/{file}")));
        is_in_file && has_words(expression, name)
    };
    let mut found: Vec<String> = constants
        .budgets()
        .filter(|(path, name)| !comments.iter().any(|comment| names_it(comment, path, name)))
        .map(|(path, name)| format!("{document}: {name} of {path} is a budget and is not there"))
        .collect();
    let is_no_budget =
        |comment: &&&str| !constants.budgets().any(|(path, name)| names_it(comment, path, name));
    found.extend(comments.iter().filter(is_no_budget).map(|comment| {
        format!("{document}: {comment}: the documentation of no such constant begins with Budget:")
    }));
    found
}

#[cfg(test)]
mod tests {
    use super::faults;
    use crate::code_constants::Constants;

    #[test]
    fn the_page_has_what_the_code_has() {
        let mut constants = Constants::default();
        let text = "/// Budget: for each peer.\nconst A: u32 = 1; /// A number.\nconst B: u32 = 2;";
        constants.add("host/x/src/a.rs", text).unwrap();
        let count = |text: &str| faults("budgets.md", text, &constants).len();
        assert_eq!(count("1 <!-- A -->"), 0);
        assert_eq!(count("1 <!-- src/a.rs A / 1 -->"), 0);
        assert_eq!(count(""), 1, "A is not there");
        assert_eq!(count("1 <!-- b.rs A -->"), 2, "another file's");
        assert_eq!(count("1 <!-- A --> and 2 <!-- B -->"), 1, "B is no budget");
    }
}
