//! The screen: its rows, the effects of keys, and how it is drawn. The caller makes the changes
//! that keys request.

use crate::PERIOD_MS;
use crate::change::{Change, Target};
use crate::column::{Cells, Column};
use crate::filter::Filter;
use crate::prompt::{Answer, Prompt, Question};
use crate::row::{Layout, Mark, Sort};
use crate::stack::{KNOWN, PARTS, Part};
use crate::view::{Figures, Program, Thread, View};
use corebeat_command::printable;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};
use std::collections::HashSet;
use std::time::Duration;

/// Share of the time of a thread that spins from which on the screen shows where it spins.
const SPIN_SHOWN_MIN: f64 = 0.01;

/// Effects of the keys, for the help.
const KEYS: [(&str, &str); 15] = [
    ("q Ctrl-C", "quit"),
    ("Up Down", "select a row; PgUp PgDn Home End too"),
    ("/", "show only rows that contain a text"),
    ("Esc", "remove the filter"),
    ("k", "send a signal to the selected process"),
    ("r", "set the nice value of the selected process or thread"),
    ("Space Enter", "fold or unfold a program's threads"),
    ("a", "fold or unfold all"),
    ("s S", "sort by the next or the previous column"),
    ("R", "reverse the order"),
    ("i", "show or hide idle processes"),
    ("p", "pause or continue"),
    ("+ -", "lengthen or shorten the period"),
    ("Ctrl-Z", "stop; fg continues"),
    ("?", "show or hide this help"),
];

/// Identity of a row, independent of its position: the program's process, and the thread in the row
/// of a thread.
type Key = (i32, Option<i32>);

/// One row.
pub(crate) struct Row<'a> {
    key: Key,
    pub(crate) mark: Mark,
    pub(crate) cells: Cells<'a>,
}

/// State of the screen.
#[derive(Debug)]
pub(crate) struct Screen {
    pub(crate) sort: Sort,
    pub(crate) period: Duration,
    pub(crate) paused: bool,
    /// Whether the user named programs: then all are shown, with their threads.
    named: bool,
    unfolded: bool,
    /// Programs whose folding differs from that of all programs.
    exceptions: HashSet<i32>,
    idle: bool,
    pub(crate) filter: Filter,
    help: bool,
    prompt: Option<Prompt>,
    /// The result of the last change, until the next key.
    message: Option<String>,
    /// The selected row, and its last position.
    selected: Option<(Key, usize)>,
    /// Position of the first row on the screen, and the number of rows that fit.
    first: usize,
    page: usize,
}

