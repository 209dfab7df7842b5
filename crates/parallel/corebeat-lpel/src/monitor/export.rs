//! Exporter: the text format of the thesis, written from a trace.

use super::event::{Meaning, stream_use};
use super::line;
use super::log::{LogError, create, failed, log_path, map_path};
use super::{Dispatch, End, Level, StreamUse, Wait};
use crate::error::WORKERS_MAX;
use crate::task::Status;
use corebeat_trace::{Packet, Reader, Record, Value};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Content of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Number of records that were written.
    pub records: u64,
    /// Number of records that were lost, because there was no room for them.
    pub lost: u64,
}

/// Writes the trace of a [`TextLog`](crate::monitor::TextLog) as text: a file for each worker, and
/// the names of tasks, into `folder`.
///
/// [`TextLog::finish`](crate::monitor::TextLog::finish) calls this function. A call of its own is
/// useful for the trace of a process that was killed, which contains all records but those of the
/// last second.
///
/// # Errors
///
/// The trace cannot be read, or a file cannot be written.
pub fn export_text(trace: impl AsRef<Path>, folder: impl AsRef<Path>) -> Result<Written, LogError> {
    let (written, failure) = export(trace.as_ref(), folder.as_ref());
    failure.map_or(Ok(written), Err)
}

/// Writes as much as possible. Returns what was written, and the first failure.
pub(super) fn export(trace: &Path, folder: &Path) -> (Written, Option<LogError>) {
    let mut exporter = Exporter { folder: folder.into(), ..Exporter::default() };
    let failure = exporter.run(trace).err();
    (exporter.written, failure.or(exporter.failure))
}

#[derive(Default)]
struct Exporter {
    folder: PathBuf,
    /// The first event of the trace has the level. Without it, all records are written.
    level: Option<Level>,
    names: Option<File>,
    /// State by number of the trace's thread.
    sources: BTreeMap<u32, Source>,
    workers: BTreeMap<usize, Worker>,
    /// Meanings of events by number of their kind, as far as known.
    meanings: Vec<Option<Meaning>>,
    /// Text of one packet, and names in it.
    text: Vec<u8>,
    name_text: Vec<u8>,
    written: Written,
    /// After a failure, no more files are written.
    failure: Option<LogError>,
}

/// A thread of the trace, and the events of a record that is not complete yet.
#[derive(Default)]
struct Source {
    worker: Option<usize>,
    /// Number of lost events before the last packet.
    lost: u64,
    name: Option<(u64, String)>,
    streams: Vec<StreamUse>,
    created_ns: Option<u64>,
}

#[derive(Default)]
struct Worker {
    log: Option<File>,
    records: u64,
    lost_events: u64,
    /// End of the worker, and number of records that it made.
    end: Option<(End, u64)>,
}

impl Exporter {
    fn records(&self, level: Level) -> bool {
        self.level.is_none_or(|recorded| recorded >= level)
    }

    fn run(&mut self, trace: &Path) -> Result<(), LogError> {
        let file = File::open(trace).map_err(|e| failed(trace, e))?;
        remove_logs(&self.folder)?;
        self.names = Some(create(&map_path(&self.folder))?);
        let mut reader = Reader::new(io::BufReader::new(file))?;
        while let Some(packet) = reader.next_packet()? {
            self.write_packet(&packet);
        }
        self.write_ends();
        Ok(())
    }

    fn write_packet(&mut self, packet: &Packet) {
        self.text.clear();
        self.name_text.clear();
        let number = packet.thread().stream;
        let mut source = self.sources.remove(&number).unwrap_or_default();
        if packet.lost() > source.lost {
            // Events are lost between packets only. Parts of a record with a gap are dropped.
            source = Source { worker: source.worker, lost: packet.lost(), ..Source::default() };
        }
        let mut records = 0;
        for event in packet.events() {
            records += u64::from(self.write_event(&mut source, &event));
        }
        if let Some(worker) = source.worker {
            self.workers.entry(worker).or_default().lost_events = source.lost;
            self.save(worker, records);
        }
        self.sources.insert(number, source);
    }

    /// Formats an event. Returns whether the event completes a record.
    fn write_event(&mut self, source: &mut Source, event: &Record<'_>) -> bool {
        let meaning = self.meaning(event);
        let mut values = event.values();
        let mut next = || number(values.next());
        match meaning {
            Meaning::Monitor => self.level = Some(level(next())),
            Meaning::Worker => {
                let worker = usize::try_from(next()).ok();
                source.worker = worker.filter(|worker| *worker < WORKERS_MAX);
            }
            Meaning::Name => {
                let task = next();
                if let Some(Value::Text(part)) = values.next() {
                    let name = source.name.take().filter(|(known, _)| *known == task);
                    source.name.insert(name.unwrap_or((task, String::new()))).1.push_str(part);
                }
            }
            Meaning::Stream => {
                source.streams.push(stream_use(next(), next(), next()));
            }
            Meaning::Created => source.created_ns = Some(next()),
            Meaning::Dispatch => {
                let times = (next(), next());
                let (task, dispatch, status, streams) = (next(), next(), next(), next());
                while let Some(Value::U64(stream)) = values.next() {
                    let (items, flags) = (number(values.next()), number(values.next()));
                    source.streams.push(stream_use(stream, items, flags));
                }
                return self.write_dispatch(source, times, (task, dispatch), status, streams);
            }
            Meaning::Wait => {
                let Some(worker) = source.worker else { return false };
                let wait = Wait { worker, end_ns: next(), wait_ns: next(), number: next() };
                line::write_wait(&mut self.text, &wait);
                return true;
            }
            Meaning::End => {
                let Some(worker) = source.worker else { return false };
                let end = End { worker, end_ns: next(), waits: next(), wait_ns: next() };
                self.workers.entry(worker).or_default().end = Some((end, next()));
            }
            Meaning::Unknown => {}
        }
        false
    }

