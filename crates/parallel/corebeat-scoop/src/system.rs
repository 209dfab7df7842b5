//! Systems of processors, and the creation of processors and tasks.

use crate::activity::Activity;
use crate::client::{Client, caller_id};
use crate::collector::{Collected, Collector};
use crate::error::{Error, FORKED, Name};
use crate::fault::{Fault, is_planted};
use crate::handle::{At, Export, Separate};
use crate::processor::{Activation, Processor, begin_task, may_wait, task};
use crate::queue::{Call, Queue};
use crate::region::{Here, Region};
use crate::trace::Trace;
use crate::wait::new_id;
use corebeat_lpel::{Reader, Runtime, Writer, stream};
use corebeat_sync::atomic::Ordering;
use corebeat_sync::fork::Process;
use corebeat_sync::{MutexGuard, lock};
use slab::Slab;
use std::any::type_name;
use std::fmt;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The shared state of a system.
pub(crate) struct Inner {
    /// Unique number of the system.
    pub(crate) id: u64,
    /// The process that has the threads of the runtime.
    process: Process,
    runtime: Arc<Runtime>,
    /// The tasks of the processors and of the collector.
    pub(crate) activity: Arc<Activity>,
    table: RwLock<Table>,
    pub(crate) collector: Collector,
}

/// All processors and pools, by number.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) processors: Slab<Arc<Processor>>,
    /// The processor of each pool; the number of a pool is its key plus 1.
    pools: Slab<Arc<Processor>>,
}

impl Table {
    pub(crate) fn processor_of(&self, pool: NonZeroU32) -> Option<&Arc<Processor>> {
        self.pools.get(pool.get() as usize - 1)
    }

    pub(crate) fn remove_pool(&mut self, pool: NonZeroU32) {
        self.pools.remove(pool.get() as usize - 1);
    }

    /// Releases unused memory.
    pub(crate) fn shrink(&mut self) {
        self.processors.shrink_to_fit();
        self.pools.shrink_to_fit();
    }

    /// # Panics
    ///
    /// If there are 4 billion pools.
    fn add_pool(&mut self, processor: &Arc<Processor>) -> NonZeroU32 {
        pool_number(self.pools.insert(processor.clone()))
    }
}

fn pool_number(place: usize) -> NonZeroU32 {
    let number = u32::try_from(place + 1).ok().and_then(NonZeroU32::new);
    number.expect("a system has at most 4 billion pools (one per processor and type of objects)")
}

/// The users of a system outside of calls: its `System`s, their clients, and the reservations of
/// those. The drop of the last one waits until all logged calls have run. No reservation is open
/// then that delays a call.
struct Users(Arc<Inner>);

impl Drop for Users {
    fn drop(&mut self) {
        if !self.0.process.is_current() {
            // Locks of this system may be held by threads that do not exist here.
            std::mem::forget(self.0.clone());
        } else if may_wait() {
            self.0.wait();
        }
    }
}

/// A reference to a system, of a user or of a call.
#[derive(Clone)]
pub(crate) struct Access(Owner);

#[derive(Clone)]
enum Owner {
    User(Arc<Users>),
    Call(Arc<Inner>),
}

impl Access {
    pub(crate) fn of_call(inner: Arc<Inner>) -> Access {
        Access(Owner::Call(inner))
    }

    /// Checks that this process has the threads of the system.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.process.is_current() { Ok(()) } else { Err(Error::Forked) }
    }

    /// # Panics
    ///
    /// In a child of fork that inherited the system.
    pub(crate) fn assert_process(&self) {
        assert!(self.process.is_current(), "{FORKED}");
    }
}

impl Deref for Access {
    type Target = Arc<Inner>;

    fn deref(&self) -> &Arc<Inner> {
        match &self.0 {
            Owner::User(users) => &users.0,
            Owner::Call(inner) => inner,
        }
    }
}

impl Inner {
    /// Waits until no task of the system is left, unless the caller is unwinding.
    fn wait(&self) {
        if std::thread::panicking() {
            return;
        }
        let (writer, end) = stream::<()>(1);
        let mut end = end.signals("the end of all calls of a system");
        if self.activity.watch(writer) {
            // A task waits for the end: if the caller is a thread outside, its wait for the task
            // executes the tasks of a deterministic runtime.
            let scope = self.runtime.scope();
            scope.spawn(move || end.read());
            scope.wait();
        }
    }

    /// Returns a stream from the tasks of this system to the caller, who waits for this event.
    pub(crate) fn stream_to_caller<T: Send>(&self, event: &'static str) -> (Writer<T>, Reader<T>) {
        let (writer, reader) = stream(1);
        let reader = reader.signals(event);
        // A task of another runtime waits for tasks that its runtime does not observe.
        let writer = if self.runtime.is_current() { writer } else { writer.outside() };
        (writer, reader)
    }

