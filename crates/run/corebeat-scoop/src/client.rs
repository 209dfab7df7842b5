//! Who calls: reservations, commands, queries, and waiting for what others are to do.

use crate::error::{Error, Name};
use crate::handle::{Gc, Separate};
use crate::processor::{Processor, finalises};
use crate::queue::{Call, Run, Signal, lock};
use crate::region::Here;
use crate::system::Inner;
use crate::trace::Trace;
use corebeat_lpel::{Writer, stream};
use corebeat_sync::Mutex;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

/// Who calls processors: a thread or task that is none ([`System::client`](crate::System::client)), or a call ([`Here`]).
///
/// It stays where it was made:
///
/// ```compile_fail
/// fn hand_over(client: corebeat_scoop::Client) {
///     std::thread::spawn(move || drop(client)); // `Client` cannot be sent between threads safely
/// }
/// ```
pub struct Client {
    pub(crate) inner: Arc<Inner>,
    name: Name,
    // Waits in one place at a time.
    here: PhantomData<*const ()>,
}

impl Client {
    pub(crate) fn new(inner: Arc<Inner>, name: Name) -> Self {
        Client { inner, name, here: PhantomData }
    }

    /// Its number, as in reports of deadlocks.
    pub fn id(&self) -> u64 {
        self.name.id
    }

    pub(crate) fn check(&self, processor: &Processor) {
        assert!(processor.system == self.inner.id, "a processor of another system is none of ours");
    }

