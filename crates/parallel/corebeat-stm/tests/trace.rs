//! Events of transactions, and reports on them. The trace belongs to the process, so tests run one
//! at a time.

use corebeat_stm::contention::{self, Suicide};
use corebeat_stm::trace::{self, Detail, Report, TIMED_EVERY, Transactions};
use corebeat_stm::*;
use corebeat_trace::{Compression, Event, Options, Reader, Record, Value, WhenFull, emit};
use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Traces `work`. Returns the report, and the number of events of each kind.
fn traced(detail: Detail, work: impl FnOnce()) -> (Report, Vec<(String, u64)>) {
    traced_with(detail, work, |_| {})
}

/// Traces `work`, and calls a function with each event.
fn traced_with(
    detail: Detail,
    work: impl FnOnce(),
    mut each: impl FnMut(&Record<'_>),
) -> (Report, Vec<(String, u64)>) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    contention::set(&Suicide);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.cbt");
    let mut options = Options { when_full: WhenFull::Wait, ..Options::default() };
    if cfg!(miri) {
        // Miri needs long for each byte of the buffers.
        options.buffers = 2;
        options.buffer_bytes = 0;
        options.compression = Compression::None;
    }
    let recorded = options.create(&path).unwrap();
    recorded.install().unwrap();
    trace::set(detail);
    work();
    trace::set(Detail::Off);
    let cell = TCell::new(1);
    atomically(|tx| tx.update(&cell, |n| n + 1));
    recorded.finish().unwrap();
    let report = Report::read(File::open(&path).unwrap()).unwrap();
    let mut reader = Reader::new(File::open(&path).unwrap()).unwrap();
    let mut kinds: Vec<(String, u64)> = Vec::new();
    while let Some(packet) = reader.next_packet().unwrap() {
        for event in packet.events() {
            each(&event);
            let name = event.kind().name();
            match kinds.iter_mut().find(|(kind, _)| kind == name) {
                Some((_, count)) => *count += 1,
                None => kinds.push((name.into(), 1)),
            }
        }
    }
    assert!(report.ending().is_some_and(|ending| ending.is_complete()));
    (report, kinds)
}

fn count(kinds: &[(String, u64)], kind: &str) -> u64 {
    kinds.iter().find(|(name, _)| name == kind).map_or(0, |(_, count)| *count)
}

/// Waits until the count is reached.
fn wait_for(count: &AtomicUsize, least: usize) {
    while count.load(Ordering::SeqCst) < least {
        thread::yield_now();
    }
}

/// Returns the line after the call.
#[track_caller]
fn line_after() -> String {
    let here = std::panic::Location::caller();
    format!("{}:{}:", here.file(), here.line() + 1)
}

#[test]
fn full_trace_contains_all_accesses_and_a_reduced_one_none() {
    const ROUNDS: u64 = if cfg!(miri) { 5 } else { 100 };
    let work = || {
        let cells = [const { 5u64 }; 4].map(TCell::new);
        for _ in 0..ROUNDS {
            atomically(|tx| {
                let sum = tx.read(&cells[0])? + tx.read(&cells[1])?;
                tx.write(&cells[2], sum)?;
                tx.write(&cells[2], sum + 1)?;
                tx.update(&cells[3], |n| n + 1)
            });
            snapshot(|tx| tx.read(&cells[2]));
        }
    };
    for detail in [Detail::Full, Detail::Reduced] {
        let (report, kinds) = traced(detail, work);
        assert_eq!((report.commits, report.aborts, report.transactions.len()), (2 * ROUNDS, 0, 2));
        let (reads, writes) = (count(&kinds, "stm.read"), count(&kinds, "stm.write"));
        assert_eq!(
            (reads, writes),
            if detail == Detail::Full { (3 * ROUNDS, 2 * ROUNDS) } else { (0, 0) }
        );
        let (timed, untimed) = (count(&kinds, "stm.commit"), count(&kinds, "stm.done"));
        assert_eq!((timed + untimed, timed), (2 * ROUNDS, count(&kinds, "stm.start")));
        assert!(timed >= 2 * ROUNDS / u64::from(TIMED_EVERY), "{kinds:?}");
        let accesses: u64 = report.transactions.iter().map(|at| at.committed.accesses).sum();
        assert_eq!(accesses, reads + writes);
        assert!(report.transactions.iter().any(|at| at.committed.time_ns() > 0));
    }
}

