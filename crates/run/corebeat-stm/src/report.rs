//! What a trace says of transactions: who fails how often, where and because of whom, and what that costs.

use crate::trace::{NOBODY, SITES_MAX};
use corebeat_trace::{Ending, Error, Record, Timeline, Value};
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Display, Formatter};
use std::io::{Read, Seek};

/// Pieces of time that a timeline has.
const COLUMNS: usize = 80;
/// How long they are, at least.
const COLUMN_NS: u64 = 1 << 10;
/// Places that are told apart, names of cells, and pairs of transactions that conflict, at most. What is beyond is counted without
/// a place, a name, a pair.
const PLACES_MAX: usize = 1 << 20;
const NAMES_MAX: usize = 1 << 16;
const CONFLICTS_MAX: usize = 1 << 16;
/// Cells that an attempt writes, of which it is known that it did.
const WRITES_MAX: usize = 1 << 16;
/// Lines of a table, as text.
const LINES_MAX: usize = 12;

/// What a trace says of transactions. Its text is what `corebeat trace stm` prints.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Report {
    /// Attempts that committed.
    pub commits: u64,
    /// Attempts that came to nothing.
    pub aborts: u64,
    /// By where they stand in the program; those with the most aborts first.
    pub transactions: Vec<Transactions>,
    /// Where they met; the most frequent first.
    pub places: Vec<Place>,
    /// Who met whom; the most frequent first.
    pub conflicts: Vec<Conflict>,
    /// Events that were lost.
    pub lost: u64,
    threads: BTreeMap<u32, Track>,
    /// When the first attempt was over, and how long a column of the timeline is.
    begin_ns: Option<u64>,
    column_ns: u64,
    ending: Option<Ending>,
}

/// Transactions that stand at the same place in the program.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Transactions {
    /// Where that is: file, line and column.
    pub site: String,
    /// Attempts that committed.
    pub committed: Attempts,
    /// Attempts that came to nothing.
    pub aborted: Attempts,
}

/// Attempts with the same outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Attempts {
    /// How many.
    pub count: u64,
    /// Reads and writes of those that came to nothing, and, if all was told, of others.
    pub accesses: u64,
    first: Times,
    later: Times,
}

/// Of so many attempts some have times.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Times {
    count: u64,
    measured: u64,
    measured_ns: u64,
}

/// Cells where transactions met.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Place {
    /// Their name, or the address without its highest bits.
    pub name: String,
    /// Attempts that came to nothing there.
    pub aborts: u64,
    /// Of cells with a name in common, the one where that was most often, and how often.
    pub hottest: Option<(u32, u64)>,
}

/// Transactions that failed because of others.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Conflict {
    /// Why.
    pub cause: String,
    /// Where in the program the one stands that failed.
    pub site: String,
    /// Where the one stands that was in the way, if that is known.
    pub other: Option<String>,
    /// How often.
    pub count: u64,
}

/// A thread, by pieces of time: attempts that committed, and that did not.
#[derive(Debug, Clone, Default)]
struct Track {
    name: String,
    columns: Vec<(u64, u64)>,
}

impl Times {
    fn add(&mut self, time_ns: Option<u64>) {
        self.count += 1;
        self.measured += u64::from(time_ns.is_some());
        self.measured_ns = self.measured_ns.saturating_add(time_ns.unwrap_or(0));
    }

    /// Of all, taking those with times for the rest.
    fn all_ns(&self) -> u64 {
        let all_ns = u128::from(self.measured_ns) * u128::from(self.count) / u128::from(self.measured.max(1));
        u64::try_from(all_ns).unwrap_or(u64::MAX)
    }
}

impl Attempts {
    fn add(&mut self, is_first: bool, time_ns: Option<u64>, accesses: u64) {
        self.count += 1;
        self.accesses = self.accesses.saturating_add(accesses);
        if is_first { &mut self.first } else { &mut self.later }.add(time_ns);
    }

    /// Nanoseconds that they took. Where only some first attempts have times, these stand for the others.
    pub fn time_ns(&self) -> u64 {
        self.first.all_ns().saturating_add(self.later.all_ns())
    }
}

/// What is known of a thread while events go by. Sums stay at their end: what a file says may be anything.
#[derive(Default)]
struct Stream {
    begin_ns: Option<u64>,
    site: u16,
    accesses: u64,
    writes: Vec<u32>,
    /// The attempt before came to nothing.
    is_later: bool,
}

impl Stream {
    fn add(&mut self, accesses: u64) {
        self.accesses = self.accesses.saturating_add(accesses);
    }
}

