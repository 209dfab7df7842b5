//! Waits of idle workers that another crate implements.

use corebeat_lpel::{Error, Park, Runtime, sleep, spawn, stream, yield_now};
use corebeat_sync::lock;
use corebeat_sync::wait;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// Effect of an event.
type Effect = Box<dyn FnOnce() + Send>;

/// Events that threads post, and that workers handle.
#[derive(Clone, Default)]
struct Device(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    effects: Vec<Effect>,
    is_unparked: bool,
    /// Threads of workers that have entered and not left.
    workers: Vec<ThreadId>,
}

impl Device {
    fn post(&self, effect: impl FnOnce() + Send + 'static) {
        lock(&self.0.0).effects.push(Box::new(effect));
        self.0.1.notify_all();
    }

    fn runtime(&self, workers: usize) -> Runtime {
        // Each worker has a device of its own, because an event wakes one worker.
        let devices: Vec<Device> = (0..workers)
            .map(|worker| if worker == 0 { self.clone() } else { Device::default() })
            .collect();
        let make = move |worker: usize| Ok(Box::new(devices[worker].clone()) as Box<dyn Park>);
        Runtime::builder().workers(workers).park(make).build().unwrap()
    }
}

impl Park for Device {
    fn enter(&self) {
        lock(&self.0.0).workers.push(thread::current().id());
    }

    fn poll(&self) {
        let effects = std::mem::take(&mut lock(&self.0.0).effects);
        effects.into_iter().for_each(|effect| effect());
    }

    fn park(&self, time: Option<Duration>) {
        let mut state = lock(&self.0.0);
        let must_wait = |state: &mut State| !state.is_unparked && state.effects.is_empty();
        state = match time {
            None => self.0.1.wait_while(state, must_wait).unwrap(),
            Some(time) => self.0.1.wait_timeout_while(state, time, must_wait).unwrap().0,
        };
        state.is_unparked = false;
        let effects = std::mem::take(&mut state.effects);
        drop(state);
        effects.into_iter().for_each(|effect| effect());
    }

    fn unpark(&self) {
        lock(&self.0.0).is_unparked = true;
        self.0.1.notify_all();
    }

    fn leave(&self) {
        lock(&self.0.0).workers.retain(|worker| *worker != thread::current().id());
    }
}

#[test]
fn idle_worker_handles_the_event_that_its_task_waits_for() {
    let device = Device::default();
    let runtime = device.runtime(1);
    let own = device.clone();
    let woken_by = runtime.run(move || {
        let mut task = wait::task().expect("the caller is a task");
        let waker = task.waker();
        let (send, woken_by) = mpsc::channel();
        let poster = own.clone();
        let effect = move || {
            send.send(thread::current().id()).unwrap();
            waker.wake();
        };
        let thread = thread::spawn(move || poster.post(effect));
        assert!(task.suspend(None));
        assert!(thread.join().is_ok());
        (woken_by.recv().unwrap(), lock(&own.0.0).workers.clone())
    });
    let (by, workers) = woken_by.unwrap();
    assert_eq!(workers, [by]);
    drop(runtime);
    assert!(lock(&device.0.0).workers.is_empty());
}

#[test]
fn busy_worker_handles_events() {
    let device = Device::default();
    let runtime = device.runtime(1);
    let result = runtime.run(move || {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        device.post(move || over.store(true, Ordering::Relaxed));
        // A second task keeps the worker busy as well.
        let other = is_over.clone();
        let busy = spawn(move || {
            while !other.load(Ordering::Relaxed) {
                yield_now();
            }
        });
        while !is_over.load(Ordering::Relaxed) {
            yield_now();
        }
        busy.join().is_ok()
    });
    assert!(result.unwrap());
}

#[test]
fn workers_wake_each_other_and_their_timers_run() {
    const ITEMS: u64 = 1000;
    let runtime = Device::default().runtime(2);
    let sum = runtime.run(|| {
        let (mut writer, reader) = stream(1);
        let place = corebeat_lpel::Task::new().worker(1);
        let sums = place.spawn(move || reader.sum::<u64>()).unwrap();
        sleep(Duration::from_millis(1));
        (0..ITEMS).for_each(|n| writer.write(n).unwrap());
        drop(writer);
        sums.join().unwrap()
    });
    assert_eq!(sum.unwrap(), ITEMS * (ITEMS - 1) / 2);
}

#[test]
fn failure_to_prepare_a_wait_is_an_error() {
    let fail = |worker| match worker {
        0 => Ok(Box::new(Device::default()) as Box<dyn Park>),
        _ => Err(io::Error::from(io::ErrorKind::OutOfMemory)),
    };
    let result = Runtime::builder().workers(2).park(fail).build();
    let Err(why @ Error::Park { worker: 1, .. }) = result else { panic!("{result:?}") };
    assert_eq!(
        why.to_string(),
        "cannot prepare the wait of worker 1 (out of memory): start fewer workers"
    );
}
