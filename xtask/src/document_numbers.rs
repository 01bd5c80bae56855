//! Checks numbers in documents that are constants in the code.
//!
//! Behind such a number stands, unseen when it is shown, which one: `256 MiB <!-- extent_bytes
//! -->`, or with the file where several have that name: `5 s <!--
//! device_import/connection_to_exporter.rs ANSWER_MAX -->`.

use crate::code_constants::{Constants, Value};

/// The numbers of a document that are not those of the code.
pub(crate) fn faults(document: &str, text: &str, constants: &Constants) -> Vec<String> {
    let mut found = Vec::new();
    let mut after = 0;
    for (at, _) in text.match_indices("<!-- ") {
        let Some(length) = text[at..].find(" -->") else { continue };
        let what = &text[at + 5..at + length];
        let said = StatedNumber::at_the_end_of(&text[after..at]);
        let wrong = match (said, constants.value(what)) {
            (_, Err(error)) => Some(format!("{error:#}")),
            (None, _) => Some(format!("no number stands before {what}")),
            (Some(said), Ok(value)) if said.is(value) => None,
            (Some(said), Ok(value)) => Some(format!("{what} is {value:?}, not {}", said.text)),
        };
        let line = text[..at].lines().count();
        found.extend(wrong.map(|wrong| format!("{document}:{line}: {wrong}")));
        after = at + length + 4;
    }
    found
}

/// A number in prose.
struct StatedNumber {
    text: String,
    /// A hundred times the number, without its unit.
    hundredths: i128,
    unit: NumberUnit,
}

#[derive(Clone, Copy)]
enum NumberUnit {
    /// So many of what is counted; bytes are counted by their multiples.
    Of(i128),
    /// So many nanoseconds.
    Time(i128),
}

impl StatedNumber {
    /// The number, with its unit if it has one, that ends a text.
    fn at_the_end_of(text: &str) -> Option<StatedNumber> {
        let mut words = text.split_whitespace().rev();
        let last = words.next()?;
        let (number, unit) = match unit(last) {
            Some(unit) => (words.next()?, unit),
            None => (last, NumberUnit::Of(1)),
        };
        // "half a second".
        let number = match number {
            "a" | "an" => words.next().filter(|word| *word == "half").unwrap_or(number),
            _ => number,
        };
        let hundredths = hundredths(number)?;
        Some(StatedNumber { text: format!("{number} {last}"), hundredths, unit })
    }

    /// Whether a constant says the same. Times may be numbers, of whichever unit.
    fn is(&self, value: Value) -> bool {
        match (self.unit, value) {
            (NumberUnit::Of(unit), Value::Number(value)) => self.hundredths * unit == value * 100,
            (NumberUnit::Time(unit), Value::Duration(value)) => {
                self.hundredths * unit == value * 100
            }
            (NumberUnit::Time(unit), Value::Number(value)) => [1, 1_000, 1_000_000, 1_000_000_000]
                .iter()
                .any(|scale| self.hundredths * unit == value * scale * 100),
            (NumberUnit::Of(_), Value::Duration(_)) => false,
        }
    }
}

fn unit(word: &str) -> Option<NumberUnit> {
    Some(match word {
        "KiB" => NumberUnit::Of(1 << 10),
        "MiB" => NumberUnit::Of(1 << 20),
        "GiB" => NumberUnit::Of(1 << 30),
        "bytes" => NumberUnit::Of(1),
        "us" | "microseconds" => NumberUnit::Time(1_000),
        "ms" | "millisecond" | "milliseconds" => NumberUnit::Time(1_000_000),
        "s" | "second" | "seconds" => NumberUnit::Time(1_000_000_000),
        "minute" | "minutes" => NumberUnit::Time(60_000_000_000),
        _ => return None,
    })
}

fn hundredths(word: &str) -> Option<i128> {
    const WORDS: [&str; 12] = [
        "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
        "twelve",
    ];
    let word = word.trim_start_matches('(').to_lowercase();
    let named = |number: usize| i128::try_from(number).ok().map(|number| number * 100);
    match word.as_str() {
        "a" | "an" => return Some(100),
        "half" => return Some(50),
        "twenty" => return Some(2_000),
        "sixty" => return Some(6_000),
        "hundred" => return Some(10_000),
        _ => {}
    }
    if let Some(at) = WORDS.iter().position(|one| *one == word) {
        return named(at + 1);
    }
    let (whole, part) = word.split_once('.').unwrap_or((&word, ""));
    let whole: i128 = whole.replace(',', "").parse().ok()?;
    let part: i128 =
        if part.len() <= 2 { format!("{part:0<2}").parse().ok()? } else { return None };
    Some(whole * 100 + part)
}

#[cfg(test)]
mod tests {
    use super::faults;
    use crate::code_constants::Constants;

    fn count(text: &str) -> usize {
        let mut constants = Constants::default();
        let code = "const KEYS: u32 = 64; const PART: u64 = 256 << 20; const LATE_MS: u64 = 1500; \
                    const WAIT: Duration = Duration::from_micros(500_000);";
        constants.add("a/limits.rs", code).unwrap();
        faults("x.md", text, &constants).len()
    }

    #[test]
    fn what_is_said_right_is_right() {
        assert_eq!(count("at most 64 <!-- KEYS --> keys,\n64\n<!-- limits.rs KEYS --> of them"), 0);
        assert_eq!(count("parts of 256 MiB <!-- PART -->, or 0.25 GiB <!-- PART -->"), 0);
        assert_eq!(
            count("for half a second <!-- WAIT -->, 1.5 s <!-- LATE_MS -->, 500 ms <!-- WAIT -->"),
            0
        );
        assert_eq!(count("268,435,456 <!-- PART --> bytes"), 0);
    }

    #[test]
    fn what_is_said_wrong_is_found() {
        assert_eq!(count("at most 63 <!-- KEYS --> keys"), 1);
        assert_eq!(count("parts of 256 KiB <!-- PART -->"), 1);
        assert_eq!(count("a second <!-- WAIT --> or 64 ms <!-- KEYS -->"), 1);
        assert_eq!(count("many <!-- KEYS -->, 64 <!-- KEYES -->"), 2);
    }
}
