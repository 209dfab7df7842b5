//! Waits with a time limit, and points in time.

use corebeat_lpel::*;
use std::future::{Future, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Runtimes in virtual time, so that no test depends on the speed of the machine.
fn runtimes() -> impl Iterator<Item = Runtime> {
    (0..20).map(|seed| Runtime::builder().workers(2).deterministic(seed).build().unwrap())
}

/// Writes a number after each of these pauses.
fn write_after(pauses: &'static [u32]) -> Reader<u32> {
    let (mut to, from) = stream(1);
    spawn(move || {
        for (n, pause) in pauses.iter().enumerate() {
            sleep(*pause * SECOND);
            to.write(n as u32).unwrap();
        }
    });
    from
}

#[test]
fn read_with_a_limit_returns_the_item_or_the_reason() {
    for rt in runtimes() {
        let got = rt.run(|| {
            let mut from = write_after(&[1, 3, 1]);
            [2, 2, 2, 2, 2].map(|limit| from.read_timeout(limit * SECOND))
        });
        let (empty, end) = (Err(TryReadError::Empty), Err(TryReadError::Closed));
        assert_eq!(got.unwrap(), [Ok(0), empty, Ok(1), Ok(2), end]);
    }
}

#[test]
fn expired_read_leaves_no_timer_behind() {
    for rt in runtimes() {
        let slept = rt.run(|| {
            let mut from = write_after(&[1]);
            // The item arrives long before the limit.
            assert_eq!(from.read_timeout(1000 * SECOND), Ok(0));
            let (_silent, mut silent) = stream::<u8>(1);
            assert_eq!(silent.read_timeout(SECOND), Err(TryReadError::Empty));
            // A later wait is not interrupted.
            let mut from = write_after(&[5000]);
            from.read()
        });
        assert_eq!(slept.unwrap(), Some(0));
    }
}

#[test]
fn write_with_a_limit_returns_the_item() {
    for rt in runtimes() {
        let got = rt.run(|| {
            let (mut to, mut from) = stream(1);
            let reads = spawn(move || {
                sleep(3 * SECOND);
                from.read();
                sleep(3 * SECOND);
            });
            let first = [1, 2].map(|n| to.write_timeout(n, SECOND));
            let room = to.write_timeout(3, 10 * SECOND);
            reads.join().unwrap();
            (first, room, to.write_timeout(4, SECOND))
        });
        let first = [Ok(()), Err(TryWriteError::Full(2))];
        assert_eq!(got.unwrap(), (first, Ok(()), Err(TryWriteError::Closed(4))));
    }
}

#[test]
fn join_with_a_limit_keeps_the_handle() {
    for rt in runtimes() {
        let got = rt.run(|| {
            let mut task = spawn(|| {
                sleep(3 * SECOND);
                7
            });
            [2, 2].map(|limit| task.join_timeout(limit * SECOND).map(Result::unwrap))
        });
        assert_eq!(got.unwrap(), [None, Some(7)]);
    }
}

#[test]
fn set_with_a_limit_returns_no_event_in_time() {
    for rt in runtimes() {
        let got = rt.run(|| {
            let mut set = StreamSet::new();
            set.add(write_after(&[1, 3]));
            [2, 2, 2, 2].map(|limit| set.read_timeout(limit * SECOND).map(|(_, event)| event))
        });
        assert_eq!(
            got.unwrap(),
            [Some(Event::Item(0)), None, Some(Event::Item(1)), Some(Event::End)]
        );
    }
}

#[test]
fn future_is_awaited_up_to_its_limit() {
    for rt in runtimes() {
        let got = rt.run(|| {
            let mut from = write_after(&[1, 3, 1]);
            let waits = async move {
                let mut got = Vec::new();
                for _ in 0..4 {
                    got.push(timeout(2 * SECOND, from.read_async()).await);
                }
                sleep_async(1000 * SECOND).await;
                got.push(timeout(SECOND, sleep_async(2 * SECOND)).await.map(|()| None));
                got
            };
            spawn_async(waits).join().unwrap()
        });
        assert_eq!(
            got.unwrap(),
            [Ok(Some(0)), Err(Elapsed), Ok(Some(1)), Ok(Some(2)), Err(Elapsed)]
        );
    }
}

#[test]
fn futures_of_one_task_end_in_the_order_of_their_times() {
    use futures_util::stream::{FuturesUnordered, StreamExt};
    for rt in runtimes() {
        let order = rt.run(|| {
            let sleeps: FuturesUnordered<_> = [3u32, 1, 2]
                .map(|n| async move {
                    sleep_async(n * SECOND).await;
                    n
                })
                .into_iter()
                .collect();
            spawn_async(sleeps.collect::<Vec<_>>()).join().unwrap()
        });
        assert_eq!(order.unwrap(), [1, 2, 3]);
    }
}

#[test]
fn threads_wait_with_limits() {
    let rt = Runtime::builder().workers(1).build().unwrap();
    let short = Duration::from_millis(1);
    let check = move || {
        let (mut to, mut from) = stream(1);
        assert_eq!(from.read_timeout(short), Err(TryReadError::Empty));
        assert_eq!(to.write_timeout(1, short), Ok(()));
        assert_eq!(to.write_timeout(2, short), Err(TryWriteError::Full(2)));
        assert_eq!(from.read_timeout(short), Ok(1));
    };
    check();
    // A blocking task that waits with a limit is in no deadlock.
    rt.run(move || Task::new().blocking().spawn(check).unwrap().join().unwrap()).unwrap();
    let (_open, mut gate) = stream::<u8>(1);
    let mut task = rt.spawn(move || gate.read());
    assert!(task.join_timeout(short).is_none());
    drop(rt);
    assert!(matches!(task.join_timeout(3600 * SECOND), Some(Err(Failure::Cancelled))));
}

#[test]
fn cancelled_task_does_not_wait_for_its_limit() {
    let rt = Runtime::builder().workers(1).build().unwrap();
    let (mut report, mut reported) = stream(1);
    let waits = rt.spawn(move || {
        let (_silent, mut silent) = stream::<u8>(1);
        report.write(()).unwrap();
        silent.read_timeout(3600 * SECOND)
    });
    reported.read();
    drop(rt);
    assert!(matches!(waits.join(), Err(Failure::Cancelled)));
}

/// Number of waits after which a task ends by itself.
const WAITS: usize = 10_000;

/// Aborts a task that waits again and again, on the only worker, after its first wait has begun.
/// Returns why the task ended.
fn abort(
    start: impl FnOnce(Arc<AtomicBool>) -> JoinHandle<()> + Send + 'static,
) -> Result<(), Failure> {
    let rt = Runtime::builder().workers(1).deterministic(1).build().unwrap();
    let ended = rt.run(move || {
        let waits = Arc::new(AtomicBool::new(false));
        let task = start(waits.clone());
        while !waits.load(Ordering::Relaxed) {
            yield_now();
        }
        task.abort();
        task.join()
    });
    ended.unwrap()
}

fn abort_blocking(mut wait: impl FnMut() + Send + 'static) -> Result<(), Failure> {
    abort(|waits| {
        spawn(move || {
            for _ in 0..WAITS {
                waits.store(true, Ordering::Relaxed);
                wait();
            }
        })
    })
}

fn abort_awaiting<F: Future + Send + 'static>(wait: fn() -> F) -> Result<(), Failure> {
    abort(move |waits| {
        spawn_async(async move {
            for _ in 0..WAITS {
                waits.store(true, Ordering::Relaxed);
                wait().await;
            }
        })
    })
}

