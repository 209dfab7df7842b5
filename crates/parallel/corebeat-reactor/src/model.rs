//! Loom models of the protocols: small cases, over every interleaving and every outcome that the
//! memory orderings allow. `cargo xtask ci --only loom` runs the models. For each fault that a
//! module lists, one of its models must fail.

mod parking;
mod slot;
mod switch;
mod turn;

use corebeat_sync::fault;

/// Checks a model in which each execution has at most three preemptions.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let builder = fault::model(3);
    fault::run(|| builder.check(model));
}
