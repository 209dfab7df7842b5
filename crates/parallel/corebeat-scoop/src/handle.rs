//! References to objects: within a region, between regions, and from outside of all regions.

use crate::processor::Processor;
use std::any::type_name;
use std::fmt;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::sync::Arc;

/// Location of an object: the objects of one type in one region are a pool, and the pool determines
/// the region. Objects do not refer to their region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct At {
    pub(crate) pool: NonZeroU32,
    pub(crate) index: u32,
}

/// The hashes of locations. They do not differ between runs, so equal seeds of a deterministic
/// runtime give equal orders of marking.
pub(crate) type AtHasher = BuildHasherDefault<DefaultHasher>;

/// A reference to an object of the same processor: `here[gc]` is the object.
///
/// It is a number for use within one call and in fields of objects. It is not `Send`, so it cannot
/// leave them.
///
/// ```compile_fail
/// # use corebeat_scoop::*;
/// fn smuggle(shop: &Separate<u64>, client: &Client, mine: Gc<u64>) {
///     // `Gc` cannot be sent between threads safely
///     shop.command(client, move |here, _| here[mine] += 1);
/// }
/// ```
///
/// ```compile_fail
/// # use corebeat_scoop::*;
/// fn smuggle(shop: &Separate<u64>, client: &Client) -> Gc<u64> {
///     shop.query(client, |_, shop| shop).unwrap() // as above
/// }
/// ```
pub struct Gc<T> {
    pub(crate) at: At,
    // Not Send, not Sync.
    of: PhantomData<*const T>,
}

/// A reference to an object of any processor, for fields of objects.
///
/// [`Here::hold`](crate::Here::hold) returns a [`Separate`] for calls;
/// [`Here::own`](crate::Here::own) returns a [`Gc`] if the object belongs to the same processor.
/// Like [`Gc`], a `Link` is not `Send`.
///
/// (The `Link` of `corebeat-clustered` is a different type: a shared reference to a replaceable
/// value.)
///
/// ```compile_fail
/// # use corebeat_scoop::*;
/// fn smuggle(shop: &Separate<u64>, client: &Client, far: Link<u64>) {
///     // `Link` cannot be sent between threads safely
///     shop.command(client, move |here, _| drop(here.hold(far)));
/// }
/// ```
pub struct Link<T> {
    pub(crate) at: At,
    of: PhantomData<*const T>,
}

/// A reference to an object from outside of all regions: the target of calls, an argument of calls,
/// or held by threads.
///
/// A `Separate` keeps the object and its processor alive. In a field of an object it would keep its
/// target alive forever, even in a cycle: use a [`Link`] there.
///
/// ```compile_fail
/// # use corebeat_scoop::*;
/// #[derive(Trace)]
/// struct Wrong { other: Separate<u64> } // `Separate<u64>: Trace` is not satisfied
/// ```
pub struct Separate<T> {
    pub(crate) export: Arc<Export>,
    // As a function that returns such an object: `Send` and `Sync` for every type.
    of: PhantomData<fn() -> T>,
}

/// An object with references from outside of all regions, which makes it a root.
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

    /// Returns the number of the processor, as in reports of deadlocks.
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
        self.export.at == other.export.at
            && Arc::ptr_eq(&self.export.processor, &other.export.processor)
    }
}

impl<T> Eq for Separate<T> {}

impl<T> fmt::Debug for Separate<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let At { pool, index } = self.export.at;
        write!(f, "Separate<{}>({pool}:{index})", type_name::<T>())
    }
}