#[test]
fn wait_of_no_time_lets_other_tasks_run_and_ends_when_aborted() {
    const ZERO: Duration = Duration::ZERO;
    let (_silent, mut reader) = stream::<u8>(1);
    let (mut writer, _full) = stream(1);
    writer.write(0).unwrap();
    let (_quiet, member) = stream::<u8>(1);
    let mut set = StreamSet::new();
    set.add(member);
    let mut sleeper = None;
    let ended = [
        abort_awaiting(|| sleep_async(ZERO)),
        abort_awaiting(|| timeout(ZERO, pending::<()>())),
        abort_blocking(|| sleep(ZERO)),
        abort_blocking(move || assert!(reader.read_timeout(ZERO).is_err())),
        abort_blocking(move || assert!(writer.write_timeout(1, ZERO).is_err())),
        abort_blocking(move || assert!(set.read_timeout(ZERO).is_none())),
        abort_blocking(move || {
            let sleeper = sleeper.get_or_insert_with(|| spawn(|| sleep(1000 * SECOND)));
            assert!(sleeper.join_timeout(ZERO).is_none());
        }),
    ];
    for (n, ended) in ended.iter().enumerate() {
        assert!(matches!(ended, Err(Failure::Aborted)), "wait {n}: {ended:?}");
    }
}
