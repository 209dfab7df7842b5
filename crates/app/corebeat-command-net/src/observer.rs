//! Observers: write the records that pass a box or a net.
//!
//! ```text
//!  tasks --(bounded)--> one thread per target --> standard error, file, socket
//! ```
//!
//! A slow target delays the network. A target that fails is reported once and receives no more
//! records.

use crate::flow::{Form, Reporter};
use corebeat_command::Failure;
use corebeat_snet::Error;
use corebeat_snet::format::{Format, Writer};
use corebeat_snet::plan::{Net, Node};
use corebeat_snet::{Network, Position, Record};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};

/// Largest number of records between the network and a target.
const WAITING_MAX: usize = 1_024;

/// An observation that the user requested, and its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    name: String,
    /// `None` for both positions.
    position: Option<Position>,
    target: Target,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    StandardError,
    File(PathBuf),
    Socket(String),
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Wanted, String> {
        let (what, target) = match text.split_once('=') {
            Some((what, target)) => (what, target.parse()?),
            None => (text, Target::StandardError),
        };
        let (name, position) = match what.split_once(':') {
            None => (what, None),
            Some((name, "before")) => (name, Some(Position::Before)),
            Some((name, "after")) => (name, Some(Position::After)),
            Some((_, other)) => {
                return Err(format!(
                    "'{other}' is not a position; write NAME:before, NAME:after, or NAME for both"
                ));
            }
        };
        match name {
            "" => Err("the name is missing; name a box or a net".into()),
            name => Ok(Wanted { name: name.into(), position, target }),
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let is_port =
            |(host, port): (&str, &str)| !host.contains('/') && port.parse::<u16>().is_ok();
        match text {
            "" => {
                Err("the target is missing; name a file or HOST:PORT, or '-' for standard error"
                    .into())
            }
            "-" => Ok(Target::StandardError),
            text if text.rsplit_once(':').is_some_and(is_port) => Ok(Target::Socket(text.into())),
            text => Ok(Target::File(text.into())),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::StandardError => f.write_str("standard error"),
            Target::File(path) => path.display().fmt(f),
            Target::Socket(address) => f.write_str(address),
        }
    }
}

impl Wanted {
    /// The file that the records are written to, if the target is a file.
    pub(crate) fn file(&self) -> Option<&Path> {
        match &self.target {
            Target::File(path) => Some(path),
            Target::StandardError | Target::Socket(_) => None,
        }
    }

    pub(crate) fn is_on_standard_error(&self) -> bool {
        self.target == Target::StandardError
    }
}

/// The observer and the position of a record.
struct Place {
    observer: usize,
    name: String,
    position: Position,
}

enum Event {
    Passed(Arc<Place>, Record),
    End,
}

/// The writing threads, with the channels to them.
#[derive(Default)]
pub(crate) struct Observers(Vec<(SyncSender<Event>, JoinHandle<()>)>);

/// Checks that the net has every name that is to be observed.
///
/// # Errors
/// A usage failure for an unknown name.
pub(crate) fn require_known(net: &Net, wanted: &[Wanted]) -> Result<(), Failure> {
    let mut names = BTreeSet::from([net.name().to_owned()]);
    names.extend(net.boxes().iter().map(|plan| plan.name.clone()));
    net.root().visit(&mut |node| {
        if let Node::Net(name, _) = node {
            names.insert(name.to_string());
        }
    });
    if let Some(unknown) = wanted.iter().find(|w| !names.contains(&w.name)) {
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        return Err(Failure::usage(format!(
            "there is no box or net '{}' to observe; the known names are: {}",
            unknown.name,
            known.join(", ")
        )));
    }
    Ok(())
}

impl Observers {
    /// Attaches observers to a network.
    ///
    /// # Errors
    /// A usage failure for a target that cannot be opened.
    pub(crate) fn attach(
        mut network: Network,
        wanted: &[Wanted],
        form: &Form,
        reporter: &Reporter,
    ) -> Result<(Network, Observers), Failure> {
        let mut targets: Vec<(&Target, SyncSender<Event>)> = Vec::new();
        let mut observers = Observers::default();
        for (wanted, observer) in wanted.iter().zip(1..) {
            let known = targets.iter().find(|(target, _)| **target == wanted.target);
            let channel = match known {
                Some((_, channel)) => channel.clone(),
                None => {
                    let sink = open(&wanted.target)?;
                    let (channel, events) = sync_channel(WAITING_MAX);
                    let (form, reporter, name) =
                        (form.clone(), reporter.clone(), wanted.target.to_string());
                    let thread =
                        thread::spawn(move || write(&events, sink, &name, &form, &reporter));
                    observers.0.push((channel.clone(), thread));
                    targets.push((&wanted.target, channel.clone()));
                    channel
                }
            };
            for position in [Position::Before, Position::After] {
                if wanted.position.is_none_or(|p| p == position) {
                    let place = Arc::new(Place { observer, name: wanted.name.clone(), position });
                    let channel = channel.clone();
                    // Sending fails only after the last record.
                    network = network.observe(&wanted.name, position, move |record| {
                        drop(channel.send(Event::Passed(place.clone(), record.clone())));
                    });
                }
            }
        }
        Ok((network, observers))
    }

