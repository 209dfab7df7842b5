//! Formatting and parsing of a line of a log.
//!
//! ```text
//!   248954687985216 tid 191 disp 3 st Z et 7473 creat 248954684456346 [246,w,C,2,-!*;...]
//!   248954687997369 *** worker 0 waited (18) for 0.000056292
//!   248955428585140 *** Worker 1 exited. wait_cnt 16, wait_time 0.923745482
//! ```
//!
//! Source: Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing,
//! 2011, 5.4.3 and 6.2.2. The states `Bj`, `Bs` and `Bf` and the line for lost records are
//! additions.

use super::{Direction, Dispatch, End, StreamUse, Wait};
use crate::task::Status;

/// States of a task after a dispatch. The states of the thesis come first.
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

/// Appends parts to a text.
macro_rules! append {
    ($text:expr, $($part:expr),+) => { $($part.append($text);)+ };
}

/// Part of a line. `write!` would take four times as long, and logs have millions of lines.
trait Part {
    fn append(self, text: &mut Vec<u8>);
}

impl Part for u64 {
    fn append(self, text: &mut Vec<u8>) {
        itoa::Buffer::new().format(self).append(text);
    }
}

impl Part for &str {
    fn append(self, text: &mut Vec<u8>) {
        text.extend_from_slice(self.as_bytes());
    }
}

/// A duration in nanoseconds, written in seconds with all digits.
struct Seconds(u64);

impl Part for Seconds {
    fn append(self, text: &mut Vec<u8>) {
        const SECOND_NS: u64 = 1_000_000_000;
        append!(text, self.0 / SECOND_NS, ".");
        // The leading digit preserves the zeros after it.
        itoa::Buffer::new().format(SECOND_NS + self.0 % SECOND_NS)[1..].append(text);
    }
}

/// Appends the line of a dispatch. The list of streams is present if streams are recorded.
pub(crate) fn write_dispatch(text: &mut Vec<u8>, dispatch: &Dispatch<'_>, with_streams: bool) {
    let Dispatch { end_ns, execution_ns, task, number, status, created_ns, streams, .. } =
        *dispatch;
    let state = STATES.iter().find(|s| s.0 == status).map_or("R", |s| s.1);
    append!(text, end_ns, " tid ", task, " disp ", number, " st ", state, " et ", execution_ns);
    if let Some(created_ns) = created_ns {
        append!(text, " creat ", created_ns);
    }
    if with_streams {
        append!(text, " [");
        streams.iter().for_each(|stream_use| write_use(text, stream_use));
        append!(text, "]");
    }
    append!(text, "\n");
}

fn write_use(text: &mut Vec<u8>, stream_use: &StreamUse) {
    let StreamUse { stream, direction, opened, closed, blocked, woke, moved, items } = *stream_use;
    let mode = if direction == Direction::Write { ",w" } else { ",r" };
    let state = match (closed, opened) {
        (true, _) => ",C,",
        (false, true) => ",O,",
        (false, false) => ",I,",
    };
    let flag = |set, flag| if set { flag } else { "-" };
    append!(text, stream, mode, state, items, ",");
    append!(text, flag(blocked, "?"), flag(woke, "!"), flag(moved, "*"), ";");
}

pub(crate) fn write_wait(text: &mut Vec<u8>, wait: &Wait) {
    let (worker, duration) = (wait.worker as u64, Seconds(wait.wait_ns));
    append!(text, wait.end_ns, " *** worker ", worker, " waited (", wait.number, ") for ");
    append!(text, duration, "\n");
}

pub(crate) fn write_end(text: &mut Vec<u8>, end: &End) {
    let (worker, duration) = (end.worker as u64, Seconds(end.wait_ns));
    append!(text, end.end_ns, " *** Worker ", worker, " exited. wait_cnt ", end.waits);
    append!(text, ", wait_time ", duration, "\n");
}

/// Appends the line of a worker that lost `records` records until `end_ns`.
pub(crate) fn write_lost(text: &mut Vec<u8>, worker: usize, end_ns: u64, records: u64) {
    append!(text, end_ns, " *** Worker ", worker as u64, " lost ", records, " records\n");
}

