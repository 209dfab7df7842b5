//! The subjects of the scoop benches.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Subject {
    Corebeat,
    #[value(name = "objects only")]
    ObjectsOnly,
    #[value(name = "processor as object")]
    ProcessorAsObject,
    /// Corebeat without collections.
    #[value(name = "corebeat, no collections")]
    Idle,
    /// Corebeat without collections, while another thread computes: the system divides the time of
    /// the CPUs among as many threads as with collections.
    Limit,
    GcArena,
    Go,
    #[value(name = "java, serial")]
    Java,
    Actix,
    Ractor,
}
