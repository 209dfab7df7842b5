//! Counts of calls of each probe, kept by each thread separately.

use crate::probe::PROBES;
use corebeat_sync::fork::{PerProcess, Process};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts of one thread, by the probe's number. Only that thread writes the table. After the thread
/// has ended, another thread continues to count in the table.
type Table = [AtomicU64];

/// All tables of a process, and the tables without a thread.
#[derive(Default)]
struct Tables {
    all: Vec<&'static Table>,
    free: Vec<&'static Table>,
}

/// A thread of the parent may hold the lock at a fork.
static TABLES: PerProcess<Mutex<Tables>> = PerProcess::unset();

thread_local! {
    /// The table of this thread, and the process whose list contains the table.
    static TABLE: Cell<Option<(Process, &'static Table)>> = const { Cell::new(None) };
    static KEPT: Kept = const { Kept };
}

fn tables() -> MutexGuard<'static, Tables> {
    TABLES.get(|_| Mutex::default()).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The table of this thread, unless it is one of the parent.
#[inline(always)]
fn own() -> Option<&'static Table> {
    TABLE.get().filter(|(process, _)| process.is_current()).map(|(_, table)| table)
}

/// Returns the thread's table when the thread ends.
struct Kept;

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(table) = own() {
            tables().free.push(table);
        }
        TABLE.set(None);
    }
}

/// Counts a call of the probe with this number. Calls of a thread that is being destroyed are not
/// counted.
pub(crate) fn add(probe: u16) {
    let Some(table) = own().or_else(new) else { return };
    if let Some(count) = table.get(usize::from(probe)) {
        // Relaxed: a count with a single writer, which needs no read-modify-write operation.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// Assigns a table to this thread. The number of tables is the largest number of threads at a time.
#[cold]
fn new() -> Option<&'static Table> {
    KEPT.try_with(|_| {
        let process = Process::current();
        let Tables { all, free } = &mut *tables();
        let table = free.pop().unwrap_or_else(|| {
            let table: Box<Table> = PROBES.iter().map(|_| AtomicU64::new(0)).collect();
            let table: &'static Table = Box::leak(table);
            all.push(table);
            table
        });
        TABLE.set(Some((process, table)));
        table
    })
    .ok()
}

/// Total calls of all threads, by the probe's number.
pub(crate) fn sums() -> Vec<u64> {
    let mut sums = vec![0; PROBES.len()];
    for table in &tables().all {
        for (sum, count) in sums.iter_mut().zip(*table) {
            *sum += count.load(Ordering::Relaxed);
        }
    }
    sums
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use corebeat_test_group::in_child;

    #[test]
    fn child_counts_although_a_thread_of_its_parent_held_the_tables() {
        let _held = tables();
        assert!(in_child(|| sums().iter().all(|count| *count == 0)));
    }
}
