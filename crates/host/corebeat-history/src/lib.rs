//! The history of a day of a host: what the daemon observed and decided, in one file of bounded
//! size, and reports of a period.
//!
//! Place in the loop: host; uses corebeat-host (points), corebeat-web (updates, and the page of a
//! period), and base. `corebeat daemon --history` writes; `corebeat report` and the page of
//! `corebeat daemon --web` read.
//!
//! # Example
//!
//! ```
//! use corebeat_history::{Period, Recorder, Report, read};
//! use corebeat_web::Update;
//!
//! # let dir = tempfile::tempdir()?;
//! let (updates, recorder) = Recorder::start(dir.path().into(), |line| eprintln!("{line}"))?;
//! let (unix_ns, span_ns) = (1_800_000_000_000_000_000, 1_000_000_000);
//! updates.send(Update { unix_ns, span_ns, ..Update::default() })?;
//! drop(updates);
//! recorder.finish();
//! let (from_ms, to_ms) = (1_799_999_000_000, 1_800_000_010_000);
//! let recorded = read(dir.path(), from_ms, to_ms)?;
//! let period = Period { from_ms, to_ms, now_ms: 1_900_000_000_000 };
//! let report = Report::of(&recorded, period, None);
//! assert!(report.to_string().contains("the daemon did not run"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Model
//!
//! ```text
//!  daemon --Update each second--> queue --> Recorder: Frame --each 10 s--> Store: one transaction
//!                                (bounded)                                   |
//!   file: | frames of 1 min | of 10 s     | of 1 s  | <-- insert ------------+-- merge old ones
//!         a day          2 h        10 min        now                        '-- remove the oldest
//!
//!  file --copy, under its lock--> read: Frames of a period --> Report: text, JSON, page
//!                                   Folder: the last hour or day, for the page of the daemon
//! ```
//!
//! A frame contains all that the daemon observed in a span. Each time is in one frame: as frames
//! age, consecutive ones become one, within the file. The ages are those at which a longer span is
//! no loss on a screen: 600 points for the last 10 minutes, 660 for two hours, 1320 for a day.
//!
//! Frames are dated by a clock that never jumps: it begins as the wall clock, and goes on as the
//! clock since the boot. The last frame has the difference to the wall clock, by which a reader
//! dates all frames. So a clock that is set moves the whole history, and nothing is lost.
//!
//! The file is a database of redb, because an aged span replaces its parts in one transaction. The
//! writer opens and locks the file for each write, so that readers find it unlocked. A reader
//! copies the file to memory under a shared lock.
//!
//! # Invariants
//!
//! 1. A killed writer loses at most the last 10 s: the file holds all that was written before
//!    (`killed_writer_leaves_all_that_it_has_written`). The file gets its name when its first
//!    transaction is durable, so that no part of a file has that name
//!    (`writer_that_is_killed_while_it_creates_the_file_leaves_no_damaged_one`,
//!    `incomplete_file_of_a_killed_writer_is_removed_and_damaged_ones_stay`).
//! 2. The file has at most [`FILE_BYTES_MAX`] bytes
//!    (`file_of_a_busy_day_stays_within_its_bound`).
//! 3. A longer span has the sums of its parts, and hides no time without observations
//!    (`frames_age_to_longer_spans_and_keep_their_sums`,
//!    `gap_is_not_hidden_by_a_longer_span`).
//! 4. A damaged or foreign file is moved aside
//!    (`damaged_and_foreign_files_are_moved_aside`,
//!    `damage_anywhere_in_the_file_is_detected_or_harmless`,
//!    `wrong_number_in_the_header_requests_no_memory`).
//! 5. Frames have ascending times, however the wall clock is set
//!    (`clock_that_is_set_moves_the_history_with_it`,
//!    `clock_of_another_boot_that_is_earlier_reverses_no_time`).
//! 6. One process writes (`a_second_process_cannot_write_and_can_read`).
//! 7. The writer uses no folder that others can write, no file of another user, and no link
//!    (`folder_that_others_can_write_is_refused`, `folder_and_file_of_another_user_are_refused`,
//!    `links_pipes_and_folders_are_no_history`).
//! 8. A page for users of the host has no group that only its owner may list
//!    (`page_for_all_users_has_no_private_group`).
//!
//! # Failure
//!
//! A failed write changes nothing (`full_disk_is_an_error_and_loses_nothing`,
//! `full_disk_leaves_no_part_of_a_new_file`, and at each operation of the file
//! `disk_that_is_full_at_any_operation_damages_nothing`). The recorder reports it once, keeps the
//! last 120 observations, and tries again
//! (`history_that_cannot_be_written_is_reported_once_and_written_later`). A panic of redb at a
//! damaged file becomes an error: the first access installs a panic hook that suppresses its
//! message, and passes all other panics on.
//!
//! # Limits
//!
//! With more than 100 programs at all times, the bound of the file may end the history before a day
//! (`day_of_a_hundred_programs_fits_into_the_file`). A frame has the
//! first 256 decisions of its span, and counts the others; equal refusals are one
//! (`equal_refusals_are_one_and_displace_no_other_decision`). Of claims, a frame has
//! those at its end. A clock that is set while the host is off cannot be distinguished from time
//! that has passed.

mod error;
mod file;
mod folder;
mod frame;
mod read;
mod recorder;
mod report;
mod store;

pub use error::Error;
pub use file::FILE_BYTES_MAX;
pub use folder::Folder;
pub use frame::{Clock, Frame, Group, Program, Usage};
pub use read::{FILE, Recorded, read};
pub use recorder::{Recorder, WRITE_EACH};
pub use report::{ClaimReport, GroupReport, Missing, Period, ProgramReport, Rate, Report};
pub use store::{AGE_MS_MAX, Store};
