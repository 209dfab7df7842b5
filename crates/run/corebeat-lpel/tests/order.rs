//! Who runs next, and where: schedulers, priorities, placements, counters.

use corebeat_lpel::placement::{Balanced, Measured, Place, Placement, RoundRobin, TaskInfo};
use corebeat_lpel::scheduler::{Fifo, Lifo, Prioritised, Ready, Scheduler};
use corebeat_lpel::*;
use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A runtime of one worker with such a scheduler.
fn scheduled<S: Scheduler + Default + 'static>() -> Runtime {
    Runtime::builder().workers(1).scheduler(|_| Box::new(S::default())).build().unwrap()
}

/// In which order a worker runs tasks of these priorities, which are all ready before it comes to the first.
fn order(rt: &Runtime, priorities: &'static [Priority]) -> Vec<usize> {
    let ran: Arc<Mutex<Vec<usize>>> = Arc::default();
    let notes = ran.clone();
    rt.run(move || {
        for (n, priority) in priorities.iter().enumerate() {
            let notes = notes.clone();
            Task::new().priority(*priority).spawn(move || notes.lock().unwrap().push(n)).unwrap();
        }
    })
    .unwrap();
    Arc::into_inner(ran).unwrap().into_inner().unwrap()
}

const LEVELS: &[Priority] =
    &[Priority::LOW, Priority::NORMAL, Priority::HIGH, Priority(0), Priority::LOW, Priority::HIGH];

