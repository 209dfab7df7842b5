//! The shared parts of the commands of `corebeat`.
//!
//! Place in the loop: app; the other crates of this layer use this crate. Each family of commands
//! is a crate beside this one (`corebeat-command-net`, `-rewrite`, `-top`, `-trace`, `-sim`);
//! `corebeat-cli` parses the command line and calls them.
//!
//! # Example
//!
//! ```
//! use corebeat_command::{Done, Failure, print};
//! use std::process::ExitCode;
//!
//! fn double(text: &str) -> Done {
//!     let number: u32 = text.parse().map_err(|_| {
//!         Failure::usage(format!("'{text}' is not a number; write a number such as 21"))
//!     })?;
//!     print(format_args!("{}\n", 2 * number))?;
//!     Ok(ExitCode::SUCCESS)
//! }
//! assert!(double("21").is_ok());
//! assert_eq!(double("x").unwrap_err().status(), 2);
//! ```
//!
//! # Model
//!
//! ```text
//!  command --> Done = Ok(exit status) | Err(Failure: one line, exit status) --> standard error
//!     |------> Output: a file that is opened before a long run and written after it
//!     |------> Cleanup: work that runs if a signal ends the process
//!     `------> TemporaryFolder: a folder that the next command removes after a kill
//! ```
//!
//! # Invariants
//!
//! 1. A failure prints one line, without control characters (`failure_prints_one_line`).
//! 2. An [`Output`] that is never written leaves no new file and keeps an old one
//!    (`output_that_is_not_written_changes_nothing`).
//!
//! # Failure
//!
//! Functions return [`Failure`]s; nothing panics.

mod failure;
mod folder;
mod input;
mod model;
mod output;
mod policy;
mod shutdown;
mod terminal;

pub use corebeat_host::printable;
pub use corebeat_linux::{end_by, is_ignored};
pub use failure::{
    Done, Failure, end_on_broken_pipe, print, print_error, print_line, print_line_of_loop,
    print_text_of_loop, survive_file_size_limit, unprintable,
};
pub use folder::{TemporaryFolder, TemporaryUse};
pub use input::{open_regular, read_text};
pub use model::{host_name, read_model};
pub use output::{Output, require_distinct, require_distinct_from_programs};
pub use policy::policy_parser;
pub use shutdown::{Cleanup, wake_at_ending_signal};
pub use terminal::{DrawnTerminal, TerminalSignals, Tty, TtyWriter, draw};
