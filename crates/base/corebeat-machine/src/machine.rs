//! The traits of the control loop: [`Machine`], [`Policy`] and [`Clock`].

use crate::{
    Action, AppliedAction, Decision, Effect, Inaction, ProgramId, Restored, Snapshot, Topology,
};

/// A machine that can be observed and acted upon: a Linux host or a simulated machine.
///
/// All machines have the same semantics, which the conformance suite checks:
///
/// - Every `None` in an action restores the value that the thread or program had before the first
///   change, never a default of the system.
/// - [`Action::SetNice`] adds to the nice value of each thread; the sum is clamped to -20..=19.
/// - Threads that start later inherit the settings of their program.
/// - An action on a target that has ended succeeds and changes nothing. An unknown program or
///   thread is an error.
/// - A repeated action changes nothing.
pub trait Machine {
    /// Reason why the machine cannot be observed or does not carry out an action.
    type Error: std::error::Error;

    /// Returns the CPUs, nodes and caches of the machine.
    fn topology(&self) -> &Topology;

    /// Returns what happened since the last call, or since the machine was created.
    ///
    /// # Errors
    /// Fails if the machine cannot be observed at all. A thread or program that ends during the
    /// observation is not an error.
    fn observe(&mut self) -> Result<Snapshot, Self::Error>;

    /// Takes a cheap sample between two observations. The control loop calls this function about
    /// ten times a second.
    fn sample(&mut self) {}

    /// Carries out an action and returns what the action changed.
    ///
    /// # Errors
    /// Fails if a value is invalid, the target is unknown, or the machine does not permit or
    /// support the action. After an error nothing is changed.
    fn act(&mut self, action: &Action) -> Result<Effect, Self::Error>;

    /// Undoes every change that is still in effect: every thread and program has its own values
    /// again.
    fn restore(&mut self) -> Restored;
}

/// A mapping from snapshots to decisions. Policies are pure: the same snapshots and outcomes give
/// the same decisions on every machine.
pub trait Policy {
    /// Returns the name of the policy, as users write it.
    fn name(&self) -> &'static str;

    /// Returns the changes to make now. The control loop calls this function once for each
    /// snapshot, in order.
    fn decide(&mut self, snapshot: &Snapshot) -> Vec<Decision>;

    /// Receives the outcome of each decision, in order, before the next call of `decide`.
    fn outcome(&mut self, applied: &AppliedAction) {
        let _ = applied;
    }

    /// Returns why the policy, or each policy that it combines, last left a program as it is. Empty
    /// if the policy acts on the program, or states no reasons.
    fn inactions(&self, program: ProgramId) -> Vec<Inaction> {
        let _ = program;
        vec![]
    }
}

/// A source of time: the clock of the host, or the virtual clock of a simulator.
pub trait Clock {
    /// Returns the time in nanoseconds since a fixed moment. The time never decreases.
    fn now_ns(&self) -> u64;

    /// Waits until the given moment. Returns earlier after an event that requires attention, such
    /// as the end of a program or a signal.
    fn wait_until(&mut self, at_ns: u64);
}
