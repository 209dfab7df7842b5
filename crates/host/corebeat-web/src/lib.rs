//! The page of Corebeat in a browser: programs with their time shares over time, decisions,
//! heartbeats, claims and the machine, in one self-contained HTML file.
//!
//! Place in the loop: host; uses corebeat-host (points and reports), the types of base, and the
//! features of the host from corebeat-linux. The daemon serves the page of a host, and `corebeat
//! run` and `tune` write that of a run.
//!
//! # Example
//!
//! ```
//! use corebeat_web::{Machine, Part, Program, State, Update};
//!
//! let mut state = State::of_host("a host".into(), Machine::default());
//! let program = Program { id: 1, name: "<b>".into(), ..Program::default() };
//! state.update(Update { at_ns: 1_000_000_000, programs: vec![program], ..Update::default() });
//! let page = state.live_page()?;
//! assert!(page.html.contains("&lt;b&gt;") && !page.html.contains("<b>"));
//! assert!(state.json(Part::News).starts_with("{\"whole\":false,"));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Model
//!
//! ```text
//!  Update (each second) --> State --live_page--> HTML: tables (no script needed) + page.js
//!                            ^  |                             ^
//!  Report --of_run-----------'  |--json(Whole, News)--events--'
//!                               `--file_page--> HTML with the same JSON inside
//!  Past (recorded) --content--> State --range_page--> the same, with links to the live page
//! ```
//!
//! The server renders tables, so that a browser without JavaScript shows everything except charts.
//! The script draws charts, and replaces the rows of a live page as messages arrive: the whole
//! content first, then each second what is new. Charts are drawn while they are visible.
//!
//! # Invariants
//!
//! 1. Texts of programs add no markup, in elements, attributes and JSON
//!    (`texts_add_no_markup`, `json_ends_no_element_and_reads_back`,
//!    `page_with_hostile_names_has_no_foreign_element`).
//! 2. Only the script and the style of this crate have the nonce of the policy
//!    (`policy_permits_one_script_and_one_style`).
//! 3. The size of the content is bounded, however long a page lives
//!    (`content_of_a_long_life_is_bounded`).
//!
//! # Failure
//!
//! Only the random number of the nonce can fail.
//!
//! # Limits
//!
//! Charts need JavaScript. A live page keeps the last 300 points of each program, or 12,000 points
//! of all together, and the last 500 decisions; the page of a run has the last 200 decisions.

mod html;
mod page;
mod past;
mod report;
mod state;
mod utc;

pub use page::{Page, secret};
pub use past::{Past, Range};
pub use state::{
    Claim, Decision, Group, Machine, Outcome, Part, Program, State, Table, Thread, Update,
};
pub use utc::{parse_utc, utc};
