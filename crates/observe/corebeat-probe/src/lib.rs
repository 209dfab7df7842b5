//! Probes on functions that are switched on and off while the program runs, and call traces of the
//! recorded calls.
//!
//! Place in the loop: observe; built on `corebeat-trace`, which records the events.
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
//! record(&trace)?; // probes of all threads write to this trace
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
//! The design follows Waller and Hasselbring, *A Comparison of the Influence of Different
//! Multi-core Processors on the Runtime Overhead for Application-Level Monitoring*, 2012: probes
//! before and after a method (figure 2), a controller that activates them (section 2), and a
//! separate writer. The paper divides the overhead into three portions, shown here as I, C and W:
//!
//! ```text
//!   #[probe] fn f()                              controller: switch, ControlSocket, RuleRunner
//!     |                                             |  on, off, by pattern
//!     v                                             v
//!   is it on? ------------------ state of the probe, in PROBES
//!     |  \   I: one load, one branch
//!     |   no: the function without a probe
//!     v
//!   event: f is entered  ------+
//!   ... the body ...           |   C: two events, two reads of the counter
//!   event: it returns (panics) +-> corebeat-trace: buffer, compression, file        W
//!                                                                  |
//!                       Calls: callers, callees, times  <----------+
//!                         |  trees, graphs, sequences: text, DOT, Mermaid, SVG (draw)
//!                         +  a log for Kieker (kieker), slices for Perfetto (chrome),
//!                            spans for OpenTelemetry (otlp)
//! ```
//!
//! - A **probe** ([`Probe`]) instruments a function ([`probe`]) or a block
//!   ([`block!`](crate::block)). The linker collects all probes of a program in one array, so
//!   [`probes`] lists them even if they never ran. [`Probe::add`] adds the probes of scripts.
//! - A **field** of a call ([`Probe::field`], `#[probe(fields(article, count = articles.len()))]`)
//!   is the text of an argument, which precedes the enter event (`fields_of_calls_are_recorded`).
//! - A **call** lasts from its enter event to its leave event. It returns or panics. A call that is
//!   entered while another one is open on the same line is a callee of that one.
//! - A **line** ([`Line`]) is a sequence of execution: a thread, a task (of LPEL, or of another
//!   runtime that calls [`task`]), or an asynchronous call. A [`Handover`] transfers a call to
//!   another line: the first call that is entered there is its callee, too.
//! - A **rule** ([`Rule`]) switches probes off if they cost more than the user permits, and tries
//!   them again later.
//!
//! A call takes ten bytes before compression: six for its enter event, four for its leave event.
//! For an `untimed` probe only the order is recorded. Such a call takes six bytes and does not read
//! the counter; that read is most of the cost of a call.
//!
//! # Invariants
//!
//! 1. A disabled probe adds three instructions to a function: load, test, branch. Recorded calls
//!    run an out-of-line copy of the function, so they need no registers and no cleanup in the
//!    frame of the fast path (`probe`).
//! 2. A leave event is logged if and only if its enter event was logged, even if the probe is
//!    switched in between (`call_switched_during_its_run_is_complete`).
//! 3. In the calls read from any trace, even an incomplete one, a caller encloses its callees
//!    (`arbitrary_events_give_nested_calls`).
//! 4. A rule reads no clock: the same counts lead to the same switches (`rule`).
//! 5. Another process can switch probes only if it runs as the same user, or as root (`control`).
//!
//! # Memory ordering
//!
//! | write | ordering | why |
//! | --- | --- | --- |
//! | a probe's `state` | Relaxed | no other data depends on it; writers hold `SWITCHES` |
//! | the last added probe | Release, Acquire | the probe is initialised; writers hold `SWITCHES` |
//! | counts of a thread's calls (`count`) | Relaxed | counts with a single writer each |
//! | numbers of lines (`line`) | Relaxed | only uniqueness is required |
//!
//! # Failure
//!
//! Probes cannot fail. [`corebeat_trace`] counts lost events. [`Calls`] marks the calls that were
//! open at a loss ([`Outcome::EventsLost`]).
//!
//! # Limits
//!
//! A program has at most [`PROBES_MAX`] probes; those of libraries that are loaded later are not
//! collected, and added probes are never freed. At most [`CALLS_MAX`] calls are read. A `const fn`
//! cannot have a probe. Code that the compiler inlines into a function with a probe exists twice in
//! the program. A block with [`block!`](crate::block), and a function with `track_caller` or
//! `target_feature`, exists once, and tests the probe again at its end; if it panics while its
//! caller unwinds, it is reported as returned. Signal handlers must not contain probes.

extern crate self as corebeat_probe;

mod call;
#[cfg(feature = "json")]
pub mod chrome;
mod control;
mod count;
pub mod draw;
mod error;
mod event;
pub mod kieker;
mod line;
#[cfg(feature = "json")]
pub mod otlp;
mod pattern;
mod probe;
mod rule;

pub use call::{CALLS_MAX, Call, Calls, Line, Operation, Outcome};
pub use control::{ControlSocket, control};
pub use corebeat_probe_macro::probe;
pub use error::Error;
pub use line::{Handover, HandoverGuard, RunningCall, SuspendedCall, name_task, task};
pub use pattern::{PATTERN_BYTES_MAX, Pattern};
pub use probe::{Entered, PROBES, PROBES_MAX, Probe, probes, record, switch};
pub use rule::{RULE_PERIOD_MIN, Rule, RuleOptions, RuleRunner};

#[doc(hidden)]
pub use linkme;
#[doc(hidden)]
pub use probe::name_around;

/// Instruments a block with a probe and evaluates to its value. The name of the probe is the path
/// of the module, followed by the given name. `return`, `?` and `break` leave the block as usual.
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

/// The Rust code of the book is compiled, and most of it run, as documentation tests.
#[cfg(doctest)]
#[doc(hidden)]
pub mod book {
    #[doc = include_str!("../../../../docs/probe.md")]
    pub struct Probe;
}
