//! The thread that makes plans of turns take effect in time.

use crate::Error;
use crate::loaded::Loaded;
use crate::turn::Planner;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bounds of the time from one reading of the runnable threads to the next, in nanoseconds.
const READING_NS: (u64, u64) = (1_000_000, 20_000_000);
/// Number of readings in a turn.
const READINGS: u64 = 5;

/// A thread that plans turns until it is dropped. Then no CPU has an owner.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    is_over: Mutex<bool>,
    over: Condvar,
}

impl Keeper {
    pub(crate) fn start(
        loaded: Arc<Loaded>,
        planner: Planner,
        cpus: Vec<u32>,
        slice_ns: u64,
    ) -> Result<Keeper, Error> {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let thread = corebeat_sync::quiet::spawn("corebeat-turns", move || {
            run(&of_thread, &loaded, planner, &cpus, slice_ns);
            // The error is ignored: without the scheduler no CPU has an owner.
            let _ = loaded.set_owners(cpus.iter().map(|&cpu| (cpu, None)));
        });
        Ok(Keeper { shared, thread: Some(thread.map_err(Error::Thread)?) })
    }
}

/// Plans until the end, or until the kernel has removed the scheduler.
fn run(shared: &Shared, loaded: &Loaded, mut planner: Planner, cpus: &[u32], slice_ns: u64) {
    let every_ns = (slice_ns / READINGS).clamp(READING_NS.0, READING_NS.1);
    loop {
        let now_ns = now_ns();
        let Ok(counters) = loaded.counters() else { return };
        if let Some(owners) = planner.plan(now_ns, counters)
            && loaded.set_owners(cpus.iter().copied().zip(owners)).is_err()
        {
            return;
        }
        let wait_ns = planner.until_ns().saturating_sub(now_ns).min(every_ns);
        let is_over = shared.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = shared.over.wait_timeout_while(
            is_over,
            Duration::from_nanos(wait_ns.max(1)),
            |is_over| !*is_over,
        );
        if *wait.unwrap_or_else(PoisonError::into_inner).0 {
            return;
        }
    }
}

/// Returns the time of the clock that the scheduler uses.
fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

impl Drop for Keeper {
    fn drop(&mut self) {
        *self.shared.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.over.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has ended the turns; there is nothing else to undo.
            let _ = thread.join();
        }
    }
}
