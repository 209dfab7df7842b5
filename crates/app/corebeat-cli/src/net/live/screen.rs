//! The screen, and the line where there is none.

use crate::net::flow::count;
use crate::net::live::gauge::{Gauge, Seen};
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

/// Cells of the bar at most, and of all that stands before it.
const BAR_MAX: usize = 40;
const BEFORE_BAR: usize = 28;

/// What is shown, and how.
#[derive(Default)]
pub(crate) struct Screen {
    /// The first stream on the screen.
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

    pub(crate) fn draw(&mut self, seen: &Seen, ending: bool, frame: &mut Frame) {
        let area = frame.area();
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let mut lines = vec![
            Line::from(flow(seen)),
            Line::from(work(seen)),
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
        self.first = self.first.min(seen.gauges.len().saturating_sub(room));
        let shown = seen.gauges.iter().skip(self.first).take(room);
        lines.extend(shown.map(|gauge| row(gauge, bar_width(area))));
        for (line, y) in lines.into_iter().zip(area.y..area.bottom()) {
            frame.render_widget(line, Rect { y, height: 1, ..area });
        }
        if area.height > 3 {
            let foot = match ending {
                true => "ending: what is in the network comes out; q again leaves at once".to_owned(),
                false => {
                    let more = seen.gauges.len().saturating_sub(self.first + room);
                    let more = if more > 0 { format!("  {more} more below") } else { String::new() };
                    format!("q ends it  Up Down PgUp PgDn{more}")
                }
            };
            frame.render_widget(foot.as_str(), Rect { y: area.bottom() - 1, height: 1, ..area });
        }
    }
}

fn bar_width(area: Rect) -> usize {
    usize::from(area.width).saturating_sub(BEFORE_BAR + 20).min(BAR_MAX)
}

/// One stream, or many.
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

/// What goes through.
fn flow(seen: &Seen) -> String {
    let Seen { net, seconds, given, put, given_per_s, put_per_s, .. } = seen;
    format!(
        "net {net}  {seconds:.1} s  in {given} ({given_per_s:.0}/s)  out {put} ({put_per_s:.0}/s)  {}",
        count(seen.faults as usize, "fault", "faults"),
    )
}

/// Who works.
fn work(seen: &Seen) -> String {
    let busiest = match &seen.busiest {
        Some((name, workers)) => format!("busiest: {name}, {workers:.2} of {} workers", seen.workers),
        None => format!("nobody ran, {} workers", seen.workers),
    };
    format!(
        "{}: {} running, {} ready  {}  {busiest}",
        count(seen.tasks as usize, "task", "tasks"),
        seen.running,
        seen.ready,
        count(seen.streams, "stream", "streams"),
    )
}

/// All in one line.
pub(crate) fn line(seen: &Seen) -> String {
    let fullest = match seen.gauges.first() {
        Some(gauge) => format!("  fullest: {}/{} to {}", gauge.fill, gauge.capacity, gauge.reader),
        None => String::new(),
    };
    format!("{}  {}{fullest}", flow(seen), work(seen))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn seen() -> Seen {
        let gauge = |stream, fill, streams| Gauge {
            reader: "foo".into(),
            stream,
            streams,
            full: 1,
            fill,
            capacity: 64,
            items: 70,
        };
        Seen {
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
            ..Seen::default()
        }
    }

    fn shown(screen: &mut Screen, seen: &Seen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(seen, false, frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    #[test]
    fn screen_shows_flow_work_and_streams() {
        let lines = shown(&mut Screen::default(), &seen(), 68, 7);
        assert_eq!(
            lines,
            [
                "net main  2.0 s  in 100 (50/s)  out 40 (0/s)  0 faults",
                "7 tasks: 1 running, 0 ready  1003 streams  busiest: foo, 1.50 of 2 w",
                "  STREAM     FILL/ROOM                           TO",
                "       5       64/64       ████████████████████  foo",
                "  x 1000       32/64       ██████████··········  foo, 1 full, 70 in",
                "       7        0/64       ····················  foo",
                "q ends it  Up Down PgUp PgDn  1 more below",
            ]
        );
    }

    #[test]
    fn screen_scrolls_no_further_than_its_streams() {
        let mut screen = Screen::default();
        (0..9).for_each(|_| screen.key(KeyCode::Down));
        let lines = shown(&mut screen, &seen(), 68, 7);
        assert!(lines[5].trim_start().starts_with('8'), "{lines:?}");
        assert!(!lines[6].contains("more below"), "{lines:?}");
    }

    #[test]
    fn screen_of_any_size_is_drawn() {
        for (width, height) in [(0, 0), (1, 1), (3, 2), (20, 4), (300, 100)] {
            shown(&mut Screen::default(), &seen(), width, height);
            shown(&mut Screen::default(), &Seen::default(), width, height);
        }
    }

    #[test]
    fn line_says_it_all() {
        let line = line(&seen());
        assert!(line.contains("in 100") && line.ends_with("fullest: 64/64 to foo"), "{line}");
        assert_eq!(line.lines().count(), 1);
    }
}
