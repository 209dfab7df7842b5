//! Model of a thread that waits in a system call, and of threads that unpark it.

use super::check;
use crate::parking::Parking;
use corebeat_sync::atomic::{AtomicBool, Ordering};
use corebeat_sync::{Arc, Condvar, Mutex, fault, thread};

/// A bell as that of an interest set: each ring ends one wait.
struct Bell {
    is_rung: Mutex<bool>,
    rings: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.is_rung.lock().unwrap() = true;
        self.rings.notify_one();
    }

    fn wait(&self) {
        let mut is_rung = self.is_rung.lock().unwrap();
        while !*is_rung {
            is_rung = self.rings.wait(is_rung).unwrap();
        }
        *is_rung = false;
    }
}

/// Two threads post one piece of news each, and unpark the waiting thread, which finds both.
#[test]
fn loom_parked_thread_misses_no_news() {
    check(|| {
        let parking = Arc::new(Parking::new());
        let bell = Arc::new(Bell { is_rung: Mutex::new(false), rings: Condvar::new() });
        let news = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let posters = [0, 1].map(|n| {
            let (parking, bell, news) = (parking.clone(), bell.clone(), news.clone());
            thread::spawn(move || {
                // Relaxed: the parking orders the news.
                news[n].store(true, Ordering::Relaxed);
                if !fault::omits("unpark") {
                    parking.unpark(|| bell.ring());
                }
            })
        });
        while !news.iter().all(|news| news.load(Ordering::Relaxed)) {
            parking.park(None, |time| {
                if time.is_none() {
                    bell.wait();
                }
            });
        }
        posters.into_iter().for_each(|poster| poster.join().unwrap());
    });
}

#[test]
fn loom_parking_faults_are_detected() {
    let model = "parking::loom_parked_thread_misses_no_news";
    fault::assert_noticed(&[
        (model, "step unpark"),
        (model, "release parking.rs"),
        (model, "acquire parking.rs"),
    ]);
}
