//! One observation, printed.

use crate::failure::Failure;
use crate::top::GLANCE;
use crate::top::row::Layout;
use crate::top::screen::{Screen, counts_misses};
use crate::top::seen::Seen;
use crate::top::subject::Subjects;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Characters in a line where there is no terminal: enough for all columns.
const WIDTH: u16 = 120;

/// Watches for a period, and prints what was seen.
///
/// # Errors
/// Where the host cannot be seen, or nothing can be printed.
pub(crate) fn show(mut subjects: Subjects, period: Duration, json: bool) -> Result<(), Failure> {
    let end = Instant::now() + period;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(GLANCE));
        subjects.glance();
    }
    let seen = subjects.observe()?;
    let mut stdout = std::io::stdout();
    let text = match json {
        true => serde_json::to_string(&seen).map_err(Failure::own)? + "\n",
        false => {
            let width = ratatui::crossterm::terminal::size().ok().filter(|_| stdout.is_terminal());
            table(&seen, &Screen::new(subjects.are_named(), period), width.map_or(WIDTH, |w| w.0))
        }
    };
    stdout.write_all(text.as_bytes()).map_err(|e| Failure::own(format!("cannot print: {e}")))
}

/// The rows of a screen without the screen.
fn table(seen: &Seen, screen: &Screen, width: u16) -> String {
    let layout = Layout::new(width, screen.sort, counts_misses(seen));
    let area = Rect::new(0, 0, width, 1);
    let mut text = format!("{}\n", screen.head(seen));
    let mut add = |draw: &dyn Fn(&mut Buffer)| {
        let mut line = Buffer::empty(area);
        draw(&mut line);
        let symbols: String = line.content().iter().map(|cell| cell.symbol()).collect();
        let _ = writeln!(text, "{}", symbols.trim_end());
    };
    add(&|line| layout.titles(area, screen.sort, line));
    for row in screen.rows(seen) {
        add(&|line| layout.row(area, row.mark, &row.cells, seen.span_s, Style::new(), line));
    }
    let _ = writeln!(text, "{}", screen.foot());
    for note in &seen.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::seen::Program;
    use crate::top::seen::tests::{snapshot, thread};

    #[test]
    fn table_has_a_line_for_each_row() {
        let threads = vec![thread(7, 7, "a 漢", [0.5, 0.0, 0.5, 0.0]), thread(7, 8, "b", [0.0; 4])];
        let seen = Seen {
            span_s: 1.0,
            cpus: 2,
            programs: vec![Program::whole(7, &snapshot(threads).programs[0], 1_000_000_000)],
            notes: vec!["n".into()],
            ..Seen::default()
        };
        let text = table(&seen, &Screen::new(true, Duration::from_secs(1)), WIDTH);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 7, "{text}");
        assert!(lines[0].starts_with("2 CPUs: ? busy, others ?  1 program, 2 threads"));
        assert!(lines[1].contains("MIG/s") && !lines[1].contains("MISS%"));
        assert!(lines[2].contains("▾ p") && lines[3].contains("  a 漢") && lines[3].contains("50.0"));
        assert_eq!(lines[6], "note: n");
        let folded = table(&seen, &Screen::new(false, Duration::from_secs(1)), WIDTH);
        assert_eq!(folded.lines().count(), 5);
    }
}
