//! Quantities that policies compute from the samples of a program.

pub mod progress;
pub(crate) mod ratio;
