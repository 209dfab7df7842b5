//! Clustered objects: a root, and representatives.

use crate::domain::{Domain, Node, PLACES_MAX, Thread};
use corebeat_sync::CachePadded;
use corebeat_sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use corebeat_sync::fork::ForkMutex;
use std::marker::PhantomData;
use std::{fmt, ptr};

/// The global part of a clustered object, which chooses the representatives.
pub trait Root: Send + Sync {
    /// State of a place. Several threads may be in a place at a time, and all threads may read all
    /// representatives. So it consists of atomics and locks, which are nearly always local.
    type Rep: Send + Sync;

    /// Miss handler: chooses the representative for a place that has none yet. It must not use the
    /// object itself.
    ///
    /// The object is not locked meanwhile. So the handler may run in several threads at a time, and
    /// it runs again if its choice is outdated: a new representative is dropped if the place has
    /// one by now, or if it was to be the only one and another one was added. A root that requires
    /// a single run locks its own state.
    fn miss(&self, miss: Miss<'_, Self::Rep>) -> Chosen<Self::Rep>;
}

/// A place without a representative.
pub struct Miss<'a, P> {
    place: usize,
    node: usize,
    /// All representatives, with the memory node on which each was created.
    reps: &'a [(usize, &'a P)],
}

/// The choice of a representative, made by [`Miss`].
pub struct Chosen<P>(Choice<P>);

enum Choice<P> {
    /// A new one, whatever other representatives exist.
    Own(P),
    /// A new one, because none of those that the handler received is suitable.
    First(P),
    Existing(usize),
}

impl<P> Miss<'_, P> {
    /// Returns the number of the place in its [`Domain`].
    pub fn place(&self) -> usize {
        self.place
    }

    /// Chooses a new representative for this place.
    pub fn one_per_place(self, rep: P) -> Chosen<P> {
        Chosen(Choice::Own(rep))
    }

    /// Chooses the first existing representative for which `is_it` returns `true`, or a new one.
    pub fn existing(self, is_it: impl Fn(&P) -> bool, make: impl FnOnce() -> P) -> Chosen<P> {
        self.find(|(_, rep)| is_it(rep), make)
    }

    /// Chooses one representative for all places.
    pub fn one_for_all(self, make: impl FnOnce() -> P) -> Chosen<P> {
        self.existing(|_| true, make)
    }

    /// Chooses one representative for all places of a memory node, if the system reports nodes.
    pub fn one_per_node(self, make: impl FnOnce() -> P) -> Chosen<P> {
        self.find(|(node, _)| *node == self.node, make)
    }

    fn find(&self, is_it: impl Fn(&(usize, &P)) -> bool, make: impl FnOnce() -> P) -> Chosen<P> {
        let found = self.reps.iter().position(is_it);
        Chosen(found.map_or_else(|| Choice::First(make()), Choice::Existing))
    }
}

/// An object with a representative for each place where it is used.
///
/// ```
/// use corebeat_clustered::{Chosen, Clustered, Cpu, Miss, Root};
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
///
/// /// Counts the visitors of a house with many doors.
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
/// visitors.here().fetch_add(1, Relaxed); // the representative of this CPU
/// assert_eq!(visitors.fold(0, |sum, door| sum + door.load(Relaxed)), 1);
/// ```
///
/// ```text
///   Clustered                     root: global state, miss handler
///   +------+------+
///   | root | len  |     base      place 0   place 1   place 2
///   |      | base | ------------> [   -   ] [   o   ] [   o   ]     written at a miss
///   +------+------+                             |         |
///                                               v         v
///                                            [ rep ]   [ rep ]      each in its own cache lines
/// ```
///
/// A representative lives as long as the object, so a borrow of the object is sufficient to use it.
/// Put objects that may be destroyed while they are in use behind a [`Link`](crate::Link).
pub struct Clustered<R: Root, D: Domain = Thread> {
    root: R,
    /// Number of places in `base`.
    len: AtomicUsize,
    base: AtomicPtr<AtomicPtr<R::Rep>>,
    reps: ForkMutex<Reps<R::Rep>>,
    domain: PhantomData<fn() -> D>,
}

struct Reps<P> {
    all: Vec<(usize, Box<CachePadded<P>>)>,
    /// The last table is current. Readers may still use the earlier ones.
    tables: Vec<Box<[AtomicPtr<P>]>>,
}

impl<R: Root, D: Domain> Clustered<R, D> {
    /// Creates an object without representatives.
    pub fn new(root: R) -> Self {
        let reps = ForkMutex::new(Reps { all: Vec::new(), tables: Vec::new() });
        Clustered {
            root,
            len: AtomicUsize::new(0),
            base: AtomicPtr::new(ptr::null_mut()),
            reps,
            domain: PhantomData,
        }
    }

