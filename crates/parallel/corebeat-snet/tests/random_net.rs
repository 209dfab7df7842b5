//! Random networks: runs as tasks are compared with the sequential interpreter, with seeded
//! schedules and on threads, with small and large streams.
//!
//! A failing network is printed as a program with its records, boxes and the seed of the schedule,
//! followed by the command that repeats the case. The number of cases for each class is
//! `PROPTEST_CASES`, or 256.

mod reference;

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};

use corebeat_lpel::Runtime;
use corebeat_snet::body::BoxBody;
use corebeat_snet::{Network, NetworkOptions, OnFault};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use reference::{Case, Class, cases};

static ONE: LazyLock<Runtime> = LazyLock::new(|| Runtime::builder().workers(1).build().unwrap());
static TWO: LazyLock<Runtime> = LazyLock::new(|| Runtime::builder().workers(2).build().unwrap());

fn run(case: &Case, capacity: usize, runtime: &Runtime) -> Result<(), TestCaseError> {
    let bodies = case.bodies();
    let find = |plan: &corebeat_snet::plan::BoxPlan| {
        Ok::<Arc<dyn BoxBody>, ()>(bodies[&plan.name].clone())
    };
    let network = Network::new((*case.net).clone(), find).unwrap();
    let options =
        NetworkOptions { capacity, on_fault: OnFault::Continue, ..NetworkOptions::default() };
    let network = network.with_options(options);
    let outcome = network.run(runtime, case.input.clone());
    let outcome = outcome.map_err(|why| TestCaseError::fail(why.to_string()))?;
    case.check(&outcome.records, outcome.fault_count, outcome.kept)
        .map_err(|why| TestCaseError::fail(format!("{why}\nfaults: {:?}", outcome.faults)))
}

/// Environment variable for the seed of one case.
const SEED: &str = "COREBEAT_SNET_SEED";

/// Tries cases with different seeds, or only the case of the seed in the environment.
fn compare(class: Class, test: &str) {
    let cases = u64::from(Config::default().cases);
    let seeds = match std::env::var(SEED) {
        Ok(seed) => {
            let seed =
                seed.parse().unwrap_or_else(|_| panic!("{SEED}={seed} is not a whole number"));
            seed..seed + 1
        }
        Err(_) => {
            let first = RandomState::new().hash_one(test) >> 1;
            first..first + cases
        }
    };
    for seed in seeds {
        if let Err(why) = try_case(class, seed) {
            panic!(
                "{why}\nrepeat the case: {SEED}={seed} cargo test -p corebeat-snet --test \
                 random_net {test}"
            );
        }
    }
}

fn try_case(class: Class, seed: u64) -> Result<(), String> {
    let strategy = (cases(class), any::<u64>(), prop_oneof![Just(1usize), Just(2), Just(64)]);
    let config =
        Config { cases: 1, max_shrink_iters: 2000, failure_persistence: None, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let ended = runner.run(&strategy, |(case, seed, capacity)| {
        let workers = 1 + seed as usize % 3;
        let seeded = Runtime::builder().workers(workers).deterministic(seed).build().unwrap();
        run(&case, capacity, &seeded)?;
        run(&case, capacity, &ONE)?;
        run(&case, capacity, &TWO)
    });
    ended.map_err(|why| why.to_string())
}

#[test]
fn random_confluent_network_equals_the_interpreter() {
    compare(Class::Confluent, "random_confluent_network_equals_the_interpreter");
}

#[test]
fn random_ordered_network_outputs_the_same_sequence() {
    compare(Class::Ordered, "random_ordered_network_outputs_the_same_sequence");
}

#[test]
fn random_merging_network_neither_loses_nor_duplicates() {
    compare(Class::Merging, "random_merging_network_neither_loses_nor_duplicates");
}
