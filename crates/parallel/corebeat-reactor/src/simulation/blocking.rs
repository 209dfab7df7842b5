//! Locks, conditions and threads. In a simulation, a task that waits suspends itself; on a thread,
//! these are the types of the standard library.

use super::{Fault, world};
use corebeat_sync::{lock as lock_std, quiet, wait};
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, TryLockError};
use std::task::Waker;
use std::{io, thread};

#[derive(Default)]
pub(crate) struct Mutex<T> {
    value: std::sync::Mutex<T>,
    waiters: std::sync::Mutex<Vec<Waker>>,
}

pub(crate) struct Guard<'a, T> {
    /// `None` during the drop.
    value: Option<std::sync::MutexGuard<'a, T>>,
    of: &'a Mutex<T>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex { value: std::sync::Mutex::new(value), waiters: std::sync::Mutex::default() }
    }
}

/// Locks a mutex, and ignores poisoning.
pub(crate) fn lock<T>(of: &Mutex<T>) -> Guard<'_, T> {
    loop {
        match of.value.try_lock() {
            Ok(value) => return Guard { value: Some(value), of },
            Err(TryLockError::Poisoned(why)) => {
                return Guard { value: Some(why.into_inner()), of };
            }
            Err(TryLockError::WouldBlock) => {}
        }
        let Some(mut task) = world().and_then(|_| wait::task()) else {
            return Guard { value: Some(lock_std(&of.value)), of };
        };
        lock_std(&of.waiters).push(task.waker());
        task.suspend(None);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("the guard has its value until the drop")
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("the guard has its value until the drop")
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        drop(self.value.take());
        let waiters = std::mem::take(&mut *lock_std(&self.of.waiters));
        let is_lost = world().is_some_and(|world| world.has(Fault::LostUnlock) && world.draws(4));
        if !is_lost {
            waiters.into_iter().for_each(Waker::wake);
        }
    }
}

#[derive(Default)]
pub(crate) struct Condvar {
    condition: std::sync::Condvar,
    waiters: std::sync::Mutex<Vec<Waker>>,
}

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar::default()
    }

    pub(crate) fn wait<'a, T>(&self, mut guard: Guard<'a, T>) -> LockResult<Guard<'a, T>> {
        let of = guard.of;
        let Some(mut task) = world().and_then(|_| wait::task()) else {
            let value = guard.value.take().expect("the guard has its value until the drop");
            drop(guard);
            let value = self.condition.wait(value).unwrap_or_else(|e| e.into_inner());
            return Ok(Guard { value: Some(value), of });
        };
        lock_std(&self.waiters).push(task.waker());
        drop(guard);
        task.suspend(None);
        Ok(lock(of))
    }

    pub(crate) fn notify_one(&self) {
        self.notify(1);
        self.condition.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.notify(usize::MAX);
        self.condition.notify_all();
    }

    /// Wakes tasks that the seed chooses.
    fn notify(&self, max: usize) {
        let Some(world) = world() else { return };
        if world.has(Fault::LostNotification) && world.draws(2) {
            return;
        }
        let mut waiters = lock_std(&self.waiters);
        for _ in 0..max.min(waiters.len()) {
            let at = lock_std(&world.state).random.usize(..waiters.len());
            waiters.swap_remove(at).wake();
        }
    }
}

/// A thread of a server, or the task that stands for it.
pub(crate) enum Thread {
    Real(thread::JoinHandle<()>),
    /// A server stops itself outside a simulation only.
    Virtual(corebeat_lpel::JoinHandle<()>),
}

pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    if world().is_none() {
        return quiet::spawn(name, run).map(Thread::Real);
    }
    Ok(Thread::Virtual(corebeat_lpel::spawn(run)))
}

impl Thread {
    pub(crate) fn is_current(&self) -> bool {
        matches!(self, Thread::Real(own) if own.thread().id() == thread::current().id())
    }

    pub(crate) fn join(self) {
        match self {
            Thread::Real(thread) => drop(thread.join()),
            Thread::Virtual(task) => {
                if let (Err(why), Some(world)) = (task.join(), world()) {
                    world.violate(format!("a thread of the server failed: {why}"));
                }
            }
        }
    }
}