    /// Returns the root.
    pub fn root(&self) -> &R {
        &self.root
    }

    /// Returns the representative for the place of this thread.
    #[inline(always)]
    pub fn here(&self) -> &R::Rep {
        self.here_and_alone().0
    }

    /// Returns the representative as [`here`](Clustered::here), and whether this thread is the only
    /// one in its place.
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
        // Acquire: pairs with the Release in `make_room`: the table has at least this length.
        if place >= self.len.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: tables have at least the length that was loaded, and live as long as the object.
        let entry = unsafe { &*self.base.load(Ordering::Acquire).add(place) };
        // SAFETY: representatives live as long as the object. Acquire: pairs with the Release in
        // `miss`.
        unsafe { entry.load(Ordering::Acquire).as_ref() }
    }

    #[cold]
    #[inline(never)]
    fn miss(&self) -> (&R::Rep, bool) {
        let place = D::find();
        assert!(
            place < PLACES_MAX,
            "the domain returned place {place}, which is not below {PLACES_MAX}"
        );
        let mut found = self.rep(place);
        while found.is_none() {
            let (node, reps) = (Node::find(), self.reps());
            let chosen = self.root.miss(Miss { place, node, reps: &reps });
            found = self.put(place, node, reps.len(), chosen.0);
        }
        (found.expect("the loop ends with a representative"), D::is_alone(place))
    }

    /// Returns all representatives, with the memory node on which each was created.
    fn reps(&self) -> Vec<(usize, &R::Rep)> {
        let reps = self.reps.lock();
        // SAFETY: they are boxed and live as long as the object.
        reps.all.iter().map(|(node, rep)| (*node, unsafe { &*ptr::from_ref(&***rep) })).collect()
    }

    /// Returns the representative of this place: the chosen one, unless the place has one by now.
    /// Returns `None` if the choice is outdated, because there were `known` representatives.
    fn put(
        &self,
        place: usize,
        node: usize,
        known: usize,
        choice: Choice<R::Rep>,
    ) -> Option<&R::Rep> {
        // An unused choice is dropped after the lock, as it is a parameter: its destructor is user
        // code.
        let mut reps = self.reps.lock();
        if let Some(rep) = self.rep(place) {
            return Some(rep);
        }
        let number = match choice {
            Choice::Existing(number) => number,
            Choice::First(_) if reps.all.len() > known => return None,
            Choice::First(rep) | Choice::Own(rep) => {
                reps.all.push((node, Box::new(CachePadded::new(rep))));
                reps.all.len() - 1
            }
        };
        self.make_room(&mut reps, place);
        let rep: *const R::Rep = &**reps.all[number].1;
        let table = reps.tables.last().expect("make_room added a table");
        // Release: pairs with the Acquire in `rep`.
        table[place].store(rep.cast_mut(), Ordering::Release);
        // SAFETY: it is boxed and lives as long as the object.
        Some(unsafe { &*rep })
    }

    /// Ensures that the table contains this place.
    fn make_room(&self, reps: &mut Reps<R::Rep>, place: usize) {
        let len = reps.tables.last().map_or(0, |table| table.len());
        if place < len {
            return;
        }
        let new_len = (place + 1).next_power_of_two();
        let old = reps.tables.last();
        // Relaxed: all writes of tables are under the lock.
        let entry = |place: usize| {
            old.and_then(|old| old.get(place))
                .map_or(ptr::null_mut(), |rep| rep.load(Ordering::Relaxed))
        };
        let table: Box<[_]> = (0..new_len).map(|place| AtomicPtr::new(entry(place))).collect();
        reps.tables.push(table);
        let base = reps.tables.last().expect("a table was pushed").as_ptr();
        // Release: pairs with the Acquire in `rep`. The table first: a reader of the new length
        // also reads the new table.
        self.base.store(base.cast_mut(), Ordering::Release);
        self.len.store(new_len, Ordering::Release);
    }

    /// Folds all representatives, each one once.
    pub fn fold<A>(&self, begin: A, mut f: impl FnMut(A, &R::Rep) -> A) -> A {
        // The lock is not held during the calls of `f`, so other threads are not blocked.
        self.reps().into_iter().fold(begin, |sum, (_, rep)| f(sum, rep))
    }
}

impl<R: Root, D: Domain> fmt::Debug for Clustered<R, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clustered")
            .field("reps", &self.reps.lock().all.len())
            .finish_non_exhaustive()
    }
}