/// What is gathered from all.
#[derive(Default)]
struct Gathered {
    report: Report,
    streams: HashMap<u32, Stream>,
    sites: HashMap<u16, String>,
    /// Cells' names by their first place: how many they are.
    names: BTreeMap<u32, (u32, String)>,
    transactions: HashMap<u16, Transactions>,
    places: HashMap<u32, u64>,
    conflicts: HashMap<(String, u16, Option<u16>), u64>,
    /// Who wrote there last: a thread, and where in the program its transaction stands.
    writers: HashMap<u32, (u32, u16)>,
}

impl Report {
    /// Reads a trace.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is no trace. A trace without transactions gives an empty report.
    pub fn read(trace: impl Read + Seek) -> Result<Report, Error> {
        let mut timeline = Timeline::new(trace)?;
        let mut all = Gathered::default();
        all.report.column_ns = COLUMN_NS;
        while let Some(event) = timeline.next_event()? {
            all.take(&event);
        }
        for thread in timeline.threads() {
            if let Some(track) = all.report.threads.get_mut(&thread.stream) {
                track.name = thread.name.clone();
            }
        }
        let mut report = all.told();
        report.lost = timeline.ending().lost();
        report.ending = Some(timeline.ending().clone());
        Ok(report)
    }

    /// The piece of a thread's time that this is in. Where there are too few pieces, they become twice as long.
    fn column(&mut self, thread: u32, at_ns: u64) -> &mut (u64, u64) {
        let since_ns = at_ns.saturating_sub(*self.begin_ns.get_or_insert(at_ns));
        while since_ns / self.column_ns >= COLUMNS as u64 {
            self.column_ns *= 2;
            for track in self.threads.values_mut() {
                let pairs = track.columns.chunks(2);
                let sum = |pair: &[(u64, u64)]| pair.iter().fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
                track.columns = pairs.map(sum).collect();
                track.columns.resize(COLUMNS, (0, 0));
            }
        }
        let track = self.threads.entry(thread).or_default();
        track.columns.resize(COLUMNS, (0, 0));
        &mut track.columns[(since_ns / self.column_ns) as usize]
    }

    /// How the trace ended.
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    /// The timeline as a picture: a row for each thread, dark where its attempts committed, red where they did not, and higher
    /// where there were more.
    pub fn svg(&self) -> String {
        const WIDTH: usize = 10;
        const HEIGHT: usize = 40;
        const LEFT: usize = 160;
        let most =
            self.threads.values().flat_map(|t| &t.columns).map(|(good, bad)| good + bad).max().unwrap_or(0);
        let high = |count: u64| count as f64 * (HEIGHT - 4) as f64 / most.max(1) as f64;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" font-size=\"12\">\n",
            LEFT + COLUMNS * WIDTH + 10,
            (self.threads.len() + 1) * HEIGHT
        );
        let rectangle = |svg: &mut String, x: usize, bottom: f64, high: f64, fill: &str| {
            if high > 0.0 {
                let y = bottom - high;
                svg.push_str(&format!(
                    "<rect x=\"{x}\" y=\"{y:.1}\" width=\"{WIDTH}\" height=\"{high:.1}\" fill=\"{fill}\"/>\n"
                ));
            }
        };
        for (row, (stream, track)) in self.threads.iter().enumerate() {
            let bottom = ((row + 1) * HEIGHT) as f64;
            let name: String = track.name.chars().filter(|c| !c.is_control()).take(20).collect();
            let name = name.replace('&', "&amp;").replace('<', "&lt;");
            svg.push_str(&format!("<text x=\"4\" y=\"{bottom}\">{stream} {name}</text>\n"));
            for (column, &(good, bad)) in track.columns.iter().enumerate() {
                let x = LEFT + column * WIDTH;
                rectangle(&mut svg, x, bottom, high(bad), "#c0392b");
                rectangle(&mut svg, x, bottom - high(bad), high(good), "#34495e");
            }
        }
        let bottom = self.threads.len() * HEIGHT + HEIGHT / 2;
        let legend = format!(
            "{} a column, of at most {most} attempts: dark where they committed, red where not",
            time(self.column_ns)
        );
        svg.push_str(&format!("<text x=\"{LEFT}\" y=\"{bottom}\">{legend}</text>\n</svg>\n"));
        svg
    }

    /// How many attempts came to nothing for each that committed.
    pub fn aborts_per_commit(&self) -> f64 {
        self.aborts as f64 / self.commits.max(1) as f64
    }
}

