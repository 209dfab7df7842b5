//! Ranks of an MPI run: messages of bytes in order, exchanged by one thread.
//!
//! Place in the loop: base; uses an MPI library, with the feature `mpi`.
//!
//! # Example
//!
//! ```no_run
//! # #[cfg(feature = "mpi")]
//! # fn run(
//! #     node: impl Fn(u32, u32, corebeat_mpi::Bell) -> std::sync::Arc<dyn corebeat_mpi::Exchange>,
//! # ) -> Result<(), corebeat_mpi::Error> {
//! use corebeat_mpi::Ranks;
//!
//! let ranks = Ranks::start()?;
//! ranks.agree(Ok(vec![("program".into(), 42)]))?;
//! ranks.exchange(node(ranks.rank(), ranks.size(), ranks.bell()), |why| eprintln!("{why}"))?;
//! // The tasks of this rank run here.
//! ranks.finish()
//! # }
//! ```
//!
//! # Model
//!
//! ```text
//!   tasks --> node.take(to) --MPI_Isend--> [another rank] --MPI_Imrecv-> node.receive(from, ..)
//!     '--- bell ---> thread of MPI: looks for messages, and sleeps longer and longer without any
//! ```
//!
//! One thread of each rank makes all calls of MPI (`MPI_THREAD_FUNNELED`), so that no task waits in
//! MPI. MPI cannot wake a thread for a message and for a task, so the thread looks for messages:
//! all the time while there are any, and otherwise again after an eighth of the time since the last
//! one, at most 1 ms. So a message waits for an eighth of the time since the one before it at most,
//! and a rank without messages sleeps. The bell wakes the thread at once. MPI delivers the messages
//! between two ranks in order. `examples/echo.rs` measures both.
//!
//! # Invariants
//!
//! 1. Messages from one rank to another arrive in order and complete
//!    (`messages_of_all_sizes_arrive_in_order`, a program of four ranks).
//! 2. All ranks have the same program, or none runs (`ranks_with_different_programs_disagree`).
//! 3. Bytes that rank 0 gathers at the end do not mix with messages (the test of invariant 1).
//!
//! # Failure
//!
//! [`Error`] is the error type. A message that the receiver refuses ends the whole run by
//! `MPI_Abort`, after a report, and so does a panic in an [`Exchange`]
//! (`panic_of_a_receiver_ends_the_run`), and a run that makes no progress by the account of its
//! [`Exchange`] (`run_without_progress_ends`). If a rank dies, the starter of the run (`mpirun`)
//! ends the others and names the rank. A process that ends without `Ranks::finish` ends the run by
//! `MPI_Abort`, too.
//!
//! # Limits
//!
//! A message has less than 2 GiB. MPI can be started once in a process.

#[cfg(feature = "mpi")]
mod thread;

use std::env::{self, VarError};
use std::ops::Deref;
use std::sync::Arc;

#[cfg(feature = "mpi")]
pub use thread::Ranks;

/// Called by tasks when there are bytes for another rank.
pub type Bell = Box<dyn Fn() + Send + Sync>;

/// A message to another rank. MPI sends the bytes from where they are, and reads them until they
/// have been sent. Code that can change them without a mutable reference to the value, such as code
/// in C with their address, must not do so after [`Exchange::take`] has returned the message.
pub type Outbound = Box<dyn AsRef<[u8]> + Send>;

/// A message from another rank.
#[derive(Debug, Default)]
pub struct Inbound {
    words: Vec<u128>,
    len: usize,
}

impl Inbound {
    /// The memory of the message, and its length in bytes. An endpoint may take the memory out;
    /// otherwise, it is used for further messages.
    pub fn words(&mut self) -> (&mut Vec<u128>, usize) {
        (&mut self.words, self.len)
    }
}

impl Deref for Inbound {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let len = self.len.min(size_of_val(&self.words[..]));
        // SAFETY: the words have this number of initialised bytes, and bytes need no alignment.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), len) }
    }
}

/// Endpoint of a rank: the source and the destination of messages.
pub trait Exchange: Send + Sync {
    /// Returns the next message for another rank, if there is one.
    fn take(&self, to: u32) -> Option<Outbound>;

