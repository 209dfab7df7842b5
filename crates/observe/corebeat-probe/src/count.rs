//! Counts of calls of each probe, kept by each thread separately.

use crate::probe::PROBES;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Counts of one thread, by the probe's number. Only that thread writes the table. After the thread
/// has ended, another thread continues to count in the table.
type Table = [AtomicU64];

/// All tables, and the tables without a thread.
static TABLES: Mutex<(Vec<&'static Table>, Vec<&'static Table>)> =
    Mutex::new((Vec::new(), Vec::new()));

thread_local! {
    static TABLE: Cell<Option<&'static Table>> = const { Cell::new(None) };
    static KEPT: Kept = const { Kept(Cell::new(None)) };
}

/// Returns the thread's table when the thread ends.
struct Kept(Cell<Option<&'static Table>>);

impl Drop for Kept {
    fn drop(&mut self) {
        TABLE.set(None);
        if let Some(table) = self.0.get() {
            TABLES.lock().unwrap_or_else(PoisonError::into_inner).1.push(table);
        }
    }
}

/// Counts a call of the probe with this number. Calls of a thread that is being destroyed are not
/// counted.
pub(crate) fn add(probe: u16) {
    let Some(table) = TABLE.get().or_else(new) else { return };
    if let Some(count) = table.get(usize::from(probe)) {
        // Relaxed: a count with a single writer, which needs no read-modify-write operation.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// Assigns a table to this thread. The number of tables is the largest number of threads at a time.
#[cold]
fn new() -> Option<&'static Table> {
    KEPT.try_with(|kept| {
        let (all, free) = &mut *TABLES.lock().unwrap_or_else(PoisonError::into_inner);
        let table = free.pop().unwrap_or_else(|| {
            let table: Box<Table> = PROBES.iter().map(|_| AtomicU64::new(0)).collect();
            let table: &'static Table = Box::leak(table);
            all.push(table);
            table
        });
        kept.0.set(Some(table));
        TABLE.set(Some(table));
        table
    })
    .ok()
}

/// Total calls of all threads, by the probe's number.
pub(crate) fn sums() -> Vec<u64> {
    let tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut sums = vec![0; PROBES.len()];
    for table in &tables.0 {
        for (sum, count) in sums.iter_mut().zip(*table) {
            *sum += count.load(Ordering::Relaxed);
        }
    }
    sums
}
