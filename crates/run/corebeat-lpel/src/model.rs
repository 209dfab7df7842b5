//! Models of the protocols, over every interleaving of small cases.

mod runtime;

/// Runs a model. Preemptions, beside the switches where a thread cannot go on, are bounded.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let c = count.clone();
    let start = std::time::Instant::now();
    builder.check(move || {
        c.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        // As a runtime does: threads know how to fence before there are any.
        corebeat_sync::asymmetric::heavy();
        model();
    });
    eprintln!("{} executions, {:?}", count.load(std::sync::atomic::Ordering::Relaxed), start.elapsed());
}