impl Gathered {
    fn take(&mut self, event: &Record<'_>) {
        let number = |field| match event.value(field) {
            Some(Value::U64(number)) => number,
            _ => 0,
        };
        let text = |field| match event.value(field) {
            Some(Value::Text(text)) => text,
            _ => "",
        };
        let site = || number("site") as u16;
        let thread = event.thread().stream;
        let Some(kind) = event.kind().name().strip_prefix("stm.") else { return };
        let stream = self.streams.entry(thread).or_default();
        match kind {
            "site" if self.sites.len() < SITES_MAX => {
                let name = format!("{}:{}:{}", text("file"), number("line"), number("column"));
                self.sites.insert(site(), name);
            }
            "cells" if self.names.len() < NAMES_MAX => {
                self.names.insert(number("place") as u32, (number("count") as u32, text("name").into()));
            }
            "start" => (stream.begin_ns, stream.site) = (Some(event.time_ns()), site()),
            "read" => stream.add(1),
            "reads" => stream.add(number("count")),
            "write" => {
                stream.add(1);
                if stream.writes.len() < WRITES_MAX {
                    stream.writes.push(number("place") as u32);
                }
            }
            "commit" => self.over(thread, event.time_ns(), None),
            "done" => {
                stream.site = site();
                self.over(thread, event.time_ns(), None);
            }
            "abort" => {
                stream.site = site();
                stream.accesses = number("accesses");
                let other = (number("other") as u32 != NOBODY).then(|| number("other_site") as u16);
                let abort = (text("cause").to_owned(), number("place") as u32, other);
                self.over(thread, event.time_ns(), Some(abort));
            }
            _ => {}
        }
    }

    /// An attempt is over: as it should, or for a cause, at a place, because of another.
    fn over(&mut self, thread: u32, end_ns: u64, abort: Option<(String, u32, Option<u16>)>) {
        let Some(stream) = self.streams.get_mut(&thread) else { return };
        let time_ns = stream.begin_ns.take().map(|begin_ns| end_ns.saturating_sub(begin_ns));
        let is_first = !std::mem::replace(&mut stream.is_later, abort.is_some());
        let accesses = std::mem::take(&mut stream.accesses);
        let (site, writes) = (stream.site, std::mem::take(&mut stream.writes));
        let column = self.report.column(thread, end_ns);
        if abort.is_some() {
            column.1 += 1
        } else {
            column.0 += 1
        }
        let at = self.transactions.entry(site).or_default();
        let Some((cause, place, other)) = abort else {
            self.report.commits += 1;
            at.committed.add(is_first, time_ns, accesses);
            for place in writes {
                if self.writers.len() < PLACES_MAX || self.writers.contains_key(&place) {
                    self.writers.insert(place, (thread, site));
                }
            }
            return;
        };
        self.report.aborts += 1;
        at.aborted.add(is_first, time_ns, accesses);
        // Who has gone on since is who wrote there last.
        let writer = self.writers.get(&place).filter(|(writer, _)| *writer != thread);
        let other = other.or(writer.map(|(_, site)| *site));
        if place != 0 && (self.places.len() < PLACES_MAX || self.places.contains_key(&place)) {
            *self.places.entry(place).or_default() += 1;
        }
        let key = (cause, site, other);
        if self.conflicts.len() < CONFLICTS_MAX || self.conflicts.contains_key(&key) {
            *self.conflicts.entry(key).or_default() += 1;
        }
    }

    /// By names, and in order.
    fn told(mut self) -> Report {
        let name = |site: u16| match self.sites.get(&site) {
            Some(name) => name.clone(),
            None if site == 0 => "somewhere".into(),
            None => format!("site {site}"),
        };
        let mut report = self.report;
        report.transactions =
            self.transactions.drain().map(|(site, at)| Transactions { site: name(site), ..at }).collect();
        report.transactions.sort_by(|a, b| {
            (b.aborted.count, b.committed.count, &a.site).cmp(&(a.aborted.count, a.committed.count, &b.site))
        });
        let mut places = BTreeMap::<String, Place>::new();
        for (place, aborts) in self.places {
            let named =
                self.names.range(..=place).next_back().filter(|(first, (count, _))| place - **first < *count);
            let (name, index) = match named {
                Some((first, (count, name))) => (name.clone(), (*count > 1).then_some(place - first)),
                None => (format!("0x{:x}", u64::from(place) * 16), None),
            };
            let place = places.entry(name.clone()).or_insert(Place { name, aborts: 0, hottest: None });
            place.aborts += aborts;
            let is_hotter = |(other, most): (u32, u64)| (aborts, other) > (most, index.unwrap_or(0));
            if index.is_some() && place.hottest.is_none_or(is_hotter) {
                place.hottest = index.map(|index| (index, aborts));
            }
        }
        report.places = places.into_values().collect();
        report.places.sort_by(|a, b| (b.aborts, &a.name).cmp(&(a.aborts, &b.name)));
        let conflict = |((cause, site, other), count): ((String, u16, Option<u16>), u64)| Conflict {
            cause,
            site: name(site),
            other: other.map(name),
            count,
        };
        report.conflicts = self.conflicts.into_iter().map(conflict).collect();
        report.conflicts.sort_by(|a, b| {
            (b.count, &a.cause, &a.site, &a.other).cmp(&(a.count, &b.cause, &b.site, &b.other))
        });
        report
    }
}

