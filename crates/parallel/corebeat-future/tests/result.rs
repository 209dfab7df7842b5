//! Results, panics and early exits equal those of the sequential program, under seeds and on the
//! real pool.

use corebeat_future::{
    chunks, chunks_mut, for_each, future, join, map, pipeline, reduce, schedule, scope, sum,
    try_map,
};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Miri takes a thousand times as long.
const SEEDS: u64 = if cfg!(miri) { 2 } else { 60 };

/// Runs `check` under seeds, and on the pool.
fn everywhere(check: impl Fn()) {
    for seed in 0..SEEDS {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| schedule(seed, &check))) {
            eprintln!("with seed {seed}");
            std::panic::resume_unwind(payload);
        }
    }
    check();
}

/// The number with which `f` panics, by `panic_any`.
fn panic_of<T>(f: impl FnOnce() -> T) -> Option<u32> {
    let payload = catch_unwind(AssertUnwindSafe(f)).err()?;
    Some(*payload.downcast_ref().expect("only numbers are thrown"))
}

fn throw<T>(number: u32) -> T {
    panic_any(number)
}

fn fib(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let (a, b) = join(|| fib(n - 1), || fib(n - 2));
    a + b
}

fn sort(numbers: &mut [u32]) {
    if numbers.len() < 2 {
        return;
    }
    let middle = numbers.len() / 2;
    let (left, right) = numbers.split_at_mut(middle);
    join(|| sort(left), || sort(right));
    let (mut i, mut j) = (0, middle);
    let merged = (0..numbers.len()).map(|_| {
        let takes_left = j == numbers.len() || i < middle && numbers[i] <= numbers[j];
        let at = if takes_left { &mut i } else { &mut j };
        *at += 1;
        numbers[*at - 1]
    });
    let merged: Vec<u32> = merged.collect();
    numbers.copy_from_slice(&merged);
}

#[test]
fn recursion_has_the_sequential_result() {
    everywhere(|| {
        assert_eq!(fib(10), 55);
        let mut numbers: Vec<u32> = (0..40).map(|n| n * 7919 % 41).collect();
        let mut expected = numbers.clone();
        expected.sort_unstable();
        sort(&mut numbers);
        assert_eq!(numbers, expected);
    });
}

#[test]
fn first_panic_in_sequential_order_surfaces_at_a_join() {
    everywhere(|| {
        let ran = AtomicUsize::new(0);
        let run = |fails: bool, number: u32| {
            ran.fetch_add(1, SeqCst);
            if fails { throw(number) } else { number }
        };
        assert_eq!(panic_of(|| join(|| run(true, 1), || run(true, 2))), Some(1));
        assert_eq!(panic_of(|| join(|| run(false, 1), || run(true, 2))), Some(2));
        assert_eq!(panic_of(|| join(|| run(true, 1), || run(false, 2))), Some(1));
        let nested = || join(|| join(|| run(false, 1), || run(true, 2)), || run(true, 3));
        assert_eq!(panic_of(nested), Some(2));
        assert_eq!(join(|| run(false, 1), || run(false, 2)), (1, 2));
    });
}

#[test]
fn first_panic_in_sequential_order_surfaces_from_a_scope() {
    everywhere(|| {
        let fails = |a: bool, b: bool, c: bool, body: bool, joins: &[usize]| {
            panic_of(|| {
                scope(|s| {
                    let run = |fails: bool, n: u32| move || if fails { throw(n) } else { n };
                    let mut futures =
                        [s.future(run(a, 1)), s.future(run(b, 2)), s.future(run(c, 3))].map(Some);
                    if body {
                        throw(4)
                    }
                    for n in joins {
                        assert_eq!(futures[*n].take().unwrap().join(), *n as u32 + 1);
                    }
                })
            })
        };
        for joins in [&[][..], &[0, 1, 2], &[2, 1, 0], &[1]] {
            assert_eq!(fails(false, false, false, false, joins), None);
            assert_eq!(fails(false, false, false, true, joins), Some(4));
            assert_eq!(fails(false, false, true, true, joins), Some(3));
            assert_eq!(fails(false, true, true, false, joins), Some(2));
            assert_eq!(fails(true, false, true, true, joins), Some(1));
            assert_eq!(fails(true, true, true, true, joins), Some(1));
        }
    });
}

