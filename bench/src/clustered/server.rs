//! What a small server has in common for all its requests: how many there were, and pages that it keeps.

use super::{Options, Subject, report};
use crate::lap;
use corebeat_clustered::{AdaptiveCounter, AdaptiveMap, Counter, Map, event};
use dashmap::DashMap;
use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

/// So many pages there are.
const PAGES: u32 = 4096;
/// One request in so many changes a page.
const CHANGE: u64 = 64;
/// Words of a page.
const WORDS: usize = 32;

/// All words of a page are the same: whoever reads a page that is not whole sees it.
type Page = Arc<[u64; WORDS]>;

pub(super) fn main(options: &Options) -> Result<ExitCode, String> {
    match options.subject {
        Subject::Corebeat => serve::<Clustered>(options),
        Subject::Adaptive => serve::<Adaptive>(options),
        Subject::Mutex => serve::<Plain<Mutex<HashMap<u32, Page>>>>(options),
        Subject::RwLock => serve::<Plain<RwLock<HashMap<u32, Page>>>>(options),
        Subject::Dashmap => serve::<Plain<DashMap<u32, Page>>>(options),
        Subject::Papaya => serve::<Plain<papaya::HashMap<u32, Page>>>(options),
        _ => Err("it does other work".into()),
    }
}

fn serve<S: Store>(options: &Options) -> Result<ExitCode, String> {
    let store = S::default();
    (0..PAGES).for_each(|id| store.put(id, Arc::new([u64::from(id); WORDS])));
    let wrong = AtomicU64::new(0);
    let (laps, time) = lap::run(options.threads, Duration::from_millis(options.least_ms), |number, lap| {
        let mut random = number as u64 + 1;
        let mut wrongs = 0;
        while lap.begins() {
            for _ in 0..options.operations {
                // xorshift: Marsaglia, 2003.
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let id = (random >> 32) as u32 % PAGES;
                store.count();
                if random.is_multiple_of(CHANGE) {
                    store.put(id, Arc::new([random << 12 | u64::from(id); WORDS]));
                } else if !store.read(id, |page| is_whole(id, page)) {
                    wrongs += 1;
                }
            }
            lap.ends();
        }
        wrong.fetch_add(wrongs, Ordering::Relaxed);
    });
    let (is, expected) = (store.counted(), laps * options.operations * options.threads as u64);
    match (is == expected, wrong.into_inner()) {
        (true, 0) => Ok(report(options, laps, time, 1)),
        (_, wrong) => {
            Err(format!("it counted {is}, not {expected}; {wrong} pages were missing or not whole"))
        }
    }
}

/// To answer is to go through the page.
fn is_whole(id: u32, page: &[u64; WORDS]) -> bool {
    let all = page.iter().fold(0, |sum, word| sum | (word ^ page[0]));
    all == 0 && page[0] as u32 % PAGES == id
}

trait Store: Default + Sync {
    fn count(&self);
    fn counted(&self) -> u64;
    fn read(&self, id: u32, answer: impl FnOnce(&[u64; WORDS]) -> bool) -> bool;
    fn put(&self, id: u32, page: Page);
}

#[derive(Default)]
struct Clustered {
    requests: Counter,
    pages: Map<u32, Page>,
}

impl Store for Clustered {
    #[inline(always)]
    fn count(&self) {
        self.requests.add(1);
    }

    fn counted(&self) -> u64 {
        self.requests.value() as u64
    }

    #[inline(always)]
    fn read(&self, id: u32, answer: impl FnOnce(&[u64; WORDS]) -> bool) -> bool {
        event(|event| self.pages.get(event, &id).is_some_and(|page| answer(page)))
    }

    #[inline(always)]
    fn put(&self, id: u32, page: Page) {
        self.pages.insert(id, page);
    }
}

#[derive(Default)]
struct Adaptive {
    requests: AdaptiveCounter,
    pages: AdaptiveMap<u32, Page>,
}

impl Store for Adaptive {
    #[inline(always)]
    fn count(&self) {
        self.requests.add(1);
    }

    fn counted(&self) -> u64 {
        self.requests.value() as u64
    }

    #[inline(always)]
    fn read(&self, id: u32, answer: impl FnOnce(&[u64; WORDS]) -> bool) -> bool {
        self.pages.get(&id).is_some_and(|page| answer(&page))
    }

    #[inline(always)]
    fn put(&self, id: u32, page: Page) {
        self.pages.insert(id, page);
    }
}

/// An atomic number, and a map that is there to be had.
#[derive(Default)]
struct Plain<M> {
    requests: AtomicU64,
    pages: M,
}

trait Pages: Default + Sync {
    fn read(&self, id: u32, answer: impl FnOnce(&[u64; WORDS]) -> bool) -> bool;
    fn put(&self, id: u32, page: Page);
}

impl<M: Pages> Store for Plain<M> {
    #[inline(always)]
    fn count(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    fn counted(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn read(&self, id: u32, answer: impl FnOnce(&[u64; WORDS]) -> bool) -> bool {
        self.pages.read(id, answer)
    }

    #[inline(always)]
    fn put(&self, id: u32, page: Page) {
        self.pages.put(id, page);
    }
}

impl Pages for Mutex<HashMap<u32, Page>> {
    fn read(&self, id: u32, answer: impl FnOnce(&[u64; WORDS]) -> bool) -> bool {
        self.lock().expect("nobody panics there").get(&id).is_some_and(|page| answer(page))
    }

    fn put(&self, id: u32, page: Page) {
        self.lock().expect("nobody panics there").insert(id, page);
    }
}

impl Pages for RwLock<HashMap<u32, Page>> {
    fn read(&self, id: u32, answer: impl FnOnce(&[u64; WORDS]) -> bool) -> bool {
        RwLock::read(self).expect("nobody panics there").get(&id).is_some_and(|page| answer(page))
    }

    fn put(&self, id: u32, page: Page) {
        self.write().expect("nobody panics there").insert(id, page);
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
        self.pin().get(&id).is_some_and(|page| answer(page))
    }

    fn put(&self, id: u32, page: Page) {
        self.pin().insert(id, page);
    }
}
