//! Shows rates of vNICs on a terminal until `q` is pressed.

use super::columns::{COLUMNS, HEADERS, cells, next_order, sample, short_rate};
use super::vnic_rates::{Rates, Row as VnicRow, Sample};
use crate::operator_connection::Operator;
use omniverb_arguments::TopOrder;
use omniverb_session::printable;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Row, Table, TableState};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Widths of the columns behind the first, which takes what is left.
const WIDTHS: [u16; COLUMNS - 1] = [8, 8, 10, 9, 4, 7, 9, 10, 9, 8, 6, 9];
/// What the column of names has at least; columns that leave it less are not shown.
const NAME_WIDTH: u16 = 16;
/// A vNIC that uses so many thousandths of its limit is held back by it.
const HELD_BACK: u64 = 950;
const HELP: &str = "q quit   s sort   up/down/page scroll";

/// The contents of the screen.
struct View {
    rates: Rates,
    order: TopOrder,
    table: TableState,
    /// Why there is nothing newer.
    problem: Option<String>,
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Quit,
    Sort,
    /// Down by so many rows.
    Scroll(i16),
    None,
}

pub(super) fn show(
    operator: Operator,
    delay: Duration,
    iterations: Option<u64>,
    order: TopOrder,
) -> anyhow::Result<ExitCode> {
    let first = sample(&operator)?;
    let mut terminal = ratatui::try_init()?;
    let view = View::new(Rates::new(&first, &first, order), order);
    let shown = run(view, operator, first, delay, iterations, &mut terminal);
    ratatui::try_restore()?;
    shown.map(|()| ExitCode::SUCCESS)
}

fn run(
    mut view: View,
    mut operator: Operator,
    mut before: Sample,
    delay: Duration,
    iterations: Option<u64>,
    terminal: &mut ratatui::DefaultTerminal,
) -> anyhow::Result<()> {
    let mut due = Instant::now() + delay;
    let mut shown = 0;
    while iterations.is_none_or(|iterations| shown < iterations) {
        terminal.draw(|frame| view.draw(frame))?;
        if event::poll(due.saturating_duration_since(Instant::now()))? {
            if let Event::Key(key) = event::read()? {
                match action(key) {
                    Action::Quit => return Ok(()),
                    other => view.act(other),
                }
            }
            continue;
        }
        match sample(&operator) {
            Ok(mut now) => {
                now.correct(&before);
                view.rates = Rates::new(&before, &now, view.order);
                (before, view.problem) = (now, None);
                shown += 1;
            }
            Err(error) => {
                view.problem = Some(format!("{error:#}"));
                // The next daemon may be there already.
                if let Ok(next) = Operator::connect() {
                    operator = next;
                }
            }
        }
        due = Instant::now() + delay;
    }
    Ok(())
}

fn action(key: KeyEvent) -> Action {
    match (key.kind, key.code) {
        (KeyEventKind::Release, _) => Action::None,
        (_, KeyCode::Char('c')) if key.modifiers.contains(KeyModifiers::CONTROL) => Action::Quit,
        (_, KeyCode::Char('q') | KeyCode::Esc) => Action::Quit,
        (_, KeyCode::Char('s')) => Action::Sort,
        (_, KeyCode::Up | KeyCode::Char('k')) => Action::Scroll(-1),
        (_, KeyCode::Down | KeyCode::Char('j')) => Action::Scroll(1),
        (_, KeyCode::PageUp) => Action::Scroll(-20),
        (_, KeyCode::PageDown) => Action::Scroll(20),
        _ => Action::None,
    }
}

impl View {
    fn new(rates: Rates, order: TopOrder) -> View {
        View { rates, order, table: TableState::default(), problem: None }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Sort => {
                self.order = next_order(self.order);
                self.rates.sort(self.order);
            }
            Action::Scroll(rows) => {
                let last = self.rates.rows.len().saturating_sub(1);
                let at = self.table.selected().unwrap_or(0);
                let at = at.saturating_add_signed(rows.into()).min(last);
                self.table.select(Some(at));
            }
            Action::Quit | Action::None => {}
        }
    }

    /// The line above the table.
    fn summary(&self) -> String {
        let rates = &self.rates;
        match &self.problem {
            Some(problem) => printable::clean(problem),
            None => format!(
                "{} vNICs  sent {}/s  received {}/s  {} drops/s  by {}",
                rates.rows.len(),
                short_rate(rates.sum(|row| row.sent)),
                short_rate(rates.sum(|row| row.received)),
                rates.sum(|row| row.dropped),
                match self.order {
                    TopOrder::Rate => "rate",
                    TopOrder::Limit => "use of the limit",
                    TopOrder::Drops => "drops",
                    TopOrder::Name => "name",
                },
            ),
        }
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let rows = [Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)];
        let [top, middle, bottom] = Layout::vertical(rows).areas(frame.area());
        let style = match self.problem {
            Some(_) => Style::new().fg(Color::Red),
            None => Style::new().add_modifier(Modifier::BOLD),
        };
        frame.render_widget(Line::styled(self.summary(), style), top);
        let widths = widths(middle);
        let columns = widths.len();
        let header = HEADERS.into_iter().take(columns);
        let header = Row::new(header).style(Style::new().add_modifier(Modifier::REVERSED));
        let rows = self.rates.rows.iter().map(|row| {
            let cells = cells(row).into_iter().take(columns);
            Row::new(cells.map(|cell| printable::clean(&cell))).style(style_of(row))
        });
        let table = Table::new(rows, widths)
            .header(header)
            .row_highlight_style(Style::new().add_modifier(Modifier::UNDERLINED));
        frame.render_stateful_widget(table, middle, &mut self.table);
        frame.render_widget(Line::raw(HELP), bottom);
    }
}

