//! Items that move between two maps: transactional maps, maps behind one lock, and concurrent maps.
//!
//! Each subject runs in a separate process. A subject that loses an item fails.

use crate::Bench;
use crate::apart;
use crate::lap::{self, xorshift};
use crate::round::Measured;
use crate::session::Session;
use clap::ValueEnum;
use corebeat_stm::{TMap, atomically};
use dashmap::DashMap;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

pub(crate) const BENCHES: [Bench; 1] = [Bench {
    name: "stm.map",
    summary: "time that a thread takes to move one of 4,096 items between two maps",
    peers: &["mutex", "dashmap, not atomic"],
    tools: &[],
    cases: apart::thread_cases,
    run,
}];

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Subject {
    Corebeat,
    Mutex,
    #[value(name = "dashmap, not atomic")]
    Dashmap,
}

fn run(session: &Session) -> Result<(), String> {
    let (items, operations) = if session.quick { (1 << 5, 20) } else { (1 << 12, 50_000) };
    apart::measure_threads(
        session,
        BENCHES[0].name,
        "ns/move",
        |_| true,
        |subject, count| -> Result<Measured, String> {
            let laps = lap::LapOptions::new(session, count, operations);
            apart::value(apart::command(session, "stm-map", &Options { subject, items, laps })?)
        },
    )
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    subject: Subject,
    items: u64,
    laps: lap::LapOptions,
}

/// The main function of the child.
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    match options.subject {
        Subject::Corebeat => work::<[TMap<u64, u64>; 2]>(options),
        Subject::Mutex => work::<Mutex<[HashMap<u64, u64>; 2]>>(options),
        Subject::Dashmap => work::<[DashMap<u64, u64>; 2]>(options),
    }
}

fn work<M: Maps>(options: &Options) -> Result<(f64, u64), String> {
    let maps = M::default();
    (0..options.items).for_each(|key| maps.insert(key));
    let (laps, time) = options.laps.run(|number, lap| {
        let mut state = 0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1);
        while lap.begins() {
            for _ in 0..options.laps.operations {
                maps.flip(xorshift(&mut state) % options.items);
            }
            lap.ends();
        }
    });
    let count = maps.len();
    if count != options.items {
        return Err(format!("the maps contain {count} items instead of {}", options.items));
    }
    Ok((options.laps.ns(laps, time), count))
}

/// Two maps. Each key is in one of them.
trait Maps: Default + Sync {
    /// Inserts a key into the first map.
    fn insert(&self, key: u64);
    /// Moves a key from one map to the other one.
    fn flip(&self, key: u64);
    /// Number of keys in both maps.
    fn len(&self) -> u64;
}

impl Maps for [TMap<u64, u64>; 2] {
    fn insert(&self, key: u64) {
        atomically(|tx| self[0].insert(tx, key, key));
    }

    fn flip(&self, key: u64) {
        atomically(|tx| match self[0].remove(tx, &key)? {
            Some(value) => self[1].insert(tx, key, value),
            None => match self[1].remove(tx, &key)? {
                Some(value) => self[0].insert(tx, key, value),
                None => Ok(None),
            },
        });
    }

    fn len(&self) -> u64 {
        atomically(|tx| Ok((self[0].len(tx)? + self[1].len(tx)?) as u64))
    }
}

impl Maps for Mutex<[HashMap<u64, u64>; 2]> {
    fn insert(&self, key: u64) {
        self.lock().unwrap_or_else(PoisonError::into_inner)[0].insert(key, key);
    }

    fn flip(&self, key: u64) {
        let [one, other] = &mut *self.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = one.remove(&key) {
            other.insert(key, value);
        } else if let Some(value) = other.remove(&key) {
            one.insert(key, value);
        }
    }

    fn len(&self) -> u64 {
        let maps = self.lock().unwrap_or_else(PoisonError::into_inner);
        maps.iter().map(|map| map.len() as u64).sum()
    }
}

/// During a move a key is in neither map, so another thread may not find the key.
impl Maps for [DashMap<u64, u64>; 2] {
    fn insert(&self, key: u64) {
        self[0].insert(key, key);
    }

    fn flip(&self, key: u64) {
        if let Some((_, value)) = self[0].remove(&key) {
            self[1].insert(key, value);
        } else if let Some((_, value)) = self[1].remove(&key) {
            self[0].insert(key, value);
        }
    }

    fn len(&self) -> u64 {
        self.iter().map(|map| map.len() as u64).sum()
    }
}
