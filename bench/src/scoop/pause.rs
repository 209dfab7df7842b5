//! Measures the time of a call while collections follow each other.

use super::Options;
use super::heap::{Home, grow, home, system};
use super::plan::{Plan, Work};
use super::subject::Subject;
use corebeat_scoop::Separate;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The number of workers beside the collector on the smallest current machines.
const WORKERS: usize = 2;
/// Calls that are recorded, beginning with the first.
const CALLS_MAX: usize = 1 << 20;

/// Returns the time of one call, at the quantile `per_mille`, in µs, and the number of calls. The
/// called processor has `called` objects. All objects live.
pub(super) fn measure(options: &Options) -> Result<(f64, u64), String> {
    let system = system(WORKERS)?;
    let client = system.client();
    let failed = |e: corebeat_scoop::Error| e.to_string();
    let objects = options.objects.saturating_sub(options.called).max(options.processors);
    let plan = Plan { work: Work::Trees, objects, processors: options.processors };
    let homes: Vec<Separate<Home<2>>> =
        plan.share().iter().map(|own| home::<2>(&client, own.len(), false)).collect();
    let called = home::<2>(&client, options.called.max(1), false);
    for home in homes.iter().chain([&called]) {
        home.query(&client, grow).map_err(failed)?;
    }
    let (over, has_worked) = (AtomicBool::new(false), Barrier::new(2));
    let mut times = Vec::with_capacity(CALLS_MAX);
    let work: Option<&(dyn Fn() + Sync)> = match options.subject {
        Subject::Corebeat => Some(&|| {
            system.collect();
        }),
        Subject::Limit => Some(&compute),
        _ => None,
    };
    thread::scope(|scope| {
        if let Some(work) = work {
            let (over, has_worked) = (&over, &has_worked);
            scope.spawn(move || {
                work();
                has_worked.wait();
                while !over.load(Ordering::SeqCst) {
                    work();
                }
            });
            // The system may start the thread late.
            has_worked.wait();
        }
        let end = Instant::now() + Duration::from_millis(options.span_ms);
        let mut made = Ok(());
        while made.is_ok() && Instant::now() < end && times.len() < CALLS_MAX {
            let begin = Instant::now();
            made = called.query(&client, |_, _| ());
            times.push(begin.elapsed());
        }
        over.store(true, Ordering::SeqCst);
        made.map_err(failed)
    })?;
    times.sort_unstable();
    let at = (times.len() - 1) * options.per_mille / 1000;
    Ok((times[at].as_secs_f64() * 1e6, times.len() as u64))
}

/// Takes some microseconds.
fn compute() {
    for i in 0..10_000 {
        black_box(i);
    }
}
