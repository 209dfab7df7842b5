//! Routes: the processing of records of one shape, computed once for each shape.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use crate::shape::Shape;

/// Routes in the cache of one replica. One more route clears the cache.
const CACHED_MAX: usize = 64;

/// All routes of one entity, shared by its replicas.
pub(crate) struct Table<T>(RwLock<HashMap<Shape, Arc<T>>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table(RwLock::default())
    }
}

/// Cache of routes of one replica. A record usually has the shape of a recent record.
pub(crate) struct Routes<T> {
    /// The most recent route is first.
    cached: Vec<(Shape, Arc<T>)>,
}

impl<T> Default for Routes<T> {
    fn default() -> Self {
        Routes { cached: Vec::new() }
    }
}

impl<T> Routes<T> {
    /// Returns the route for this shape. Calls `make` if no replica has computed the route.
    #[inline]
    pub(crate) fn get<E>(
        &mut self,
        shape: Shape,
        table: &Table<T>,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&T, E> {
        if self.cached.first().is_none_or(|(s, _)| *s != shape) {
            self.change(shape, table, make)?;
        }
        Ok(&self.cached[0].1)
    }

    /// Moves the route for another shape to the front.
    #[inline(never)]
    fn change<E>(
        &mut self,
        shape: Shape,
        table: &Table<T>,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<(), E> {
        let at = match self.cached.iter().position(|(s, _)| *s == shape) {
            Some(at) => at,
            None => self.load(shape, table, make)?,
        };
        self.cached.swap(0, at);
        Ok(())
    }

    #[cold]
    fn load<E>(
        &mut self,
        shape: Shape,
        table: &Table<T>,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<usize, E> {
        let known = table.0.read().unwrap_or_else(|e| e.into_inner()).get(&shape).cloned();
        let route = match known {
            Some(route) => route,
            None => {
                let route = Arc::new(make()?);
                table
                    .0
                    .write()
                    .unwrap_or_else(|e| e.into_inner())
                    .entry(shape)
                    .or_insert(route)
                    .clone()
            }
        };
        if self.cached.len() == CACHED_MAX {
            self.cached.clear();
        }
        self.cached.push((shape, route));
        Ok(self.cached.len() - 1)
    }
}
