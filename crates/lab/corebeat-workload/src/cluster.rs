//! The medians of a stream of points: k-median by local search, a batch at a time, as in Guha,
//! Meyerson, Mishra, Motwani and O'Callaghan, *Clustering Data Streams: Theory and Practice*
//! (2003), section 3. Each batch is reduced to k weighted medians. At the end, the medians of all
//! batches are reduced to k medians.
//!
//! A step of the search draws a point and computes the gain of each replacement of a median by this
//! point. One pass over the points evaluates all replacements, because the nearest and the second
//! nearest median of each point are stored: Schubert and Rousseeuw, *Fast and Eager k-Medoids
//! Clustering* (2021), section 4 (FastPAM1). Distances are sums of absolute differences of bytes,
//! so that all sums are integers and do not depend on the order of additions.
//!
//! Each thread evaluates its part of the points, publishes its sums, waits at a barrier, and adds
//! the sums of all threads: one barrier per step, where PARSEC's streamcluster has four or more.
//! Sums are published in two alternating slots. A thread that writes a slot again has passed the
//! barrier after the last write, so all threads have read the slot.
//!
//! ```text
//!  thread 0   evaluate | publish [0] |=| add all | evaluate | publish [1] |=| add all ...
//!  thread 1   evaluate     | publish |=| add all | evaluate | publish     |=| ...
//! ```

use crate::barrier::Barrier;
use crate::random::{below, mix, number};
use crate::{Size, Tally, WorkloadError, heartbeat, team};
use std::ops::Range;
use std::sync::{Mutex, RwLock};

/// Number of bytes of a point.
const DIMENSIONS: usize = 128;
/// Number of medians of a batch.
const MEDIANS: usize = 16;
/// Number of points of a batch.
const BATCH: usize = 8192;
/// Number of points of the stream at full size.
const POINTS: usize = 600 * BATCH;
/// Number of points that are tried as a median per batch: 3 k ln k, as in PARSEC, rounded.
const CANDIDATES: u64 = 133;
const SEED: u64 = 0xc1_0573;

type Point = [u8; DIMENSIONS];

#[derive(Default, Clone)]
struct Batch {
    points: Vec<Point>,
    weights: Vec<u32>,
}

impl Batch {
    /// Returns the points `range` of the stream: bytes scattered around one of 24 centres.
    fn stream(range: Range<usize>) -> Batch {
        let point = |index: usize| {
            let centre: u64 = below(SEED, index as u64, 24).into();
            let mut point = [0; DIMENSIONS];
            for (word, bytes) in point.chunks_exact_mut(8).enumerate() {
                let centre = number(mix(SEED ^ centre), word as u64);
                let noise = number(SEED + 1, (index * DIMENSIONS / 8 + word) as u64);
                for (bit, byte) in bytes.iter_mut().enumerate() {
                    *byte = (centre.to_le_bytes()[bit] >> 1) + (noise.to_le_bytes()[bit] >> 1);
                }
            }
            point
        };
        Batch { weights: vec![1; range.len()], points: range.map(point).collect() }
    }

    fn append(&mut self, medians: &Medians, from: &Batch) {
        self.points.extend(medians.points.iter().map(|&p| from.points[p]));
        self.weights.extend(&medians.weights);
    }
}

/// Returns the sum of absolute differences, 16 bytes at a time: one instruction on most processors.
#[inline(always)]
fn distance(a: &Point, b: &Point) -> u32 {
    let part = |(a, b): (&[u8; 16], &[u8; 16])| -> u32 {
        a.iter().zip(b).map(|(a, b)| u32::from(a.abs_diff(*b))).sum()
    };
    a.as_chunks().0.iter().zip(b.as_chunks().0).map(part).sum()
}

/// The nearest and the second nearest median of a point, by place in [`Medians::points`].
#[derive(Clone, Copy)]
struct Nearest {
    first: usize,
    second: usize,
    first_distance: u32,
    second_distance: u32,
}

impl Nearest {
    fn of(point: &Point, batch: &Batch, medians: &[usize]) -> Nearest {
        let mut nearest =
            Nearest { first: 0, second: 0, first_distance: u32::MAX, second_distance: u32::MAX };
        for (place, &median) in medians.iter().enumerate() {
            nearest.update(place, distance(point, &batch.points[median]));
        }
        nearest
    }

    /// Considers one more median. Of equally near medians, the one in the lower place is nearer.
    fn update(&mut self, place: usize, distance: u32) {
        if (distance, place) < (self.first_distance, self.first) {
            (self.second, self.second_distance) = (self.first, self.first_distance);
            (self.first, self.first_distance) = (place, distance);
        } else if (distance, place) < (self.second_distance, self.second) {
            (self.second, self.second_distance) = (place, distance);
        }
    }
}

/// The result of the search.
#[derive(Debug, PartialEq)]
struct Medians {
    /// Indices into the points of the batch.
    points: Vec<usize>,
    /// Weight of the points to which each median is the nearest.
    weights: Vec<u32>,
    /// The sum of weight times distance to the nearest median.
    cost: i64,
}

