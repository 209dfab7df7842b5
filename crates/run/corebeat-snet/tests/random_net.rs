//! Random networks, run as tasks, against the sequential interpreter: in orders drawn from seeds and on real threads, with
//! streams of little and of enough room.
//!
//! A network that fails is printed as a program with its records and boxes; the seed of the schedule stands beside it, and
//! below the command that makes the same case again. The number of cases is `PROPTEST_CASES` for each class; 256 if nothing is
//! said.

mod reference;

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};

use corebeat_lpel::Runtime;
use corebeat_snet::body::BoxBody;
use corebeat_snet::{Network, OnFault};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

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

/// The variable that has the seed of one case.
const SEED: &str = "COREBEAT_SNET_SEED";

/// Tries many cases, each from a seed of its own; or only the one that is asked for.
fn compare(class: Class, test: &str) {
    let cases = u64::from(Config::default().cases);
    let seeds = match std::env::var(SEED) {
        Ok(seed) => {
            let seed = seed.parse().unwrap_or_else(|_| panic!("{SEED}={seed} is no seed"));
            seed..seed + 1
        }
        Err(_) => {
            let first = RandomState::new().hash_one(test) >> 1;
            first..first + cases
        }
    };
    for seed in seeds {
        if let Err(why) = try_case(class, seed) {
            panic!("{why}\nrun it again: {SEED}={seed} cargo test -p corebeat-snet --test random_net {test}");
        }
    }
}

fn try_case(class: Class, seed: u64) -> Result<(), String> {
    let strategy = (cases(class), any::<u64>(), prop_oneof![Just(1usize), Just(2), Just(64)]);
    let config = Config { cases: 1, max_shrink_iters: 2000, failure_persistence: None, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
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
fn random_confluent_network_puts_out_what_the_interpreter_does() {
    compare(Class::Confluent, "random_confluent_network_puts_out_what_the_interpreter_does");
}

#[test]
fn random_ordered_network_puts_out_the_same_sequence() {
    compare(Class::Ordered, "random_ordered_network_puts_out_the_same_sequence");
}

#[test]
fn random_merging_network_loses_and_doubles_nothing() {
    compare(Class::Merging, "random_merging_network_loses_and_doubles_nothing");
}
