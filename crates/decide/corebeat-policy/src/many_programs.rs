//! Policies that divide the CPUs among programs that a user starts together.

pub mod adapt;
pub mod alternation;
pub mod cosched;
