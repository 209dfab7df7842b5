//! Points in time for futures.

use crate::current;
use crate::worker::{Target, TimerKey};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Waits for a duration in an async task, which holds no stack meanwhile. The time begins with the
/// first poll. Lets other tasks of the worker run, and ends in a task that is cancelled, also if
/// the duration is zero.
///
/// # Panics
///
/// The future panics if it is polled outside the workers of a runtime.
pub fn sleep_async(time: Duration) -> SleepAsync {
    SleepAsync { time_ns: current::nanos(time), due_ns: None, timer: None }
}

/// Waits for `future` at most for `time`, which begins with the first poll. The result is
/// [`Elapsed`] if the future was not ready in time. A future that is not ready at its first poll is
/// polled again after other tasks of the worker, also if the time is zero.
///
/// ```
/// use corebeat_lpel::{Elapsed, Runtime, spawn_async, stream, timeout};
/// use std::time::Duration;
///
/// let got = Runtime::new()?.run(|| {
///     let (_silent, mut reader) = stream::<u8>(1);
///     let waits = async move { timeout(Duration::from_millis(1), reader.read_async()).await };
///     spawn_async(waits).join().unwrap()
/// });
/// assert_eq!(got.unwrap(), Err(Elapsed));
/// # Ok::<(), corebeat_lpel::Error>(())
/// ```
///
/// # Panics
///
/// As for [`sleep_async`].
pub fn timeout<F: Future>(time: Duration, future: F) -> Timeout<F> {
    Timeout { future, sleep: sleep_async(time) }
}

/// Reason why a [`Timeout`] has no result: the time was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the future was not ready in time")]
pub struct Elapsed;

/// Future of a point in time, from [`sleep_async`].
#[must_use = "a future does nothing unless it is awaited"]
#[derive(Debug)]
pub struct SleepAsync {
    time_ns: u64,
    due_ns: Option<u64>,
    /// Home of the worker that has the timer, and the timer.
    timer: Option<(u64, TimerKey)>,
}

impl SleepAsync {
    /// Removes the timer. If another worker has the timer, it wakes an obsolete waker later, which
    /// has no effect.
    fn remove_timer(&mut self) {
        if let Some((home, timer)) = self.timer.take()
            && let Some(worker) = current::worker().filter(|w| w.home() == home)
        {
            worker.remove_timer(timer);
        }
    }
}

impl Future for SleepAsync {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let worker = current::worker()
            .expect("a point in time was awaited outside the workers of a runtime: use a task");
        let now_ns = worker.inner().clock.now_ns();
        let time_ns = self.time_ns;
        let is_first = self.due_ns.is_none();
        let due_ns = *self.due_ns.get_or_insert(now_ns.saturating_add(time_ns));
        self.remove_timer();
        if now_ns >= due_ns {
            if !is_first {
                return Poll::Ready(());
            }
            // A task that waits for no time in a loop would occupy its worker, and would not end
            // when it is cancelled: a worker checks for that before each poll.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let timer = worker.set_timer(due_ns - now_ns, Target::Future(context.waker().clone()));
        self.timer = Some((worker.home(), timer));
        Poll::Pending
    }
}

impl Drop for SleepAsync {
    fn drop(&mut self) {
        self.remove_timer();
    }
}

/// Future with a time limit, from [`timeout`].
#[must_use = "a future does nothing unless it is awaited"]
#[derive(Debug)]
pub struct Timeout<F> {
    future: F,
    sleep: SleepAsync,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: the future is not moved out, and `Timeout` is pinned while the future is.
        let this = unsafe { self.get_unchecked_mut() };
        // SAFETY: as above.
        let future = unsafe { Pin::new_unchecked(&mut this.future) };
        if let Poll::Ready(result) = future.poll(context) {
            return Poll::Ready(Ok(result));
        }
        Pin::new(&mut this.sleep).poll(context).map(|()| Err(Elapsed))
    }
}
