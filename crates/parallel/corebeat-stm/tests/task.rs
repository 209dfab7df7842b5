//! Tasks of LPEL that run transactions.

use corebeat_lpel::{Failure, Runtime, Task, sleep, spawn, stream, yield_now};
use corebeat_stm::{TCell, TimedOut, atomically, atomically_timeout};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

#[test]
fn task_that_waits_in_a_transaction_fails_alone() {
    // One worker: all tasks run on its thread.
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let sum = runtime.run(|| {
        let cell = Box::leak(Box::new(TCell::new(0u64)));
        let add = |wait: &mut dyn FnMut()| {
            atomically(|tx| {
                tx.update(cell, |n| n + 1)?;
                wait();
                Ok(())
            });
        };
        let (mut writer, mut reader) = stream::<u32>(1);
        let waits = spawn(move || add(&mut || assert_eq!(reader.next(), None)));
        let yields = spawn(move || add(&mut yield_now));
        // It runs while the others wait, if they do.
        let innocent = spawn(move || add(&mut || {}));
        innocent.join().unwrap();
        // The panic has dropped the reader.
        assert!(writer.write(1).is_err());
        for offender in [waits.join(), yields.join()] {
            let why = offender.unwrap_err().to_string();
            assert!(why.contains("wait before or after the transaction"), "{why}");
        }
        atomically(|tx| tx.read(cell))
    });
    assert_eq!(sum.unwrap(), 1);
}

/// Runs `f` on a thread of its own. Fails if `f` hangs.
fn ends<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let (to, result) = channel();
    std::thread::spawn(move || to.send(f()));
    result.recv_timeout(Duration::from_secs(60)).expect("the tasks hang, or have panicked")
}

fn cell(value: u64) -> &'static TCell<u64> {
    Box::leak(Box::new(TCell::new(value)))
}

#[test]
fn task_that_retries_lets_other_tasks_of_its_worker_run() {
    const TASKS: u64 = 5;
    let turns = ends(|| {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let turn = cell(0);
        // Each task waits for its turn in two rounds, while the others wait as well.
        let take_turn = move |own: u64| {
            atomically(|tx| {
                if tx.read(turn)? % TASKS != own {
                    return tx.retry();
                }
                tx.update(turn, |n| n + 1)
            });
        };
        let ran = runtime.run(move || {
            let tasks = (0..TASKS).rev().map(|own| {
                spawn(move || {
                    take_turn(own);
                    take_turn(own);
                })
            });
            tasks.collect::<Vec<_>>().into_iter().for_each(|task| task.join().unwrap());
            atomically(|tx| tx.read(turn))
        });
        ran.unwrap()
    });
    assert_eq!(turns, 2 * TASKS);
}

#[test]
fn task_that_retries_is_woken_by_a_thread_and_is_no_deadlock() {
    let value = ends(|| {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let go = cell(0);
        let (to, begun) = channel();
        let writer = std::thread::spawn(move || {
            (0..2).for_each(|_| begun.recv().unwrap());
            atomically(|tx| tx.write(go, 7));
        });
        let value = runtime.run(move || {
            let wait = move |to: Sender<()>| {
                // The writer commits after both tasks have read the old value.
                let mut to = Some(to);
                move || {
                    atomically(|tx| match tx.read(go)? {
                        0 => {
                            to.take().into_iter().for_each(|to| to.send(()).unwrap());
                            tx.retry()
                        }
                        value => Ok(value),
                    })
                }
            };
            let task = spawn(wait(to.clone()));
            let blocking = Task::new().blocking().spawn(wait(to)).unwrap();
            (task.join().unwrap(), blocking.join().unwrap())
        });
        writer.join().unwrap();
        value.unwrap()
    });
    assert_eq!(value, (7, 7));
}

#[test]
fn retry_ends_at_its_time_limit_in_virtual_time() {
    let day = Duration::from_secs(24 * 3_600);
    let ended = ends(move || {
        let runtime = Runtime::builder().deterministic(1).build().unwrap();
        let ran = runtime.run(move || {
            let day_is_over = cell(0);
            let sleeper = spawn(move || {
                sleep(2 * day);
                atomically(|tx| tx.write(day_is_over, 1));
            });
            let never = cell(0);
            let timed = atomically_timeout(day, |tx| {
                tx.read(never)?;
                tx.retry::<()>()
            });
            let in_time = atomically(|tx| tx.read(day_is_over)) == 0;
            sleeper.join().unwrap();
            (timed, in_time)
        });
        ran.unwrap()
    });
    assert_eq!(ended, (Err(TimedOut), true));
}

#[test]
fn retry_of_a_task_ends_at_its_time_limit_or_when_the_task_is_aborted() {
    ends(|| {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let ran = runtime.run(|| {
            let never = cell(0);
            let timed = atomically_timeout(Duration::from_millis(1), |tx| {
                tx.read(never)?;
                tx.retry::<()>()
            });
            assert_eq!(timed, Err(TimedOut));
            let (mut begins, mut begun) = stream(1);
            let waits = spawn(move || {
                begins.write(()).unwrap();
                atomically(|tx| {
                    tx.read(never)?;
                    tx.retry::<()>()
                });
            });
            begun.read();
            waits.abort();
            assert!(matches!(waits.join(), Err(Failure::Aborted)));
            // The worker is in no transaction.
            atomically(|tx| tx.update(never, |n| n + 1));
            atomically(|tx| tx.read(never))
        });
        assert_eq!(ran.unwrap(), 1);
    });
}
