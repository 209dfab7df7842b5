//! Points are grouped around centres, which move to the mean of their groups. Transactions are
//! short: each one adds a point to a group.

use corebeat_stm::{TCell, atomically};
use fastrand::Rng;
use std::array;
use std::thread;
use std::time::{Duration, Instant};

const POINTS: usize = 4_000;
const CENTRES: usize = 12;
const ROUNDS: usize = 5;

/// Whole numbers, so that sums do not depend on their order.
type Point = [i64; 3];

/// The number and the sum of the points in a group.
struct Group<N> {
    count: N,
    sum: [N; 3],
}

pub(crate) fn run(threads: usize, times: usize) -> Duration {
    let mut random = Rng::with_seed(1);
    let points: Vec<Point> =
        (0..POINTS * times).map(|_| array::from_fn(|_| random.usize(0..1 << 20) as i64)).collect();
    let first: Vec<Point> = points[..CENTRES].to_vec();
    let (mut centres, mut expected) = (first.clone(), first);
    let mut time = Duration::ZERO;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        centres = with_threads(&points, &centres, threads);
        time += begin.elapsed();
        expected = sequential(&points, &expected);
        assert_eq!(centres, expected);
    }
    time
}

fn nearest(point: &Point, centres: &[Point]) -> usize {
    let distance =
        |centre: &Point| point.iter().zip(centre).map(|(a, b)| (a - b).pow(2)).sum::<i64>();
    (0..centres.len()).min_by_key(|&at| distance(&centres[at])).expect("there are centres")
}

fn mean(group: &Group<i64>, old: &Point) -> Point {
    if group.count == 0 { *old } else { group.sum.map(|sum| sum / group.count) }
}

fn with_threads(points: &[Point], centres: &[Point], threads: usize) -> Vec<Point> {
    let group = |_| Group { count: TCell::new(0i64), sum: array::from_fn(|_| TCell::new(0i64)) };
    let groups: Vec<_> = (0..CENTRES).map(group).collect();
    thread::scope(|scope| {
        for part in points.chunks(points.len().div_ceil(threads)) {
            let groups = &groups;
            scope.spawn(move || {
                for point in part {
                    let group = &groups[nearest(point, centres)];
                    atomically(|tx| {
                        tx.update(&group.count, |count| count + 1)?;
                        for (sum, part) in group.sum.iter().zip(point) {
                            tx.update(sum, |sum| sum + part)?;
                        }
                        Ok(())
                    });
                }
            });
        }
    });
    let plain = |group: Group<TCell<i64>>| Group {
        count: group.count.into_inner(),
        sum: group.sum.map(TCell::into_inner),
    };
    groups.into_iter().zip(centres).map(|(group, old)| mean(&plain(group), old)).collect()
}

fn sequential(points: &[Point], centres: &[Point]) -> Vec<Point> {
    let mut groups: Vec<_> = (0..CENTRES).map(|_| Group { count: 0, sum: [0; 3] }).collect();
    for point in points {
        let group = &mut groups[nearest(point, centres)];
        group.count += 1;
        group.sum.iter_mut().zip(point).for_each(|(sum, part)| *sum += part);
    }
    groups.iter().zip(centres).map(|(group, old)| mean(group, old)).collect()
}
