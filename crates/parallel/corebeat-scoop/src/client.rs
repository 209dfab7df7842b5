//! Clients: reservations, commands, queries, and waiting for conditions.

use crate::error::{Error, Name};
use crate::handle::{Gc, Separate};
use crate::processor::{Processor, finalises};
use crate::queue::{Call, Run, Signal};
use crate::region::Here;
use crate::system::Access;
use crate::trace::Trace;
use crate::wait::{Waiting, new_id};
use corebeat_lpel::{Local, Reader, TryReadError, Writer};
use corebeat_sync::{Mutex, lock};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A caller of processors: a thread or task ([`System::client`](crate::System::client)), or a call
/// ([`Here`]).
///
/// A client stays on its thread:
///
/// ```compile_fail
/// fn hand_over(client: corebeat_scoop::Client) {
///     std::thread::spawn(move || drop(client)); // `Client` cannot be sent between threads safely
/// }
/// ```
pub struct Client {
    pub(crate) inner: Access,
    name: Name,
    // A client waits in one place at a time.
    here: PhantomData<*const ()>,
}

impl Client {
    pub(crate) fn new(inner: Access, name: Name) -> Self {
        Client { inner, name, here: PhantomData }
    }

    /// Returns the number of the client, as in reports of deadlocks.
    pub fn id(&self) -> u64 {
        self.name.id
    }

    pub(crate) fn check(&self, processor: &Processor) {
        assert!(
            processor.system == self.inner.id,
            "the processor belongs to another system: call it from a client of that system"
        );
    }

    /// Creates a processor. Its first call runs `f`, which returns the first object. Clients may
    /// call the object at once.
    ///
    /// If `f` panics, the processor fails. If the collector cannot keep up, this waits 20 µs.
    ///
    /// # Panics
    ///
    /// In a child of fork that inherited the system.
    pub fn create<T: Trace>(
        &self,
        f: impl FnOnce(&mut Here<'_>) -> T + Send + 'static,
    ) -> Separate<T> {
        self.inner.assert_process();
        self.inner.create(self.id(), f)
    }

    /// Reserves processors in one step: one, a tuple of up to four, or a slice.
    ///
    /// Calls of a reservation run in their order, without calls of other clients in between.
    /// Reservations of the same processor run in the order in which they were made. This function
    /// does not wait. A reservation ends when it is dropped.
    ///
    /// ```
    /// # use corebeat_scoop::*;
    /// # let system = System::new(corebeat_lpel::Runtime::new()?);
    /// # let client = system.client();
    /// # let [savings, giro] = [100i64, 0].map(|start| client.create(move |_| start));
    /// let (from, to) = client.reserve((&savings, &giro));
    /// from.command(|here, account| here[account] -= 30);
    /// to.command(|here, account| here[account] += 30);
    /// drop((from, to));
    /// assert_eq!(giro.query(&client, |here, account| here[account])?, 30);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If a processor belongs to another system, or in a child of fork that inherited the system.
    pub fn reserve<S: Targets>(&self, targets: S) -> S::Reserved {
        self.inner.assert_process();
        let blocks = self.reserve_blocks(&targets);
        targets.reserved(&blocks)
    }

    /// Reserves as [`Client::reserve_when`] does, and waits for changes at most for `time`. The
    /// limit does not interrupt `condition`, whose queries may have limits of their own
    /// ([`Reservation::query_timeout`]). On a deterministic runtime, the limit is that of each
    /// wait.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], after `condition` was false at least once; or as
    /// [`Client::reserve_when`].
    ///
    /// # Panics
    ///
    /// As [`Client::reserve_when`].
    pub fn reserve_when_timeout<S: Targets>(
        &self,
        targets: S,
        time: Duration,
        condition: impl FnMut(&S::Reserved) -> Result<bool, Error>,
    ) -> Result<S::Reserved, Error> {
        self.reserve_when_until(targets, Instant::now().checked_add(time), condition)
    }

    /// Reserves as [`Client::reserve`], when `condition` holds. `condition` runs queries on the
    /// reservation. If it returns `false`, the reservation ends, and `condition` runs again after
    /// another client has called one of these processors.
    ///
    /// ```
    /// # use corebeat_scoop::*;
    /// # let system = System::new(corebeat_lpel::Runtime::new()?);
    /// # let client = system.client();
    /// # let account = client.create(|_| 0i64);
    /// # account.command(&client, |here, account| here[account] = 50);
    /// let rich = client
    ///     .reserve_when(&account, |account| account.query(|here, it| here[it] >= 30))?;
    /// rich.command(|here, account| here[account] -= 30);
    /// # Ok::<(), Error>(())
    /// # .map_err(Box::<dyn std::error::Error>::from)?; Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// An error of `condition`; the caller would have to wait and is unwinding, or is a finaliser;
    /// or this process is a child of fork that inherited the system.
    ///
    /// # Panics
    ///
    /// If a processor belongs to another system.
    pub fn reserve_when<S: Targets>(
        &self,
        targets: S,
        condition: impl FnMut(&S::Reserved) -> Result<bool, Error>,
    ) -> Result<S::Reserved, Error> {
        self.reserve_when_until(targets, None, condition)
    }

    fn reserve_when_until<S: Targets>(
        &self,
        targets: S,
        deadline: Option<Instant>,
        mut condition: impl FnMut(&S::Reserved) -> Result<bool, Error>,
    ) -> Result<S::Reserved, Error> {
        self.inner.check_process()?;
        let mut is_over = false;
        loop {
            let blocks = self.reserve_blocks(&targets);
            let reserved = targets.reserved(&blocks);
            blocks.iter().for_each(|block| block.is_condition.set(true));
            let holds = condition(&reserved)?;
            blocks.iter().for_each(|block| block.is_condition.set(false));
            if holds {
                return Ok(reserved);
            }
            may_wait()?;
            let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            if is_over || left == Some(Duration::ZERO) {
                return Err(Error::TimedOut);
            }
            let observe =
                |block: &Rc<Block>| (block.processor.clone(), lock(&block.processor.queue).changes);
            let observed: Vec<_> = blocks.iter().map(observe).collect();
            drop((reserved, blocks));
            let (writer, mut reader) = self.inner.stream_to_caller(CONDITION);
            let signal = corebeat_sync::Arc::new(Signal::new(writer));
            if observed
                .iter()
                .all(|(processor, changes)| lock(&processor.queue).watch(*changes, &signal))
            {
                // The clock of a deterministic runtime is virtual, so the deadline alone does not
                // end this loop.
                is_over = !read(&mut reader, left);
            }
            observed.iter().for_each(|(processor, _)| lock(&processor.queue).unwatch(&signal));
        }
    }

    fn reserve_blocks(&self, targets: &impl Targets) -> Vec<Rc<Block>> {
        let mut processors = Vec::new();
        targets.processors(&mut processors);
        processors.sort_unstable_by_key(|processor| processor.id);
        processors.dedup_by_key(|processor| processor.id);
        processors.iter().for_each(|processor| self.check(processor));
        // All clients lock queues in the order of their numbers.
        let mut queues: Vec<_> =
            processors.iter().map(|processor| lock(&processor.queue)).collect();
        let numbers: Vec<u64> = queues.iter_mut().map(|queue| queue.reserve(self.id())).collect();
        drop(queues);
        let block = |(processor, number): (&&Arc<Processor>, u64)| {
            let counted =
                with_caller(self.name, |caller| caller.blocks.set(caller.blocks.get() + 1));
            Rc::new(Block {
                inner: self.inner.clone(),
                owner: self.name,
                processor: Arc::clone(processor),
                number,
                is_counted: counted.is_some(),
                is_condition: Cell::new(false),
            })
        };
        processors.iter().zip(numbers).map(block).collect()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.name)
    }
}

