//! Small cases of all functions: small enough for Miri, which is a thousand times slower.

use corebeat_lpel::{Runtime, sleep, spawn, stream};
use corebeat_scoop::*;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

fn system(workers: usize) -> System {
    System::new(Runtime::builder().workers(workers).build().unwrap())
}

/// Counts its live instances.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>) -> Plain<Alive> {
        count.fetch_add(1, Ordering::SeqCst);
        Plain(Alive(count.clone()))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Trace)]
struct Node {
    alive: Plain<Alive>,
    next: Option<Gc<Node>>,
    far: Option<Link<Node>>,
}

impl Node {
    fn new(count: &Arc<AtomicUsize>) -> Node {
        Node { alive: Alive::new(count), next: None, far: None }
    }
}

fn node(client: &Client, count: &Arc<AtomicUsize>) -> Separate<Node> {
    let count = count.clone();
    client.create(move |_| Node::new(&count))
}

/// Adds a reference from the first object to the second one.
fn lead(client: &Client, from: &Separate<Node>, to: &Separate<Node>) {
    let to = to.clone();
    from.query(client, move |here, node| here[node].far = Some(here.link(&to))).unwrap();
}

/// A value whose destructor panics.
struct Bad;

impl Drop for Bad {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("bad"));
    }
}

#[test]
fn commands_run_in_order_and_a_query_after_them() {
    let system = system(2);
    let client = system.client();
    let list = client.create(|_| Vec::<u32>::new());
    for n in 0..10 {
        list.command(&client, move |here, list| here[list].push(n));
    }
    assert_eq!(list.query(&client, |here, list| here[list].clone()), Ok((0..10).collect()));
}

#[test]
fn blocks_of_two_clients_do_not_mix() {
    let system = system(2);
    let list = system.client().create(|_| Vec::<u32>::new());
    let write = |n: u32| {
        let (system, list) = (system.clone(), list.clone());
        move || {
            let client = system.client();
            for _ in 0..3 {
                let reserved = client.reserve(&list);
                (0..3).for_each(|_| reserved.command(move |here, list| here[list].push(n)));
            }
        }
    };
    let threads = [std::thread::spawn(write(1)), std::thread::spawn(write(2))];
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let got = list.query(&system.client(), |here, list| here[list].clone()).unwrap();
    assert_eq!(got.len(), 18);
    assert!(got.chunks(3).all(|block| block.iter().all(|n| *n == block[0])), "{got:?}");
}

#[test]
fn two_processors_are_reserved_in_one_step() {
    let system = system(2);
    let accounts: Vec<_> = (0..2).map(|_| system.client().create(|_| 100i64)).collect();
    let transfer = |from: usize| {
        let (system, from, to) =
            (system.clone(), accounts[from].clone(), accounts[1 - from].clone());
        move || {
            let client = system.client();
            for _ in 0..5 {
                let (from, to) = client.reserve((&from, &to));
                let balance = from.query(|here, it| here[it]).unwrap();
                let other = to.query(|here, it| here[it]).unwrap();
                assert_eq!(balance + other, 200);
                from.command(|here, it| here[it] -= 7);
                to.command(|here, it| here[it] += 7);
            }
        }
    };
    let threads = [std::thread::spawn(transfer(0)), std::thread::spawn(transfer(1))];
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let client = system.client();
    let both = client.reserve(&accounts[..]);
    assert_eq!(
        both.iter().map(|account| account.query(|here, it| here[it]).unwrap()).sum::<i64>(),
        200
    );
}

#[test]
fn condition_waits_for_changes_by_others() {
    let system = system(2);
    let client = system.client();
    let buffer = client.create(|_| Vec::<u32>::new());
    let (own, to) = (system.clone(), buffer.clone());
    let producer = std::thread::spawn(move || {
        let client = own.client();
        for n in 0..5 {
            let room =
                client.reserve_when(&to, |buffer| buffer.query(|here, it| here[it].is_empty()));
            room.unwrap().command(move |here, it| here[it].push(n));
        }
    });
    for n in 0..5 {
        let items =
            client.reserve_when(&buffer, |buffer| buffer.query(|here, it| !here[it].is_empty()));
        assert_eq!(items.unwrap().query(|here, it| here[it].pop()), Ok(Some(n)));
    }
    producer.join().unwrap();
}

