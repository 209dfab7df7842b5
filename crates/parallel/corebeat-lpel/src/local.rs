//! Task-local data, the counterpart of `thread_local!` data.

use crate::current;
use crate::task::discard_panic;
use std::any::Any;
use std::cell::Cell;
use std::rc::Rc;

/// Task-local value: each task has a value of its own, which is created at its first use and
/// dropped at the end of the task.
///
/// All tasks of a worker share the `thread_local!` data of its thread. A thread that is no task has
/// a task-local value of its own as well, until the thread ends.
///
/// ```
/// use corebeat_lpel::{Local, Runtime, spawn, yield_now};
/// use std::cell::Cell;
///
/// static COUNT: Local<Cell<u32>> = Local::new(|| Cell::new(0));
///
/// let both = Runtime::new()?.run(|| {
///     let count = || {
///         for _ in 0..3 {
///             COUNT.with(|c| c.set(c.get() + 1));
///             yield_now();
///         }
///         COUNT.with(|c| c.get())
///     };
///     (spawn(count).join().unwrap(), spawn(count).join().unwrap())
/// });
/// assert_eq!(both.unwrap(), (3, 3));
/// # Ok::<(), corebeat_lpel::Error>(())
/// ```
pub struct Local<T: 'static> {
    make: fn() -> T,
}

impl<T: 'static> Local<T> {
    /// Creates a local for a `static`. `make` creates the value of each task.
    pub const fn new(make: fn() -> T) -> Self {
        Local { make }
    }

    /// Calls `f` with the value of the calling task.
    ///
    /// # Panics
    ///
    /// Panics in the destructor of `thread_local!` data of a thread that is ending.
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.try_with(f)
            .expect("a Local was used at the end of its thread, after its values were dropped")
    }

    /// Calls `f` with the value of the calling task; returns `None` in the destructor of
    /// `thread_local!` data of a thread that is ending.
    pub fn try_with<R>(&'static self, f: impl FnOnce(&T) -> R) -> Option<R> {
        let key = std::ptr::from_ref(self).addr();
        // SAFETY: the running task or thread is alive.
        let locals = &unsafe { current::waiter().as_ref() }?.locals;
        let found = locals.find(key);
        let value = match found {
            Some(value) => value,
            None => {
                // Created without a borrow of the list: `make` may use other locals.
                let made: Rc<dyn Any> = Rc::new((self.make)());
                locals.insert(key, made.clone());
                made
            }
        };
        let value = value.downcast_ref();
        Some(f(value.expect("a key is the address of a static, whose type is fixed")))
    }
}

/// Address of a static, and a value.
type Value = (usize, Rc<dyn Any>);

/// Values of a task. A list, because there are few. Boxed, because most tasks have none.
#[derive(Default)]
#[expect(clippy::box_collection, reason = "8 bytes in every task instead of 24")]
pub(crate) struct Locals(Cell<Option<Box<Vec<Value>>>>);

impl Locals {
    fn find(&self, key: usize) -> Option<Rc<dyn Any>> {
        let values = self.0.take()?;
        let found = values.iter().find(|(k, _)| *k == key).map(|(_, value)| value.clone());
        self.0.set(Some(values));
        found
    }

    fn insert(&self, key: usize, value: Rc<dyn Any>) {
        let mut values = self.0.take().unwrap_or_default();
        values.push((key, value));
        self.0.set(Some(values));
    }

    /// Drops all values, including values that destructors create, up to a limit.
    #[inline]
    pub(crate) fn clear(&self) {
        if let Some(values) = self.0.take() {
            self.clear_all(values);
        }
    }

    #[cold]
    #[expect(clippy::box_collection, reason = "as above")]
    fn clear_all(&self, mut values: Box<Vec<Value>>) {
        const ROUNDS_MAX: usize = 8;
        for _ in 0..ROUNDS_MAX {
            discard_panic(|| drop(values));
            let Some(created) = self.0.take() else { return };
            values = created;
        }
        // A destructor creates its own value again each time. Another thread must not drop the
        // value, so it is leaked.
        std::mem::forget(values);
    }
}
