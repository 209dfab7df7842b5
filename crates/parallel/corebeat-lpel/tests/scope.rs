//! Groups of tasks that end together, and tasks that end by request.

use corebeat_lpel::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn runtimes() -> impl Iterator<Item = Runtime> {
    let threads = (1..=2).map(|n| Runtime::builder().workers(n));
    let seeds = (0..20).map(|seed| Runtime::builder().workers(2).deterministic(seed));
    threads.chain(seeds).map(|builder| builder.build().unwrap())
}

/// Spawns a task in each form that waits for ever. Returns their handles when all of them wait.
fn waiting(spawned: Arc<AtomicUsize>) -> Vec<JoinHandle<()>> {
    let wait = move |spawned: &AtomicUsize| {
        let (_silent, mut silent) = stream::<u8>(1);
        spawned.fetch_add(1, Ordering::Relaxed);
        silent.read();
    };
    let own = [(); 6].map(|()| spawned.clone());
    let [a, b, c, d, e, f] = own;
    let (_open, mut gate) = stream::<u8>(1);
    let handles = vec![
        spawn(move || wait(&a)),
        Task::new().blocking().spawn(move || wait(&b)).unwrap(),
        spawn_async(async move {
            c.fetch_add(1, Ordering::Relaxed);
            gate.read_async().await;
        }),
        spawn(move || {
            d.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_secs(1_000_000));
        }),
        spawn(move || {
            e.fetch_add(1, Ordering::Relaxed);
            loop {
                yield_now();
            }
        }),
        spawn_async(async move {
            f.fetch_add(1, Ordering::Relaxed);
            sleep_async(Duration::from_secs(1_000_000)).await;
        }),
    ];
    while spawned.load(Ordering::Relaxed) < handles.len() {
        yield_now();
    }
    std::mem::forget(_open);
    handles
}

fn is_aborted<T>(task: JoinHandle<T>) -> bool
where
    T: Send + 'static,
{
    matches!(task.join(), Err(Failure::Aborted))
}

#[test]
fn aborted_task_is_unwound_where_it_waits() {
    for rt in runtimes() {
        let aborted = rt.run(|| {
            let tasks = waiting(Arc::default());
            tasks.iter().for_each(JoinHandle::abort);
            tasks.into_iter().map(is_aborted).collect::<Vec<_>>()
        });
        assert_eq!(aborted.unwrap(), [true; 6]);
    }
}

#[test]
fn aborted_task_that_has_not_started_never_runs() {
    for seed in 0..20 {
        let rt = Runtime::builder().workers(1).deterministic(seed).build().unwrap();
        let aborted = rt.run(|| {
            let never = spawn(|| unreachable!("the task was aborted before it started"));
            never.abort();
            is_aborted(never)
        });
        assert!(aborted.unwrap());
    }
}

#[test]
fn abort_after_the_end_has_no_effect() {
    let rt = Runtime::builder().workers(1).build().unwrap();
    let task = rt.spawn(|| 7);
    while !task.is_finished() {
        std::thread::yield_now();
    }
    task.abort();
    drop(rt);
    // The runtime does not exist any more.
    task.abort();
    assert_eq!(task.join().unwrap(), 7);
}

#[test]
fn scope_waits_for_its_tasks_only() {
    for workers in [1, 2] {
        let rt = Runtime::builder().workers(workers).build().unwrap();
        let (mut go, mut may_go) = stream::<u8>(1);
        let other = rt.spawn(move || may_go.read());
        let ended = Arc::new(AtomicUsize::new(0));
        let count = ended.clone();
        let result = rt.scope().run(move || {
            let inner = count.clone();
            spawn(move || {
                sleep(Duration::from_millis(1));
                spawn_async(async move { inner.fetch_add(1, Ordering::Relaxed) });
            });
            let body = move || count.fetch_add(1, Ordering::Relaxed);
            Task::new().blocking().spawn(body).unwrap();
            5
        });
        assert_eq!((result.unwrap(), ended.load(Ordering::Relaxed)), (5, 2));
        assert!(!other.is_finished());
        go.write(1).unwrap();
        assert_eq!(other.join().unwrap(), Some(1));
    }
}