#[test]
fn unreachable_objects_are_dropped() {
    let (system, count) = (system(2), Arc::default());
    let client = system.client();
    let root = node(&client, &count);
    let own: Arc<AtomicUsize> = count.clone();
    let made = root.query(&client, move |here, root| {
        // A reachable cycle and an unreachable one.
        for keep in [true, false] {
            let [a, b] = [0; 2].map(|_| here.make(Node::new(&own)));
            (here[a].next, here[b].next) = (Some(b), Some(a));
            if keep {
                here[root].next = Some(a);
            }
        }
    });
    assert_eq!(made, Ok(()));
    let found = system.collect();
    assert_eq!((found.objects, found.objects_freed, found.processors_freed), (3, 2, 0));
    assert_eq!(count.load(Ordering::SeqCst), 3);
    root.query(&client, |here, root| {
        let next = here[root].next.unwrap();
        assert!(here[next].next.is_some());
    })
    .unwrap();
    drop(root);
    // The objects of a freed processor count, too.
    let found = system.collect();
    assert_eq!((found.objects, found.objects_freed, found.processors_freed), (0, 3, 1));
    assert_eq!((count.load(Ordering::SeqCst), system.processors()), (0, 0));
}

#[test]
fn unreachable_cycles_over_processors_are_collected() {
    let (system, count) = (system(2), Arc::default());
    let client = system.client();
    let ring: Vec<_> = (0..4).map(|_| node(&client, &count)).collect();
    (0..4).for_each(|n| lead(&client, &ring[n], &ring[(n + 1) % 4]));
    let one = ring[2].clone();
    drop(ring);
    assert_eq!(system.collect().processors_freed, 0);
    let last = one.query(&client, |here, it| here.hold(here[it].far.unwrap())).unwrap();
    drop(one);
    assert_eq!(system.collect().processors_freed, 0);
    last.query(&client, |here, it| here[it].far = None).unwrap();
    assert_eq!(system.collect().processors_freed, 3);
    drop(last);
    assert_eq!(system.collect().processors_freed, 1);
    assert_eq!(count.load(Ordering::SeqCst), 0);
}

#[test]
fn processor_of_a_live_object_keeps_its_own_roots() {
    let (system, count) = (system(2), Arc::default());
    let client = system.client();
    let root = node(&client, &count);
    let own: Arc<AtomicUsize> = count.clone();
    let made = root.query(&client, move |here, _| {
        let kept = here.make(Node::new(&own));
        here.keep(kept);
        let gone = here.make(Node::new(&own));
        here.keep(gone);
        here.let_go(gone);
    });
    assert_eq!(made, Ok(()));
    assert_eq!((system.collect().objects, count.load(Ordering::SeqCst)), (2, 2));
    drop(root);
    assert_eq!((system.collect().processors, count.load(Ordering::SeqCst)), (0, 0));
}

#[test]
fn processor_with_logged_calls_lives_until_they_have_run() {
    let (system, count) = (system(1), Arc::default());
    let client = system.client();
    let ran = Arc::new(AtomicUsize::new(0));
    let held = node(&client, &count);
    let reservation = client.reserve(&held);
    let own = ran.clone();
    // Behind an open block.
    held.command(&client, move |_, _| {
        own.fetch_add(1, Ordering::SeqCst);
    });
    drop(held);
    assert_eq!(system.collect().processors_freed, 0);
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    drop(reservation);
    while ran.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    while system.collect().processors > 0 {}
    assert_eq!(count.load(Ordering::SeqCst), 0);
}

#[test]
fn processor_that_panics_fails_its_clients() {
    let (system, count) = (system(2), Arc::default());
    let client = system.client();
    let root = node(&client, &count);
    root.command(&client, |_, _| std::panic::panic_any("no more"));
    let failed = root.query(&client, |_, _| 1);
    let Err(Error::Failed { why, .. }) = &failed else { panic!("{failed:?}") };
    assert_eq!(why.message(), "no more");
    assert_eq!(root.query(&client, |_, _| 1), failed);
    assert!(client.reserve_when(&root, |root| root.query(|_, _| true)).is_err());
    assert_eq!(count.load(Ordering::SeqCst), 0);
    drop(root);
    assert_eq!(system.collect().processors_freed, 1);
}