/// A request of a key to the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    Quit,
    /// Carry out a change, and [`report`](Screen::report) its result.
    Carry(Change),
    /// Stop the process, as Ctrl-Z does.
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
            exceptions: HashSet::new(),
            idle: named,
            filter: Filter::default(),
            help: false,
            prompt: None,
            message: None,
            selected: None,
            first: 0,
            page: 1,
        }
    }

    fn is_unfolded(&self, pid: i32) -> bool {
        self.unfolded != self.exceptions.contains(&pid)
    }

    /// All rows in their order.
    pub(crate) fn rows<'a>(&self, view: &'a View) -> Vec<Row<'a>> {
        let Sort { column, reversed } = self.sort;
        let order = |a: &Row, b: &Row| column.order(&a.cells, &b.cells, view.span_s, reversed);
        let shown = view.programs.iter().filter(|p| self.idle || p.is_active());
        let mut programs: Vec<_> = shown
            .filter_map(|p| Some((p, self.filter.threads(p)?)))
            .map(|(p, threads)| {
                let unfolded = self.is_unfolded(p.pid);
                let mark = if unfolded { Mark::Unfolded } else { Mark::Folded };
                let head = Row { key: (p.pid, None), mark, cells: p.into() };
                let threads = threads.into_iter().filter(|_| unfolded);
                let thread = |t: &'a Thread| Row {
                    key: (p.pid, Some(t.tid)),
                    mark: Mark::Thread,
                    cells: Cells::of_thread(t, p),
                };
                let mut threads: Vec<Row> = threads.map(thread).collect();
                threads.sort_by(order);
                (head, threads)
            })
            .collect();
        programs.sort_by(|a, b| order(&a.0, &b.0));
        programs
            .into_iter()
            .flat_map(|(head, threads)| std::iter::once(head).chain(threads))
            .collect()
    }

    /// Handles a key.
    pub(crate) fn key(&mut self, key: KeyEvent, view: &View) -> Option<Request> {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        self.message = None;
        match key.code {
            KeyCode::Char('c') if control => return Some(Request::Quit),
            KeyCode::Char('z') if control => return Some(Request::Stop),
            _ if control => {}
            code if self.prompt.is_some() => return self.answer(code).map(Request::Carry),
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Char('q') | KeyCode::Esc if self.help => self.help = false,
            KeyCode::Char('q') => return Some(Request::Quit),
            KeyCode::Esc => self.filter = Filter::default(),
            KeyCode::Char('/') => {
                let answer = self.filter.text().to_owned();
                self.prompt = Some(Prompt { answer, ..Prompt::new(Question::Filter) });
            }
            KeyCode::Char('k') => self.ask(view, process, Question::Signal),
            KeyCode::Char('r') => self.ask(view, process_or_thread, Question::Nice),
            KeyCode::Char('s') => self.sort_by_next(1),
            KeyCode::Char('S') => self.sort_by_next(Column::SORTS.len() - 1),
            KeyCode::Char('R') => self.sort.reversed = !self.sort.reversed,
            KeyCode::Char('i') => self.idle = !self.idle,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('+' | '=') => self.set_period(self.period * 2),
            KeyCode::Char('-') => self.set_period(self.period / 2),
            KeyCode::Char('a') => {
                self.unfolded = !self.unfolded;
                self.exceptions.clear();
            }
            KeyCode::Char(' ') | KeyCode::Enter => self.fold(view),
            KeyCode::Up => self.select(view, |at, _| at.saturating_sub(1)),
            KeyCode::Down => self.select(view, |at, _| at + 1),
            KeyCode::PageUp => self.select(view, |at, page| at.saturating_sub(page)),
            KeyCode::PageDown => self.select(view, |at, page| at + page),
            KeyCode::Home => self.select(view, |_, _| 0),
            KeyCode::End => self.select(view, |_, _| usize::MAX),
            _ => {}
        }
        None
    }

    /// Asks a question about the target in the selected row.
    fn ask(
        &mut self,
        view: &View,
        target: fn(&Program, Option<&Thread>) -> Option<Target>,
        question: fn(Target) -> Question,
    ) {
        let rows = self.rows(view);
        let key = self.place(&rows).map(|at| rows[at].key);
        let Some((pid, tid)) = key else {
            return self.report("select a row first, with Up or Down".into());
        };
        let program = view.programs.iter().find(|p| p.pid == pid);
        let thread = |p: &Program| p.threads.iter().position(|t| Some(t.tid) == tid);
        match program.and_then(|p| target(p, thread(p).map(|at| &p.threads[at]))) {
            Some(target) => self.prompt = Some(Prompt::new(question(target))),
            None => self.report("the process has ended, or /proc hides it".into()),
        }
    }

    /// Handles a key of the answer to a question.
    fn answer(&mut self, key: KeyCode) -> Option<Change> {
        let mut prompt = self.prompt.take()?;
        let is_filter = prompt.question == Question::Filter;
        match prompt.key(key) {
            Answer::Incomplete => {
                if is_filter {
                    self.filter = Filter::new(&prompt.answer);
                }
                self.prompt = Some(prompt);
            }
            Answer::Next(question) => self.prompt = Some(Prompt::new(question)),
            Answer::Change(change) => return Some(change),
            Answer::Message(line) => self.report(line),
            Answer::Kept => {}
            Answer::Cancelled if is_filter => self.filter = Filter::default(),
            Answer::Cancelled => self.report("nothing is changed".into()),
        }
        None
    }

    /// Shows a line until the next key.
    pub(crate) fn report(&mut self, line: String) {
        self.message = Some(line);
    }

    fn sort_by_next(&mut self, step: usize) {
        let at = Column::SORTS.iter().position(|&c| c == self.sort.column).unwrap_or(0);
        self.sort =
            Sort { column: Column::SORTS[(at + step) % Column::SORTS.len()], reversed: false };
    }

    fn set_period(&mut self, period: Duration) {
        let (min, max) = (*PERIOD_MS.start(), *PERIOD_MS.end());
        self.period = period.clamp(Duration::from_millis(min), Duration::from_millis(max));
    }

    /// Moves the selection. The first key selects the first row.
    fn select(&mut self, view: &View, to: impl Fn(usize, usize) -> usize) {
        let rows = self.rows(view);
        let last = rows.len().saturating_sub(1);
        let at = match self.place(&rows) {
            Some(at) => to(at, self.page),
            None if to(0, 0) == usize::MAX => last,
            None => 0,
        };
        let at = at.min(last);
        self.selected = rows.get(at).map(|row| (row.key, at));
    }

    /// Position of the selected row. If that row has ended, the row at its position.
    fn place(&self, rows: &[Row]) -> Option<usize> {
        let (key, was) = self.selected?;
        let now = rows.iter().position(|row| row.key == key);
        now.or(rows.len().checked_sub(1).map(|last| was.min(last)))
    }

    fn fold(&mut self, view: &View) {
        let rows = self.rows(view);
        let Some(at) = self.place(&rows) else { return };
        let (pid, _) = rows[at].key;
        let head = rows.iter().position(|row| row.key == (pid, None)).unwrap_or(0);
        self.selected = Some(((pid, None), head));
        if !self.exceptions.remove(&pid) {
            self.exceptions.insert(pid);
        }
    }

    /// Draws the screen. `view` is `None` before the first observation.
    pub(crate) fn draw(&mut self, view: Option<&View>, frame: &mut Frame) {
        let area = frame.area();
        let [head, titles, body, foot] = split(area);
        match view {
            Some(view) => {
                frame.render_widget(self.head(view), head);
                self.body(view, titles, body, frame);
            }
            None => {
                let text = Line::from("observing; the first figures appear after 0.3 s");
                frame.render_widget(text, body);
            }
        }
        frame.render_widget(self.foot(), foot);
        if self.help {
            help(view.map_or(&[], |s| &s.notes), frame);
        }
    }

    /// Load of the host, number of rows, and cost of the observation.
    pub(crate) fn head(&self, view: &View) -> Line<'static> {
        let cpus = |cpus: Option<f64>| cpus.map_or_else(|| "?".into(), |c| format!("{c:.2}"));
        // The two values come from clocks of different resolution; their sum may exceed the CPUs.
        let sum = |shown: f64, others: f64| (shown + others).min(view.cpus as f64);
        let busy = match view.busy.zip(view.others_busy) {
            Some((shown, others)) => format!("{:.2}", sum(shown, others)),
            // The times of a thread that has just started, for example, are unknown.
            None => match sum(view.busy_min, view.others_busy.unwrap_or(0.0)) {
                known if known > 0.0 => format!("≥{known:.2}"),
                _ => "?".into(),
            },
        };
        let threads: usize = view.programs.iter().map(|p| p.threads.len()).sum();
        let own = if view.span_s > 0.0 { view.watching_cpu_s / view.span_s * 100.0 } else { 0.0 };
        Line::from(format!(
            "{} CPUs: {} busy, others {}  {}, {}  every {} s  own CPU {own:.1}%",
            view.cpus,
            busy,
            cpus(view.others_busy),
            count(view.programs.len(), if self.named { "program" } else { "process" }),
            count(threads, "thread"),
            self.period.as_secs_f64(),
        ))
    }

    fn body(&mut self, view: &View, titles: Rect, body: Rect, frame: &mut Frame) {
        let rows = self.rows(view);
        let layout = Layout::new(body.width, self.sort, &absent(view));
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
            layout.row(line, row.mark, &row.cells, view.span_s, style, frame.buffer_mut());
        }
        if rows.is_empty() {
            let why = match self.named {
                _ if !self.filter.text().is_empty() => {
                    "No row contains the text of the filter. Esc removes the filter, i shows or \
                     hides idle processes."
                }
                true => "All programs have ended. New processes with a given name appear; q quits.",
                false => "None of your processes ran. i shows idle processes.",
            };
            // A line, unlike a text, may have an area outside the screen, such as an empty one.
            frame.render_widget(Line::from(why), body);
        }
    }

    /// A question, a message, or the state of the view with the most important keys.
    fn foot(&self) -> Line<'static> {
        if let Some(prompt) = &self.prompt {
            return prompt.line().into();
        }
        if let Some(message) = &self.message {
            return printable(message).into();
        }
        let mut line = legend();
        let state = match self.filter.text() {
            _ if self.paused => "PAUSED, p continues  ".into(),
            "" => "? help  ".into(),
            text => format!("filter '{}', Esc removes it  ", printable(text)),
        };
        line.spans.insert(0, Span::raw(state));
        line.push_span("/ filter  k kill  r renice  q quit");
        line
    }
}

