//! Data that belongs to a task, as `thread_local!` data belongs to a thread.

use crate::current;
use crate::task::quietly;
use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

/// A value that each task has of its own, made when it first asks, dropped when the task ends.
///
/// `thread_local!` data inside a task is the worker's, shared by all its tasks. A thread that is no task has a value of its
/// own as well, until it ends.
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
    /// For a `static`: each task's value is made by `make`.
    pub const fn new(make: fn() -> T) -> Self {
        Local { make }
    }

    /// Calls `f` with the running task's value.
    ///
    /// # Panics
    ///
    /// In the destructor of `thread_local!` data of a thread that is ending.
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        let key = std::ptr::from_ref(self).addr();
        // SAFETY: the waiter is the running task or thread, which lives at least as long as this call.
        let waiter = unsafe { current::waiter().as_ref() };
        let locals = &waiter.expect("this thread is ending, and its values are gone").locals;
        let found = locals.find(key);
        let value = match found {
            Some(value) => value,
            None => {
                // Made outside any borrow: it may ask for other locals.
                let made: Rc<dyn Any> = Rc::new((self.make)());
                locals.insert(key, made.clone());
                made
            }
        };
        f(value.downcast_ref().expect("a key is the address of one static, which has one type"))
    }
}

/// A value and the address of its static.
type Value = (usize, Rc<dyn Any>);

/// What a task has: few values, so a list. Boxed, because most tasks have none.
#[derive(Default)]
#[expect(clippy::box_collection, reason = "8 bytes in every task instead of 24")]
pub(crate) struct Locals(RefCell<Option<Box<Vec<Value>>>>);

impl Locals {
    fn find(&self, key: usize) -> Option<Rc<dyn Any>> {
        let values = self.0.borrow();
        values.as_ref()?.iter().find(|(k, _)| *k == key).map(|(_, value)| value.clone())
    }

    fn insert(&self, key: usize, value: Rc<dyn Any>) {
        self.0.borrow_mut().get_or_insert_default().push((key, value));
    }

    /// Drops all values, also those that are made by dropping others, up to a bound.
    #[inline]
    pub(crate) fn clear(&self) {
        if self.0.borrow().is_some() {
            self.clear_all();
        }
    }

    #[cold]
    fn clear_all(&self) {
        const ROUNDS_MAX: usize = 8;
        for _ in 0..ROUNDS_MAX {
            let Some(values) = self.0.borrow_mut().take() else { return };
            quietly(|| drop(values));
        }
        // Destructors that ask for their own value again, and again. It may not be dropped by another thread, so never.
        std::mem::forget(self.0.take());
    }
}