    /// Takes a message from another rank. Messages of one rank arrive in the order in which it sent
    /// them. Must not block.
    ///
    /// # Errors
    ///
    /// Returns the reason if the message is not valid. The run is aborted.
    fn receive(self: Arc<Self>, from: u32, message: &mut Inbound) -> Result<(), String>;

    /// Returns memory for a message of this number of bytes, whose content will be replaced. Memory
    /// of a smaller capacity is freed, and not used.
    fn memory(&self, bytes: usize) -> Option<Vec<u128>> {
        let _ = bytes;
        None
    }

    /// Called from time to time while no message arrives.
    ///
    /// # Errors
    ///
    /// Returns the reason if the run makes no progress. The run is aborted.
    fn look(&self) -> Result<(), String> {
        Ok(())
    }

    /// Whether nothing is sent or received any more after the remaining `take`s.
    fn has_ended(&self) -> bool;
}

/// Failure of a run on several ranks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This program has no MPI.
    #[error(
        "the run has {ranks} ranks, and this program was built without MPI: build it with the \
         feature 'mpi' (needs Open MPI or MPICH with headers, and libclang), or start it without \
         mpirun"
    )]
    Missing {
        /// Number of ranks in the environment.
        ranks: u32,
    },
    /// MPI does not start.
    #[error("MPI cannot be started: {0}")]
    Start(&'static str),
    /// A rank cannot run, or has another program than rank 0.
    #[error("rank {rank}: {why}")]
    Rank {
        /// The rank.
        rank: u32,
        /// Reason.
        why: String,
    },
    /// The run was refused, and rank 0 reports the reason.
    #[error("the run was refused: rank 0 has the reason")]
    Refused,
    /// A rank has received an invalid message. The run is aborted.
    #[error("rank {rank}: {why}; the run is aborted")]
    Message {
        /// Rank of the receiver.
        rank: u32,
        /// Reason.
        why: String,
    },
    /// The run makes no progress, and is aborted.
    #[error("{0}; the run is aborted")]
    Stalled(String),
    /// The thread of MPI has ended early.
    #[error("the thread of MPI has ended early")]
    Ended,
}

/// Variables that a starter of MPI programs sets to the number of ranks: Open MPI, MPICH with Hydra
/// and its relatives, and Slurm's step with PMIx.
const SIZES: [(&str, Option<&str>); 3] = [
    ("OMPI_COMM_WORLD_SIZE", None),
    ("PMI_SIZE", None),
    ("SLURM_STEP_NUM_TASKS", Some("PMIX_RANK")),
];

/// Number of ranks of the run in which the environment states that this process is. 1 if it is not
/// in a run of MPI.
pub fn expected() -> u32 {
    expected_in(env::var)
}

fn expected_in(var: impl Fn(&'static str) -> Result<String, VarError>) -> u32 {
    let size = |(name, with): &(&'static str, Option<&'static str>)| {
        let is_set = with.is_none_or(|with| var(with).is_ok());
        var(name).ok().filter(|_| is_set)?.trim().parse::<u32>().ok()
    };
    SIZES.iter().find_map(size).unwrap_or(1).max(1)
}

/// Requires that this process is alone, for programs and commands that do not run on several ranks.
///
/// # Errors
///
/// Returns [`Error::Missing`] if the environment announces several ranks.
pub fn require_alone() -> Result<(), Error> {
    match expected() {
        1 => Ok(()),
        ranks => Err(Error::Missing { ranks }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_ranks_is_read_from_the_environment() {
        let of = |set: &[(&str, &str)]| {
            expected_in(|name| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).into()).ok_or(VarError::NotPresent)
            })
        };
        assert_eq!(of(&[]), 1);
        assert_eq!(of(&[("OMPI_COMM_WORLD_SIZE", "4")]), 4);
        assert_eq!(of(&[("PMI_SIZE", "2")]), 2);
        // The step of a batch script is no run of MPI.
        assert_eq!(of(&[("SLURM_STEP_NUM_TASKS", "8")]), 1);
        assert_eq!(of(&[("SLURM_STEP_NUM_TASKS", "8"), ("PMIX_RANK", "0")]), 8);
        assert_eq!(of(&[("OMPI_COMM_WORLD_SIZE", "many"), ("PMI_SIZE", "0")]), 1);
    }
}
