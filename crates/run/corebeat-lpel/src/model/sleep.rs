//! A worker that sleeps, and others with news.

use super::{all_noticed, check, spawn};
use crate::sleep::Sleep;
use corebeat_sync::Arc;
use corebeat_sync::asymmetric::light;
use corebeat_sync::atomic::{AtomicBool, AtomicUsize, Ordering};

struct World {
    sleep: Sleep,
    /// How many move; at 0 nothing may.
    active: AtomicUsize,
    news: [AtomicBool; 2],
}

/// Two post news, one each, and the worker sleeps until it has seen both.
#[test]
fn loom_sleep_misses_no_news() {
    check(3, || {
        let world = Arc::new(World {
            sleep: Sleep::new(),
            active: AtomicUsize::new(1),
            news: [AtomicBool::new(false), AtomicBool::new(false)],
        });
        let posters = [0, 1].map(|n| {
            let world = world.clone();
            spawn(move || {
                world.news[n].store(true, Ordering::Release);
                light();
                world.sleep.rouse(|| {
                    world.active.fetch_add(1, Ordering::Relaxed);
                });
            })
        });
        world.sleep.settle();
        let mut seen = 0;
        let look = || world.news.iter().filter(|n| n.load(Ordering::Acquire)).count();
        while seen < 2 {
            world.sleep.begin();
            let found = look();
            if found > seen {
                seen = found;
                if !world.sleep.end() {
                    let before = world.active.fetch_sub(1, Ordering::Relaxed);
                    assert!(before > 1, "counted twice or never");
                }
                continue;
            }
            world.active.fetch_sub(1, Ordering::Relaxed);
            while !world.sleep.is_over() {
                world.sleep.wait(None);
            }
            assert!(world.active.load(Ordering::Relaxed) > 0, "moves, and is not counted");
        }
        for poster in posters {
            poster.join().unwrap();
        }
        assert_eq!(world.active.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn loom_sleep_faults_are_noticed() {
    let model = "sleep::loom_sleep_misses_no_news";
    // What `rouse` releases cannot be missed: waking the thread orders it as well.
    all_noticed(&[(model, "light sleep.rs"), (model, "heavy sleep.rs")]);
}