/// The process in a row, or the process of the thread in a row.
fn process(program: &Program, thread: Option<&Thread>) -> Option<Target> {
    let process = thread.map_or(&program.process, |t| &t.process);
    let id = process.id?;
    let first = program.threads.iter().find(|t| t.tid == id.tid);
    let name = first.map_or(&program.name, |t| &t.name).clone();
    Some(Target { id, is_thread: false, name })
}

/// The process or the thread in a row.
fn process_or_thread(program: &Program, thread: Option<&Thread>) -> Option<Target> {
    match thread {
        Some(t) => Some(Target { id: t.id(), is_thread: true, name: t.name.clone() }),
        None => process(program, None),
    }
}

/// The parts of a bar.
pub(crate) fn legend() -> Line<'static> {
    let part = |part: &Part| {
        let glyph = Span::styled(part.glyph.to_string(), Style::new().fg(part.color));
        [glyph, Span::raw(format!(" {}  ", part.name))]
    };
    PARTS[..KNOWN].iter().flat_map(part).collect()
}

/// Columns that have nothing to show: cache misses if they are not counted, the function in which
/// threads spin if no thread spins for more than a moment, and those of servers if no program has
/// one that shows itself.
pub(crate) fn absent(view: &View) -> Vec<Column> {
    let any = |has: fn(&Figures) -> bool| {
        view.programs.iter().flat_map(|p| &p.threads).any(|t| has(&t.figures))
    };
    let counts_misses = any(|f| f.counters.cache_references.is_some());
    let spins = any(|f| f.shares.spin.is_some_and(|share| share >= SPIN_SHOWN_MIN));
    let serves = view.programs.iter().any(|program| program.server.is_some());
    let columns = [
        (Column::Misses, counts_misses),
        (Column::Function, spins),
        (Column::Connections, serves),
        (Column::Requests, serves),
        (Column::Server, serves),
    ];
    columns.into_iter().filter(|(_, has)| !has).map(|(column, _)| column).collect()
}

