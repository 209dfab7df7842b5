//! The cost of a heartbeat for the thread that emits it, beside the alternatives.
//!
//! Each subject runs in a separate process, and each thread on its own CPU. A lap has a fixed
//! number of beats per thread, and all threads begin a lap together.

use crate::Bench;
use crate::apart;
use crate::lap::{self, Lap};
use crate::session::Session;
use clap::ValueEnum;
use corebeat_heartbeat::Group;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) const BENCHES: [Bench; 1] = [Bench {
    name: "heartbeat.beat",
    summary: "time that a thread takes to emit a heartbeat",
    peers: &["application heartbeats", "atomic add, one for all"],
    tools: &[],
    cases: apart::thread_cases,
    run,
}];

/// Samples in the window of Application Heartbeats, and records in its log.
const WINDOW: usize = 20;
const LOG: usize = 1000;

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Subject {
    Corebeat,
    #[value(name = "application heartbeats")]
    Reference,
    #[value(name = "atomic add, one for all")]
    Add,
}

impl Subject {
    /// Beats of a lap, which takes some hundredths of a second.
    fn beats(self) -> u64 {
        match self {
            Subject::Corebeat => 50_000_000,
            Subject::Reference => 400_000,
            Subject::Add => 2_000_000,
        }
    }
}

fn run(session: &Session) -> Result<(), String> {
    let does = |_: Subject| true;
    apart::measure_threads(session, BENCHES[0].name, "ns/beat", does, |subject, count| {
        let beats = if session.quick { 1000 } else { subject.beats() };
        let options = Options { subject, laps: lap::LapOptions::new(session, count, beats) };
        let mut command = apart::command(session, "heartbeat", &options)?;
        // Without a daemon, the group belongs to this process.
        command.env("COREBEAT_SOCKET", session.folder().join("no-daemon"));
        // The subject checks the number of beats itself, because runs differ in this number.
        apart::value(command)
    })
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    subject: Subject,
    laps: lap::LapOptions,
}

/// The main function of the child.
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    let (laps, time, counted) = match options.subject {
        Subject::Corebeat => {
            let total = AtomicU64::new(0);
            let (laps, time) = laps(options, |beats, lap| {
                let producer = Group::new(7).produce().expect("a group has room for two producers");
                while lap.begins() {
                    (0..beats).for_each(|_| producer.beat(1));
                    lap.ends();
                }
                // SAFETY: the counter belongs to this thread and exists as long as the producer.
                let counter = unsafe { producer.counter().as_ref() };
                total.fetch_add(counter.load(Ordering::Relaxed), Ordering::Relaxed);
            });
            (laps, time, total.into_inner())
        }
        Subject::Reference => {
            let heart = Mutex::new(Heart::new());
            let (laps, time) = laps(options, |beats, lap| {
                while lap.begins() {
                    (0..beats).for_each(|_| beat(&heart));
                    lap.ends();
                }
            });
            (laps, time, heart.into_inner().expect("no holder of the lock panics").beats)
        }
        Subject::Add => {
            let counter = AtomicU64::new(0);
            let (laps, time) = laps(options, |beats, lap| {
                while lap.begins() {
                    (0..beats).for_each(|_| {
                        counter.fetch_add(1, Ordering::Relaxed);
                    });
                    lap.ends();
                }
            });
            (laps, time, counter.into_inner())
        }
    };
    let expected = laps * options.laps.operations * options.laps.threads as u64;
    if counted != expected {
        return Err(format!("the subject counted {counted} beats instead of {expected}"));
    }
    Ok((options.laps.ns(laps, time), counted))
}

/// Runs laps of beats until the measured time suffices. Returns the number of laps, and the time of
/// all laps except the first.
fn laps(options: &Options, thread: impl Fn(u64, &Lap) + Sync) -> (u64, Duration) {
    options.laps.run(|_, lap| thread(options.laps.operations, lap))
}

/// The shared state of Application Heartbeats.
struct Heart {
    begin: Instant,
    last: Instant,
    beats: u64,
    /// Times between successive beats, and their sum.
    window: VecDeque<Duration>,
    sum: Duration,
    log: Vec<Record>,
}

#[derive(Clone, Copy, Default)]
struct Record {
    _beat: u64,
    _time: Duration,
    _global_rate: f64,
    _window_rate: f64,
    _instant_rate: f64,
}

impl Heart {
    fn new() -> Heart {
        let now = Instant::now();
        let window = VecDeque::from([Duration::ZERO; WINDOW]);
        Heart {
            begin: now,
            last: now,
            beats: 0,
            window,
            sum: Duration::ZERO,
            log: vec![Record::default(); LOG],
        }
    }
}

/// A beat as Hoffmann et al. describe it (*Application Heartbeats*, 2010). Under a lock, the beat
/// reads the time, computes the rates, and appends a record to a log that other threads read.
fn beat(heart: &Mutex<Heart>) {
    let mut heart = heart.lock().expect("no holder of the lock panics");
    let now = Instant::now();
    let since = now - heart.last;
    let oldest = heart.window.pop_front().unwrap_or_default();
    heart.window.push_back(since);
    heart.sum = heart.sum + since - oldest;
    heart.last = now;
    heart.beats += 1;
    let at = heart.beats as usize % LOG;
    let time = now - heart.begin;
    let rate = |beats: usize, time: Duration| beats as f64 / time.as_secs_f64();
    heart.log[at] = Record {
        _beat: heart.beats,
        _time: time,
        _global_rate: rate(heart.beats as usize, time),
        _window_rate: rate(WINDOW, heart.sum),
        _instant_rate: rate(1, since),
    };
    std::hint::black_box(&heart.log[at]);
}
