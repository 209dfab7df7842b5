//! Models of the end of a task, and of the await of an async task.

use super::{assert_detected, check, spawn};
use crate::JoinHandle;
use crate::task::{self, Header, Params, Plain, References, TaskRef, Unended};
use corebeat_sync::atomic::{AtomicBool, Ordering};
use corebeat_sync::cell::UnsafeCell;
use corebeat_sync::fork::Process;
use corebeat_sync::thread;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering as Plainly};
use std::task::{Context, Poll, Wake, Waker};

fn params() -> Params<'static> {
    Params::new(1, Process::current())
}

fn create<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> (Unended, JoinHandle<T>) {
    task::create(params(), Plain(f)).unwrap()
}

/// A cell that each owner writes, and that the last owner drops.
struct Checked(UnsafeCell<u32>);

// SAFETY: the model checks that the uses of the cell are ordered.
unsafe impl Send for Checked {}

impl Checked {
    fn set(&self, to: u32) {
        // SAFETY: as above.
        self.0.with_mut(|n| unsafe { *n = to });
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Runs and ends a task on a thread.
fn run(task: Unended) -> thread::JoinHandle<()> {
    spawn(move || {
        // SAFETY: only this thread runs the task, once.
        // A task of the models has no stack and no future, so it ends in one run.
        unsafe {
            task::run(task.as_ptr());
            task::publish_end(task);
        }
    })
}

#[test]
fn loom_join_waits_for_the_result() {
    check(3, || {
        let (task, handle) = create(|| Checked(UnsafeCell::new(1)));
        let thread = run(task);
        let result = handle.join().unwrap();
        result.set(2);
        thread.join().unwrap();
    });
}

/// A waker that counts its calls.
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Plainly::Relaxed);
    }
}

/// Polls a handle first: the waker is called once, or the poll returns the result. Then joins or
/// drops the handle.
fn poll(join: bool) {
    check(3, move || {
        let (task, handle) = create(|| Checked(UnsafeCell::new(1)));
        let thread = run(task);
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        let mut handle = pin!(Some(handle));
        let polled = handle.as_mut().as_pin_mut().unwrap().poll(&mut Context::from_waker(&waker));
        match polled {
            Poll::Ready(result) => result.unwrap().set(2),
            Poll::Pending if join => {
                // SAFETY: a handle may be moved.
                let handle = unsafe { handle.get_unchecked_mut() }.take();
                handle.unwrap().join().unwrap().set(2);
            }
            Poll::Pending => {}
        }
        thread.join().unwrap();
        let calls = count.0.load(Plainly::Relaxed);
        assert!(calls <= 1, "{calls}");
    });
}

#[test]
fn loom_join_after_a_poll_waits_for_the_result() {
    poll(true);
}

#[test]
fn loom_handle_dropped_after_a_poll_leaves_no_token() {
    poll(false);
}

/// The end of the task or the drop of the handle drops the result, whichever is later.
#[test]
fn loom_result_without_a_joiner_is_dropped_once() {
    check(3, || {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (task, handle) = create({
            struct Result(UnsafeCell<u32>, Arc<AtomicUsize>);
            // SAFETY: the model checks that the uses of the cell are ordered.
            unsafe impl Send for Result {}
            impl Drop for Result {
                fn drop(&mut self) {
                    // SAFETY: as above.
                    self.0.with_mut(|n| unsafe { *n += 1 });
                    self.1.fetch_add(1, Plainly::Relaxed);
                }
            }
            let dropped = dropped.clone();
            move || Result(UnsafeCell::new(1), dropped)
        });
        // SAFETY: the task has not ended; the reference is counted.
        let kept = ManuallyDrop::new(unsafe { TaskRef::from_raw(task.as_ptr()) });
        let kept = TaskRef::clone(&kept);
        let thread = run(task);
        drop(handle);
        thread.join().unwrap();
        assert_eq!(dropped.load(Plainly::Relaxed), 1);
        drop(kept);
    });
}

/// The end of the task or the drop of its handle frees the task, whichever is later, after all uses
/// by the other.
#[test]
fn loom_task_is_freed_once() {
    for joins in [false, true] {
        check(3, move || {
            let name: Arc<str> = "task".into();
            let params = Params { name: Some(&name), ..params() };
            let (task, handle) = task::create(params, Plain(|| ())).unwrap();
            let thread = run(task);
            if joins {
                handle.join().unwrap()
            } else {
                drop(handle)
            }
            thread.join().unwrap();
            assert_eq!(Arc::strong_count(&name), 1);
        });
    }
}

#[test]
fn loom_join_faults_are_detected() {
    let model = "task::loom_join_waits_for_the_result";
    assert_detected(&[(model, "release task.rs"), (model, "acquire task.rs")]);
    let model = "task::loom_result_without_a_joiner_is_dropped_once";
    assert_detected(&[(model, "acquire join.rs")]);
}

/// Two threads notify an async task, each after an event. The task is polled until it has found
/// both events.
#[test]
fn loom_await_misses_no_notification() {
    /// State by which a task is dispatched again, and the events.
    struct World {
        header: Header,
        delivered: AtomicBool,
        worker: thread::Thread,
        news: [AtomicBool; 2],
    }
    check(3, || {
        static VTABLE: task::Vtable = task::thread_vtable(|_| ());
        let world = Arc::new(World {
            header: Header::new(1, None, None, Process::current(), task::Kind::Async, &VTABLE),
            delivered: AtomicBool::new(false),
            worker: thread::current(),
            news: [AtomicBool::new(false), AtomicBool::new(false)],
        });
        let threads = [0, 1].map(|n| {
            let world = world.clone();
            spawn(move || {
                // Relaxed: the notification publishes the event.
                world.news[n].store(true, Ordering::Relaxed);
                if world.header.take_await() {
                    assert!(
                        !world.delivered.swap(true, Ordering::AcqRel),
                        "the task was delivered twice"
                    );
                    world.worker.unpark();
                }
            })
        });
        loop {
            world.header.end_await();
            if world.news.iter().all(|n| n.load(Ordering::Relaxed)) {
                break;
            }
            if world.header.begin_await() {
                while !world.delivered.swap(false, Ordering::AcqRel) {
                    thread::park();
                }
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn loom_await_faults_are_detected() {
    let model = "task::loom_await_misses_no_notification";
    assert_detected(&[(model, "release task.rs"), (model, "acquire task.rs")]);
}

/// Three references, one made meanwhile: exactly one owner frees, after all uses by the others.
#[test]
fn loom_last_reference_frees_once() {
    check(3, || {
        let freed = Arc::new(AtomicUsize::new(0));
        let shared = Arc::new((References::one(), Checked(UnsafeCell::new(1))));
        let owner = |shared: &Arc<(References, Checked)>| {
            let (shared, freed) = (shared.clone(), freed.clone());
            move || {
                let (references, content) = &*shared;
                // SAFETY: the model checks that the read and the write below are ordered.
                assert_eq!(content.0.with(|n| unsafe { *n }), 1, "used after the free");
                if references.remove() {
                    content.set(2);
                    freed.fetch_add(1, Plainly::Relaxed);
                }
            }
        };
        shared.0.add();
        let first = spawn(owner(&shared));
        shared.0.add();
        let second = spawn(owner(&shared));
        owner(&shared)();
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(freed.load(Plainly::Relaxed), 1);
    });
}

#[test]
fn loom_reference_faults_are_detected() {
    let model = "task::loom_last_reference_frees_once";
    assert_detected(&[(model, "release reference.rs"), (model, "acquire reference.rs")]);
}
