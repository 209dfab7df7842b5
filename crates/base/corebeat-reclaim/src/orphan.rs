//! Retired values of threads that have ended.

use crate::Retired;
use corebeat_sync::{Mutex, const_unless_loom, lock};

/// Retired values whose threads ended before their grace periods did.
#[derive(Debug)]
pub struct Orphans<S = ()>(Mutex<Vec<Retired<S>>>);

impl<S> Orphans<S> {
    const_unless_loom! {
        /// Creates an empty list.
        pub fn new() -> Orphans<S> {
            Orphans(Mutex::new(Vec::new()))
        }
    }

    /// Moves the retired values of a thread to the list.
    pub fn abandon(&self, retired: &mut Vec<Retired<S>>) {
        if !retired.is_empty() {
            lock(&self.0).append(retired);
        }
    }

    /// Moves all orphans to the retired values of a thread.
    pub fn adopt(&self, retired: &mut Vec<Retired<S>>) {
        retired.append(&mut lock(&self.0));
    }
}

impl<S> Default for Orphans<S> {
    fn default() -> Self {
        Orphans::new()
    }
}