/// Returns the `place`th of `k` initial medians, which are spread over the batch.
fn first_median(batch: &Batch, place: usize, k: usize) -> usize {
    place * batch.points.len() / k
}

/// Searches with the points `mine`. `add_up` replaces numbers by their sums over all threads. All
/// threads take the same decisions, because they have the same sums.
fn search(
    batch: &Batch,
    mine: Range<usize>,
    candidates: u64,
    add_up: &mut dyn FnMut(&mut [i64]),
) -> Medians {
    let k = MEDIANS.min(batch.points.len());
    let points = &batch.points[mine.clone()];
    let weight: Vec<i64> = batch.weights[mine].iter().map(|&w| w.into()).collect();
    let mut medians: Vec<usize> = (0..k).map(|place| first_median(batch, place, k)).collect();
    let mut nearest: Vec<Nearest> =
        points.iter().map(|p| Nearest::of(p, batch, &medians)).collect();
    let mut distances = vec![0; points.len()];
    // The cost of removing each median, for the points of this thread.
    let removal = |nearest: &[Nearest]| {
        let mut loss = vec![0; k];
        for (n, w) in nearest.iter().zip(&weight) {
            loss[n.first] += w * i64::from(n.second_distance - n.first_distance);
        }
        loss
    };
    let mut base = removal(&nearest);
    // The change of cost for each median that the candidate could replace.
    let mut change = vec![0; k];
    for step in 0..candidates {
        let candidate = below(SEED + 2, step, batch.points.len() as u32) as usize;
        if medians.contains(&candidate) {
            continue;
        }
        let target = &batch.points[candidate];
        change.copy_from_slice(&base);
        let mut gain = 0;
        for (((point, n), w), d) in points.iter().zip(&nearest).zip(&weight).zip(&mut distances) {
            *d = distance(point, target);
            if *d < n.first_distance {
                gain += w * i64::from(n.first_distance - *d);
                change[n.first] -= w * i64::from(n.second_distance - n.first_distance);
            } else if *d < n.second_distance {
                change[n.first] -= w * i64::from(n.second_distance - *d);
            }
        }
        change.iter_mut().for_each(|c| *c -= gain);
        add_up(&mut change);
        let (place, &best) =
            change.iter().enumerate().min_by_key(|(_, c)| **c).expect("k is at least 1");
        if best < 0 {
            medians[place] = candidate;
            for ((point, n), &d) in points.iter().zip(&mut nearest).zip(&distances) {
                if n.first == place || n.second == place {
                    *n = Nearest::of(point, batch, &medians);
                } else {
                    n.update(place, d);
                }
            }
            base = removal(&nearest);
        }
    }
    let mut sums = vec![0; k + 1];
    for (n, w) in nearest.iter().zip(&weight) {
        sums[n.first] += w;
        sums[k] += w * i64::from(n.first_distance);
    }
    add_up(&mut sums);
    let cost = sums.pop().expect("k + 1 sums");
    Medians { points: medians, weights: sums.into_iter().map(|w| w as u32).collect(), cost }
}

/// The same search by the textbook (Kaufman and Rousseeuw's PAM, 1987): one pass for each
/// replacement.
fn naive_search(batch: &Batch, candidates: u64) -> Medians {
    let k = MEDIANS.min(batch.points.len());
    let mut points: Vec<usize> = (0..k).map(|place| first_median(batch, place, k)).collect();
    let cost_with = |medians: &[usize], nearest: &[Nearest], place: usize| -> i64 {
        let target = &batch.points[medians[place]];
        let costs = batch.points.iter().zip(nearest).zip(&batch.weights).map(|((point, n), &w)| {
            let kept = if n.first == place { n.second_distance } else { n.first_distance };
            i64::from(w) * i64::from(kept.min(distance(point, target)))
        });
        costs.sum()
    };
    let nearest_of = |medians: &[usize]| -> Vec<Nearest> {
        batch.points.iter().map(|p| Nearest::of(p, batch, medians)).collect()
    };
    let mut nearest = nearest_of(&points);
    let mut cost = cost_of(batch, &points);
    for step in 0..candidates {
        let candidate = below(SEED + 2, step, batch.points.len() as u32) as usize;
        if points.contains(&candidate) {
            continue;
        }
        let (mut best, mut best_place) = (cost, None);
        for place in 0..k {
            let mut medians = points.clone();
            medians[place] = candidate;
            let cost = cost_with(&medians, &nearest, place);
            if cost < best {
                (best, best_place) = (cost, Some(place));
            }
        }
        if let Some(place) = best_place {
            points[place] = candidate;
            cost = best;
            nearest = nearest_of(&points);
        }
    }
    let mut weights = vec![0; k];
    for (n, w) in nearest.iter().zip(&batch.weights) {
        weights[n.first] += w;
    }
    Medians { points, weights, cost }
}

/// Returns the cost of any medians, computed from the points.
fn cost_of(batch: &Batch, medians: &[usize]) -> i64 {
    let costs = batch.points.iter().zip(&batch.weights).map(|(point, &w)| {
        let nearest = medians.iter().map(|&m| distance(point, &batch.points[m])).min();
        i64::from(w) * i64::from(nearest.unwrap_or(0))
    });
    costs.sum()
}

