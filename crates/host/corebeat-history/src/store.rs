//! The writer of the history, whose frames age in place.

use crate::Error;
use crate::file::{FILE_BYTES_MAX, Trouble, create, remove_incomplete, transact};
use crate::frame::{Clock, Frame};
use crate::read::{FILE, FRAMES, decode, visit};
use redb::Table;
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Name of the file whose lock the writing process holds. A reader locks the history itself.
const LOCK: &str = "history.lock";
/// Largest sum of the costs of all frames, in bytes. redb doubles a file that is too small, and a
/// transaction writes new pages before it frees the old ones: half of the file holds them all.
const COST_MAX: u64 = 24 << 20;
/// Age at which frames are removed, in milliseconds.
pub const AGE_MS_MAX: u64 = 24 * 3_600_000;
/// Spans of frames of an age: the age, and the span of one frame, in milliseconds.
const LEVELS: [(u64, u64); 2] = [(2 * 3_600_000, 60_000), (600_000, 10_000)];
/// Longest time between two frames that is no gap, in milliseconds: an update of a busy host is
/// late.
pub(crate) const GAP_MS: u64 = 3_000;

/// The history of one daemon.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    /// Holds the lock of the writing process.
    lock: File,
    index: Index,
    last: Option<(u64, Clock)>,
}