#[test]
fn cancelled_scope_ends_all_its_tasks_and_no_others() {
    for rt in runtimes() {
        let (aborted, result) = rt
            .run(|| {
                let network = scope().unwrap();
                let (mut to, mut from) = stream(1);
                let other = spawn(move || from.read());
                let spawned = Arc::new(AtomicUsize::new(0));
                let tasks = network.spawn(move || (waiting(spawned), ()).0);
                let tasks = tasks.join().unwrap();
                assert!(!network.wait_timeout(Duration::from_millis(1)));
                network.cancel();
                assert!(network.wait() && network.is_cancelled());
                // A cancelled scope stays cancelled.
                let late = network.spawn(|| ());
                to.write(3).unwrap();
                let aborted: Vec<_> = tasks.into_iter().chain([late]).map(is_aborted).collect();
                (aborted, other.join().unwrap())
            })
            .unwrap();
        assert_eq!((aborted, result), (vec![true; 7], Some(3)));
    }
}

#[test]
fn scope_of_a_task_contains_its_scopes() {
    for rt in runtimes() {
        let aborted = rt.run(|| {
            let outer = scope().unwrap();
            let (mut report, mut reported) = stream(1);
            let task = outer.spawn(move || {
                let inner = scope().unwrap();
                let tasks = inner.spawn(|| waiting(Arc::default())).join().unwrap();
                assert!(report.write(tasks).is_ok());
                inner.wait()
            });
            let tasks = reported.read().unwrap();
            outer.cancel();
            assert!(outer.wait());
            tasks.into_iter().all(is_aborted) && is_aborted(task)
        });
        assert!(aborted.unwrap());
    }
}

#[test]
fn deadlock_in_a_scope_is_reported() {
    for rt in runtimes() {
        let (_silent, mut silent) = stream::<u8>(1);
        let reported = rt.scope().run(move || silent.read());
        assert!(matches!(reported, Err(Failure::Deadlock(_))), "{reported:?}");
    }
}

#[test]
fn scope_outside_a_task_needs_a_runtime() {
    assert!(matches!(scope(), Err(Error::NoRuntime)));
    let rt = Runtime::builder().workers(1).build().unwrap();
    let network = rt.scope();
    assert!(network.wait());
    drop(rt);
    assert!(matches!(network.spawn(|| ()).join(), Err(Failure::Cancelled)));
    assert!(network.wait());
}

#[test]
fn wait_on_a_deterministic_runtime_ends_with_its_scope_or_its_time() {
    let rt = Runtime::builder().deterministic(1).build().unwrap();
    let (open, mut reader) = stream::<u8>(1);
    // This task waits for the calling thread.
    let own = rt.scope();
    let waits = own.spawn(move || reader.read());
    assert!(rt.scope().wait());
    assert_eq!(rt.scope().run(|| 1).unwrap(), 1);
    assert!(!own.wait_timeout(Duration::ZERO));
    // Virtual time, also while no task can run.
    assert!(!own.wait_timeout(Duration::from_secs(1_000_000)));
    let sleeper = rt.scope();
    sleeper.spawn(|| sleep(Duration::from_secs(2)));
    assert!(!sleeper.wait_timeout(Duration::from_secs(1)));
    assert!(sleeper.wait_timeout(Duration::from_secs(2)));
    drop(open);
    assert!(own.wait());
    assert_eq!(waits.join().unwrap(), None);
}

#[test]
fn unfinished_tasks_of_a_deterministic_runtime_stay_on_their_thread() {
    let rt = Runtime::builder().deterministic(1).build().unwrap();
    let (open, mut reader) = stream::<u8>(1);
    let own = rt.scope();
    let waits = own.spawn(move || reader.read());
    assert!(!own.wait_timeout(Duration::from_secs(1)));
    std::thread::scope(|scope| {
        let why = scope.spawn(|| own.wait()).join().unwrap_err();
        let why = why.downcast_ref::<&str>().unwrap();
        assert!(why.contains("execute the runtime on that thread only"), "{why}");
        assert!(scope.spawn(|| rt.scope().wait()).join().unwrap());
    });
    drop(open);
    assert!(own.wait());
    assert_eq!(waits.join().unwrap(), None);
    // No task is left, so any thread may use the runtime.
    std::thread::spawn(move || assert_eq!(rt.run(|| 1).unwrap(), 1)).join().unwrap();

    let rt = Runtime::builder().deterministic(1).build().unwrap();
    let (_open, mut reader) = stream::<u8>(1);
    let own = rt.scope();
    let ends = DropCount(Arc::default());
    let ended = ends.0.clone();
    own.spawn(move || {
        let _ends = ends;
        reader.read();
    });
    assert!(!own.wait_timeout(Duration::from_secs(1)));
    std::thread::spawn(move || drop(rt)).join().unwrap();
    assert_eq!(ended.load(Ordering::Relaxed), 0);
}