    fn meaning(&mut self, event: &Record<'_>) -> Meaning {
        let kind = event.kind();
        let number = usize::from(kind.number());
        if self.meanings.len() <= number {
            self.meanings.resize(number + 1, None);
        }
        *self.meanings[number].get_or_insert_with(|| Meaning::of(kind.name()))
    }

    /// Formats a dispatch, unless parts of it are lost.
    fn write_dispatch(
        &mut self,
        source: &mut Source,
        (end_ns, execution_ns): (u64, u64),
        (task, number): (u64, u64),
        status: u64,
        streams: u64,
    ) -> bool {
        let status = u8::try_from(status).ok().and_then(Status::from_u8);
        let created_ns = source.created_ns.take();
        let name = source.name.take();
        let is_whole = status.is_some_and(|s| (s == Status::Zombie) == created_ns.is_some())
            && source.streams.len() as u64 == streams
            && source.worker.is_some();
        if let Some(status) = status.filter(|_| is_whole) {
            if let Some((task, name)) = name {
                write_name(&mut self.name_text, task, &name);
            }
            let streams = &source.streams[..];
            let dispatch = Dispatch {
                end_ns,
                execution_ns,
                task,
                name: None,
                number,
                status,
                created_ns,
                streams,
            };
            let with_streams = self.records(Level::MarkedStreams);
            line::write_dispatch(&mut self.text, &dispatch, with_streams);
        }
        source.streams.clear();
        is_whole
    }

    /// Writes the line of lost records and the last line of each worker.
    fn write_ends(&mut self) {
        for number in self.workers.keys().copied().collect::<Vec<_>>() {
            let worker = &self.workers[&number];
            self.text.clear();
            self.name_text.clear();
            let mut records = 0;
            let (end_ns, lost) = match &worker.end {
                Some((end, made)) => (end.end_ns, made.saturating_sub(worker.records)),
                None => (0, worker.lost_events),
            };
            if lost > 0 && self.failure.is_none() {
                line::write_lost(&mut self.text, number, end_ns, lost);
            }
            if let Some((end, _)) = worker.end.as_ref().filter(|_| self.records(Level::Workers)) {
                line::write_end(&mut self.text, end);
                records += 1;
            }
            self.written.lost += lost;
            self.save(number, records);
        }
    }

    /// Writes the formatted lines, which are `records` records of a worker.
    fn save(&mut self, worker: usize, records: u64) {
        if self.failure.is_none() {
            self.failure = self.try_save(worker).err();
        }
        if self.failure.is_none() {
            self.written.records += records;
            self.workers.entry(worker).or_default().records += records;
        }
    }

    fn try_save(&mut self, worker: usize) -> Result<(), LogError> {
        if let Some(names) = &mut self.names {
            names.write_all(&self.name_text).map_err(|e| failed(&map_path(&self.folder), e))?;
        }
        let path = log_path(&self.folder, worker);
        let log = match &mut self.workers.entry(worker).or_default().log {
            Some(log) => log,
            none => none.insert(create(&path)?),
        };
        log.write_all(&self.text).map_err(|e| failed(&path, e))
    }
}

/// Value of a field; 0 where a damaged file has no number.
fn number(value: Option<Value<'_>>) -> u64 {
    match value {
        Some(Value::U64(number)) => number,
        _ => 0,
    }
}

fn level(number: u64) -> Level {
    match number {
        0 => Level::Marked,
        1 => Level::MarkedStreams,
        2 => Level::All,
        _ => Level::Workers,
    }
}

/// Removes the logs of an earlier run from a folder.
pub(super) fn remove_logs(folder: &Path) -> Result<(), LogError> {
    for worker in 0.. {
        let old = log_path(folder, worker);
        match fs::remove_file(&old) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => break,
            removed => removed.map_err(|e| failed(&old, e))?,
        }
    }
    Ok(())
}

/// Appends a line for the name of a task. Line ends in names are written as `\n` and `\r`, and a
/// backslash as `\\`, so that each name has one line.
fn write_name(text: &mut Vec<u8>, task: u64, name: &str) {
    let name = name.replace('\\', r"\\").replace('\n', r"\n").replace('\r', r"\r");
    text.extend_from_slice(format!("{task} {name}\n").as_bytes());
}
