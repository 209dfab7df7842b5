//! Transactions, as they are written.

use crate::cell::TCell;
use crate::counter::Cause;
use crate::descriptor::{Abort, Descriptor, Mine, Mode};
use crate::value::{Value, form::Form};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::ptr;

/// An attempt of a transaction, for `'t`, on cells that outlive `'env`.
///
/// Hand it on to the functions that do a part of the work: what they do is part of the transaction.
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
/// What it reads by reference does not leave the attempt, and cells that do not outlive it are refused:
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
    /// What the cell holds: a word, or a reference to what is in its `Arc`.
    ///
    /// # Errors
    ///
    /// As all that follows: the attempt cannot go on; hand the error on.
    #[inline(always)]
    pub fn read<V: Value>(&mut self, cell: &'t TCell<V>) -> Result<V::Ref<'t>, Abort> {
        let (lock, place) = cell.parts();
        // SAFETY: the cell outlives the attempt; both are parts of it.
        let pointer = unsafe { self.descriptor.read(lock, place)? };
        // SAFETY: it was made from a value of this type. What is dropped stays as long as there are attempts that may have read
        // it (`limbo`), this one among them.
        Ok(unsafe { V::from_pointer(pointer) })
    }

    /// As [`read`](Tx::read), but a value of one's own: the `Arc` itself, to be put into other cells, or kept.
    pub fn share<V: Value>(&mut self, cell: &'t TCell<V>) -> Result<V, Abort> {
        let (lock, place) = cell.parts();
        // SAFETY: as in `read`.
        let pointer = unsafe { self.descriptor.read(lock, place)? };
        // SAFETY: as in `read`.
        Ok(unsafe { V::another(pointer) })
    }

    /// Puts a value into the cell.
    #[inline(always)]
    pub fn write<V: Value>(&mut self, cell: &'t TCell<V>, value: V) -> Result<(), Abort> {
        let (lock, place) = cell.parts();
        // SAFETY: as in `read`.
        unsafe { self.descriptor.own(lock, place, V::DROPS)? };
        self.descriptor.put(place, value.into_pointer(), drop_of::<V>());
        Ok(())
    }

    /// Puts into the cell what `change` makes of what it holds. Cheaper than [`read`](Tx::read) and then
    /// [`write`](Tx::write).
    #[inline(always)]
    pub fn update<V: Value>(
        &mut self,
        cell: &'t TCell<V>,
        change: impl FnOnce(V::Ref<'t>) -> V,
    ) -> Result<(), Abort> {
        let (lock, place) = cell.parts();
        // SAFETY: as in `read`.
        let old = unsafe { self.descriptor.own(lock, place, V::DROPS)? };
        // SAFETY: as in `read`.
        let value = change(unsafe { V::from_pointer(old) });
        self.descriptor.put(place, value.into_pointer(), drop_of::<V>());
        Ok(())
    }

    /// Gives up, and begins again when something that was read has changed; the thread sleeps until then. Inside
    /// [`or_else`](Tx::or_else), gives up the first part only.
    ///
    /// # Panics
    ///
    /// In an irrevocable transaction; and, later, if nothing was read.
    pub fn retry<R>(&mut self) -> Result<R, Abort> {
        Err(self.descriptor.retry())
    }

    /// Tries `first`; if that wants to [`retry`](Tx::retry), takes back what it has written, and does `second` instead.
    pub fn or_else<R>(
        &mut self,
        first: impl FnOnce(&mut Self) -> Result<R, Abort>,
        second: impl FnOnce(&mut Self) -> Result<R, Abort>,
    ) -> Result<R, Abort> {
        let mark = self.descriptor.branch();
        let result = first(self);
        if self.descriptor.join(mark, result.is_ok()) { second(self) } else { result }
    }

    /// From here on, the transaction does not fail any more: what cannot be undone, as input and output, may follow. No other
    /// transaction commits a write until this one has ended.
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

/// Runs the closure as a transaction: everything that it reads and writes in cells happens at one moment, or not at all. It is
/// called again until that was so; what else it does should bear that.
///
/// # Panics
///
/// As the closure does: then nothing has happened in cells. Inside a transaction of the same thread.
#[inline]
#[track_caller]
pub fn atomically<'env, R>(f: impl for<'t> FnMut(&mut Tx<'t, 'env>) -> Result<R, Abort>) -> R {
    run(Mode::Full, f)
}

/// As [`atomically`], for what only reads, mostly: cheaper, because it remembers nothing. If it does write after all, or waits,
/// or meets something newer than its begin, it begins again as a full transaction.
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
    run(Mode::Snapshot, f)
}

#[inline(always)]
#[track_caller]
fn run<'env, R>(mode: Mode, mut f: impl for<'t> FnMut(&mut Tx<'t, 'env>) -> Result<R, Abort>) -> R {
    let mut attempt = Attempt(Mine::take());
    attempt.0.get().stand_at(Location::caller());
    attempt.0.get().start(mode);
    loop {
        let descriptor: *mut Descriptor = attempt.0.get();
        // SAFETY: `Tx` is nothing but a descriptor with lifetimes, and the closure has the only reference.
        let result = f(unsafe { &mut *descriptor.cast::<Tx<'_, 'env>>() });
        if let Ok(result) = result
            && attempt.0.get().commit()
        {
            attempt.done();
            return result;
        }
        attempt.0.get().again();
    }
}

/// Undoes what was done, where it does not come to an end.
struct Attempt(Mine);

impl Attempt {
    #[inline(always)]
    fn done(self) {
        let attempt = ManuallyDrop::new(self);
        // SAFETY: it is moved out, and not dropped.
        unsafe { ptr::read(&attempt.0) }.done();
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.0.get().give_up(Cause::Panic);
    }
}

/// Frees values that have been replaced, as far as no transaction can read them any more, and says how many. Threads do so by
/// themselves from time to time; this is for those who want to see that nothing is left. Of what other threads have replaced, it
/// frees what those have left that have ended.
///
/// # Panics
///
/// Inside a transaction.
pub fn reclaim() -> usize {
    // What rests must be freed before more can be laid to rest.
    Mine::take().sweep() + Mine::take().sweep()
}
