//! What others read of a trace.

use corebeat_trace::{
    Compression, Event, Log, Options, Reader, Timeline, Trace, WhenFull, write_chrome, write_csv, write_ctf,
    write_json_lines, write_text,
};
use std::fs::File;
use std::path::Path;
use std::process::Command;

#[derive(Event)]
#[event(name = "bank.paid")]
struct Paid<'a> {
    #[event(hex)]
    address: u64,
    event: i16,
    rate: f64,
    small: f32,
    late: bool,
    to: &'a str,
}

#[derive(Event)]
#[event(untimed)]
struct Tick;

fn log_some(log: &Log, events: u32) {
    for n in 0..events {
        log.emit(&Paid {
            address: 0xfe00 + u64::from(n),
            event: -(n as i16),
            rate: 0.5,
            small: 1.25,
            late: n == 1,
            to: "a \"b\", c",
        });
        log.emit(&Tick);
    }
}

fn record(path: &Path, options: Options, events: u32) {
    let trace = options.create(path).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| log_some(&trace.log().unwrap(), events));
        }
    });
    trace.finish().unwrap();
}

fn reader(path: &Path) -> Reader<File> {
    Reader::new(File::open(path).unwrap()).unwrap()
}

fn exported(path: &Path, write: impl FnOnce(&mut Timeline<File>, &mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&mut Timeline::new(File::open(path).unwrap()).unwrap(), &mut out);
    String::from_utf8(out).unwrap()
}

/// What babeltrace2 prints of a folder, if it is here.
fn babeltrace2(folder: &Path) -> Option<String> {
    let output = match Command::new("babeltrace2").arg(folder).output() {
        Ok(output) => output,
        Err(_) => {
            eprintln!("skipped: no babeltrace2 here (Debian: apt-get install babeltrace2)");
            return None;
        }
    };
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{complaints}");
    Some(String::from_utf8(output.stdout).unwrap() + &complaints)
}

#[test]
fn babeltrace2_reads_what_is_exported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    record(&path, Options::default().compression(Compression::Zstd), 3);
    let ctf = folder.path().join("ctf");
    write_ctf(&mut reader(&path), &ctf).unwrap();
    assert!(write_ctf(&mut reader(&path), &ctf).is_err());
    let Some(text) = babeltrace2(&ctf) else { return };
    assert_eq!(text.lines().count(), 12, "{text}");
    let paid = "address = 0xFE01, event = -1, rate = 0.5, small = 1.25, late = 1, to = \"a \\\"b\\\", c\"";
    assert_eq!(text.lines().filter(|l| l.contains("bank.paid") && l.contains(paid)).count(), 2, "{text}");
    assert_eq!(text.lines().filter(|l| l.contains("Tick")).count(), 6, "{text}");
}

#[test]
fn babeltrace2_is_told_of_each_lost_event() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    // One small buffer, which is never free in time for all.
    let trace = Options::default().buffers(1).buffer_bytes(0).create(&path).unwrap();
    let log = trace.log().unwrap();
    log_some(&log, 30_000);
    drop(log);
    let lost = trace.finish().unwrap().lost;
    let ctf = folder.path().join("ctf");
    write_ctf(&mut reader(&path), &ctf).unwrap();
    let Some(text) = babeltrace2(&ctf) else { return };
    let told = text.lines().filter_map(|line| line.split_once("Tracer discarded ")?.1.split(' ').next());
    assert_eq!(told.map(|n| n.parse::<u64>().unwrap()).sum::<u64>(), lost);
    assert_eq!(text.lines().filter(|l| l.contains("{ stream")).count() as u64 + lost, 60_000);
}

#[test]
fn csv_has_a_column_for_each_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    record(&path, Options::default(), 2);
    let text = exported(&path, |timeline, out| write_csv(timeline, out).unwrap());
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 9);
    assert_eq!(lines[0], "time_ns,bound_ns,stream,tid,kind,address,event,rate,small,late,to");
    assert!(
        lines.iter().any(|l| l.ends_with(",bank.paid,0xfe01,-1,0.5,1.25,true,\"a \"\"b\"\", c\"")),
        "{text}"
    );
    assert!(lines.iter().any(|l| l.ends_with(",Tick,,,,,,")), "{text}");
}

#[test]
fn json_is_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    record(&path, Options::default(), 2);
    let text = exported(&path, |timeline, out| write_json_lines(timeline, out).unwrap());
    let paid =
        r#""fields":{"address":65025,"event":-1,"rate":0.5,"small":1.25,"late":true,"to":"a \"b\", c"}}"#;
    assert_eq!(text.lines().count(), 8);
    assert!(text.lines().any(|line| line.ends_with(paid)), "{text}");
    for line in text.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
    let mut out = Vec::new();
    write_chrome(&mut reader(&path), &mut out).unwrap();
    let chrome: serde_json::Value = serde_json::from_slice(&out).unwrap();
    // Two names of threads are events as well.
    assert_eq!(chrome["traceEvents"].as_array().unwrap().len(), 10);
}

#[test]
fn text_is_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    record(&path, Options::default().when_full(WhenFull::Wait), 500);
    let text = exported(&path, |timeline, out| write_text(timeline, out).unwrap());
    let times: Vec<f64> =
        text.lines().map(|l| l.split_whitespace().next().unwrap().parse().unwrap()).collect();
    assert_eq!(times.len(), 2000);
    assert!(times.is_sorted());
}

#[test]
fn trace_of_nothing_is_exported_as_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    Trace::create(&path).unwrap().finish().unwrap();
    assert_eq!(exported(&path, |timeline, out| write_text(timeline, out).unwrap()), "");
    write_ctf(&mut reader(&path), folder.path().join("ctf")).unwrap();
}
