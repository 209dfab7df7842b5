//! Order of panics: the message of a panic appears only if the sequential program would reach it.
//!
//! A thread prints the message of a panic in the panic hook, before it unwinds. The hook of this
//! module waits until the computations have ended that come first in the sequential program. If one
//! of them panicked, the sequential program would not have reached this panic: the hook prints
//! nothing, and the join discards the payload. Otherwise the previous hook runs. This also holds
//! with `panic = "abort"`: the process ends in the panic that comes first.
//!
//! The waits cause no deadlock. A join waits for closures inside its own call, and the hook waits
//! for computations before its own: in both cases for something that ends earlier in the sequential
//! program. So no wait is a part of a cycle.

use crate::context;
use crate::job::{Job, Latch};
use std::panic;
use std::sync::{Arc, Once};

/// A list of computations that come before the current one in the sequential program, and that may
/// not have ended. The last one is the head.
pub(crate) struct Earlier {
    /// Job of a future, or of the second closure of a join, whose first one comes before it.
    job: Arc<Job>,
    rest: Option<Arc<Earlier>>,
}

impl Earlier {
    /// The computations before the closure of a job, which a thief runs.
    pub(crate) fn before(job: &Arc<Job>) -> Option<Arc<Earlier>> {
        let rest = job.earlier.clone();
        match job.first {
            Some(_) => Some(Arc::new(Earlier { job: job.clone(), rest })),
            None => rest,
        }
    }

    /// The computations before the code that follows the creation of a future.
    pub(crate) fn after(future: &Arc<Job>, rest: Option<Arc<Earlier>>) -> Arc<Earlier> {
        Arc::new(Earlier { job: future.clone(), rest })
    }

    fn latch(&self) -> &Latch {
        self.job.first.as_ref().unwrap_or(&self.job.end)
    }
}

/// Installs the hook, once. Not while a thread is panicking, when that is impossible.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    if !std::thread::panicking() && !cfg!(loom) {
        INSTALLED.call_once(|| {
            let previous = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                if is_reached() {
                    previous(info);
                }
            }));
        });
    }
}

/// Waits for the computations before the caller. Returns whether none of them has panicked.
fn is_reached() -> bool {
    let Some(context) = context::existing() else { return true };
    let mut next = context.earlier();
    while let Some(earlier) = next {
        if !earlier.latch().is_over() && !context.wait_in_hook(earlier.latch()) {
            return true;
        }
        if earlier.latch().has_failed() {
            return false;
        }
        next = earlier.rest.clone();
    }
    true
}
