//! Large numbers: processors that come and go leave nothing behind.
//!
//! `COREBEAT_SOAK=1 cargo test --release -p corebeat-scoop --test scale` makes a million.

use corebeat_lpel::Runtime;
use corebeat_scoop::*;
use std::env;

/// Memory may be so much larger in the second half than it was in the first, for what the allocator and the collector keep.
const GROWTH_BYTES_MAX: u64 = 24 << 20;

#[derive(Trace)]
struct Node {
    next: Option<Link<Node>>,
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

#[test]
fn processors_that_come_and_go_in_circles_leave_nothing_behind() {
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
        // So that calls do not pile up.
        ring[n % 4].query(&client, |_, _| ()).unwrap();
        if n % 50 == 0 {
            let half = &mut most[2 * n / circles];
            *half = resident_bytes().max(*half);
        }
    }
    let [first, second] = most;
    println!("{} processors: at most {first} bytes in the first half, {second} in the second", 4 * circles);
    assert!(second < first + GROWTH_BYTES_MAX, "{first} bytes in the first half, {second} in the second");
    assert!(system.collected().is_some(), "there were enough of them to be collected");
    while system.collect().processors > 0 {}
    assert_eq!(system.processors(), 0);
}