#[test]
fn each_future_runs_once_also_without_join() {
    everywhere(|| {
        let log = Mutex::new(Vec::new());
        let result: Result<(), u8> = scope(|s| {
            for n in 0..5 {
                let log = &log;
                let x = s.future(move || log.lock().unwrap().push(n));
                if n == 2 {
                    std::mem::forget(x);
                } else if n == 3 {
                    x.join();
                }
            }
            Err(7) // an early exit
        });
        assert_eq!(result, Err(7));
        let mut log = log.into_inner().unwrap();
        log.sort_unstable();
        assert_eq!(log, [0, 1, 2, 3, 4]);
    });
}

#[test]
fn futures_lend_their_borrows() {
    everywhere(|| {
        let (a, mut b) = (vec![1, 2, 3], Vec::new());
        let total = scope(|s| {
            let x = s.future(|| a.iter().sum::<i32>());
            let y = s.future(|| a.len());
            b.push(4);
            x.join() * 10 + y.join() as i32 + b[0]
        });
        assert_eq!(total, 67);
        let nested = scope(|s| {
            let x = s.future(|| scope(|t| t.future(|| a[0]).join() + fib(6) as i32));
            let y = fib(5) as i32;
            x.join() * 100 + y
        });
        assert_eq!(nested, 905);
    });
}

#[test]
fn future_without_scope_waits_when_it_is_dropped() {
    everywhere(|| {
        static RAN: AtomicUsize = AtomicUsize::new(0);
        let before = RAN.load(SeqCst);
        drop(future(|| RAN.fetch_add(1, SeqCst)));
        assert!(RAN.load(SeqCst) > before);
        assert_eq!(future(|| fib(8)).join(), 21);
        assert_eq!(panic_of(|| drop(future(|| throw::<()>(5)))), Some(5));
        assert_eq!(panic_of(|| future(|| throw::<()>(6)).join()), Some(6));
    });
}

#[test]
fn scopes_inside_scopes_surface_the_first_panic() {
    everywhere(|| {
        // Futures of an outer scope, created in an inner one and in a join.
        let inner = || {
            scope(|s| {
                scope(|t| {
                    let _x = t.future(|| throw::<()>(1));
                    let _y = s.future(|| ());
                });
            });
        };
        assert_eq!(panic_of(inner), Some(1));
        assert_eq!(panic_of(|| throw::<()>(2)), Some(2));
        scope(|s| {
            let (x, ()) = join(|| s.future(|| fib(7)), || ());
            assert_eq!(x.join(), 13);
        });
        // Panics while earlier futures have not started.
        let both = || {
            scope(|s| {
                let _a = s.future(|| {
                    scope(|u| {
                        let _c = u.future(|| ());
                        throw::<()>(1)
                    });
                });
                scope(|t| {
                    let _b = t.future(|| ());
                    throw::<()>(2)
                });
            });
        };
        assert_eq!(panic_of(both), Some(1));
    });
}

#[test]
fn futures_outlive_a_run_under_a_seed() {
    for seed in 0..SEEDS {
        assert_eq!(schedule(seed, || future(|| fib(5))).join(), 5);
        let ran = AtomicUsize::new(0);
        scope(|s| {
            schedule(seed, || {
                for _ in 0..3 {
                    let _x = s.future(|| ran.fetch_add(1, SeqCst));
                }
            });
        });
        assert_eq!(ran.into_inner(), 3);
    }
}

#[test]
fn loops_keep_the_order() {
    everywhere(|| {
        let numbers: Vec<u32> = (0..100).collect();
        assert_eq!(map(&numbers, |n| n * 2), (0..200).step_by(2).collect::<Vec<_>>());
        assert_eq!(map(-100..100i8, i32::from), (-100..100).collect::<Vec<i32>>());
        assert!(map(5..5u64, |n| n).is_empty());
        assert!(map(&[] as &[u8], |n| *n).is_empty());
        let lengths = map(chunks(&numbers, 30), <[u32]>::len);
        assert_eq!(lengths, [30, 30, 30, 10]);
        let mut squares = numbers.clone();
        for_each(&mut squares, |n| *n *= *n);
        assert!(squares.iter().zip(0..).all(|(square, n)| *square == n * n));
        for_each(chunks_mut(&mut squares, 7), |part| part.reverse());
        assert_eq!(squares[..8], [36, 25, 16, 9, 4, 1, 0, 169]);
    });
}

