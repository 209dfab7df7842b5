//! Writes timelines in Chrome's Trace Event Format, which Perfetto (ui.perfetto.dev) opens.
//!
//! Place in the loop: base. Traces of programs and timelines of simulated machines are exported
//! through this crate.
//!
//! # Example
//!
//! ```
//! use corebeat_chrome::{ChromeWriter, Track};
//!
//! let mut writer = ChromeWriter::new(Vec::new())?;
//! writer.process_name("simulated machine")?;
//! writer.track_name(1, "CPU 0")?;
//! writer.slice(Track::Thread(1), 2_000, 1_500, "solver thread 0", "solver")?;
//! let json = String::from_utf8(writer.finish()?).unwrap();
//! assert!(json.contains(r#""ts":2.0,"dur":1.5"#));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Model
//!
//! The format is one JSON object whose `traceEvents` are an array. The writer appends one event at
//! a time, so that a file larger than memory can be written:
//!
//! ```text
//!   {"displayTimeUnit":"ns","traceEvents":[
//!   {"ph":"M", ...},       names of processes and tracks
//!   {"ph":"X", ...},       a slice with its duration
//!   {"ph":"B", ...}, {"ph":"E", ...}    begin and end of a slice on a thread's track
//!   {"ph":"b", ...}, {"ph":"e", ...}    begin and end of a slice on an asynchronous track
//!   {"ph":"i", ...}        an instant
//!   ]}
//! ```
//!
//! # Invariants
//!
//! 1. The output is one valid JSON object, whatever characters names contain
//!    (`output_is_one_json_object`).
//!
//! # Failure
//!
//! Every method returns the error of the underlying writer. After an error the output is
//! incomplete.
//!
//! # Limits
//!
//! Times are microseconds as floating-point numbers, as the format requires. They are exact to one
//! nanosecond below 2^53 ns, which is 104 days.

use serde::{Serialize, Serializer};
use std::io::{self, Write};

/// Writes the events of one trace.
pub struct ChromeWriter<W> {
    out: W,
    pid: u32,
    separator: &'static str,
}

/// The track of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Track {
    /// The track of the thread with this number, or of another number that
    /// [`ChromeWriter::track_name`] names. Slices on such a track are nested or consecutive.
    Thread(u32),
    /// An asynchronous track, shared by all slices with this number.
    Async(u64),
}

/// How much of the trace an instant marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Its thread's track.
    Thread,
    /// All tracks.
    Global,
}

/// One event. Fields that are `None` are not written.
#[derive(Serialize)]
struct Event<'a, A: Serialize> {
    ph: &'static str,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<Microseconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<Microseconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<A>,
}

/// The arguments that name a process or a track.
#[derive(Serialize)]
struct Name<'a> {
    name: &'a str,
}

/// The arguments of the end of a slice.
#[derive(Serialize)]
struct Remark<'a> {
    remark: &'a str,
}

/// Nanoseconds that are written as microseconds.
struct Microseconds(u64);

impl Serialize for Microseconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0 as f64 / 1000.0)
    }
}

impl<'a, A: Serialize> Event<'a, A> {
    fn new(ph: &'static str, pid: u32, name: &'a str) -> Self {
        let (tid, id, cat, ts, dur, s, args) = (None, None, None, None, None, None, None);
        Event { ph, pid, tid, id, cat, ts, dur, s, name, args }
    }

    fn at(self, track: Track, time_ns: u64) -> Self {
        let ts = Some(Microseconds(time_ns));
        match track {
            Track::Thread(tid) => Event { tid: Some(tid), ts, ..self },
            // The format matches begin and end by category, number and name.
            Track::Async(id) => Event { id: Some(id.to_string()), cat: Some("async"), ts, ..self },
        }
    }
}