    /// A new processor, and its first object, which `f` makes there: later, before any other call. Others may call it at once.
    ///
    /// If `f` panics, the processor has failed. Where the collector is far behind, this waits 20 µs.
    pub fn create<T: Trace>(&self, f: impl FnOnce(&mut Here<'_>) -> T + Send + 'static) -> Separate<T> {
        self.inner.create(self.id(), f)
    }

    /// Reserves processors, all in one step: one, a tuple of up to four, or a slice.
    ///
    /// Calls on a reservation run in their order, and nobody else's come between them; reservations of the same
    /// processor in the order in which they were made. This does not wait. A reservation ends when it is dropped.
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
    /// If a processor is of another system.
    pub fn reserve<S: Targets>(&self, targets: S) -> S::Reserved {
        let blocks = self.reserve_blocks(&targets);
        targets.reserved(&blocks)
    }

    /// As [`Client::reserve`], when `condition` holds: it asks queries on the reservation. If it says `false`, the
    /// reservation is given up until another client has called one of these processors; then it is asked again.
    ///
    /// ```
    /// # use corebeat_scoop::*;
    /// # let system = System::new(corebeat_lpel::Runtime::new()?);
    /// # let client = system.client();
    /// # let account = client.create(|_| 0i64);
    /// # account.command(&client, |here, account| here[account] = 50);
    /// let rich = client.reserve_when(&account, |account| account.query(|here, it| here[it] >= 30))?;
    /// rich.command(|here, account| here[account] -= 30);
    /// # Ok::<(), Error>(())
    /// # .map_err(Box::<dyn std::error::Error>::from)?; Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// That of `condition`; and whoever would wait for others is unwinding, or a finaliser.
    ///
    /// # Panics
    ///
    /// As [`Client::reserve`].
    pub fn reserve_when<S: Targets>(
        &self,
        targets: S,
        mut condition: impl FnMut(&S::Reserved) -> Result<bool, Error>,
    ) -> Result<S::Reserved, Error> {
        loop {
            let blocks = self.reserve_blocks(&targets);
            let reserved = targets.reserved(&blocks);
            blocks.iter().for_each(|block| block.asks.set(true));
            let holds = condition(&reserved)?;
            blocks.iter().for_each(|block| block.asks.set(false));
            if holds {
                return Ok(reserved);
            }
            if std::thread::panicking() {
                return Err(Error::Unwinding);
            }
            if finalises() {
                return Err(Error::Finaliser);
            }
            let see = |block: &Rc<Block>| (block.processor.clone(), lock(&block.processor.queue).changes);
            let seen: Vec<_> = blocks.iter().map(see).collect();
            drop((reserved, blocks));
            let (writer, mut reader) = stream(1);
            let signal = corebeat_sync::Arc::new(Signal::new(writer));
            if seen.iter().all(|(processor, changes)| lock(&processor.queue).watch(*changes, &signal)) {
                reader.read();
            }
            seen.iter().for_each(|(processor, _)| lock(&processor.queue).unwatch(&signal));
        }
    }

    fn reserve_blocks(&self, targets: &impl Targets) -> Vec<Rc<Block>> {
        let mut processors = Vec::new();
        targets.processors(&mut processors);
        processors.sort_unstable_by_key(|processor| processor.id);
        processors.dedup_by_key(|processor| processor.id);
        processors.iter().for_each(|processor| self.check(processor));
        // In the order of their numbers, as everybody does.
        let mut queues: Vec<_> = processors.iter().map(|processor| lock(&processor.queue)).collect();
        let numbers: Vec<u64> = queues.iter_mut().map(|queue| queue.reserve(self.id())).collect();
        drop(queues);
        let block = |(processor, number): (&&Arc<Processor>, u64)| {
            Rc::new(Block {
                inner: self.inner.clone(),
                owner: self.name,
                processor: Arc::clone(processor),
                number,
                asks: Cell::new(false),
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

/// A client's place in the queue of a processor.
pub struct Block {
    inner: Arc<Inner>,
    owner: Name,
    processor: Arc<Processor>,
    number: u64,
    /// What is asked now changes nothing that others wait for.
    asks: Cell<bool>,
}

impl Block {
    fn log(&self, run: Run, waiter: Option<Writer<()>>) -> Result<(), Call> {
        let mut queue = lock(&self.processor.queue);
        queue.log(self.number, Call { run, changes: !self.asks.get(), waiter })?;
        let (starts, woken) = queue.starts();
        drop(queue);
        drop(woken);
        if starts {
            self.inner.activate(&self.processor, false);
        }
        Ok(())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut queue = lock(&self.processor.queue);
        queue.close(self.number);
        let (starts, woken) = queue.starts();
        drop(queue);
        drop(woken);
        if starts {
            self.inner.activate(&self.processor, false);
        }
    }
}

/// An object whose processor is reserved. It ends when it is dropped.
///
/// It stays with who has reserved:
///
/// ```compile_fail
/// # use corebeat_scoop::*;
/// fn hand_over(held: Reservation<u64>, other: &Separate<u64>, client: &Client) {
///     other.command(client, move |_, _| drop(held)); // `Reservation` cannot be sent between threads safely
/// }
/// ```
pub struct Reservation<T> {
    target: Separate<T>,
    block: Rc<Block>,
}

impl<T: Trace> Reservation<T> {
    /// Logs a command: `f` runs on the object's processor, after what was logged here before. This does not wait.
    ///
    /// If the processor has failed, nothing runs; the next query says so.
    pub fn command(&self, f: impl FnOnce(&mut Here<'_>, Gc<T>) + Send + 'static) {
        let target = self.target.clone();
        let run = Box::new(move |here: &mut Here<'_>| {
            let me = here.enter(&target);
            f(here, me);
        });
        // Where it has failed, the call is dropped here, after the lock.
        drop(self.block.log(run, None));
    }

    /// Runs `f` on the object's processor, after what was logged here before, and waits for its result.
    ///
    /// # Errors
    ///
    /// The processor has failed, by this call or one before; or the answer would never come, because those who must act
    /// first wait for whoever asks; or whoever asks is unwinding, or a finaliser.
    pub fn query<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Here<'_>, Gc<T>) -> R + Send + 'static,
    ) -> Result<R, Error> {
        if std::thread::panicking() {
            return Err(Error::Unwinding);
        }
        if finalises() {
            return Err(Error::Finaliser);
        }
        let Block { inner, processor, owner, .. } = &*self.block;
        lock(&inner.waits).begin(*owner, processor, self.block.number).map_err(Error::Deadlock)?;
        let _waits = Waits { inner, id: owner.id };
        let (waiter, mut reader) = stream(1);
        let answer = Arc::new(Mutex::new(None));
        let (target, to) = (self.target.clone(), answer.clone());
        let run = Box::new(move |here: &mut Here<'_>| {
            let me = here.enter(&target);
            let result = f(here, me);
            *lock(&to) = Some(result);
        });
        drop(self.block.log(run, Some(waiter)));
        reader.read();
        let answer = lock(&answer).take();
        answer.ok_or_else(|| processor.failure().unwrap_or(Error::Unwinding))
    }
}

impl<T> fmt::Debug for Reservation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation of {:?} by {}", self.target, self.block.owner)
    }
}

/// A client that waits for an answer.
struct Waits<'a> {
    inner: &'a Inner,
    id: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        lock(&self.inner.waits).end(self.id);
    }
}

impl<T: Trace> Separate<T> {
    /// [`Reservation::command`] on a reservation for this call alone.
    ///
    /// # Panics
    ///
    /// As [`Client::reserve`].
    pub fn command(&self, client: &Client, f: impl FnOnce(&mut Here<'_>, Gc<T>) + Send + 'static) {
        client.reserve(self).command(f);
    }

    /// [`Reservation::query`] on a reservation for this call alone.
    ///
    /// # Errors
    ///
    /// As [`Reservation::query`].
    ///
    /// # Panics
    ///
    /// As [`Client::reserve`].
    pub fn query<R: Send + 'static>(
        &self,
        client: &Client,
        f: impl FnOnce(&mut Here<'_>, Gc<T>) -> R + Send + 'static,
    ) -> Result<R, Error> {
        client.reserve(self).query(f)
    }
}

/// What can be reserved in one step: a [`Separate`], a tuple of up to four, or a slice.
#[allow(private_interfaces, reason = "nobody else implements it")]
pub trait Targets: sealed::Sealed {
    /// The reservations, in the same order.
    type Reserved;

    #[doc(hidden)]
    fn processors<'a>(&'a self, all: &mut Vec<&'a Arc<Processor>>);

    /// `blocks` are in the order of their processors' numbers.
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
        let block = blocks[place.expect("all were reserved")].clone();
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

        #[allow(private_interfaces, non_snake_case, reason = "as above; types and fields have the same names")]
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
