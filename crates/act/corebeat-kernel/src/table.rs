//! Counts of threads, which programs at tracepoints of the kernel keep in a table
//! (`bpf/table.bpf.c`).

mod row;

use crate::{Error, availability, object};
use corebeat_machine::{BlockedCause, ThreadCounts, ThreadRow, ThreadTable};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use row::Rows;
use rustix::thread::{MembarrierCommand, membarrier};
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The compiled programs.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/table.bpf.o"));

/// Number of threads that the table counts: 2 MiB of rows.
const THREADS_MAX: u32 = 16_384;

/// Freed places are used again as soon as they are this part of all places.
const REUSED_PART: u32 = 64;

/// A table in the kernel that counts what threads do: run, wait for a CPU, block, switch and move.
/// The kernel stops counting after the table and its rows are dropped.
///
/// Only threads that were added are counted. A full table refuses further threads.
#[derive(Debug)]
pub struct KernelTable(Arc<Table>);

struct Table {
    rows: Rows,
    /// The place of each thread.
    places: MapHandle,
    marks: MapHandle,
    threads: Mutex<Threads>,
    /// Number of freed places from which on a wait for a grace period is worth its time.
    reused_min: usize,
    /// The kernel runs the programs as long as these are open.
    _links: Mutex<Vec<Link>>,
}

/// The threads in the table, for user space.
struct Threads {
    /// Places to which no program of the kernel writes.
    free: Vec<u32>,
    /// Places that became free since the last grace period of the kernel. A program that found the
    /// place before may still write to it.
    freed: Vec<u32>,
    /// How many threads have each mark.
    marked: Vec<u32>,
}

/// Number of marks: a thread has that of the last bits of its number.
const MARKS: usize = 1 << 16;
/// Number of marks in a row of the table `marks`.
const MARKS_IN_ROW: usize = 64;

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("places", &self.places).finish_non_exhaustive()
    }
}

impl KernelTable {
    /// Loads the table, for at most 16,384 threads.
    ///
    /// # Errors
    /// Those of [`check_table`](crate::check_table), and [`Error::LoadTable`] if the kernel refuses
    /// the programs: before Linux 5.18, or without `CONFIG_DEBUG_INFO_BTF`.
    pub fn load() -> Result<KernelTable, Error> {
        KernelTable::with_rows(THREADS_MAX)
    }

    /// Lets the kernel check the programs, and starts nothing.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn check_load() -> Result<(), Error> {
        availability::check_table()?;
        object::explained(|| Table::load(1).map(drop), Error::LoadTable)
    }

    /// As [`load`](Self::load), for a number of threads, in tests.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    #[doc(hidden)]
    pub fn with_rows(threads: u32) -> Result<KernelTable, Error> {
        availability::check_table()?;
        object::explained(|| Table::attach(threads), Error::LoadTable)
            .map(|table| KernelTable(Arc::new(table)))
    }
}

impl Table {
    fn load(threads: u32) -> libbpf_rs::Result<Object> {
        let mut object = ObjectBuilder::default().open_memory(OBJECT)?;
        for mut map in object.maps_mut() {
            if map.name() == OsStr::new("rows") || map.name() == OsStr::new("places") {
                map.set_max_entries(threads)?;
            }
        }
        object.load()
    }

    fn attach(threads: u32) -> libbpf_rs::Result<Table> {
        let object = Table::load(threads)?;
        let handle = |name: &str| {
            let map = object.maps().find(|map| map.name() == OsStr::new(name));
            MapHandle::try_from(&map.ok_or_else(|| object::missing(name))?)
        };
        let (rows, places) = (Rows::map(&handle("rows")?, threads)?, handle("places")?);
        let marks = handle("marks")?;
        let links: Vec<Link> =
            object.progs_mut().map(|program| program.attach()).collect::<Result<_, _>>()?;
        Ok(Table {
            rows,
            places,
            marks,
            threads: Mutex::new(Threads {
                free: (0..threads).collect(),
                freed: Vec::new(),
                marked: vec![0; MARKS],
            }),
            reused_min: (threads / REUSED_PART).max(1) as usize,
            _links: Mutex::new(links),
        })
    }

