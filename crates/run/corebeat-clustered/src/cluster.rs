//! Clustered objects: a root, and representatives.

use crate::domain::{Domain, Node, PLACES_MAX, Thread};
use crate::global::lock;
use corebeat_sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use corebeat_sync::{CachePadded, Mutex};
use std::marker::PhantomData;
use std::{fmt, ptr};

/// What a clustered object has once: what is global, and the choice of representatives.
pub trait Root: Send + Sync {
    /// What it has for a place. Several threads may be in a place at a time, and all representatives may be looked at from
    /// everywhere: this is made of atomics and locks, which are nearly always local.
    type Rep: Send + Sync;

    /// The miss handler: chooses the representative for a place that has none yet. It runs once for each place, one at a time,
    /// and must not use the object itself.
    fn miss(&self, miss: Miss<'_, Self::Rep>) -> Chosen<Self::Rep>;
}

/// A place without a representative.
pub struct Miss<'a, P> {
    place: usize,
    node: usize,
    /// With the node that each was made on.
    reps: &'a [(usize, Box<CachePadded<P>>)],
}

/// A representative: made by [`Miss`].
pub struct Chosen<P>(Choice<P>);

enum Choice<P> {
    New(P),
    Existing(usize),
}

impl<P> Miss<'_, P> {
    /// The place, as its [`Domain`] numbers it.
    pub fn place(&self) -> usize {
        self.place
    }

    /// A new one, for this place alone.
    pub fn one_per_place(self, rep: P) -> Chosen<P> {
        Chosen(Choice::New(rep))
    }

    /// The first that there is of which this says so; a new one if there is none.
    pub fn existing(self, is_it: impl Fn(&P) -> bool, make: impl FnOnce() -> P) -> Chosen<P> {
        let found = self.reps.iter().position(|(_, rep)| is_it(rep));
        Chosen(found.map_or_else(|| Choice::New(make()), Choice::Existing))
    }

    /// One for all places.
    pub fn one_for_all(self, make: impl FnOnce() -> P) -> Chosen<P> {
        self.existing(|_| true, make)
    }

    /// One for all places on the same node of memory, as far as the system tells of nodes.
    pub fn one_per_node(self, make: impl FnOnce() -> P) -> Chosen<P> {
        let found = self.reps.iter().position(|(node, _)| *node == self.node);
        Chosen(found.map_or_else(|| Choice::New(make()), Choice::Existing))
    }
}

/// An object that looks like one, and has a representative for each place where it is used.
///
/// ```
/// use corebeat_clustered::{Chosen, Clustered, Cpu, Miss, Root};
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
///
/// /// Visitors of a house with many doors.
/// struct House { doors_max: u64 }
///
/// impl Root for House {
///     type Rep = AtomicU64;
///     fn miss(&self, miss: Miss<'_, AtomicU64>) -> Chosen<AtomicU64> {
///         assert!((miss.place() as u64) < self.doors_max);
///         miss.one_per_place(AtomicU64::new(0))
///     }
/// }
///
/// let visitors: Clustered<House, Cpu> = Clustered::new(House { doors_max: 1 << 16 });
/// visitors.here().fetch_add(1, Relaxed); // this CPU's
/// assert_eq!(visitors.fold(0, |sum, door| sum + door.load(Relaxed)), 1);
/// ```
///
/// ```text
///   Clustered                     root: what is global, miss handler
///   +------+------+
///   | root | len  |     base      place 0   place 1   place 2
///   |      | base | ------------> [   -   ] [   o   ] [   o   ]     read by all, written at a miss
///   +------+------+                             |         |
///                                               v         v
///                                            [ rep ]   [ rep ]      each in lines of its own
/// ```
///
/// A representative lives as long as the object, so that whoever has borrowed that may use it. What may be destroyed while it is in use
/// is put behind a [`Link`](crate::Link).
pub struct Clustered<R: Root, D: Domain = Thread> {
    root: R,
    /// How many places `base` has room for.
    len: AtomicUsize,
    base: AtomicPtr<AtomicPtr<R::Rep>>,
    reps: Mutex<Reps<R::Rep>>,
    domain: PhantomData<fn() -> D>,
}

struct Reps<P> {
    all: Vec<(usize, Box<CachePadded<P>>)>,
    /// The last one is in use; those before may be, by who is looking.
    tables: Vec<Box<[AtomicPtr<P>]>>,
}

