//! Evaluation of traces of transactions: frequency, places, causes and costs of aborts.

use crate::trace::{NOBODY, SITES_MAX};
use corebeat_trace::{Ending, Error, Record, Timeline, Value};
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Display, Formatter};
use std::io::{Read, Seek};

/// Number of columns of a timeline.
const COLUMNS: usize = 80;
/// Minimum duration of a column, in nanoseconds.
const COLUMN_NS: u64 = 1 << 10;
/// Maximum numbers of places, names of cells, and pairs of conflicting transactions. Further ones
/// are counted without a place, a name, or a pair.
const PLACES_MAX: usize = 1 << 20;
const NAMES_MAX: usize = 1 << 16;
const CONFLICTS_MAX: usize = 1 << 16;
/// Maximum number of recorded writes of an attempt.
const WRITES_MAX: usize = 1 << 16;
/// Maximum number of lines of a table in the text.
const LINES_MAX: usize = 12;

/// Statistics of the transactions in a trace. Its text is the output of `corebeat trace stm`.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Report {
    /// Number of committed attempts.
    pub commits: u64,
    /// Number of aborted attempts.
    pub aborts: u64,
    /// Transactions by call site; those with the most aborts first.
    pub transactions: Vec<Transactions>,
    /// Places of conflicts; the most frequent first.
    pub places: Vec<Place>,
    /// Pairs of conflicting transactions; the most frequent first.
    pub conflicts: Vec<Conflict>,
    /// Number of lost events.
    pub lost: u64,
    threads: BTreeMap<u32, Track>,
    /// End of the first attempt, and duration of a column of the timeline.
    begin_ns: Option<u64>,
    column_ns: u64,
    ending: Option<Ending>,
}

/// Transactions with the same call site.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Transactions {
    /// Call site: file, line and column.
    pub site: String,
    /// Committed attempts.
    pub committed: Attempts,
    /// Aborted attempts.
    pub aborted: Attempts,
}

/// Attempts with the same outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Attempts {
    /// Number of attempts.
    pub count: u64,
    /// Number of reads and writes of aborted attempts and, in a full trace, of committed ones.
    pub accesses: u64,
    first: Times,
    later: Times,
}

/// Durations of attempts, of which only some were measured.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Times {
    count: u64,
    measured: u64,
    measured_ns: u64,
}

/// Cells where transactions conflicted.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Place {
    /// Name of the cells, or their address without its highest bits.
    pub name: String,
    /// Number of attempts that aborted there.
    pub aborts: u64,
    /// For several cells with one name: index of the most frequent cell, and its number of aborts.
    pub hottest: Option<(u32, u64)>,
}

/// Transactions that aborted because of others.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Conflict {
    /// Cause of the aborts.
    pub cause: String,
    /// Call site of the aborted transaction.
    pub site: String,
    /// Call site of the conflicting transaction, if known.
    pub other: Option<String>,
    /// Number of aborts.
    pub count: u64,
}

/// Timeline of a thread: committed and aborted attempts by column.
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

    /// Estimates the total duration from the measured attempts.
    fn all_ns(&self) -> u64 {
        let all_ns = u128::from(self.measured_ns) * u128::from(self.count)
            / u128::from(self.measured.max(1));
        u64::try_from(all_ns).unwrap_or(u64::MAX)
    }
}

impl Attempts {
    fn add(&mut self, is_first: bool, time_ns: Option<u64>, accesses: u64) {
        self.count += 1;
        self.accesses = self.accesses.saturating_add(accesses);
        if is_first { &mut self.first } else { &mut self.later }.add(time_ns);
    }

    /// Returns the total duration in nanoseconds. If only some first attempts were measured, it is
    /// estimated from them.
    pub fn time_ns(&self) -> u64 {
        self.first.all_ns().saturating_add(self.later.all_ns())
    }
}

/// State of a thread during the evaluation. Sums saturate, because a file may contain any value.
#[derive(Default)]
struct Stream {
    begin_ns: Option<u64>,
    site: u16,
    accesses: u64,
    writes: Vec<u32>,
    /// Whether the previous attempt aborted.
    is_later: bool,
}

impl Stream {
    fn add(&mut self, accesses: u64) {
        self.accesses = self.accesses.saturating_add(accesses);
    }
}

