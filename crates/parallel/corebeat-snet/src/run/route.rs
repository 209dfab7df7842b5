//! Routes: the processing of records of one shape, computed once for each shape.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use crate::shape::Shape;

/// Routes in the cache of one replica, beside the most recent one. One more route clears the cache.
const OLDER_MAX: usize = 63;

/// All routes of one entity, shared by its replicas.
pub(crate) struct Table<T>(RwLock<HashMap<Shape, Arc<T>>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table(RwLock::default())
    }
}

/// Cache of routes of one replica. A record usually has the shape of a recent record.
pub(crate) struct Routes<T> {
    /// Beside the other data of the replica: most replicas have records of one shape.
    recent: Option<(Shape, Arc<T>)>,
    older: Vec<(Shape, Arc<T>)>,
}

impl<T> Default for Routes<T> {
    fn default() -> Self {
        Routes { recent: None, older: Vec::new() }
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
        match &self.recent {
            Some((recent, _)) if *recent == shape => {}
            _ => self.change(shape, table, make)?,
        }
        Ok(&self.recent.as_ref().expect("a change sets the route").1)
    }

    /// Makes the route for another shape the most recent one.
    #[inline(never)]
    fn change<E>(
        &mut self,
        shape: Shape,
        table: &Table<T>,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<(), E> {
        let route = match self.older.iter().position(|(older, _)| *older == shape) {
            Some(at) => self.older.swap_remove(at),
            None => (shape, Self::load(shape, table, make)?),
        };
        if let Some(before) = self.recent.replace(route) {
            if self.older.len() == OLDER_MAX {
                self.older.clear();
            }
            self.older.push(before);
        }
        Ok(())
    }

    #[cold]
    fn load<E>(
        shape: Shape,
        table: &Table<T>,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let known = table.0.read().unwrap_or_else(|e| e.into_inner()).get(&shape).cloned();
        if let Some(route) = known {
            return Ok(route);
        }
        let route = Arc::new(make()?);
        let mut all = table.0.write().unwrap_or_else(|e| e.into_inner());
        Ok(all.entry(shape).or_insert(route).clone())
    }
}
