//! Corebeat for C and C++: `libcorebeat.so` and `libcorebeat.a`, with the headers `include/hrm.h` and
//! `include/invasive_computing.h`, which say what each function does.
//!
//! Place in the loop: app; stands on corebeat-heartbeat and corebeat-claim, and adds nothing but their C side.
//!
//! # Example
//!
//! `examples/` has one in C, one in C++ with OpenMP, one in Python, and the paper's Listing 1.1. `tests/examples.rs` runs them.
//!
//! # Invariants
//!
//! 1. No call panics into its caller: what goes wrong is an error number, and words (`call_that_panics_is_an_error`).
//! 2. What the headers say and what is exported is the same (the examples are compiled against the headers, and linked).

#![allow(non_camel_case_types, reason = "C's names")]
#![allow(clippy::missing_safety_doc, reason = "the headers have the contracts; Rust has its own crates")]

pub mod claim;
pub mod hrm;
mod why;
