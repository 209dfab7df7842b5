//! Automatic futures: merge sort, matrix multiplication and recursion, with `corebeat-future`
//! beside plain calls and rayon, and sites that are too fine to gain.
//!
//! The first two programs are those of Molitorisz, Schimmel, Otto, *Automatic Parallelization Using
//! AutoFutures*, 2012, table 1: merge sort of 1,600,000 to 8,000,000 numbers, and matrices of
//! 400x400 to 600x600.

use crate::Bench;
use crate::apart::{self, Case};
use crate::round::Measured;
use crate::row::Better;
use crate::session::Session;
use clap::ValueEnum;
use corebeat_future::{for_each, join};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::time::Instant;

pub(crate) const BENCHES: [Bench; 2] = [
    Bench {
        name: "future.gain",
        summary: "time of merge sort, matrix multiplication and a recursive function",
        peers: &["plain", "rayon", "rayon, by hand"],
        tools: &[],
        cases: |session| apart::names(&gain_cases(session)),
        run: |session| measure(session, 0, "ms", &gain_cases(session)),
    },
    Bench {
        name: "future.fine",
        summary: "time of a call at a site that is too fine to gain from a second thread",
        peers: &["plain", "rayon"],
        tools: &[],
        cases: |session| apart::names(&fine_cases(session)),
        run: |session| measure(session, 1, "ns/call", &fine_cases(session)),
    },
];

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Subject {
    /// The rewritten program.
    Corebeat,
    /// The sequential program.
    Plain,
    /// The same joins, on rayon.
    Rayon,
    /// As an expert writes the program: small parts are sequential.
    #[value(name = "rayon, by hand")]
    Hand,
}

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Work {
    /// Sorts so many numbers.
    Sort(usize),
    /// Multiplies two square matrices with so many rows.
    Matrix(usize),
    /// Computes a Fibonacci number by its definition.
    Recursion(u64),
    /// Calls two functions of a few instructions so many times.
    Fine(u64),
}

fn gain_cases(session: &Session) -> Vec<Case<Subject, Work>> {
    let (numbers, rows, n) = if session.quick { (1000, 20, 12) } else { (1_600_000, 600, 34) };
    let all = [Subject::Corebeat, Subject::Plain, Subject::Rayon, Subject::Hand];
    vec![
        Case::new("merge sort", &all, Work::Sort(numbers)),
        Case::new("matrix", &all[..3], Work::Matrix(rows)),
        Case::new("recursion", &all, Work::Recursion(n)),
    ]
}

fn fine_cases(session: &Session) -> Vec<Case<Subject, Work>> {
    let calls = if session.quick { 1000 } else { 20_000_000 };
    let subjects = [Subject::Corebeat, Subject::Plain, Subject::Rayon];
    vec![Case::new("two short closures", &subjects, Work::Fine(calls))]
}

fn measure(
    session: &Session,
    bench: usize,
    unit: &'static str,
    cases: &[Case<Subject, Work>],
) -> Result<(), String> {
    let name = BENCHES[bench].name;
    // Each subject checks its result against the known one.
    let run = |subject, work| -> Result<Measured, String> {
        apart::value(apart::command(session, "future", &Options { subject, work })?)
    };
    apart::measure_each(session, name, |_| (unit, Better::Lower), cases, run)
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    subject: Subject,
    work: Work,
}

/// The main function of the child.
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    match options.work {
        Work::Sort(length) => sorted(options.subject, length),
        Work::Matrix(rows) => multiplied(options.subject, rows),
        Work::Recursion(n) => recursion(options.subject, n),
        Work::Fine(calls) => fine(options.subject, calls),
    }
}

/// Runs of a program in a child. The fastest one counts: a child is not warmed up otherwise.
const RUNS: usize = 3;

fn fastest_ms<T>(mut run: impl FnMut() -> T) -> (f64, T) {
    let mut timed = || {
        let begin = Instant::now();
        let result = run();
        (begin.elapsed().as_secs_f64() * 1e3, result)
    };
    let first = timed();
    (1..RUNS).fold(first, |best, _| {
        let next = timed();
        if next.0 < best.0 { next } else { best }
    })
}

/// Numbers below which an expert sorts without a second thread.
const HAND_SORT: usize = 8192;
/// Argument below which an expert computes without a second thread.
const HAND_FIB: u64 = 22;

fn sorted(subject: Subject, length: usize) -> Result<(f64, u64), String> {
    let numbers: Vec<u64> =
        (1..=length as u64).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
    let (time_ms, numbers) = fastest_ms(|| {
        let (mut numbers, mut room) = (numbers.clone(), numbers.clone());
        match subject {
            Subject::Corebeat => sort(&mut numbers, &mut room),
            Subject::Plain => sort_plain(&mut numbers, &mut room),
            Subject::Rayon => sort_rayon::<2>(&mut numbers, &mut room),
            Subject::Hand => sort_rayon::<HAND_SORT>(&mut numbers, &mut room),
        }
        numbers
    });
    if !numbers.is_sorted() {
        return Err("the numbers are not sorted".into());
    }
    Ok((time_ms, numbers.iter().fold(0, |sum, n| sum ^ n)))
}