/// Nanoseconds, readable.
fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}

fn percent(part: u64, all: u64) -> f64 {
    100.0 * part as f64 / all.max(1) as f64
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let sum =
            |of: &dyn Fn(&Transactions) -> u64| self.transactions.iter().map(of).fold(0, u64::saturating_add);
        let wasted_ns = sum(&|at| at.aborted.time_ns());
        let all_ns = wasted_ns.saturating_add(sum(&|at| at.committed.time_ns()));
        writeln!(
            f,
            "commits   {}, aborts {}: {:.4} aborts a commit",
            self.commits,
            self.aborts,
            self.aborts_per_commit()
        )?;
        writeln!(
            f,
            "time      {} in attempts, {} of it in those that came to nothing ({:.1}%), with {} accesses",
            time(all_ns),
            time(wasted_ns),
            percent(wasted_ns, all_ns),
            sum(&|at| at.aborted.accesses)
        )?;
        writeln!(
            f,
            "\n{:>12} {:>10} {:>9} {:>12} {:>12}  transactions at",
            "commits", "aborts", "a commit", "time", "wasted"
        )?;
        for at in self.transactions.iter().take(LINES_MAX) {
            let ratio = at.aborted.count as f64 / at.committed.count.max(1) as f64;
            let (wasted_ns, good_ns) = (at.aborted.time_ns(), at.committed.time_ns());
            writeln!(
                f,
                "{:>12} {:>10} {ratio:>9.4} {:>12} {:>12}  {}",
                at.committed.count,
                at.aborted.count,
                time(wasted_ns.saturating_add(good_ns)),
                time(wasted_ns),
                at.site.escape_debug()
            )?;
        }
        more(f, self.transactions.len())?;
        if !self.places.is_empty() {
            writeln!(f, "\n{:>12} {:>10}  cells where they met", "aborts", "of all")?;
        }
        for place in self.places.iter().take(LINES_MAX) {
            let name = place.name.escape_debug();
            write!(f, "{:>12} {:>9.1}%  {name}", place.aborts, percent(place.aborts, self.aborts))?;
            match place.hottest {
                Some((index, aborts)) => writeln!(f, ", {aborts} of them at {name}[{index}]")?,
                None => writeln!(f)?,
            }
        }
        more(f, self.places.len())?;
        let shown = self.conflicts.iter().take(LINES_MAX);
        let width = shown.map(|conflict| conflict.site.chars().count()).max().unwrap_or(0);
        if !self.conflicts.is_empty() {
            writeln!(f, "\n{:>12}  {:<15} {:<width$}  because of", "aborts", "cause", "of")?;
        }
        for conflict in self.conflicts.iter().take(LINES_MAX) {
            writeln!(
                f,
                "{:>12}  {:<15} {:<width$}  {}",
                conflict.count,
                conflict.cause.escape_debug().to_string(),
                conflict.site.escape_debug().to_string(),
                conflict.other.as_deref().unwrap_or("-").escape_debug()
            )?;
        }
        more(f, self.conflicts.len())?;
        writeln!(
            f,
            "\ntimeline, {} a column: . all attempts committed, 1 to 9 so many tenths did not",
            time(self.column_ns)
        )?;
        for (stream, track) in &self.threads {
            let columns: String = track.columns.iter().map(|&(good, bad)| mark(good, bad)).collect();
            writeln!(f, "{stream:>5} |{columns}| {}", track.name.escape_debug())?;
        }
        Ok(())
    }
}

fn more(f: &mut Formatter<'_>, count: usize) -> fmt::Result {
    if count > LINES_MAX { writeln!(f, "{:>12}  and {} more", "", count - LINES_MAX) } else { Ok(()) }
}

/// A piece of time, as a letter: tenths are rounded up.
fn mark(good: u64, bad: u64) -> char {
    match (good, bad) {
        (0, 0) => ' ',
        (_, 0) => '.',
        _ => char::from(b'0' + (bad * 10).div_ceil(good + bad).min(9) as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_beyond_all_numbers_are_the_most_there_are() {
        let mut attempts = Attempts::default();
        for is_first in [true, true, false] {
            attempts.add(is_first, Some(u64::MAX), 1);
            attempts.add(is_first, None, u64::MAX);
        }
        assert_eq!((attempts.time_ns(), attempts.accesses), (u64::MAX, u64::MAX));
    }
}
