//! Patterns: how the threads of a server divide detection and processing.
//!
//! The first two are those of Strebelow and Prehofer, *Analysis of Event Processing Design Patterns
//! and Their Performance Dependency on I/O Notification Mechanisms*, 2012, section 3, after Schmidt
//! and others, *Pattern-Oriented Software Architecture*, volume 2, 2000.

mod half_sync;
mod leader;
mod per_core;

pub(crate) use half_sync::HalfSync;
pub(crate) use leader::LeaderFollowers;
pub(crate) use per_core::PerCore;

use crate::server::{Engine, Regime, Scratch};
use std::ffi::CStr;

/// Division of the work between the threads of a server.
pub(crate) trait Division: Send + Sync {
    /// Returns the number of interest sets for this number of threads.
    fn sets(&self, _threads: usize) -> usize {
        1
    }

    /// Returns the name of the thread with this number in the system, at most 15 bytes. It states
    /// the role of the thread.
    fn role(&self, thread: usize) -> &'static CStr;

    /// Runs the thread with this number, until the regime is over.
    fn run(&self, engine: &Engine, regime: &Regime, thread: usize, scratch: &mut Scratch);

    /// Wakes the threads that wait outside the interest sets, after the regime is over.
    fn wake(&self) {}
}
