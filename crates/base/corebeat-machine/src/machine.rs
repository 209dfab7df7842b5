//! The three traits that the loop is made of.

use crate::{Action, Decision, Snapshot, Topology};

/// A machine that can be watched and steered: a Linux host, or a simulated one.
pub trait Machine {
    /// Why it could not be observed, or would not carry out an action.
    type Error: std::error::Error;

    /// How it is put together.
    fn topology(&self) -> &Topology;

    /// What happened since the last call, or since the machine was made.
    ///
    /// # Errors
    /// Where the machine cannot be seen at all. A thread or program that ends meanwhile is no error.
    fn observe(&mut self) -> Result<Snapshot, Self::Error>;

    /// A cheap look between two observations, for what must be sampled. The loop calls it about ten times a second.
    fn glance(&mut self) {}

    /// Carries out an action.
    ///
    /// # Errors
    /// Where it is not allowed, or makes no sense here. A target that has ended is no error. After an error nothing
    /// is changed.
    fn act(&mut self, action: &Action) -> Result<(), Self::Error>;
}

/// What to do about what was seen. Pure: the same snapshots give the same decisions, on every machine.
pub trait Policy {
    /// Its name, as users write it.
    fn name(&self) -> &'static str;

    /// What to do now. Called once for every snapshot, in order.
    fn decide(&mut self, seen: &Snapshot) -> Vec<Decision>;
}

/// Time, passed in: the host's, or a simulator's virtual one.
pub trait Clock {
    /// Nanoseconds since a fixed moment; never goes back.
    fn now_ns(&self) -> u64;

    /// Waits until the moment, or less if something happened that is worth a look (a program ended, a signal came).
    fn wait_until(&mut self, at_ns: u64);
}
