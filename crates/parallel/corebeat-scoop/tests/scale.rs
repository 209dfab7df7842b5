//! Large numbers of short-lived processors do not leak, and of waiting clients cost little.
//!
//! `COREBEAT_SOAK=1 cargo test --release -p corebeat-scoop --test scale` creates a million.

use corebeat_lpel::{Runtime, spawn};
use corebeat_scoop::*;
use std::env;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum growth of memory in the second half: the allocator and the collector keep some.
const GROWTH_BYTES_MAX: u64 = 24 << 20;

#[derive(Trace)]
struct Node {
    next: Option<Link<Node>>,
}

/// Held by each test: one of them measures the memory of the process.
static ALONE: Mutex<()> = Mutex::new(());

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

#[test]
fn short_lived_cycles_of_processors_do_not_leak() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let circles = if env::var_os("COREBEAT_SOAK").is_some() { 250_000 } else { 2_500 };
    let system = System::new(Runtime::builder().workers(2).build().unwrap());
    let client = system.client();
    let mut most = [0; 2];
    for n in 0..circles {
        let ring: Vec<_> = (0..4).map(|_| client.create(|_| Node { next: None })).collect();
        for (from, to) in ring.iter().zip(ring.iter().cycle().skip(1)) {
            let to = to.clone();
            from.command(&client, move |here, node| here[node].next = Some(here.link(&to)));
        }
        // Bounds the number of pending calls.
        ring[n % 4].query(&client, |_, _| ()).unwrap();
        if n % 50 == 0 {
            let half = &mut most[2 * n / circles];
            *half = resident_bytes().max(*half);
        }
    }
    let [first, second] = most;
    println!(
        "{} processors: at most {first} bytes in the first half, {second} in the second",
        4 * circles
    );
    assert!(
        second < first + GROWTH_BYTES_MAX,
        "{first} bytes in the first half, {second} in the second"
    );
    assert!(system.collected().is_some(), "the number of processors triggers collections");
    while system.collect().processors > 0 {}
    assert_eq!(system.processors(), 0);
}

#[test]
fn many_clients_wait_for_one_processor() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // The search for cycles visits each client once, not once for each later client: with the
    // third power of this number, the test would take minutes.
    const CLIENTS: u64 = 2_000;
    let runtime = Arc::new(Runtime::builder().workers(2).build().unwrap());
    let system = System::new(runtime.clone());
    let client = system.client();
    let [count, other] = [0, 0].map(|start| client.create(move |_| start));
    let (from, to) = (system, count.clone());
    runtime
        .run(move || {
            for _ in 0..CLIENTS {
                let (system, count, other) = (from.clone(), to.clone(), other.clone());
                spawn(move || {
                    let client = system.client();
                    // Only a client with another reservation searches.
                    let _other = client.reserve(&other);
                    count.query(&client, |here, n| here[n] += 1).unwrap();
                });
            }
        })
        .unwrap();
    assert_eq!(count.query(&client, |here, n| here[n]).unwrap(), CLIENTS);
}
