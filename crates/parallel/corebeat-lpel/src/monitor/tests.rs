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