#[test]
fn payload_of_a_panic_reaches_the_caller_once() {
    #[derive(Debug, PartialEq)]
    struct Code(u32);
    let system = system(1);
    let client = system.client();
    let root = client.create(|_| 1u32);
    let failed = root.query(&client, |_, _| std::panic::panic_any(Code(7)));
    let Err(Error::Failed { why, .. }) = failed else { panic!("{failed:?}") };
    assert_eq!(why.message(), "a call panicked, with a payload that is no text");
    assert_eq!(why.take_payload().unwrap().downcast_ref(), Some(&Code(7)));
    let later = root.query(&client, |_, _| ());
    let Err(Error::Failed { why: same, .. }) = later else { panic!("{later:?}") };
    assert!(same == why && same.take_payload().is_none());
}

#[test]
fn payload_whose_destructor_panics_is_dropped_with_its_processor() {
    let system = system(1);
    let client = system.client();
    let root = client.create(|_| 1u32);
    root.command(&client, |_, _| std::panic::panic_any(Bad));
    system.wait();
    drop(root);
    while system.collect().processors > 0 {}
}

#[test]
fn query_with_a_time_limit_returns_and_its_call_runs_later() {
    let system = system(1);
    let client = system.client();
    let count = client.create(|_| 0u32);
    let in_time = count.query_timeout(&client, Duration::from_secs(600), |here, it| here[it]);
    assert_eq!(in_time, Ok(0));
    // Delays the call below.
    let (release, released) = std::sync::mpsc::channel::<()>();
    count.command(&client, move |_, _| _ = released.recv());
    let add = count.query_timeout(&client, Duration::from_millis(1), |here, it| here[it] += 1);
    assert_eq!(add, Err(Error::TimedOut));
    drop(release);
    assert_eq!(count.query(&client, |here, it| here[it]), Ok(1));
}

#[test]
fn wait_for_a_condition_ends_at_its_time_limit() {
    let system = system(1);
    let client = system.client();
    let count = client.create(|_| 0u32);
    let is_one = |count: &Reservation<u32>| count.query(|here, it| here[it] == 1);
    let never = client.reserve_when_timeout(&count, Duration::from_millis(1), is_one);
    assert!(matches!(never, Err(Error::TimedOut)));
    // The reservation has ended.
    assert_eq!(count.query(&client, |here, it| here[it] = 1), Ok(()));
    let holds = client.reserve_when_timeout(&count, Duration::ZERO, is_one);
    assert_eq!(holds.unwrap().query(|here, it| here[it]), Ok(1));
}

#[test]
fn wait_for_a_condition_ends_at_its_time_limit_in_virtual_time() {
    let runtime = Arc::new(Runtime::builder().deterministic(1).build().unwrap());
    let system = System::new(runtime.clone());
    let day = Duration::from_secs(24 * 3_600);
    let ended = runtime.run(move || {
        let day_is_over = Arc::new(AtomicBool::new(false));
        let own = day_is_over.clone();
        let sleeper = spawn(move || {
            sleep(2 * day);
            own.store(true, Ordering::SeqCst);
        });
        let client = system.client();
        let object = client.create(|_| 0u32);
        let limit = |reserved: &Reservation<u32>| reserved.query(|here, n| here[n] == 1);
        let ended = client.reserve_when_timeout(&object, day, limit).map(drop);
        let in_time = !day_is_over.load(Ordering::SeqCst);
        sleeper.join().unwrap();
        (ended, in_time)
    });
    assert_eq!(ended.unwrap(), (Err(Error::TimedOut), true));
}

