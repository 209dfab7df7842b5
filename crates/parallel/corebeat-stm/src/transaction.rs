//! The public interface of transactions.

use crate::cell::TCell;
use crate::counter::Cause;
use crate::descriptor::{Abort, Current, Descriptor, Mode, Next};
use crate::value::{Value, form::Form};
use crate::waiter::Waiting;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::ptr;
#[cfg(not(loom))]
use std::time::Duration;
use std::time::Instant;
#[cfg(not(loom))]
use thiserror::Error;

/// An attempt of a transaction, which lasts for `'t`, on cells that outlive `'env`.
///
/// Pass it to functions that do a part of the work: their reads and writes are part of the
/// transaction.
///
/// ```
/// use corebeat_stm::{Abort, TCell, Tx, atomically};
///
/// fn transfer<'t>(
///     tx: &mut Tx<'t, '_>, from: &'t TCell<i64>, to: &'t TCell<i64>, amount: i64,
/// ) -> Result<(), Abort> {
///     if tx.read(from)? < amount {
///         return tx.retry(); // waits until there is more
///     }
///     tx.update(from, |balance| balance - amount)?;
///     tx.update(to, |balance| balance + amount)
/// }
///
/// let (a, b) = (TCell::new(100), TCell::new(0));
/// atomically(|tx| transfer(tx, &a, &b, 30));
/// assert_eq!(atomically(|tx| Ok((tx.read(&a)?, tx.read(&b)?))), (70, 30));
/// ```
///
/// References that it returns cannot leave the attempt, and the compiler rejects cells that do not
/// outlive the attempt:
///
/// ```compile_fail,E0521
/// # use corebeat_stm::{TCell, atomically};
/// # use std::sync::Arc;
/// let cell = TCell::new(Arc::new(1));
/// let mut kept = None;
/// atomically(|tx| {
///     kept = Some(tx.read(&cell)?);
///     Ok(())
/// });
/// ```
///
/// ```compile_fail,E0597
/// # use corebeat_stm::{TCell, atomically};
/// atomically(|tx| {
///     let cell = TCell::new(1);
///     tx.write(&cell, 2)
/// });
/// ```
#[repr(transparent)]
pub struct Tx<'t, 'env: 't> {
    descriptor: Descriptor,
    attempt: PhantomData<&'t mut &'t ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'t, 'env: 't> Tx<'t, 'env> {
    /// Returns the value of the cell: a word, or a reference to the content of its `Arc`.
    ///
    /// # Errors
    ///
    /// The attempt cannot continue: return the error from the closure. This holds for all methods
    /// below.
    #[inline(always)]
    pub fn read<V: Value>(&mut self, cell: &'t TCell<V>) -> Result<V::Ref<'t>, Abort> {
        let (lock, place) = cell.parts();
        // SAFETY: the cell outlives the attempt, and both are parts of the cell.
        let pointer = unsafe { self.descriptor.read(lock, place)? };
        // SAFETY: the pointer was made from a value of this type. A retired value exists until all
        // attempts that may have read it are over (`retired`), including this one.
        Ok(unsafe { V::from_pointer(pointer) })
    }

    /// Returns a clone of the value of the cell: the `Arc` itself, which may be written to other
    /// cells or kept.
    pub fn share<V: Value>(&mut self, cell: &'t TCell<V>) -> Result<V, Abort> {
        let (lock, place) = cell.parts();
        // SAFETY: as in `read`.
        let pointer = unsafe { self.descriptor.read(lock, place)? };
        // SAFETY: as in `read`.
        Ok(unsafe { V::clone_from_pointer(pointer) })
    }

    /// Writes a value to the cell. In a [`snapshot`], the first write fails the attempt, and the
    /// transaction restarts as a full one: begin it with [`atomically`] instead.
    #[inline(always)]
    pub fn write<V: Value>(&mut self, cell: &'t TCell<V>, value: V) -> Result<(), Abort> {
        let (lock, place) = cell.parts();
        // SAFETY: as in `read`.
        unsafe { self.descriptor.acquire(lock, place, V::DROPS)? };
        self.descriptor.write(place, value.into_pointer(), drop_of::<V>());
        Ok(())
    }

    /// Replaces the value of the cell by the result of `change`. Cheaper than [`read`](Tx::read)
    /// followed by [`write`](Tx::write).
    #[inline(always)]
    pub fn update<V: Value>(
        &mut self,
        cell: &'t TCell<V>,
        change: impl FnOnce(V::Ref<'t>) -> V,
    ) -> Result<(), Abort> {
        let (lock, place) = cell.parts();
        // SAFETY: as in `read`.
        let old = unsafe { self.descriptor.acquire(lock, place, V::DROPS)? };
        // SAFETY: as in `read`.
        let value = change(unsafe { V::from_pointer(old) });
        self.descriptor.write(place, value.into_pointer(), drop_of::<V>());
        Ok(())
    }

    /// Aborts the attempt and restarts it when a cell that was read has changed. The thread sleeps
    /// until then; a task of LPEL is suspended, and its worker continues with other tasks. In the
    /// first part of [`or_else`](Tx::or_else), aborts that part only. Pass the error on: an attempt
    /// that ignores an error does not commit either.
    ///
    /// # Panics
    ///
    /// In an irrevocable transaction. If the attempt has read no cell, [`atomically`] panics.
    pub fn retry<R>(&mut self) -> Result<R, Abort> {
        Err(self.descriptor.retry())
    }

    /// Runs `first`. If `first` calls [`retry`](Tx::retry), undoes its writes and runs `second`
    /// instead.
    pub fn or_else<R>(
        &mut self,
        first: impl FnOnce(&mut Self) -> Result<R, Abort>,
        second: impl FnOnce(&mut Self) -> Result<R, Abort>,
    ) -> Result<R, Abort> {
        let mark = self.descriptor.branch();
        let result = first(self);
        if self.descriptor.end_branch(mark, result.is_ok()) { second(self) } else { result }
    }

    /// Number of the thread among those with transactions; an ended thread passes it on.
    pub(crate) fn thread_number(&self) -> usize {
        self.descriptor.slot().number() as usize
    }

    /// Makes the transaction irrevocable: it does not fail after this call, so actions that cannot
    /// be undone may follow, such as input and output. No other transaction commits a write until
    /// this one has ended.
    ///
    /// ```
    /// use corebeat_stm::{TCell, atomically};
    ///
    /// let lines = TCell::new(0u64);
    /// atomically(|tx| {
    ///     tx.irrevocable()?;
    ///     println!("line {}", tx.read(&lines)?); // once
    ///     tx.update(&lines, |n| n + 1)
    /// });
    /// ```
    pub fn irrevocable(&mut self) -> Result<(), Abort> {
        self.descriptor.make_irrevocable()
    }
}

#[inline(always)]
fn drop_of<V: Value>() -> Option<unsafe fn(*mut ())> {
    if V::DROPS { Some(<V as Form>::drop) } else { None }
}

/// Runs the closure as a transaction: all its reads and writes of cells take effect at one moment.
/// The closure runs repeatedly until that succeeds, so its other effects must tolerate repetition.
///
/// # Panics
///
/// If the closure panics: then no write takes effect. If this thread is in a transaction already.
#[inline]
#[track_caller]
pub fn atomically<'env, R>(f: impl for<'t> FnMut(&mut Tx<'t, 'env>) -> Result<R, Abort>) -> R {
    run(Mode::Full, None, f).expect(NO_DEADLINE)
}

