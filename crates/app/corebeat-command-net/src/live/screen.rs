//! The screen of the live view, and its one-line form.

use crate::flow::count;
use crate::live::gauge::{Gauge, State};
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

/// Largest width of the bar, and the width of the columns before it, in cells.
const BAR_MAX: usize = 40;
const BEFORE_BAR: usize = 28;

/// The scroll position of the screen.
#[derive(Default)]
pub(crate) struct Screen {
    /// Index of the first stream on the screen.
    first: usize,
}

impl Screen {
    pub(crate) fn key(&mut self, key: KeyCode) {
        match key {
            KeyCode::Down | KeyCode::Char('j') => self.first += 1,
            KeyCode::Up | KeyCode::Char('k') => self.first = self.first.saturating_sub(1),
            KeyCode::PageDown => self.first += 10,
            KeyCode::PageUp => self.first = self.first.saturating_sub(10),
            KeyCode::Home => self.first = 0,
            _ => {}
        }
    }

    pub(crate) fn draw(&mut self, state: &State, ending: bool, frame: &mut Frame) {
        let area = frame.area();
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let mut lines = vec![
            Line::from(flow(state)),
            Line::from(work(state)),
            Line::styled(
                format!(
                    "{:>8}  {:>7}/{:<7}  {:width$}  TO",
                    "STREAM",
                    "FILL",
                    "ROOM",
                    "",
                    width = bar_width(area)
                ),
                bold,
            ),
        ];
        let room = usize::from(area.height).saturating_sub(lines.len() + 1);
        self.first = self.first.min(state.gauges.len().saturating_sub(room));
        let shown = state.gauges.iter().skip(self.first).take(room);
        lines.extend(shown.map(|gauge| row(gauge, bar_width(area))));
        for (line, y) in lines.into_iter().zip(area.y..area.bottom()) {
            frame.render_widget(line, Rect { y, height: 1, ..area });
        }
        if area.height > 3 {
            let foot = match ending {
                true => {
                    "ending: records inside continue to the output; press q again to quit at once"
                        .to_owned()
                }
                false => {
                    let more = state.gauges.len().saturating_sub(self.first + room);
                    let more =
                        if more > 0 { format!("  {more} more below") } else { String::new() };
                    format!("q to stop  Up Down PgUp PgDn{more}")
                }
            };
            frame.render_widget(foot.as_str(), Rect { y: area.bottom() - 1, height: 1, ..area });
        }
    }
}

fn bar_width(area: Rect) -> usize {
    usize::from(area.width).saturating_sub(BEFORE_BAR + 20).min(BAR_MAX)
}

/// The row of one stream, or of a group.
fn row(gauge: &Gauge, width: usize) -> Line<'static> {
    let name = match gauge.streams {
        1 => format!("{}", gauge.stream),
        many => format!("x {many}"),
    };
    let cells = ((gauge.share() * width as f64).round() as usize).min(width);
    let color = match gauge.share() {
        share if share >= 1.0 => Color::Red,
        share if share >= 0.5 => Color::Yellow,
        _ => Color::Green,
    };
    let more = match gauge.streams {
        1 => String::new(),
        _ => format!(", {} full, {} in all", gauge.full, gauge.items),
    };
    let bar = Span::styled("█".repeat(cells), Style::new().fg(color));
    let rest = Span::styled("·".repeat(width - cells), Style::new().fg(Color::DarkGray));
    Line::from(vec![
        Span::raw(format!("{name:>8}  {:>7}/{:<7}  ", gauge.fill, gauge.capacity)),
        bar,
        rest,
        Span::raw(format!("  {}{more}", gauge.reader)),
    ])
}

/// The counts and rates of records.
fn flow(state: &State) -> String {
    let State { net, seconds, given, put, given_per_s, put_per_s, .. } = state;
    format!(
        "net {net}  {seconds:.1} s  in {given} ({given_per_s:.0}/s)  out {put} ({put_per_s:.0}/s)  \
         {}",
        count(state.faults as usize, "fault", "faults"),
    )
}

/// The counts of tasks, and the busiest entity.
fn work(state: &State) -> String {
    let busiest = match &state.busiest {
        Some((name, workers)) => {
            format!("busiest: {name}, {workers:.2} of {} workers", state.workers)
        }
        None => format!("no task ran, {} workers", state.workers),
    };
    format!(
        "{}: {} running, {} ready  {}  {busiest}",
        count(state.tasks as usize, "task", "tasks"),
        state.running,
        state.ready,
        count(state.streams, "stream", "streams"),
    )
}

/// The whole state in one line.
pub(crate) fn line(state: &State) -> String {
    let fullest = match state.gauges.first() {
        Some(gauge) => format!("  fullest: {}/{} to {}", gauge.fill, gauge.capacity, gauge.reader),
        None => String::new(),
    };
    format!("{}  {}{fullest}", flow(state), work(state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn state() -> State {
        let gauge = |stream, fill, streams| Gauge {
            reader: "foo".into(),
            stream,
            streams,
            full: 1,
            fill,
            capacity: 64,
            items: 70,
        };
        State {
            net: "main".into(),
            seconds: 2.0,
            given: 100,
            put: 40,
            given_per_s: 50.0,
            tasks: 7,
            running: 1,
            workers: 2,
            busiest: Some(("foo".into(), 1.5)),
            streams: 1003,
            gauges: vec![gauge(5, 64, 1), gauge(6, 32, 1000), gauge(7, 0, 1), gauge(8, 0, 1)],
            ..State::default()
        }
    }

    fn shown(screen: &mut Screen, state: &State, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(state, false, frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| {
            (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned()
        };
        (0..height).map(line).collect()
    }

    #[test]
    fn screen_shows_flow_work_and_streams() {
        let lines = shown(&mut Screen::default(), &state(), 68, 7);
        assert_eq!(
            lines,
            [
                "net main  2.0 s  in 100 (50/s)  out 40 (0/s)  0 faults",
                "7 tasks: 1 running, 0 ready  1003 streams  busiest: foo, 1.50 of 2 w",
                "  STREAM     FILL/ROOM                           TO",
                "       5       64/64       ████████████████████  foo",
                "  x 1000       32/64       ██████████··········  foo, 1 full, 70 in",
                "       7        0/64       ····················  foo",
                "q to stop  Up Down PgUp PgDn  1 more below",
            ]
        );
    }

    #[test]
    fn screen_scrolls_no_further_than_its_streams() {
        let mut screen = Screen::default();
        (0..9).for_each(|_| screen.key(KeyCode::Down));
        let lines = shown(&mut screen, &state(), 68, 7);
        assert!(lines[5].trim_start().starts_with('8'), "{lines:?}");
        assert!(!lines[6].contains("more below"), "{lines:?}");
    }

    #[test]
    fn screen_of_any_size_is_drawn() {
        for (width, height) in [(0, 0), (1, 1), (3, 2), (20, 4), (300, 100)] {
            shown(&mut Screen::default(), &state(), width, height);
            shown(&mut Screen::default(), &State::default(), width, height);
        }
    }

    #[test]
    fn line_says_it_all() {
        let line = line(&state());
        assert!(line.contains("in 100") && line.ends_with("fullest: 64/64 to foo"), "{line}");
        assert_eq!(line.lines().count(), 1);
    }
}
