//! The screen: which rows are there, what keys do, and how it is drawn.

use crate::top::PERIOD_MS;
use crate::top::column::{Cells, Column};
use crate::top::row::{Layout, Mark, Sort};
use crate::top::seen::{Seen, Thread};
use crate::top::stack::Part;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};
use std::collections::HashSet;
use std::time::Duration;

/// What keys do, for the help.
const KEYS: [(&str, &str); 11] = [
    ("q Esc Ctrl-C", "quit"),
    ("Up Down j k", "select a row; PgUp PgDn Home End too"),
    ("Space Enter", "fold or unfold a program's threads"),
    ("a", "fold or unfold all"),
    ("s S", "sort by the next, the previous column"),
    ("r", "the other way round"),
    ("i", "show idle processes too"),
    ("p", "pause"),
    ("+ -", "longer, shorter period"),
    ("Ctrl-Z", "stop; fg goes on"),
    ("?", "this help"),
];

/// A row, whatever place it is in: the program's process, and the thread if it is one's.
type Key = (i32, Option<i32>);

/// A row to be shown.
pub(crate) struct Row<'a> {
    key: Key,
    pub(crate) mark: Mark,
    pub(crate) cells: Cells<'a>,
}

/// What is shown, and how.
#[derive(Debug)]
pub(crate) struct Screen {
    pub(crate) sort: Sort,
    pub(crate) period: Duration,
    pub(crate) paused: bool,
    /// Whether programs were named: then all are shown, and unfolded.
    named: bool,
    unfolded: bool,
    /// Programs that are not folded as all are.
    others: HashSet<i32>,
    idle: bool,
    help: bool,
    /// The selected row, and the place where it was.
    selected: Option<(Key, usize)>,
    /// The first row on the screen, and how many there was room for.
    first: usize,
    page: usize,
}

/// What a key asks of who runs the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Quit,
    /// To be stopped, as by Ctrl-Z.
    Stop,
}

impl Screen {
    pub(crate) fn new(named: bool, period: Duration) -> Self {
        Screen {
            sort: Sort { column: Column::Cpu, reversed: false },
            period,
            paused: false,
            named,
            unfolded: named,
            others: HashSet::new(),
            idle: named,
            help: false,
            selected: None,
            first: 0,
            page: 1,
        }
    }

    fn is_unfolded(&self, pid: i32) -> bool {
        self.unfolded != self.others.contains(&pid)
    }

