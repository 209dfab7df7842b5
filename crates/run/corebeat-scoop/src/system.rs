//! A system: the processors that can know each other, and how they begin.

use crate::client::Client;
use crate::collector::{Collected, Collector};
use crate::error::Name;
use crate::fault::{Fault, is_planted};
use crate::handle::{At, Export, Separate};
use crate::processor::{Activation, Processor, begin_task, finalises, task};
use crate::queue::{Call, lock};
use crate::region::{Here, Region};
use crate::trace::Trace;
use crate::wait::Waits;
use corebeat_lpel::{Runtime, stream};
use corebeat_sync::Mutex;
use corebeat_sync::atomic::{AtomicU64, Ordering};
use slab::Slab;
use std::any::type_name;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A collection begins when there are so many processors more than after the last one, or as many again.
const PROCESSORS_BETWEEN: u64 = 1_000;
/// A collection begins when so many bytes of objects were made since the last one, or as many as it left.
const BYTES_BETWEEN: u64 = 16 << 20;

/// What all processors of a system share.
pub(crate) struct Inner {
    /// Another one for each system.
    pub(crate) id: u64,
    runtime: Arc<Runtime>,
    table: RwLock<Table>,
    next_id: AtomicU64,
    pub(crate) waits: Mutex<Waits>,
    pub(crate) collector: Collector,
}

/// All processors and pools, by their numbers.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) processors: Slab<Arc<Processor>>,
    /// The processor of each pool; a pool's number is 1 more than its place.
    pools: Slab<Arc<Processor>>,
}

impl Table {
    pub(crate) fn processor_of(&self, pool: NonZeroU32) -> Option<&Arc<Processor>> {
        self.pools.get(pool.get() as usize - 1)
    }

    pub(crate) fn remove_pool(&mut self, pool: NonZeroU32) {
        self.pools.remove(pool.get() as usize - 1);
    }

    /// Gives memory back that was for more.
    pub(crate) fn shrink(&mut self) {
        self.processors.shrink_to_fit();
        self.pools.shrink_to_fit();
    }

    /// # Panics
    ///
    /// If there are 4 billion.
    fn add_pool(&mut self, processor: &Arc<Processor>) -> NonZeroU32 {
        pool_number(self.pools.insert(processor.clone()))
    }
}

fn pool_number(place: usize) -> NonZeroU32 {
    let number = u32::try_from(place + 1).ok().and_then(NonZeroU32::new);
    number.expect("a system has at most 4 billion pools, one for each type of objects of a processor")
}

