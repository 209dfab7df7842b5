//! Exports to other formats.

use corebeat_trace::{
    Compression, Event, Log, Options, Reader, Timeline, Trace, WhenFull, write_chrome, write_csv,
    write_ctf, write_json_lines, write_text,
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

/// The output of babeltrace2 for a folder, if babeltrace2 is installed.
fn babeltrace2(folder: &Path) -> Option<String> {
    let output = match Command::new("babeltrace2").arg(folder).output() {
        Ok(output) => output,
        Err(_) => {
            eprintln!(
                "skipped: babeltrace2 is not installed (Debian: apt-get install babeltrace2)"
            );
            return None;
        }
    };
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{complaints}");
    Some(String::from_utf8(output.stdout).unwrap() + &complaints)
}

#[test]
fn babeltrace2_reads_the_ctf_export() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    record(&path, Options { compression: Compression::Zstd, ..Options::default() }, 3);
    let ctf = folder.path().join("ctf");
    write_ctf(&mut reader(&path), &ctf).unwrap();
    assert!(write_ctf(&mut reader(&path), &ctf).is_err());
    let Some(text) = babeltrace2(&ctf) else { return };
    assert_eq!(text.lines().count(), 12, "{text}");
    let paid =
        "address = 0xFE01, event = -1, rate = 0.5, small = 1.25, late = 1, to = \"a \\\"b\\\", c\"";
    assert_eq!(
        text.lines().filter(|l| l.contains("bank.paid") && l.contains(paid)).count(),
        2,
        "{text}"
    );
    assert_eq!(text.lines().filter(|l| l.contains("Tick")).count(), 6, "{text}");
}

#[test]
fn ctf_export_reports_every_lost_event() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    // One small buffer, so that some events find no free one.
    let trace =
        Options { buffers: 1, buffer_bytes: 0, ..Options::default() }.create(&path).unwrap();
    let log = trace.log().unwrap();
    log_some(&log, 30_000);
    drop(log);
    let lost = trace.finish().unwrap().lost;
    let ctf = folder.path().join("ctf");
    write_ctf(&mut reader(&path), &ctf).unwrap();
    let Some(text) = babeltrace2(&ctf) else { return };
    let lost_per_packet =
        text.lines().filter_map(|line| line.split_once("Tracer discarded ")?.1.split(' ').next());
    assert_eq!(lost_per_packet.map(|n| n.parse::<u64>().unwrap()).sum::<u64>(), lost);
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
    // Kinds of other tests of this process may have columns, too.
    assert!(lines[0].starts_with("time_ns,bound_ns,stream,tid,kind,"), "{text}");
    assert!(lines[0].contains(",address,event,rate,small,late,to"), "{text}");
    let paid = ",0xfe01,-1,0.5,1.25,true,\"a \"\"b\"\", c\"";
    assert!(lines.iter().any(|l| l.contains(",bank.paid,") && l.contains(paid)), "{text}");
    let is_empty = |fields: &str| fields.len() >= 5 && fields.chars().all(|c| c == ',');
    let tick = lines.iter().find_map(|l| Some(l.split_once(",Tick,")?.1));
    assert!(tick.is_some_and(is_empty), "{text}");
}

#[derive(Event)]
#[event(untimed, kept)]
struct Account<'a> {
    account: u32,
    name: &'a str,
}

#[derive(Event)]
struct Closed {
    account: u32,
    account_name: u8,
}

#[test]
fn values_are_shown_with_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    let trace = Trace::create(&path).unwrap();
    let log = trace.log().unwrap();
    log.emit(&Account { account: 7, name: "savings" });
    log.emit(&Closed { account: 7, account_name: 3 });
    log.emit(&Closed { account: 8, account_name: 4 });
    trace.finish().unwrap();
    let csv = exported(&path, |timeline, out| write_csv(timeline, out).unwrap());
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let columns = ["kind", "account", "account_name", "name", "account_name_"];
    let places = columns.map(|name| rows[0].iter().position(|column| *column == name).unwrap());
    let shown: Vec<_> = rows[1..].iter().map(|row| places.map(|place| row[place])).collect();
    let expected = [
        ["Account", "7", "", "savings", ""],
        ["Closed", "7", "savings", "", "3"],
        ["Closed", "8", "", "", "4"],
    ];
    assert_eq!(shown, expected);
    let text = exported(&path, |timeline, out| write_text(timeline, out).unwrap());
    assert!(text.contains(r#"Closed account=7 (savings) account_name=3"#), "{text}");
    let json = exported(&path, |timeline, out| write_json_lines(timeline, out).unwrap());
    assert!(json.contains(r#""fields":{"account":7,"account_name_":"savings","#), "{json}");
    let mut chrome = Vec::new();
    write_chrome(&mut reader(&path), &mut chrome).unwrap();
    assert!(String::from_utf8(chrome).unwrap().contains(r#""account_name_":"savings""#));
}

#[test]
fn json_exports_are_valid_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    record(&path, Options::default(), 2);
    let text = exported(&path, |timeline, out| write_json_lines(timeline, out).unwrap());
    let paid = concat!(
        r#""fields":{"address":65025,"event":-1,"rate":0.5,"small":1.25,"late":true,"#,
        r#""to":"a \"b\", c"}}"#
    );
    assert_eq!(text.lines().count(), 8);
    assert!(text.lines().any(|line| line.ends_with(paid)), "{text}");
    for line in text.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
    let mut out = Vec::new();
    write_chrome(&mut reader(&path), &mut out).unwrap();
    let chrome: serde_json::Value = serde_json::from_slice(&out).unwrap();
    // The names of the process and of the two threads are events, too.
    let events = chrome["traceEvents"].as_array().unwrap();
    assert_eq!((events.len(), &events[0]["name"]), (11, &"process_name".into()));
    assert!(events[0]["args"]["name"].as_str().unwrap().starts_with("export"));
}

#[test]
fn text_export_is_sorted_by_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    record(&path, Options { when_full: WhenFull::Wait, ..Options::default() }, 500);
    let text = exported(&path, |timeline, out| write_text(timeline, out).unwrap());
    let times: Vec<f64> =
        text.lines().map(|l| l.split_whitespace().next().unwrap().parse().unwrap()).collect();
    assert_eq!(times.len(), 2000);
    assert!(times.is_sorted());
}

#[test]
fn empty_trace_is_complete_and_has_an_empty_export() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    Trace::create(&path).unwrap().finish().unwrap();
    let mut reader_of_nothing = reader(&path);
    assert!(reader_of_nothing.next_packet().unwrap().is_none());
    assert_eq!(reader_of_nothing.ending().unwrap().to_string(), "complete");
    assert_eq!(exported(&path, |timeline, out| write_text(timeline, out).unwrap()), "");
    write_ctf(&mut reader(&path), folder.path().join("ctf")).unwrap();
}
