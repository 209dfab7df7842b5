//! Pipelines of stages that may fail, and ordered parallel maps.

use corebeat_lpel::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn runtimes() -> impl Iterator<Item = Runtime> {
    let threads = (1..=2).map(|n| Runtime::builder().workers(n));
    let seeds = (0..20).map(|seed| Runtime::builder().workers(2).deterministic(seed));
    threads.chain(seeds).map(|builder| builder.build().unwrap())
}

#[test]
fn map_keeps_the_order_of_items() {
    for rt in runtimes() {
        for tasks in [0, 1, 3, 7] {
            let got = rt.run(move || {
                let (mut to, from) = stream(2);
                spawn(move || (0..100u64).try_for_each(|n| to.write(n)));
                let slow = |n: u64| {
                    sleep(Duration::from_micros(n * 7 % 10));
                    2 * n
                };
                map_ordered(from, tasks, slow).collect::<Result<Vec<_>, _>>().unwrap()
            });
            assert!(got.unwrap().into_iter().eq((0..100).map(|n| 2 * n)), "{tasks}");
        }
    }
}

#[test]
fn panic_of_a_map_is_the_last_result() {
    for rt in runtimes() {
        for (tasks, at) in [(1, 0), (3, 0), (3, 1), (3, 100), (7, 999)] {
            let mut results = rt.run(move || {
                let (mut to, from) = stream(2);
                spawn(move || (0u64..).try_for_each(|n| to.write(n)));
                let panics = move |n| if n == at { panic!("item {n}") } else { n };
                map_ordered(from, tasks, panics).collect::<Vec<_>>()
            });
            let results = results.as_mut().unwrap();
            let failure = results.pop().unwrap().unwrap_err().to_string();
            assert_eq!(failure, format!("the task panicked: item {at}"));
            assert!(results.iter().map(|r| *r.as_ref().unwrap()).eq(0..at));
        }
        assert_eq!(rt.counters().spawned, rt.counters().ended);
    }
}

#[test]
fn map_whose_tasks_exit_reports_it() {
    for rt in runtimes() {
        let results = rt.run(|| {
            let (mut to, from) = stream(2);
            spawn(move || (0u64..5).try_for_each(|n| to.write(n)));
            map_ordered(from, 2, |n| if n == 3 { exit() } else { n }).collect::<Result<Vec<_>, _>>()
        });
        assert!(matches!(results.unwrap(), Err(Failure::Exited)));
    }
}

#[test]
fn map_whose_results_are_dropped_closes_its_input() {
    for rt in runtimes() {
        let written = rt.run(|| {
            let (mut to, from) = stream(1);
            let writes = spawn(move || (0..).take_while(|n| to.write(*n).is_ok()).count());
            let mut results = map_ordered(from, 2, |n: u64| n);
            assert_eq!(results.read().unwrap().unwrap(), 0);
            drop(results);
            writes.join().unwrap()
        });
        assert!(written.unwrap() > 0);
    }
}

#[test]
fn map_of_a_cancelled_scope_ends_with_the_failure() {
    for rt in runtimes() {
        let got = rt.run(|| {
            let part = scope().unwrap();
            let (mut to, from) = stream(1);
            spawn(move || (0..).take_while(|n| to.write(*n).is_ok()).count());
            let mapped = part.spawn(|| map_ordered(from, 2, |n: u64| n));
            let mut results = mapped.join().unwrap();
            assert_eq!(results.read().unwrap().unwrap(), 0);
            part.cancel();
            results.collect::<Result<Vec<_>, _>>()
        });
        assert!(matches!(got.unwrap(), Err(Failure::Aborted)));
    }
}

#[test]
fn map_whose_call_runs_at_the_cancellation_reports_it() {
    let rt = Runtime::builder().workers(2).build().unwrap();
    let got = rt.run(|| {
        let part = scope().unwrap();
        let (mut to, from) = stream(1);
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = is_closed.clone();
        std::thread::spawn(move || {
            (0..).take_while(|n| to.write(*n).is_ok()).count();
            closed.store(true, Ordering::SeqCst);
        });
        let own = part.clone();
        let results = part.spawn(move || {
            map_ordered(from, 1, move |n: u64| {
                if n == 100 {
                    own.cancel();
                    // The call ends as usual after the task that distributes the items, unless
                    // that task is on the same worker.
                    (0..100_000).any(|_| {
                        std::thread::yield_now();
                        is_closed.load(Ordering::SeqCst)
                    });
                }
                n
            })
        });
        results.join().unwrap().collect::<Result<Vec<_>, _>>()
    });
    assert!(matches!(got.unwrap(), Err(Failure::Aborted)));
}

