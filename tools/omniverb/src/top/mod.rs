//! Implements `omniverb top`: shows vNICs by what they send, again and again.
//!
//! In: the daemon's status, by the operators' socket. Out: a screen (`screen.rs`), or tables or
//! JSON for scripts.

mod columns;
mod screen;
mod vnic_rates;

use crate::operator_connection::Operator;
use crate::stdout;
use crate::text_table::Table;
use anyhow::bail;
use columns::{HEADERS, cells, sample};
use omniverb_arguments::TopOptions;
use std::io::{IsTerminal, stdin, stdout};
use std::process::ExitCode;
use std::time::Duration;
use vnic_rates::Rates;

/// The shortest time between two samples, in seconds.
const DELAY_MIN: f64 = 0.1;
/// The longest one: a day.
const DELAY_MAX: f64 = 86400.0;

pub(crate) fn top(options: &TopOptions) -> anyhow::Result<ExitCode> {
    let delay = options.delay;
    if !(DELAY_MIN..=DELAY_MAX).contains(&delay) {
        bail!("--delay is {delay} s: use {DELAY_MIN} to {DELAY_MAX}");
    }
    let delay = Duration::from_secs_f64(delay);
    let has_terminal = stdin().is_terminal() && stdout().is_terminal();
    let is_batch = options.batch || options.once || options.json || !has_terminal;
    let operator = Operator::connect()?;
    match is_batch {
        true => batch(&operator, delay, options),
        false => screen::show(operator, delay, options.iterations, options.sort),
    }
}

/// Prints a table, or a line of JSON, after each delay.
fn batch(operator: &Operator, delay: Duration, options: &TopOptions) -> anyhow::Result<ExitCode> {
    let count = if options.once { Some(1) } else { options.iterations };
    let mut before = sample(operator)?;
    let mut shown = 0;
    while count.is_none_or(|count| shown < count) {
        std::thread::sleep(delay);
        let mut now = sample(operator)?;
        now.correct(&before);
        let rates = Rates::new(&before, &now, options.sort);
        let text = match options.json {
            true => format!("{}\n", rates.json()),
            false => format!("{}{}", if shown == 0 { "" } else { "\n" }, table(&rates)),
        };
        if stdout::write_until_closed(&text)? == stdout::Reader::Gone {
            break;
        }
        (before, shown) = (now, shown + 1);
    }
    Ok(ExitCode::SUCCESS)
}

/// All rates as a table.
fn table(rates: &Rates) -> String {
    let mut table = Table::new(&HEADERS);
    rates.rows.iter().for_each(|row| table.row(cells(row).to_vec()));
    let text = table.render("");
    if text.is_empty() { "no vNIC has processes or was given anything\n".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::columns::{next_order, short_rate};
    use super::vnic_rates::Row;
    use super::*;
    use omniverb_arguments::TopOrder;

    #[test]
    fn measured_rates_have_three_digits() {
        for (bits, text) in [
            (0, "0bit"),
            (999, "999bit"),
            (1000, "1.00kbit"),
            (2_034_999, "2.03mbit"),
            (45_678_000_000, "45.6gbit"),
            (456_000_000_000, "456gbit"),
            (7_000_000_000_000, "7.00tbit"),
        ] {
            assert_eq!(short_rate(bits), text);
        }
    }

    #[test]
    fn a_table_has_a_line_for_each_vnic() {
        assert!(table(&Rates::default()).contains("no vNIC"));
        let row = Row {
            name: "web".into(),
            sent: 4_000_000,
            limit: Some(8_000_000),
            path: "wire".into(),
            ..Row::default()
        };
        let text = table(&Rates { rows: vec![row], ..Rates::default() });
        let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words[..6], ["web", "4.00mbit", "0bit", "8mbit", "50", "0"]);
    }

    #[test]
    fn orders_come_round() {
        let mut order = TopOrder::Rate;
        let all: Vec<TopOrder> = (0..4)
            .map(|_| {
                order = next_order(order);
                order
            })
            .collect();
        assert_eq!(all, [TopOrder::Limit, TopOrder::Drops, TopOrder::Name, TopOrder::Rate]);
    }
}
