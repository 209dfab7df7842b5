//! A line of a log: written, and read.
//!
//! ```text
//!   248954687985216 tid 191 disp 3 st Z et 7473 creat 248954684456346 [246,w,C,2,-!*;245,r,C,2,--*;]
//!   248954687997369 *** worker 0 waited (18) for 0.000056292
//!   248955428585140 *** Worker 1 exited. wait_cnt 16, wait_time 0.923745482
//! ```
//!
//! Source: Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing, 2011, 5.4.3 and 6.2.2.
//! Ours are the states `Bj`, `Bs` and `Bf`, and the line of records that were lost.

use crate::monitor::{Direction, Dispatch, End, Touched, Wait};
use crate::task::Status;

/// What a line says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Line<'a> {
    Dispatch(Dispatch<'a>),
    Wait(Wait),
    End(End),
    Lost(Lost),
    /// Something else about a worker.
    Other,
}

/// Records that there was no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) worker: usize,
    /// When it was told.
    pub(crate) end_ns: u64,
    pub(crate) records: u64,
}

/// States of the thesis first. A task that could run is never seen in other states than these.
const STATES: [(Status, &str); 8] = [
    (Status::Zombie, "Z"),
    (Status::Ready, "R"),
    (Status::Reading, "Bi"),
    (Status::Writing, "Bo"),
    (Status::Polling, "Ba"),
    (Status::Joining, "Bj"),
    (Status::Sleeping, "Bs"),
    (Status::Awaiting, "Bf"),
];

const SECOND_NS: u64 = 1_000_000_000;

/// Appends a dispatch's line; with the list of streams, if they are recorded.
pub(crate) fn write_dispatch(text: &mut Vec<u8>, dispatch: &Dispatch<'_>, with_streams: bool) {
    let state = STATES.iter().find(|s| s.0 == dispatch.status).map_or("R", |s| s.1);
    number(text, dispatch.end_ns);
    text.extend_from_slice(b" tid ");
    number(text, dispatch.task);
    text.extend_from_slice(b" disp ");
    number(text, dispatch.number);
    text.extend_from_slice(b" st ");
    text.extend_from_slice(state.as_bytes());
    text.extend_from_slice(b" et ");
    number(text, dispatch.execution_ns);
    if let Some(created_ns) = dispatch.created_ns {
        text.extend_from_slice(b" creat ");
        number(text, created_ns);
    }
    if with_streams {
        text.extend_from_slice(b" [");
        dispatch.streams.iter().for_each(|touched| write_touched(text, touched));
        text.push(b']');
    }
    text.push(b'\n');
}

fn write_touched(text: &mut Vec<u8>, touched: &Touched) {
    let flag = |set, flag| if set { flag } else { b'-' };
    number(text, touched.stream);
    let mode = if touched.direction == Direction::Write { b'w' } else { b'r' };
    let state = match (touched.closed, touched.opened) {
        (true, _) => b'C',
        (false, true) => b'O',
        (false, false) => b'I',
    };
    text.extend_from_slice(&[b',', mode, b',', state, b',']);
    number(text, touched.items);
    let flags = [flag(touched.blocked, b'?'), flag(touched.woke, b'!'), flag(touched.moved, b'*')];
    text.push(b',');
    text.extend_from_slice(&flags);
    text.push(b';');
}

pub(crate) fn write_wait(text: &mut Vec<u8>, wait: &Wait) {
    number(text, wait.end_ns);
    text.extend_from_slice(b" *** worker ");
    number(text, wait.worker as u64);
    text.extend_from_slice(b" waited (");
    number(text, wait.number);
    text.extend_from_slice(b") for ");
    seconds(text, wait.wait_ns);
    text.push(b'\n');
}

pub(crate) fn write_end(text: &mut Vec<u8>, end: &End) {
    number(text, end.end_ns);
    text.extend_from_slice(b" *** Worker ");
    number(text, end.worker as u64);
    text.extend_from_slice(b" exited. wait_cnt ");
    number(text, end.waits);
    text.extend_from_slice(b", wait_time ");
    seconds(text, end.wait_ns);
    text.push(b'\n');
}

pub(crate) fn write_lost(text: &mut Vec<u8>, lost: &Lost) {
    number(text, lost.end_ns);
    text.extend_from_slice(b" *** Worker ");
    number(text, lost.worker as u64);
    text.extend_from_slice(b" lost ");
    number(text, lost.records);
    text.extend_from_slice(b" records\n");
}

