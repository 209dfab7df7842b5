//! The objects of a processor, and the environment of a call.

use crate::client::Client;
use crate::fault::{Fault, is_planted};
use crate::handle::{At, AtHasher, Gc, Link, Separate};
use crate::pool::{Marks, Pool, Slots};
use crate::processor::Processor;
use crate::system::Inner;
use crate::trace::{Trace, Tracer};
use std::any::{Any, type_name};
use std::collections::HashSet;
use std::num::NonZeroU32;
use std::ops::{Deref, Index, IndexMut};
use std::sync::Arc;

/// All objects of a processor.
///
/// Collections are numbered. A region is *black* from the scan of its roots in a collection to its
/// sweep: all objects that calls can reach there are marked and traced, and so are new objects.
pub(crate) struct Region {
    pools: Vec<RegionPool>,
    /// Objects that live as long as the processor.
    roots: HashSet<At, AtHasher>,
    /// The last collection that scanned the roots.
    pub(crate) scanned: u64,
    /// The last collection that swept the region.
    pub(crate) swept: u64,
    /// Bytes of new objects since the last `take_fresh_bytes`.
    fresh_bytes: usize,
}

/// Objects of one type. `marks` belong to `slots`, unless a tracer holds them.
struct RegionPool {
    id: NonZeroU32,
    slots: Box<dyn Slots>,
    marks: Marks,
}

/// Result of a sweep.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Swept {
    pub(crate) freed: u64,
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

impl Region {
    /// Creates a region for one future object, the first one of the pool with this number.
    pub(crate) fn new<T: Trace>(id: NonZeroU32) -> Self {
        let (pool, marks) = Pool::<T>::with_first_kept();
        let first = RegionPool { id, slots: Box::new(pool), marks };
        Region {
            pools: vec![first],
            roots: HashSet::default(),
            scanned: 0,
            swept: 0,
            fresh_bytes: 0,
        }
    }

    pub(crate) fn is_black(&self) -> bool {
        self.scanned > self.swept
    }

    fn put_first<T: Trace>(&mut self, object: T) {
        let black = self.is_black();
        let RegionPool { slots, marks, .. } = &mut self.pools[0];
        let pool = (&mut **slots as &mut dyn Any)
            .downcast_mut::<Pool<T>>()
            .expect("the pool was created for this type");
        // SAFETY: slots and marks belong to one pool, and were created together.
        unsafe { pool.put_first(marks, object, black) };
        self.fresh_bytes += size_of::<T>();
    }

    fn put<T: Trace>(&mut self, object: T, new_pool: impl FnOnce() -> NonZeroU32) -> At {
        let black = self.is_black() && !is_planted(Fault::Make);
        self.fresh_bytes += size_of::<T>();
        let found = self.pools.iter().position(|pool| (&*pool.slots as &dyn Any).is::<Pool<T>>());
        let place = found.unwrap_or_else(|| {
            let slots = Box::new(Pool::<T>::new());
            self.pools.push(RegionPool { id: new_pool(), slots, marks: Marks::default() });
            self.pools.len() - 1
        });
        let RegionPool { id, slots, marks } = &mut self.pools[place];
        let pool = (&mut **slots as &mut dyn Any)
            .downcast_mut::<Pool<T>>()
            .expect("the pool was found by its type");
        // SAFETY: slots and marks belong to one pool.
        At { pool: *id, index: unsafe { pool.put(marks, object, black) } }
    }

    #[inline(always)]
    fn get<T: Trace>(&self, at: At) -> Option<&T> {
        let RegionPool { slots, marks, .. } = self.pools.iter().find(|pool| pool.id == at.pool)?;
        let pool = (&**slots as &dyn Any).downcast_ref::<Pool<T>>()?;
        // SAFETY: slots and marks belong to one pool.
        unsafe { pool.get(marks, at.index) }
    }

    #[inline(always)]
    fn get_mut<T: Trace>(&mut self, at: At) -> Option<&mut T> {
        let RegionPool { slots, marks, .. } =
            self.pools.iter_mut().find(|pool| pool.id == at.pool)?;
        let pool = (&mut **slots as &mut dyn Any).downcast_mut::<Pool<T>>()?;
        // SAFETY: slots and marks belong to one pool.
        unsafe { pool.get_mut(marks, at.index) }
    }

    pub(crate) fn take_fresh_bytes(&mut self) -> usize {
        std::mem::take(&mut self.fresh_bytes)
    }

    pub(crate) fn roots(&self) -> impl Iterator<Item = At> {
        self.roots.iter().copied()
    }

    /// Number of objects.
    pub(crate) fn objects(&self) -> u64 {
        self.pools.iter().map(|pool| pool.marks.objects()).sum()
    }

