//! Children of fork: a runtime works only in the process that created it.

#![cfg(not(miri))]

use corebeat_lpel::*;
use corebeat_test_group::{CHILD_MAX, in_child, limit_child};
use std::future::Future;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// Returns a guard of the only test that runs: a child inherits the locks that other threads hold.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether `f` panics with a message that names the fork and the remedy.
fn names_the_fork<T>(f: impl FnOnce() -> T) -> bool {
    let Err(why) = catch_unwind(AssertUnwindSafe(f)) else { return false };
    let text = why.downcast_ref::<String>().cloned().unwrap_or_default();
    text.contains("created before a fork") && text.contains("in the child")
}

#[test]
fn inherited_runtime_fails_in_the_child_and_works_in_the_parent() {
    let _alone = alone();
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let (hold, mut held) = stream::<u8>(1);
    let mut waits = runtime.spawn(move || held.read());
    let scope = runtime.scope();
    let is_right = in_child(|| {
        matches!(runtime.run(|| 1), Err(Failure::Forked))
            && matches!(scope.run(|| 1), Err(Failure::Forked))
            && matches!(runtime.task().spawn(|| 1), Err(Error::Forked))
            && matches!(runtime.task().spawn_async(async { 1 }), Err(Error::Forked))
            && names_the_fork(|| runtime.spawn(|| 1))
            && names_the_fork(|| runtime.dump())
            && names_the_fork(|| runtime.counters())
            && names_the_fork(|| scope.wait())
            && names_the_fork(|| scope.cancel())
            && names_the_fork(|| waits.abort())
            && matches!(waits.join_timeout(Duration::ZERO), Some(Err(Failure::Forked)))
    });
    assert!(is_right);
    drop(hold);
    assert_eq!(waits.join_timeout(CHILD_MAX).unwrap().unwrap(), None);
    assert_eq!(runtime.run(|| 2).unwrap(), 2);
}

#[test]
fn inherited_runtime_is_dropped_in_the_child_without_effect() {
    let _alone = alone();
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let (mut to, from) = stream::<u8>(1);
    let sum = runtime.spawn(move || from.map(u32::from).sum::<u32>());
    let mut own = Some((runtime, sum));
    assert!(in_child(|| own.take().is_some()));
    let (runtime, sum) = own.take().unwrap();
    (1..=3).for_each(|n| to.write(n).unwrap());
    drop(to);
    assert_eq!(sum.join().unwrap(), 6);
    drop(runtime);
}

#[test]
fn inherited_stream_does_not_wait_in_the_child() {
    let _alone = alone();
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let (mut items, mut from) = stream::<u8>(1);
    let (mut to, echoed) = stream::<u8>(1);
    let echo = runtime.spawn(move || from.try_for_each(|n| to.write(n)));
    let mut echoed = echoed;
    let is_right = in_child(|| {
        names_the_fork(|| echoed.read())
            && names_the_fork(|| echoed.read_timeout(Duration::from_secs(1)))
            && names_the_fork(|| (0..9).try_for_each(|n| items.write(n)))
    });
    assert!(is_right);
    items.write(7).unwrap();
    assert_eq!(echoed.read(), Some(7));
    drop((items, echoed));
    assert!(echo.join().unwrap().is_ok());
}

#[test]
fn inherited_set_does_not_wait_in_the_child() {
    let _alone = alone();
    let (mut to, first) = stream::<u8>(4);
    let (_open, second) = stream::<u8>(4);
    let mut set = StreamSet::new();
    set.add(first);
    set.add(second);
    to.write(1).unwrap();
    assert!(matches!(set.read(), Some((_, Event::Item(1)))));
    // Arms both streams.
    assert!(set.read_timeout(Duration::ZERO).is_none());
    let is_right = in_child(|| {
        names_the_fork(|| set.read())
            && names_the_fork(|| {
                let mut context = Context::from_waker(Waker::noop());
                pin!(set.read_async()).poll(&mut context)
            })
    });
    assert!(is_right);
    to.write(2).unwrap();
    assert!(matches!(set.read(), Some((_, Event::Item(2)))));
}

#[test]
fn child_creates_its_own_runtime() {
    let _alone = alone();
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let sum = || {
        let own = Runtime::builder().workers(2).build().unwrap();
        let sum = own.run(|| {
            let (mut to, numbers) = stream(1);
            Task::new().worker(1).spawn(move || (1..=9).try_for_each(|n| to.write(n))).unwrap();
            Task::new().worker(0).spawn(move || numbers.sum::<u32>()).unwrap().join().unwrap()
        });
        sum.unwrap() == 45
    };
    assert!(in_child(|| sum() && in_child(sum)));
    assert!(sum());
    drop(runtime);
}

#[test]
fn child_of_a_task_ends_with_the_task() {
    let _alone = alone();
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let ends = runtime.run(|| {
        // In the child, this task would otherwise run, too.
        let other = spawn(|| 1);
        // SAFETY: the child ends with the task.
        let child = unsafe { libc::fork() };
        if child == 0 {
            limit_child();
            other.join().unwrap();
            unreachable!("a task waited in the child");
        }
        let mut status = 0;
        let begin = Instant::now();
        // SAFETY: the pointer refers to memory for a status.
        while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
            assert!(begin.elapsed() < 2 * CHILD_MAX);
            yield_now();
        }
        (status, other.join().unwrap())
    });
    let (status, other) = ends.unwrap();
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status), other), (true, 101, 1));
}

#[test]
fn child_of_a_future_ends_when_it_waits_and_writes_why() {
    let _alone = alone();
    // The child inherits the lock of the standard error.
    let _held = std::io::stderr().lock();
    let (mut why, output) = std::io::pipe().unwrap();
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let waits = runtime.spawn_async(async move {
        // SAFETY: the child ends with the task.
        let child = unsafe { libc::fork() };
        if child == 0 {
            limit_child();
            // SAFETY: both descriptors are open, and no value of the child owns the second one.
            unsafe { libc::dup2(output.as_raw_fd(), libc::STDERR_FILENO) };
            std::future::pending::<()>().await;
        }
        let mut status = 0;
        // SAFETY: the pointer refers to memory for a status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        status
    });
    let status = waits.join().unwrap();
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 101));
    let mut text = String::new();
    why.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("corebeat-lpel: ") && text.contains("fork"), "{text}");
}