pub(crate) fn number(text: &mut Vec<u8>, number: u64) {
    text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn seconds(text: &mut Vec<u8>, time_ns: u64) {
    number(text, time_ns / SECOND_NS);
    text.push(b'.');
    // With a digit in front, which keeps the zeros.
    text.extend_from_slice(&itoa::Buffer::new().format(SECOND_NS + time_ns % SECOND_NS).as_bytes()[1..]);
}

/// Reads a line, without its end. The streams that it lists go to `streams`.
///
/// # Errors
///
/// What was expected and is not there.
pub(crate) fn parse<'a>(line: &str, streams: &'a mut Vec<Touched>) -> Result<Line<'a>, &'static str> {
    let (end_ns, rest) = line.split_once(' ').ok_or("expected a timestamp and more")?;
    let end_ns = parse_number(end_ns).ok_or("expected a timestamp in nanoseconds")?;
    match rest.strip_prefix("*** ") {
        Some(message) => parse_worker(end_ns, message),
        None => parse_dispatch(end_ns, rest, streams),
    }
}

fn parse_dispatch<'a>(
    end_ns: u64,
    text: &str,
    streams: &'a mut Vec<Touched>,
) -> Result<Line<'a>, &'static str> {
    streams.clear();
    let (text, list) = match text.split_once('[') {
        Some((text, list)) => (text, Some(list)),
        None => (text, None),
    };
    let mut words = text.split_ascii_whitespace();
    let mut field = |name| (words.next() == Some(name)).then(|| words.next()).flatten();
    let task = field("tid").and_then(parse_number).ok_or("expected `tid` and a task's number")?;
    let number = field("disp").and_then(parse_number).ok_or("expected `disp` and a dispatch's number")?;
    let state = field("st").ok_or("expected `st` and a state")?;
    let status =
        STATES.iter().find(|s| s.1 == state).ok_or("expected a state: Z, R, Bi, Bo, Ba, Bj, Bs or Bf")?;
    let execution_ns = field("et").and_then(parse_number).ok_or("expected `et` and a time in nanoseconds")?;
    let created_ns = match words.next() {
        Some("creat") => {
            Some(words.next().and_then(parse_number).ok_or("expected a timestamp after `creat`")?)
        }
        Some(_) => return Err("expected `creat`, or the list of streams"),
        None => None,
    };
    if words.next().is_some() {
        return Err("expected the list of streams");
    }
    if let Some(list) = list {
        let end = "expected `]` at the end of the list of streams";
        // The thesis has some lines in which the last semicolon stands behind the bracket.
        let list = list.trim_end().trim_end_matches(';').strip_suffix(']').ok_or(end)?;
        for touched in list.trim_end_matches([';', ']']).split_terminator(';') {
            streams.push(parse_touched(touched).ok_or("expected a stream as in `246,w,C,2,-!*`")?);
        }
    }
    let dispatch =
        Dispatch { end_ns, execution_ns, task, name: None, number, status: status.0, created_ns, streams };
    Ok(Line::Dispatch(dispatch))
}

fn parse_touched(text: &str) -> Option<Touched> {
    let mut fields = text.split(',');
    let mut field = || fields.next();
    let stream = parse_number(field()?)?;
    let direction = match field()? {
        "r" => Direction::Read,
        "w" => Direction::Write,
        _ => return None,
    };
    let (opened, closed) = match field()? {
        "O" => (true, false),
        "C" => (false, true),
        "I" => (false, false),
        _ => return None,
    };
    let items = parse_number(field()?)?;
    let &[blocked, woke, moved] = field()?.as_bytes() else { return None };
    let flag = |byte, flag| match byte {
        b'-' => Some(false),
        set => (set == flag).then_some(true),
    };
    let (blocked, woke, moved) = (flag(blocked, b'?')?, flag(woke, b'!')?, flag(moved, b'*')?);
    field().is_none().then_some(Touched { stream, direction, opened, closed, blocked, woke, moved, items })
}