/// Runs the closure as [`atomically`] does, but waits in [`Tx::retry`] no longer than `timeout`
/// from the call of this function.
///
/// ```
/// use corebeat_stm::{TCell, TimedOut, atomically_timeout};
/// use std::time::Duration;
///
/// let items = TCell::new(0);
/// let take = || atomically_timeout(Duration::from_millis(1), |tx| match tx.read(&items)? {
///     0 => tx.retry(),
///     count => tx.write(&items, count - 1),
/// });
/// assert_eq!(take(), Err(TimedOut));
/// ```
///
/// The time limit does not interrupt the closure, nor the repetition of attempts that fail. On a
/// deterministic runtime of LPEL, the limit is that of each wait, in virtual time.
///
/// # Errors
///
/// The closure called [`Tx::retry`] after the time limit, or no cell that it had read changed
/// before the time limit. No write took effect.
///
/// # Panics
///
/// As [`atomically`].
#[cfg(not(loom))]
#[track_caller]
pub fn atomically_timeout<'env, R>(
    timeout: Duration,
    f: impl for<'t> FnMut(&mut Tx<'t, 'env>) -> Result<R, Abort>,
) -> Result<R, TimedOut> {
    match Instant::now().checked_add(timeout) {
        // Later than any time that the system can represent.
        None => Ok(atomically(f)),
        deadline => run(Mode::Full, deadline, f).ok_or(TimedOut),
    }
}

