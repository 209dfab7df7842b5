//! Helpers on the workers of a runtime of LPEL.
//!
//! Each worker runs one helper at a time. A started task of LPEL never changes its thread. If a
//! worker ran a second helper while the first one waits, the first one would have to wait until the
//! second one reaches a join, although other CPUs may be idle by then. So a helper that waits keeps
//! its worker, and a helper on another worker takes its place among the running strands. The
//! runtime has twice as many workers as CPUs for this purpose; most of them sleep.

use super::{Pool, help, helped};
use crate::stack;
use corebeat_lpel::Runtime;
use corebeat_sync::{Mutex, lock};
use std::sync::Arc;
use std::time::Duration;

/// Workers for each running strand.
const WORKERS_EACH: usize = 2;
/// Time for which a worker without a helper searches for one, before it sleeps.
const SPIN: Duration = Duration::from_micros(5);

pub(super) struct Backend {
    runtime: Runtime,
    /// Workers without a helper.
    free: Arc<Mutex<Vec<usize>>>,
}

pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Backend {
    /// Returns `None` if the threads cannot be started.
    pub(super) fn new(limit: usize) -> Option<Backend> {
        let workers = WORKERS_EACH * limit;
        // Not pinned: the callers of joins are threads outside, which the system places.
        let runtime = Runtime::builder().workers(workers).pin(false).spin(SPIN).build().ok()?;
        Some(Backend { runtime, free: Arc::new(Mutex::new((0..workers).rev().collect())) })
    }

    /// Starts a helper. Returns false if no worker or no memory is free.
    pub(super) fn start(&self, pool: &Arc<Pool>) -> bool {
        let Some(worker) = lock(&self.free).pop() else { return false };
        let (pool, free) = (pool.clone(), self.free.clone());
        let capacity = stack::helper_bytes();
        let task = self.runtime.task().name("future").worker(worker).unscoped();
        let helper = task.stack_size(capacity).spawn(move || {
            help(&pool, capacity);
            lock(&free).push(worker);
            helped(&pool);
        });
        if helper.is_err() {
            lock(&self.free).push(worker);
        }
        helper.is_ok()
    }
}
