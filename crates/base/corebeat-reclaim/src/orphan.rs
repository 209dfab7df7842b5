//! Retired values of threads that have ended.

use crate::Retired;
use corebeat_sync::const_unless_loom;
use corebeat_sync::fork::ForkMutex;

/// Retired values whose threads ended before their grace periods did. A child of fork inherits
/// them, also if another thread was changing the list at the fork.
#[derive(Debug)]
pub struct Orphans<S = ()>(ForkMutex<Vec<Retired<S>>>);

impl<S> Orphans<S> {
    const_unless_loom! {
        /// Creates an empty list.
        pub fn new() -> Orphans<S> {
            Orphans(ForkMutex::new(Vec::new()))
        }
    }

    /// Moves the retired values of a thread to the list.
    pub fn abandon(&self, retired: &mut Vec<Retired<S>>) {
        if !retired.is_empty() {
            self.0.lock().append(retired);
        }
    }

    /// Moves all orphans to the retired values of a thread.
    pub fn adopt(&self, retired: &mut Vec<Retired<S>>) {
        retired.append(&mut self.0.lock());
    }
}

impl<S> Default for Orphans<S> {
    fn default() -> Self {
        Orphans::new()
    }
}
