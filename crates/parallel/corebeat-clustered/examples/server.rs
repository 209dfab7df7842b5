//! The request counter and the page cache of a small server, with clustered objects and without:
//! `cargo run --release -p corebeat-clustered --example server -- [THREADS [REQUESTS]]`.
//!
//! Each thread takes requests (from its own list, because the subject is the cache and not the
//! network), counts them, and answers from the cache; one request in 64 replaces its page. The
//! answers are checked.

use corebeat_clustered::{Counter, Map, read_section};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};
use std::time::Instant;
use std::{env, process, thread};

const PAGES: u32 = 4096;
const REQUESTS: u64 = 2_000_000;
const THREADS_MAX: usize = 1024;
const ROUNDS: usize = 3;

/// A page contains its number and its version.
struct Page {
    text: String,
}

impl Page {
    fn make(number: u32, version: u64) -> Page {
        Page { text: format!("<p>{number}</p><p>{version}</p>") }
    }

    fn is(&self, number: u32) -> bool {
        let rest = self.text.strip_prefix("<p>").and_then(|rest| rest.strip_suffix("</p>"));
        rest.and_then(|rest| rest.split_once("</p><p>"))
            .is_some_and(|(first, _)| first.parse() == Ok(number))
    }
}

/// The shared state of all requests.
trait Shared: Default + Sync {
    fn count(&self);
    fn counted(&self) -> u64;
    /// Returns whether the page exists and is consistent.
    fn answer(&self, number: u32) -> bool;
    fn keep(&self, number: u32, version: u64);
}

#[derive(Default)]
struct Plain {
    requests: AtomicU64,
    pages: Mutex<HashMap<u32, Page>>,
}

impl Shared for Plain {
    fn count(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    fn counted(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    fn answer(&self, number: u32) -> bool {
        self.pages.lock().unwrap().get(&number).is_some_and(|page| page.is(number))
    }

    fn keep(&self, number: u32, version: u64) {
        let page = Page::make(number, version);
        self.pages.lock().unwrap().insert(number, page);
    }
}

#[derive(Default)]
struct Clustered {
    requests: Counter,
    pages: Map<u32, Page>,
}

impl Shared for Clustered {
    fn count(&self) {
        self.requests.add(1);
    }

    fn counted(&self) -> u64 {
        self.requests.value() as u64
    }

    fn answer(&self, number: u32) -> bool {
        read_section(|guard| self.pages.get(guard, &number).is_some_and(|page| page.is(number)))
    }

    fn keep(&self, number: u32, version: u64) {
        self.pages.insert(number, Page::make(number, version));
    }
}

/// Runs `threads` threads with `requests` requests each. Returns the total requests per second.
fn serve<S: Shared>(threads: usize, requests: u64) -> f64 {
    let shared = S::default();
    (0..PAGES).for_each(|number| shared.keep(number, 0));
    let barrier = Barrier::new(threads + 1);
    let begin = thread::scope(|scope| {
        for thread in 0..threads as u64 {
            let (shared, barrier) = (&shared, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for request in 0..requests {
                    // Knuth's multiplicative hash: distributes over the pages, equally in each run.
                    let mixed = (request * threads as u64 + thread)
                        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                        >> 32;
                    let number = mixed as u32 % PAGES;
                    shared.count();
                    if request % 64 == 0 {
                        shared.keep(number, request);
                    } else {
                        assert!(shared.answer(number), "page {number}");
                    }
                }
            });
        }
        barrier.wait();
        Instant::now()
    });
    let seconds = begin.elapsed().as_secs_f64();
    assert_eq!(shared.counted(), threads as u64 * requests);
    (threads as u64 * requests) as f64 / seconds
}

fn main() {
    let mut args = env::args().skip(1);
    let threads = args
        .next()
        .map_or(Ok(thread::available_parallelism().map_or(1, usize::from)), |n| n.parse());
    let requests = args.next().map_or(Ok(REQUESTS), |n| n.parse());
    let (Ok(threads @ 1..=THREADS_MAX), Ok(requests)) = (threads, requests) else {
        eprintln!("server [THREADS (1 to {THREADS_MAX}) [REQUESTS of each]]");
        process::exit(2);
    };
    println!("threads  clustered, requests/s  plain, requests/s  ratio");
    for threads in [1, threads] {
        // Alternating runs; the best of each.
        let rounds = (0..ROUNDS)
            .map(|_| [serve::<Clustered>(threads, requests), serve::<Plain>(threads, requests)]);
        let [clustered, plain] =
            rounds.fold([0.0; 2], |[a, b]: [f64; 2], [c, d]| [a.max(c), b.max(d)]);
        println!("{threads:7}  {clustered:21.0}  {plain:17.0}  {:5.2}", clustered / plain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_answers_every_request_clustered_and_plain() {
        // `serve` checks the answers and the count.
        assert!(serve::<Clustered>(3, 2_000) > 0.0);
        assert!(serve::<Plain>(3, 2_000) > 0.0);
    }
}
