//! Values by key. Keys are not reused, so that a late report of the system reaches no later value.

use slab::Slab;

/// Bits of a key that are the place of a value.
const PLACE_BITS: u32 = 32;

pub(crate) struct Table<T> {
    values: Slab<(u64, T)>,
    /// Number of values so far, modulo 2^31: the keys from 2^63 on are those of no value.
    count: u32,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { values: Slab::new(), count: 0 }
    }
}

impl<T> Table<T> {
    /// Inserts a value, and returns its key.
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        self.count = (self.count + 1) & (u32::MAX >> 1);
        // Places fit, because each value has a descriptor.
        let key = u64::from(self.count) << PLACE_BITS | self.values.vacant_key() as u64;
        self.values.insert((key, value));
        key
    }

    pub(crate) fn get(&self, key: u64) -> Option<&T> {
        self.values.get(place(key)).filter(|(own, _)| *own == key).map(|(_, value)| value)
    }

    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
        self.get(key)?;
        Some(self.values.remove(place(key)).1)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.values.iter().map(|(_, (_, value))| value)
    }

    /// Removes all values.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        self.values.drain().map(|(_, value)| value).collect()
    }
}

fn place(key: u64) -> usize {
    (key & ((1 << PLACE_BITS) - 1)) as usize
}