impl Inner {
    pub(crate) fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn table_mut(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn new_id(&self) -> u64 {
        // Relaxed: only unique.
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn new_pool(&self, processor: &Arc<Processor>) -> NonZeroU32 {
        self.table_mut().add_pool(processor)
    }

    pub(crate) fn processor_of(&self, pool: NonZeroU32) -> Option<Arc<Processor>> {
        self.table().processor_of(pool).cloned()
    }

    /// An object that is known outside of all heaps from now on.
    pub(crate) fn export(self: &Arc<Self>, processor: &Arc<Processor>, at: At) -> Arc<Export> {
        let (export, marks) = processor.export(at, || self.collector.is_marking());
        if marks == Some(true) && !is_planted(Fault::Export) {
            self.reach(processor, Some(at));
        }
        export
    }

    pub(crate) fn create<T: Trace>(
        self: &Arc<Self>,
        owner: u64,
        f: impl FnOnce(&mut Here<'_>) -> T + Send + 'static,
    ) -> Separate<T> {
        let id = self.new_id();
        let mut table = self.table_mut();
        let pool = pool_number(table.pools.vacant_key());
        let mut region = Region::new::<T>(pool);
        // Under the table's lock: so a collection that begins meets it in the table, or here.
        let (epoch, is_marking) = self.collector.epoch();
        region.scanned = epoch;
        region.swept = if is_marking { epoch - 1 } else { epoch };
        let processor = Arc::new(Processor::new(id, type_name::<T>(), self.id, region));
        lock(&processor.inbox).live = epoch;
        table.add_pool(&processor);
        let key = table.processors.insert(processor.clone());
        let processors = table.processors.len() as u64;
        // Relaxed: written once, before anybody asks.
        processor.key.store(key, Ordering::Relaxed);
        drop(table);
        let at = At { pool, index: 0 };
        let separate = Separate::new(self.export(&processor, at));
        let target = separate.clone();
        let run = Box::new(move |here: &mut Here<'_>| {
            let object = f(here);
            here.put_first::<T>(object);
            drop(target);
        });
        let mut queue = lock(&processor.queue);
        let block = queue.reserve(owner);
        let logged = queue.log(block, Call { run, changes: true, waiter: None });
        queue.close(block);
        let (starts, woken) = queue.starts();
        drop(queue);
        drop((logged, woken));
        if starts {
            self.activate(&processor, true);
        }
        self.count_processors(processors);
        separate
    }

    /// Gives a processor a task.
    pub(crate) fn activate(self: &Arc<Self>, processor: &Arc<Processor>, is_first: bool) {
        let activation = Activation::new(self.clone(), processor.clone(), is_first);
        // Where there is no memory for a task, the activation is dropped, and that is a failure.
        drop(self.runtime.task().name(processor.of).spawn(move || activation.run()));
    }

    /// Gives the collector a task.
    pub(crate) fn start_collector(self: &Arc<Self>) {
        let inner = self.clone();
        let spawned = self.runtime.task().name("scoop collector").spawn(move || {
            // Nobody is called so: finalisers are clients of their own.
            begin_task(0, Name { id: 0, of: None });
            inner.collect();
        });
        // Where there is no memory for a task, a later trigger tries again.
        if spawned.is_err() {
            self.collector.did_not_start();
        }
    }
}

/// Processors that can know each other, on a runtime of LPEL; and their collector.
///
/// ```
/// use corebeat_scoop::{Error, System};
/// use corebeat_lpel::Runtime;
///
/// let system = System::new(Runtime::new()?);
/// let client = system.client();
/// let counter = client.create(|_| 0u64);
/// for _ in 0..3 {
///     counter.command(&client, |here, count| here[count] += 1); // does not wait
/// }
/// assert_eq!(counter.query(&client, |here, count| here[count])?, 3); // waits
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Whoever holds this, a client, or a call that runs holds the system. What its processors have is dropped with it.
#[derive(Clone)]
pub struct System {
    inner: Arc<Inner>,
}

/// The parameters of a system.
#[derive(Debug, Clone)]
pub struct Builder {
    processors_between: u64,
    bytes_between: u64,
}

impl System {
    /// A system on this runtime.
    pub fn new(runtime: impl Into<Arc<Runtime>>) -> System {
        System::builder().build(runtime)
    }

    /// A system with parameters.
    pub fn builder() -> Builder {
        Builder { processors_between: PROCESSORS_BETWEEN, bytes_between: BYTES_BETWEEN }
    }

    /// Somebody who calls, and is no processor: a thread, or a task. Inside a call of this system it is the processor, so that a
    /// circle of those who wait is found.
    pub fn client(&self) -> Client {
        let own = task().filter(|(system, _)| *system == self.inner.id).map(|(_, name)| name);
        let name = own.unwrap_or_else(|| Name { id: self.inner.new_id(), of: None });
        Client::new(self.inner.clone(), name)
    }

    /// Collects all objects and processors that are dead now, and waits until that is done. Others go on meanwhile. It is done when each live
    /// processor was between two calls, twice.
    ///
    /// # Panics
    ///
    /// Inside a call, because that is not between two calls; and in a finaliser.
    pub fn collect(&self) -> Collected {
        self.collect_with(false)
    }

    /// As [`System::collect`], objects only: every processor counts as live. For comparison: it is not cheaper.
    ///
    /// # Panics
    ///
    /// As [`System::collect`].
    pub fn collect_objects(&self) -> Collected {
        self.collect_with(true)
    }

    fn collect_with(&self, objects_only: bool) -> Collected {
        assert!(
            task().is_none() && !finalises(),
            "a call or a finaliser cannot wait for a collection, which waits for it to end: let a client collect"
        );
        let (writer, mut reader) = stream(1);
        self.inner.request(objects_only, Some(writer));
        reader.read().expect("the runtime has ended, or waits for something else for ever: see its report; or the collector has panicked")
    }

    /// How many processors there are, with those that are dead and not collected.
    pub fn processors(&self) -> usize {
        self.inner.table().processors.len()
    }

    /// What the last collection has found; `None` before the first one is over.
    pub fn collected(&self) -> Option<Collected> {
        self.inner.collector.last()
    }
}

impl fmt::Debug for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "System({} processors)", self.processors())
    }
}

impl Builder {
    /// How many processors more than after the last collection begin the next one: 1,000 if nothing is said. There may always
    /// be as many again as were left.
    pub fn processors_between(mut self, processors: u64) -> Self {
        self.processors_between = processors;
        self
    }

    /// How many bytes of new objects begin the next collection: 16 MiB if nothing is said. There may always be as many again as
    /// were left. What objects own elsewhere, such as the contents of a `Vec`, does not count.
    pub fn bytes_between(mut self, bytes: u64) -> Self {
        self.bytes_between = bytes;
        self
    }

    /// A system on this runtime.
    pub fn build(self, runtime: impl Into<Arc<Runtime>>) -> System {
        static IDS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let inner = Inner {
            // Relaxed: only unique.
            id: IDS.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            runtime: runtime.into(),
            table: RwLock::default(),
            next_id: AtomicU64::new(1),
            waits: Mutex::default(),
            collector: Collector::new(self.processors_between, self.bytes_between),
        };
        System { inner: Arc::new(inner) }
    }
}
