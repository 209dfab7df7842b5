//! Counts of threads, which a program of the kernel copies to a table (`bpf/table.bpf.c`).

mod row;

use crate::{Error, availability, object};
use corebeat_machine::{ThreadCounts, ThreadRow, ThreadTable};
use libbpf_rs::{Link, MapCore, MapHandle, Object, ObjectBuilder, ProgramInput};
use row::Rows;
use rustix::thread::{MembarrierCommand, membarrier};
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The compiled programs.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/table.bpf.o"));

/// Name of the program that copies counts. The others are attached to the kernel.
const REFRESH: &str = "refresh";

/// Prefixes of the names of the programs in functions for futex waits.
const FUTEX: [&str; 2] = ["enter_", "leave_"];

/// Number of threads that the table counts: 2 MiB of rows.
const THREADS_MAX: u32 = 16_384;

/// Freed places are used again as soon as they are this part of all places.
const REUSED_PART: u32 = 64;

/// A table in the kernel that has what threads did: ran, waited for a CPU, blocked, switched and
/// moved. The kernel has no trace of it after the table and its rows are dropped.
///
/// Only threads that were added are counted. A full table refuses further threads.
#[derive(Debug)]
pub struct KernelTable(Arc<Table>);

struct Table {
    rows: Rows,
    places: Mutex<Places>,
    /// Number of freed places from which on a wait for a grace period is worth its time.
    reused_min: usize,
    /// For the program that copies counts.
    object: Mutex<Object>,
    /// The kernel runs the other programs as long as these are open.
    _links: Mutex<Vec<Link>>,
}

/// The rows that have threads, and the others.
struct Places {
    /// Places to which no program of the kernel writes, the next one last.
    free: Vec<u32>,
    /// Places that became free since the last grace period of the kernel. A program that found the
    /// place before may still write to it.
    freed: Vec<u32>,
    /// No later place has been used.
    end: u32,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("end", &self.places().end).finish_non_exhaustive()
    }
}

impl KernelTable {
    /// Loads the table, for at most 16,384 threads.
    ///
    /// # Errors
    /// Those of [`check_table`](crate::check_table), and [`Error::LoadTable`] if the kernel refuses
    /// the programs: before Linux 6.10, or without `CONFIG_DEBUG_INFO_BTF`.
    pub fn load() -> Result<KernelTable, Error> {
        KernelTable::with_rows(THREADS_MAX)
    }

    /// Lets the kernel check the programs, and starts nothing.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn check_load() -> Result<(), Error> {
        availability::check_table()?;
        let load = |has_causes| Table::load(1, has_causes).map(drop);
        object::explained(|| with_causes_if_permitted(load), Error::LoadTable)
    }

    /// Whether the time of futex waits is counted, with its causes. Some kernels permit no programs
    /// in their functions.
    pub fn has_causes(&self) -> bool {
        self.0.rows.has_causes
    }

    /// As [`load`](Self::load), for a number of threads, in tests.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    #[doc(hidden)]
    pub fn with_rows(threads: u32) -> Result<KernelTable, Error> {
        availability::check_table()?;
        let start = |has_causes| Table::start(threads, has_causes);
        object::explained(|| with_causes_if_permitted(start), Error::LoadTable)
            .map(|table| KernelTable(Arc::new(table)))
    }
}

/// Calls `start` with the programs that count the time of futex waits. Where the kernel permits no
/// programs in its functions, which some kernels report only when they are attached, calls it again
/// without these programs.
fn with_causes_if_permitted<T>(
    start: impl Fn(bool) -> libbpf_rs::Result<T>,
) -> libbpf_rs::Result<T> {
    start(true).or_else(|_| start(false))
}

impl Table {
    /// Loads the programs, those that count the time of futex waits only if `has_causes`.
    fn load(threads: u32, has_causes: bool) -> libbpf_rs::Result<Object> {
        let mut object = ObjectBuilder::default().open_memory(OBJECT)?;
        for mut map in object.maps_mut().filter(|map| map.name() == OsStr::new("rows")) {
            map.set_max_entries(threads)?;
        }
        for mut program in object.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            let is_futex = FUTEX.iter().any(|prefix| name.starts_with(prefix));
            program.set_autoload(has_causes || !is_futex);
        }
        object.load()
    }

    /// Loads and attaches the programs.
    fn start(threads: u32, has_causes: bool) -> libbpf_rs::Result<Table> {
        let object = Table::load(threads, has_causes)?;
        let rows = object.maps().find(|map| map.name() == OsStr::new("rows"));
        let rows = MapHandle::try_from(&rows.ok_or_else(|| object::missing("rows"))?)?;
        let rows = Rows::map(&rows, threads, has_causes)?;
        let attached = object
            .progs_mut()
            .filter(|program| program.autoload() && program.name() != OsStr::new(REFRESH));
        let links: Vec<Link> =
            attached.map(|program| program.attach()).collect::<Result<_, _>>()?;
        let places = Places { free: (0..threads).rev().collect(), freed: Vec::new(), end: 0 };
        Ok(Table {
            rows,
            places: Mutex::new(places),
            reused_min: (threads / REUSED_PART).max(1) as usize,
            object: Mutex::new(object),
            _links: Mutex::new(links),
        })
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free place.
    fn take(&self) -> Result<u32, String> {
        let mut places = self.places();
        if places.free.is_empty() {
            if places.freed.len() < self.reused_min {
                return Err("the table of the kernel is full".into());
            }
            // A wait for all programs of the kernel that run now (an RCU grace period), which takes
            // some milliseconds. Without it, freed places must not be used again.
            membarrier(MembarrierCommand::Global)
                .map_err(|e| format!("the table of the kernel is full: membarrier: {e}"))?;
            places.free = std::mem::take(&mut places.freed);
        }
        let place = places.free.pop().ok_or("the table of the kernel is full")?;
        places.end = places.end.max(place + 1);
        Ok(place)
    }

    /// Copies the counts of the threads in these rows.
    fn copy(&self, begin: u32, end: u32) -> Result<(), String> {
        let object = self.object.lock().unwrap_or_else(PoisonError::into_inner);
        let program = object.progs_mut().find(|program| program.name() == OsStr::new(REFRESH));
        let mut range = [begin.to_ne_bytes(), end.to_ne_bytes()].concat();
        let input = ProgramInput { context_in: Some(&mut range), ..ProgramInput::default() };
        let copied = program.ok_or_else(|| object::missing(REFRESH)).map(|p| p.test_run(input));
        match copied {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(why)) | Err(why) => Err(format!("the kernel does not copy its counts: {why}")),
        }
    }
}

impl ThreadTable for KernelTable {
    fn add(&mut self, tid: i32) -> Result<Box<dyn ThreadRow>, String> {
        let number = u32::try_from(tid).map_err(|_| format!("{tid} is no number of a thread"))?;
        let table = self.0.clone();
        let place = table.take()?;
        table.rows.begin(place, number);
        let row = Row { table, place };
        row.table.copy(place, place + 1)?;
        Ok(Box::new(row))
    }

    fn refresh(&mut self) -> Result<(), String> {
        let end = self.0.places().end;
        self.0.copy(0, end)
    }
}

/// The row of a thread. Dropping it ends the counting of the thread.
#[derive(Debug)]
struct Row {
    table: Arc<Table>,
    place: u32,
}

impl ThreadRow for Row {
    fn read(&self) -> Option<ThreadCounts> {
        self.table.rows.read(self.place)
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        self.table.rows.end(self.place);
        self.table.places().freed.push(self.place);
    }
}
