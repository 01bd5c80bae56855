//! Finds doc comments that say nothing: one line of at most two words ("Whose.", "The way.").
//!
//! Who has no more to say of a private item says nothing; a public one has a unit, an owner, a
//! limit or an error to tell of.

/// What says enough in two words: terms of the field that spell out a name, units, what a reserved
/// field holds, and what the command line prints as its help.
const ENOUGH: [&str; 18] = [
    "address handles",
    "as json",
    "completion channels",
    "completion moderation",
    "completion queues",
    "event channels",
    "in nanoseconds",
    "memory regions",
    "memory windows",
    "monotonic nanoseconds",
    "protection domains",
    "reliable connection",
    "reliable datagrams",
    "seconds",
    "unreliable connection",
    "unreliable datagram",
    "zero",
    "zeros",
];

/// The thin doc comments of a Rust file, with the numbers of their lines.
pub(crate) fn thin(text: &str) -> Vec<(usize, &str)> {
    let lines: Vec<&str> = text.lines().collect();
    let doc = |at: Option<usize>| documented(lines.get(at?)?);
    (0..lines.len())
        .filter(|at| doc(at.checked_sub(1)).is_none() && doc(Some(at + 1)).is_none())
        .filter_map(|at| Some((at + 1, doc(Some(at))?)))
        .filter(|(_, words)| is_thin(words))
        .collect()
}

/// What a line says as documentation, if that is what it is.
fn documented(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
    (!doc.starts_with('/')).then(|| doc.trim())
}

fn is_thin(words: &str) -> bool {
    let said = words.trim_end_matches('.').to_lowercase();
    let names = |word: &str| {
        let letters: Vec<char> = word.chars().filter(|c| c.is_alphabetic()).collect();
        word.contains(['`', '"']) || letters.len() > 1 && letters.iter().all(|c| c.is_uppercase())
    };
    // The second word of two may say what a name stands for ("`CM_*` bits", "REQ (12.6.5)").
    let named = words.split_whitespace().any(|word| word.contains(['`', '"']))
        || words.split_whitespace().next().is_some_and(names);
    words.split_whitespace().count() <= 2 && !named && !ENOUGH.contains(&said.as_str())
}

#[cfg(test)]
mod tests {
    use super::thin;

    #[test]
    fn comments_that_only_satisfy_the_lint_are_found() {
        let found = |text: &str| thin(text).len();
        assert_eq!(found("/// Whose.\nwhose: u32,"), 1);
        assert_eq!(found("    /// The way.\n    way: Way,\n    /// As above.\n    b: u8,"), 2);
        assert_eq!(found("//! The QP.\n"), 1);
        assert_eq!(thin("struct A;\n/// One link.\nstruct Link;"), [(2, "One link.")]);
    }

    #[test]
    fn names_terms_and_longer_ones_are_left() {
        let found = |text: &str| thin(text).len();
        assert_eq!(found("/// `ibv_alloc_td`.\nfn f() {}\n/// `CM_*` bits.\na: u32"), 0);
        assert_eq!(found("/// REJ (12.6.7).\n/// MRA.\n\n/// CAP_SYS_RESOURCE."), 0);
        assert_eq!(found("/// Reliable connection.\nRc = 2,\n/// See [`f`].\nfn f() {}"), 0);
        assert_eq!(found("/// Bytes, padding included.\nlength: u64"), 0);
        assert_eq!(found("/// Two words\n/// and more.\nfn f() {}"), 0);
        assert_eq!(found("// Not documentation.\n//// Nor this."), 0);
    }
}