/// Event that a client waits for in [`Client::reserve_when`].
const CONDITION: &str = "a change of the processors in the condition of `reserve_when`, which was \
                         false";

/// Waits for the end of a stream, at most for `time`. Returns whether the stream has ended.
fn read(reader: &mut Reader<()>, time: Option<Duration>) -> bool {
    match time {
        None => reader.read().is_none(),
        Some(time) => reader.read_timeout(time) == Err(TryReadError::Closed),
    }
}

/// Checks that the caller may wait.
fn may_wait() -> Result<(), Error> {
    if std::thread::panicking() {
        Err(Error::Unwinding)
    } else if finalises() {
        Err(Error::Finaliser)
    } else {
        Ok(())
    }
}

/// A thread or a task as a client.
struct Caller {
    id: u64,
    /// Number of its open blocks.
    blocks: Cell<u64>,
}

static CALLER: Local<Caller> = Local::new(|| Caller { id: new_id(), blocks: Cell::new(0) });

/// Returns the number of the calling thread or task as a client.
pub(crate) fn caller_id() -> u64 {
    // Without task-local data, at the end of a thread, a client cannot wait.
    CALLER.try_with(|caller| caller.id).unwrap_or_else(new_id)
}

/// Calls `f` if this client is the calling thread or task, and not a processor.
fn with_caller<R>(client: Name, f: impl FnOnce(&Caller) -> R) -> Option<R> {
    if client.of.is_some() {
        return None;
    }
    CALLER.try_with(|caller| (caller.id == client.id).then(|| f(caller))).flatten()
}