/// A number with its noun.
fn count(number: usize, thing: &str) -> String {
    let plural = if thing.ends_with('s') { "es" } else { "s" };
    format!("{number} {thing}{}", if number == 1 { "" } else { plural })
}

/// Areas of head, titles, body and foot; empty if the screen is too small.
fn split(area: Rect) -> [Rect; 4] {
    let line = |y: u16, height: u16| Rect { y: area.y + y, height, ..area }.intersection(area);
    let foot = u16::from(area.height > 3);
    let top = area.height.min(2);
    let body = area.height - top - foot;
    [line(0, top.min(1)), line(1, top.saturating_sub(1)), line(top, body), line(top + body, foot)]
}

/// Draws the help over the rows: keys, parts of a bar, and notes on missing sensors.
fn help(notes: &[String], frame: &mut Frame) {
    let pair = |left: String, right: &str| Line::from(format!("{left:<14}{right}"));
    let mut lines: Vec<Line> = KEYS.iter().map(|(key, what)| pair((*key).into(), what)).collect();
    lines.push(Line::default());
    for part in PARTS {
        let glyph = Span::styled(part.glyph.to_string(), Style::new().fg(part.color));
        lines.push(Line::from(vec![
            glyph,
            Span::raw(format!(" {:<20}{}", part.name, part.meaning)),
        ]));
    }
    lines.extend(notes.iter().map(|note| Line::from(format!("note: {}", printable(note)))));
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
    use crate::process::Process;
    use crate::view::tests::{snapshot, thread, unknown_thread};
    use corebeat_linux::Function;
    use corebeat_machine::{ThreadId, ThreadSample};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use signal_hook::consts::SIGINT;

    fn view(programs: Vec<Vec<ThreadSample>>) -> View {
        let program = |(at, threads): (usize, Vec<ThreadSample>)| {
            let mut sample = snapshot(threads).programs.remove(0);
            sample.name = format!("program{at}");
            Program::whole(100 * (at as i32 + 1), &sample, 1_000_000_000)
        };
        View {
            span_s: 1.0,
            cpus: 2,
            busy: Some(1.0),
            busy_min: 1.0,
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

    fn drawn(screen: &mut Screen, view: Option<&View>, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(view, frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    fn press(screen: &mut Screen, view: &View, keys: &[KeyCode]) {
        keys.iter().for_each(|&key| assert_eq!(screen.key(key.into(), view), None));
    }

    fn two_programs() -> View {
        view(vec![
            vec![
                thread(100, 100, "main", [0.0, 0.0, 0.5, 0.0]),
                thread(100, 101, "worker", [0.6, 0.2, 0.0, 0.1]),
            ],
            vec![thread(200, 200, "other", [1.0, 0.0, 0.0, 0.0])],
        ])
    }

    #[test]
    fn screen_before_the_first_observation_has_a_message() {
        assert!(drawn(&mut screen(), None, 60, 10)[2].starts_with("observing"));
    }

    #[test]
    fn screen_without_rows_shows_the_reason() {
        let lines = drawn(&mut screen(), Some(&view(vec![])), 80, 10);
        assert!(lines[0].starts_with(
            "2 CPUs: 1.25 busy, others 0.25  0 programs, 0 threads  every 1 s  own CPU 0.2%"
        ));
        assert!(lines[2].starts_with("All programs have ended."));
        let idle = view(vec![vec![thread(1, 1, "sleeper", [0.0; 4])]]);
        let mut unnamed = Screen::new(false, Duration::from_secs(1));
        assert!(
            drawn(&mut unnamed, Some(&idle), 80, 10)[2].starts_with("None of your processes ran")
        );
        press(&mut unnamed, &idle, &[KeyCode::Char('i')]);
        assert!(drawn(&mut unnamed, Some(&idle), 80, 10)[2].contains("program0"));
    }

    #[test]
    fn busy_cpus_are_a_lower_bound_if_the_times_of_a_thread_are_unknown() {
        let busy = |busy, busy_min, others_busy| {
            let view = View { busy, busy_min, others_busy, ..view(vec![]) };
            let line = screen().head(&view).to_string();
            line.split_once(" busy").unwrap().0.to_owned()
        };
        assert_eq!(busy(Some(1.0), 1.0, Some(0.25)), "2 CPUs: 1.25");
        assert_eq!(busy(None, 1.0, Some(0.25)), "2 CPUs: ≥1.25");
        assert_eq!(busy(Some(1.0), 1.0, None), "2 CPUs: ≥1.00");
        assert_eq!(busy(None, 2.0, Some(0.25)), "2 CPUs: ≥2.00");
        assert_eq!(busy(None, 0.0, None), "2 CPUs: ?");
    }

    #[test]
    fn screen_with_one_thread_is_drawn_as_in_the_book() {
        let one = view(vec![vec![thread(100, 101, "worker", [0.5, 0.1, 0.2, 0.1])]]);
        assert_eq!(
            drawn(&mut screen(), Some(&one), 80, 6),
            [
                "2 CPUs: 1.25 busy, others 0.25  1 program, 1 thread  every 1 s  own CPU 0.2%",
                "     ID USER       NAME            CPU%▾ TIME                  LOCK%  WAIT%  THR",
                "    100 -        ▾ program0         60.0 ██████████▒▒####--··   20.0   10.0    1",
                "    101            worker           60.0 ██████████▒▒####--··   20.0   10.0",
                "",
                "? help  █ user  x spinning  ▒ system  # lock  ~ park  - wait  · sleep  / filter",
            ]
        );
    }

    #[test]
    fn screen_of_40_by_10_contains_number_name_cpu_and_bar() {
        let mut screen = screen();
        let lines = drawn(&mut screen, Some(&two_programs()), 40, 10);
        assert_eq!(lines[1], "     ID   NAME      CPU%▾ TIME");
        assert_eq!(lines[2], "    200 ▾ program1  100.0 ██████████████");
        press(&mut screen, &two_programs(), &[KeyCode::Char('s')]);
        let lines = drawn(&mut screen, Some(&two_programs()), 40, 10);
        assert_eq!(lines[1], "     ID   NAME       CPU% TIME    LOCK%▾");
    }

    #[test]
    fn screen_of_any_size_with_unknown_shares_does_not_panic() {
        let unknown =
            view(vec![vec![unknown_thread(1, 1), thread(1, 2, "w\u{1b}[31m\n漢字漢字", [0.0; 4])]]);
        let help = [KeyCode::Char('?'), KeyCode::End];
        for width in (0..30).chain([80, 300]) {
            for height in (0..8).chain([40]) {
                let mut screen = screen();
                drawn(&mut screen, None, width, height);
                drawn(&mut screen, Some(&unknown), width, height);
                screen.filter = Filter::new("no such text");
                drawn(&mut screen, Some(&unknown), width, height);
                screen.filter = Filter::default();
                drawn(&mut screen, Some(&view(vec![])), width, height);
                press(&mut screen, &unknown, &help);
                let lines = drawn(&mut screen, Some(&unknown), width, height);
                assert!(lines.iter().all(|l| !l.contains('\u{1b}')));
            }
        }
        let lines = drawn(&mut screen(), Some(&unknown), 120, 10);
        assert!(lines[2].contains(&"?".repeat(20)) && lines[2].contains(" -"), "{lines:?}");
        assert!(lines[4].contains(&"?".repeat(20)), "unknown values are last: {lines:?}");
    }

    #[test]
    fn screen_of_300_threads_scrolls_with_the_selection() {
        let many: Vec<ThreadSample> = (0..300)
            .map(|i| thread(100, 1000 + i, "w", [0.0, 0.0, f64::from(i) / 300.0, 0.0]))
            .collect();
        let many = view(vec![many]);
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
        // The selected row stays on a smaller screen, and the selection moves if its row ends.
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
    fn screen_selection_follows_its_row_after_a_new_sort() {
        let two = two_programs();
        let mut screen = screen();
        press(&mut screen, &two, &[KeyCode::Down]);
        assert_eq!(screen.selected, Some(((200, None), 0)));
        press(&mut screen, &two, &[KeyCode::Char('R')]);
        drawn(&mut screen, Some(&two), 80, 24);
        assert_eq!(screen.selected, Some(((200, None), 3)));
    }

    #[test]
    fn screen_sorts_by_every_column_in_a_cycle() {
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
    fn screen_quits_and_stops_by_keys() {
        let two = two_programs();
        let mut screen = screen();
        let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
        assert_eq!(screen.key(control('c'), &two), Some(Request::Quit));
        assert_eq!(screen.key(control('z'), &two), Some(Request::Stop));
        assert_eq!(screen.key(control('p'), &two), None);
        assert!(!screen.paused);
        press(&mut screen, &two, &[KeyCode::Char('p'), KeyCode::Char('?')]);
        let lines = drawn(&mut screen, Some(&two), 100, 40);
        assert!(lines.iter().any(|l| l.contains("note: no spin times")), "{lines:?}");
        assert!(lines.iter().any(|l| l.contains("= lock, park or sleep asleep;")), "{lines:?}");
        assert!(lines[39].starts_with("PAUSED"));
        press(&mut screen, &two, &[KeyCode::Esc]);
        assert!(!screen.help);
        assert_eq!(screen.key(KeyCode::Char('q').into(), &two), Some(Request::Quit));
    }

    fn text(screen: &mut Screen, view: &View, text: &str) {
        text.chars().for_each(|c| press(screen, view, &[KeyCode::Char(c)]));
    }

    /// Two programs with processes, the second with a descendant.
    fn processes() -> View {
        let mut view = two_programs();
        let process = |pid: i32, user: &str, command: &str| Process {
            id: Some(ThreadId { tid: pid, start_ticks: 1 }),
            user: Some(user.into()),
            command: Some(command.into()),
        };
        let mut forked = Program::whole(
            201,
            &snapshot(vec![thread(201, 201, "forked", [0.0; 4])]).programs[0],
            1_000_000_000,
        );
        view.programs[1].threads.append(&mut forked.threads);
        for program in &mut view.programs {
            for thread in &mut program.threads {
                thread.process = match thread.pid {
                    100 => process(100, "alice", "/bin/zero a\u{1b}[2J\n\u{202e}b"),
                    200 => process(200, "systemd-network", "/bin/one"),
                    _ => process(201, "bob", "/bin/forked"),
                };
            }
            program.process = program.threads[0].process.clone();
        }
        view
    }

    #[test]
    fn screen_shows_user_and_command_and_escapes_control_characters() {
        let lines = drawn(&mut screen(), Some(&processes()), 160, 10);
        let line = |name: &str| lines.iter().find(|l| l.contains(name)).unwrap();
        assert!(lines[1].contains("ID USER       NAME") && lines[1].ends_with("COMMAND"));
        assert!(line("▾ program0").starts_with("    100 alice    ▾ program0"));
        assert!(line("▾ program0").ends_with("/bin/zero a\\u{1b}[2J\\n\\u{202e}b"));
        assert!(line("▾ program1").starts_with("    200 systemd+ ▾ program1"));
        assert!(line("  forked").starts_with("    201 bob        forked"), "of another process");
        assert!(line("  forked").ends_with("/bin/forked"));
        assert!(line("  worker").starts_with("    101            worker"), "as the row above");
        // A narrow screen cuts the command line, and shows it if it determines the order.
        let mut screen = screen();
        press(&mut screen, &processes(), &[KeyCode::Char('S'); 2]);
        let lines = drawn(&mut screen, Some(&processes()), 50, 10);
        assert!(lines[1].ends_with("COMMAND▾") && lines[2].ends_with("/bin/one"), "{lines:?}");
        assert!(lines.iter().all(|line| line.chars().count() <= 50));
        assert!(lines.iter().any(|line| line.ends_with("/bin/zero a\\")), "{lines:?}");
    }

    #[test]
    fn screen_shows_the_function_while_a_thread_spins() {
        let mut view = two_programs();
        let (mut screen, title) = (screen(), "SPINNING IN");
        assert!(!drawn(&mut screen, Some(&view), 160, 10)[1].contains(title), "nothing spins");
        let name = "a::very::n\u{1b}::waits::for::ever";
        let Program { threads, figures, .. } = &mut view.programs[0];
        for figures in [&mut threads[0].figures, figures] {
            figures.shares.spin = Some(0.5);
            let (name, file) = (name.to_owned(), "/bin/a".to_owned());
            figures.spin_function = Some(Function::Named { name, file });
        }
        let lines = drawn(&mut screen, Some(&view), 136, 10);
        assert!(lines[1].contains(title) && lines[1].contains("COMMAND"), "{lines:?}");
        let cut = |line: &&String| line.contains("a::very::n\\u{1b}");
        assert!(!lines.iter().any(|line| line.contains('\u{1b}')));
        assert_eq!(lines.iter().filter(cut).count(), 2, "{lines:?}");
        // A narrow screen shows the function only if it determines the order.
        assert!(!drawn(&mut screen, Some(&view), 80, 10)[1].contains(title));
        press(&mut screen, &view, &[KeyCode::Char('s'); 4]);
        for width in 0..80 {
            let lines = drawn(&mut screen, Some(&view), width, 10);
            assert!(lines.iter().all(|line| line.chars().count() <= usize::from(width)));
        }
        let lines = drawn(&mut screen, Some(&view), 50, 10);
        assert!(lines[1].contains("SPINNING IN▾") && lines[2].contains("a::very"), "{lines:?}");
    }

    #[test]
    fn screen_filter_hides_other_rows_until_esc() {
        let view = processes();
        let mut screen = screen();
        let names = |screen: &Screen| -> Vec<String> {
            screen.rows(&view).iter().map(|r| r.cells.name.to_owned()).collect()
        };
        let all = names(&screen);
        assert_eq!(all.len(), 6);
        text(&mut screen, &view, "/ALIC");
        assert_eq!(names(&screen), ["program0", "worker", "main"], "the user, before Enter");
        assert_eq!(drawn(&mut screen, Some(&view), 80, 10)[9], "filter: ALIC_");
        press(&mut screen, &view, &[KeyCode::Backspace, KeyCode::Enter]);
        assert!(drawn(&mut screen, Some(&view), 80, 10)[9].starts_with("filter 'ali', Esc"));
        press(&mut screen, &view, &[KeyCode::Esc]);
        assert_eq!(names(&screen), all);
        text(&mut screen, &view, "//bin/f");
        assert_eq!(names(&screen), ["program1", "forked"], "the command line of a thread");
        press(&mut screen, &view, &[KeyCode::Esc]);
        assert_eq!((names(&screen), &screen.prompt), (all, &None));
        text(&mut screen, &view, "/nothing");
        assert!(drawn(&mut screen, Some(&view), 80, 10)[2].starts_with("No row contains"));
        // The question holds after the program's end, and its length is bounded.
        (0..200).for_each(|_| text(&mut screen, &view, "x"));
        drawn(&mut screen, Some(&View::default()), 80, 10);
        assert_eq!(screen.filter.text().len(), 100);
    }

    fn target(tid: i32, is_thread: bool, name: &str) -> Target {
        Target { id: ThreadId { tid, start_ticks: 1 }, is_thread, name: name.into() }
    }

    #[test]
    fn screen_asks_for_signal_and_confirmation() {
        let view = processes();
        let mut screen = screen();
        let foot = |screen: &mut Screen| drawn(screen, Some(&view), 80, 10)[9].clone();
        text(&mut screen, &view, "k");
        assert!(foot(&mut screen).starts_with("select a row first"));
        // The second row is the thread 'other', which is the first of its process.
        press(&mut screen, &view, &[KeyCode::Down, KeyCode::Down]);
        text(&mut screen, &view, "ki");
        assert_eq!(foot(&mut screen), "signal for process 200 (other), TERM if empty: i_");
        // The target stays if its row disappears.
        drawn(&mut screen, Some(&View::default()), 80, 10);
        text(&mut screen, &view, "nt");
        press(&mut screen, &view, &[KeyCode::Enter]);
        assert_eq!(foot(&mut screen), "send SIGINT to process 200 (other)? y or n");
        let change = Change::Signal(target(200, false, "other"), SIGINT);
        assert_eq!(screen.key(KeyCode::Char('y').into(), &view), Some(Request::Carry(change)));
        screen.report("done\u{1b}".into());
        assert_eq!(foot(&mut screen), "done\\u{1b}");
        press(&mut screen, &view, &[KeyCode::Home]);
        assert!(foot(&mut screen).starts_with("? help"), "the message stays until a key");
        text(&mut screen, &view, "k");
        press(&mut screen, &view, &[KeyCode::Enter]);
        assert!(foot(&mut screen).starts_with("send SIGTERM"), "the default");
        press(&mut screen, &view, &[KeyCode::Enter]);
        assert_eq!(foot(&mut screen), "nothing is changed");
        text(&mut screen, &view, "kFOO");
        press(&mut screen, &view, &[KeyCode::Enter]);
        assert!(foot(&mut screen).starts_with("there is no signal 'FOO'"));
    }

    #[test]
    fn screen_asks_for_a_nice_value_of_a_process_or_thread() {
        let view = processes();
        let mut screen = screen();
        let mut change = |at: usize, keys: &str| {
            press(&mut screen, &view, &[KeyCode::Home]);
            press(&mut screen, &view, &vec![KeyCode::Down; at]);
            text(&mut screen, &view, keys);
            screen.key(KeyCode::Enter.into(), &view)
        };
        let nice = |target, nice| Some(Request::Carry(Change::Nice(target, nice)));
        assert_eq!(change(0, "r5"), nice(target(200, false, "other"), 5), "all its threads");
        assert_eq!(change(2, "r-20"), nice(target(201, true, "forked"), -20));
        assert_eq!(change(4, "r0"), nice(target(101, true, "worker"), 0));
        assert_eq!(change(0, "r77"), None);
        assert!(drawn(&mut screen, Some(&view), 80, 10)[9].starts_with("'77' is not a nice value"));
        let hidden = two_programs();
        press(&mut screen, &hidden, &[KeyCode::Home, KeyCode::Char('r')]);
        assert!(drawn(&mut screen, Some(&hidden), 80, 10)[9].contains("has ended, or /proc"));
        assert_eq!(screen.prompt, None);
    }
}
