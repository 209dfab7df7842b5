//! Models of the protocols: small cases, over every interleaving and every outcome that the memory orderings allow.
//!
//! `cargo xtask ci --only loom` runs them. Threads of a model may be workers with their tasks as well as plain threads; the
//! light and heavy fences are as weak as they may be (`corebeat_sync::asymmetric`). That a model would notice a mistake is
//! shown by planted ones: for each fault that a protocol names, one of its models must fail.

mod inbox;
mod limbo;
mod set;
mod sleep;
mod stream;
mod task;
mod worker;

use crate::Runtime;
use corebeat_sync::asymmetric::heavy;
use corebeat_sync::fault;
use corebeat_sync::thread::{self, JoinHandle};
use std::sync::Arc;
use std::time::Duration;

/// Runs a model. Beside the switches where a thread cannot go on, each execution has at most so many.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    run(preemptions, false, model);
}

/// As [`check`], for models whose begin and end are of no interest: only what happens from [`begin`] to [`end`] varies.
fn check_part(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    run(preemptions, true, model);
}

fn run(preemptions: usize, in_part: bool, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = fault::model(preemptions);
    builder.expect_explicit_explore = in_part;
    builder.max_branches = 10_000;
    let model = Arc::new(model);
    let check = || {
        builder.check(move || {
            // As a runtime does, before there are threads.
            heavy();
            let model = model.clone();
            // What is the first thread's own is dropped too late, after what is static.
            spawn(move || model()).join().expect("a panic would have ended it");
        });
    };
    fault::run(check);
}

fn begin() {
    loom::explore();
}

fn end() {
    loom::skip_branch();
}

/// Plants each fault, and expects the model beside it to fail.
fn all_noticed(faults: &[(&str, &str)]) {
    let missed: Vec<_> = faults.iter().filter(|(model, fault)| !fault::is_noticed(model, fault)).collect();
    assert!(missed.is_empty(), "planted, and not noticed: {missed:?}");
}

fn spawn<T: 'static>(f: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    thread::spawn(f)
}

/// Workers that do not spin.
fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).pin(false).spin(Duration::ZERO).build().expect("it starts")
}