/// A client's block in the queue of a processor.
pub struct Block {
    inner: Access,
    owner: Name,
    processor: Arc<Processor>,
    number: u64,
    /// Whether its caller counts it: not if another task has left its client to this one, on the
    /// same thread.
    is_counted: bool,
    /// Whether calls are part of a condition, and change no state for which others wait.
    is_condition: Cell<bool>,
}

impl Block {
    fn log(&self, run: Run, waiter: Option<Writer<()>>) -> Result<(), Call> {
        let mut queue = lock(&self.processor.queue);
        queue.log(self.number, Call { run, changes: !self.is_condition.get(), waiter })?;
        self.inner.start(&self.processor, queue, false);
        Ok(())
    }

    /// Records that the owner waits for a call of this block, unless that closes a cycle. A thread
    /// or a task without another open block needs no record (`wait`).
    fn begin_to_wait(&self) -> Result<Option<Waiting>, Error> {
        let is_only = with_caller(self.owner, |caller| caller.blocks.get() == 1);
        if self.is_counted && is_only == Some(true) {
            return Ok(None);
        }
        let waiting = Waiting::begin(self.owner, &self.processor, self.number);
        waiting.map(Some).map_err(Error::Deadlock)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.is_counted {
            with_caller(self.owner, |caller| caller.blocks.set(caller.blocks.get() - 1));
        }
        if self.inner.check_process().is_err() {
            return;
        }
        let mut queue = lock(&self.processor.queue);
        queue.close(self.number);
        self.inner.start(&self.processor, queue, false);
    }
}

/// A reservation of an object's processor. It ends when it is dropped.
///
/// A reservation stays with its client:
///
/// ```compile_fail
/// # use corebeat_scoop::*;
/// fn hand_over(held: Reservation<u64>, other: &Separate<u64>, client: &Client) {
///     // `Reservation` cannot be sent between threads safely
///     other.command(client, move |_, _| drop(held));
/// }
/// ```
pub struct Reservation<T> {
    target: Separate<T>,
    block: Rc<Block>,
}

impl<T: Trace> Reservation<T> {
    /// Logs a command: `f` runs on the object's processor, after the earlier calls of this
    /// reservation. This function does not wait.
    ///
    /// If the processor has failed, `f` does not run; the next query returns the failure.
    ///
    /// # Panics
    ///
    /// In a child of fork that inherited the system.
    pub fn command(&self, f: impl FnOnce(&mut Here<'_>, Gc<T>) + Send + 'static) {
        self.block.inner.assert_process();
        let target = self.target.clone();
        let run = Box::new(move |here: &mut Here<'_>| {
            let me = here.enter(&target);
            f(here, me);
        });
        // The call of a failed processor is dropped here, after the lock.
        drop(self.block.log(run, None));
    }

    /// Runs `f` on the object's processor, after the earlier calls of this reservation, and waits
    /// for its result.
    ///
    /// # Errors
    ///
    /// The processor has failed, by this call or an earlier one; the wait would close a cycle of
    /// waiting clients; the caller is unwinding, or is a finaliser; or this process is a child of
    /// fork that inherited the system.
    pub fn query<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Here<'_>, Gc<T>) -> R + Send + 'static,
    ) -> Result<R, Error> {
        self.query_with(None, f)
    }

    /// Calls as [`Reservation::query`] does, and waits for the result at most for `time`. If the
    /// time is over, the call remains logged: it runs later, and its result is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], or as [`Reservation::query`].
    pub fn query_timeout<R: Send + 'static>(
        &self,
        time: Duration,
        f: impl FnOnce(&mut Here<'_>, Gc<T>) -> R + Send + 'static,
    ) -> Result<R, Error> {
        self.query_with(Some(time), f)
    }

    fn query_with<R: Send + 'static>(
        &self,
        time: Option<Duration>,
        f: impl FnOnce(&mut Here<'_>, Gc<T>) -> R + Send + 'static,
    ) -> Result<R, Error> {
        self.block.inner.check_process()?;
        may_wait()?;
        let Block { inner, processor, .. } = &*self.block;
        let _waiting = self.block.begin_to_wait()?;
        let (waiter, mut reader) = inner.stream_to_caller("the answer of a query");
        let answer = Arc::new(Mutex::new(None));
        let (target, to) = (self.target.clone(), answer.clone());
        let run = Box::new(move |here: &mut Here<'_>| {
            let me = here.enter(&target);
            let result = f(here, me);
            *lock(&to) = Some(result);
        });
        drop(self.block.log(run, Some(waiter)));
        let has_ended = read(&mut reader, time);
        let answer = lock(&answer).take();
        answer.ok_or_else(|| match processor.failure() {
            Some(failure) => failure,
            None if has_ended || std::thread::panicking() => Error::Unwinding,
            None => Error::TimedOut,
        })
    }
}