    /// All rows in their order.
    pub(crate) fn rows<'a>(&self, seen: &'a Seen) -> Vec<Row<'a>> {
        let Sort { column, reversed } = self.sort;
        let order = |a: &Row, b: &Row| column.order(&a.cells, &b.cells, seen.span_s, reversed);
        let shown = seen.programs.iter().filter(|p| self.idle || p.is_active());
        let mut programs: Vec<_> = shown
            .map(|p| {
                let unfolded = self.is_unfolded(p.pid);
                let mark = if unfolded { Mark::Unfolded } else { Mark::Folded };
                let head = Row { key: (p.pid, None), mark, cells: p.into() };
                let threads = p.threads.iter().filter(|_| unfolded);
                let thread =
                    |t: &'a Thread| Row { key: (p.pid, Some(t.tid)), mark: Mark::Thread, cells: t.into() };
                let mut threads: Vec<Row> = threads.map(thread).collect();
                threads.sort_by(order);
                (head, threads)
            })
            .collect();
        programs.sort_by(|a, b| order(&a.0, &b.0));
        programs.into_iter().flat_map(|(head, threads)| std::iter::once(head).chain(threads)).collect()
    }

    /// Does what a key stands for.
    pub(crate) fn key(&mut self, key: KeyEvent, seen: &Seen) -> Option<Wish> {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return Some(Wish::Quit),
            KeyCode::Char('z') if control => return Some(Wish::Stop),
            _ if control => {}
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Char('q') | KeyCode::Esc if self.help => self.help = false,
            KeyCode::Char('q') | KeyCode::Esc => return Some(Wish::Quit),
            KeyCode::Char('s') => self.sort_by_next(1),
            KeyCode::Char('S') => self.sort_by_next(Column::SORTS.len() - 1),
            KeyCode::Char('r') => self.sort.reversed = !self.sort.reversed,
            KeyCode::Char('i') => self.idle = !self.idle,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('+' | '=') => self.set_period(self.period * 2),
            KeyCode::Char('-') => self.set_period(self.period / 2),
            KeyCode::Char('a') => {
                self.unfolded = !self.unfolded;
                self.others.clear();
            }
            KeyCode::Char(' ') | KeyCode::Enter => self.fold(seen),
            KeyCode::Up | KeyCode::Char('k') => self.select(seen, |at, _| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(seen, |at, _| at + 1),
            KeyCode::PageUp => self.select(seen, |at, page| at.saturating_sub(page)),
            KeyCode::PageDown => self.select(seen, |at, page| at + page),
            KeyCode::Home => self.select(seen, |_, _| 0),
            KeyCode::End => self.select(seen, |_, _| usize::MAX),
            _ => {}
        }
        None
    }

    fn sort_by_next(&mut self, step: usize) {
        let at = Column::SORTS.iter().position(|&c| c == self.sort.column).unwrap_or(0);
        self.sort = Sort { column: Column::SORTS[(at + step) % Column::SORTS.len()], reversed: false };
    }

    fn set_period(&mut self, period: Duration) {
        let (min, max) = (*PERIOD_MS.start(), *PERIOD_MS.end());
        self.period = period.clamp(Duration::from_millis(min), Duration::from_millis(max));
    }

    /// Moves the selection from one row to another. The first key selects the first row.
    fn select(&mut self, seen: &Seen, to: impl Fn(usize, usize) -> usize) {
        let rows = self.rows(seen);
        let last = rows.len().saturating_sub(1);
        let at = match self.place(&rows) {
            Some(at) => to(at, self.page),
            None if to(0, 0) == usize::MAX => last,
            None => 0,
        };
        let at = at.min(last);
        self.selected = rows.get(at).map(|row| (row.key, at));
    }

    /// Where the selected row is now. If it has gone, the one in its place is selected.
    fn place(&self, rows: &[Row]) -> Option<usize> {
        let (key, was) = self.selected?;
        let now = rows.iter().position(|row| row.key == key);
        now.or(rows.len().checked_sub(1).map(|last| was.min(last)))
    }

    fn fold(&mut self, seen: &Seen) {
        let rows = self.rows(seen);
        let Some(at) = self.place(&rows) else { return };
        let (pid, _) = rows[at].key;
        let head = rows.iter().position(|row| row.key == (pid, None)).unwrap_or(0);
        self.selected = Some(((pid, None), head));
        if !self.others.remove(&pid) {
            self.others.insert(pid);
        }
    }

    /// Draws everything. `seen` is `None` before the first observation.
    pub(crate) fn draw(&mut self, seen: Option<&Seen>, frame: &mut Frame) {
        let area = frame.area();
        let [head, titles, body, foot] = split(area);
        match seen {
            Some(seen) => {
                frame.render_widget(self.head(seen), head);
                self.body(seen, titles, body, frame);
            }
            None => frame.render_widget("watching; the first figures come in a moment", body),
        }
        frame.render_widget(self.foot(), foot);
        if self.help {
            help(seen.map_or(&[], |s| &s.notes), frame);
        }
    }

    /// The host, what is shown of it, and what that costs.
    pub(crate) fn head(&self, seen: &Seen) -> Line<'static> {
        let cpus = |cpus: Option<f64>| cpus.map_or_else(|| "?".into(), |c| format!("{c:.2}"));
        // The two come from clocks of different grain.
        let busy =
            seen.busy.zip(seen.others_busy).map(|(shown, others)| (shown + others).min(seen.cpus as f64));
        let threads: usize = seen.programs.iter().map(|p| p.threads.len()).sum();
        let own = if seen.span_s > 0.0 { seen.watching_cpu_s / seen.span_s * 100.0 } else { 0.0 };
        Line::from(format!(
            "{} CPUs: {} busy, others {}  {}, {}  every {} s  watching {own:.1}%",
            seen.cpus,
            cpus(busy),
            cpus(seen.others_busy),
            count(seen.programs.len(), if self.named { "program" } else { "process" }),
            count(threads, "thread"),
            self.period.as_secs_f64(),
        ))
    }

    fn body(&mut self, seen: &Seen, titles: Rect, body: Rect, frame: &mut Frame) {
        let rows = self.rows(seen);
        let layout = Layout::new(body.width, self.sort, counts_misses(seen));
        layout.titles(titles, self.sort, frame.buffer_mut());
        let selected = self.place(&rows);
        self.selected = selected.map(|at| (rows[at].key, at));
        self.page = usize::from(body.height).max(1);
        if let Some(at) = selected {
            self.first = self.first.clamp((at + 1).saturating_sub(self.page), at);
        }
        self.first = self.first.min(rows.len().saturating_sub(self.page));
        for (at, row) in rows.iter().enumerate().skip(self.first).take(usize::from(body.height)) {
            let y = body.y + (at - self.first) as u16;
            let style = match selected == Some(at) {
                true => Style::new().add_modifier(Modifier::REVERSED),
                false => Style::new(),
            };
            let line = Rect { y, height: 1, ..body };
            layout.row(line, row.mark, &row.cells, seen.span_s, style, frame.buffer_mut());
        }
        if rows.is_empty() {
            let why = match self.named {
                true => "All have ended. New ones with a name that you gave are shown as they come; q quits.",
                false => "None of your processes ran. i shows idle ones.",
            };
            frame.render_widget(why, body);
        }
    }

    pub(crate) fn foot(&self) -> Line<'static> {
        let mut spans = vec![Span::raw(if self.paused { "PAUSED, p goes on  " } else { "? help  " })];
        for part in [Part::User, Part::Spin, Part::System, Part::Lock, Part::Latency, Part::Sleep] {
            spans.push(Span::styled(part.glyph().to_string(), Style::new().fg(part.color())));
            spans.push(Span::raw(format!(" {}  ", part.name())));
        }
        Line::from(spans)
    }
}

