//! References to objects: in the same region, from one region to another, and from outside of all heaps.

use crate::processor::Processor;
use std::any::type_name;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::sync::Arc;

/// Where an object is: objects of one type and one region are a pool, and the pool knows the region. No object does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct At {
    pub(crate) pool: NonZeroU32,
    pub(crate) index: u32,
}

/// An object of the processor that has this: `here[gc]` is the object.
///
/// It is a number, for use within one call and inside of objects: it goes nowhere else, as it is not `Send`.
///
/// ```compile_fail
/// # use corebeat_scoop::*;
/// fn smuggle(shop: &Separate<u64>, client: &Client, mine: Gc<u64>) {
///     shop.command(client, move |here, _| here[mine] += 1); // `Gc` cannot be sent between threads safely
/// }
/// ```
///
/// ```compile_fail
/// # use corebeat_scoop::*;
/// fn smuggle(shop: &Separate<u64>, client: &Client) -> Gc<u64> {
///     shop.query(client, |_, shop| shop).unwrap() // the same
/// }
/// ```
pub struct Gc<T> {
    pub(crate) at: At,
    // Not Send, not Sync.
    of: PhantomData<*const T>,
}

/// An object of any processor, as a field of an object.
///
/// What can be done with it: [`Here::hold`](crate::Here::hold), which gives a [`Separate`] to call; and
/// [`Here::own`](crate::Here::own), where it may be an object of one's own. Like [`Gc`] it is not `Send`.
///
/// (The `Link` of `corebeat-clustered` is another thing: a reference that all threads share, to what may be replaced.)
///
/// ```compile_fail
/// # use corebeat_scoop::*;
/// fn smuggle(shop: &Separate<u64>, client: &Client, far: Link<u64>) {
///     shop.command(client, move |here, _| drop(here.hold(far))); // `Link` cannot be sent between threads safely
/// }
/// ```
pub struct Link<T> {
    pub(crate) at: At,
    of: PhantomData<*const T>,
}

/// An object of some processor, from outside of all heaps: what is called, what goes into calls, what threads hold.
///
/// While there is one, the object lives, and so does its processor. In an object it would keep its target alive for ever, even in a
/// circle: put a [`Link`] there.
///
/// ```compile_fail
/// # use corebeat_scoop::*;
/// #[derive(Trace)]
/// struct Wrong { other: Separate<u64> } // `Separate<u64>: Trace` is not satisfied
/// ```
pub struct Separate<T> {
    pub(crate) export: Arc<Export>,
    // As a function that gives such an object: Send and Sync, whatever it is.
    of: PhantomData<fn() -> T>,
}

/// An object that is known outside of all heaps; so a root.
pub(crate) struct Export {
    pub(crate) processor: Arc<Processor>,
    pub(crate) at: At,
}

impl Drop for Export {
    fn drop(&mut self) {
        self.processor.forget_export(self.at);
    }
}

macro_rules! handle {
    ($name:ident) => {
        impl<T> $name<T> {
            pub(crate) fn new(at: At) -> Self {
                $name { at, of: PhantomData }
            }
        }

        impl<T> Clone for $name<T> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T> Copy for $name<T> {}

        impl<T> PartialEq for $name<T> {
            fn eq(&self, other: &Self) -> bool {
                self.at == other.at
            }
        }

        impl<T> Eq for $name<T> {}

        impl<T> Hash for $name<T> {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.at.hash(state);
            }
        }

        impl<T> fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(
                    f,
                    concat!(stringify!($name), "<{}>({}:{})"),
                    type_name::<T>(),
                    self.at.pool,
                    self.at.index
                )
            }
        }
    };
}

handle!(Gc);
handle!(Link);

impl<T> From<Gc<T>> for Link<T> {
    fn from(gc: Gc<T>) -> Link<T> {
        Link::new(gc.at)
    }
}

impl<T> Separate<T> {
    pub(crate) fn new(export: Arc<Export>) -> Self {
        Separate { export, of: PhantomData }
    }

    /// The number of its processor, as in reports of deadlocks.
    pub fn processor(&self) -> u64 {
        self.export.processor.id
    }
}

impl<T> Clone for Separate<T> {
    fn clone(&self) -> Self {
        Separate::new(self.export.clone())
    }
}

impl<T> PartialEq for Separate<T> {
    fn eq(&self, other: &Self) -> bool {
        self.export.at == other.export.at && Arc::ptr_eq(&self.export.processor, &other.export.processor)
    }
}

impl<T> Eq for Separate<T> {}

impl<T> fmt::Debug for Separate<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let At { pool, index } = self.export.at;
        write!(f, "Separate<{}>({pool}:{index})", type_name::<T>())
    }
}
