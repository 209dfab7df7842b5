//! Random programs of joins, scopes and loops, with panics and errors anywhere: the result under
//! seeds and on the pool is that of a sequential interpreter.

use corebeat_future::{for_each, future, join, map, pipeline, schedule, scope, sum, try_map};
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};

/// A program. Its value is a number, or the number of its first error.
#[derive(Debug, Clone)]
enum Program {
    Value(u8),
    Error(u8),
    /// Panics with a number.
    Panic(u8),
    Join(Box<Program>, Box<Program>),
    /// Futures, the code after them, and the order in which that joins some of the futures.
    Scope(Vec<Program>, Box<Program>, Vec<usize>),
    /// A future without a scope. The code after it has a value.
    Future(Box<Program>, u8),
    Map(Vec<Program>),
    TryMap(Vec<Program>),
    Each(Vec<Program>),
    /// A sum that may overflow.
    Sum(Vec<Program>),
    /// Computations, and what the loop does with each result.
    Pipeline(Vec<(Program, Program)>),
}

type Outcome = Result<u8, u8>;

/// The end of a run of a program: its outcome, or its panic.
type End = Result<Outcome, u16>;

/// The panic of an overflow.
const OVERFLOW: u16 = 1000;

fn throw<T>(number: u16) -> T {
    panic_any(number)
}

fn add(a: u8, b: u8) -> u8 {
    a.checked_add(b).unwrap_or_else(|| throw(OVERFLOW))
}

/// A value that depends on the order of the values.
fn combine(values: impl IntoIterator<Item = Outcome>) -> Outcome {
    values.into_iter().try_fold(0u8, |all, value| Ok(all.wrapping_mul(31) ^ value?))
}

fn value(outcome: Outcome) -> u8 {
    outcome.unwrap_or_else(|error| error ^ 0x80)
}

impl Program {
    fn run_sequentially(&self) -> Outcome {
        let run = Program::run_sequentially;
        match self {
            Program::Value(value) => Ok(*value),
            Program::Error(error) => Err(*error),
            Program::Panic(number) => throw(u16::from(*number)),
            Program::Join(a, b) => {
                let (a, b) = (run(a), run(b));
                combine([a, b])
            }
            Program::Future(a, b) => combine([run(a), Ok(*b)]),
            Program::Scope(futures, body, joins) => {
                let futures: Vec<Outcome> = futures.iter().map(run).collect();
                let body = run(body)?;
                combine(joins.iter().map(|n| futures[*n]).chain([Ok(body)]))
            }
            Program::Map(list) | Program::Each(list) => {
                let all: Vec<Outcome> = list.iter().map(run).collect();
                Ok(value(combine(all.into_iter().map(|one| Ok(value(one))))))
            }
            Program::TryMap(list) => {
                let all: Vec<u8> = list.iter().map(run).collect::<Result<_, _>>()?;
                combine(all.into_iter().map(Ok))
            }
            Program::Sum(list) => Ok(list.iter().fold(200, |sum, one| add(sum, value(run(one))))),
            Program::Pipeline(list) => {
                let mut all = 0;
                for (first, rest) in list {
                    let first = run(first);
                    all = combine([Ok(all), first, Ok(run(rest)?)])?;
                }
                Ok(all)
            }
        }
    }

    fn run(&self) -> Outcome {
        let run = Program::run;
        match self {
            Program::Value(_) | Program::Error(_) | Program::Panic(_) => self.run_sequentially(),
            Program::Join(a, b) => {
                let (a, b) = join(|| run(a), || run(b));
                combine([a, b])
            }
            Program::Future(a, b) => {
                let a = (**a).clone();
                let first = future(move || run(&a));
                combine([first.join(), Ok(*b)])
            }
            Program::Scope(futures, body, joins) => scope(|s| {
                let futures = futures.iter().map(|one| Some(s.future(|| run(one))));
                let mut futures: Vec<_> = futures.collect();
                let body = run(body)?;
                let joined = joins.iter().map(|n| futures[*n].take().unwrap().join());
                let joined: Vec<Outcome> = joined.collect();
                combine(joined.into_iter().chain([Ok(body)]))
            }),
            Program::Map(list) => {
                let all = map(list, run);
                Ok(value(combine(all.into_iter().map(|one| Ok(value(one))))))
            }
            Program::Each(list) => {
                let mut all: Vec<(&Program, Outcome)> =
                    list.iter().map(|one| (one, Ok(0))).collect();
                for_each(&mut all, |(one, outcome)| *outcome = run(one));
                Ok(value(combine(all.into_iter().map(|(_, one)| Ok(value(one))))))
            }
            Program::TryMap(list) => combine(try_map(list, run)?.into_iter().map(Ok)),
            Program::Sum(list) => Ok(sum(200, list, |one| value(run(one)), add)),
            Program::Pipeline(list) => {
                let run_first = |(first, rest): &'_ (Program, Program)| (run(first), rest.clone());
                pipeline(list, run_first, |results| {
                    let mut all = 0;
                    for (first, rest) in results {
                        all = combine([Ok(all), first, Ok(run(&rest)?)])?;
                    }
                    Ok(all)
                })
            }
        }
    }
}

/// The end of a run. A panic that comes from a future without a scope is compared like others.
fn end(run: impl FnOnce() -> Outcome) -> End {
    let result = catch_unwind(AssertUnwindSafe(run));
    result.map_err(|payload| *payload.downcast::<u16>().expect("only numbers are thrown"))
}

fn programs() -> impl Strategy<Value = Program> {
    let leaf = prop_oneof![
        8 => (0u8..40).prop_map(Program::Value),
        1 => any::<u8>().prop_map(Program::Error),
        1 => any::<u8>().prop_map(Program::Panic),
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        let boxed = inner.clone().prop_map(Box::new);
        let list = prop::collection::vec(inner.clone(), 0..5);
        let joins = |futures: Vec<Program>| {
            let all: Vec<usize> = (0..futures.len()).collect();
            let some = prop::sample::subsequence(all, 0..=futures.len()).prop_shuffle();
            (Just(futures), some)
        };
        prop_oneof![
            3 => (boxed.clone(), boxed.clone()).prop_map(|(a, b)| Program::Join(a, b)),
            1 => (boxed.clone(), any::<u8>()).prop_map(|(a, b)| Program::Future(a, b)),
            3 => (list.clone().prop_flat_map(joins), boxed)
                .prop_map(|((futures, joins), body)| Program::Scope(futures, body, joins)),
            1 => list.clone().prop_map(Program::Map),
            1 => list.clone().prop_map(Program::TryMap),
            1 => list.clone().prop_map(Program::Each),
            1 => list.prop_map(Program::Sum),
            2 => prop::collection::vec((inner.clone(), inner), 0..8).prop_map(Program::Pipeline),
        ]
    })
}

proptest! {
    #[test]
    fn random_programs_have_the_sequential_result(program in programs(), seed: u64) {
        // Panics are expected, and their messages would fill the output.
        let expected = end(|| program.run_sequentially());
        for seed in [seed, seed.wrapping_add(1), seed.wrapping_add(2)] {
            let found = end(|| schedule(seed, || program.run()));
            prop_assert_eq!(&found, &expected, "under seed {}", seed);
        }
        prop_assert_eq!(end(|| program.run()), expected, "on the pool");
    }
}