#[test]
fn reads_of_a_snapshot_are_recorded_in_order_with_rows_merged() {
    let cells: Vec<TCell<u64>> = (0..300).map(TCell::new).collect();
    let steps = [7usize, 3, 4, 5, 5, 4, 3, 0, 1, 9];
    let mut places = Vec::new();
    let (report, _) = traced_with(
        Detail::Full,
        || {
            trace::name(&cells, "cells");
            snapshot(|tx| {
                steps.iter().map(|step| tx.read(&cells[*step])).sum::<Result<u64, Abort>>()
            });
            snapshot(|tx| cells.iter().map(|cell| tx.read(cell)).sum::<Result<u64, Abort>>());
        },
        |event| {
            let number = |field| match event.value(field) {
                Some(Value::U64(number)) => number,
                _ => 0,
            };
            match event.kind().name() {
                "stm.cells" => places.push((number("place"), 0)),
                "stm.read" => places.push((number("place"), 1)),
                "stm.reads" => places.push((number("place"), number("count"))),
                _ => {}
            }
        },
    );
    let first = places.remove(0).0;
    let read: Vec<(u64, u64)> =
        places.iter().map(|(place, count)| (place - first, *count)).collect();
    assert_eq!(read, [(7, 1), (3, 3), (5, 1), (4, 1), (3, 1), (0, 2), (9, 1), (0, 300)]);
    let accesses: u64 = report.transactions.iter().map(|at| at.committed.accesses).sum();
    assert_eq!(accesses, 310);
}

#[test]
fn nothing_is_recorded_without_a_trace() {
    let (report, kinds) = traced(Detail::Off, || {
        let cell = TCell::new(1);
        atomically(|tx| tx.update(&cell, |n| n + 1));
    });
    assert_eq!((report.commits, report.aborts, kinds), (0, 0, vec![]));
}

#[test]
fn attempt_that_is_active_when_the_detail_changes_is_not_recorded() {
    let cell = TCell::new(1u64);
    let write = || atomically(|tx| tx.write(&cell, 7));
    // This thread has recorded call sites in another trace.
    traced(Detail::Full, write);
    let (report, kinds) = traced(Detail::Off, || {
        atomically(|tx| {
            trace::set(Detail::Full);
            tx.update(&cell, |n| n + 1)
        });
        write();
    });
    let kinds: Vec<_> = kinds.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
    let once = ["stm.thread", "stm.site", "stm.start", "stm.write", "stm.commit"];
    assert_eq!((report.commits, kinds), (1, once.map(|kind| (kind, 1)).to_vec()));
}

#[test]
fn abort_is_not_recorded_with_the_conflict_of_an_unrecorded_one() {
    let (report, _) = traced(Detail::Off, || {
        let (read, written) = (TCell::new(1u64), TCell::new(2u64));
        let mut is_first = true;
        atomically(|tx| {
            let n = tx.read(&read)?;
            if std::mem::take(&mut is_first) {
                thread::scope(|scope| {
                    scope.spawn(|| atomically(|tx| tx.write(&read, 7)));
                });
            }
            tx.write(&written, n)
        });
        trace::set(Detail::Full);
        let panics = || atomically::<()>(|_| std::panic::resume_unwind(Box::new(())));
        assert!(std::panic::catch_unwind(panics).is_err());
    });
    assert_eq!(
        (report.aborts, report.places.len(), report.conflicts[0].other.as_ref()),
        (1, 0, None)
    );
}

#[test]
fn report_tolerates_inconsistent_events() {
    #[derive(Event)]
    #[event(name = "stm.reads", untimed)]
    struct Reads {
        count: u64,
    }
    #[derive(Event)]
    #[event(name = "stm.read", untimed)]
    struct Read {}
    #[derive(Event)]
    #[event(name = "stm.done", untimed)]
    struct Done {}
    #[derive(Event)]
    #[event(name = "stm.abort", untimed)]
    struct Abort {
        site: u16,
        accesses: u64,
    }
    let (report, _) = traced(Detail::Off, || {
        emit(&Reads { count: u64::MAX });
        emit(&Read {});
        emit(&Done {});
        for site in [1, 2] {
            emit(&Abort { site, accesses: u64::MAX });
        }
    });
    assert_eq!((report.commits, report.aborts), (1, 2));
    assert!(report.to_string().contains(&format!("with {} accesses", u64::MAX)), "{report}");
}