#[test]
fn pipeline_returns_all_items_in_order() {
    for rt in runtimes() {
        let got = rt.run(|| {
            let numbers = Pipeline::<_, ()>::new(0..500u64)?;
            let doubled = numbers.parallel("double", 3, |n| Ok(2 * n));
            doubled.stage("add", |n| Ok(n + 1)).collect()
        });
        assert!(got.unwrap().unwrap().into_iter().eq((0..500).map(|n| 2 * n + 1)));
        assert_eq!(rt.counters().spawned, rt.counters().ended);
    }
}

/// Runs an endless pipeline, in which this stage fails at this item.
fn failing(rt: &Runtime, stage: &'static str, at: u64) -> PipelineError<String> {
    let fails = move |here: &str, n: u64| {
        if n != at {
            return Ok(n);
        }
        match stage {
            "panic" if here == "map" => panic!("the stage panics"),
            _ if here == stage => Err(format!("item {n}")),
            _ => Ok(n),
        }
    };
    let failed = rt.run(move || {
        let numbers = Pipeline::new(0u64..)?;
        let mapped = numbers.stage("map", move |n| fails("map", n));
        let mapped = mapped.parallel("parallel", 3, move |n| fails("parallel", n));
        mapped.for_each(|n| fails("sink", n).map(drop))
    });
    failed.unwrap().unwrap_err()
}

#[test]
fn first_error_ends_all_stages() {
    for rt in runtimes() {
        for failing_stage in ["map", "parallel", "sink"] {
            for at in [0, 1, 1000] {
                match failing(&rt, failing_stage, at) {
                    PipelineError::Stage { stage, error } => {
                        assert_eq!((stage, error), (failing_stage, format!("item {at}")));
                    }
                    other => panic!("{other}"),
                }
                assert_eq!(rt.counters().spawned, rt.counters().ended);
            }
        }
    }
}

#[test]
fn panic_of_a_stage_is_an_error() {
    for rt in runtimes() {
        let why = failing(&rt, "panic", 100).to_string();
        assert_eq!(why, "stage 'map' has no result: the task panicked: the stage panics");
    }
}

#[test]
fn pipeline_outside_a_task_is_an_error() {
    let why = Pipeline::<u8, ()>::new([1]).unwrap_err().to_string();
    assert!(why.starts_with("spawn was called outside a task"), "{why}");
}

#[test]
fn too_many_tasks_of_a_parallel_stage_panic_before_the_first_one_is_spawned() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let panics = |f: fn()| {
        let failure = runtime.spawn(f).join().unwrap_err().to_string();
        assert!(
            failure.contains("a parallel stage cannot have 4097 tasks: request at most 4096"),
            "{failure}"
        );
    };
    let spawned = || runtime.counters().spawned;
    let before = spawned();
    panics(|| {
        let (_to, from) = stream::<u8>(1);
        drop(map_ordered(from, PARALLEL_MAX + 1, |n| n));
    });
    assert_eq!(spawned(), before + 1);
    panics(|| {
        let items = Pipeline::<u8, ()>::new([1]).unwrap();
        drop(items.parallel("wide", PARALLEL_MAX + 1, Ok));
    });
    // Two tasks of the test, and the source of the pipeline.
    assert_eq!(spawned(), before + 3);
}

#[test]
fn tasks_of_a_parallel_stage_are_spread_over_the_workers() {
    // Regression: with the default placement, both tasks often ran on one of two workers.
    for seed in 0..100 {
        let rt = Runtime::builder().workers(2).deterministic(seed).build().unwrap();
        let workers = rt.run(|| {
            let seen = Arc::new(Mutex::new(BTreeSet::new()));
            let note = {
                let seen = seen.clone();
                move |n: u32| {
                    let dump = dump().unwrap();
                    let running = dump.tasks.iter().find(|t| t.status == Status::Running);
                    seen.lock().unwrap().insert(running.and_then(|t| t.worker));
                    Ok::<_, String>(n)
                }
            };
            Pipeline::new(0..20)?.parallel("map", 2, note).for_each(|_| Ok(()))?;
            Ok::<_, PipelineError<String>>(seen.lock().unwrap().len())
        });
        assert_eq!(workers.unwrap().unwrap(), 2, "seed {seed}");
    }
}
