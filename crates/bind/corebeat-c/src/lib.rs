//! Corebeat for C and C++: `libcorebeat.so` and `libcorebeat.a`. The headers `include/hrm.h`,
//! `include/invasive_computing.h`, `include/clustered.h` and those in `include/tinystm` document
//! each function.
//!
//! Place in the loop: bind; exports corebeat-heartbeat, corebeat-claim, corebeat-clustered and
//! corebeat-stm to C.
//!
//! # Example
//!
//! `examples/` contains two programs in C, one in C++ with OpenMP, one in Python, and Listing 1.1
//! of the paper. `tests/examples.rs` runs them.
//!
//! # Invariants
//!
//! 1. No call panics into its caller: a failure returns an error number and records its reason
//!    (`call_that_panics_is_an_error`). Transactions cannot return errors: misuse ends the process
//!    with a line on standard error (`misused_transactions_end_the_process_with_one_line`).
//! 2. An error number is the same with and without a daemon
//!    (`misuse_in_c_returns_documented_errors`). No function waits for ever for a daemon that is
//!    stopped (`no_call_waits_for_ever_for_a_stopped_daemon`).
//! 3. The headers agree with the exported functions: the examples are compiled with the headers and
//!    linked (`functions_in_the_headers_of_transactions_are_exported`).
//! 4. A thread that ends leaves its groups (`threads_that_end_leave_their_groups`), and is not
//!    cancelled within a call (`thread_is_not_cancelled_within_a_call`).
//! 5. A child of fork ends a claim in C++ without the threads of its parent
//!    (`child_of_fork_ends_a_claim_of_its_parent_whose_cpus_run_openmp`), and runs transactions
//!    with modules (`child_of_fork_runs_transactions_whatever_locks_of_modules_were_held`).
//! 6. A claim has one descriptor
//!    (`descriptor_of_a_claim_stays_in_an_epoll_set_when_the_claim_moves`).
//! 7. A failed transaction jumps only over frames that own no values with destructors (module
//!    `stm`), and restores all registers, however the program has saved them
//!    (`transactions_in_c_agree_with_their_headers`).

#![allow(non_camel_case_types, reason = "names of C")]
#![allow(clippy::missing_safety_doc, reason = "the headers document the contracts")]

mod block;
pub mod claim;
pub mod clustered;
mod env;
pub mod hrm;
pub mod module;
pub mod stm;
mod thread_transaction;
mod why;