    pub(crate) fn pool_ids(&self) -> impl Iterator<Item = NonZeroU32> {
        self.pools.iter().map(|pool| pool.id)
    }

    /// Passes all marks to the tracer.
    ///
    /// # Safety
    ///
    /// No object is created or dropped in this region until `let_go`.
    pub(crate) unsafe fn hold(&mut self, tracer: &mut Tracer) {
        for RegionPool { id, slots, marks } in &mut self.pools {
            // SAFETY: slots and marks belong to one pool, and the caller guarantees that it does
            // not change.
            unsafe { tracer.hold(id.get(), std::mem::take(marks), slots.objects()) };
        }
    }

    /// Takes all marks back. Returns whether all reached objects are traced.
    pub(crate) fn let_go(&mut self, tracer: &mut Tracer) -> bool {
        let mut done = true;
        for pool in self.pools.iter_mut().rev() {
            pool.marks = tracer.let_go();
            done &= !pool.marks.is_pending();
        }
        done
    }

    /// Marks these objects, and traces all objects of this region that are reachable from them or
    /// were reached before. References to other regions are in the tracer's list afterwards.
    pub(crate) fn trace_from(
        &mut self,
        reached: impl IntoIterator<Item = At>,
        tracer: &mut Tracer,
    ) {
        // SAFETY: no object is created or dropped before `let_go`.
        unsafe { self.hold(tracer) };
        reached.into_iter().for_each(|at| tracer.reach(at));
        while tracer.trace(&mut { usize::MAX }) {}
        self.let_go(tracer);
        tracer.forget_active();
    }

    /// Drops all unmarked objects, if the roots were scanned.
    pub(crate) fn sweep(&mut self) -> Swept {
        let mut swept = Swept::default();
        let black = self.is_black();
        for RegionPool { slots, marks, .. } in &mut self.pools {
            if black {
                // SAFETY: slots and marks belong to one pool.
                swept.freed += unsafe { slots.sweep(marks) };
            }
            let objects = marks.objects();
            swept.objects += objects;
            swept.bytes += objects * slots.object_bytes() as u64;
        }
        self.swept = self.scanned;
        swept
    }

