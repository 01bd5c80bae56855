//! Formats columns of text.

use omniverb_session::printable;

/// A table under construction.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Table {
        Table { rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    /// A row, whose cells become fit to be shown: names come from others.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| printable::clean(cell)).collect());
    }

    /// All rows, aligned and indented; nothing if there is only the head.
    pub(crate) fn render(&self, indent: &str) -> String {
        if self.rows.len() < 2 {
            return String::new();
        }
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            out += indent;
            out += cells.join("  ").trim_end();
            out.push('\n');
        }
        out
    }
}

/// Bytes, in the largest unit of which there is one.
pub(crate) fn amount(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["a", "long"]);
        assert_eq!(table.render(""), "");
        table.row(vec!["wide".into(), "x".into()]);
        assert_eq!(table.render("> "), "> a     long\n> wide  x\n");
        table.row(vec!["\u{202e}\n".into(), "\x1b[2J".into()]);
        assert!(table.render("").ends_with("\n??    ?[2J\n"));
    }

    #[test]
    fn amounts_have_units() {
        assert_eq!(amount(0), "0 B");
        assert_eq!(amount(1023), "1023 B");
        assert_eq!(amount(1536), "1.5 KiB");
        assert_eq!(amount(u64::MAX), "16384.0 PiB");
    }
}
