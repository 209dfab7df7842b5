//! Order and place of execution: schedulers, priorities, placements, counters.

use corebeat_lpel::placement::{Balanced, Measured, Place, Placement, RoundRobin, TaskInfo};
use corebeat_lpel::scheduler::{Fifo, Lifo, Prioritised, Ready, Scheduler};
use corebeat_lpel::*;
use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Builds a runtime of one worker with a scheduler.
fn scheduled<S: Scheduler + Default + 'static>() -> Runtime {
    Runtime::builder().workers(1).scheduler(|_| Box::new(S::default())).build().unwrap()
}

/// Returns the order in which a worker runs tasks of these priorities, which are all ready before
/// the worker runs the first one.
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
fn fifo_runs_tasks_in_order() {
    assert_eq!(order(&scheduled::<Fifo>(), LEVELS), [0, 1, 2, 3, 4, 5]);
    // The default.
    assert_eq!(order(&Runtime::builder().workers(1).build().unwrap(), LEVELS), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn fifo_keeps_the_order_while_it_grows() {
    const TASKS: usize = 10;
    let log = Arc::new(Mutex::new(Vec::new()));
    let note = {
        let log = log.clone();
        move |n: usize| log.lock().unwrap().push(n)
    };
    Runtime::builder()
        .workers(1)
        .build()
        .unwrap()
        .run(move || {
            for n in 0..TASKS {
                let note = note.clone();
                spawn(move || {
                    note(n);
                    yield_now();
                    for child in 0..TASKS {
                        let note = note.clone();
                        spawn(move || note(TASKS * (n + 1) + child));
                    }
                    yield_now();
                    note(n);
                });
            }
        })
        .unwrap();
    let children = |n| (TASKS * (n + 1)..TASKS * (n + 2)).chain([n]);
    let order: Vec<_> = (0..TASKS).chain((0..TASKS).flat_map(children)).collect();
    assert_eq!(*log.lock().unwrap(), order);
}

#[test]
fn lifo_runs_tasks_in_reverse_order() {
    assert_eq!(order(&scheduled::<Lifo>(), LEVELS), [5, 4, 3, 2, 1, 0]);
}

#[test]
fn prioritised_runs_urgent_tasks_first_and_equals_in_order() {
    assert_eq!(order(&scheduled::<Prioritised>(), LEVELS), [3, 2, 5, 1, 0, 4]);
}

#[test]
fn yielding_tasks_alternate() {
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
fn custom_scheduler_receives_properties_of_its_tasks() {
    type Observed = Arc<Mutex<Vec<(Option<String>, Priority, u64, u64)>>>;
    struct Notes(Fifo, Observed);
    impl Scheduler for Notes {
        fn put(&mut self, task: Ready) {
            let observed =
                (task.name().map(str::to_owned), task.priority(), task.id(), task.dispatches());
            self.1.lock().unwrap().push(observed);
            self.0.put(task);
        }
        fn fetch(&mut self) -> Option<Ready> {
            self.0.fetch()
        }
        fn len(&self) -> usize {
            self.0.len()
        }
    }
    let observed = Observed::default();
    let notes = observed.clone();
    let make = move |_| -> Box<dyn Scheduler> { Box::new(Notes(Fifo::default(), notes.clone())) };
    let rt = Runtime::builder().workers(1).scheduler(make).build().unwrap();
    let task = rt.task().name("noted").priority(Priority(7)).spawn(yield_now).unwrap();
    let id = task.id();
    task.join().unwrap();
    let name = Some("noted".to_owned());
    assert_eq!(
        *observed.lock().unwrap(),
        [(name.clone(), Priority(7), id, 0), (name, Priority(7), id, 1)]
    );
}

/// Returns the worker of the running task.
fn current_worker() -> usize {
    let dump = dump().unwrap();
    let running = dump
        .tasks
        .iter()
        .filter(|t| t.status == Status::Running && t.name.as_deref() == Some("here"));
    let workers: Vec<_> = running.map(|t| t.worker.unwrap()).collect();
    assert_eq!(workers.len(), 1, "{dump}");
    workers[0]
}

#[test]
fn task_stays_on_the_requested_worker() {
    let rt = Runtime::builder().workers(3).placement(RoundRobin::default()).build().unwrap();
    for worker in [2, 0, 1, 1] {
        let task = rt.task().name("here").worker(worker);
        let stays =
            task.spawn(|| [current_worker(), worker_after_yield()]).unwrap().join().unwrap();
        assert_eq!(stays, [worker; 2]);
        let asynchronous = task.spawn_async(async { current_worker() }).unwrap().join().unwrap();
        assert_eq!(asynchronous, worker);
        let inside = rt.run(move || {
            let task = Task::new().name("here").worker(worker);
            task.spawn(current_worker).unwrap().join().unwrap()
        });
        assert_eq!(inside.unwrap(), worker);
    }
}

fn worker_after_yield() -> usize {
    yield_now();
    current_worker()
}

#[test]
fn placement_assigns_tasks_to_workers() {
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

/// Returns the workers of four tasks with one name, on two workers.
fn places(placement: impl Placement + 'static) -> [usize; 4] {
    let rt = Runtime::builder().workers(2).placement(placement).build().unwrap();
    [(); 4].map(|()| rt.task().name("here").spawn(current_worker).unwrap().join().unwrap())
}

#[test]
fn placement_receives_the_spawner() {
    type Reported = Arc<Mutex<Vec<(Option<String>, Priority, Option<usize>)>>>;
    struct Notes(Reported);
    impl Placement for Notes {
        fn place(&mut self, task: &TaskInfo<'_>, _: usize) -> Place {
            self.0.lock().unwrap().push((
                task.name.map(str::to_owned),
                task.priority,
                task.spawner,
            ));
            Place::Worker(1)
        }
    }
    let reported = Reported::default();
    let rt = Runtime::builder().workers(2).placement(Notes(reported.clone())).build().unwrap();
    rt.run(|| drop(Task::new().name("inner").priority(Priority::LOW).spawn(|| ()))).unwrap();
    let inner = (Some("inner".to_owned()), Priority::LOW, Some(1));
    assert_eq!(*reported.lock().unwrap(), [(None, Priority::NORMAL, None), inner]);
}

/// Returns the numbers of started tasks named 'parser' on each of two workers.
fn parsers(dump: &Dump) -> [usize; 2] {
    let named = || dump.tasks.iter().filter(|t| t.name.as_deref() == Some("parser"));
    [0, 1].map(|worker| named().filter(|t| t.worker == Some(worker)).count())
}

type Parser = (Writer<u32>, JoinHandle<usize>);

/// Spawns a task that counts the items of a stream.
fn parser(task: Task<'_>) -> Parser {
    let (to, from) = stream(4);
    (to, task.name("parser").spawn(move || from.count()).unwrap())
}

/// A blocking task feeds four parsers. Returns how the parsers are distributed over two workers.
fn fan_out(seed: u64, spawns: fn() -> Vec<Parser>) -> [usize; 2] {
    let rt = Runtime::builder().workers(2).deterministic(seed).build().unwrap();
    rt.run(move || {
        let (mut streams, parsing): (Vec<_>, Vec<_>) = spawns().into_iter().unzip();
        let (mut go, mut may_go) = stream(1);
        // Without threads, the feeder is a task on a worker as well.
        let feeder = Task::new().blocking().worker(0).spawn(move || {
            may_go.read();
            (0..400).for_each(|n| streams[n as usize % 4].write(n).unwrap());
        });
        sleep(Duration::from_secs(1));
        let dump = dump().unwrap();
        go.write(()).unwrap();
        feeder.unwrap().join().unwrap();
        assert!(parsing.into_iter().all(|p| p.join().unwrap() == 100));
        parsers(&dump)
    })
    .unwrap()
}

#[test]
fn fan_out_is_spread_over_idle_workers() {
    // Regression: the parsers start and wait for items before another worker can steal them, and
    // then stay on the worker of their spawner.
    for seed in 0..200 {
        let at_once = fan_out(seed, || (0..4).map(|_| parser(Task::new())).collect());
        assert!(!at_once.contains(&0), "seed {seed}: {at_once:?}");
        // Each one waits before the next one is spawned.
        let one_by_one = fan_out(seed, || {
            let parser_then_pause = |_| (parser(Task::new()), sleep(Duration::from_secs(1))).0;
            (0..4).map(parser_then_pause).collect()
        });
        assert!(!one_by_one.contains(&0), "seed {seed}: {one_by_one:?}");
    }
}

#[test]
fn fan_out_from_a_thread_is_spread_over_idle_workers() {
    for seed in 0..200 {
        let rt = Runtime::builder().workers(2).deterministic(seed).build().unwrap();
        let feeds: Vec<_> = (0..4).map(|_| parser(rt.task())).collect();
        let dump = rt.run(|| {
            sleep(Duration::from_secs(1));
            let dump = dump().unwrap();
            drop(feeds);
            dump
        });
        assert_eq!(parsers(&dump.unwrap()), [2, 2], "seed {seed}");
    }
}

#[test]
fn jobs_of_a_task_that_sleeps_start_on_idle_workers() {
    // Regression: a job that computes for longer than its spawner sleeps delayed the next one.
    for seed in 0..200 {
        let rt = Runtime::builder().workers(2).deterministic(seed).build().unwrap();
        let dispatch = || {
            // Until the other worker is idle.
            sleep(Duration::from_millis(1));
            let job = |_| {
                let job = Task::new().name("here").spawn(current_worker).unwrap();
                sleep(Duration::from_millis(1));
                job
            };
            let jobs: Vec<_> = (0..8).map(job).collect();
            let own = current_worker();
            jobs.into_iter().map(|job| job.join().unwrap() == own).collect::<Vec<_>>()
        };
        let places =
            rt.run(move || Task::new().name("here").spawn(dispatch).unwrap().join().unwrap());
        // A worker starts one job, perhaps, before it predicts that jobs do not wait.
        let beside_their_spawner = places.unwrap().into_iter().filter(|is_own| *is_own).count();
        assert!(beside_their_spawner <= 1, "seed {seed}: {beside_their_spawner}");
    }
}

#[test]
fn worker_whose_tasks_all_wait_leaves_the_rest_to_their_worker() {
    // Regression: while the spawner occupied its worker, for example because it started a thread,
    // the other worker took all tasks.
    let rt = Arc::new(Runtime::builder().workers(2).build().unwrap());
    let is_spread = |_| {
        let counters = {
            let rt = rt.clone();
            move || rt.counters()
        };
        let spread = rt.run(move || {
            let steals = counters().steals;
            let (streams, parsing): (Vec<_>, Vec<_>) = (0..4).map(|_| parser(Task::new())).unzip();
            // Occupies the worker until the other one has stolen tasks, and has no work again.
            let mut waits = counters().waits;
            while counters().steals == steals {
                waits = counters().waits;
            }
            while counters().waits == waits {}
            sleep(Duration::from_millis(1));
            let spread = !parsers(&dump().unwrap()).contains(&0);
            drop(streams);
            parsing.into_iter().for_each(|p| drop(p.join()));
            spread
        });
        spread.unwrap()
    };
    // A delay of this worker may let the other one take the rest.
    assert!((0..100).any(is_spread));
}

/// A task spawns a source and stages, and reads their items itself. Returns the workers of the
/// source, of the stages, and of the task.
fn workers_of_a_pipeline(seed: u64, stages: usize) -> Vec<Option<usize>> {
    let rt = Runtime::builder().workers(2).deterministic(seed).build().unwrap();
    rt.run(move || {
        let (mut to, mut from) = stream::<u32>(16);
        let source = move || (0..60).try_for_each(|n| to.write(n));
        Task::new().name("0").spawn(source).unwrap();
        for stage in 1..=stages {
            let (mut to, next) = stream(16);
            let items = std::mem::replace(&mut from, next);
            let body = move || items.into_iter().try_for_each(|n| to.write(n));
            Task::new().name(stage.to_string()).spawn(body).unwrap();
        }
        from.read();
        let dump = dump().unwrap();
        drop(from);
        let worker = |name: Option<&str>| {
            dump.tasks.iter().find(|t| t.name.as_deref() == name).and_then(|t| t.worker)
        };
        let named = (0..=stages).map(|n| worker(Some(&n.to_string())));
        named.chain([worker(None)]).collect()
    })
    .unwrap()
}

#[test]
fn task_that_reads_what_it_spawned_counts_as_a_member_of_the_pipeline() {
    // Regression: the shares of the tasks that a task had spawned did not count the task itself,
    // and a single task was never given away.
    // The number of stages, and how many of them share the worker of the reader.
    for (stages, beside_reader) in [(0, 0), (1, 0), (3, 1)] {
        let is_balanced = |&seed: &u64| {
            let workers = workers_of_a_pipeline(seed, stages);
            let reader = workers[stages + 1];
            // Without stages, the source computes.
            let first = usize::from(stages > 0);
            let beside = workers[first..=stages].iter().filter(|w| **w == reader);
            beside.count() == beside_reader
        };
        // An idle worker may steal a task before it receives its share.
        let balanced = (0..200).filter(is_balanced).count();
        assert!(balanced > 100, "{balanced} of 200 with {stages} stages");
    }
}

#[test]
fn neighbours_whose_items_the_spawner_reads_run_on_different_workers() {
    // Regression: the spawner counted as much as two stages that compute, and kept a worker.
    let differ = |&seed: &u64| {
        let workers = workers_of_a_pipeline(seed, 1);
        workers[0] != workers[1]
    };
    let spread = (0..200).filter(differ).count();
    assert!(spread > 190, "{spread} of 200");
}

#[test]
fn pairs_of_tasks_stay_together() {
    // Regression: the servers of two pairs ran on one worker, and the clients on the other one.
    let together = |&seed: &u64| {
        let rt = Runtime::builder().workers(2).deterministic(seed).build().unwrap();
        rt.run(|| {
            let pair = |n: u32| {
                let ((mut ask, asked), (mut tell, mut told)) = (stream(4), stream(4));
                let serve = move || asked.into_iter().try_for_each(|n: u32| tell.write(n + 1));
                Task::new().name(format!("server {n}")).spawn(serve).unwrap();
                let call = move |n| ask.write(n).ok().and_then(|()| told.read());
                let client = move || (0..40).filter_map(call).count();
                Task::new().name(format!("client {n}")).spawn(client).unwrap()
            };
            let clients = [0, 1].map(pair);
            sleep(Duration::from_nanos(1));
            let dump = dump().unwrap();
            let worker = |name: &str| {
                let task = dump.tasks.iter().find(|t| t.name.as_deref() == Some(name));
                task.and_then(|t| t.worker)
            };
            let [server, client, other] = ["server 0", "client 0", "server 1"].map(worker);
            assert!(clients.into_iter().all(|client| client.join().unwrap() == 40));
            server == client && server != other
        })
        .unwrap()
    };
    // An idle worker may steal a task before it receives its share.
    let count = (0..200).filter(together).count();
    assert!(count > 100, "{count} of 200");
}

#[test]
fn blocking_tasks_and_their_runtimes_may_use_all_cpus() {
    // Regression: the thread of a blocking task inherited the CPU of the worker.
    let cpus = || std::thread::available_parallelism().unwrap().get();
    let rt = Runtime::new().unwrap();
    let [in_blocking, in_task] = rt
        .run(move || {
            let workers = || Runtime::new().unwrap().workers();
            let blocking = Task::new().blocking().spawn(move || (cpus(), workers())).unwrap();
            [blocking.join().unwrap(), (cpus(), workers())]
        })
        .unwrap();
    assert_eq!(in_blocking, (cpus(), cpus()));
    assert_eq!(in_task.1, cpus());
}

#[test]
fn tasks_of_a_distributor_are_spread_although_it_waits_for_room() {
    for seed in 0..200 {
        let rt = Runtime::builder().workers(2).deterministic(seed).build().unwrap();
        let spread = rt.run(|| {
            let (mut streams, parsing): (Vec<_>, Vec<_>) =
                (0..2).map(|_| parser(Task::new())).unzip();
            (0..40).for_each(|n| streams[n as usize % 2].write(n).unwrap());
            let dump = dump().unwrap();
            drop(streams);
            assert!(parsing.into_iter().all(|p| p.join().unwrap() == 20));
            parsers(&dump)
        });
        assert_eq!(spread.unwrap(), [1, 1], "seed {seed}");
    }
}

#[test]
fn pipeline_is_divided_into_few_parts() {
    // An item should rarely change its worker.
    for seed in 0..200 {
        let rt = Runtime::builder().workers(2).deterministic(seed).build().unwrap();
        let changes = rt.run(|| {
            let (first, mut last) = stream::<u32>(1);
            for _ in 0..100 {
                let (mut to, next) = stream(1);
                let from = std::mem::replace(&mut last, next);
                let stage = move || from.into_iter().try_for_each(|n| to.write(n));
                Task::new().name("stage").spawn(stage).unwrap();
            }
            sleep(Duration::from_secs(1));
            let dump = dump().unwrap();
            drop(first);
            assert_eq!(last.read(), None);
            let stages = dump.tasks.iter().filter(|t| t.name.as_deref() == Some("stage"));
            let workers: Vec<_> = stages.map(|t| t.worker).collect();
            assert_eq!(workers.len(), 100);
            workers.windows(2).filter(|pair| pair[0] != pair[1]).count()
        });
        let changes = changes.unwrap();
        assert!(changes <= 16, "seed {seed}: {changes}");
    }
}

#[test]
fn unstarted_tasks_are_stolen_while_others_are_ready() {
    const TASKS: usize = 5;
    let rt = Runtime::builder().workers(2).build().unwrap();
    // The second worker is kept busy until one of the tasks has started on the first worker.
    let (started, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let until = |done: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !done() {
            if begin.elapsed() > Duration::from_secs(60) {
                // A panic would leave the other tasks spinning.
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
                // The first task to start on a worker occupies it until the other worker has run
                // the rest.
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
    let reported = (counters.spawned, counters.ended, counters.dispatches, counters.wakeups);
    assert_eq!(reported, (1, 1, 4, 0));
    rt.run(|| {
        // Items arrive one by one, and each wakes the reader.
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
    // Five wake-ups of the reader, by items or the end, and one of its joiner.
    assert_eq!(after.wakeups, 6, "{after:?}");
    assert_eq!((after.mails, after.stacks >= 2), (0, true), "{after:?}");
}

#[test]
fn counters_include_inbox_wake_ups_and_blocking_tasks() {
    let rt = Runtime::builder().workers(2).build().unwrap();
    rt.run(|| {
        let (mut writer, mut reader) = stream(1);
        let reads = Task::new().worker(0).spawn(move || reader.read()).unwrap();
        while !dump().unwrap().tasks.iter().any(|t| t.status == Status::Reading) {
            yield_now();
        }
        Task::new().worker(1).spawn(move || writer.write(1).unwrap()).unwrap().join().unwrap();
        Task::new().blocking().spawn(|| ()).unwrap().join().unwrap();
        assert_eq!(reads.join().unwrap(), Some(1));
    })
    .unwrap();
    let counters = rt.counters();
    assert_eq!((counters.spawned, counters.ended), (4, 4), "{counters:?}");
    assert!(counters.mails > 0, "{counters:?}");
}

#[test]
fn tasks_that_must_stay_should_not_move() {
    assert!(!corebeat_lpel::should_move(), "outside a task");
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let moves = |task: Task<'static>| {
        task.spawn(|| {
            // The other worker becomes idle, while this worker has a ready task.
            let other = corebeat_lpel::spawn(|| ());
            let asked = (0..1000).any(|_| {
                std::thread::sleep(std::time::Duration::from_micros(10));
                corebeat_lpel::should_move()
            });
            other.join().unwrap();
            asked
        })
    };
    let moved = runtime.run(move || {
        let tasks = [Task::new().worker(0), Task::new().priority(Priority::NORMAL)];
        tasks.map(|task| moves(task).unwrap().join().unwrap())
    });
    assert_eq!(moved.unwrap(), [false, false]);
}
