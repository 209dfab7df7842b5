//! Paths are laid through a maze and do not cross. Transactions are few and long, and read a large
//! part of the maze.

use corebeat_stm::{Abort, TCell, Tx, atomically, snapshot};
use fastrand::Rng;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SIDE: usize = 32;
const PATHS: usize = 24;
const WALL: u32 = u32::MAX;

/// Content of each field: empty, a wall, or the number of a path from 1.
type Maze = Vec<TCell<u32>>;

/// Lays paths through this number of mazes, one after the other.
pub(crate) fn run(threads: usize, times: usize) -> Duration {
    (0..times).map(|number| run_one(threads, number as u64)).sum()
}

fn run_one(threads: usize, number: u64) -> Duration {
    let mut random = Rng::with_seed(5 + number);
    let mut fields = vec![0; SIDE * SIDE];
    (0..SIDE * SIDE / 8).for_each(|_| fields[random.usize(0..SIDE * SIDE)] = WALL);
    let mut ends: Vec<usize> = (0..SIDE * SIDE).filter(|&field| fields[field] == 0).collect();
    random.shuffle(&mut ends);
    let ends: Vec<(usize, usize)> =
        ends.chunks(2).take(PATHS).map(|pair| (pair[0], pair[1])).collect();
    // No path crosses the end of another one.
    for (number, &(from, to)) in ends.iter().enumerate() {
        fields[from] = number as u32 + 1;
        fields[to] = number as u32 + 1;
    }
    let maze: Maze = fields.iter().map(|&field| TCell::new(field)).collect();
    let next = AtomicUsize::new(0);
    let begin = Instant::now();
    let laid: Vec<Vec<(usize, Vec<usize>)>> = thread::scope(|scope| {
        let lay = || {
            let mut laid = Vec::new();
            while let number = next.fetch_add(1, Ordering::Relaxed)
                && number < ends.len()
            {
                let (from, to) = ends[number];
                if let Some(path) = atomically(|tx| lay(tx, &maze, from, to)) {
                    laid.push((number, path));
                }
            }
            laid
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(lay)).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread lays paths")).collect()
    });
    let time = begin.elapsed();
    check(&fields, &maze, &ends, &laid.concat());
    time
}

fn neighbours(field: usize) -> impl Iterator<Item = usize> {
    let (x, y) = (field % SIDE, field / SIDE);
    let left = (x > 0).then(|| field - 1);
    let right = (x + 1 < SIDE).then(|| field + 1);
    let up = (y > 0).then(|| field - SIDE);
    let down = (y + 1 < SIDE).then(|| field + SIDE);
    [left, right, up, down].into_iter().flatten()
}

/// Lays the shortest path, if there is one, by a breadth-first search.
fn lay<'t>(
    tx: &mut Tx<'t, '_>,
    maze: &'t Maze,
    from: usize,
    to: usize,
) -> Result<Option<Vec<usize>>, Abort> {
    let mut came_from = vec![usize::MAX; SIDE * SIDE];
    let mut open = VecDeque::from([from]);
    came_from[from] = from;
    while let Some(field) = open.pop_front() {
        for next in neighbours(field) {
            if came_from[next] != usize::MAX || next != to && tx.read(&maze[next])? != 0 {
                continue;
            }
            came_from[next] = field;
            open.push_back(next);
        }
        if came_from[to] != usize::MAX {
            break;
        }
    }
    if came_from[to] == usize::MAX {
        return Ok(None);
    }
    let number = tx.read(&maze[from])?;
    let mut path = vec![to];
    while path.last() != Some(&from) {
        path.push(came_from[path[path.len() - 1]]);
    }
    for &field in &path {
        tx.write(&maze[field], number)?;
    }
    Ok(Some(path))
}

/// Checks that each path connects its ends, and that nothing else has changed.
fn check(fields: &[u32], maze: &Maze, ends: &[(usize, usize)], laid: &[(usize, Vec<usize>)]) {
    let mut expected = fields.to_vec();
    for (number, path) in laid {
        assert_eq!((path[path.len() - 1], path[0]), ends[*number]);
        assert!(path.windows(2).all(|step| neighbours(step[0]).any(|next| next == step[1])));
        for &field in path {
            let own = *number as u32 + 1;
            assert!(expected[field] == 0 || expected[field] == own, "two paths cross");
            expected[field] = own;
        }
    }
    let end: Vec<u32> = snapshot(|tx| maze.iter().map(|field| tx.read(field)).collect());
    assert_eq!(end, expected);
    // The order of the threads decides which paths exist, but the first path always exists.
    assert!(!laid.is_empty());
}