fn style_of(row: &VnicRow) -> Style {
    match row.use_of_limit() {
        _ if row.dropped > 0 => Style::new().fg(Color::Red),
        Some(part) if part >= HELD_BACK => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    }
}

/// Widths of as many columns as there is room for, with a space between.
fn widths(area: Rect) -> Vec<Constraint> {
    let mut left = area.width.saturating_sub(NAME_WIDTH);
    let fitting = WIDTHS.iter().take_while(|width| {
        let needed = **width + 1;
        let fits = left >= needed;
        left = left.saturating_sub(needed);
        fits
    });
    let fitting = fitting.map(|width| Constraint::Length(*width));
    std::iter::once(Constraint::Fill(1)).chain(fitting).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn rows(count: usize) -> Rates {
        let row = |number: usize| VnicRow {
            name: format!("vnic-{number:04}-k7mw"),
            tenant: "blue".into(),
            sent: 7_900_000,
            received: 123,
            limit: Some(8_000_000),
            dropped: 17,
            operations: 4711,
            operations_limit: Some(150_000),
            path: "forwarded".into(),
            ..VnicRow::default()
        };
        Rates { rows: (0..count).map(row).collect(), ..Rates::default() }
    }

    fn screen(view: &mut View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn keys_have_actions() {
        let key = |code, modifiers| action(KeyEvent::new(code, modifiers));
        for (code, wanted) in [
            (KeyCode::Char('q'), Action::Quit),
            (KeyCode::Esc, Action::Quit),
            (KeyCode::Char('s'), Action::Sort),
            (KeyCode::Down, Action::Scroll(1)),
            (KeyCode::PageUp, Action::Scroll(-20)),
            (KeyCode::Char('c'), Action::None),
        ] {
            assert_eq!(key(code, KeyModifiers::NONE), wanted);
        }
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Action::Quit);
    }

    #[test]
    fn a_screen_of_80_columns_has_the_most_important_ones_whole() {
        let mut view = View::new(rows(1), TopOrder::Rate);
        let text = screen(&mut view, 80, 24);
        for word in [
            "1 vNICs",
            "sent 7.90mbit/s",
            "17 drops/s",
            "vnic-0000-k7mw",
            "blue",
            "7.90mbit",
            "123bit",
            "8mbit",
            " 98 ",
            "forwarded",
            "q quit",
            "RECEIVED/s",
        ] {
            assert!(text.contains(word), "{word}\n{text}");
        }
        assert!(!text.contains(" OPS/s") && !text.contains("4711"), "{text}");
        let text = screen(&mut view, 132, 24);
        for word in [" OPS/s", "4711", "OPS-LIMIT", "150k/s", "RESENT/s", "QPs", "PROCESSES"] {
            assert!(text.contains(word), "{word}\n{text}");
        }
        // Any size is drawn.
        for (width, height) in [(1, 1), (20, 3), (300, 2)] {
            screen(&mut view, width, height);
        }
    }

    #[test]
    fn rows_scroll_and_stay_within_the_table() {
        let mut view = View::new(rows(100), TopOrder::Rate);
        assert!(!screen(&mut view, 80, 24).contains("vnic-0099"));
        (0..9).for_each(|_| view.act(Action::Scroll(20)));
        assert!(screen(&mut view, 80, 24).contains("vnic-0099"));
        (0..9).for_each(|_| view.act(Action::Scroll(-20)));
        assert!(screen(&mut view, 80, 24).contains("vnic-0000"));
        View::new(Rates::default(), TopOrder::Rate).act(Action::Scroll(1));
    }

    #[test]
    fn names_cannot_command_the_terminal_and_problems_are_shown() {
        let mut rates = rows(1);
        rates.rows[0].name = "a\u{1b}[31m".into();
        let mut view = View::new(rates, TopOrder::Rate);
        assert!(!screen(&mut view, 80, 24).contains('\u{1b}'));
        view.act(Action::Sort);
        assert!(screen(&mut view, 80, 24).contains("by use of the limit"));
        view.problem = Some("the daemon does not answer".into());
        assert!(screen(&mut view, 80, 24).contains("does not answer"));
    }
}
