//! Searches over complete runs of a program, and what their results show.

pub mod oversubscription;
pub mod reinforcer;