impl<T> fmt::Debug for Reservation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation of {:?} by {}", self.target, self.block.owner)
    }
}

impl<T: Trace> Separate<T> {
    /// Calls [`Reservation::command`] on a reservation for this call only.
    ///
    /// # Panics
    ///
    /// As [`Client::reserve`].
    pub fn command(&self, client: &Client, f: impl FnOnce(&mut Here<'_>, Gc<T>) + Send + 'static) {
        client.reserve(self).command(f);
    }

    /// Calls [`Reservation::query`] on a reservation for this call only.
    ///
    /// # Errors
    ///
    /// As [`Reservation::query`].
    ///
    /// # Panics
    ///
    /// If the processor belongs to another system.
    pub fn query<R: Send + 'static>(
        &self,
        client: &Client,
        f: impl FnOnce(&mut Here<'_>, Gc<T>) -> R + Send + 'static,
    ) -> Result<R, Error> {
        client.inner.check_process()?;
        client.reserve(self).query(f)
    }

    /// Calls [`Reservation::query_timeout`] on a reservation for this call only.
    ///
    /// # Errors
    ///
    /// As [`Reservation::query_timeout`].
    ///
    /// # Panics
    ///
    /// If the processor belongs to another system.
    pub fn query_timeout<R: Send + 'static>(
        &self,
        client: &Client,
        time: Duration,
        f: impl FnOnce(&mut Here<'_>, Gc<T>) -> R + Send + 'static,
    ) -> Result<R, Error> {
        client.inner.check_process()?;
        client.reserve(self).query_timeout(time, f)
    }
}

/// Targets that can be reserved in one step: a [`Separate`], a tuple of up to four, or a slice.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be reserved",
    label = "not a target",
    note = "pass a reference to a `Separate`, a tuple of two to four of those, or a slice: `&a`, \
            `(&a, &b)`, `&many[..]`"
)]
#[allow(private_interfaces, reason = "the trait is sealed")]
pub trait Targets: sealed::Sealed {
    /// The reservations, in the order of the targets.
    type Reserved;

    #[doc(hidden)]
    fn processors<'a>(&'a self, all: &mut Vec<&'a Arc<Processor>>);

    /// Returns the reservations; `blocks` are ordered by the numbers of their processors.
    #[doc(hidden)]
    fn reserved(&self, blocks: &[Rc<Block>]) -> Self::Reserved;
}

mod sealed {
    pub trait Sealed {}
}

impl<T> sealed::Sealed for &Separate<T> {}

#[allow(private_interfaces, reason = "as above")]
impl<T> Targets for &Separate<T> {
    type Reserved = Reservation<T>;

    fn processors<'a>(&'a self, all: &mut Vec<&'a Arc<Processor>>) {
        all.push(&self.export.processor);
    }

    fn reserved(&self, blocks: &[Rc<Block>]) -> Reservation<T> {
        let place = blocks.binary_search_by_key(&self.processor(), |block| block.processor.id);
        let block = blocks[place.expect("all targets were reserved")].clone();
        Reservation { target: Separate::clone(self), block }
    }
}

impl<T> sealed::Sealed for &[Separate<T>] {}

#[allow(private_interfaces, reason = "as above")]
impl<T> Targets for &[Separate<T>] {
    type Reserved = Vec<Reservation<T>>;

    fn processors<'a>(&'a self, all: &mut Vec<&'a Arc<Processor>>) {
        all.extend(self.iter().map(|separate| &separate.export.processor));
    }

    fn reserved(&self, blocks: &[Rc<Block>]) -> Vec<Reservation<T>> {
        self.iter().map(|separate| separate.reserved(blocks)).collect()
    }
}

macro_rules! tuple {
    ($($name:ident)*) => {
        impl<$($name),*> sealed::Sealed for ($(&Separate<$name>,)*) {}

        #[allow(private_interfaces, reason = "as above")]
        #[allow(non_snake_case, reason = "types and fields have the same names")]
        impl<$($name),*> Targets for ($(&Separate<$name>,)*) {
            type Reserved = ($(Reservation<$name>,)*);

            fn processors<'a>(&'a self, all: &mut Vec<&'a Arc<Processor>>) {
                let ($($name,)*) = self;
                $($name.processors(all);)*
            }

            fn reserved(&self, blocks: &[Rc<Block>]) -> Self::Reserved {
                let ($($name,)*) = self;
                ($($name.reserved(blocks),)*)
            }
        }
    };
}

tuple!(A B);
tuple!(A B C);
tuple!(A B C D);
