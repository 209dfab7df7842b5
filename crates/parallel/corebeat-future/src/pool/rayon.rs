//! Helpers on the global pool of rayon. The thread of a helper that waits is blocked.

use super::{Pool, help, helped};
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    /// Whether the thread runs a helper. A closure may use rayon, and a thread of rayon that waits
    /// may then start a second helper inside the first one: it must not run unrelated jobs there.
    static IS_HELPING: Cell<bool> = const { Cell::new(false) };
}

pub(super) struct Backend;

pub(super) fn threads() -> usize {
    rayon_core::current_num_threads()
}

impl Backend {
    pub(super) fn new(_limit: usize) -> Option<Backend> {
        Some(Backend)
    }

    pub(super) fn start(&self, pool: &Arc<Pool>) -> bool {
        let pool = pool.clone();
        rayon_core::spawn(move || {
            if IS_HELPING.replace(true) {
                pool.pause();
            } else {
                // The program has chosen the stacks of rayon's threads.
                help(&pool, usize::MAX);
                IS_HELPING.set(false);
                helped(&pool);
            }
        });
        true
    }
}