    /// Drops all objects.
    pub(crate) fn clear(&mut self) {
        self.roots.clear();
        for RegionPool { slots, marks, .. } in &mut self.pools {
            marks.clear();
            // SAFETY: slots and marks belong to one pool.
            unsafe { slots.sweep(marks) };
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The environment of a call: the objects of its processor and, as a [`Client`], calls to others.
///
/// ```
/// # use corebeat_scoop::*;
/// # let system = System::new(corebeat_lpel::Runtime::new()?);
/// # let client = system.client();
/// #[derive(Trace)]
/// struct List { value: u64, next: Option<Gc<List>> }
///
/// let list = client.create(|_| List { value: 1, next: None });
/// let sum = list.query(&client, |here, first| {
///     let second = here.make(List { value: 2, next: None });
///     here[first].next = Some(second);
///     here[first].value + here[second].value
/// })?;
/// assert_eq!(sum, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It stays in its call, on the thread of the call:
///
/// ```compile_fail
/// # use corebeat_scoop::*;
/// fn share(here: &mut Here<'_>, list: Gc<u64>) {
///     // `Here` cannot be sent between threads safely
///     std::thread::scope(|scope| scope.spawn(|| here[list] += 1).join()).unwrap();
/// }
/// ```
pub struct Here<'a> {
    client: &'a Client,
    region: &'a mut Region,
    processor: &'a Arc<Processor>,
}

impl<'a> Here<'a> {
    pub(crate) fn new(
        client: &'a Client,
        region: &'a mut Region,
        processor: &'a Arc<Processor>,
    ) -> Self {
        Here { client, region, processor }
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.client.inner
    }

    /// Returns the target of the call that is about to run.
    pub(crate) fn enter<T: Trace>(&mut self, target: &Separate<T>) -> Gc<T> {
        if !is_planted(Fault::Target) {
            self.reach_own(target.export.at);
        }
        Gc::new(target.export.at)
    }

    /// Fills the slot that was reserved for the first object.
    pub(crate) fn put_first<T: Trace>(&mut self, object: T) {
        self.region.put_first(object);
    }

    /// Ends a call: counts the bytes that it allocated.
    pub(crate) fn end_call(&mut self) {
        let bytes = self.region.take_fresh_bytes();
        self.client.inner.count_made(bytes);
    }

    pub(crate) fn region(&mut self) -> &mut Region {
        self.region
    }

    /// Traces an object of this region that a call reaches from outside.
    fn reach_own(&mut self, at: At) {
        if self.region.is_black() {
            self.client.inner.trace_own(self.region, [at]);
        }
    }

    /// Creates an object of this processor.
    ///
    /// # Panics
    ///
    /// If the processor has 4 billion objects of this type.
    pub fn make<T: Trace>(&mut self, object: T) -> Gc<T> {
        let (inner, processor) = (&self.client.inner, self.processor);
        Gc::new(self.region.put(object, || inner.new_pool(processor)))
    }

    /// Keeps an object of this processor alive as long as the processor, without other references.
    /// The object is one of the processor's own roots (Meyer, Kogtenkov, Akhi 2012, section 5.1),
    /// like the result of a once function.
    pub fn keep<T: Trace>(&mut self, gc: Gc<T>) {
        assert!(self.region.get::<T>(gc.at).is_some(), "{gc:?} is not an object of this processor");
        self.region.roots.insert(gc.at);
    }

    /// Reverts [`Here::keep`].
    pub fn let_go<T: Trace>(&mut self, gc: Gc<T>) {
        self.region.roots.remove(&gc.at);
    }

    /// Returns a reference to an object of this processor, for calls of other clients.
    pub fn separate<T: Trace>(&self, gc: Gc<T>) -> Separate<T> {
        assert!(self.region.get::<T>(gc.at).is_some(), "{gc:?} is not an object of this processor");
        Separate::new(self.inner().export(self.processor, gc.at))
    }

    /// Returns a reference to the object of a link, for calls.
    ///
    /// # Panics
    ///
    /// If the link was kept from an earlier call in memory that is not traced, such as
    /// `thread_local!` data, and its processor was freed.
    pub fn hold<T: Trace>(&self, link: Link<T>) -> Separate<T> {
        let processor = self.inner().processor_of(link.at.pool);
        let processor = processor.unwrap_or_else(|| {
            panic!("the processor of {link:?} was freed: keep links in fields of objects only")
        });
        Separate::new(self.inner().export(&processor, link.at))
    }

    /// Returns a link to the object, for a field of an object of this processor.
    pub fn link<T: Trace>(&mut self, separate: &Separate<T>) -> Link<T> {
        let export = &separate.export;
        self.client.check(&export.processor);
        if Arc::ptr_eq(&export.processor, self.processor) {
            self.reach_own(export.at);
        } else if self.region.is_black() && !is_planted(Fault::Link) {
            self.inner().reach_while_marking(&export.processor, export.at);
        }
        Link::new(export.at)
    }

    /// Returns the object of a link, if the object belongs to this processor.
    pub fn own<T: Trace>(&self, link: Link<T>) -> Option<Gc<T>> {
        self.region.get::<T>(link.at).map(|_| Gc::new(link.at))
    }
}

impl Deref for Here<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client
    }
}

#[cold]
fn missing<T>() -> ! {
    panic!(
        "no such {} in this processor: use a Gc only in its call and in fields of objects of its \
         processor",
        type_name::<T>()
    )
}

/// # Panics
///
/// If the object does not belong to this processor; or if the `Gc` was kept from an earlier call in
/// memory that is not traced, such as `thread_local!` data, and the object was freed.
impl<T: Trace> Index<Gc<T>> for Here<'_> {
    type Output = T;

    #[inline]
    fn index(&self, gc: Gc<T>) -> &T {
        self.region.get(gc.at).unwrap_or_else(|| missing::<T>())
    }
}

/// # Panics
///
/// As for [`Index`].
impl<T: Trace> IndexMut<Gc<T>> for Here<'_> {
    #[inline]
    fn index_mut(&mut self, gc: Gc<T>) -> &mut T {
        self.region.get_mut(gc.at).unwrap_or_else(|| missing::<T>())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::System;
    use corebeat_lpel::Runtime;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    struct Bad;

    // SAFETY: the type has no handles. Its panic violates the contract, for the test.
    unsafe impl Trace for Bad {
        fn trace(&self, _: &mut Tracer) {
            std::panic::resume_unwind(Box::new("bad"));
        }
    }

    #[test]
    fn panicking_trace_does_not_affect_the_next_region_of_the_thread() {
        let inner = System::new(Runtime::builder().workers(1).build().unwrap()).client().inner;
        let first = At { pool: NonZeroU32::MIN, index: 0 };
        let trace = |mut region: Region| {
            catch_unwind(AssertUnwindSafe(|| inner.trace_own(&mut region, [first]))).map(|()| {
                region.scanned = 1;
                region.sweep().objects
            })
        };
        let mut bad = Region::new::<Bad>(first.pool);
        bad.put_first(Bad);
        assert!(trace(bad).is_err());
        let mut good = Region::new::<u32>(first.pool);
        good.put_first(5u32);
        assert_eq!(trace(good).ok(), Some(1));
    }
}
