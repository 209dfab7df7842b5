//! Counts of calls of each probe, kept by each thread separately.

use crate::probe::probes;
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
    let probe = usize::from(probe);
    let Some(table) = own().filter(|table| probe < table.len()).or_else(|| new(probe)) else {
        return;
    };
    if let Some(count) = table.get(probe) {
        // Relaxed: a count with a single writer, which needs no read-modify-write operation.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// Assigns a table with this probe to this thread, in place of one that is too short because the
/// probe was added later. Lengths are powers of two, so the number of tables is at most the largest
/// number of threads at a time, times the number of lengths.
#[cold]
fn new(probe: usize) -> Option<&'static Table> {
    KEPT.try_with(|_| {
        let process = Process::current();
        let Tables { all, free } = &mut *tables();
        free.extend(own());
        let long = free.iter().position(|table| probe < table.len());
        let table = long.map(|at| free.swap_remove(at)).unwrap_or_else(|| {
            let counts = (0..(probe + 1).next_power_of_two()).map(|_| AtomicU64::new(0));
            let table: &'static Table = Box::leak(counts.collect());
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
    let mut sums = vec![0; probes().len()];
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
