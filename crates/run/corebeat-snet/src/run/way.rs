//! Ways: what an entity does with records of one shape, worked out once for each shape.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use crate::shape::Shape;

/// Ways that a task remembers by itself. One that meets more shapes than that forgets all of them and begins anew.
const REMEMBERED_MAX: usize = 64;

/// All ways of one entity of a network, for all its replicas.
pub(crate) struct Table<T>(RwLock<HashMap<Shape, Arc<T>>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table(RwLock::default())
    }
}

/// The ways that one replica has met. The next record has mostly the shape of the last, or of one not long ago.
pub(crate) struct Ways<T> {
    /// The last one comes first.
    met: Vec<(Shape, Arc<T>)>,
}

impl<T> Default for Ways<T> {
    fn default() -> Self {
        Ways { met: Vec::new() }
    }
}

impl<T> Ways<T> {
    /// The way for this shape, which `make` works out if nobody has.
    #[inline]
    pub(crate) fn get<E>(
        &mut self,
        shape: Shape,
        table: &Table<T>,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&T, E> {
        if self.met.first().is_none_or(|(s, _)| *s != shape) {
            self.change(shape, table, make)?;
        }
        Ok(&self.met[0].1)
    }

    /// Puts the way for another shape than the last one first.
    #[inline(never)]
    fn change<E>(
        &mut self,
        shape: Shape,
        table: &Table<T>,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<(), E> {
        let at = match self.met.iter().position(|(s, _)| *s == shape) {
            Some(at) => at,
            None => self.learn(shape, table, make)?,
        };
        self.met.swap(0, at);
        Ok(())
    }

    #[cold]
    fn learn<E>(
        &mut self,
        shape: Shape,
        table: &Table<T>,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<usize, E> {
        let known = table.0.read().unwrap_or_else(|e| e.into_inner()).get(&shape).cloned();
        let way = match known {
            Some(way) => way,
            None => {
                let way = Arc::new(make()?);
                table.0.write().unwrap_or_else(|e| e.into_inner()).entry(shape).or_insert(way).clone()
            }
        };
        if self.met.len() == REMEMBERED_MAX {
            self.met.clear();
        }
        self.met.push((shape, way));
        Ok(self.met.len() - 1)
    }
}
