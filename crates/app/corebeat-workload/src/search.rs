//! The pictures of a collection that are most like a given one, found by a pipeline of six stages, as in PARSEC's
//! ferret (Lv, Josephson, Wang, Charikar, Li, *Ferret: A Toolkit for Content-Based Similarity Search of Feature-Rich
//! Data*, 2006):
//!
//! ```text
//!  load ==> segment ==> extract ==> index ==> rank ==> out
//!   1          n           n          n         n       1      threads; ==> is a queue of at most 20 queries
//! ```
//!
//! `load` draws a picture, for want of a file; `segment` divides it into regions of one colour; `extract` describes
//! each by a few numbers; `index` puts the collection in the order of a lower bound of the distance; `rank` computes
//! the distance itself, in that order, until the bound says that nothing nearer can follow; `out` keeps the list.
//! `rank` does most of the work.

mod picture;
mod signature;

use crate::queue::Queue;
use crate::random::mix;
use crate::{Size, Tally, WorkloadError, pulse, team};
use picture::Picture;
use signature::Signature;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Mutex;

/// Pictures of the collection, at most.
const COLLECTION: usize = 2048;
/// Pictures looked for at full size.
const QUERIES: usize = 9_000;
/// How many of the most similar pictures are listed.
const LISTED: usize = 10;
/// Items in a queue; what PARSEC's scripts give.
const QUEUE_MAX: usize = 20;

/// A distance, or a bound of it, and the picture's place in the collection.
type Rated = (u32, usize);

/// A collection and what is looked for in it.
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

    /// The number of the picture for a query: none of the collection.
    fn query_picture(&self, query: usize) -> u64 {
        1 << 32 | query as u64
    }

    /// The collection, those with the least bound on top.
    fn index(&self, query: &Signature) -> BinaryHeap<Reverse<Rated>> {
        let rated = self.signatures.iter().enumerate().map(|(place, s)| Reverse((query.bound(s), place)));
        rated.collect::<Vec<_>>().into()
    }

    /// The nearest, in ascending order; of equally near ones those with the lower place.
    fn rank(&self, query: &Signature, mut candidates: BinaryHeap<Reverse<Rated>>) -> Vec<Rated> {
        let mut nearest: BinaryHeap<Rated> = BinaryHeap::new();
        while let Some(Reverse((bound, place))) = candidates.pop() {
            let signature = &self.signatures[place];
            if nearest.len() == LISTED {
                let worst = *nearest.peek().expect("a list of some length");
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

    /// By distance to everything.
    fn naive_rank(&self, query: &Signature) -> Vec<Rated> {
        let rated = self.signatures.iter().enumerate().map(|(place, s)| (query.distance(s), place));
        let mut rated: Vec<Rated> = rated.collect();
        rated.sort();
        rated.truncate(LISTED);
        rated
    }
}

/// One query's list, so that the lists can be added in any order.
fn digest(query: usize, list: &[Rated]) -> u64 {
    list.iter()
        .fold(mix(query as u64), |sum, &(distance, place)| mix(mix(sum ^ u64::from(distance)) ^ place as u64))
}

/// A thread of a stage: passes on what `work` makes of each item.
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
            pulse::beat(1);
        }
    }));
    team::run(jobs)?;
    let checksum = *checksum.lock().unwrap();
    Ok(Tally { checksum, work: library.queries as u64 })
}

/// One query after the other, each compared with the whole collection.
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
    fn rank_lists_what_the_whole_comparison_lists() {
        let library = Library::of(Size::QUICK);
        for query in 0..20 {
            let signature = Signature::of(&Picture::draw(library.query_picture(query)).segment());
            let list = library.rank(&signature, library.index(&signature));
            assert_eq!(list, library.naive_rank(&signature));
            assert_eq!(list.len(), LISTED);
        }
    }

    #[test]
    fn rank_of_a_picture_of_the_collection_finds_itself() {
        let library = Library::of(Size::QUICK);
        let signature = &library.signatures[5];
        assert_eq!(library.rank(signature, library.index(signature))[0], (0, 5));
    }
}