/// The transaction waited for a change until its time limit: see [`atomically_timeout`].
#[cfg(not(loom))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no change let the transaction continue within its time limit")]
pub struct TimedOut;

/// Runs the closure as [`atomically`] does, optimized for closures that only read: it keeps no read
/// log. If the closure writes, waits, or reads a cell that is newer than the begin of the attempt,
/// it restarts as a full transaction.
///
/// ```
/// use corebeat_stm::{TCell, snapshot};
///
/// let accounts: Vec<_> = (0..1_024).map(|_| TCell::new(10)).collect();
/// let sum = snapshot(|tx| {
///     let mut sum = 0;
///     for account in &accounts {
///         sum += tx.read(account)?;
///     }
///     Ok(sum)
/// });
/// assert_eq!(sum, 10_240);
/// ```
///
/// # Panics
///
/// As [`atomically`].
#[inline]
#[track_caller]
pub fn snapshot<'env, R>(f: impl for<'t> FnMut(&mut Tx<'t, 'env>) -> Result<R, Abort>) -> R {
    run(Mode::Snapshot, None, f).expect(NO_DEADLINE)
}

const NO_DEADLINE: &str = "a transaction without a deadline does not time out";

/// Returns `None` after the deadline.
#[inline(always)]
#[track_caller]
fn run<'env, R>(
    mode: Mode,
    deadline: Option<Instant>,
    mut f: impl for<'t> FnMut(&mut Tx<'t, 'env>) -> Result<R, Abort>,
) -> Option<R> {
    let site = Location::caller();
    let mut attempt = Attempt::start(mode, deadline, site);
    loop {
        let descriptor: *mut Descriptor = attempt.0.get();
        // SAFETY: `Tx` is a transparent wrapper of a descriptor, and the closure has the only
        // reference.
        let result = f(unsafe { &mut *descriptor.cast::<Tx<'_, 'env>>() });
        if let Ok(result) = result
            && attempt.0.get().commit::<false>()
        {
            if deadline.is_some() {
                attempt.0.get().set_deadline(None);
            }
            attempt.finish();
            return Some(result);
        }
        match attempt.0.get().restart() {
            Next::Attempt => {}
            Next::Wait(waiting) => attempt = attempt.wait(waiting, deadline, site)?,
            // The drop of the attempt resets the deadline and the standing.
            Next::End => return None,
        }
    }
}

/// Undoes the attempt if the closure panics.
struct Attempt(Current);

impl Attempt {
    #[inline(always)]
    fn start(mode: Mode, deadline: Option<Instant>, site: &'static Location<'static>) -> Attempt {
        let mut attempt = Attempt(Current::take());
        attempt.0.get().set_site(site);
        if deadline.is_some() {
            attempt.0.get().set_deadline(deadline);
        }
        attempt.0.get().start(mode);
        attempt
    }

    /// Waits for a change, without the descriptor of the thread: other tasks of the worker may run
    /// transactions meanwhile. Returns `None` if the deadline came first.
    #[cold]
    fn wait(
        self,
        waiting: Waiting,
        deadline: Option<Instant>,
        site: &'static Location<'static>,
    ) -> Option<Attempt> {
        drop(self);
        waiting.sleep(deadline).then(|| Attempt::start(Mode::Full, deadline, site))
    }

    #[inline(always)]
    fn finish(self) {
        let attempt = ManuallyDrop::new(self);
        // SAFETY: the field is moved out, and not dropped.
        unsafe { ptr::read(&attempt.0) }.finish();
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.0.get().abandon(Cause::Panic);
    }
}

/// Frees the retired values of this thread, and of threads that have ended, that no transaction can
/// read any more. Returns their number. Threads free values automatically from time to time; call
/// this function to free the remaining ones. In the destructor of such a value it frees none.
///
/// # Panics
///
/// Inside a transaction.
pub fn reclaim() -> usize {
    // The first call ends the grace period that is in progress, the second one begins and, if no
    // transaction is active, ends the next one.
    Current::take().reclaim() + Current::take().reclaim()
}