#[test]
fn cycle_of_queries_is_reported_with_its_members() {
    let system = system(2);
    let client = system.client();
    let (a, b) = (client.create(|_| 1u32), client.create(|_| 2u64));
    let (own_a, own_b) = (a.clone(), b.clone());
    let queried = a.query(&client, move |here, _| {
        let from_b = own_b.query(here, move |here, _| own_a.query(here, |_, _| ()));
        from_b.expect("b does not wait forever")
    });
    let Err(Error::Deadlock(cycle)) = queried.unwrap() else { panic!("no deadlock") };
    assert_eq!(
        cycle.members().iter().map(|m| m.id).collect::<Vec<_>>(),
        [b.processor(), a.processor()]
    );
    let text = cycle.to_string();
    assert!(
        text.starts_with("deadlock: processor ") && text.contains("(u64) would wait for processor"),
        "{text}"
    );
    // Both processors still run.
    assert!(a.query(&client, |_, _| ()).is_ok() && b.query(&client, |_, _| ()).is_ok());
}

#[test]
fn cycle_of_queries_over_two_systems_is_reported_with_its_members() {
    let runtime = Arc::new(Runtime::builder().workers(2).build().unwrap());
    let [s, t] = [System::new(runtime.clone()), System::new(runtime.clone())];
    // A cycle that is not detected ends this task, and does not hang the test.
    let done = runtime.run(move || {
        let (client, other) = (s.client(), t.client());
        let (a, b) = (client.create(|_| 1u32), other.create(|_| 2u64));
        let (own_a, own_b) = (a.clone(), b.clone());
        let queried = a.query(&client, move |_, _| {
            let from_b = own_b.query(&t.client(), move |_, _| own_a.query(&s.client(), |_, _| ()));
            from_b.expect("b does not wait forever")
        });
        let Err(Error::Deadlock(cycle)) = queried.unwrap() else { panic!("no deadlock") };
        assert_eq!(
            cycle.members().iter().map(|m| m.id).collect::<Vec<_>>(),
            [b.processor(), a.processor()]
        );
        assert!(a.query(&client, |_, _| ()).is_ok() && b.query(&other, |_, _| ()).is_ok());
    });
    done.unwrap();
}

#[test]
fn query_of_another_system_behind_a_reservation_of_its_client_is_a_deadlock() {
    let runtime = Arc::new(Runtime::builder().workers(2).build().unwrap());
    let [s, t] = [System::new(runtime.clone()), System::new(runtime.clone())];
    let done = runtime.run(move || {
        let (client, other) = (s.client(), t.client());
        let (a, b) = (client.create(|_| 1u32), other.create(|_| 2u64));
        let held = client.reserve(&a);
        let queried = b.query(&other, move |_, _| a.query(&s.client(), |_, _| ()));
        drop(held);
        let Ok(Err(Error::Deadlock(cycle))) = queried else { panic!("no deadlock: {queried:?}") };
        assert_eq!(
            cycle.members().iter().map(|m| m.id).collect::<Vec<_>>(),
            [b.processor(), client.id()]
        );
    });
    done.unwrap();
}

#[test]
fn cycle_behind_the_only_reservation_of_a_client_is_detected() {
    let runtime = Arc::new(Runtime::builder().workers(2).build().unwrap());
    let system = System::new(runtime.clone());
    let done = runtime.run(move || {
        let client = system.client();
        let (a, b) = (client.create(|_| 1u32), client.create(|_| None));
        let (own_a, own_b) = (a.clone(), b.clone());
        let held = client.reserve(&a);
        // Waits behind the reservation.
        b.command(&client, move |here, b| {
            here[b] = Some(own_a.query(here, |_, _| ()).is_err());
        });
        // The processor b waits until the reservation ends, whose call waits for b.
        let fails = held.query(move |here, _| own_b.query(here, |_, _| ()).is_err()).unwrap();
        drop(held);
        let other_fails = b.query(&client, |here, b| here[b].unwrap()).unwrap();
        assert!(fails != other_fails);
    });
    done.unwrap();
}

#[test]
fn query_behind_an_own_reservation_is_a_deadlock() {
    let system = system(1);
    let client = system.client();
    let a = client.create(|_| 1u32);
    let first = client.reserve(&a);
    let Err(Error::Deadlock(cycle)) = a.query(&client, |_, _| ()) else { panic!("no deadlock") };
    assert_eq!(
        cycle.to_string(),
        format!("deadlock: client {0} would wait for client {0}", client.id())
    );
    drop(first);
    assert_eq!(a.query(&client, |here, it| here[it]), Ok(1));
}