    pub(crate) fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn table_mut(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn new_pool(&self, processor: &Arc<Processor>) -> NonZeroU32 {
        self.table_mut().add_pool(processor)
    }

    pub(crate) fn processor_of(&self, pool: NonZeroU32) -> Option<Arc<Processor>> {
        self.table().processor_of(pool).cloned()
    }

    /// Exports an object: it gets references from outside of all regions.
    pub(crate) fn export(self: &Arc<Self>, processor: &Arc<Processor>, at: At) -> Arc<Export> {
        let (export, marks) = processor.export(at, || self.collector.is_marking());
        if marks == Some(true) && !is_planted(Fault::Export) {
            self.reach(processor, Some(at));
        }
        export
    }

    /// Adds a processor to the table, with an export of its future first object. Returns both, and
    /// the number of processors.
    fn add_processor<T: Trace>(self: &Arc<Self>) -> (Arc<Processor>, Separate<T>, u64) {
        let id = new_id();
        let mut table = self.table_mut();
        let pool = pool_number(table.pools.vacant_key());
        let mut region = Region::new::<T>(pool);
        // Under the lock of the table: a collection that begins finds the processor in the table,
        // with its export, or has begun before this load.
        let (epoch, is_marking) = self.collector.epoch();
        region.scanned = epoch;
        region.swept = if is_marking { epoch - 1 } else { epoch };
        let processor = Arc::new(Processor::new(id, type_name::<T>(), self.id, region));
        lock(&processor.inbox).live = epoch;
        let at = At { pool, index: 0 };
        let (export, _) = processor.export(at, || ());
        table.add_pool(&processor);
        let key = table.processors.insert(processor.clone());
        let processors = table.processors.len() as u64;
        // Relaxed: written once, before other threads read the key.
        processor.key.store(key, Ordering::Relaxed);
        drop(table);
        if is_marking && !is_planted(Fault::Export) {
            self.reach(&processor, Some(at));
        }
        (processor, Separate::new(export), processors)
    }

    pub(crate) fn create<T: Trace>(
        self: &Arc<Self>,
        owner: u64,
        f: impl FnOnce(&mut Here<'_>) -> T + Send + 'static,
    ) -> Separate<T> {
        let (processor, separate, processors) = self.add_processor::<T>();
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
        self.start(&processor, queue, true);
        drop(logged);
        self.count_processors(processors);
        separate
    }

    /// Starts a task for a processor, if its queue needs one, and wakes clients that wait for a
    /// change.
    pub(crate) fn start(
        self: &Arc<Self>,
        processor: &Arc<Processor>,
        mut queue: MutexGuard<'_, Queue>,
        is_first: bool,
    ) {
        let (starts, woken) = queue.starts();
        drop(queue);
        drop(woken);
        if !starts {
            return;
        }
        let activation = Activation::new(self.clone(), processor.clone(), is_first);
        // Without memory for a task, the activation is dropped, and the processor fails.
        let task = self.runtime.task().unscoped().name(processor.of);
        drop(task.spawn(move || activation.run()));
    }

    /// Starts a task for the collector.
    pub(crate) fn start_collector(self: &Arc<Self>) {
        let (inner, running) = (self.clone(), self.activity.begin());
        let task = self.runtime.task().unscoped().name("scoop collector");
        let spawned = task.spawn(move || {
            // Ends after the last use of the system.
            let _running = running;
            // Clients of finalisers have this name.
            begin_task(Name { id: new_id(), of: None });
            inner.collect();
        });
        // Without memory for a task, a later trigger tries again.
        if spawned.is_err() {
            self.collector.did_not_start();
        }
    }
}

/// Processors that can refer to each other, on a runtime of LPEL, with their collector.
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
/// The drop of the last `System`, client or reservation waits until all logged calls have run, and
/// the calls that these have logged, as scoped threads are waited for. A command whose logging has
/// returned is executed therefore, unless its processor fails. Then the objects are dropped. The
/// drop does not wait inside a call, in a finaliser, in a destructor of `thread_local!` data at the
/// end of a thread, or while the caller unwinds: then the calls run later, if the process
/// continues. Call [`System::wait`] to wait earlier. Neither waits for tasks that calls spawn; a
/// call that waits for such a task must not leave the last `System` to it.
///
/// In a child of fork, an inherited system has no threads: functions that return a `Result` fail
/// with [`Error::Forked`], other functions panic, and a drop leaks the system.
#[derive(Clone)]
pub struct System {
    inner: Access,
}

/// Options of a system.
///
/// ```
/// use corebeat_scoop::{Options, System};
///
/// let options = Options { bytes_between: 64 << 20, ..Options::default() };
/// let system = System::with_options(corebeat_lpel::Runtime::new()?, options);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of new processors since the last collection that trigger the next one: 1,000 by
    /// default. At least as many new processors as the last collection left are allowed.
    pub processors_between: u64,
    /// Bytes of new objects that trigger the next collection: 16 MiB by default. At least as many
    /// new bytes as the last collection left are allowed. Memory that objects own elsewhere, such
    /// as the contents of a `Vec`, does not count.
    pub bytes_between: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { processors_between: 1_000, bytes_between: 16 << 20 }
    }
}

