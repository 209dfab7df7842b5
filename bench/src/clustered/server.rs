//! The shared state of a small server: a count of requests, and a cache of pages.

use super::{Count, Options, Subject};
use crate::lap::xorshift;
use corebeat_clustered::{AdaptiveCounter, AdaptiveMap, Counter, Map, read_section};
use dashmap::DashMap;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// Number of pages.
const PAGES: u32 = 4096;
/// One of this many requests changes a page.
const CHANGE: u64 = 64;
/// Words of a page.
const WORDS: usize = 32;

/// All words of a page are equal, so that a torn read is detected. Maps contain the pages
/// themselves, which is the fastest way for most of them; only an [`AdaptiveMap`], which clones
/// values, contains references.
type Page = [u64; WORDS];

/// The shared state of a server: a count of requests, and pages.
#[derive(Default)]
struct Store<C, P> {
    requests: C,
    pages: P,
}

pub(super) fn main(options: &Options) -> Result<(f64, u64), String> {
    match options.subject {
        Subject::Corebeat => serve::<Counter, Map<u32, Page>>(options),
        Subject::Adaptive => serve::<AdaptiveCounter, AdaptiveMap<u32, Arc<Page>>>(options),
        Subject::Mutex => serve::<AtomicU64, Mutex<HashMap<u32, Page>>>(options),
        Subject::RwLock => serve::<AtomicU64, RwLock<HashMap<u32, Page>>>(options),
        Subject::Dashmap => serve::<AtomicU64, DashMap<u32, Page>>(options),
        Subject::Papaya => serve::<AtomicU64, papaya::HashMap<u32, Page>>(options),
        _ => Err("this subject does not support this work".into()),
    }
}

fn serve<C: Count, P: Pages>(options: &Options) -> Result<(f64, u64), String> {
    let store = Store::<C, P>::default();
    (0..PAGES).for_each(|id| store.pages.put(id, [u64::from(id); WORDS]));
    let wrong = AtomicU64::new(0);
    let (laps, time) = options.laps.run(|number, lap| {
        let mut random = number as u64 + 1;
        let mut wrongs = 0;
        while lap.begins() {
            for _ in 0..options.laps.operations {
                let id = (xorshift(&mut random) >> 32) as u32 % PAGES;
                store.requests.add();
                if random.is_multiple_of(CHANGE) {
                    store.pages.put(id, [random << 12 | u64::from(id); WORDS]);
                } else if !store.pages.read(id, |page| is_whole(id, page)) {
                    wrongs += 1;
                }
            }
            lap.ends();
        }
        wrong.fetch_add(wrongs, Ordering::Relaxed);
    });
    let (counted, expected) =
        (store.requests.sum(), laps * options.laps.operations * options.laps.threads as u64);
    match (counted == expected, wrong.into_inner()) {
        (true, 0) => Ok((options.laps.ns(laps, time), 1)),
        (_, wrong) => Err(format!(
            "the subject counted {counted} requests instead of {expected}; {wrong} pages were missing or torn"
        )),
    }
}

/// Whether the words of a page are equal and belong to `id`. The answer to a request reads all
/// words.
fn is_whole(id: u32, page: &[u64; WORDS]) -> bool {
    let all = page.iter().fold(0, |sum, word| sum | (word ^ page[0]));
    all == 0 && page[0] as u32 % PAGES == id
}

trait Pages: Default + Sync {
    fn read(&self, id: u32, answer: impl FnOnce(&[u64; WORDS]) -> bool) -> bool;
    fn put(&self, id: u32, page: Page);
}

impl Pages for Map<u32, Page> {
    #[inline(always)]
    fn read(&self, id: u32, answer: impl FnOnce(&[u64; WORDS]) -> bool) -> bool {
        read_section(|guard| self.get(guard, &id).is_some_and(answer))
    }

    #[inline(always)]
    fn put(&self, id: u32, page: Page) {
        self.insert(id, page);
    }
}

impl Pages for AdaptiveMap<u32, Arc<Page>> {
    #[inline(always)]
    fn read(&self, id: u32, answer: impl FnOnce(&[u64; WORDS]) -> bool) -> bool {
        self.get(&id).is_some_and(|page| answer(&page))
    }

    #[inline(always)]
    fn put(&self, id: u32, page: Page) {
        self.insert(id, Arc::new(page));
    }
}

impl Count for AdaptiveCounter {
    #[inline(always)]
    fn add(&self) {
        AdaptiveCounter::add(self, 1);
    }

    fn sum(&self) -> u64 {
        self.value() as u64
    }
}

impl Pages for Mutex<HashMap<u32, Page>> {
    fn read(&self, id: u32, answer: impl FnOnce(&[u64; WORDS]) -> bool) -> bool {
        self.lock().expect("no holder of the lock panics").get(&id).is_some_and(answer)
    }

    fn put(&self, id: u32, page: Page) {
        self.lock().expect("no holder of the lock panics").insert(id, page);
    }
}

impl Pages for RwLock<HashMap<u32, Page>> {
    fn read(&self, id: u32, answer: impl FnOnce(&[u64; WORDS]) -> bool) -> bool {
        RwLock::read(self).expect("no holder of the lock panics").get(&id).is_some_and(answer)
    }

    fn put(&self, id: u32, page: Page) {
        self.write().expect("no holder of the lock panics").insert(id, page);
    }
}

impl Pages for DashMap<u32, Page> {
    fn read(&self, id: u32, answer: impl FnOnce(&[u64; WORDS]) -> bool) -> bool {
        self.get(&id).is_some_and(|page| answer(&page))
    }

    fn put(&self, id: u32, page: Page) {
        self.insert(id, page);
    }
}

impl Pages for papaya::HashMap<u32, Page> {
    fn read(&self, id: u32, answer: impl FnOnce(&[u64; WORDS]) -> bool) -> bool {
        self.pin().get(&id).is_some_and(answer)
    }

    fn put(&self, id: u32, page: Page) {
        self.pin().insert(id, page);
    }
}