fn sort(numbers: &mut [u64], room: &mut [u64]) {
    if numbers.len() >= 2 {
        let (left, right) = numbers.split_at_mut(numbers.len() / 2);
        let (left_room, right_room) = room.split_at_mut(left.len());
        join(|| sort(left, left_room), || sort(right, right_room));
        merge(numbers, room);
    }
}

fn sort_plain(numbers: &mut [u64], room: &mut [u64]) {
    if numbers.len() >= 2 {
        let (left, right) = numbers.split_at_mut(numbers.len() / 2);
        let (left_room, right_room) = room.split_at_mut(left.len());
        sort_plain(left, left_room);
        sort_plain(right, right_room);
        merge(numbers, room);
    }
}

fn sort_rayon<const LEAST: usize>(numbers: &mut [u64], room: &mut [u64]) {
    if numbers.len() < LEAST {
        return sort_plain(numbers, room);
    }
    let (left, right) = numbers.split_at_mut(numbers.len() / 2);
    let (left_room, right_room) = room.split_at_mut(left.len());
    rayon::join(|| sort_rayon::<LEAST>(left, left_room), || sort_rayon::<LEAST>(right, right_room));
    merge(numbers, room);
}

/// Merges the two sorted halves.
fn merge(numbers: &mut [u64], room: &mut [u64]) {
    room.copy_from_slice(numbers);
    let (mut left, mut right) = room.split_at(numbers.len() / 2);
    for number in numbers {
        let takes_left = right.is_empty() || !left.is_empty() && left[0] <= right[0];
        let side = if takes_left { &mut left } else { &mut right };
        *number = side[0];
        *side = &side[1..];
    }
}

fn multiplied(subject: Subject, rows: usize) -> Result<(f64, u64), String> {
    let a: Vec<f64> = (0..rows * rows).map(|n| (n % 7) as f64).collect();
    let (time_ms, product) = fastest_ms(|| {
        let mut product = vec![0.0; rows * rows];
        let mut lines: Vec<_> = product.chunks_mut(rows).zip(a.chunks(rows)).collect();
        let multiply = |(line, x): &mut (&mut [f64], &[f64])| multiply_line(line, x, &a);
        match subject {
            Subject::Corebeat => for_each(&mut lines, multiply),
            Subject::Plain => lines.iter_mut().for_each(multiply),
            Subject::Rayon | Subject::Hand => lines.par_iter_mut().for_each(multiply),
        }
        product
    });
    let expected: f64 = (0..rows).map(|k| a[k] * a[k * rows]).sum();
    if product[0] != expected {
        return Err(format!("the first element is {} instead of {expected}", product[0]));
    }
    Ok((time_ms, product.iter().map(|x| *x as u64).fold(0, u64::wrapping_add)))
}

/// Adds a line of the product.
fn multiply_line(line: &mut [f64], x: &[f64], b: &[f64]) {
    for (x, b) in x.iter().zip(b.chunks(line.len())) {
        line.iter_mut().zip(b).for_each(|(sum, y)| *sum += x * y);
    }
}

fn recursion(subject: Subject, n: u64) -> Result<(f64, u64), String> {
    let (time_ms, result) = fastest_ms(|| match subject {
        Subject::Corebeat => fib(n),
        Subject::Plain => fib_plain(n),
        Subject::Rayon => fib_rayon::<2>(n),
        Subject::Hand => fib_rayon::<HAND_FIB>(n),
    });
    let expected = (0..n).fold((0, 1), |(a, b), _| (b, a + b)).0;
    if result != expected {
        return Err(format!("the number is {result} instead of {expected}"));
    }
    Ok((time_ms, result))
}

fn fib(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let (a, b) = join(|| fib(n - 1), || fib(n - 2));
    a + b
}

fn fib_plain(n: u64) -> u64 {
    if n < 2 { n } else { fib_plain(n - 1) + fib_plain(n - 2) }
}

fn fib_rayon<const LEAST: u64>(n: u64) -> u64 {
    if n < LEAST {
        return fib_plain(n);
    }
    let (a, b) = rayon::join(|| fib_rayon::<LEAST>(n - 1), || fib_rayon::<LEAST>(n - 2));
    a + b
}

fn fine(subject: Subject, calls: u64) -> Result<(f64, u64), String> {
    let (time_ms, sum) = fastest_ms(|| {
        (0..calls).fold(0u64, |sum, n| {
            let (first, second) = (|| scramble(n), || scramble(!n));
            let (a, b) = match subject {
                Subject::Corebeat => join(first, second),
                Subject::Plain => (first(), second()),
                Subject::Rayon | Subject::Hand => rayon::join(first, second),
            };
            sum.wrapping_add(a ^ b)
        })
    });
    Ok((time_ms * 1e6 / calls as f64, sum))
}

/// A few instructions that the compiler does not combine with those of the caller.
#[inline(never)]
fn scramble(n: u64) -> u64 {
    (n ^ n >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD)
}
