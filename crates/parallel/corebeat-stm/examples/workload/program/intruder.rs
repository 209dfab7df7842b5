//! Packets of many flows arrive in any order. A flow whose packets have all arrived is assembled
//! and searched for attacks. All threads use one queue and one map.

use corebeat_stm::{Abort, TCell, Tx, atomically};
use fastrand::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const FLOWS: usize = 800;
const PARTS_MAX: usize = 8;
const BUCKETS: usize = 64;
const ATTACK: &[u8] = b"attack";

#[derive(Clone)]
struct Packet {
    flow: usize,
    part: usize,
    parts: usize,
    bytes: Vec<u8>,
}

/// A list of packets: those that have not arrived, or those of incomplete flows in a bucket.
type List = TCell<Option<Arc<Node>>>;

struct Node {
    packet: Packet,
    next: List,
}

/// Processes this number of queues, one after the other.
pub(crate) fn run(threads: usize, times: usize) -> Duration {
    (0..times).map(|number| run_one(threads, number as u64)).sum()
}

fn run_one(threads: usize, number: u64) -> Duration {
    let mut random = Rng::with_seed(4 + number);
    let mut packets = Vec::new();
    let mut attacks = 0;
    for flow in 0..FLOWS {
        let mut bytes: Vec<u8> = (0..32).map(|_| random.usize(0..256) as u8).collect();
        if random.usize(0..10) == 0 {
            bytes.splice(13..19, ATTACK.iter().copied());
        }
        attacks += usize::from(is_attack(&bytes));
        let parts = 1 + random.usize(0..PARTS_MAX);
        let size = bytes.len().div_ceil(parts);
        let parts = bytes.len().div_ceil(size);
        let packet =
            |(part, bytes): (usize, &[u8])| Packet { flow, part, parts, bytes: bytes.to_vec() };
        packets.extend(bytes.chunks(size).enumerate().map(packet));
    }
    random.shuffle(&mut packets);
    let queue: List = packets
        .into_iter()
        .fold(TCell::new(None), |next, packet| TCell::new(Some(Arc::new(Node { packet, next }))));
    let buckets: Vec<List> = (0..BUCKETS).map(|_| TCell::new(None)).collect();
    let (flows, found) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let begin = Instant::now();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(packet) = atomically(|tx| pop(tx, &queue)) {
                    let bucket = &buckets[packet.flow % BUCKETS];
                    let Some(mut parts) = atomically(|tx| put(tx, bucket, &packet)) else {
                        continue;
                    };
                    parts.sort_by_key(|packet| packet.part);
                    let bytes: Vec<u8> =
                        parts.into_iter().flat_map(|packet| packet.bytes).collect();
                    flows.fetch_add(1, Ordering::Relaxed);
                    found.fetch_add(usize::from(is_attack(&bytes)), Ordering::Relaxed);
                }
            });
        }
    });
    let time = begin.elapsed();
    assert_eq!((flows.into_inner(), found.into_inner()), (FLOWS, attacks));
    assert!(buckets.into_iter().all(|bucket| bucket.into_inner().is_none()), "a packet is left");
    time
}

fn is_attack(bytes: &[u8]) -> bool {
    bytes.windows(ATTACK.len()).any(|window| window == ATTACK)
}

fn pop<'t>(tx: &mut Tx<'t, '_>, queue: &'t List) -> Result<Option<Packet>, Abort> {
    let Some(node) = tx.read(queue)? else { return Ok(None) };
    let rest = tx.share(&node.next)?;
    tx.write(queue, rest)?;
    Ok(Some(node.packet.clone()))
}

/// Adds a packet to its flow. If the flow is complete, removes and returns all its packets.
fn put<'t>(
    tx: &mut Tx<'t, '_>,
    bucket: &'t List,
    packet: &Packet,
) -> Result<Option<Vec<Packet>>, Abort> {
    let mut parts = vec![packet.clone()];
    let mut next = tx.read(bucket)?;
    while let Some(node) = next {
        if node.packet.flow == packet.flow {
            parts.push(node.packet.clone());
        }
        next = tx.read(&node.next)?;
    }
    if parts.len() < packet.parts {
        let next = TCell::new(tx.share(bucket)?);
        tx.write(bucket, Some(Arc::new(Node { packet: packet.clone(), next })))?;
        return Ok(None);
    }
    let mut at = bucket;
    while let Some(node) = tx.read(at)? {
        if node.packet.flow == packet.flow {
            let rest = tx.share(&node.next)?;
            tx.write(at, rest)?;
        } else {
            at = &node.next;
        }
    }
    Ok(Some(parts))
}
