//! Blocking tasks: tasks with a thread of their own, for code that blocks its thread.

use crate::affinity::restrict;
use crate::builder::check_stack_size;
use crate::current;
use crate::error::Error;
use crate::runtime::Inner;
use crate::spawn::Task;
use crate::task::{self, CANCEL_ENDING, JoinHandle, Params, Plain, Status, TaskRef, Unended};
use corebeat_sync::atomic::Ordering;
use corebeat_sync::{Mutex, lock, thread};

/// Blocking tasks of a runtime.
pub(crate) struct BlockingTasks {
    /// Tasks that run now.
    pub(crate) tasks: Mutex<Vec<TaskRef>>,
    /// Home of all blocking tasks, see [`current::new_home`].
    pub(crate) home: u64,
}

impl BlockingTasks {
    pub(crate) fn new() -> BlockingTasks {
        BlockingTasks { tasks: Mutex::default(), home: current::new_home() }
    }

    /// Makes blocked tasks check whether they are cancelled.
    pub(crate) fn wake_all(&self) {
        for task in lock(&self.tasks).iter() {
            current::wake_thread(task);
        }
    }
}

impl Inner {
    pub(crate) fn spawn_blocking<T: Send + 'static>(
        &self,
        task: &Task<'_>,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, Error> {
        let stack_size = task.stack_size.map(check_stack_size).transpose()?;
        let id = Inner::new_id();
        let scope = self.scope_of(task.scope.as_ref(), task.unscoped);
        let params = Params {
            name: task.name.as_ref(),
            runtime: self.number,
            scope,
            ..Params::new(id, self.process)
        };
        let (new, handle) = task::create(params, Plain(f)).ok_or(Error::NoMemory)?;
        if self.cancellation.is_ending() {
            task::end_unstarted(new);
            return Ok(handle);
        }
        let inner = self.to_arc();
        let unstarted = new.as_ptr();
        // The system ends the name of a thread at a NUL.
        let thread_name = task.name.as_deref().unwrap_or("lpel blocking").replace('\0', "?");
        let mut builder = thread::Builder::new().name(thread_name);
        if let Some(stack_size) = stack_size {
            builder = builder.stack_size(stack_size);
        }
        self.count_spawned(None);
        self.activity.resume();
        let is_pinned = current::worker().is_some_and(|w| w.inner().is_pinned);
        let spawned = builder.spawn(move || {
            if is_pinned {
                // The thread inherits the CPU of the worker. Without permission, it keeps that CPU.
                let _ = restrict(&inner.cpus);
            }
            let me = current::become_blocking_task(inner.clone(), new.header());
            lock(&inner.blocking.tasks).push(me.clone());
            if inner.cancellation.is_ending() {
                me.header().cancel.store(CANCEL_ENDING, Ordering::Release);
            } else if new.header().must_abort() {
                me.header().abort();
            }
            // SAFETY: only this thread runs the task.
            unsafe { task::run(new.as_ptr()) };
            lock(&inner.blocking.tasks).retain(|t| t.as_ptr() != me.as_ptr());
            me.header().locals.clear();
            me.header().set_status(Status::Zombie);
            // SAFETY: the task has run to its end, as all tasks of this kind.
            unsafe { task::publish_end(new) };
            inner.count_ended_outside();
            inner.pause();
        });
        match spawned {
            Ok(_) => Ok(handle),
            Err(source) => {
                // SAFETY: the closure was dropped without a call, so the task has not ended.
                task::end_unstarted(unsafe { Unended::from_raw(unstarted) });
                self.count_ended_outside();
                self.pause();
                Err(Error::Thread { purpose: "a blocking task".into(), source })
            }
        }
    }
}