impl<W: Write> ChromeWriter<W> {
    /// Starts a trace of process 1.
    ///
    /// # Errors
    ///
    /// The output cannot be written.
    pub fn new(mut out: W) -> io::Result<ChromeWriter<W>> {
        write!(out, r#"{{"displayTimeUnit":"ns","traceEvents":["#)?;
        Ok(ChromeWriter { out, pid: 1, separator: "\n" })
    }

    /// Sets the process of all events that follow.
    pub fn set_process(&mut self, pid: u32) {
        self.pid = pid;
    }

    /// Names the process.
    ///
    /// # Errors
    ///
    /// The output cannot be written.
    pub fn process_name(&mut self, name: &str) -> io::Result<()> {
        let event = Event::new("M", self.pid, "process_name");
        self.put(&Event { args: Some(Name { name }), ..event })
    }

    /// Names the track [`Track::Thread`] of this number.
    ///
    /// # Errors
    ///
    /// The output cannot be written.
    pub fn track_name(&mut self, track: u32, name: &str) -> io::Result<()> {
        let event = Event::new("M", self.pid, "thread_name");
        self.put(&Event { tid: Some(track), args: Some(Name { name }), ..event })
    }

    /// Writes a whole slice, with a category by which viewers filter and colour.
    ///
    /// # Errors
    ///
    /// The output cannot be written.
    pub fn slice(
        &mut self,
        track: Track,
        begin_ns: u64,
        duration_ns: u64,
        name: &str,
        category: &str,
    ) -> io::Result<()> {
        let event = Event::<()>::new("X", self.pid, name).at(track, begin_ns);
        let dur = Some(Microseconds(duration_ns));
        self.put(&Event { dur, cat: Some(category), ..event })
    }

    /// Begins a slice. `args` is written as a JSON object; `None` writes no arguments.
    ///
    /// # Errors
    ///
    /// The output cannot be written.
    pub fn begin(
        &mut self,
        track: Track,
        time_ns: u64,
        name: &str,
        args: Option<impl Serialize>,
    ) -> io::Result<()> {
        let phase = if let Track::Thread(_) = track { "B" } else { "b" };
        self.put(&Event { args, ..Event::new(phase, self.pid, name).at(track, time_ns) })
    }

    /// Ends the slice of this name that began last on the track. A remark that is not empty becomes
    /// an argument of the slice.
    ///
    /// # Errors
    ///
    /// The output cannot be written.
    pub fn end(&mut self, track: Track, time_ns: u64, name: &str, remark: &str) -> io::Result<()> {
        let phase = if let Track::Thread(_) = track { "E" } else { "e" };
        let args = (!remark.is_empty()).then_some(Remark { remark });
        self.put(&Event { args, ..Event::new(phase, self.pid, name).at(track, time_ns) })
    }

    /// Writes an instant on a thread's track. `args` is written as a JSON object; `None` writes
    /// no arguments.
    ///
    /// # Errors
    ///
    /// The output cannot be written.
    pub fn instant(
        &mut self,
        track: u32,
        time_ns: u64,
        scope: Scope,
        name: &str,
        args: Option<impl Serialize>,
    ) -> io::Result<()> {
        let s = match scope {
            Scope::Thread => "t",
            Scope::Global => "g",
        };
        let event = Event::new("i", self.pid, name).at(Track::Thread(track), time_ns);
        self.put(&Event { s: Some(s), args, ..event })
    }

    /// Ends the object, flushes the output and returns it.
    ///
    /// # Errors
    ///
    /// The output cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        writeln!(self.out, "\n]}}")?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn put<A: Serialize>(&mut self, event: &Event<'_, A>) -> io::Result<()> {
        self.out.write_all(std::mem::replace(&mut self.separator, ",\n").as_bytes())?;
        serde_json::to_writer(&mut self.out, event).map_err(io::Error::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_one_json_object() {
        let name = "a \"b\" \\ \n\u{1}\u{7f} ü";
        let mut writer = ChromeWriter::new(Vec::new()).unwrap();
        writer.set_process(7);
        writer.process_name(name).unwrap();
        writer.track_name(3, name).unwrap();
        writer.slice(Track::Thread(3), 1_001, 2, name, name).unwrap();
        writer.begin(Track::Async(u64::MAX), 5, name, Some(Name { name })).unwrap();
        writer.end(Track::Async(u64::MAX), 6, name, name).unwrap();
        writer.begin(Track::Thread(3), 5, name, None::<()>).unwrap();
        writer.end(Track::Thread(3), 6, name, "").unwrap();
        writer.instant(3, 8_123_456_789_012_345, Scope::Global, name, None::<()>).unwrap();
        let object: serde_json::Value = serde_json::from_slice(&writer.finish().unwrap()).unwrap();
        let events = object["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 8);
        assert_eq!(events[0]["args"]["name"], name);
        assert_eq!((&events[2]["ts"], &events[2]["dur"]), (&1.001.into(), &0.002.into()));
        assert_eq!(
            (&events[3]["ph"], &events[3]["id"]),
            (&"b".into(), &u64::MAX.to_string().into())
        );
        assert_eq!(
            (&events[3]["args"]["name"], &events[4]["args"]["remark"]),
            (&name.into(), &name.into())
        );
        assert!(events[6].get("args").is_none());
        assert_eq!(events[7]["ts"], 8_123_456_789_012.345);
        assert!(events.iter().all(|event| event["pid"] == 7));
    }
}