impl<R: Root, D: Domain> Clustered<R, D> {
    /// With this root, and no representative yet.
    pub fn new(root: R) -> Self {
        let reps = Mutex::new(Reps { all: Vec::new(), tables: Vec::new() });
        Clustered {
            root,
            len: AtomicUsize::new(0),
            base: AtomicPtr::new(ptr::null_mut()),
            reps,
            domain: PhantomData,
        }
    }

    /// What is global.
    pub fn root(&self) -> &R {
        &self.root
    }

    /// The representative for the place where this thread is.
    #[inline(always)]
    pub fn here(&self) -> &R::Rep {
        self.here_and_alone().0
    }

    /// As [`here`](Clustered::here), and whether no other thread is there.
    #[inline(always)]
    pub(crate) fn here_and_alone(&self) -> (&R::Rep, bool) {
        let place = D::here();
        match self.rep(place) {
            Some(rep) => (rep, D::is_alone(place)),
            None => self.miss(),
        }
    }

    #[inline(always)]
    fn rep(&self, place: usize) -> Option<&R::Rep> {
        // Acquire: pairs with the Release of who made the room: a table that is as large.
        if place >= self.len.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: tables have at least so many places as was said before they were in use, and are there as long as this.
        let entry = unsafe { &*self.base.load(Ordering::Acquire).add(place) };
        // SAFETY: representatives are there as long as this. Acquire: pairs with the Release of who put it there.
        unsafe { entry.load(Ordering::Acquire).as_ref() }
    }

    #[cold]
    #[inline(never)]
    fn miss(&self) -> (&R::Rep, bool) {
        let place = D::find();
        assert!(place < PLACES_MAX, "place {place} of a domain is not below {PLACES_MAX}");
        let mut reps = lock(&self.reps);
        if let Some(rep) = self.rep(place) {
            return (rep, D::is_alone(place));
        }
        self.make_room(&mut reps, place);
        let miss = Miss { place, node: Node::find(), reps: &reps.all };
        let node = miss.node;
        let number = match self.root.miss(miss).0 {
            Choice::Existing(number) => number,
            Choice::New(rep) => {
                reps.all.push((node, Box::new(CachePadded::new(rep))));
                reps.all.len() - 1
            }
        };
        let rep: *const R::Rep = &**reps.all[number].1;
        let table = reps.tables.last().expect("room was made");
        // Release: pairs with the Acquire in `rep`.
        table[place].store(rep.cast_mut(), Ordering::Release);
        // SAFETY: it is boxed, and is there as long as this.
        (unsafe { &*rep }, D::is_alone(place))
    }

    /// A table with this place.
    fn make_room(&self, reps: &mut Reps<R::Rep>, place: usize) {
        let len = reps.tables.last().map_or(0, |table| table.len());
        if place < len {
            return;
        }
        let new_len = (place + 1).next_power_of_two();
        let old = reps.tables.last();
        // Relaxed: tables are written under the lock.
        let entry = |place: usize| {
            old.and_then(|old| old.get(place)).map_or(ptr::null_mut(), |rep| rep.load(Ordering::Relaxed))
        };
        let table: Box<[_]> = (0..new_len).map(|place| AtomicPtr::new(entry(place))).collect();
        reps.tables.push(table);
        let base = reps.tables.last().expect("one was pushed").as_ptr();
        // Release: pairs with the Acquire in `rep`. The table first: who sees the new length sees it.
        self.base.store(base.cast_mut(), Ordering::Release);
        self.len.store(new_len, Ordering::Release);
    }

    /// Goes through all representatives, each once.
    pub fn fold<A>(&self, begin: A, mut f: impl FnMut(A, &R::Rep) -> A) -> A {
        // Others may come meanwhile: nobody is held up.
        let reps: Vec<*const R::Rep> =
            lock(&self.reps).all.iter().map(|(_, rep)| ptr::from_ref(&***rep)).collect();
        // SAFETY: they are boxed, and are there as long as this.
        reps.into_iter().fold(begin, |sum, rep| f(sum, unsafe { &*rep }))
    }
}

impl<R: Root, D: Domain> fmt::Debug for Clustered<R, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clustered").field("reps", &lock(&self.reps).all.len()).finish_non_exhaustive()
    }
}