fn points(size: Size) -> usize {
    size.count(POINTS).max(256)
}

/// Returns the batches of the stream.
fn batches(size: Size) -> impl Iterator<Item = Range<usize>> {
    let points = points(size);
    (0..points).step_by(BATCH).map(move |start| start..points.min(start + BATCH))
}

fn tally(size: Size, batch: &Batch, medians: &Medians) -> Tally {
    let mut checksum = mix(medians.cost as u64);
    for (&median, &weight) in medians.points.iter().zip(&medians.weights) {
        for bytes in batch.points[median].as_chunks::<8>().0 {
            checksum = mix(checksum ^ u64::from_le_bytes(*bytes));
        }
        checksum = mix(checksum ^ u64::from(weight));
    }
    Tally { checksum, work: points(size) as u64 }
}

pub(crate) fn run<B: Barrier>(threads: usize, size: Size) -> Result<Tally, WorkloadError> {
    let barrier = B::new(threads);
    let shared = RwLock::new(Batch::default());
    let slot = || (0..threads).map(|_| RwLock::new(Vec::new())).collect::<Vec<RwLock<Vec<i64>>>>();
    let slots = [slot(), slot()];
    let result = Mutex::new(None);
    team::run_ranks("cluster", threads, |rank| {
        let mut current = 0;
        let mut add_up = |numbers: &mut [i64]| {
            let slots = &slots[current];
            current = 1 - current;
            {
                let mut mine = slots[rank].write().unwrap();
                mine.clear();
                mine.extend_from_slice(numbers);
            }
            barrier.wait();
            heartbeat::beat(1);
            numbers.fill(0);
            for slot in slots {
                for (sum, number) in numbers.iter_mut().zip(&*slot.read().unwrap()) {
                    *sum += number;
                }
            }
        };
        // Thread 0 provides a batch, and all threads search it. No thread holds the batch when the
        // next one is provided.
        let mut reduce = |provide: &mut dyn FnMut() -> Batch,
                          finish: &mut dyn FnMut(&Batch, Medians)| {
            if rank == 0 {
                *shared.write().unwrap() = provide();
            }
            barrier.wait();
            {
                let batch = shared.read().unwrap();
                let mine = team::share(rank, threads, batch.points.len());
                finish(&batch, search(&batch, mine, CANDIDATES, &mut add_up));
            }
            barrier.wait();
        };
        let mut retained = Batch::default();
        for range in batches(size) {
            reduce(&mut || Batch::stream(range.clone()), &mut |batch, medians| {
                if rank == 0 {
                    retained.append(&medians, batch);
                }
            });
        }
        reduce(&mut || std::mem::take(&mut retained), &mut |batch, medians| {
            if rank == 0 {
                *result.lock().unwrap() = Some(tally(size, batch, &medians));
            }
        });
    })?;
    Ok(result.into_inner().unwrap().expect("thread 0 stores the result"))
}

pub(crate) fn naive(size: Size) -> Tally {
    let mut retained = Batch::default();
    for range in batches(size) {
        let batch = Batch::stream(range);
        let medians = naive_search(&batch, CANDIDATES);
        retained.append(&medians, &batch);
    }
    let medians = naive_search(&retained, CANDIDATES);
    tally(size, &retained, &medians)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(batch: &Batch, candidates: u64) -> Medians {
        search(batch, 0..batch.points.len(), candidates, &mut |_| ())
    }

    #[test]
    fn search_cost_never_rises_and_is_that_of_its_medians() {
        let batch = Batch::stream(0..200);
        let mut last = i64::MAX;
        for candidates in 0..25 {
            let medians = alone(&batch, candidates);
            assert_eq!(medians.cost, cost_of(&batch, &medians.points));
            assert!(medians.cost <= last, "step {candidates}");
            last = medians.cost;
        }
        assert!(last < alone(&batch, 0).cost, "the search found no better medians");
    }

    #[test]
    fn search_equals_the_naive_search() {
        let mut batch = Batch::stream(0..150);
        batch.weights.iter_mut().enumerate().for_each(|(i, w)| *w = 1 + i as u32 % 7);
        assert_eq!(alone(&batch, 40), naive_search(&batch, 40));
    }

    #[test]
    fn search_weights_sum_to_those_of_the_batch() {
        let batch = Batch::stream(0..777);
        assert_eq!(alone(&batch, 20).weights.iter().sum::<u32>(), 777);
    }

    #[test]
    fn distance_is_a_metric_on_examples() {
        let [a, b, c] = [0, 1, 2].map(|i| Batch::stream(i..i + 1).points[0]);
        assert_eq!(distance(&a, &a), 0);
        assert_eq!(distance(&a, &b), distance(&b, &a));
        assert!(distance(&a, &c) <= distance(&a, &b) + distance(&b, &c));
        assert_eq!(distance(&[0; DIMENSIONS], &[255; DIMENSIONS]), 255 * DIMENSIONS as u32);
    }
}