#[test]
fn clients_of_a_thread_do_not_wait_for_each_other() {
    let system = system(1);
    let [first, second] = [system.client(), system.client()];
    let other_thread = std::thread::scope(|s| s.spawn(|| system.client().id()).join().unwrap());
    assert!(first.id() == second.id() && first.id() != other_thread);
    let a = first.create(|_| 1u32);
    let held = first.reserve(&a);
    assert!(matches!(a.query(&second, |_, _| ()), Err(Error::Deadlock(_))));
    drop(held);
    assert_eq!(a.query(&second, |here, it| here[it]), Ok(1));
}

#[test]
fn thread_keeps_its_number_as_a_client_of_many_systems() {
    let runtime = Arc::new(Runtime::builder().workers(1).build().unwrap());
    let system = System::new(runtime.clone());
    let client = system.client();
    let a = client.create(|_| 1u32);
    let _held = client.reserve(&a);
    for _ in 0..20 {
        assert_eq!(System::new(runtime.clone()).client().id(), client.id());
    }
    let again = system.client();
    assert_eq!(again.id(), client.id());
    assert!(matches!(a.query(&again, |_, _| ()), Err(Error::Deadlock(_))));
}

#[test]
fn client_created_in_a_call_is_the_processor() {
    let system = system(1);
    let client = system.client();
    let a = client.create(|_| 1u32);
    let (own, to) = (system.clone(), a.clone());
    let queried = a.query(&client, move |here, _| {
        let own = own.client();
        assert_eq!(own.id(), here.id());
        to.query(&own, |_, _| ())
    });
    let Ok(Err(Error::Deadlock(cycle))) = queried else { panic!("no deadlock: {queried:?}") };
    assert_eq!(cycle.members().iter().map(|m| m.id).collect::<Vec<_>>(), [a.processor()]);
}

#[test]
fn collection_in_a_finaliser_panics() {
    struct Collects(System, Arc<AtomicUsize>);
    impl Drop for Collects {
        fn drop(&mut self) {
            let refused =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.0.collect()))
                    .is_err();
            self.1.fetch_add(usize::from(refused), Ordering::SeqCst);
        }
    }
    let (system, refused) = (system(1), Arc::new(AtomicUsize::new(0)));
    let client = system.client();
    // A dead object in a live processor, and an object of a dead processor.
    let (own, count) = (system.clone(), refused.clone());
    let live = client.create(move |here| {
        here.make(Plain(Collects(own, count)));
        1u32
    });
    let (own, count) = (system.clone(), refused.clone());
    drop(client.create(move |_| Plain(Collects(own, count))));
    assert_eq!(live.query(&client, |here, it| here[it]), Ok(1));
    while system.collect().processors > 1 {}
    assert_eq!(refused.load(Ordering::SeqCst), 2);
}

#[test]
fn query_in_a_finaliser_fails() {
    struct Asks(System, Separate<u32>, Arc<AtomicUsize>);
    impl Drop for Asks {
        fn drop(&mut self) {
            let answer = self.1.query(&self.0.client(), |here, it| here[it]);
            self.2.fetch_add(usize::from(answer == Err(Error::Finaliser)), Ordering::SeqCst);
        }
    }
    let (system, refused) = (system(1), Arc::new(AtomicUsize::new(0)));
    let client = system.client();
    let live = client.create(|_| 1u32);
    let asks = || Plain(Asks(system.clone(), live.clone(), refused.clone()));
    // A dead object in a live processor, an object of a dead processor, and one of a failing
    // processor.
    let (dead, gone, failed) = (asks(), asks(), asks());
    live.command(&client, move |here, _| {
        here.make(dead);
    });
    drop(client.create(move |_| gone));
    let bad = client.create(move |_| failed);
    assert!(bad.query(&client, |_, _| std::panic::resume_unwind(Box::new("bad"))).is_err());
    while system.collect().processors > 2 {}
    assert_eq!(refused.load(Ordering::SeqCst), 3);
    assert_eq!(live.query(&client, |here, it| here[it]), Ok(1));
}