#[test]
fn fifo_runs_first_what_came_first() {
    assert_eq!(order(&scheduled::<Fifo>(), LEVELS), [0, 1, 2, 3, 4, 5]);
    // What is used if nothing is said.
    assert_eq!(order(&Runtime::builder().workers(1).build().unwrap(), LEVELS), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn lifo_runs_first_what_came_last() {
    assert_eq!(order(&scheduled::<Lifo>(), LEVELS), [5, 4, 3, 2, 1, 0]);
}

#[test]
fn prioritised_runs_urgent_tasks_first_and_equals_in_order() {
    assert_eq!(order(&scheduled::<Prioritised>(), LEVELS), [3, 2, 5, 1, 0, 4]);
}

#[test]
fn yielding_tasks_take_turns() {
    let turns = scheduled::<Fifo>().run(|| {
        let turns: Arc<Mutex<Vec<u32>>> = Arc::default();
        let take_turns = |n| {
            let turns = turns.clone();
            spawn(move || {
                for _ in 0..3 {
                    turns.lock().unwrap().push(n);
                    yield_now();
                }
            })
        };
        [1, 2].map(take_turns).into_iter().for_each(|t| t.join().unwrap());
        Arc::into_inner(turns).unwrap().into_inner().unwrap()
    });
    assert_eq!(turns.unwrap(), [1, 2, 1, 2, 1, 2]);
}

#[test]
fn scheduler_of_ones_own_knows_its_tasks() {
    type Seen = Arc<Mutex<Vec<(Option<String>, Priority, u64, u64)>>>;
    struct Notes(Fifo, Seen);
    impl Scheduler for Notes {
        fn put(&mut self, task: Ready) {
            let seen = (task.name().map(str::to_owned), task.priority(), task.id(), task.dispatches());
            self.1.lock().unwrap().push(seen);
            self.0.put(task);
        }
        fn fetch(&mut self) -> Option<Ready> {
            self.0.fetch()
        }
        fn len(&self) -> usize {
            self.0.len()
        }
    }
    let seen = Seen::default();
    let notes = seen.clone();
    let make = move |_| -> Box<dyn Scheduler> { Box::new(Notes(Fifo::default(), notes.clone())) };
    let rt = Runtime::builder().workers(1).scheduler(make).build().unwrap();
    let task = rt.task().name("noted").priority(Priority(7)).spawn(yield_now).unwrap();
    let id = task.id();
    task.join().unwrap();
    let name = Some("noted".to_owned());
    assert_eq!(*seen.lock().unwrap(), [(name.clone(), Priority(7), id, 0), (name, Priority(7), id, 1)]);
}

/// The worker of the running task.
fn here() -> usize {
    let dump = dump().unwrap();
    let running =
        dump.tasks.iter().filter(|t| t.status == Status::Running && t.name.as_deref() == Some("here"));
    let workers: Vec<_> = running.map(|t| t.worker.unwrap()).collect();
    assert_eq!(workers.len(), 1, "{dump}");
    workers[0]
}

#[test]
fn task_runs_on_the_worker_that_was_asked_for() {
    let rt = Runtime::builder().workers(3).placement(RoundRobin::default()).build().unwrap();
    for worker in [2, 0, 1, 1] {
        let task = rt.task().name("here").worker(worker);
        let stays = task.spawn(|| [here(), here_after_yield()]).unwrap().join().unwrap();
        assert_eq!(stays, [worker; 2]);
        let asynchronous = task.spawn_async(async { here() }).unwrap().join().unwrap();
        assert_eq!(asynchronous, worker);
        let inside = rt.run(move || {
            let task = Task::new().name("here").worker(worker);
            task.spawn(here).unwrap().join().unwrap()
        });
        assert_eq!(inside.unwrap(), worker);
    }
}

fn here_after_yield() -> usize {
    yield_now();
    here()
}

#[test]
fn placement_decides_where_tasks_go() {
    struct ByName;
    impl Placement for ByName {
        fn place(&mut self, task: &TaskInfo<'_>, workers: usize) -> Place {
            match task.name {
                Some(name) => Place::Worker(name.len() % workers),
                None => Place::Anywhere,
            }
        }
    }
    assert_eq!(places(RoundRobin::default()), [0, 1, 0, 1]);
    assert_eq!(places(Balanced::default()), [0, 1, 0, 1]);
    assert_eq!(places(Measured::new(HashMap::from([("here".to_owned(), 10)]))), [0, 1, 0, 1]);
    assert_eq!(places(ByName), [0; 4]);
}

/// Where four tasks of one name run, of two workers.
fn places(placement: impl Placement + 'static) -> [usize; 4] {
    let rt = Runtime::builder().workers(2).placement(placement).build().unwrap();
    [(); 4].map(|()| rt.task().name("here").spawn(here).unwrap().join().unwrap())
}

#[test]
fn placement_is_told_who_spawns() {
    type Told = Arc<Mutex<Vec<(Option<String>, Priority, Option<usize>)>>>;
    struct Notes(Told);
    impl Placement for Notes {
        fn place(&mut self, task: &TaskInfo<'_>, _: usize) -> Place {
            self.0.lock().unwrap().push((task.name.map(str::to_owned), task.priority, task.spawner));
            Place::Worker(1)
        }
    }
    let told = Told::default();
    let rt = Runtime::builder().workers(2).placement(Notes(told.clone())).build().unwrap();
    rt.run(|| drop(Task::new().name("inner").priority(Priority::LOW).spawn(|| ()))).unwrap();
    let inner = (Some("inner".to_owned()), Priority::LOW, Some(1));
    assert_eq!(*told.lock().unwrap(), [(None, Priority::NORMAL, None), inner]);
}

#[test]
fn unstarted_tasks_can_be_taken_while_others_are_ready() {
    const TASKS: usize = 5;
    let rt = Runtime::builder().workers(2).build().unwrap();
    // The second worker is kept busy until one of them has started on the first.
    let (started, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let until = |done: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !done() {
            if begin.elapsed() > Duration::from_secs(60) {
                // A panic would leave the other tasks turning.
                eprintln!("the other worker could not take them");
                std::process::abort();
            }
            std::thread::yield_now();
        }
    };
    let root = move || {
        let flag = started.clone();
        let busy = move || until(&|| flag.load(SeqCst));
        let busy = Task::new().worker(1).spawn(busy).unwrap();
        let flag = ended.clone();
        let others = (0..TASKS).map(|_| {
            let flag = flag.clone();
            let turns = move || (flag.load(SeqCst) < TASKS).then(yield_now).is_some();
            Task::new().worker(0).spawn(move || while turns() {}).unwrap()
        });
        let others: Vec<_> = others.collect();
        let tasks = (0..TASKS).map(|_| {
            let (started, ended) = (started.clone(), ended.clone());
            spawn(move || {
                // The first to start on a worker holds it until the other worker has run the rest.
                if !started.swap(true, SeqCst) {
                    until(&|| ended.load(SeqCst) == TASKS - 1);
                }
                ended.fetch_add(1, SeqCst);
            })
        });
        let tasks: Vec<_> = tasks.collect();
        others.into_iter().chain(tasks).for_each(|task| task.join().unwrap());
        busy.join().unwrap();
    };
    rt.run(|| Task::new().worker(0).spawn(root).unwrap().join().unwrap()).unwrap();
}

#[test]
fn counters_of_one_worker_are_exact() {
    let rt = scheduled::<Fifo>();
    rt.run(|| (0..3).for_each(|_| yield_now())).unwrap();
    let counters = rt.counters();
    let told = (counters.spawned, counters.ended, counters.dispatches, counters.wakeups);
    assert_eq!(told, (1, 1, 4, 0));
    rt.run(|| {
        // Its items come one by one, and each wakes the reader.
        let (mut writer, reader) = stream(1);
        let reads = spawn(move || reader.count());
        for n in 0..5 {
            yield_now();
            writer.write(n).unwrap();
        }
        drop(writer);
        reads.join().unwrap()
    })
    .unwrap();
    let after = rt.counters();
    assert_eq!((after.spawned, after.ended, after.steals, after.growths), (3, 3, 0, 0));
    // Five items or the end to wake the reader, and its end to wake who joins it.
    assert_eq!(after.wakeups, 6, "{after:?}");
    assert_eq!((after.mails, after.stacks >= 2), (0, true), "{after:?}");
}

#[test]
fn counters_tell_mail_and_wrappers() {
    let rt = Runtime::builder().workers(2).build().unwrap();
    rt.run(|| {
        let (mut writer, mut reader) = stream(1);
        let reads = Task::new().worker(0).spawn(move || reader.read()).unwrap();
        while !dump().unwrap().tasks.iter().any(|t| t.status == Status::Reading) {
            yield_now();
        }
        Task::new().worker(1).spawn(move || writer.write(1).unwrap()).unwrap().join().unwrap();
        Task::new().wrapper().spawn(|| ()).unwrap().join().unwrap();
        assert_eq!(reads.join().unwrap(), Some(1));
    })
    .unwrap();
    let counters = rt.counters();
    assert_eq!((counters.spawned, counters.ended), (4, 4), "{counters:?}");
    assert!(counters.mails > 0, "{counters:?}");
}
