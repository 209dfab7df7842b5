//! The table of frames, and readers of the file.

use crate::Error;
use crate::file::{FILE_BYTES_MAX, Trouble, database, guarded, locked};
use crate::frame::Frame;
use redb::backends::InMemoryBackend;
use redb::{
    ReadOnlyTable, ReadTransaction, ReadableTable, StorageBackend, TableDefinition, TableError,
    TableHandle,
};
use rustix::fs::{FlockOperation, OFlags, flock};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Name of the file in its folder.
pub const FILE: &str = "history.redb";
/// Frames by the end of their spans, in milliseconds of a time that never jumps: it begins as the
/// wall clock, and goes on as the clock since the boot. The last frame has the present difference
/// to the wall clock.
pub(crate) const FRAMES: TableDefinition<u64, &[u8]> = TableDefinition::new("corebeat-frames-1");

/// The table of frames; `None` in a new file.
fn table(
    transaction: &ReadTransaction,
) -> Result<Option<ReadOnlyTable<u64, &'static [u8]>>, Trouble> {
    match transaction.open_table(FRAMES) {
        Err(TableError::TableDoesNotExist(_)) => match transaction.list_tables()?.next() {
            Some(other) => Err(Trouble::Damaged(format!("it has a table {}", other.name()))),
            None => Ok(None),
        },
        table => Ok(Some(table?)),
    }
}

pub(crate) fn decode(at_ms: u64, bytes: &[u8]) -> Result<Frame, Trouble> {
    let damaged = || Trouble::Damaged(format!("the frame at {at_ms} cannot be read"));
    Frame::decode(bytes).ok_or_else(damaged)
}

/// Visits the frames in the order of their times, each with its time and its size in the file.
pub(crate) fn visit(
    transaction: &ReadTransaction,
    mut each: impl FnMut(u64, Frame, usize),
) -> Result<(), Trouble> {
    let Some(table) = table(transaction)? else { return Ok(()) };
    for row in table.iter()? {
        let (at_ms, bytes) = row?;
        each(at_ms.value(), decode(at_ms.value(), bytes.value())?, bytes.value().len());
    }
    Ok(())
}

/// The recorded frames of a period, each with the end of its span, in milliseconds since 1970.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Recorded {
    /// Frames that end in the period.
    pub frames: Vec<(u64, Frame)>,
    /// The first frame that ends after the period. Its span may begin in the period.
    pub next: Option<(u64, Frame)>,
}

impl Recorded {
    /// Removes the groups of heartbeats that only their owner may list.
    pub(crate) fn remove_private_groups(&mut self) {
        let frames = self.frames.iter_mut().map(|(_, frame)| frame);
        frames.for_each(|frame| frame.groups.retain(|group| group.is_public));
    }
}

/// Reads the frames of a folder that end within these times of the wall clock, in milliseconds
/// since 1970. The file is copied to memory under its lock: a report needs no permission to write
/// the file, and the daemon does not wait for the report.
///
/// # Errors
/// [`Error`] if there is no history, or it cannot be read.
pub fn read(dir: &Path, from_ms: u64, to_ms: u64) -> Result<Recorded, Error> {
    let path = dir.join(FILE);
    let copied = locked(|| copy(&path));
    match copied.and_then(|memory| guarded(|| dated(memory, from_ms, to_ms))) {
        Err(Trouble::Io(e)) if e.kind() == io::ErrorKind::NotFound => {
            Err(Error::Missing { dir: dir.into() })
        }
        read => read.map_err(|trouble| trouble.error(path)),
    }
}

fn copy(path: &Path) -> Result<InMemoryBackend, Trouble> {
    // Without waiting for the writer of a pipe.
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(nonblock).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(Trouble::Locked),
        locked => locked.map_err(io::Error::from)?,
    }
    let mut bytes = vec![];
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Trouble::Damaged("it is too long".into()));
    }
    let memory = InMemoryBackend::new();
    memory.set_len(bytes.len() as u64)?;
    memory.write(0, &bytes)?;
    Ok(memory)
}

/// The frames of a period of the wall clock.
fn dated(memory: InMemoryBackend, from_ms: u64, to_ms: u64) -> Result<Recorded, Trouble> {
    let mut recorded = Recorded::default();
    let mut database = database(memory)?;
    // Without this, redb reads pages whatever their checksums are.
    if !database.check_integrity()? {
        return Err(Trouble::Damaged("it has a wrong checksum".into()));
    }
    let Some(table) = table(&database.begin_read()?)? else { return Ok(recorded) };
    let Some((last_ms, bytes)) = table.last()? else { return Ok(recorded) };
    let unix_ms = decode(last_ms.value(), bytes.value())?.clock.unix_ms;
    let offset_ms = i128::from(unix_ms) - i128::from(last_ms.value());
    let shifted = |ms: u64, by_ms: i128| (i128::from(ms) + by_ms).clamp(0, u64::MAX.into()) as u64;
    for row in table.range(shifted(from_ms, -offset_ms)..)? {
        let (at_ms, bytes) = row?;
        let frame = decode(at_ms.value(), bytes.value())?;
        let end_ms = shifted(at_ms.value(), offset_ms);
        if end_ms > to_ms {
            recorded.next = Some((end_ms, frame));
            break;
        }
        recorded.frames.push((end_ms, frame));
    }
    Ok(recorded)
}
