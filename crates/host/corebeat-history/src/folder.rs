//! The history as the daemon that writes it shows it in browsers.

use crate::{Error, Period, Recorded, Report, read};
use corebeat_web::{Machine, Past, Range, State};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// The history in a folder, for the web page of the daemon that writes it.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Past for Folder {
    fn content(&self, range: Range, all: bool) -> Result<State, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = now.as_millis() as u64;
        let from_ms = now_ms.saturating_sub(range.seconds() * 1000);
        let mut recorded = match read(&self.0, from_ms.saturating_add(1), now_ms) {
            // The daemon has not written yet.
            Err(Error::Missing { .. }) => Recorded::default(),
            recorded => recorded.map_err(|e| e.to_string())?,
        };
        if !all {
            recorded.remove_private_groups();
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let report = Report::of(&recorded, Period { from_ms, to_ms: now_ms, now_ms }, None);
        // The live page has the machine.
        Ok(report.page(host, Machine::default(), None))
    }
}