fn parse_worker(end_ns: u64, message: &str) -> Result<Line<'static>, &'static str> {
    let Some(message) = message.strip_prefix("worker ").or_else(|| message.strip_prefix("Worker ")) else {
        return Ok(Line::Other);
    };
    let (worker, message) = message.split_once(' ').ok_or("expected a worker's number and more")?;
    let worker = worker.parse().map_err(|_| "expected a worker's number")?;
    let bad = "expected `waited (N) for S.SSSSSSSSS`, or `exited. wait_cnt N, wait_time S.SSSSSSSSS`";
    if let Some(wait) = message.strip_prefix("waited (") {
        let (number, time) = wait.split_once(") for ").ok_or(bad)?;
        let (number, wait_ns) = parse_number(number).zip(parse_seconds(time)).ok_or(bad)?;
        Ok(Line::Wait(Wait { worker, end_ns, wait_ns, number }))
    } else if let Some(end) = message.strip_prefix("exited. wait_cnt ") {
        let (waits, time) = end.split_once(", wait_time ").ok_or(bad)?;
        let (waits, wait_ns) = parse_number(waits).zip(parse_seconds(time)).ok_or(bad)?;
        Ok(Line::End(End { worker, end_ns, waits, wait_ns }))
    } else if let Some(lost) = message.strip_prefix("lost ") {
        let records = lost.strip_suffix(" records").and_then(parse_number);
        let records = records.ok_or("expected `lost N records`")?;
        Ok(Line::Lost(Lost { worker, end_ns, records }))
    } else {
        Ok(Line::Other)
    }
}

/// Digits only: no sign.
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

