//! What is in the streams of a network, and who is busy.
//!
//! The meter tells how many items went into and out of each stream; a dump tells who waits where now, and how large
//! streams have grown.

use crate::net::flow::Scene;
use crate::net::meter::{Entity, Meter, NumberHasher, lock};
use corebeat_lpel::monitor::Direction;
use corebeat_lpel::{Dump, Status, StreamDump, WaitsFor};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Streams that are known at a time.
const STREAMS_MAX: usize = 1 << 20;

/// Streams that are shown one by one. If there are more, those of tasks of one name are shown as one.
const SINGLE_MAX: usize = 100;

/// The task that lets records in.
const INPUT: &str = "<input>";

/// What was seen at one look.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) net: String,
    pub(crate) seconds: f64,
    pub(crate) given: u64,
    pub(crate) put: u64,
    pub(crate) given_per_s: f64,
    pub(crate) put_per_s: f64,
    pub(crate) faults: u64,
    /// Tasks: all, those that run, and those that could.
    pub(crate) tasks: u64,
    pub(crate) running: usize,
    pub(crate) ready: usize,
    pub(crate) workers: usize,
    /// Who ran most since the last look, and on how many workers, on average.
    pub(crate) busiest: Option<(String, f64)>,
    pub(crate) streams: usize,
    /// The fullest first.
    pub(crate) gauges: Vec<Gauge>,
}

/// A stream, or all to tasks of one name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Gauge {
    /// Who reads.
    pub(crate) reader: Arc<str>,
    /// The number of the fullest.
    pub(crate) stream: u64,
    pub(crate) streams: usize,
    pub(crate) full: usize,
    /// Items in the fullest, and what it has room for.
    pub(crate) fill: u64,
    pub(crate) capacity: u64,
    /// Items in all of them.
    pub(crate) items: u64,
}

/// What is known of a stream.
#[derive(Default)]
struct Known {
    written: Option<u64>,
    read: Option<u64>,
    reader: usize,
    writer_closed: bool,
    reader_closed: bool,
    /// Another than that of all others.
    capacity: Option<u64>,
    /// Whether the writer, or the reader, waits now.
    waits: Option<Direction>,
}

/// Looks at a network, again and again.
pub(crate) struct Gauges {
    meter: Meter,
    scene: Scene,
    begin: Instant,
    last: Instant,
    given: u64,
    put: u64,
    /// Names of entities; streams have places in it.
    names: Vec<Arc<str>>,
    /// What a stream's reader is called that has not begun.
    nobody: Arc<str>,
    run_ns: Vec<u64>,
    streams: HashMap<u64, Known, BuildHasherDefault<NumberHasher>>,
}

impl Gauges {
    pub(crate) fn new(meter: Meter, scene: Scene) -> Gauges {
        Gauges {
            meter,
            begin: scene.begin,
            last: scene.begin,
            scene,
            given: 0,
            put: 0,
            names: Vec::new(),
            nobody: "a task not begun".into(),
            run_ns: Vec::new(),
            streams: HashMap::default(),
        }
    }

    /// All from the begin on, for the last line.
    pub(crate) fn whole(&mut self) -> Seen {
        (self.last, self.given, self.put) = (self.begin, 0, 0);
        self.run_ns.fill(0);
        self.look()
    }

    /// What there is now, and what went on since the last look.
    pub(crate) fn look(&mut self) -> Seen {
        let now = Instant::now();
        let span_s = now.duration_since(std::mem::replace(&mut self.last, now)).as_secs_f64();
        let tally = self.scene.tally.clone();
        let (given, put) = (tally.given.load(Ordering::Relaxed), tally.put.load(Ordering::Relaxed));
        let before = (std::mem::replace(&mut self.given, given), std::mem::replace(&mut self.put, put));
        let rate = |n: u64| if span_s > 0.0 { n as f64 / span_s } else { 0.0 };
        let mut seen = Seen {
            net: self.scene.net.clone(),
            seconds: now.duration_since(self.begin).as_secs_f64(),
            given,
            put,
            given_per_s: rate(given.saturating_sub(before.0)),
            put_per_s: rate(put.saturating_sub(before.1)),
            faults: tally.faults.load(Ordering::Relaxed),
            workers: self.scene.workers,
            ..Seen::default()
        };
        seen.busiest = self.listen().map(|(name, ns)| (name, rate(ns) / 1e9));
        match self.scene.runtime.upgrade() {
            Some(runtime) => {
                let dump = runtime.dump();
                seen.tasks = dump.tasks.len() as u64 + dump.unstarted;
                let count = |status| dump.tasks.iter().filter(|task| task.status == status).count();
                (seen.running, seen.ready) = (count(Status::Running), count(Status::Ready));
                self.wait(&dump);
            }
            // It has ended, and its streams with it.
            None => self.streams.clear(),
        }
        (seen.streams, seen.gauges) = self.gauges();
        seen
    }