#[test]
fn conflict_is_recorded_with_its_place_and_both_transactions() {
    let (attempts, line) = (AtomicUsize::new(0), Mutex::new((String::new(), String::new())));
    let (report, _) = traced(Detail::Reduced, || {
        let accounts = [1u64, 2, 3, 4].map(TCell::new);
        trace::name(&accounts, "accounts");
        thread::scope(|scope| {
            scope.spawn(|| {
                line.lock().unwrap().0 = line_after();
                atomically(|tx| {
                    tx.write(&accounts[3], 5)?;
                    // The other transaction has reached this point and failed.
                    attempts.fetch_max(1, Ordering::SeqCst);
                    wait_for(&attempts, 4);
                    Ok(())
                });
            });
            wait_for(&attempts, 1);
            line.lock().unwrap().1 = line_after();
            atomically(|tx| {
                attempts.fetch_add(1, Ordering::SeqCst);
                tx.read(&accounts[3])
            });
        });
    });
    let (holder, reader) = line.into_inner().unwrap();
    let conflict = &report.conflicts[0];
    assert_eq!(conflict.cause, "read conflict");
    assert!(conflict.site.starts_with(&reader), "{conflict:?} {reader}");
    assert!(
        conflict.other.as_ref().is_some_and(|other| other.starts_with(&holder)),
        "{conflict:?} {holder}"
    );
    assert!(conflict.count >= 2 && report.aborts >= 2);
    let place = &report.places[0];
    assert_eq!((place.name.as_str(), place.hottest.unwrap().0), ("accounts", 3));
    let at: &Transactions = &report.transactions[0];
    // After a hundred failures, the other transaction fails as well.
    assert!(at.committed.count == 1 && at.aborted.count >= 2, "{report}");
    assert!(report.to_string().contains("at accounts[3]"), "{report}");
}

#[test]
fn last_writer_of_a_changed_cell_is_found() {
    let line = Mutex::new(String::new());
    let mut attempts = 0;
    let (report, _) = traced(Detail::Full, || {
        let (read, written) = (TCell::new(1u64), TCell::new(2u64));
        trace::name(std::slice::from_ref(&read), "what was read");
        atomically(|tx| {
            attempts += 1;
            let n = tx.read(&read)?;
            if attempts == 1 {
                thread::scope(|scope| {
                    scope.spawn(|| {
                        *line.lock().unwrap() = line_after();
                        atomically(|tx| tx.write(&read, 7));
                    });
                });
            }
            tx.write(&written, n)
        });
        assert_eq!(written.into_inner(), 7);
    });
    assert_eq!((report.commits, report.aborts), (2, 1));
    let conflict = &report.conflicts[0];
    assert_eq!(conflict.cause, "validation");
    let writer = line.into_inner().unwrap();
    assert!(
        conflict.other.as_ref().is_some_and(|other| other.starts_with(&writer)),
        "{conflict:?} {writer}"
    );
    assert_eq!((report.places[0].name.as_str(), report.places[0].hottest), ("what was read", None));
    assert_eq!(report.transactions[0].aborted.accesses, 2);
}

#[test]
fn panic_and_retry_are_recorded_as_such() {
    let cell = TCell::new(false);
    let (report, _) = traced(Detail::Reduced, || {
        let panics = || atomically::<()>(|_| std::panic::resume_unwind(Box::new(())));
        assert!(std::panic::catch_unwind(panics).is_err());
        let waits = AtomicUsize::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                wait_for(&waits, 1);
                atomically(|tx| tx.write(&cell, true));
            });
            atomically(|tx| {
                let is_set = tx.read(&cell)?;
                waits.fetch_add(1, Ordering::SeqCst);
                if is_set { Ok(()) } else { tx.retry() }
            });
        });
    });
    let of = |cause: &str| {
        report.conflicts.iter().filter(|c| c.cause == cause).map(|c| c.count).sum::<u64>()
    };
    assert_eq!(of("panic"), 1, "{report}");
    assert!(of("retry") + of("read conflict") >= 1, "{report}");
}
