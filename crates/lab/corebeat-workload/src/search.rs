//! Similarity search for pictures in a pipeline of six stages, as in PARSEC's ferret (Lv,
//! Josephson, Wang, Charikar, Li, *Ferret: A Toolkit for Content-Based Similarity Search of
//! Feature-Rich Data*, 2006):
//!
//! ```text
//!  load ==> segment ==> extract ==> index ==> rank ==> out
//!   1          n           n          n         n       1      threads; ==> is a queue of at
//!                                                              most 20 queries
//! ```
//!
//! `load` draws a picture, which replaces a file. `segment` divides the picture into regions of one
//! colour. `extract` describes each region by a few numbers. `index` sorts the collection by a
//! lower bound of the distance. `rank` computes distances in that order until the bound excludes a
//! nearer picture. `out` stores the list. `rank` does most of the work.

mod picture;
mod signature;

use crate::queue::Queue;
use crate::random::mix;
use crate::{Size, Tally, WorkloadError, heartbeat, team};
use picture::Picture;
use signature::Signature;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Mutex;

/// Maximum number of pictures in the collection.
const COLLECTION: usize = 2048;
/// Number of queries at full size.
const QUERIES: usize = 9_000;
/// Number of pictures in a result.
const LISTED: usize = 10;
/// Maximum number of items in a queue; the value of PARSEC's scripts.
const QUEUE_MAX: usize = 20;

/// A distance, or its bound, and the picture's index in the collection.
type Rated = (u32, usize);

/// A collection and its queries.
struct Library {
    signatures: Vec<Signature>,
    queries: usize,
}

impl Library {
    fn of(size: Size) -> Library {
        let count = size.count(COLLECTION * 64).min(COLLECTION);
        let signature = |number| Signature::of(&Picture::draw(number).segment());
        Library {
            signatures: (0..count as u64).map(signature).collect(),
            queries: size.count(QUERIES).max(8),
        }
    }

    /// Returns the number of a query's picture, which is not in the collection.
    fn query_picture(&self, query: usize) -> u64 {
        1 << 32 | query as u64
    }

    /// Returns the collection, ordered by the bound; the least bound is on top.
    fn index(&self, query: &Signature) -> BinaryHeap<Reverse<Rated>> {
        let rated =
            self.signatures.iter().enumerate().map(|(place, s)| Reverse((query.bound(s), place)));
        rated.collect::<Vec<_>>().into()
    }

    /// Returns the nearest pictures, in ascending order of distance and index.
    fn rank(&self, query: &Signature, mut candidates: BinaryHeap<Reverse<Rated>>) -> Vec<Rated> {
        let mut nearest: BinaryHeap<Rated> = BinaryHeap::new();
        while let Some(Reverse((bound, place))) = candidates.pop() {
            let signature = &self.signatures[place];
            if nearest.len() == LISTED {
                let worst = *nearest.peek().expect("a full list is not empty");
                if (bound, place) > worst {
                    break;
                }
                if (query.tight_bound(signature), place) > worst {
                    continue;
                }
            }
            nearest.push((query.distance(signature), place));
            if nearest.len() > LISTED {
                nearest.pop();
            }
        }
        nearest.into_sorted_vec()
    }

    /// Computes all distances.
    fn naive_rank(&self, query: &Signature) -> Vec<Rated> {
        let rated = self.signatures.iter().enumerate().map(|(place, s)| (query.distance(s), place));
        let mut rated: Vec<Rated> = rated.collect();
        rated.sort();
        rated.truncate(LISTED);
        rated
    }
}

/// Returns the digest of a query's list. The sum of digests does not depend on their order.
fn digest(query: usize, list: &[Rated]) -> u64 {
    list.iter().fold(mix(query as u64), |sum, &(distance, place)| {
        mix(mix(sum ^ u64::from(distance)) ^ place as u64)
    })
}

/// Returns a thread of a stage, which applies `work` to each item.
fn stage<'a, A: Send, B: Send>(
    name: String,
    from: &'a Queue<(usize, A)>,
    to: &'a Queue<(usize, B)>,
    work: impl Fn(A) -> B + Send + 'a,
) -> team::Job<'a> {
    team::Job::new(name, move || {
        while let Some((query, item)) = from.pop() {
            to.push((query, work(item)));
        }
        to.leave();
    })
}

pub(crate) fn run(threads: usize, size: Size) -> Result<Tally, WorkloadError> {
    let library = &Library::of(size);
    let loaded = &Queue::new(QUEUE_MAX, 1);
    let segmented = &Queue::new(QUEUE_MAX, threads);
    let extracted = &Queue::new(QUEUE_MAX, threads);
    let indexed = &Queue::new(QUEUE_MAX, threads);
    let ranked = &Queue::new(QUEUE_MAX, threads);
    let checksum = &Mutex::new(0u64);

    let mut jobs = vec![team::Job::new("search-load".into(), move || {
        for query in 0..library.queries {
            loaded.push((query, Picture::draw(library.query_picture(query))));
        }
        loaded.leave();
    })];
    for i in 0..threads {
        jobs.push(stage(format!("search-seg-{i}"), loaded, segmented, |p: Picture| p.segment()));
        jobs.push(stage(format!("search-ext-{i}"), segmented, extracted, |s| Signature::of(&s)));
        jobs.push(stage(format!("search-idx-{i}"), extracted, indexed, |s| (library.index(&s), s)));
        jobs.push(stage(format!("search-rank-{i}"), indexed, ranked, |(c, s)| library.rank(&s, c)));
    }
    jobs.push(team::Job::new("search-out".into(), move || {
        while let Some((query, list)) = ranked.pop() {
            let mut sum = checksum.lock().unwrap();
            *sum = sum.wrapping_add(digest(query, &list));
            heartbeat::beat(1);
        }
    }));
    team::run(jobs)?;
    let checksum = *checksum.lock().unwrap();
    Ok(Tally { checksum, work: library.queries as u64 })
}

/// The naive version: one query after the other, each compared with the whole collection.
pub(crate) fn naive(size: Size) -> Tally {
    let library = Library::of(size);
    let sum = (0..library.queries).fold(0u64, |sum, query| {
        let signature = Signature::of(&Picture::draw(library.query_picture(query)).segment());
        sum.wrapping_add(digest(query, &library.naive_rank(&signature)))
    });
    Tally { checksum: sum, work: library.queries as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_equals_the_full_comparison() {
        let library = Library::of(Size::QUICK);
        for query in 0..20 {
            let signature = Signature::of(&Picture::draw(library.query_picture(query)).segment());
            let list = library.rank(&signature, library.index(&signature));
            assert_eq!(list, library.naive_rank(&signature));
            assert_eq!(list.len(), LISTED);
        }
    }

    #[test]
    fn rank_finds_a_picture_of_the_collection_first() {
        let library = Library::of(Size::QUICK);
        let signature = &library.signatures[5];
        assert_eq!(library.rank(signature, library.index(signature))[0], (0, 5));
    }
}