    /// Takes what the meter has heard. Who ran longest since the last time.
    fn listen(&mut self) -> Option<(String, u64)> {
        let mut run_ns = vec![0; self.names.len()];
        for (_, figures) in self.meter.workers() {
            let (entities, touched) = lock(&figures).take();
            let places: Vec<usize> = entities.iter().map(|entity| self.place(entity)).collect();
            run_ns.resize(self.names.len(), 0);
            entities.iter().zip(&places).for_each(|(entity, place)| run_ns[*place] += entity.run_ns);
            for (number, ends) in touched {
                if !self.streams.contains_key(&number) && self.streams.len() >= STREAMS_MAX {
                    continue;
                }
                let known = self.streams.entry(number).or_default();
                if let Some(writer) = ends.writer {
                    known.written = known.written.max(Some(writer.items));
                    known.writer_closed |= writer.closed;
                }
                if let Some(reader) = ends.reader {
                    known.read = known.read.max(Some(reader.items));
                    known.reader_closed |= reader.closed;
                    known.reader = places[reader.entity];
                }
            }
        }
        self.streams.retain(|_, known| !(known.reader_closed && known.writer_closed));
        self.run_ns.resize(run_ns.len(), 0);
        let since = run_ns.iter().zip(&self.run_ns).map(|(now, before)| now.saturating_sub(*before));
        let longest = since.enumerate().max_by_key(|(_, ns)| *ns).filter(|(_, ns)| *ns > 0);
        let longest = longest.map(|(place, ns)| (self.names[place].to_string(), ns));
        self.run_ns = run_ns;
        longest
    }

    fn place(&mut self, entity: &Entity) -> usize {
        // There are as many as the program has boxes, and a few.
        self.names.iter().position(|name| **name == *entity.name).unwrap_or_else(|| {
            self.names.push((*entity.name).into());
            self.names.len() - 1
        })
    }

    /// Notes who waits where.
    fn wait(&mut self, dump: &Dump) {
        self.streams.values_mut().for_each(|known| known.waits = None);
        for task in &dump.tasks {
            let streams: &[StreamDump] = match &task.waits_for {
                Some(WaitsFor::Stream(stream)) => std::slice::from_ref(stream),
                Some(WaitsFor::Any(streams)) => streams,
                _ => &[],
            };
            for stream in streams {
                if let Some(known) = self.streams.get_mut(&stream.id) {
                    known.capacity = Some(stream.capacity as u64);
                    known.waits = Some(stream.direction);
                }
            }
        }
    }

    /// How many streams there are, and what is in them.
    fn gauges(&self) -> (usize, Vec<Gauge>) {
        let mut gauges: Vec<Gauge> = self
            .streams
            .iter()
            .filter(|(_, known)| !known.reader_closed)
            .filter_map(|(number, known)| self.gauge(*number, known))
            .collect();
        let streams = gauges.len();
        if streams > SINGLE_MAX {
            let mut groups: HashMap<Arc<str>, Gauge> = HashMap::new();
            for gauge in gauges {
                match groups.get_mut(&gauge.reader) {
                    Some(group) => group.join(&gauge),
                    None => drop(groups.insert(gauge.reader.clone(), gauge)),
                }
            }
            gauges = groups.into_values().collect();
        }
        gauges.sort_by(|a, b| {
            b.share()
                .total_cmp(&a.share())
                .then_with(|| b.items.cmp(&a.items))
                .then_with(|| a.stream.cmp(&b.stream))
        });
        (streams, gauges)
    }