/// Whether cache misses are counted for anybody.
pub(crate) fn counts_misses(seen: &Seen) -> bool {
    seen.programs.iter().flat_map(|p| &p.threads).any(|t| t.figures.counters.cache_references.is_some())
}

/// A number of things.
fn count(number: usize, thing: &str) -> String {
    let plural = if thing.ends_with('s') { "es" } else { "s" };
    format!("{number} {thing}{}", if number == 1 { "" } else { plural })
}

/// Head, titles, body and foot, each of which is empty where there is no room.
fn split(area: Rect) -> [Rect; 4] {
    let line = |y: u16, height: u16| Rect { y: area.y + y, height, ..area }.intersection(area);
    let foot = u16::from(area.height > 3);
    let top = area.height.min(2);
    let body = area.height - top - foot;
    [line(0, top.min(1)), line(1, top.saturating_sub(1)), line(top, body), line(top + body, foot)]
}

/// Keys, parts of a bar, and what cannot be seen here, over everything else.
fn help(notes: &[String], frame: &mut Frame) {
    let pair = |left: String, right: &str| Line::from(format!("{left:<14}{right}"));
    let mut lines: Vec<Line> = KEYS.iter().map(|(key, what)| pair((*key).into(), what)).collect();
    lines.push(Line::default());
    for part in Part::ALL {
        let glyph = Span::styled(part.glyph().to_string(), Style::new().fg(part.color()));
        lines.push(Line::from(vec![glyph, Span::raw(format!(" {:<14}{}", part.name(), part.meaning()))]));
    }
    lines.extend(notes.iter().map(|note| Line::from(format!("note: {note}"))));
    let width = lines.iter().map(Line::width).max().unwrap_or(0) as u16 + 4;
    let area = frame.area();
    let (width, height) = (width.min(area.width), (lines.len() as u16 + 2).min(area.height));
    let place = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    let block = Block::bordered().title(" corebeat top ");
    frame.render_widget(Paragraph::new(lines).block(block), place);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::seen::Program;
    use crate::top::seen::tests::{snapshot, stranger, thread};
    use corebeat_machine::ThreadSample;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn seen(programs: Vec<Vec<ThreadSample>>) -> Seen {
        let program = |(at, threads): (usize, Vec<ThreadSample>)| {
            let mut sample = snapshot(threads).programs.remove(0);
            sample.name = format!("program{at}");
            Program::whole(100 * (at as i32 + 1), &sample, 1_000_000_000)
        };
        Seen {
            span_s: 1.0,
            cpus: 2,
            busy: Some(1.0),
            others_busy: Some(0.25),
            others_runnable: Some(0.5),
            watching_cpu_s: 0.002,
            notes: vec!["no spin times: not permitted".into()],
            programs: programs.into_iter().enumerate().map(program).collect(),
        }
    }

    fn screen() -> Screen {
        Screen::new(true, Duration::from_secs(1))
    }

    fn drawn(screen: &mut Screen, seen: Option<&Seen>, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(seen, frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    fn press(screen: &mut Screen, seen: &Seen, keys: &[KeyCode]) {
        keys.iter().for_each(|&key| assert_eq!(screen.key(key.into(), seen), None));
    }

    fn two_programs() -> Seen {
        seen(vec![
            vec![
                thread(100, 100, "main", [0.0, 0.0, 0.5, 0.0]),
                thread(100, 101, "worker", [0.6, 0.2, 0.0, 0.1]),
            ],
            vec![thread(200, 200, "other", [1.0, 0.0, 0.0, 0.0])],
        ])
    }

    #[test]
    fn screen_before_the_first_observation_says_so() {
        assert!(drawn(&mut screen(), None, 60, 10)[2].starts_with("watching"));
    }

    #[test]
    fn screen_without_programs_says_why() {
        let lines = drawn(&mut screen(), Some(&seen(vec![])), 80, 10);
        assert!(
            lines[0].starts_with(
                "2 CPUs: 1.25 busy, others 0.25  0 programs, 0 threads  every 1 s  watching 0.2%"
            )
        );
        assert!(lines[2].starts_with("All have ended."));
        let idle = seen(vec![vec![thread(1, 1, "sleeper", [0.0; 4])]]);
        let mut unnamed = Screen::new(false, Duration::from_secs(1));
        assert!(drawn(&mut unnamed, Some(&idle), 80, 10)[2].starts_with("None of your processes ran"));
        press(&mut unnamed, &idle, &[KeyCode::Char('i')]);
        assert!(drawn(&mut unnamed, Some(&idle), 80, 10)[2].contains("program0"));
    }

    #[test]
    fn screen_with_one_thread_is_drawn_as_the_book_shows() {
        let one = seen(vec![vec![thread(100, 101, "worker", [0.5, 0.1, 0.2, 0.1])]]);
        assert_eq!(
            drawn(&mut screen(), Some(&one), 80, 6),
            [
                "2 CPUs: 1.25 busy, others 0.25  1 program, 1 thread  every 1 s  watching 0.2%",
                "     ID   NAME            CPU%▾ TIME                  LOCK%   LAT%  SPIN%  VOL/s",
                "    100 ▾ program0         60.0 ██████████▒▒####--··   20.0   10.0    0.0     10",
                "    101   worker           60.0 ██████████▒▒####--··   20.0   10.0    0.0     10",
                "",
                "? help  █ user  x spinning  ▒ system  # lock  - latency  · sleep",
            ]
        );
    }

    #[test]
    fn screen_of_40_by_10_keeps_number_name_cpu_and_bar() {
        let mut screen = screen();
        let lines = drawn(&mut screen, Some(&two_programs()), 40, 10);
        assert_eq!(lines[1], "     ID   NAME      CPU%▾ TIME");
        assert_eq!(lines[2], "    200 ▾ program1  100.0 ██████████████");
        press(&mut screen, &two_programs(), &[KeyCode::Char('s')]);
        let lines = drawn(&mut screen, Some(&two_programs()), 40, 10);
        assert_eq!(lines[1], "     ID   NAME       CPU% TIME    LOCK%▾");
    }

    #[test]
    fn screen_of_any_size_with_unknown_shares_is_no_panic() {
        let unknown = seen(vec![vec![stranger(1, 1), thread(1, 2, "w\u{1b}[31m\n漢字漢字", [0.0; 4])]]);
        let help = [KeyCode::Char('?'), KeyCode::End];
        for width in (0..30).chain([80, 300]) {
            for height in (0..8).chain([40]) {
                let mut screen = screen();
                drawn(&mut screen, Some(&unknown), width, height);
                press(&mut screen, &unknown, &help);
                let lines = drawn(&mut screen, Some(&unknown), width, height);
                assert!(lines.iter().all(|l| !l.contains('\u{1b}')));
            }
        }
        let lines = drawn(&mut screen(), Some(&unknown), 120, 10);
        assert!(lines[2].contains(&"?".repeat(20)) && lines[2].contains(" -"), "{lines:?}");
        assert!(lines[4].contains(&"?".repeat(20)), "unknown comes last: {lines:?}");
    }

    #[test]
    fn screen_of_300_threads_scrolls_with_the_selection() {
        let many: Vec<ThreadSample> =
            (0..300).map(|i| thread(100, 1000 + i, "w", [0.0, 0.0, f64::from(i) / 300.0, 0.0])).collect();
        let many = seen(vec![many]);
        let mut screen = screen();
        press(&mut screen, &many, &[KeyCode::Char('s')]);
        let lines = drawn(&mut screen, Some(&many), 80, 24);
        assert!(lines[3].contains("1299") && lines[22].contains("1280"), "{lines:?}");
        press(&mut screen, &many, &[KeyCode::Down, KeyCode::PageDown]);
        assert!(drawn(&mut screen, Some(&many), 80, 24)[22].contains("1279"));
        press(&mut screen, &many, &[KeyCode::End]);
        assert!(drawn(&mut screen, Some(&many), 80, 24)[22].contains("1000"));
        press(&mut screen, &many, &[KeyCode::Home]);
        assert!(drawn(&mut screen, Some(&many), 80, 24)[2].contains("program0"));
        // What was selected stays on the screen when there is less of it, and when most rows go.
        press(&mut screen, &many, &[KeyCode::End]);
        assert!(drawn(&mut screen, Some(&many), 80, 8)[6].contains("1000"));
        assert!(drawn(&mut screen, Some(&two_programs()), 80, 8)[2].contains("program"));
    }

    #[test]
    fn screen_folds_the_program_of_the_selected_row() {
        let two = two_programs();
        let mut screen = screen();
        let names = |screen: &Screen| -> Vec<String> {
            screen.rows(&two).iter().map(|r| r.cells.name.to_owned()).collect()
        };
        assert_eq!(names(&screen), ["program1", "other", "program0", "worker", "main"]);
        press(&mut screen, &two, &[KeyCode::End, KeyCode::Char(' ')]);
        assert_eq!(names(&screen), ["program1", "other", "program0"]);
        assert_eq!(screen.selected, Some(((100, None), 2)));
        press(&mut screen, &two, &[KeyCode::Enter, KeyCode::Char('a')]);
        assert_eq!(names(&screen), ["program1", "program0"]);
    }

    #[test]
    fn screen_selection_follows_its_row_when_rows_are_sorted_anew() {
        let two = two_programs();
        let mut screen = screen();
        press(&mut screen, &two, &[KeyCode::Down]);
        assert_eq!(screen.selected, Some(((200, None), 0)));
        press(&mut screen, &two, &[KeyCode::Char('r')]);
        drawn(&mut screen, Some(&two), 80, 24);
        assert_eq!(screen.selected, Some(((200, None), 3)));
    }

    #[test]
    fn screen_sorts_by_every_column_and_comes_back() {
        let mut screen = screen();
        let two = two_programs();
        for column in Column::SORTS {
            assert_eq!(screen.sort.column, column);
            drawn(&mut screen, Some(&two), 60, 10);
            press(&mut screen, &two, &[KeyCode::Char('s')]);
        }
        assert_eq!(screen.sort.column, Column::Cpu);
        press(&mut screen, &two, &[KeyCode::Char('S')]);
        assert_eq!(screen.sort.column, Column::Id);
    }

    #[test]
    fn screen_period_stays_within_its_bounds() {
        let mut screen = screen();
        let two = two_programs();
        press(&mut screen, &two, &[KeyCode::Char('+'); 20]);
        assert_eq!(screen.period, Duration::from_secs(60));
        press(&mut screen, &two, &[KeyCode::Char('-'); 20]);
        assert_eq!(screen.period, Duration::from_millis(50));
    }

    #[test]
    fn screen_quits_and_stops_by_its_keys() {
        let two = two_programs();
        let mut screen = screen();
        let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
        assert_eq!(screen.key(control('c'), &two), Some(Wish::Quit));
        assert_eq!(screen.key(control('z'), &two), Some(Wish::Stop));
        assert_eq!(screen.key(control('p'), &two), None);
        assert!(!screen.paused);
        press(&mut screen, &two, &[KeyCode::Char('p'), KeyCode::Char('?')]);
        let lines = drawn(&mut screen, Some(&two), 100, 40);
        assert!(lines.iter().any(|l| l.contains("note: no spin times")), "{lines:?}");
        assert!(lines[39].starts_with("PAUSED"));
        press(&mut screen, &two, &[KeyCode::Esc]);
        assert_eq!(screen.key(KeyCode::Esc.into(), &two), Some(Wish::Quit));
    }
}
