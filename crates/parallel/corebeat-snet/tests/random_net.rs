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
use corebeat_snet::{Kind, Label, Network, NetworkOptions, OnFault, Record, Value};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use reference::interpreter::interpret;
use reference::{Case, Class, STEPS_MAX, cases};

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
fn compare(test: &str, try_case: impl Fn(u64) -> Result<(), String>) {
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
        if let Err(why) = try_case(seed) {
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
    let test = "random_confluent_network_equals_the_interpreter";
    compare(test, |seed| try_case(Class::Confluent, seed));
}

#[test]
fn random_ordered_network_outputs_the_same_sequence() {
    let test = "random_ordered_network_outputs_the_same_sequence";
    compare(test, |seed| try_case(Class::Ordered, seed));
}

#[test]
fn random_merging_network_neither_loses_nor_duplicates() {
    let test = "random_merging_network_neither_loses_nor_duplicates";
    compare(test, |seed| try_case(Class::Merging, seed));
}

/// Stars whose stages are spent after a merge. In each, some records take a branch of spent stages.
/// In the second, `{D}` becomes `{B}` after the first cell, so a later stage can be spent earlier.
const SPENT: [&str; 3] = [
    "([| {A}, {B} |] .. ([] || [{A, B, <u>} -> {A, <u>}; {C = B, <u>}]))
        ** {C}, {D}",
    "([| {A}, {B} |]
        .. ([] || [{A, B, <u>} -> if <u > 0> then {A, B, <u = u - 1>} else {C = B, <u>}]
            || [{D} -> {B = D}])) ** {C}",
    "([| {A}, {B} |] .. ([| {B}, {D} |] || [])
        .. ([{D, <u>} -> if <u > 0> then {D, <u = u - 1>}; {B = D, <u>} else {C = D, <u>}]
            || [{A, B, <u>} -> {C = A, <u>}] || [])) ** {C}, {A, D}",
];

#[test]
fn random_records_through_spent_stages_equal_the_interpreter() {
    let nets = SPENT.map(|star| {
        let module = corebeat_snet::parse(&format!("net main connect {star};")).unwrap();
        let net = corebeat_snet::check(&module, None).net.unwrap();
        let none = |_: &_| Err::<Arc<dyn BoxBody>, _>("the net has no box");
        (net.clone(), Network::new(net, none).unwrap())
    });
    compare("random_records_through_spent_stages_equal_the_interpreter", |seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let (net, network) = &nets[seed as usize % nets.len()];
        let input: Vec<Record> = (0..random.i32(1..24))
            .map(|i| {
                let fields = ["A", "B", "D"].into_iter().filter(|_| random.u8(0..5) < 2);
                let fields = fields.map(|name| (Label::new(Kind::Field, name), Value::from(i)));
                let fields: Vec<_> = fields.collect();
                let tag = (Label::new(Kind::Tag, "u"), Value::Tag(random.i32(0..4)));
                let pairs = fields.into_iter().chain([tag]);
                Record::from_pairs(pairs.map(|(label, value)| (label.unwrap(), value))).unwrap()
            })
            .filter(|record| record.shape().len() > 1)
            .collect();
        let expected = interpret(net, &|_, _| Vec::new(), &input, None, STEPS_MAX);
        let outcome = network.run(&ONE, input.clone()).map_err(|why| why.to_string())?;
        match (&outcome.records, outcome.kept) == (&expected.records, expected.kept) {
            true => Ok(()),
            false => Err(format!(
                "{}\n{input:#?}\n{outcome:#?}\n{expected:#?}",
                SPENT[seed as usize % nets.len()]
            )),
        }
    });
}
