//! Loom models of the protocols: small cases, over every interleaving and every outcome that the
//! memory orderings allow.
//!
//! `cargo xtask ci --only loom` runs the models. Threads of a model are workers with tasks, or
//! plain threads. The light and heavy fences are as weak as their contract allows
//! (`corebeat_sync::asymmetric`). Planted faults prove that the models detect errors: for each
//! fault that a module lists, one of its models must fail.

mod inbox;
mod retired;
mod set;
mod sleep;
mod stream;
mod suspend;
mod task;
mod worker;

use crate::Runtime;
use corebeat_sync::asymmetric::heavy_fence;
use corebeat_sync::fault;
use corebeat_sync::thread::{self, JoinHandle};
use std::sync::Arc;
use std::time::Duration;

/// Runs a model. Each execution has at most `preemptions` switches, beside those where a thread
/// cannot continue.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    run(preemptions, false, model);
}

/// Runs a model as [`check`] does. Only the interleavings between [`begin`] and [`end`] vary.
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
            // The first heavy fence precedes the threads, as in a runtime.
            heavy_fence();
            let model = model.clone();
            // The thread-local data of the first thread is dropped after the statics, which is too
            // late. So the model runs on a second thread.
            spawn(move || model()).join().expect("a panic would have ended the model");
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

/// Plants each fault, and asserts that its model fails.
fn assert_detected(faults: &[(&str, &str)]) {
    let missed: Vec<_> =
        faults.iter().filter(|(model, fault)| !fault::is_noticed(model, fault)).collect();
    assert!(missed.is_empty(), "models do not detect these planted faults: {missed:?}");
}

fn spawn<T: 'static>(f: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    thread::spawn(f)
}

/// Builds a runtime whose workers do not spin.
fn runtime(workers: usize) -> Runtime {
    Runtime::builder()
        .workers(workers)
        .pin(false)
        .spin(Duration::ZERO)
        .build()
        .expect("a runtime without pinning starts")
}
