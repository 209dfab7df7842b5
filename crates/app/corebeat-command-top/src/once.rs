//! One observation on standard output.

use crate::SAMPLE_NS;
use crate::filter::Filter;
use crate::row::Layout;
use crate::screen::{Screen, absent, legend};
use crate::subject::Subjects;
use crate::view::{Program, View};
use corebeat_command::{Failure, print, printable};
use corebeat_host::{HostClock, Loop, Next, Periods};
use corebeat_linux::LinuxMachine;
use corebeat_machine::Machine;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::Duration;

/// Width of a line in characters without a terminal: enough for all columns.
const WIDTH: u16 = 180;

/// Observes for one period, and prints the result: programs and threads that match the filter.
///
/// # Errors
/// The host cannot be observed, or standard output cannot be written.
pub(crate) fn show(
    machine: LinuxMachine,
    mut subjects: Subjects,
    period: Duration,
    filter: &Filter,
    json: bool,
) -> Result<(), Failure> {
    let periods = Periods { observe_ns: period.as_nanos() as u64, sample_ns: SAMPLE_NS };
    let mut control = Loop::new(machine, HostClock::new(), vec![], periods);
    control.wait(|_, _| Next::Wait)?;
    let snapshot = control.machine().observe()?;
    let mut view = subjects.figures(control.machine(), &snapshot);
    let filtered = |p: &Program| {
        let threads = filter.threads(p)?.into_iter().cloned().collect();
        Some(Program { threads, ..p.clone() })
    };
    view.programs = view.programs.iter().filter_map(filtered).collect();
    let text = match json {
        true => serde_json::to_string(&view).map_err(Failure::internal)? + "\n",
        false => {
            let is_terminal = std::io::stdout().is_terminal();
            let width = ratatui::crossterm::terminal::size().ok().filter(|_| is_terminal);
            table(&view, &Screen::new(subjects.are_named(), period), width.map_or(WIDTH, |w| w.0))
        }
    };
    print(text)
}

/// The rows of a screen as text.
fn table(view: &View, screen: &Screen, width: u16) -> String {
    let layout = Layout::new(width, screen.sort, &absent(view));
    let area = Rect::new(0, 0, width, 1);
    let mut text = format!("{}\n", screen.head(view));
    let mut add = |draw: &dyn Fn(&mut Buffer)| {
        let mut line = Buffer::empty(area);
        draw(&mut line);
        let symbols: String = line.content().iter().map(|cell| cell.symbol()).collect();
        let _ = writeln!(text, "{}", symbols.trim_end());
    };
    add(&|line| layout.titles(area, screen.sort, line));
    for row in screen.rows(view) {
        add(&|line| layout.row(area, row.mark, &row.cells, view.span_s, Style::new(), line));
    }
    let _ = writeln!(text, "{}", legend().to_string().trim_end());
    for note in &view.notes {
        let _ = writeln!(text, "note: {}", printable(note));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::{snapshot, thread};

    #[test]
    fn table_has_a_line_for_each_row() {
        let threads = vec![thread(7, 7, "a 漢", [0.5, 0.0, 0.5, 0.0]), thread(7, 8, "b", [0.0; 4])];
        let view = View {
            span_s: 1.0,
            cpus: 2,
            programs: vec![Program::whole(7, &snapshot(threads).programs[0], 1_000_000_000)],
            notes: vec!["n\u{1b}".into()],
            ..View::default()
        };
        let text = table(&view, &Screen::new(true, Duration::from_secs(1)), WIDTH);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 7, "{text}");
        assert!(lines[0].starts_with("2 CPUs: ? busy, others ?  1 program, 2 threads"));
        assert!(lines[1].contains("MIG/s") && !lines[1].contains("MISS%"));
        assert!(
            lines[2].contains("▾ p") && lines[3].contains("  a 漢") && lines[3].contains("50.0")
        );
        assert_eq!(lines[6], "note: n\\u{1b}");
        let folded = table(&view, &Screen::new(false, Duration::from_secs(1)), WIDTH);
        assert_eq!(folded.lines().count(), 5);
    }
}