#[test]
fn loops_surface_the_first_failure() {
    everywhere(|| {
        let at = |n: u32| if n == 30 || n == 70 { throw(n) } else { n };
        assert_eq!(panic_of(|| map(0..100u32, at)), Some(30));
        assert_eq!(panic_of(|| for_each(0..100u32, |n| assert!(at(n) < 100))), Some(30));
        assert_eq!(panic_of(|| reduce(0, 0..100u32, at, u32::max)), Some(30));
        assert_eq!(panic_of(|| sum(0, 0..100u32, at, |a, b| a + b)), Some(30));
        let odd = |n: u32| if n % 40 == 39 { Err(n) } else { Ok(n) };
        assert_eq!(try_map(0..100u32, odd), Err(39));
        assert_eq!(try_map(0..39u32, odd), Ok((0..39).collect()));
    });
}

#[test]
fn pipelines_keep_the_order_and_the_first_failure() {
    everywhere(|| {
        let words: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        // Variables of the body stay on its thread.
        let mut seen = std::rc::Rc::new(Vec::new());
        let last = pipeline(
            words.iter().enumerate(),
            |(i, word)| (i, word.len()),
            |results| {
                for (i, length) in results {
                    if i == 3 {
                        continue;
                    }
                    std::rc::Rc::make_mut(&mut seen).push(length);
                    if i == 12 {
                        return Some(i);
                    }
                }
                None
            },
        );
        assert_eq!((last, seen.len(), seen.iter().sum::<usize>()), (Some(12), 12, 15));
        // The computation of the fifth item panics, the loop for the third one, the iterator after
        // the sixth.
        let run = |computes: usize, loops: usize, takes: usize| {
            let used = AtomicUsize::new(0);
            let items = (0..8).inspect(|n| {
                if *n == takes {
                    throw(1000)
                }
            });
            let compute = |n| if n == computes { throw(2000) } else { n };
            let panic = panic_of(|| {
                pipeline(items, compute, |results| {
                    for n in results {
                        used.fetch_add(1, SeqCst);
                        if n == loops {
                            throw(3000)
                        }
                    }
                })
            });
            (panic, used.into_inner())
        };
        assert_eq!(run(4, 2, 6), (Some(3000), 3));
        assert_eq!(run(4, 9, 6), (Some(2000), 4));
        assert_eq!(run(4, 4, 4), (Some(1000), 4));
        assert_eq!(run(9, 9, 0), (Some(1000), 0));
        assert_eq!(run(9, 9, 9), (None, 8));
    });
}

#[test]
fn pipelines_take_few_items_ahead() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let most = (4 * threads).max(8);
    everywhere(|| {
        let (taken, computed) = (std::cell::Cell::new(0), AtomicUsize::new(0));
        let items = std::iter::repeat_with(|| taken.set(taken.get() + 1));
        let compute = |()| computed.fetch_add(1, SeqCst);
        pipeline(items, compute, |results| {
            for (used, _) in results.enumerate() {
                assert!(taken.get() <= used + 1 + most, "{} for {used}", taken.get());
                if used == 30 {
                    break;
                }
            }
        });
        // No computation runs after the end, and none runs twice.
        assert!((31..=taken.get()).contains(&computed.load(SeqCst)));
        let end = computed.load(SeqCst);
        join(|| (), || ());
        assert_eq!(computed.load(SeqCst), end);
        // `next` is not called again after the end.
        let mut calls = 0;
        let once = std::iter::from_fn(|| {
            calls += 1;
            (calls % 2 == 1).then_some(calls)
        });
        pipeline(
            once,
            |n| n * 10,
            |mut results| {
                assert_eq!(results.next(), Some(10));
                assert_eq!((results.next(), results.next()), (None, None));
            },
        );
        assert_eq!(calls, 2);
    });
}