#[test]
fn collector_that_panics_releases_regions() {
    struct Bad(Arc<AtomicUsize>);
    impl Drop for Bad {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    // SAFETY: the type has no handles. Its panic violates the contract, for the test.
    unsafe impl Trace for Bad {
        fn trace(&self, _: &mut Tracer) {
            std::panic::resume_unwind(Box::new("bad"));
        }
    }
    let (system, dropped) = (system(1), Arc::new(AtomicUsize::new(0)));
    let client = system.client();
    let own = dropped.clone();
    let bad = client.create(move |_| Bad(own));
    let refused =
        || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| system.collect())).is_err();
    assert!(refused() && refused());
    assert_eq!(bad.query(&client, |_, _| 1), Ok(1));
    drop((bad, client, system));
    while dropped.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn objects_of_many_types_coexist() {
    let system = system(1);
    let client = system.client();
    let root = client.create(|here| {
        let text = here.make(String::from("text"));
        let more = here.make(vec![text]);
        here.make(7u8);
        (text, Some(more))
    });
    assert!(root.query(&client, |_, _| ()).is_ok());
    assert_eq!(system.collect().objects_freed, 1);
    let got = root.query(&client, |here, root| {
        let (text, more) = here[root];
        here[more.unwrap()].push(text);
        (here[text].clone(), here[more.unwrap()].len())
    });
    assert_eq!(got, Ok(("text".into(), 2)));
}

#[test]
fn calls_run_during_a_collection() {
    let (system, count) = (system(2), Arc::default());
    let client = system.client();
    let ring: Vec<_> = (0..3).map(|_| node(&client, &count)).collect();
    let over = Arc::new(AtomicUsize::new(0));
    let (own, own_system) = (over.clone(), system.clone());
    let collector = std::thread::spawn(move || {
        for _ in 0..5 {
            own_system.collect();
        }
        own.store(1, Ordering::SeqCst);
    });
    let mut n = 0;
    while over.load(Ordering::SeqCst) == 0 {
        lead(&client, &ring[n % 3], &ring[(n + 1) % 3]);
        let own: Arc<AtomicUsize> = count.clone();
        ring[n % 3]
            .query(&client, move |here, node| {
                let next = here.make(Node { next: here[node].next, ..Node::new(&own) });
                here[node].next = (here[node].next.is_none()).then_some(next);
                if let Some(far) = here[node].far {
                    here.hold(far).command(here, |here, it| {
                        assert!(here[it].alive.0.0.load(Ordering::SeqCst) > 0)
                    });
                }
            })
            .unwrap();
        n += 1;
    }
    collector.join().unwrap();
    drop(ring);
    while system.collect().processors > 0 {}
    assert_eq!(count.load(Ordering::SeqCst), 0);
}

#[test]
fn drop_of_the_last_client_waits_for_logged_calls() {
    for system_is_last in [true, false] {
        let ran = Arc::new(AtomicUsize::new(0));
        let system = system(2);
        let client = system.client();
        let (first, second) = (client.create(|_| 1u32), client.create(|_| 2u32));
        for _ in 0..100 {
            let (second, ran) = (second.clone(), ran.clone());
            // Calls that a logged call logs run as well.
            first.command(&client, move |here, _| {
                second.command(here, move |_, _| {
                    ran.fetch_add(1, Ordering::SeqCst);
                });
            });
        }
        if system_is_last {
            drop(client);
            drop(system);
        } else {
            drop(system);
            drop(client);
        }
        assert_eq!(ran.load(Ordering::SeqCst), 100);
    }
}