    /// Returns the place of a thread.
    fn place(&self, tid: u32) -> Option<u32> {
        let bytes = self.places.lookup(&tid.to_ne_bytes(), MapFlags::ANY).ok()??;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free place for a thread, and marks its number.
    fn take(&self, tid: u32) -> Result<u32, String> {
        let mut threads = self.threads();
        if threads.free.is_empty() {
            if threads.freed.len() < self.reused_min {
                return Err("the table of the kernel is full".into());
            }
            // A wait for all programs of the kernel that run now (an RCU grace period), which takes
            // some milliseconds. Without it, freed places must not be used again.
            membarrier(MembarrierCommand::Global)
                .map_err(|e| format!("the table of the kernel is full: membarrier: {e}"))?;
            threads.free = std::mem::take(&mut threads.freed);
        }
        let place = threads.free.pop().ok_or("the table of the kernel is full")?;
        threads.marked[tid as usize % MARKS] += 1;
        if let Err(why) = self.write_marks(&threads, tid) {
            threads.marked[tid as usize % MARKS] -= 1;
            threads.free.push(place);
            return Err(format!("the table of the kernel refuses thread {tid}: {why}"));
        }
        Ok(place)
    }

    /// Frees the place of a thread that the kernel does not find any more.
    fn free(&self, tid: u32, place: u32) {
        let mut threads = self.threads();
        threads.marked[tid as usize % MARKS] -= 1;
        // The error is ignored: a superfluous mark only costs time.
        let _ = self.write_marks(&threads, tid);
        threads.freed.push(place);
    }

    /// Writes the row of marks that includes the mark of a thread.
    fn write_marks(&self, threads: &Threads, tid: u32) -> libbpf_rs::Result<()> {
        let row = tid as usize % MARKS / MARKS_IN_ROW;
        let marked = threads.marked.iter().skip(row * MARKS_IN_ROW).take(MARKS_IN_ROW);
        let bits =
            marked.enumerate().fold(0u64, |bits, (at, &count)| bits | u64::from(count > 0) << at);
        self.marks.update(&(row as u32).to_ne_bytes(), &bits.to_ne_bytes(), MapFlags::ANY)
    }
}

impl ThreadTable for KernelTable {
    fn add(&mut self, tid: i32) -> Result<Box<dyn ThreadRow>, String> {
        let tid = u32::try_from(tid).map_err(|_| format!("{tid} is no number of a thread"))?;
        let table = &self.0;
        let place = table.take(tid)?;
        table.rows.clear(place);
        let (key, value) = (tid.to_ne_bytes(), place.to_ne_bytes());
        if let Err(why) = table.places.update(&key, &value, MapFlags::NO_EXIST) {
            table.free(tid, place);
            return Err(format!("the table of the kernel refuses thread {tid}: {why}"));
        }
        Ok(Box::new(Row { table: table.clone(), tid, place }))
    }
}

/// The row of a thread. Dropping it ends the counting of the thread.
#[derive(Debug)]
struct Row {
    table: Arc<Table>,
    tid: u32,
    place: u32,
}

impl ThreadRow for Row {
    fn read(&self, now_ns: u64) -> Option<ThreadCounts> {
        self.table.rows.read(self.place, now_ns)
    }

    fn begin_blocked(&self, cause: BlockedCause) -> bool {
        self.table.rows.begin_blocked(self.place, cause)
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        // The kernel removes a thread that ends. A later thread with its number has another place.
        if self.table.place(self.tid) == Some(self.place) {
            // The error is ignored: the thread has ended meanwhile.
            let _ = self.table.places.delete(&self.tid.to_ne_bytes());
        }
        self.table.free(self.tid, self.place);
    }
}
