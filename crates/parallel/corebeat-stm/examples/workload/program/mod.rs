//! The programs and their common parts.

mod intruder;
mod kmeans;
mod labyrinth;
mod vacation;

use std::time::Duration;

/// Name of a program, and a function that runs it with a number of threads and a multiple of its
/// smallest input. The function returns the duration from before the first thread begins until the
/// last one has ended, and panics if the result is wrong.
pub(crate) type Program = (&'static str, fn(usize, usize) -> Duration);

pub(crate) const PROGRAMS: [Program; 4] = [
    ("kmeans", kmeans::run),
    ("vacation", vacation::run),
    ("intruder", intruder::run),
    ("labyrinth", labyrinth::run),
];
