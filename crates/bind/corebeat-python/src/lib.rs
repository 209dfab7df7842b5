//! Corebeat for Python: the native part of the package `corebeat`.
//!
//! Place in the loop: bind. The module `corebeat._native` converts values and errors between Python
//! and the crates of the workspace, and adds no behaviour to them. The files in `python/corebeat`
//! are the public part of the package: dataclasses, context managers, and the use of the program
//! `corebeat`, which the wheel contains as well.
//!
//! # Build
//!
//! ```text
//! cargo xtask wheel        # target/wheels/corebeat-VERSION-cp39-abi3-PLATFORM.whl
//! ```
//!
//! The feature `module` builds the module. Without this feature the crate is empty: builds and
//! tests of the workspace need neither PyO3 nor Python. One wheel serves CPython 3.9 and later
//! (the stable ABI), and its build needs no headers of Python.
//!
//! # Invariants
//!
//! The tests are in `tests/`, in Python; `cargo xtask ci --only python` runs them with an installed
//! wheel.
//!
//! 1. A call that may wait, for the daemon or for a lock, releases the global interpreter lock
//!    (`tests/test_claim.py`: claims change on several threads; `tests/test_net.py`: functions that
//!    wait run at the same time).
//! 2. No lock of this crate is held while the interpreter lock is acquired, so that the two cannot
//!    deadlock.
//! 3. Each error of a crate is one exception with the message of the crate (`error`), in one line.
//! 4. After a fork, the child uses no state of its parent (a test of each module).
//! 5. Functions in Python run on stacks of threads, never on those of tasks (`net`).
//!
//! # Failure
//!
//! An invalid argument is a `ValueError`, a failed system call an `OSError` with its number, and
//! any other error `corebeat.Error`. An exception in a function that a thread of this crate calls
//! is passed to `sys.unraisablehook` (claims), or is the cause of the error of the run (networks).
//! An exception of the input of a network is raised to the caller that reads the output.
//!
//! # Limits
//!
//! [The book](https://github.com/corebeat/corebeat/blob/main/docs/python.md) lists what Python
//! cannot use.

#[cfg(feature = "module")]
mod claim;
#[cfg(feature = "module")]
mod error;
#[cfg(feature = "module")]
mod heartbeat;
#[cfg(feature = "module")]
mod module;
#[cfg(feature = "module")]
mod net;
#[cfg(feature = "module")]
mod probe;
#[cfg(feature = "module")]
mod record;
#[cfg(feature = "module")]
mod stream;
#[cfg(feature = "module")]
mod trace;