impl Drop for Store {
    /// Releases the lock also if a child of fork, which has not called exec yet, has its file open.
    fn drop(&mut self) {
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

/// The frames of the file, as far as their ageing needs them in memory.
type Index = BTreeMap<u64, Entry>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    start_ms: u64,
    begins: bool,
    /// Bytes of the file that the frame takes, about.
    cost: u64,
}

impl Entry {
    fn of(at_ms: u64, frame: &Frame, length: usize) -> Entry {
        let start_ms = at_ms.saturating_sub(frame.span_ms);
        Entry { start_ms, begins: frame.begins, cost: cost(length) }
    }
}

/// Bytes that a value takes: small ones share pages that are half full, and large ones have pages
/// of a power of two.
fn cost(length: usize) -> u64 {
    match length as u64 {
        small @ ..2048 => (2 * small).max(256),
        large => (large + 256).next_power_of_two(),
    }
}

impl Store {
    /// Opens or creates the history in a folder, to write it. A damaged file is moved aside, and an
    /// incomplete one of a killed daemon is removed; `report` receives a line about each, also if
    /// the history cannot be opened then.
    ///
    /// # Errors
    /// [`Error`] if the folder cannot be created or used, or another process writes the history.
    pub fn open(dir: &Path, report: &mut dyn FnMut(String)) -> Result<Store, Error> {
        let failed = |source| Error::File { path: dir.into(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let lock =
            create(dir, LOCK).map_err(|source| Error::File { path: dir.join(LOCK), source })?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(Error::InUse { dir: dir.into() }),
            locked => locked.map_err(|e| failed(e.into()))?,
        }
        if let Some(path) = remove_incomplete(dir, FILE).map_err(failed)? {
            report(format!(
                "{} is removed: its daemon ended before the file was complete",
                path.display()
            ));
        }
        let mut store = Store { dir: dir.into(), lock, index: Index::new(), last: None };
        let mut loaded = store.load();
        if let Err(Trouble::Damaged(why)) = &loaded {
            report(store.move_aside(why)?);
            loaded = store.load();
        }
        loaded.map_err(|trouble| trouble.error(store.path()))?;
        Ok(store)
    }

    /// Path of the file.
    pub fn path(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    /// Checks the whole file, and reads the index.
    fn load(&mut self) -> Result<(), Trouble> {
        let (mut index, mut last) = (Index::new(), None);
        transact(&self.dir, FILE, |db| {
            db.check_integrity()?;
            visit(&db.begin_read()?, |at_ms, frame, length| {
                index.insert(at_ms, Entry::of(at_ms, &frame, length));
                last = Some((at_ms, frame.clock));
            })
        })?;
        (self.index, self.last) = (index, last);
        Ok(())
    }

    /// Adds frames, the first first, merges and removes old ones, all in one transaction. `report`
    /// receives lines about the clock and the file, also if the frames cannot be added then.
    ///
    /// # Errors
    /// [`Error`] if the file cannot be written. The history is then as before, except for what was
    /// reported.
    pub fn append(
        &mut self,
        frames: &[Frame],
        report: &mut dyn FnMut(String),
    ) -> Result<(), Error> {
        let mut added = self.add(frames, COST_MAX);
        if let Err(Trouble::Full) = added {
            // The second transaction frees the pages that the first one has ceased to use.
            let halved = (0..2).try_for_each(|_| self.add(&[], COST_MAX / 2).map(drop));
            let is_halved = halved.is_ok();
            added = halved.and_then(|()| self.add(frames, COST_MAX));
            if is_halved && !matches!(added, Err(Trouble::Full)) {
                let mib = FILE_BYTES_MAX >> 20;
                report(format!("the history has reached {mib} MiB; its first part is removed"));
            }
        }
        let anew = match &added {
            Err(Trouble::Damaged(why)) => Some(self.move_aside(why)?),
            Err(Trouble::Full) => Some(self.remove()?),
            _ => None,
        };
        if let Some(line) = anew {
            report(line);
            added = self.add(frames, COST_MAX);
        }
        let lines = added.map_err(|trouble| trouble.error(self.path()))?;
        lines.into_iter().for_each(report);
        Ok(())
    }

    /// Adds frames in one transaction, and bounds the sum of the costs of all.
    fn add(&mut self, frames: &[Frame], cost_max: u64) -> Result<Vec<String>, Trouble> {
        let mut lines = vec![];
        let mut last = self.last;
        let mut keyed = vec![];
        for frame in frames {
            let at_ms = next_ms(last, frame.clock);
            lines.extend(last.and_then(|last| jump(last, (at_ms, frame.clock))));
            last = Some((at_ms, frame.clock));
            keyed.push((at_ms, frame));
        }
        let Some((now_ms, _)) = last else { return Ok(lines) };
        let mut index = self.index.clone();
        transact(&self.dir, FILE, |db| {
            let mut transaction = db.begin_write()?;
            // A killed daemon leaves a file that opens at once.
            transaction.set_quick_repair(true);
            let mut table = transaction.open_table(FRAMES)?;
            for (at_ms, frame) in keyed {
                lines.extend(insert(&mut table, &mut index, at_ms, frame)?);
            }
            for keys in merges(&index, now_ms) {
                let mut parts = vec![];
                for key in keys {
                    index.remove(&key);
                    if let Some(bytes) = table.remove(key)? {
                        parts.push((key, decode(key, bytes.value())?));
                    }
                }
                if let Some((at_ms, frame)) = Frame::merged(parts) {
                    lines.extend(insert(&mut table, &mut index, at_ms, &frame)?);
                }
            }
            let mut cost = index.values().map(|entry| entry.cost).sum::<u64>();
            while let Some(entry) = index.first_entry()
                && (cost > cost_max || entry.key().saturating_add(AGE_MS_MAX) < now_ms)
            {
                table.remove(entry.key())?;
                cost -= entry.remove().cost;
            }
            drop(table);
            transaction.commit()?;
            Ok(())
        })?;
        (self.index, self.last) = (index, last);
        Ok(lines)
    }

    /// Moves the file aside, and returns a line about it. One such file is kept, so that a disk
    /// that damages files again and again is not filled. The line names the older ones.
    fn move_aside(&mut self, why: &str) -> Result<String, Error> {
        let path = self.path();
        let failed = |source| Error::File { path: path.clone(), source };
        let prefix = format!("{FILE}.damaged-");
        let entries = std::fs::read_dir(&self.dir).map_err(failed)?.flatten();
        let names = entries.map(|entry| entry.file_name());
        let is_older = |name: &OsString| name.as_encoded_bytes().starts_with(prefix.as_bytes());
        let mut older: Vec<PathBuf> =
            names.filter(is_older).map(|name| self.dir.join(name)).collect();
        older.sort();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let date = corebeat_web::utc(now.as_secs_f64()).replace(' ', "T").replace(':', "");
        let aside = self.dir.join(prefix.clone() + &date);
        std::fs::rename(&path, &aside).map_err(failed)?;
        (self.index, self.last) = (Index::new(), None);
        let mut line = format!(
            "the history is damaged or foreign ({why}); {} has the old file, and a new history \
             begins",
            aside.display()
        );
        for old in older {
            // The file of the same second is replaced.
            let removed = if old == aside { Ok(()) } else { std::fs::remove_file(&old) };
            let old = old.display();
            line += &match removed {
                Ok(()) => format!("; the older {old} is removed"),
                Err(e) => format!("; the older {old} cannot be removed: {e}"),
            };
        }
        Ok(line)
    }

    /// Removes the file, and returns a line about it.
    fn remove(&mut self) -> Result<String, Error> {
        let path = self.path();
        std::fs::remove_file(&path).map_err(|source| Error::File { path, source })?;
        (self.index, self.last) = (Index::new(), None);
        Ok(format!("the history has reached {} MiB; a new history begins", FILE_BYTES_MAX >> 20))
    }
}

/// Inserts a frame. Returns a line about a frame that is too large, which becomes a gap.
fn insert(
    table: &mut Table<u64, &[u8]>,
    index: &mut Index,
    at_ms: u64,
    frame: &Frame,
) -> Result<Option<String>, Trouble> {
    let Some(bytes) = frame.encode() else {
        let time = corebeat_web::utc(at_ms as f64 / 1000.0);
        return Ok(Some(format!("the history leaves out an observation at {time}: too large")));
    };
    index.insert(at_ms, Entry::of(at_ms, frame, bytes.len()));
    table.insert(at_ms, &bytes[..])?;
    Ok(None)
}

/// Time of a frame with this clock, after the last frame.
fn next_ms(last: Option<(u64, Clock)>, clock: Clock) -> u64 {
    let Some((last_ms, before)) = last else { return clock.unix_ms };
    let since_ms = match before.boot == clock.boot {
        true => clock.boot_ms.saturating_sub(before.boot_ms),
        // The clock since the last boot has ended. No time passes if the wall clock is earlier now.
        false => clock.unix_ms.saturating_sub(before.unix_ms),
    };
    last_ms.saturating_add(since_ms.max(1))
}

/// A line if the wall clock was set between two frames, by more than it drifts.
fn jump((from_ms, from): (u64, Clock), (to_ms, to): (u64, Clock)) -> Option<String> {
    let offset_ms = |at_ms: u64, clock: Clock| i128::from(clock.unix_ms) - i128::from(at_ms);
    let by_ms = offset_ms(to_ms, to) - offset_ms(from_ms, from);
    let seconds = by_ms.unsigned_abs() / 1000;
    (seconds >= 2).then(|| {
        let way = if by_ms > 0 { "forward" } else { "back" };
        format!("the clock of the host was set {way} by {seconds} s; the history is moved as well")
    })
}

/// The keys of frames that become one frame, because of their age.
fn merges(index: &Index, now_ms: u64) -> Vec<Vec<u64>> {
    let span_of = |at_ms: u64| {
        LEVELS.iter().find_map(|(age_ms, span_ms)| {
            let number = at_ms.div_ceil(*span_ms);
            let end_ms = number.saturating_mul(*span_ms);
            (end_ms.saturating_add(*age_ms) <= now_ms).then_some((*span_ms, number))
        })
    };
    let frames: Vec<(&u64, &Entry)> = index.iter().collect();
    let are_one = |(a, _): &(&u64, &Entry), (b, next): &(&u64, &Entry)| {
        // A merged frame hides no gap.
        !is_gap(**a, next.start_ms)
            && !next.begins
            && span_of(**a).is_some_and(|span| span_of(**b) == Some(span))
    };
    let groups = frames.chunk_by(are_one).filter(|group| group.len() > 1);
    groups.map(|group| group.iter().map(|(at_ms, _)| **at_ms).collect()).collect()
}

/// Whether there is a gap between the end of a frame and the start of the next one.
pub(crate) fn is_gap(end_ms: u64, start_ms: u64) -> bool {
    start_ms.saturating_sub(end_ms) > GAP_MS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Group, Program, Usage};
    use corebeat_machine::TimeShares;

    /// Programs have names, changes and shares as on a real host.
    #[test]
    fn day_of_a_hundred_programs_fits_into_the_file() {
        let mut random = fastrand::Rng::with_seed(1);
        let names = ["postgres", "python3", "cc1plus", "chrome", "java", "node", "ld.lld", "nginx"];
        let program = |n: i32| {
            let mut share = || Some(random.f64());
            let [user, system, wait, sleep, lock, park, spin] = [(); 7].map(|()| share());
            Program {
                pid: Some(100_000 + 37 * n),
                name: names[n as usize % names.len()].into(),
                policy: "auto".into(),
                changes: vec!["class batch".into(), "slice 100 ms".into()],
                usage: Usage {
                    span_ms: 1000,
                    thread_ms: random.u64(1000..64_000),
                    threads: random.usize(1..64),
                    shares: TimeShares { user, system, wait, sleep, lock, park, spin },
                    unknown_ms: [0; 7],
                },
                ago_ms: random.u64(..500),
            }
        };
        let frame = Frame { programs: (0..100).map(program).collect(), ..Frame::default() };
        let group = |n| {
            let (rate, rate_max) = (Some(random.f64() * 100.0), Some(30.0));
            Group {
                owner: 1000,
                group: n,
                pids: vec![n],
                members: 8,
                rate,
                rate_max,
                ..Group::default()
            }
        };
        let frame = Frame { groups: (0..64).map(group).collect(), ..frame };
        let frames = 600 + 660 + 1320;
        let bytes = frame.encode().unwrap();
        assert!(cost(bytes.len()) * frames <= COST_MAX, "{}", bytes.len());
        assert_eq!(Frame::decode(&bytes).unwrap().programs.len(), 100);
    }
}
