//! Corebeat for C and C++: `libcorebeat.so` and `libcorebeat.a`, with the headers `include/hrm.h`,
//! `include/invasive_computing.h`, `include/clustered.h` and those in `include/tinystm`, which say what each function does.
//!
//! Place in the loop: app; stands on corebeat-heartbeat, corebeat-claim, corebeat-clustered and corebeat-stm, and adds nothing but their C side.
//!
//! # Example
//!
//! `examples/` has two in C, one in C++ with OpenMP, one in Python, and the paper's Listing 1.1. `tests/examples.rs` runs them.
//!
//! # Invariants
//!
//! 1. No call panics into its caller: what goes wrong is an error number, and words (`call_that_panics_is_an_error`).
//!    Transactions have no way to return one: misuse ends the process, with a line.
//! 2. What the headers say and what is exported is the same (the examples are compiled against the headers, and linked).
//! 3. A failed transaction jumps over frames that own nothing (`stm`, top of the file).

#![allow(non_camel_case_types, reason = "C's names")]
#![allow(clippy::missing_safety_doc, reason = "the headers have the contracts; Rust has its own crates")]

pub mod claim;
pub mod clustered;
pub mod hrm;
pub mod module;
pub mod stm;
mod why;