struct DropCount(Arc<AtomicUsize>);

impl Drop for DropCount {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn task_of_another_runtime_waits_for_a_scope_without_a_deadlock_report() {
    let own = Runtime::builder().workers(1).build().unwrap();
    let other = Runtime::builder().workers(1).build().unwrap();
    let scope = other.scope();
    let (start, started) = std::sync::mpsc::channel::<()>();
    // The task of the scope ends after the task below has waited, or after a while.
    scope.spawn(move || {
        let _ = started.recv_timeout(Duration::from_secs(1));
    });
    let is_empty = own.run(move || {
        let is_empty = scope.wait();
        drop(start);
        is_empty
    });
    assert!(is_empty.unwrap());
}

/// A worker may refer to ended tasks and streams for longer than a scope waits. Without the drops
/// at their ends, about a fifth of these waits found something left.
#[test]
fn results_and_items_are_dropped_before_a_wait_returns() {
    struct Item(Arc<AtomicUsize>);
    impl Item {
        fn new(exist: &Arc<AtomicUsize>) -> Item {
            exist.fetch_add(1, Ordering::Relaxed);
            Item(exist.clone())
        }
    }
    impl Drop for Item {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let rt = Runtime::builder().workers(2).build().unwrap();
    let exist = Arc::new(AtomicUsize::new(0));
    for reads in 0..500 {
        let scope = rt.scope();
        let (item, result) = (exist.clone(), exist.clone());
        let (mut writer, mut reader) = stream(32);
        let writes = move || while writer.write(Item::new(&item)).is_ok() {};
        scope.task().worker(0).spawn(writes).unwrap();
        let reads = move || {
            (0..5 + reads % 40).for_each(|_| drop(reader.read()));
            Item::new(&result)
        };
        scope.task().worker(1).spawn(reads).unwrap();
        assert!(scope.wait());
        assert_eq!(exist.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn task_that_waits_for_its_own_scope_is_refused() {
    for rt in runtimes() {
        let outer = rt.scope();
        let wait = {
            let outer = outer.clone();
            move || {
                let inner = scope().unwrap();
                let in_inner = inner.spawn(move || outer.wait());
                in_inner.join()
            }
        };
        let Failure::Panicked(panic) = outer.run(wait).unwrap().unwrap_err() else {
            panic!("the wait has ended")
        };
        let message = panic.message().unwrap();
        assert!(message.starts_with("a task cannot wait for its own scope"), "{message}");
    }
}

#[test]
fn results_after_the_cancellation_of_a_scope_are_failures() {
    // Regression: a task whose stream ended because its scope was cancelled returned the sum of the
    // items until then.
    for seed in 0..200 {
        let rt = Runtime::builder().workers(2).deterministic(seed).build().unwrap();
        let (reader, canceller) = rt
            .run(|| {
                let scope = scope().unwrap();
                let inner = scope.clone();
                let (mut to, from) = stream::<u32>(2);
                scope.spawn(move || (0..).try_for_each(|n| to.write(n)));
                let reader = scope.spawn(move || from.into_iter().take(1_000_000).count());
                let canceller = scope.spawn(move || {
                    (0..10).for_each(|_| yield_now());
                    inner.cancel();
                    7
                });
                scope.wait();
                (reader.join(), canceller.join())
            })
            .unwrap();
        assert!(matches!(reader, Err(Failure::Aborted)), "seed {seed}: {reader:?}");
        assert_eq!(canceller.unwrap(), 7, "seed {seed}");
    }
}