/// State of the evaluation.
#[derive(Default)]
struct Builder {
    report: Report,
    streams: HashMap<u32, Stream>,
    sites: HashMap<u16, String>,
    /// Names and numbers of cells, by first place.
    names: BTreeMap<u32, (u32, String)>,
    transactions: HashMap<u16, Transactions>,
    places: HashMap<u32, u64>,
    conflicts: HashMap<(String, u16, Option<u16>), u64>,
    /// The last writer of each place: its thread and call site.
    writers: HashMap<u32, (u32, u16)>,
}

impl Report {
    /// Evaluates a trace. A trace without transactions results in an empty report.
    ///
    /// # Errors
    ///
    /// If the trace cannot be read, or is not a trace.
    pub fn read(trace: impl Read + Seek) -> Result<Report, Error> {
        let mut timeline = Timeline::new(trace)?;
        let mut all = Builder::default();
        all.report.column_ns = COLUMN_NS;
        while let Some(event) = timeline.next_event()? {
            all.take(&event);
        }
        for thread in timeline.threads() {
            if let Some(track) = all.report.threads.get_mut(&thread.stream) {
                track.name = thread.name.clone();
            }
        }
        let mut report = all.finish();
        report.lost = timeline.ending().lost();
        report.ending = Some(timeline.ending().clone());
        Ok(report)
    }

    /// Returns the column of a thread for this time. Doubles the duration of columns if there are
    /// too few.
    fn column(&mut self, thread: u32, at_ns: u64) -> &mut (u64, u64) {
        let since_ns = at_ns.saturating_sub(*self.begin_ns.get_or_insert(at_ns));
        while since_ns / self.column_ns >= COLUMNS as u64 {
            self.column_ns *= 2;
            for track in self.threads.values_mut() {
                let pairs = track.columns.chunks(2);
                let sum =
                    |pair: &[(u64, u64)]| pair.iter().fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
                track.columns = pairs.map(sum).collect();
                track.columns.resize(COLUMNS, (0, 0));
            }
        }
        let track = self.threads.entry(thread).or_default();
        track.columns.resize(COLUMNS, (0, 0));
        &mut track.columns[(since_ns / self.column_ns) as usize]
    }

    /// Returns how the trace ended.
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    /// Returns the timeline as SVG: a row for each thread with dark bars for committed attempts and
    /// red bars for aborted ones.
    pub fn svg(&self) -> String {
        const WIDTH: usize = 10;
        const HEIGHT: usize = 40;
        const LEFT: usize = 160;
        let most = self
            .threads
            .values()
            .flat_map(|t| &t.columns)
            .map(|(good, bad)| good + bad)
            .max()
            .unwrap_or(0);
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
            "{} per column, at most {most} attempts: dark committed, red aborted",
            time(self.column_ns)
        );
        svg.push_str(&format!("<text x=\"{LEFT}\" y=\"{bottom}\">{legend}</text>\n</svg>\n"));
        svg
    }

    /// Returns the number of aborted attempts per committed one.
    pub fn aborts_per_commit(&self) -> f64 {
        self.aborts as f64 / self.commits.max(1) as f64
    }
}

impl Builder {
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
                self.names
                    .insert(number("place") as u32, (number("count") as u32, text("name").into()));
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
            "commit" => self.end_attempt(thread, event.time_ns(), None),
            "done" => {
                stream.site = site();
                self.end_attempt(thread, event.time_ns(), None);
            }
            "abort" => {
                stream.site = site();
                stream.accesses = number("accesses");
                let other = (number("other") as u32 != NOBODY).then(|| number("other_site") as u16);
                let abort = (text("cause").to_owned(), number("place") as u32, other);
                self.end_attempt(thread, event.time_ns(), Some(abort));
            }
            _ => {}
        }
    }

    /// Records the end of an attempt; `abort` is the cause, the place and the other call site.
    fn end_attempt(&mut self, thread: u32, end_ns: u64, abort: Option<(String, u32, Option<u16>)>) {
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
        // The conflicting transaction may have ended: then it is the last writer.
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

    /// Resolves names and sorts the tables.
    fn finish(mut self) -> Report {
        let name = |site: u16| match self.sites.get(&site) {
            Some(name) => name.clone(),
            None if site == 0 => "unknown".into(),
            None => format!("site {site}"),
        };
        let mut report = self.report;
        report.transactions = self
            .transactions
            .drain()
            .map(|(site, at)| Transactions { site: name(site), ..at })
            .collect();
        report.transactions.sort_by(|a, b| {
            (b.aborted.count, b.committed.count, &a.site).cmp(&(
                a.aborted.count,
                a.committed.count,
                &b.site,
            ))
        });
        let mut places = BTreeMap::<String, Place>::new();
        for (place, aborts) in self.places {
            let named = self
                .names
                .range(..=place)
                .next_back()
                .filter(|(first, (count, _))| place - **first < *count);
            let (name, index) = match named {
                Some((first, (count, name))) => {
                    (name.clone(), (*count > 1).then_some(place - first))
                }
                None => (format!("0x{:x}", u64::from(place) * 16), None),
            };
            let place =
                places.entry(name.clone()).or_insert(Place { name, aborts: 0, hottest: None });
            place.aborts += aborts;
            let is_hotter =
                |(other, most): (u32, u64)| (aborts, other) > (most, index.unwrap_or(0));
            if index.is_some() && place.hottest.is_none_or(is_hotter) {
                place.hottest = index.map(|index| (index, aborts));
            }
        }
        report.places = places.into_values().collect();
        report.places.sort_by(|a, b| (b.aborts, &a.name).cmp(&(a.aborts, &b.name)));
        let conflict = |((cause, site, other), count): ((String, u16, Option<u16>), u64)| {
            Conflict { cause, site: name(site), other: other.map(name), count }
        };
        report.conflicts = self.conflicts.into_iter().map(conflict).collect();
        report.conflicts.sort_by(|a, b| {
            (b.count, &a.cause, &a.site, &a.other).cmp(&(a.count, &b.cause, &b.site, &b.other))
        });
        report
    }
}

