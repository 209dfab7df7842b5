//! Children of fork: they have none of the threads of their parent, but its objects.

#![cfg(not(miri))]

use corebeat_clustered::*;
use corebeat_test_group::{SetOnDrop, in_child};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

/// Forks while other threads begin, use objects in all ways that change shared state, and end.
#[test]
fn child_uses_the_objects_of_its_parent_whatever_other_threads_did() {
    const FORKS: usize = 200;
    let (counter, by_cpu) = (Counter::<Thread>::new(), Counter::<Cpu>::new());
    let (ids, times) = (IdGenerator::<Thread>::new(), Histogram::<Thread>::new());
    let (link, owner) = (Link::new(0), Owner::new(0));
    let use_all = || {
        counter.add(1);
        by_cpu.add(1);
        ids.id();
        times.record(3);
        link.replace(1);
        drop(owner.share());
        let mine = Counter::<Thread>::new();
        mine.add(1);
        reclaim();
        mine.value() == 1
    };
    let values = || [counter.value(), by_cpu.value(), times.read().count() as i64];
    let fork = || {
        let before = values();
        in_child(|| {
            // An addition of another thread is in the child or not.
            let has_all = values().iter().zip(before).all(|(now, before)| *now >= before);
            let inherited = values();
            has_all && use_all() && values() == inherited.map(|value| value + 1)
        })
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = SetOnDrop(&is_over);
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    assert!(thread::scope(|scope| scope.spawn(use_all).join().unwrap()));
                }
            });
        }
        // With a thread that is registered, and with threads that are not.
        let by_others = || thread::scope(|scope| scope.spawn(fork).join().unwrap_or(false));
        let failed = (0..FORKS).find(|n| !if n % 2 == 0 { fork() } else { by_others() });
        assert_eq!(failed, None, "number of the fork that failed");
    });
}

/// The first miss reports that it runs, and waits.
struct Waits {
    is_first: AtomicBool,
    runs: Sender<()>,
    may_end: Mutex<Receiver<()>>,
}

impl Root for Waits {
    type Rep = AtomicUsize;

    fn miss(&self, miss: Miss<'_, AtomicUsize>) -> Chosen<AtomicUsize> {
        if self.is_first.swap(false, Ordering::SeqCst) {
            self.runs.send(()).unwrap();
            // An error is the end of a test that failed.
            let _ = self.may_end.lock().unwrap().recv();
        }
        miss.one_for_all(|| AtomicUsize::new(0))
    }
}

#[test]
fn other_places_get_representatives_during_a_miss() {
    let ((runs, is_running), (end, may_end)) = (channel(), channel());
    let root = Waits { is_first: AtomicBool::new(true), runs, may_end: Mutex::new(may_end) };
    let object: Clustered<Waits> = Clustered::new(root);
    let add = || object.here().fetch_add(1, Ordering::SeqCst);
    thread::scope(|scope| {
        let (end, other) = (end, scope.spawn(add));
        is_running.recv().unwrap();
        assert!(in_child(|| add() == 0 && add() == 1), "the child has no other thread");
        assert_eq!(add(), 0);
        end.send(()).unwrap();
        // Its own choice was outdated.
        assert_eq!(other.join().unwrap(), 1);
    });
    assert_eq!(object.fold(0, |reps, _| reps + 1), 1);
}

/// Counts its live instances.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn child_keeps_no_value_for_sections_of_threads_that_it_does_not_have() {
    let alive = Arc::new(AtomicUsize::new(1));
    let link = Link::new(Counted(alive.clone()));
    let ((runs, is_running), (end, may_end)) = (channel(), channel());
    thread::scope(|scope| {
        let (end, link) = (end, &link);
        scope.spawn(move || {
            read_section(|guard| {
                assert!(link.get(guard).is_some());
                runs.send(()).unwrap();
                // An error is the end of a test that failed.
                let _ = may_end.recv();
            });
        });
        is_running.recv().unwrap();
        let destroy = || {
            link.destroy();
            reclaim();
            alive.load(Ordering::SeqCst)
        };
        // A section of the thread that forks lasts in the child.
        let is_kept = || read_section(|_| in_child(|| destroy() == 1));
        assert!(is_kept() && in_child(|| destroy() == 0));
        assert_eq!(destroy(), 1);
        end.send(()).unwrap();
    });
}
