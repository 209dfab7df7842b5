//! Random networks, run as tasks, against the sequential interpreter: in orders drawn from seeds and on real threads, with
//! streams of little and of enough room.
//!
//! A network that fails is printed as a program with its records and boxes; the seed of the schedule stands beside it. The
//! number of cases is `PROPTEST_CASES` for each class; 256 if nothing is said.

mod reference;

use std::sync::{Arc, LazyLock};

use corebeat_lpel::Runtime;
use corebeat_snet::body::BoxBody;
use corebeat_snet::{Network, OnFault};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use reference::{Case, Class, cases};

static ONE: LazyLock<Runtime> = LazyLock::new(|| Runtime::builder().workers(1).build().unwrap());
static TWO: LazyLock<Runtime> = LazyLock::new(|| Runtime::builder().workers(2).build().unwrap());

fn run(case: &Case, capacity: usize, runtime: &Runtime) -> Result<(), TestCaseError> {
    let bodies = case.bodies();
    let find = |plan: &corebeat_snet::plan::BoxPlan| Ok::<Arc<dyn BoxBody>, ()>(bodies[&plan.name].clone());
    let network = Network::new((*case.net).clone(), find).unwrap();
    let network = network.capacity(capacity).on_fault(OnFault::GoOn);
    let outcome = network.run(runtime, case.input.clone());
    let outcome = outcome.map_err(|why| TestCaseError::fail(why.to_string()))?;
    case.check(&outcome.records, outcome.fault_count, outcome.kept)
        .map_err(|why| TestCaseError::fail(format!("{why}\nfaults: {:?}", outcome.faults)))
}

fn compare(class: Class) {
    let strategy = (cases(class), any::<u64>(), prop_oneof![Just(1usize), Just(2), Just(64)]);
    let config = Config { max_shrink_iters: 2000, failure_persistence: None, ..Config::default() };
    let ended = TestRunner::new(config).run(&strategy, |(case, seed, capacity)| {
        let workers = 1 + seed as usize % 3;
        let seeded = Runtime::builder().workers(workers).deterministic(seed).build().unwrap();
        run(&case, capacity, &seeded)?;
        run(&case, capacity, &ONE)?;
        run(&case, capacity, &TWO)
    });
    if let Err(why) = ended {
        panic!("{why}");
    }
}

#[test]
fn random_confluent_network_puts_out_what_the_interpreter_does() {
    compare(Class::Confluent);
}

#[test]
fn random_ordered_network_puts_out_the_same_sequence() {
    compare(Class::Ordered);
}

#[test]
fn random_merging_network_loses_and_doubles_nothing() {
    compare(Class::Merging);
}