    fn gauge(&self, stream: u64, known: &Known) -> Option<Gauge> {
        let capacity = known.capacity.unwrap_or(self.scene.capacity as u64).max(1);
        let mut reader = match known.read {
            Some(_) => self.names[known.reader].clone(),
            None => self.nobody.clone(),
        };
        let fill = match (known.written, known.read) {
            (Some(written), Some(read)) => written.saturating_sub(read),
            // What no task writes comes from outside: the network's input.
            (None, Some(read)) if *reader == *INPUT && read > 0 => {
                reader = "the network's input".into();
                self.given.saturating_sub(read)
            }
            // What no task reads goes outside, if so much went through: the network's output.
            (Some(written), None) if written > capacity => {
                reader = "the network's output".into();
                written.saturating_sub(self.put)
            }
            // It may be the output as well.
            (Some(written), None) if written > self.put => written,
            _ => return None,
        };
        let fill = match known.waits {
            Some(Direction::Write) => capacity,
            Some(Direction::Read) => 0,
            None => fill.min(capacity),
        };
        Some(Gauge {
            reader,
            stream,
            streams: 1,
            full: usize::from(fill == capacity),
            fill,
            capacity,
            items: fill,
        })
    }
}

impl Gauge {
    /// How full the fullest is.
    pub(crate) fn share(&self) -> f64 {
        self.fill as f64 / self.capacity.max(1) as f64
    }

    fn join(&mut self, other: &Gauge) {
        if other.share() > self.share() {
            (self.stream, self.fill, self.capacity) = (other.stream, other.fill, other.capacity);
        }
        self.streams += other.streams;
        self.full += other.full;
        self.items += other.items;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Weak;

    fn gauges(known: Vec<(u64, Known)>) -> Gauges {
        let scene = Scene {
            net: "main".into(),
            boxes: vec![],
            capacity: 64,
            workers: 2,
            tally: Default::default(),
            begin: Instant::now(),
            runtime: Weak::new(),
        };
        let names = vec!["foo".into(), INPUT.into()];
        let (run_ns, streams) = (vec![0; 2], known.into_iter().collect());
        Gauges { names, run_ns, streams, given: 90, put: 70, ..Gauges::new(Meter::of_streams(), scene) }
    }

    fn known(written: Option<u64>, read: Option<u64>) -> Known {
        Known { written, read, ..Known::default() }
    }

    #[test]
    fn fill_is_what_went_in_and_not_out() {
        let full = Known { waits: Some(Direction::Write), capacity: Some(8), ..known(Some(9), Some(4)) };
        let empty = Known { waits: Some(Direction::Read), ..known(Some(9), Some(4)) };
        let closed = Known { reader_closed: true, ..known(Some(9), Some(4)) };
        let input = Known { reader: 1, ..known(None, Some(80)) };
        let (streams, gauges) = gauges(vec![
            (1, known(Some(9), Some(4))),
            (2, full),
            (3, empty),
            (4, closed),
            (5, input),
            (6, known(Some(100), None)),
            (7, known(Some(3), None)),
            (8, known(Some(4), Some(5))),
        ])
        .gauges();
        let shown: Vec<_> = gauges.iter().map(|g| (g.stream, g.fill, g.capacity, &*g.reader)).collect();
        assert_eq!(
            shown,
            [
                (2, 8, 8, "foo"),
                (6, 30, 64, "the network's output"),
                (5, 10, 64, "the network's input"),
                (1, 5, 64, "foo"),
                (3, 0, 64, "foo"),
                (8, 0, 64, "foo"),
            ]
        );
        assert_eq!(streams, 6);
    }

    #[test]
    fn many_streams_are_grouped_by_their_readers() {
        let many = (0..1000).map(|n| (n, known(Some(n % 65), Some(0)))).collect();
        let (streams, gauges) = gauges(many).gauges();
        assert_eq!((streams, gauges.len()), (1000, 1));
        let Gauge { streams, full, fill, capacity, .. } = gauges[0];
        assert_eq!((streams, full, fill, capacity), (1000, 15, 64, 64));
    }
}
