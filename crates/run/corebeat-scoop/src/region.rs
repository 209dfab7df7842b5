//! A processor's objects, and what a call sees of them.

use crate::client::Client;
use crate::fault::{Fault, is_planted};
use crate::handle::{At, Gc, Link, Separate};
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
/// Collections have numbers. A region whose roots were scanned in one, and which was not swept in it, is *black*: all that calls can get
/// at there is marked and traced, and what they make is so from the beginning.
pub(crate) struct Region {
    pools: Vec<RegionPool>,
    /// What is kept for as long as the processor lives.
    roots: HashSet<At>,
    /// The collection in which its roots were scanned last.
    pub(crate) scanned: u64,
    /// The collection in which it was swept last.
    pub(crate) swept: u64,
    /// Bytes of objects that were made since somebody asked.
    fresh_bytes: usize,
}

/// Objects of one type. `marks` are those of `slots`, unless a tracer holds them.
struct RegionPool {
    id: NonZeroU32,
    slots: Box<dyn Slots>,
    marks: Marks,
}

/// What a sweep found.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Swept {
    pub(crate) freed: u64,
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

impl Region {
    /// A region for an object to come, which is the first of the pool with this number.
    pub(crate) fn new<T: Trace>(id: NonZeroU32) -> Self {
        let (pool, marks) = Pool::<T>::with_first_kept();
        let first = RegionPool { id, slots: Box::new(pool), marks };
        Region { pools: vec![first], roots: HashSet::new(), scanned: 0, swept: 0, fresh_bytes: 0 }
    }

    pub(crate) fn is_black(&self) -> bool {
        self.scanned > self.swept
    }

    fn put_first<T: Trace>(&mut self, object: T) {
        let black = self.is_black();
        let RegionPool { slots, marks, .. } = &mut self.pools[0];
        let pool = (&mut **slots as &mut dyn Any).downcast_mut::<Pool<T>>().expect("made for it");
        // SAFETY: they are one pool's, and were made together.
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
        let pool = (&mut **slots as &mut dyn Any).downcast_mut::<Pool<T>>().expect("found by its type");
        // SAFETY: they are one pool's.
        At { pool: *id, index: unsafe { pool.put(marks, object, black) } }
    }

    #[inline(always)]
    fn get<T: Trace>(&self, at: At) -> Option<&T> {
        let RegionPool { slots, marks, .. } = self.pools.iter().find(|pool| pool.id == at.pool)?;
        let pool = (&**slots as &dyn Any).downcast_ref::<Pool<T>>()?;
        // SAFETY: they are one pool's.
        unsafe { pool.get(marks, at.index) }
    }

    #[inline(always)]
    fn get_mut<T: Trace>(&mut self, at: At) -> Option<&mut T> {
        let RegionPool { slots, marks, .. } = self.pools.iter_mut().find(|pool| pool.id == at.pool)?;
        let pool = (&mut **slots as &mut dyn Any).downcast_mut::<Pool<T>>()?;
        // SAFETY: they are one pool's.
        unsafe { pool.get_mut(marks, at.index) }
    }

    pub(crate) fn take_fresh_bytes(&mut self) -> usize {
        std::mem::take(&mut self.fresh_bytes)
    }

    pub(crate) fn roots(&self) -> impl Iterator<Item = At> {
        self.roots.iter().copied()
    }

    pub(crate) fn pool_ids(&self) -> impl Iterator<Item = NonZeroU32> {
        self.pools.iter().map(|pool| pool.id)
    }

    /// Hands all marks to the tracer.
    ///
    /// # Safety
    ///
    /// Nothing is made or dropped here until they are taken back.
    pub(crate) unsafe fn hold(&mut self, tracer: &mut Tracer) {
        for RegionPool { id, slots, marks } in &mut self.pools {
            // SAFETY: they are one pool's, and that it does not change is the caller's.
            unsafe { tracer.hold(id.get(), std::mem::take(marks), slots.objects()) };
        }
    }

    /// Takes all marks back. True if all that was reached is traced.
    pub(crate) fn let_go(&mut self, tracer: &mut Tracer) -> bool {
        let mut done = true;
        for pool in self.pools.iter_mut().rev() {
            pool.marks = tracer.let_go();
            done &= !pool.marks.is_pending();
        }
        done
    }

    /// Marks these, and traces all in this region that is reached from there, or was reached before and not traced. What is
    /// elsewhere is in the tracer's list then.
    pub(crate) fn trace_from(&mut self, reached: impl IntoIterator<Item = At>, tracer: &mut Tracer) {
        // SAFETY: nothing is, up to `let_go`.
        unsafe { self.hold(tracer) };
        reached.into_iter().for_each(|at| tracer.reach(at));
        while tracer.trace(&mut { usize::MAX }) {}
        self.let_go(tracer);
        tracer.forget_active();
    }