#[test]
fn drop_of_a_system_executes_the_calls_of_a_deterministic_runtime() {
    let runtime = Arc::new(Runtime::builder().deterministic(1).build().unwrap());
    let ran = Arc::new(AtomicUsize::new(0));
    let system = System::new(runtime.clone());
    let client = system.client();
    let own = ran.clone();
    client.create(|_| 1u32).command(&client, move |_, _| {
        own.fetch_add(1, Ordering::SeqCst);
    });
    drop((client, system));
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

#[test]
fn drop_of_a_system_does_not_wait_for_tasks_that_calls_spawn() {
    let runtimes = [Runtime::builder().workers(2), Runtime::builder().deterministic(1)];
    for runtime in runtimes.map(|builder| Arc::new(builder.build().unwrap())) {
        let system = System::new(runtime.clone());
        let client = system.client();
        let (writer, mut reader) = stream::<u8>(1);
        client.create(|_| 1u32).command(&client, move |_, _| {
            spawn(move || reader.read());
        });
        system.wait();
        drop((client, system));
        drop(writer);
        runtime.scope().wait();
    }
}

#[test]
fn task_that_a_call_spawned_drops_the_last_system() {
    let runtimes = [Runtime::builder().workers(2), Runtime::builder().workers(1)];
    for runtime in runtimes.map(|builder| Arc::new(builder.build().unwrap())) {
        let system = System::new(runtime.clone());
        let client = system.client();
        let ran = Arc::new(AtomicUsize::new(0));
        let (go, mut gone) = stream::<u8>(1);
        let (own, count) = (system.clone(), ran.clone());
        let object = client.create(|_| 1u32);
        let spawned = object.query(&client, move |_, _| {
            spawn(move || {
                gone.read();
                let client = own.client();
                for _ in 0..100 {
                    let count = count.clone();
                    client.create(|_| 1u32).command(&client, move |_, _| {
                        count.fetch_add(1, Ordering::SeqCst);
                    });
                }
                drop((client, own));
                // The task is suspended meanwhile, also on the only worker.
                count.load(Ordering::SeqCst)
            })
        });
        drop((client, system, object));
        drop(go);
        assert_eq!(spawned.unwrap().join().unwrap(), 100);
    }
}

#[test]
fn calls_belong_to_no_scope_of_their_callers() {
    let runtime = Arc::new(Runtime::builder().workers(1).build().unwrap());
    let system = System::new(runtime.clone());
    let object = system.client().create(|_| 0u32);
    let (own, target) = (system.clone(), object.clone());
    let scope = runtime.scope();
    let cancelled = scope.clone();
    scope.spawn(move || {
        target.command(&own.client(), |here, n| here[n] += 1);
        cancelled.cancel();
    });
    scope.wait();
    assert_eq!(object.query(&system.client(), |here, n| here[n]), Ok(1));
}

#[test]
fn drop_in_a_destructor_of_thread_local_data_does_not_wait() {
    struct Held(Option<Client>, Sender<bool>);
    impl Drop for Held {
        fn drop(&mut self) {
            // The destructor of a thread must not panic: the process would abort.
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(self.0.take())));
            let _ = self.1.send(dropped.is_ok());
        }
    }
    thread_local! {
        static FIRST: RefCell<Option<Held>> = const { RefCell::new(None) };
        static LAST: RefCell<Option<Held>> = const { RefCell::new(None) };
    }
    let runtime = Arc::new(Runtime::builder().workers(1).build().unwrap());
    let (to, dropped) = channel();
    let own = runtime.clone();
    let thread = std::thread::spawn(move || {
        // One of the two is dropped after the data of LPEL for this thread.
        FIRST.with(|_| ());
        let held = || {
            let client = System::new(own.clone()).client();
            client.create(|_| 1u32).query(&client, |_, _| ()).unwrap();
            Some(Held(Some(client), to.clone()))
        };
        let (first, last) = (held(), held());
        FIRST.set(first);
        LAST.set(last);
    });
    thread.join().unwrap();
    assert_eq!(dropped.iter().collect::<Vec<_>>(), [true, true]);
}

#[test]
fn reservation_that_outlives_its_system_is_executed() {
    let ran = Arc::new(AtomicUsize::new(0));
    let system = system(1);
    let client = system.client();
    let object = client.create(|_| 1u32);
    let (first, second) = (client.reserve(&object), client.reserve(&object));
    let log = |reservation: &Reservation<u32>| {
        let ran = ran.clone();
        reservation.command(move |_, _| {
            ran.fetch_add(1, Ordering::SeqCst);
        });
    };
    // Runs after the drop of `first`.
    log(&second);
    drop((second, client, system, object));
    log(&first);
    drop(first);
    assert_eq!(ran.load(Ordering::SeqCst), 2);
}