/// Parses a line without its line end, up to the execution time. Returns the number of the task
/// and the execution time in nanoseconds; `None` for a message about a worker.
///
/// # Errors
///
/// Returns the content that was expected.
pub(crate) fn parse(line: &str) -> Result<Option<(u64, u64)>, &'static str> {
    let (end_ns, rest) = line.split_once(' ').ok_or("expected a timestamp and more")?;
    parse_number(end_ns).ok_or("expected a timestamp in nanoseconds")?;
    if rest.starts_with("*** ") {
        return Ok(None);
    }
    let mut words = rest.split_ascii_whitespace();
    let mut field = |name| (words.next() == Some(name)).then(|| words.next()).flatten();
    let task =
        field("tid").and_then(parse_number).ok_or("expected `tid` and the number of a task")?;
    field("disp").and_then(parse_number).ok_or("expected `disp` and the number of a dispatch")?;
    field("st")
        .filter(|state| STATES.iter().any(|s| s.1 == *state))
        .ok_or("expected `st` and a state: Z, R, Bi, Bo, Ba, Bj, Bs or Bf")?;
    let execution_ns =
        field("et").and_then(parse_number).ok_or("expected `et` and a time in nanoseconds")?;
    Ok(Some((task, execution_ns)))
}

/// Parses digits. A sign is an error.
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::UNUSED;
    use proptest::prelude::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut text = Vec::new();
        write(&mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn records_are_formatted_as_the_lines_of_the_thesis() {
        let both = StreamUse { closed: true, moved: true, items: 2, ..UNUSED };
        let first = StreamUse { stream: 246, direction: Direction::Write, woke: true, ..both };
        let second = StreamUse { stream: 245, ..both };
        let last = Dispatch {
            end_ns: 248_954_687_985_216,
            execution_ns: 7473,
            task: 191,
            name: None,
            number: 3,
            status: Status::Zombie,
            created_ns: Some(248_954_684_456_346),
            streams: &[first, second],
        };
        let opens = StreamUse { stream: 7, opened: true, blocked: true, ..UNUSED };
        let waits = Dispatch { status: Status::Reading, created_ns: None, ..last };
        let wait = Wait { worker: 0, end_ns: 248_954_687_997_369, wait_ns: 56_292, number: 18 };
        let end = End { worker: 1, end_ns: 248_955_428_585_140, waits: 16, wait_ns: 3_923_745_482 };
        let begin = "248954687985216 tid 191 disp 3 st";
        for (text, expected) in [
            (
                written(|text| write_dispatch(text, &last, true)),
                format!("{begin} Z et 7473 creat 248954684456346 [246,w,C,2,-!*;245,r,C,2,--*;]"),
            ),
            (
                written(|text| {
                    write_dispatch(text, &Dispatch { streams: &[opens], ..waits }, true)
                }),
                format!("{begin} Bi et 7473 [7,r,O,0,?--;]"),
            ),
            (
                written(|text| {
                    write_dispatch(text, &Dispatch { streams: &[UNUSED], ..waits }, true)
                }),
                format!("{begin} Bi et 7473 [0,r,I,0,---;]"),
            ),
            (written(|text| write_dispatch(text, &waits, false)), format!("{begin} Bi et 7473")),
            (
                written(|text| write_wait(text, &wait)),
                "248954687997369 *** worker 0 waited (18) for 0.000056292".into(),
            ),
            (
                written(|text| write_end(text, &end)),
                "248955428585140 *** Worker 1 exited. wait_cnt 16, wait_time 3.923745482".into(),
            ),
            (written(|text| write_lost(text, 2, 5, 25)), "5 *** Worker 2 lost 25 records".into()),
        ] {
            assert_eq!(text, expected.clone() + "\n");
            let is_dispatch = expected.starts_with(begin);
            assert_eq!(parse(&expected), Ok(is_dispatch.then_some((191, 7473))), "{expected}");
        }
    }

    #[test]
    fn error_names_the_expected_content() {
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
        ] {
            let why = parse(line).expect_err(line);
            assert!(why.contains(expected), "{line}: {why}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_rejected(line in "[0-9]{0,3} ?(\\*\\*\\* |tid )?.{0,60}") {
            let _ = parse(&line);
        }
    }
}
