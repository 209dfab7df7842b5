//! A program that the watchers observe: it has many threads, of which few are busy.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// The program prints this text when all threads have started.
pub(crate) const READY: &str = "ready";

/// The longest time that the program runs.
pub(crate) const SECONDS_MAX: u64 = 600;

const STACK: usize = 64 << 10;

/// Number of busy threads: half of the CPUs, at least one and at most four.
pub(crate) fn busy() -> u64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u64 / 2).clamp(1, 4)
}

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of threads, including the main thread
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    threads: u64,
    /// End after this number of seconds, or when the input ends
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: u64,
}

static STARTED: AtomicUsize = AtomicUsize::new(0);
static NEVER: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

pub(crate) fn main(options: &Options) -> Result<ExitCode, String> {
    let until = Instant::now() + Duration::from_secs(options.seconds);
    let others = options.threads - 1;
    let busy = busy();
    let wakers = options.threads / 4;
    for i in 0..others {
        let job = move || {
            STARTED.fetch_add(1, Ordering::SeqCst);
            match i {
                i if i < busy => work(until),
                // The rate is 10 to 100 per second.
                i if i < busy + wakers => wake_up(10 + 90 * (i - busy) / wakers, until),
                i => sleep(i % 2 == 0, until),
            }
        };
        let thread =
            std::thread::Builder::new().name(format!("load-{i}")).stack_size(STACK).spawn(job);
        thread.map_err(|e| format!("cannot start thread {i}: {e}"))?;
    }
    while STARTED.load(Ordering::SeqCst) < others as usize {
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("{READY}");
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    // The parent writes nothing, so the input is ready when it is closed. An error also ends the
    // load.
    let _ = poll(&mut [PollFd::new(&std::io::stdin(), PollFlags::IN)], Some(&timeout));
    Ok(ExitCode::SUCCESS)
}

fn work(until: Instant) {
    let mut x = 1u64;
    while Instant::now() < until {
        for _ in 0..1_000_000 {
            x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
}

fn wake_up(rate: u64, until: Instant) {
    while Instant::now() < until {
        std::thread::sleep(Duration::from_micros(1_000_000 / rate));
    }
}

/// Sleeps on a lock (a futex) or on a timer.
fn sleep(on_lock: bool, until: Instant) {
    while Instant::now() < until {
        let left = until.saturating_duration_since(Instant::now());
        if on_lock {
            let guard = NEVER.0.lock().unwrap_or_else(|e| e.into_inner());
            drop(NEVER.1.wait_timeout(guard, left));
        } else {
            std::thread::sleep(left);
        }
    }
}