fn parse_seconds(text: &str) -> Option<u64> {
    let (whole, part) = text.trim_end().split_once('.')?;
    let part = (part.len() == 9).then(|| parse_number(part))??;
    parse_number(whole)?.checked_mul(SECOND_NS)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::UNTOUCHED;
    use crate::text::packed::tests::{dispatch, touched};
    use proptest::prelude::*;

    fn parsed(line: &str, streams: &mut Vec<Touched>) -> Line<'static> {
        match parse(line, streams).unwrap_or_else(|why| panic!("{line}: {why}")) {
            Line::Dispatch(dispatch) => Line::Dispatch(Dispatch { name: None, streams: &[], ..dispatch }),
            Line::Wait(wait) => Line::Wait(wait),
            Line::End(end) => Line::End(end),
            Line::Lost(lost) => Line::Lost(lost),
            Line::Other => Line::Other,
        }
    }

    #[test]
    fn lines_of_the_thesis_are_read_and_written_the_same() {
        let line = "248954687985216 tid 191 disp 3 st Z et 7473 creat 248954684456346 \
                    [246,w,C,2,-!*;245,r,C,2,--*;]";
        let mut streams = Vec::new();
        let Line::Dispatch(read) = parse(line, &mut streams).unwrap() else { panic!("no dispatch") };
        assert_eq!((read.end_ns, read.execution_ns), (248_954_687_985_216, 7473));
        assert_eq!((read.task, read.number, read.status), (191, 3, Status::Zombie));
        assert_eq!(read.created_ns, Some(248_954_684_456_346));
        let both = Touched { closed: true, moved: true, items: 2, ..UNTOUCHED };
        let first = Touched { stream: 246, direction: Direction::Write, woke: true, ..both };
        let second = Touched { stream: 245, ..both };
        assert_eq!(read.streams, [first, second]);
        let mut text = Vec::new();
        write_dispatch(&mut text, &read, true);
        assert_eq!(String::from_utf8(text).unwrap(), format!("{line}\n"));

        let line = "248954687997369 *** worker 0 waited (18) for 0.000056292";
        let wait = Wait { worker: 0, end_ns: 248_954_687_997_369, wait_ns: 56_292, number: 18 };
        assert_eq!(parsed(line, &mut streams), Line::Wait(wait));
        let mut text = Vec::new();
        write_wait(&mut text, &wait);
        assert_eq!(String::from_utf8(text).unwrap(), format!("{line}\n"));

        let line = "248955428585140 *** Worker 1 exited. wait_cnt 16, wait_time 0.923745482";
        let end = End { worker: 1, end_ns: 248_955_428_585_140, waits: 16, wait_ns: 923_745_482 };
        assert_eq!(parsed(line, &mut streams), Line::End(end));
        let mut text = Vec::new();
        write_end(&mut text, &end);
        assert_eq!(String::from_utf8(text).unwrap(), format!("{line}\n"));
    }

    #[test]
    fn other_endings_of_the_thesis_lists_are_read() {
        for (line, count) in [
            (
                "248954688005261 tid 4 disp 19 st Z et 4470 creat 248952382164573 [6,w,C,2,--*;246,r,C,2,--*];]",
                2,
            ),
            (
                "249246590900603 tid 4 disp 17 st Z et 10895 creat 249244526826468 [6,w,C,2,--*;246,r,C,2,?-*];",
                2,
            ),
            ("1 tid 4 disp 17 st Bi et 10895 []", 0),
            ("1 tid 4 disp 17 st Bi et 10895", 0),
        ] {
            let mut streams = Vec::new();
            parsed(line, &mut streams);
            assert_eq!(streams.len(), count, "{line}");
        }
        assert_eq!(parsed("5 *** something else", &mut Vec::new()), Line::Other);
    }

    #[test]
    fn bad_lines_say_what_was_expected() {
        for (line, expected) in [
            ("", "timestamp"),
            ("12", "timestamp"),
            ("-1 tid 1 disp 1 st R et 1", "timestamp"),
            ("99999999999999999999 tid 1 disp 1 st R et 1", "timestamp"),
            ("1 disp 1", "`tid`"),
            ("1 tid x", "`tid`"),
            ("1 tid 1 disp", "`disp`"),
            ("1 tid 1 disp 1 st Q et 1", "a state"),
            ("1 tid 1 disp 1 st R et", "`et`"),
            ("1 tid 1 disp 1 st R et 1 creat", "`creat`"),
            ("1 tid 1 disp 1 st R et 1 more", "`creat`"),
            ("1 tid 1 disp 1 st R et 1 creat 1 more", "list of streams"),
            ("1 tid 1 disp 1 st R et 1 [1,r,I,1,---;", "`]`"),
            ("1 tid 1 disp 1 st R et 1 [1,r,I,1,--;]", "a stream as in"),
            ("1 tid 1 disp 1 st R et 1 [1,r,I,1,-*!;]", "a stream as in"),
            ("1 tid 1 disp 1 st R et 1 [1,x,I,1,---;]", "a stream as in"),
            ("1 tid 1 disp 1 st R et 1 [1,r,I,1,---,;]", "a stream as in"),
            ("1 *** worker x waited (1) for 0.000000001", "worker's number"),
            ("1 *** worker 1 waited (1) for 0.1", "waited (N)"),
            ("1 *** Worker 1 exited. wait_cnt 1", "exited."),
            ("1 *** Worker 1 lost some records", "lost N"),
        ] {
            let why = parse(line, &mut Vec::new()).expect_err(line);
            assert!(why.contains(expected), "{line}: {why}");
        }
    }

    proptest! {
        #[test]
        fn dispatch_written_is_read_back(fields in dispatch(), list in proptest::collection::vec(touched(), 0..5)) {
            // Of an end that was opened and closed, only the second is told.
            let streams: Vec<_> =
                list.into_iter().map(|t| Touched { opened: t.opened && !t.closed, ..t }).collect();
            let written = Dispatch { streams: &streams, ..fields };
            let mut text = Vec::new();
            write_dispatch(&mut text, &written, true);
            let text = String::from_utf8(text).unwrap();
            let mut list = Vec::new();
            prop_assert_eq!(parse(text.trim_end(), &mut list), Ok(Line::Dispatch(written)));
        }

        #[test]
        fn any_text_is_read_or_refused(line in "[0-9]{0,3} ?(\\*\\*\\* |tid )?.{0,60}") {
            let _ = parse(&line, &mut Vec::new());
        }

        #[test]
        fn wait_and_end_written_are_read_back(worker: usize, end_ns: u64, wait_ns: u64, number: u64) {
            let (mut text, mut streams) = (Vec::new(), Vec::new());
            let wait = Wait { worker, end_ns, wait_ns, number };
            let end = End { worker, end_ns, waits: number, wait_ns };
            let lost = Lost { worker, end_ns, records: number };
            write_wait(&mut text, &wait);
            write_end(&mut text, &end);
            write_lost(&mut text, &lost);
            let text = String::from_utf8(text).unwrap();
            let lines: Vec<_> = text.lines().map(|line| parsed(line, &mut streams)).collect();
            prop_assert_eq!(lines, [Line::Wait(wait), Line::End(end), Line::Lost(lost)]);
        }
    }
}
