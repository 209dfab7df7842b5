//! The pool: each test runs in a process of its own, with a number of threads that does not depend
//! on the machine.

use corebeat_future::{for_each, future, join, pipeline, scope, sites};
#[cfg(feature = "lpel")]
use corebeat_lpel::Failure;
use corebeat_lpel::Runtime;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

const THREADS: &str = "COREBEAT_FUTURE_THREADS";
const SEED: &str = "COREBEAT_FUTURE_SEED";
/// The part of the test that runs in the process of its own.
const INSIDE: &str = "COREBEAT_FUTURE_TEST";

/// Time after which a process of a test is killed: a deadlock is a failure, and does not stop the
/// other tests.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs `body` in another process, and returns its output; `None` in that process.
fn apart(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) -> Option<Output> {
    if std::env::var_os(INSIDE).is_some() {
        body();
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(INSIDE, "1").env_remove(SEED).envs(variables.iter().copied());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let (to_watch, ended) = channel::<()>();
    let watch = thread::spawn(move || {
        if ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            eprintln!("the process is killed: it has run for {LIMIT:?}");
            // SAFETY: no memory is involved.
            unsafe { libc::kill(id as libc::pid_t, libc::SIGKILL) };
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(to_watch);
    watch.join().unwrap();
    Some(output)
}

/// Runs `body` with four threads, in another process.
fn with_four(test: &str, body: impl FnOnce()) {
    if let Some(output) = apart(test, &[(THREADS, "4")], body) {
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {text}", output.status);
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    }
}

#[test]
fn closures_run_at_the_same_time() {
    with_four("closures_run_at_the_same_time", || {
        let main = thread::current().id();
        let (to_first, first) = channel();
        let (to_second, second) = channel();
        let talk = || {
            to_second.send(1).unwrap();
            assert_eq!(thread::current().id(), main);
            first.recv().unwrap()
        };
        let answer = move || {
            let got: i32 = second.recv().unwrap();
            to_first.send(got + 1).unwrap();
            thread::current().id()
        };
        let (got, other) = join(talk, answer);
        assert_eq!(got, 2);
        assert_ne!(other, main);
        // A future talks to the code that follows it.
        let (sender, receiver) = channel();
        scope(|s| {
            let x = s.future(move || receiver.recv().unwrap());
            sender.send(3).unwrap();
            assert_eq!(x.join(), 3);
        });
    });
}

/// The body for the first item ends only after another thread has begun the second computation.
#[test]
fn stages_run_at_the_same_time() {
    with_four("stages_run_at_the_same_time", || {
        let begun = AtomicUsize::new(0);
        let caller = thread::current().id();
        let compute = |n: usize| {
            begun.fetch_max(n, SeqCst);
            n
        };
        pipeline(0..3, compute, |results| {
            for n in results {
                assert_eq!(thread::current().id(), caller);
                while n < 2 && begun.load(SeqCst) <= n {
                    std::hint::spin_loop();
                }
            }
        });
    });
}

#[test]
fn callers_keep_their_locks_while_they_wait() {
    with_four("callers_keep_their_locks_while_they_wait", || {
        // If a waiting strand ran an unrelated closure, it could need a lock that a frame below it
        // holds.
        let (a, b) = (Mutex::new(0), Mutex::new(0));
        let work = |lock: &Mutex<u32>| {
            let mut held = lock.lock().unwrap();
            let (x, y) = join(|| spin(20), || join(|| spin(30), || spin(10)).1);
            *held += x + y;
        };
        thread::scope(|s| {
            for (first, second) in [(&a, &b), (&b, &a)] {
                s.spawn(move || {
                    for _ in 0..500 {
                        join(|| work(first), || work(second));
                    }
                });
            }
        });
        assert_eq!((a.into_inner().unwrap(), b.into_inner().unwrap()), (2000, 2000));
    });
}

/// Computes for some microseconds, and returns 1.
fn spin(rounds: u32) -> u32 {
    let mut x = 1;
    (0..100 * rounds).for_each(|n| x = std::hint::black_box(x ^ n));
    u32::from(x < u32::MAX) | 1
}

/// Recursion with frames of 4 KiB.
#[cfg(not(feature = "rayon"))]
fn deep(depth: u32) -> u32 {
    let frame = std::hint::black_box([depth as u8; 4096]);
    if depth == 0 { u32::from(frame[7]) } else { deep(depth - 1) + u32::from(frame[0] > 255 - 1) }
}

/// Threads of rayon have the stacks that the program gives them.
#[cfg(not(feature = "rayon"))]
#[test]
fn helpers_have_as_much_stack_as_the_caller() {
    with_four("helpers_have_as_much_stack_as_the_caller", || {
        let large = thread::Builder::new().stack_size(512 << 20).spawn(|| {
            let (sender, receiver) = channel();
            let on_other_thread = move || {
                let result = deep(20_000); // at least 80 MiB
                sender.send(result).unwrap();
            };
            join(|| receiver.recv().unwrap(), on_other_thread).0
        });
        large.unwrap().join().unwrap();
    });
}

#[test]
fn message_of_the_first_panic_is_printed() {
    let name = "message_of_the_first_panic_is_printed";
    let body = || {
        let (sender, receiver) = channel();
        let first = move || {
            receiver.recv().unwrap();
            panic!("comes first");
        };
        let second = move || {
            sender.send(()).unwrap();
            panic!("comes second");
        };
        let result = catch_unwind(AssertUnwindSafe(|| join(first, second)));
        let payload = result.unwrap_err();
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"comes first"));
        // The message of the second panic is printed as well, since the closure had started.
        resume_unwind(payload);
    };
    if let Some(output) = apart(name, &[(THREADS, "4")], body) {
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(text.contains("comes first"), "{text}");
    }
}

#[test]
fn panic_releases_its_locks_before_earlier_closures_end() {
    with_four("panic_releases_its_locks_before_earlier_closures_end", || {
        let (log, is_held) = (Mutex::new(0), AtomicBool::new(false));
        let locked = || log.lock().unwrap_or_else(PoisonError::into_inner);
        let first = || {
            while !is_held.load(SeqCst) {
                std::hint::spin_loop();
            }
            *locked() += 1;
        };
        let second = || {
            let _held = locked();
            is_held.store(true, SeqCst);
            panic!("a panic of the test");
        };
        assert!(catch_unwind(AssertUnwindSafe(|| join(first, second))).is_err());
        assert_eq!(*locked(), 1);
    });
}

/// A tree of futures whose leaves panic.
fn failing(depth: u32) {
    scope(|s| {
        let x = s.future(move || {
            if depth > 0 {
                failing(depth - 1)
            }
        });
        assert!(depth > 0, "a panic of the test");
        failing(depth - 1);
        x.join();
    });
}

#[test]
fn panics_in_more_futures_than_workers_end() {
    with_four("panics_in_more_futures_than_workers_end", || {
        for _ in 0..2 {
            assert!(catch_unwind(|| failing(8)).is_err());
        }
    });
}

#[test]
fn scope_has_many_futures() {
    with_four("scope_has_many_futures", || {
        const FUTURES: usize = 200_000;
        for order in 0..3 {
            let ran = AtomicUsize::new(0);
            scope(|s| {
                let run = || ran.fetch_add(1, SeqCst);
                let mut futures: Vec<_> = (0..FUTURES).map(|_| s.future(run)).collect();
                match order {
                    0 => return,
                    1 => futures.reverse(),
                    _ => {}
                }
                futures.into_iter().for_each(|future| assert!(future.join() < FUTURES));
            });
            assert_eq!(ran.into_inner(), FUTURES);
        }
    });
}

#[test]
fn fine_site_is_switched_off() {
    with_four("fine_site_is_switched_off", || {
        let state = |line: u32| sites().into_iter().find(|site| site.line == line).unwrap();
        let mut calls = 0u64;
        loop {
            let (a, b) = join(|| calls + 1, || 1);
            assert_eq!(a, calls + b);
            calls += 1;
            if state(line!() - 3).is_off {
                break;
            }
        }
        assert!(state(line!() - 7).to_string().contains("tests/pool.rs:"));
        // A run under a seed switches it on.
        corebeat_future::schedule(1, || join(|| (), || ()));
        assert!(sites().iter().all(|site| !site.is_off));
    });
}

/// Runs `body` in a child of fork, and returns its status.
fn status_of(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls the functions under test and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child without the destructors of the test harness.
        unsafe { libc::_exit(body()) };
    }
    let mut status = 0;
    // SAFETY: the pointer is valid.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

#[test]
fn child_of_fork_uses_plain_calls() {
    with_four("child_of_fork_uses_plain_calls", || {
        let sum = || {
            let total = AtomicU32::new(0);
            for_each(0..1000u32, |n| {
                total.fetch_add(n, SeqCst);
            });
            join(|| total.load(SeqCst), || 1)
        };
        assert_eq!(sum(), (499_500, 1));
        let child = || if sum() == (499_500, 1) { 0 } else { 1 };
        assert_eq!(status_of(child), 0);
        // A child does not wait for an open future of its parent.
        let (x, y) = (Cell::new(Some(future(|| 5))), Cell::new(Some(future(|| 6))));
        let drops = || {
            drop(x.take());
            0
        };
        assert_eq!(status_of(drops), 0);
        let joins = || y.take().map_or(1, |y| y.join());
        assert_eq!(libc::WTERMSIG(status_of(joins)), libc::SIGABRT);
        assert_eq!([x, y].map(|x| x.take().unwrap().join()), [5, 6]);
        assert_eq!(sum(), (499_500, 1));
    });
}

#[test]
fn program_under_a_seed_repeats_its_order() {
    let name = "program_under_a_seed_repeats_its_order";
    let order = |seed: &str| {
        let body = || {
            let log = Mutex::new(String::new());
            for_each(0..12u32, |n| log.lock().unwrap().push_str(&format!("{n} ")));
            println!("order {}", log.into_inner().unwrap());
        };
        let output = apart(name, &[(SEED, seed)], body)?;
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        Some(text.lines().find(|line| line.contains("order ")).unwrap().to_owned())
    };
    let orders: Vec<_> = ["1", "2", "3", "4", "1"].map(order).into_iter().flatten().collect();
    if let [first, .., last] = &orders[..] {
        assert_eq!(first, last);
        assert!(orders.iter().any(|order| order != first), "{orders:?}");
    }
}

#[test]
fn invalid_seed_ends_the_process() {
    if let Some(output) = apart("invalid_seed_ends_the_process", &[(SEED, "0x2a")], || {
        join(|| (), || ());
    }) {
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("COREBEAT_FUTURE_SEED=0x2a"), "{text}");
    }
}

