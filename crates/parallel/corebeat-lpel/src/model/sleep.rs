//! Model of a sleeping worker, and threads that wake it.

use super::{assert_detected, check, spawn};
use crate::sleep::Sleep;
use corebeat_sync::Arc;
use corebeat_sync::asymmetric::light_fence;
use corebeat_sync::atomic::{AtomicBool, AtomicUsize, Ordering};

struct World {
    sleep: Sleep,
    /// Number of active threads. At 0, no thread may make progress.
    active: AtomicUsize,
    news: [AtomicBool; 2],
}

/// Two threads post one piece of work each. The worker sleeps until it has found both.
#[test]
fn loom_sleep_misses_no_news() {
    check(3, || {
        let world = Arc::new(World {
            sleep: Sleep::new(None),
            active: AtomicUsize::new(1),
            news: [AtomicBool::new(false), AtomicBool::new(false)],
        });
        let posters = [0, 1].map(|n| {
            let world = world.clone();
            spawn(move || {
                world.news[n].store(true, Ordering::Release);
                light_fence();
                world.sleep.wake(|| {
                    world.active.fetch_add(1, Ordering::Relaxed);
                });
            })
        });
        world.sleep.set_thread();
        let mut found = 0;
        let count_news = || world.news.iter().filter(|n| n.load(Ordering::Acquire)).count();
        while found < 2 {
            world.sleep.begin();
            let newly_found = count_news();
            if newly_found > found {
                found = newly_found;
                if !world.sleep.end() {
                    let before = world.active.fetch_sub(1, Ordering::Relaxed);
                    assert!(before > 1, "the wake-up was counted twice or never");
                }
                continue;
            }
            world.active.fetch_sub(1, Ordering::Relaxed);
            while !world.sleep.is_over() {
                world.sleep.wait(None);
            }
            assert!(
                world.active.load(Ordering::Relaxed) > 0,
                "the worker is awake, and was not counted"
            );
        }
        for poster in posters {
            poster.join().unwrap();
        }
        assert_eq!(world.active.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn loom_sleep_faults_are_detected() {
    let model = "sleep::loom_sleep_misses_no_news";
    // The release in `wake` is not listed, because unparking the thread orders it as well.
    assert_detected(&[(model, "light sleep.rs"), (model, "heavy sleep.rs")]);
}
