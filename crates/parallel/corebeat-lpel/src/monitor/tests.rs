//! Records of whole runs.

use super::*;
use crate::{Runtime, Task, stream};
use std::sync::{Arc, Mutex};

/// A copy of a dispatch record.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) name: Option<String>,
    number: u64,
    status: Status,
    created: bool,
    pub(super) streams: Vec<StreamUse>,
}

/// Collects all dispatch records.
#[derive(Clone)]
struct Collect(Level, Arc<Mutex<Vec<Record>>>);

impl Monitor for Collect {
    fn level(&self) -> Level {
        self.0
    }

    fn listener(&self, _: usize) -> Box<dyn Listener> {
        Box::new(self.clone())
    }
}

impl Listener for Collect {
    fn dispatched(&mut self, dispatch: &Dispatch<'_>) {
        self.1.lock().unwrap().push(Record {
            name: dispatch.name.map(str::to_owned),
            number: dispatch.number,
            status: dispatch.status,
            created: dispatch.created_ns.is_some(),
            streams: dispatch.streams.to_vec(),
        });
    }

    fn waited(&mut self, _: &Wait) {}

    fn ended(&mut self, _: &End) {}
}

/// Runs `f` on one deterministic worker and returns the records.
pub(super) fn records(level: Level, f: impl FnOnce() + Send + 'static) -> Vec<Record> {
    let collect = Collect(level, Arc::default());
    let builder = Runtime::builder().workers(1).deterministic(1);
    let runtime = builder.monitor(collect.clone()).build().unwrap();
    runtime.run(f).unwrap();
    drop(runtime);
    let records = collect.1.lock().unwrap();
    records.clone()
}

pub(super) fn of<'a>(records: &'a [Record], name: &str) -> Vec<&'a Record> {
    records.iter().filter(|r| r.name.as_deref() == Some(name)).collect()
}

/// A marked task and an unmarked one. The stream between them blocks both.
fn pair() {
    let (mut to, mut from) = stream(1);
    let writer = move || (0..3).for_each(|n| to.write(n).unwrap());
    Task::new().name("writer").mark().spawn(writer).unwrap();
    let reader = async move { while from.read_async().await.is_some() {} };
    Task::new().name("reader").spawn_async(reader).unwrap();
}

#[test]
fn dispatch_reports_each_end_once() {
    let records = records(Level::All, pair);
    let (writer, reader) = (of(&records, "writer"), of(&records, "reader"));
    for side in [&writer, &reader] {
        assert!(side.iter().zip(1..).all(|(r, number)| r.number == number));
        assert!(side.iter().all(|r| r.streams.len() <= 1), "{side:#?}");
        let opened = side.iter().flat_map(|r| &r.streams).filter(|t| t.opened).count();
        assert_eq!(opened, 1);
        let last = side.last().unwrap();
        assert!(last.status == Status::Zombie && last.created);
        let [end] = last.streams[..] else { panic!("{last:?}") };
        assert!(end.closed && end.items == 3 && end.stream == writer[0].streams[0].stream);
    }
    for blocked in records.iter().filter(|r| matches!(r.status, Status::Reading | Status::Writing))
    {
        assert!(blocked.streams[0].blocked, "{blocked:?}");
    }
    assert!(reader.len() > 2 && reader[0].status == Status::Awaiting, "{reader:#?}");
    assert!(reader.iter().all(|r| r.streams[0].blocked == (r.status == Status::Awaiting)));
    assert!(writer.iter().all(|r| r.streams.iter().all(|t| t.direction == Direction::Write)));
}

#[test]
fn level_selects_what_is_recorded() {
    let marked = records(Level::Marked, pair);
    assert!(!marked.is_empty() && marked.iter().all(|r| r.name.as_deref() == Some("writer")));
    assert!(marked.iter().all(|r| r.streams.is_empty()));
    let with_streams = records(Level::MarkedStreams, pair);
    let is_writer = |r: &Record| r.name.as_deref() == Some("writer") && r.streams.len() == 1;
    assert!(with_streams.iter().all(is_writer));
    assert!(!of(&records(Level::All, pair), "reader").is_empty());
}

#[test]
fn dispatch_that_drops_many_streams_reports_all_ends() {
    const STREAMS: usize = 100; // more than the monitor keeps before it deletes dropped ends
    let many = || {
        for n in 0..STREAMS {
            let (mut to, mut from) = stream(1);
            to.write(n).unwrap();
            assert_eq!(from.read(), Some(n));
        }
    };
    let records = records(Level::All, move || {
        Task::new().name("many").spawn(many).unwrap();
    });
    let [dispatch] = of(&records, "many")[..] else { panic!("{records:#?}") };
    let is_whole = |end: &&StreamUse| end.opened && end.moved && end.closed && end.items == 1;
    assert_eq!(dispatch.streams.iter().filter(is_whole).count(), 2 * STREAMS);
}

#[test]
fn end_keeps_its_number_of_items_in_the_next_runtime() {
    let collect = Collect(Level::All, Arc::default());
    let runtime = || {
        let builder = Runtime::builder().workers(1);
        builder.monitor(collect.clone()).build().unwrap()
    };
    let (mut writer, mut reader) = stream(8);
    for n in 0..3 {
        writer = runtime()
            .run(move || {
                writer.write(n).unwrap();
                let written = move || {
                    writer.write(n).unwrap();
                    writer
                };
                Task::new().blocking().spawn(written).unwrap().join().unwrap()
            })
            .unwrap();
    }
    drop(writer);
    assert_eq!(std::iter::from_fn(|| reader.read()).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2]);
    let records = collect.1.lock().unwrap();
    let uses = records.iter().flat_map(|record| &record.streams);
    let items = uses.filter(|end| end.opened && end.direction == Direction::Write);
    assert_eq!(items.map(|end| end.items).collect::<Vec<_>>(), [1, 2, 3]);
}
