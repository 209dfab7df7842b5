//! Probes on functions, switched on and off while the program runs, and call traces of what they saw.
//!
//! Place in the loop: observe; stands on `corebeat-trace`, which takes the events.
//!
//! # Example
//!
//! ```
//! use corebeat_probe::{probe, record, switch};
//! use corebeat_trace::Trace;
//!
//! #[probe]
//! fn price(articles: u32) -> u32 {
//!     articles * 3
//! }
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("shop.cbt");
//! let trace = Trace::create(&path)?;
//! record(&trace)?; // what probes see goes there, of all threads
//! switch("*::price", true)?;
//! price(7);
//! trace.finish()?;
//! let calls = corebeat_probe::Calls::read(std::fs::File::open(&path)?)?;
//! assert!(calls.operation(&calls.calls()[0]).name.ends_with("::price"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Model
//!
//! After Waller and Hasselbring, *A Comparison of the Influence of Different Multi-core Processors on the Runtime Overhead for
//! Application-Level Monitoring*, 2012: probes before and after a method (figure 2), a controller that activates them (section 2), and
//! a writer that is another's business. Its three portions of overhead are kept apart here as well:
//!
//! ```text
//!   #[probe] fn f()                              controller: switch, Door, Keeper
//!     |                                             |  on, off, by pattern
//!     v                                             v
//!   is it on? ------------------ state of the probe, in PROBES
//!     |  \   I: one load, one branch
//!     |   no: the function as it is
//!     v
//!   event: f is entered  ------+
//!   ... the body ...           |   C: two events, two looks at the counter
//!   event: it returns (panics) +-> corebeat-trace: buffer, compression, file        W
//!                                                                  |
//!                       Calls: who called whom, how long  <--------+
//!                         |  trees, graphs, sequences: text, DOT, Mermaid, SVG (draw)
//!                         +  Kieker's log (kieker), slices for Perfetto (chrome)
//! ```
//!
//! - A **probe** ([`Probe`]) is on a function ([`probe`]) or a block ([`block!`](crate::block)). All of a program's are known, run or not
//!   ([`probes`]), as the linker puts them side by side.
//! - A **call** is between its enter and its leave. It returns or panics. Who is entered while it is open on the same line, it has called.
//! - A **line** ([`Line`]) is what runs one after the other: a thread, a task (of LPEL, or of who calls [`task`]), an asynchronous call. A [`Handover`] takes a call to another line: who is
//!   entered there first, it has called too.
//! - A **rule** ([`Rule`]) switches probes off when they cost more than the user allowed, and tries them again later.
//!
//! A call takes ten bytes before compression: six to enter, four to leave. Of a probe that is `untimed` order alone is known; it takes
//! six, and no look at the counter, which is most of the time.
//!
//! # Invariants
//!
//! 1. A function whose probe is off has three instructions more: load, test, branch. Calls that are recorded go out of line, to a
//!    copy of the function that has no part in its registers and no cleaning up in its frame (`probe`).
//! 2. A leave is logged if and only if its enter was, however probes are switched in between
//!    (`call_switched_in_the_middle_is_whole`).
//! 3. However a trace is torn, what is read is calls in which the caller encloses the called
//!    (`any_events_give_calls_that_enclose_each_other`).
//! 4. A rule knows no clock: the same counts give the same switches (`rule`).
//! 5. Others' processes can switch probes only where they are of the same user, or root (`door`).
//!
//! # Memory ordering
//!
//! | write | ordering | why |
//! | --- | --- | --- |
//! | a probe's `state` | Relaxed | it is all that is known by it; who writes it holds `SWITCHING` |
//! | counts of a thread's calls (`rule`) | Relaxed | counts, of one writer each |
//! | numbers of lines (`line`) | Relaxed | each is given once, and that is all |
//!
//! # Failure
//!
//! Probes cannot fail. What is lost, [`corebeat_trace`] counts, and [`Calls`] says so: open calls are torn there ([`Outcome::Torn`]).
//!
//! # Limits
//!
//! [`PROBES_MAX`] probes a program; those of libraries that are loaded later have none. [`CALLS_MAX`] calls are read. A function whose `Drop` panics
//! while its caller unwinds is taken to return. Constant functions have no probe. What the compiler inlines into a function with a probe is in
//! the program twice. A block with [`block!`](crate::block), and a function with `track_caller` or `target_feature`, is there once, and tests
//! at its end again. Not for signal handlers.

extern crate self as corebeat_probe;

mod call;
pub mod chrome;
mod count;
mod door;
pub mod draw;
mod error;
mod event;
pub mod kieker;
mod line;
mod pattern;
mod probe;
mod rule;

pub use call::{CALLS_MAX, Call, Calls, Line, Operation, Outcome};
pub use corebeat_probe_macro::probe;
pub use door::{Door, ask};
pub use error::Error;
pub use line::{Handed, Handover, task};
pub use pattern::{PATTERN_BYTES_MAX, Pattern};
pub use probe::{Entered, PROBES, PROBES_MAX, Probe, probes, record, switch};
pub use rule::{Keeper, Rule};

#[doc(hidden)]
pub use linkme;
#[doc(hidden)]
pub use probe::name_around;

/// Puts a probe on a block, and is its value. The name is behind the path of the module. `return`, `?` and `break` go out of it as
/// out of any block.
///
/// ```
/// fn parse(text: &str) -> Result<u32, std::num::ParseIntError> {
///     let number = corebeat_probe::block!("number", { text.parse::<u32>()? });
///     Ok(number + 1)
/// }
/// assert_eq!(parse("7"), Ok(8));
/// ```
#[macro_export]
macro_rules! block {
    ($name:literal, $body:block) => {{
        #[$crate::linkme::distributed_slice($crate::PROBES)]
        #[linkme(crate = $crate::linkme)]
        static PROBE: $crate::Probe = $crate::Probe::new(
            {
                fn name() -> &'static str {
                    ::core::concat!(::core::module_path!(), "::", $name)
                }
                name
            },
            ::core::file!(),
            ::core::line!(),
            true,
        );
        let _entered = PROBE.enter();
        $body
    }};
}