    /// Drops what is not marked, if its roots were scanned.
    pub(crate) fn sweep(&mut self) -> Swept {
        let mut swept = Swept::default();
        let black = self.is_black();
        for RegionPool { slots, marks, .. } in &mut self.pools {
            if black {
                // SAFETY: they are one pool's.
                swept.freed += unsafe { slots.sweep(marks) };
            }
            let objects = marks.objects();
            swept.objects += objects;
            swept.bytes += objects * slots.object_bytes() as u64;
        }
        self.swept = self.scanned;
        swept
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.roots.clear();
        for RegionPool { slots, marks, .. } in &mut self.pools {
            marks.clear();
            // SAFETY: they are one pool's.
            unsafe { slots.sweep(marks) };
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What a call has: its processor's objects, and, as a [`Client`], everybody else's.
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
/// It stays in its call, and with the call's thread:
///
/// ```compile_fail
/// # use corebeat_scoop::*;
/// fn share(here: &mut Here<'_>, list: Gc<u64>) {
///     std::thread::scope(|scope| scope.spawn(|| here[list] += 1).join()).unwrap(); // `Here` cannot be sent between threads safely
/// }
/// ```
pub struct Here<'a> {
    client: &'a Client,
    region: &'a mut Region,
    processor: &'a Arc<Processor>,
}

impl<'a> Here<'a> {
    pub(crate) fn new(client: &'a Client, region: &'a mut Region, processor: &'a Arc<Processor>) -> Self {
        Here { client, region, processor }
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.client.inner
    }

    /// The target of a call, which is about to run.
    pub(crate) fn enter<T: Trace>(&mut self, target: &Separate<T>) -> Gc<T> {
        if !is_planted(Fault::Target) {
            self.reach_own(target.export.at);
        }
        Gc::new(target.export.at)
    }

    /// Fills the place that was kept for the first object.
    pub(crate) fn put_first<T: Trace>(&mut self, object: T) {
        self.region.put_first(object);
    }

    /// A call is over: what it made counts.
    pub(crate) fn end_call(&mut self) {
        let bytes = self.region.take_fresh_bytes();
        self.client.inner.count_made(bytes);
    }

    pub(crate) fn region(&mut self) -> &mut Region {
        self.region
    }

    /// Calls get at an object of this region from outside.
    fn reach_own(&mut self, at: At) {
        if self.region.is_black() {
            self.client.inner.trace_own(self.region, [at]);
        }
    }

    /// A new object of this processor.
    ///
    /// # Panics
    ///
    /// If it has 4 billion of this type.
    pub fn make<T: Trace>(&mut self, object: T) -> Gc<T> {
        let (inner, processor) = (&self.client.inner, self.processor);
        Gc::new(self.region.put(object, || inner.new_pool(processor)))
    }

    /// Keeps an object of this processor for as long as the processor lives, whoever else refers to it. It is one of the
    /// processor's own roots (Meyer, Kogtenkov, Akhi 2012, section 5.1), as the result of a function that is called once.
    pub fn keep<T: Trace>(&mut self, gc: Gc<T>) {
        assert!(self.region.get::<T>(gc.at).is_some(), "{gc:?} is none of this processor's objects");
        self.region.roots.insert(gc.at);
    }

    /// Takes [`Here::keep`] back.
    pub fn let_go<T: Trace>(&mut self, gc: Gc<T>) {
        self.region.roots.remove(&gc.at);
    }

    /// An object of this processor, for others to call.
    pub fn separate<T: Trace>(&self, gc: Gc<T>) -> Separate<T> {
        assert!(self.region.get::<T>(gc.at).is_some(), "{gc:?} is none of this processor's objects");
        Separate::new(self.inner().export(self.processor, gc.at))
    }

    /// What a link leads to, to be called.
    ///
    /// # Panics
    ///
    /// If the link was kept from an earlier call where the collector does not look, such as in `thread_local!` data, and its processor is
    /// gone.
    pub fn hold<T: Trace>(&self, link: Link<T>) -> Separate<T> {
        let processor = self.inner().processor_of(link.at.pool);
        let processor =
            processor.unwrap_or_else(|| panic!("{link:?} was kept where the collector does not look"));
        Separate::new(self.inner().export(&processor, link.at))
    }

    /// A link to it, to be put into an object of this processor.
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

    /// The object that a link leads to, if it is one of this processor's own.
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
        "no such {} here: a Gc is for the processor that it is of, and for the call that has it, or an object",
        type_name::<T>()
    )
}

/// # Panics
///
/// If it is no object of this processor; or was kept from an earlier call where the collector does not look, such as in
/// `thread_local!` data, and is gone.
impl<T: Trace> Index<Gc<T>> for Here<'_> {
    type Output = T;

    #[inline]
    fn index(&self, gc: Gc<T>) -> &T {
        self.region.get(gc.at).unwrap_or_else(|| missing::<T>())
    }
}

/// # Panics
///
/// As with [`Index`].
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

    // SAFETY: it has no handles. That it panics is what must not be.
    unsafe impl Trace for Bad {
        fn trace(&self, _: &mut Tracer) {
            std::panic::resume_unwind(Box::new("bad"));
        }
    }

    #[test]
    fn trace_that_panics_leaves_nothing_for_the_next_region_of_the_thread() {
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