    /// Waits until every record is written.
    pub(crate) fn finish(self) {
        for (channel, thread) in self.0 {
            let _ = channel.send(Event::End);
            let _ = thread.join();
        }
    }
}

fn open(target: &Target) -> Result<Box<dyn Write + Send>, Failure> {
    let refused = |e| Failure::usage(format!("cannot write observed records to {target}: {e}"));
    Ok(match target {
        Target::StandardError => Box::new(io::stderr()),
        Target::File(path) => Box::new(File::create(path).map_err(refused)?),
        Target::Socket(address) => Box::new(TcpStream::connect(address).map_err(refused)?),
    })
}

/// Writes all observed records until the end, or until the target fails.
fn write(
    events: &Receiver<Event>,
    mut sink: Box<dyn Write + Send>,
    name: &str,
    form: &Form,
    reporter: &Reporter,
) {
    block_broken_pipe();
    let mut pen: Option<Pen> = None;
    let mut out = Vec::new();
    let (mut works, mut unwritable) = (true, false);
    loop {
        let event = match events.try_recv() {
            Err(TryRecvError::Empty) => {
                put(&mut sink, &mut out, &mut works, name, reporter);
                events.recv().ok()
            }
            event => event.ok(),
        };
        let Some(Event::Passed(place, record)) = event else { break };
        if !works {
            continue;
        }
        let pen = pen.get_or_insert_with(|| Pen::new(form.wait()));
        if let Err(why) = pen.write(&place, &record, &mut out)
            && !std::mem::replace(&mut unwritable, true)
        {
            reporter.report(format!(
                "corebeat: observer {}: this record and similar ones are left out: {why}\n",
                place.observer
            ));
        }
        if out.len() >= OUT_BYTES {
            put(&mut sink, &mut out, &mut works, name, reporter);
        }
    }
    put(&mut sink, &mut out, &mut works, name, reporter);
}

/// Bytes that are buffered before they are written.
const OUT_BYTES: usize = 64 << 10;

fn put(
    sink: &mut impl Write,
    out: &mut Vec<u8>,
    works: &mut bool,
    name: &str,
    reporter: &Reporter,
) {
    if *works
        && !out.is_empty()
        && let Err(e) = sink.write_all(out).and_then(|()| sink.flush())
    {
        *works = false;
        reporter.report(format!(
            "corebeat: observed records cannot be written to {name}: {e}; the network continues\n"
        ));
    }
    out.clear();
}

/// Blocks SIGPIPE in this thread, so that a closed reader is an error and does not end the process.
fn block_broken_pipe() {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is made empty before it is used, and only this thread's mask changes.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// Writes records with their positions.
struct Pen {
    format: Format,
    text: Text,
    writer: Writer<Text>,
}

/// The buffer of the writer.
#[derive(Clone, Default)]
struct Text(Rc<RefCell<Vec<u8>>>);

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Pen {
    fn new(format: Format) -> Pen {
        let text = Text::default();
        Pen { format, writer: Writer::new(text.clone(), format), text }
    }

    fn write(&mut self, place: &Place, record: &Record, out: &mut Vec<u8>) -> Result<(), Error> {
        let mut text = {
            self.writer.write(record)?;
            self.writer.flush()?;
            self.text.0.take()
        };
        text.truncate(text.trim_ascii_end().len());
        let Place { observer, name, position } = place;
        let position = match position {
            Position::Before => "before",
            Position::After => "after",
        };
        let (head, end) = match self.format {
            Format::Xml => (
                format!("<observer oid=\"{observer}\" position=\"{name}\" type=\"{position}\">"),
                "</observer>\n",
            ),
            Format::Json => (
                format!(
                    "{{\"observer\":{observer},\"position\":\"{name}\",\"type\":\"{position}\",\
                     \"record\":"
                ),
                "}\n",
            ),
        };
        out.extend_from_slice(head.as_bytes());
        out.append(&mut text);
        out.extend_from_slice(end.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_is_read_from_text() {
        let read = |text: &str| text.parse::<Wanted>();
        let wanted = |name: &str, position, target| Wanted { name: name.into(), position, target };
        assert_eq!(read("foo"), Ok(wanted("foo", None, Target::StandardError)));
        assert_eq!(
            read("foo:after=-"),
            Ok(wanted("foo", Some(Position::After), Target::StandardError))
        );
        let file = Target::File("a=b:c".into());
        assert_eq!(read("foo:before=a=b:c"), Ok(wanted("foo", Some(Position::Before), file)));
        assert_eq!(read("foo=./x:1"), Ok(wanted("foo", None, Target::File("./x:1".into()))));
        let socket = Target::Socket("host:99".into());
        assert_eq!(read("foo=host:99"), Ok(wanted("foo", None, socket)));
        for wrong in ["", ":before", "foo:", "foo:during", "foo=", "=file"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
