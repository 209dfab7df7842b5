//! Children of fork: a runtime works only in the process that created it.

#![cfg(not(miri))]

use corebeat_lpel::*;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// Time after which a child counts as hanging, and is killed.
const CHILD_MAX: Duration = Duration::from_secs(60);

/// Returns a guard of the only test that runs: a child inherits the locks that other threads hold.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the calling process, a child of fork, end with its parent, and after a time limit.
fn limit_child() {
    // SAFETY: the calls only set when a signal ends this process.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::alarm(CHILD_MAX.as_secs() as u32);
    }
}

/// Runs `f` in a child of fork, and returns the exit status: 0 if `f` returns true, 1 if it returns
/// false, and 101 if it panics. A child that hangs fails the test.
fn in_child(f: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child uses memory and threads, which glibc supports after fork, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        limit_child();
        let code = catch_unwind(AssertUnwindSafe(f)).map_or(101, |is_right| i32::from(!is_right));
        // SAFETY: `_exit` does not return.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: the pointer refers to memory for a status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child was killed by signal {}", libc::WTERMSIG(status));
    libc::WEXITSTATUS(status)
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
    let code = in_child(|| {
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
    assert_eq!(code, 0);
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
    assert_eq!(in_child(|| own.take().is_some()), 0);
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
    let code = in_child(|| {
        names_the_fork(|| echoed.read())
            && names_the_fork(|| echoed.read_timeout(Duration::from_secs(1)))
            && names_the_fork(|| (0..9).try_for_each(|n| items.write(n)))
    });
    assert_eq!(code, 0);
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
    let code = in_child(|| {
        names_the_fork(|| set.read())
            && names_the_fork(|| {
                let mut context = Context::from_waker(Waker::noop());
                pin!(set.read_async()).poll(&mut context)
            })
    });
    assert_eq!(code, 0);
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
    assert_eq!(in_child(|| sum() && in_child(sum) == 0), 0);
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