/// Formats a duration.
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

impl Report {
    /// Writes the table of conflicts, with the most frequent first.
    fn write_conflicts(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let shown = self.conflicts.iter().take(LINES_MAX);
        let width = shown.map(|conflict| conflict.site.chars().count()).max().unwrap_or(0);
        if !self.conflicts.is_empty() {
            writeln!(
                f,
                "\n{:>12}  {:<15} {:<width$}  conflict with",
                "aborts", "cause", "call site"
            )?;
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
        more(f, self.conflicts.len())
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let sum = |of: &dyn Fn(&Transactions) -> u64| {
            self.transactions.iter().map(of).fold(0, u64::saturating_add)
        };
        let wasted_ns = sum(&|at| at.aborted.time_ns());
        let all_ns = wasted_ns.saturating_add(sum(&|at| at.committed.time_ns()));
        writeln!(
            f,
            "commits   {}, aborts {}: {:.4} aborts per commit",
            self.commits,
            self.aborts,
            self.aborts_per_commit()
        )?;
        writeln!(
            f,
            "time      {} in attempts, of which {} in aborted ones ({:.1}%) with {} accesses",
            time(all_ns),
            time(wasted_ns),
            percent(wasted_ns, all_ns),
            sum(&|at| at.aborted.accesses)
        )?;
        writeln!(
            f,
            "\n{:>12} {:>10} {:>9} {:>12} {:>12}  call site",
            "commits", "aborts", "ratio", "time", "wasted"
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
            writeln!(f, "\n{:>12} {:>10}  cells of conflicts", "aborts", "share")?;
        }
        for place in self.places.iter().take(LINES_MAX) {
            let name = place.name.escape_debug();
            write!(f, "{:>12} {:>9.1}%  {name}", place.aborts, percent(place.aborts, self.aborts))?;
            match place.hottest {
                Some((index, aborts)) => writeln!(f, ", of which {aborts} at {name}[{index}]")?,
                None => writeln!(f)?,
            }
        }
        more(f, self.places.len())?;
        self.write_conflicts(f)?;
        writeln!(
            f,
            "\ntimeline, {} per column: . all attempts committed, \
             1 to 9 tenths of aborted attempts",
            time(self.column_ns)
        )?;
        for (stream, track) in &self.threads {
            let columns: String =
                track.columns.iter().map(|&(good, bad)| mark(good, bad)).collect();
            writeln!(f, "{stream:>5} |{columns}| {}", track.name.escape_debug())?;
        }
        Ok(())
    }
}

fn more(f: &mut Formatter<'_>, count: usize) -> fmt::Result {
    if count > LINES_MAX {
        writeln!(f, "{:>12}  and {} more", "", count - LINES_MAX)
    } else {
        Ok(())
    }
}

/// Returns the character of a column: tenths of aborted attempts, rounded up.
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
    fn sums_of_times_saturate() {
        let mut attempts = Attempts::default();
        for is_first in [true, true, false] {
            attempts.add(is_first, Some(u64::MAX), 1);
            attempts.add(is_first, None, u64::MAX);
        }
        assert_eq!((attempts.time_ns(), attempts.accesses), (u64::MAX, u64::MAX));
    }
}