/// Without the feature `lpel`, tasks would share the context of their thread.
#[cfg(not(feature = "lpel"))]
#[test]
fn calls_in_tasks_are_plain() {
    with_four("calls_in_tasks_are_plain", || {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let sum = || (0..1000u32).map(|n| join(|| n, || 1)).map(|(n, one)| n + one).sum::<u32>();
        assert_eq!(runtime.run(sum).unwrap(), 500_500);
        assert!(sites().iter().all(|site| site.parallel_calls == 0));
    });
}

#[cfg(feature = "lpel")]
#[test]
fn task_of_lpel_waits_without_blocking_its_worker() {
    with_four("task_of_lpel_waits_without_blocking_its_worker", || {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let result = runtime.run(|| {
            let (sender, receiver) = channel();
            // The only worker must run this task while the next one waits in its join.
            let other = corebeat_lpel::spawn(move || sender.send(5).unwrap());
            let started = AtomicBool::new(false);
            let is_started = &started;
            let waits = move || {
                is_started.store(true, SeqCst);
                receiver.recv().unwrap()
            };
            let first = || {
                while !started.load(SeqCst) {
                    std::hint::spin_loop();
                }
            };
            let ((), got) = join(first, waits);
            other.join().unwrap();
            got
        });
        assert_eq!(result.unwrap(), 5);
    });
}

#[cfg(feature = "lpel")]
#[test]
fn cancelled_task_leaves_a_join_after_its_closures() {
    with_four("cancelled_task_leaves_a_join_after_its_closures", || {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let (to_task, in_task) = channel();
        let (to_test, in_test) = channel();
        static ENDED: AtomicBool = AtomicBool::new(false);
        let handle = runtime.spawn(move || {
            let started = AtomicBool::new(false);
            let is_started = &started;
            let second = move || {
                is_started.store(true, SeqCst);
                to_test.send(()).unwrap();
                in_task.recv().unwrap();
                ENDED.store(true, SeqCst);
            };
            let first = || {
                while !started.load(SeqCst) {
                    std::hint::spin_loop();
                }
            };
            join(first, second);
        });
        in_test.recv().unwrap();
        handle.abort();
        to_task.send(()).unwrap();
        // The task was aborted, or its join ended before it was.
        match handle.join() {
            Ok(()) | Err(Failure::Aborted) => assert!(ENDED.load(SeqCst)),
            Err(other) => panic!("{other}"),
        }
    });
}
