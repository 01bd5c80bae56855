//! Makes names from elsewhere fit to be shown.
//!
//! What a process calls itself ends up in a log, in a table, on a terminal. There a character that
//! is none (a control character, an escape) commands the terminal, one that cannot be seen makes
//! two names look the same, and one that turns the direction of writing makes a line read as
//! another. All of them become `?`.

/// Ranges of characters that are not shown as themselves: format and control characters (Unicode's
/// Cc, Cf, Zl, Zp), variation selectors, tags, fillers. Private use and what is not assigned stays.
const INVISIBLE: [(char, char); 36] = [
    ('\u{0}', '\u{1f}'),
    ('\u{7f}', '\u{9f}'),
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{600}', '\u{605}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{6dd}', '\u{6dd}'),
    ('\u{70f}', '\u{70f}'),
    ('\u{890}', '\u{891}'),
    ('\u{8e2}', '\u{8e2}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    // Zero-width, left-to-right and right-to-left marks.
    ('\u{200b}', '\u{200f}'),
    // Line and paragraph separators, embeddings and overrides of direction.
    ('\u{2028}', '\u{202e}'),
    // Word joiner, invisible operators, isolates of direction.
    ('\u{2060}', '\u{206f}'),
    ('\u{2800}', '\u{2800}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fffb}'),
    ('\u{110bd}', '\u{110bd}'),
    ('\u{110cd}', '\u{110cd}'),
    ('\u{13430}', '\u{1345f}'),
    ('\u{16fe4}', '\u{16fe4}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d159}', '\u{1d159}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e0fff}'),
    // Spaces that are none, or are not what they look like.
    ('\u{a0}', '\u{a0}'),
    ('\u{1680}', '\u{1680}'),
    ('\u{2000}', '\u{200a}'),
    ('\u{202f}', '\u{202f}'),
    ('\u{205f}', '\u{205f}'),
    ('\u{3000}', '\u{3000}'),
];

/// True for a character that shows as itself.
#[must_use]
pub fn is_shown(c: char) -> bool {
    !INVISIBLE.iter().any(|(first, last)| (*first..=*last).contains(&c))
}

/// A text with `?` for every character that does not show as itself.
#[must_use]
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if is_shown(c) { c } else { '?' }).collect()
}

/// The same, of several lines.
#[must_use]
pub fn clean_lines(text: &str) -> String {
    text.chars().map(|c| if c == '\n' || is_shown(c) { c } else { '?' }).collect()
}

/// A name in a message: cut at the NUL, and clean.
#[must_use]
pub fn name(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    clean(&String::from_utf8_lossy(&bytes[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_seen() {
        for c in
            ['\u{200e}', '\u{200f}', '\u{61c}', '\u{200b}', '\u{feff}', '\u{2060}', '\u{e0041}']
        {
            assert_eq!(clean(&format!("a{c}b")), "a?b", "{c:?}");
        }
        for c in ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}') {
            assert!(!is_shown(c), "{c:?}");
        }
        for c in ('\0'..=' ').chain('\u{7f}'..='\u{9f}').filter(|c| *c != ' ') {
            assert!(!is_shown(c), "{c:?}");
        }
        let fair = "ib_write_bw Grüße 日本語 \u{1f600} א";
        assert_eq!(clean(fair), fair);
        assert_eq!(clean("a\nb"), "a?b");
        assert_eq!(clean_lines("a\nb\r\x1b[2J"), "a\nb??[2J");
    }

    #[test]
    fn names_end_where_they_end() {
        assert_eq!(name(b"ib\x1b[1m\0rest"), "ib?[1m");
        assert_eq!(name(b"full"), "full");
        assert_eq!(name(b"\xff\0"), "\u{fffd}");
    }
}