/// A result whose destructor panics.
struct Panics(u32);

impl Drop for Panics {
    fn drop(&mut self) {
        throw(self.0)
    }
}

#[test]
fn panics_of_the_body_come_before_those_of_discarded_results() {
    everywhere(|| {
        let run = |panics: bool| {
            let used = AtomicUsize::new(0);
            let panic = panic_of(|| {
                pipeline(
                    0..9u32,
                    |n| Panics(4000 + n),
                    |mut results| {
                        std::mem::forget(results.next());
                        used.fetch_add(1, SeqCst);
                        if panics {
                            throw(3000)
                        }
                    },
                )
            });
            (panic, used.into_inner())
        };
        assert_eq!(run(true), (Some(3000), 1));
        let (panic, used) = run(false);
        // Perhaps no computation has begun.
        assert!(panic.is_none_or(|n| (4001..4009).contains(&n)) && used == 1, "{panic:?}");
    });
}

/// The result of a loop that is written by hand; `None` if it panics.
fn sequential(first: i32, numbers: &[i32]) -> Option<i32> {
    numbers.iter().try_fold(first, |total, n| total.checked_add(*n))
}

#[test]
fn sums_overflow_as_the_sequential_ones() {
    let cases: [(i32, &[i32]); 6] = [
        (0, &[1, 2, 3]),
        (i32::MAX, &[-1, 1, 1]),
        (i32::MAX, &[-1, 1]),
        (i32::MIN + 1, &[-1, -1, 1, 1]),
        (-5, &[i32::MAX, 5, 1]),
        (-5, &[i32::MAX, 5, -1]),
    ];
    everywhere(|| {
        for (first, numbers) in cases {
            let expected = sequential(first, numbers);
            let checked = |a: i32, b: i32| a.checked_add(b).unwrap_or_else(|| throw(9));
            let found = catch_unwind(|| sum(first, numbers, |n| *n, checked));
            assert_eq!(found.ok(), expected, "{first} {numbers:?}");
            let wrapped = sum(first, numbers, |n| *n, i32::wrapping_add);
            assert_eq!(wrapped, numbers.iter().fold(first, |a, b| a.wrapping_add(*b)));
        }
        let bytes = [200u8; 3];
        assert_eq!(
            panic_of(|| sum(
                0,
                &bytes,
                |n| *n,
                |a, b| a.checked_add(b).unwrap_or_else(|| throw(9))
            )),
            Some(9)
        );
        assert_eq!(sum(7, &bytes, |n| *n, u8::wrapping_add), 95);
        assert_eq!(reduce(0b1, 0..8u32, |n| 1 << n, |a, b| a ^ b), 0b1111_1110);
    });
}

#[test]
fn overflow_before_a_panic_comes_first() {
    everywhere(|| {
        let f = |n: u8| if n == 3 { throw(3) } else { 100u8 };
        let add = |a: u8, b: u8| a.checked_add(b).unwrap_or_else(|| throw(9));
        assert_eq!(panic_of(|| sum(0, 0..5u8, f, add)), Some(9));
        assert_eq!(panic_of(|| sum(0, 2..5u8, f, add)), Some(3));
    });
}

#[test]
fn seeds_reach_several_threads_and_orders() {
    let mut orders = std::collections::BTreeSet::new();
    let mut threads = 0;
    for seed in 0..SEEDS {
        let log = Mutex::new(Vec::new());
        schedule(seed, || {
            let note = |n: u8| log.lock().unwrap().push((n, std::thread::current().id()));
            join(|| join(|| note(1), || note(2)), || join(|| note(3), || note(4)));
        });
        let log = log.into_inner().unwrap();
        let ids: std::collections::HashSet<_> = log.iter().map(|(_, id)| id).collect();
        threads = threads.max(ids.len());
        orders.insert(log.iter().map(|(n, _)| *n).collect::<Vec<_>>());
    }
    if !cfg!(miri) {
        assert!(threads >= 3, "{threads} threads");
        assert!(orders.len() >= 8, "{orders:?}");
    }
}