impl System {
    /// Creates a system with default options on this runtime.
    pub fn new(runtime: impl Into<Arc<Runtime>>) -> System {
        System::with_options(runtime, Options::default())
    }

    /// Creates a system on this runtime.
    pub fn with_options(runtime: impl Into<Arc<Runtime>>, options: Options) -> System {
        let runtime = runtime.into();
        let inner = Inner {
            id: new_id(),
            process: Process::current(),
            runtime,
            activity: Arc::new(Activity::new()),
            table: RwLock::default(),
            collector: Collector::new(options.processors_between, options.bytes_between),
        };
        System { inner: Access(Owner::User(Arc::new(Users(Arc::new(inner))))) }
    }

    /// Creates a client for a thread or a task. So that cycles of waiting clients are detected, all
    /// clients of a thread or a task have the same number, in all systems, and inside a call, the
    /// client is the processor of the call.
    ///
    /// # Panics
    ///
    /// In a child of fork that inherited the system.
    pub fn client(&self) -> Client {
        self.inner.assert_process();
        let name = task().unwrap_or_else(|| Name { id: caller_id(), of: None });
        Client::new(self.inner.clone(), name)
    }

    /// Waits until no processor has a call that can run: all calls that callers have logged have
    /// run, and the calls that these have logged. Does not wait for calls behind an open
    /// reservation of a caller. Waits forever if a call never returns.
    ///
    /// # Panics
    ///
    /// Inside a call, because the call would wait for its end; in a finaliser; in a destructor of
    /// `thread_local!` data at the end of a thread; and in a child of fork that inherited the
    /// system.
    pub fn wait(&self) {
        self.inner.assert_process();
        assert!(
            may_wait(),
            "a call, a finaliser or a destructor of `thread_local!` data cannot wait for all \
             calls: wait in a client outside of calls, before the thread ends"
        );
        self.inner.wait();
    }

    /// Collects all objects and processors that are dead now, and waits for the end of the
    /// collection. Other calls continue. The collection ends after each live processor was between
    /// two calls, twice.
    ///
    /// # Panics
    ///
    /// Inside a call, because the collection would wait for its end; in a finaliser; and in a child
    /// of fork that inherited the system.
    pub fn collect(&self) -> Collected {
        self.collect_with(false)
    }

    /// Collects objects only: every processor counts as live. For comparisons: it is not cheaper
    /// than [`System::collect`].
    ///
    /// # Panics
    ///
    /// As for [`System::collect`].
    pub fn collect_objects(&self) -> Collected {
        self.collect_with(true)
    }

    fn collect_with(&self, objects_only: bool) -> Collected {
        self.inner.assert_process();
        assert!(
            may_wait(),
            "a call or a finaliser cannot wait for a collection, which waits for its end: collect \
             from a client outside of calls"
        );
        let (writer, mut reader) = self.inner.stream_to_caller("the end of a collection");
        self.inner.request(objects_only, Some(writer));
        reader.read().expect(
            "the collection did not end: the runtime has ended or is deadlocked (see its report), \
             or the collector has panicked",
        )
    }

    /// Returns the number of processors, including dead ones that are not collected yet.
    ///
    /// # Panics
    ///
    /// In a child of fork that inherited the system.
    pub fn processors(&self) -> usize {
        self.inner.assert_process();
        self.inner.table().processors.len()
    }

    /// Returns the result of the last collection; `None` before the end of the first one.
    ///
    /// # Panics
    ///
    /// In a child of fork that inherited the system.
    pub fn collected(&self) -> Option<Collected> {
        self.inner.assert_process();
        self.inner.collector.last()
    }
}

impl fmt::Debug for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.inner.check_process() {
            Ok(()) => write!(f, "System({} processors)", self.processors()),
            Err(_) => write!(f, "System(of another process)"),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use corebeat_lpel::yield_now;

    #[test]
    fn collection_finds_a_processor_that_is_being_created() {
        let runtime = Arc::new(Runtime::builder().deterministic(1).build().unwrap());
        let system = System::new(runtime.clone());
        let done = runtime.run(move || {
            let client = system.client();
            let inner = Arc::clone(&client.inner);
            // A thread that loses its CPU in `create` has not started the first call yet.
            let (processor, separate, _) = inner.add_processor::<u32>();
            inner.request(false, None);
            (0..1_000).for_each(|_| yield_now());
            let is_alive = system.processors() == 1 && inner.collector.is_marking();
            let first = Activation::new(inner.clone(), processor.clone(), true);
            drop(first);
            (0..1_000).for_each(|_| yield_now());
            drop(separate);
            is_alive && inner.collector.last().is_some_and(|last| last.processors == 1)
        });
        assert!(done.unwrap());
    }
}