#[test]
fn wait_returns_after_all_logged_calls_and_panics_inside_a_call() {
    let ran = Arc::new(AtomicUsize::new(0));
    let system = system(2);
    let client = system.client();
    let objects: Vec<_> = (0..10).map(|n| client.create(move |_| n)).collect();
    for object in &objects {
        let ran = ran.clone();
        object.command(&client, move |_, _| {
            ran.fetch_add(1, Ordering::SeqCst);
        });
    }
    system.wait();
    assert_eq!(ran.load(Ordering::SeqCst), 10);
    let own = system.clone();
    let failed = objects[0].query(&client, move |_, _| own.wait());
    let Err(Error::Failed { why, .. }) = failed else { panic!("{failed:?}") };
    assert!(why.message().contains("wait in a client outside of calls"), "{why}");
}

#[test]
fn dropped_system_drops_its_objects() {
    let (system, count) = (system(2), Arc::default());
    let client = system.client();
    let ring: Vec<_> = (0..2).map(|_| node(&client, &count)).collect();
    (0..2).for_each(|n| lead(&client, &ring[n], &ring[(n + 1) % 2]));
    ring[0].query(&client, |_, _| ()).unwrap();
    ring[1].query(&client, |_, _| ()).unwrap();
    drop((ring, client));
    drop(system);
    assert_eq!(count.load(Ordering::SeqCst), 0);
}

#[test]
fn panic_of_a_finaliser_does_not_propagate() {
    let system = system(1);
    let client = system.client();
    let root = client.create(|here| {
        for _ in 0..3 {
            here.make(Plain(Bad));
        }
        1u32
    });
    assert_eq!(root.query(&client, |here, it| here[it]), Ok(1));
    assert_eq!(system.collect().objects_freed, 3);
    assert_eq!(root.query(&client, |here, it| here[it]), Ok(1));
}

#[test]
fn handle_of_another_processor_is_rejected() {
    thread_local! {
        static STASH: std::cell::Cell<Option<Gc<u32>>> = const { std::cell::Cell::new(None) };
    }
    let system = system(1);
    let client = system.client();
    let one = client.create(|_| 1u32);
    one.query(&client, |_, it| STASH.set(Some(it))).unwrap();
    let other = client.create(|_| 2u32);
    // With one worker, both calls run on one thread: so a handle could escape in thread-local data.
    let seen = other.query(&client, |here, _| STASH.get().map(|gc| here[gc]));
    assert!(matches!(seen, Err(Error::Failed { .. })), "{seen:?}");
}

#[test]
fn task_of_another_runtime_waits_without_a_deadlock_report() {
    let own = Runtime::builder().workers(1).build().unwrap();
    let system = System::new(Runtime::builder().workers(1).build().unwrap());
    let client = system.client();
    let number = client.create(|_| 5u32);
    let (start, started) = std::sync::mpsc::channel::<()>();
    // The processor is busy until the task below has waited for it.
    number.command(&client, move |_, _| {
        let _ = started.recv_timeout(Duration::from_secs(1));
    });
    let result = own.run(move || {
        let result = number.query(&system.client(), |here, me| here[me]);
        drop(start);
        result
    });
    assert_eq!(result.unwrap().unwrap(), 5);
}

#[test]
fn condition_that_never_holds_is_named_in_the_report() {
    let runtime = Arc::new(Runtime::builder().workers(1).build().unwrap());
    let system = System::new(runtime.clone());
    let why = runtime.run(move || {
        let client = system.client();
        let number = client.create(|_| 5u32);
        let reserved =
            client.reserve_when(&number, |number| number.query(|here, me| here[me] == 6));
        reserved.map(drop)
    });
    let text = why.unwrap_err().to_string();
    let event = "waits for a change of the processors in the condition of `reserve_when`";
    assert!(text.contains(event) && !text.contains("stream"), "{text}");
}
