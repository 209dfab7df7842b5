//! The same work over MPI by hand: one thread for each rank, and blocking calls.

use super::corebeat::checksum_of;
use super::{Load, Work};
use crate::snet::mandelbrot::{compute, view};
use mpi::traits::{Communicator, Destination, Source};
use std::time::Instant;

/// Runs a work on this rank. Rank 0 returns its time in seconds and its checksum.
pub(super) fn run(load: Load) -> Result<Option<(f64, u64)>, String> {
    let universe = mpi::initialize().ok_or("MPI was started before")?;
    let world = universe.world();
    let other = world.process_at_rank(1 - world.rank());
    // Both ranks are ready.
    let mut ready = [0u8];
    other.send(&ready[..]);
    other.receive_into(&mut ready[..]);
    let is_first = world.rank() == 0;
    let begin = Instant::now();
    let checksum = match load.work {
        Work::Stream if is_first => {
            let mut content = load.content();
            for i in 0..load.count as u64 {
                // The number of the record.
                content[..4].copy_from_slice(&(i as u32).to_ne_bytes());
                other.send(&content[..]);
            }
            other.receive::<u64>().0
        }
        Work::Stream => {
            let mut content = load.content();
            let mut sum = 0;
            for i in 0..load.count as u64 {
                other.receive_into(&mut content[..]);
                let (number, _) = content.split_first_chunk().ok_or("a record is too short")?;
                if u32::from_ne_bytes(*number) != i as u32 {
                    return Err(format!("record {i} is another one"));
                }
                sum = Load::add(sum, i, &content);
            }
            other.send(&sum);
            sum
        }
        Work::Trip if is_first => {
            let mut last = 0i64;
            for _ in 0..load.count {
                other.send(&last);
                last = other.receive::<i64>().0;
            }
            last as u64
        }
        Work::Trip => {
            for _ in 0..load.count {
                let number = other.receive::<i64>().0;
                other.send(&(number + 1));
            }
            0
        }
        Work::Image => image(load, is_first, &other),
    };
    let seconds = begin.elapsed().as_secs_f64();
    Ok(is_first.then_some((seconds, checksum)))
}

/// Each rank computes every other strip. Rank 0 receives those of rank 1 meanwhile.
fn image<P: Source + Destination>(load: Load, is_first: bool, other: &P) -> u64 {
    let view = view(load.bytes);
    let mut image = vec![0; load.bytes * load.bytes];
    let len = image.len() / load.count;
    let strips = view.strips(load.count).enumerate().filter(|(i, _)| (i % 2 == 0) == is_first);
    let (mine, theirs): (Vec<_>, Vec<_>) =
        image.chunks_mut(len).enumerate().partition(|(i, _)| (i % 2 == 0) == is_first);
    let count = load.count.div_ceil(2);
    if is_first {
        mpi::request::multiple_scope(count, |scope, under_way| {
            for (_, strip) in theirs {
                under_way.add(other.immediate_receive_into(scope, strip));
            }
            for ((_, place), (_, strip)) in mine.into_iter().zip(strips) {
                place.copy_from_slice(&compute(strip));
            }
            under_way.wait_all(&mut Vec::new());
        });
        return checksum_of(&image);
    }
    let computed = mine.into_iter().zip(strips);
    mpi::request::multiple_scope(count, |scope, under_way| {
        for ((_, place), (_, strip)) in computed {
            place.copy_from_slice(&compute(strip));
            under_way.add(other.immediate_send(scope, &*place));
        }
        under_way.wait_all(&mut Vec::new());
    });
    0
}
