//! Random transactions on deterministically scheduled threads, and a check that their history is
//! opaque.
//!
//! One thread runs at a time, up to its next access to memory or its next pause; a list of numbers
//! determines the next thread. So a failing case is reproducible, and shrinks. The reads and writes
//! of each attempt are recorded, including those of aborted attempts. The history is opaque if
//! there is a total order of all attempts, consistent with the order of attempts that did not
//! overlap, in which each attempt reads the values of the committed attempts before it.

use crate::contention::{self, Backoff, ContentionManager, Greedy, Karma, Suicide};
use crate::fault::{Fault, test};
use crate::trace::{self, Detail};
use crate::{Abort, TCell, Tx, atomically, snapshot};
use corebeat_trace::{Options, Reader, WhenFull};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

const CELLS: usize = 4;

type Values = [u64; CELLS];

#[derive(Debug, Clone)]
enum Op {
    Read(usize),
    Write(usize),
    Update(usize),
    /// Runs these operations and undoes them.
    Branch(Vec<Op>),
    Irrevocable,
}

#[derive(Debug, Clone)]
struct Plan {
    begins_as_snapshot: bool,
    ops: Vec<Op>,
}

/// The effects of an attempt, and its first and last step.
#[derive(Debug, Clone)]
struct Attempt {
    begin: usize,
    end: usize,
    committed: bool,
    /// Values that it read and had not written.
    reads: Vec<(usize, u64)>,
    /// The final values that it wrote.
    writes: Vec<(usize, u64)>,
}

/// The scheduler of the threads.
struct Schedule {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    runs: usize,
    is_done: Vec<bool>,
    steps: usize,
    choices: Vec<u8>,
    /// A thread panicked: all threads run to their ends.
    is_broken: bool,
}

/// More steps than any case needs, unless attempts fail forever.
const STEPS_MAX: usize = 100_000;

impl Schedule {
    fn new(threads: usize, choices: Vec<u8>) -> Self {
        let state =
            State { runs: 0, is_done: vec![false; threads], steps: 0, choices, is_broken: false };
        Schedule { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn wait(&self, own: usize) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(state, |state| state.runs != own && !state.is_broken));
    }

    fn pass(&self, own: usize, is_done: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_done[own] |= is_done;
        state.steps += 1;
        if state.steps > STEPS_MAX && !thread::panicking() {
            state.is_broken = true;
            self.changed.notify_all();
            drop(state);
            panic!("attempts fail forever");
        }
        let ready: Vec<_> =
            (0..state.is_done.len()).filter(|&thread| !state.is_done[thread]).collect();
        if let Some(choices) = ready.len().checked_sub(1) {
            let choice = state.choices[state.steps % state.choices.len()];
            state.runs = ready[usize::from(choice) * (choices + 1) / 256];
        }
        self.changed.notify_all();
        drop(state);
        if !is_done {
            self.wait(own);
        }
    }

    fn step(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).steps
    }
}

/// Records the attempts of a thread.
struct Recorder {
    attempts: Vec<Attempt>,
    /// The values that this attempt has written.
    own: [Option<u64>; CELLS],
    /// Next value: all writes of all threads differ.
    next: u64,
}

impl Recorder {
    fn begin(&mut self, step: usize) {
        if let Some(last) = self.attempts.last_mut()
            && last.end == usize::MAX
        {
            last.end = step;
        }
        self.own = [None; CELLS];
        let attempt = Attempt {
            begin: step,
            end: usize::MAX,
            committed: false,
            reads: Vec::new(),
            writes: Vec::new(),
        };
        self.attempts.push(attempt);
    }

    fn read(&mut self, cell: usize, value: u64) {
        match self.own[cell] {
            Some(own) => assert_eq!(value, own, "an attempt reads what it has written"),
            None => self.attempts.last_mut().unwrap().reads.push((cell, value)),
        }
    }

    fn write(&mut self, cell: usize) -> u64 {
        self.next += 1;
        self.own[cell] = Some(self.next);
        self.next
    }

    fn commit(&mut self, step: usize) {
        let last = self.attempts.last_mut().unwrap();
        last.end = step;
        last.committed = true;
        last.writes =
            self.own.iter().enumerate().filter_map(|(cell, own)| Some((cell, (*own)?))).collect();
    }
}

fn carry_out<'t>(
    tx: &mut Tx<'t, '_>,
    cells: &'t [TCell<u64>; CELLS],
    ops: &[Op],
    recorder: &RefCell<Recorder>,
    pass: &dyn Fn(),
) -> Result<(), Abort> {
    for op in ops {
        pass();
        match op {
            Op::Read(cell) => {
                let value = tx.read(&cells[*cell])?;
                recorder.borrow_mut().read(*cell, value);
            }
            Op::Write(cell) => {
                let value = recorder.borrow_mut().next + 1;
                tx.write(&cells[*cell], value)?;
                assert_eq!(recorder.borrow_mut().write(*cell), value);
            }
            Op::Update(cell) => tx.update(&cells[*cell], |old| {
                recorder.borrow_mut().read(*cell, old);
                recorder.borrow_mut().write(*cell)
            })?,
            Op::Branch(ops) => {
                let before = recorder.borrow().own;
                tx.or_else(
                    |tx| {
                        carry_out(tx, cells, ops, recorder, pass)?;
                        tx.retry()
                    },
                    |_| {
                        recorder.borrow_mut().own = before;
                        Ok(())
                    },
                )?;
            }
            Op::Irrevocable => tx.irrevocable()?,
        }
    }
    pass();
    Ok(())
}

/// Runs the plans. Returns the attempts of each thread, and the final values of the cells.
fn run(plans: &[Vec<Plan>], choices: &[u8], fault: Option<Fault>) -> (Vec<Vec<Attempt>>, Values) {
    let cells: Arc<[TCell<u64>; CELLS]> = Arc::default();
    let schedule = Arc::new(Schedule::new(plans.len(), choices.to_vec()));
    let threads: Vec<_> = plans
        .iter()
        .cloned()
        .enumerate()
        .map(|(number, plans)| {
            let (cells, schedule) = (cells.clone(), schedule.clone());
            let builder = thread::Builder::new().name(number.to_string());
            let thread = builder.spawn(move || {
                test::plant(fault);
                let pass = {
                    let schedule = schedule.clone();
                    Rc::new(move || schedule.pass(number, false))
                };
                test::on_pause(pass.clone());
                schedule.wait(number);
                let next = (number as u64 + 1) << 32;
                let recorder =
                    RefCell::new(Recorder { attempts: Vec::new(), own: [None; CELLS], next });
                let result = catch_unwind(AssertUnwindSafe(|| {
                    for plan in &plans {
                        fn closure<'a>(
                            f: impl for<'t> FnMut(&mut Tx<'t, 'a>) -> Result<(), Abort>,
                        ) -> impl for<'t> FnMut(&mut Tx<'t, 'a>) -> Result<(), Abort>
                        {
                            f
                        }
                        let f = closure(|tx| {
                            recorder.borrow_mut().begin(schedule.step());
                            carry_out(tx, &cells, &plan.ops, &recorder, &*pass)
                        });
                        if plan.begins_as_snapshot {
                            snapshot(f)
                        } else {
                            atomically(f)
                        }
                        recorder.borrow_mut().commit(schedule.step());
                        pass();
                    }
                }));
                if result.is_err() {
                    schedule.state.lock().unwrap_or_else(PoisonError::into_inner).is_broken = true;
                }
                schedule.pass(number, true);
                result
                    .map(|()| recorder.into_inner().attempts)
                    .unwrap_or_else(|why| resume_unwind(why))
            });
            thread.expect("the thread starts")
        })
        .collect();
    let attempts: Vec<_> = threads.into_iter().map(thread::JoinHandle::join).collect();
    let attempts =
        attempts.into_iter().map(|a| a.unwrap_or_else(|why| resume_unwind(why))).collect();
    let values = atomically(|tx| {
        let mut values = [0; CELLS];
        for (value, cell) in values.iter_mut().zip(&*cells) {
            *value = tx.read(cell)?;
        }
        Ok(values)
    });
    (attempts, values)
}

/// Returns whether an order of the attempts explains all reads and the final values.
fn is_opaque(threads: &[Vec<Attempt>], end: &Values) -> bool {
    let mut visited = HashSet::new();
    let mut open = vec![(vec![0; threads.len()], [0; CELLS])];
    while let Some((placed, values)) = open.pop() {
        let next = |thread: usize| threads[thread].get(placed[thread]);
        let others_end = (0..threads.len()).filter_map(|t| Some(next(t)?.end)).min();
        let Some(others_end) = others_end else {
            if values == *end {
                return true;
            }
            continue;
        };
        for thread in 0..threads.len() {
            let Some(attempt) = next(thread) else { continue };
            let explained = attempt.reads.iter().all(|&(cell, value)| values[cell] == value);
            // An attempt that ended before this one began comes first.
            if others_end < attempt.begin || !explained {
                continue;
            }
            let (mut placed, mut values) = (placed.clone(), values);
            placed[thread] += 1;
            if attempt.committed {
                attempt.writes.iter().for_each(|&(cell, value)| values[cell] = value);
            }
            if visited.insert((placed.clone(), values)) {
                open.push((placed, values));
            }
        }
    }
    false
}

fn op() -> impl Strategy<Value = Op> {
    let simple = prop_oneof![
        4 => (0..CELLS).prop_map(Op::Read),
        2 => (0..CELLS).prop_map(Op::Write),
        2 => (0..CELLS).prop_map(Op::Update),
    ];
    let branch = prop::collection::vec(simple.clone(), 1..3).prop_map(Op::Branch);
    prop_oneof![12 => simple, 1 => branch, 1 => Just(Op::Irrevocable)]
}

fn plans(threads: std::ops::Range<usize>) -> impl Strategy<Value = Case> {
    let plan = (prop::bool::weighted(0.2), prop::collection::vec(op(), 1..5)).prop_map(
        |(begins_as_snapshot, mut ops)| {
            // An irrevocable transaction cannot undo operations.
            if let Some(at) = ops.iter().position(|op| matches!(op, Op::Irrevocable)) {
                let rest = ops.split_off(at);
                ops.extend(rest.into_iter().filter(|op| !matches!(op, Op::Branch(_))));
            }
            Plan { begins_as_snapshot, ops }
        },
    );
    let thread = prop::collection::vec(plan, 1..5);
    (prop::collection::vec(thread, threads), prop::collection::vec(any::<u8>(), 64))
}

/// The plans of each thread, and the schedule.
type Case = (Vec<Vec<Plan>>, Vec<u8>);

/// Serializes tests that change state of the process: the contention manager or the gate.
pub(crate) fn exclusive() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check(
    threads: std::ops::Range<usize>,
    manager: &'static dyn ContentionManager,
    fault: Option<Fault>,
    config: Config,
) -> Result<(), TestError<Case>> {
    let _exclusive = exclusive();
    contention::set(manager);
    let config = Config { failure_persistence: None, ..config };
    TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(Default::default()),
    )
    .run(&plans(threads), |(plans, choices)| {
        let (attempts, end) = run(&plans, &choices, fault);
        prop_assert!(is_opaque(&attempts, &end), "{attempts:#?}\n{end:?}");
        Ok(())
    })
}

#[test]
fn random_transactions_of_one_thread_are_sequential() {
    check(1..2, &Suicide, None, Config::default()).unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn random_history_is_opaque_with_each_manager() {
    let managers: [&'static dyn ContentionManager; 4] = [&Suicide, &Backoff, &Karma, &Greedy];
    for manager in managers {
        check(2..4, manager, None, Config::default()).unwrap_or_else(|why| panic!("{why}"));
    }
}

/// Reads a trace: for each attempt of each thread, whether it committed, and the number of cells
/// that it wrote.
fn traced(path: &Path) -> BTreeMap<String, Vec<(bool, usize)>> {
    let mut threads = BTreeMap::<String, Vec<(bool, usize)>>::new();
    let mut reader = Reader::new(File::open(path).unwrap()).unwrap();
    while let Some(packet) = reader.next_packet().unwrap() {
        let attempts = threads.entry(packet.thread().name.clone()).or_default();
        let mut writes = 0;
        for event in packet.events() {
            match event.kind().name() {
                "stm.write" => writes += 1,
                "stm.commit" | "stm.done" => attempts.push((true, mem::take(&mut writes))),
                "stm.abort" => attempts.push((false, mem::take(&mut writes))),
                _ => {}
            }
        }
    }
    threads
}

#[test]
fn random_history_is_recorded_exactly() {
    let _exclusive = exclusive();
    contention::set(&Backoff);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.cbt");
    let config = Config { failure_persistence: None, ..Config::default() };
    let rng = proptest::test_runner::TestRng::deterministic_rng(Default::default());
    let result = TestRunner::new_with_rng(config, rng).run(&plans(2..4), |(plans, choices)| {
        let recorded =
            Options { when_full: WhenFull::Wait, ..Options::default() }.create(&path).unwrap();
        recorded.install().unwrap();
        trace::set(Detail::Full);
        let (threads, end) = run(&plans, &choices, None);
        trace::set(Detail::Off);
        recorded.finish().unwrap();
        prop_assert!(is_opaque(&threads, &end), "{threads:#?}\n{end:?}");
        let traced = traced(&path);
        for (number, attempts) in threads.iter().enumerate() {
            let traced = &traced[&number.to_string()];
            prop_assert_eq!(traced.len(), attempts.len());
            for (traced, attempt) in traced.iter().zip(attempts) {
                // Undone writes are recorded as well.
                let is_exact = traced.0 == attempt.committed && traced.1 >= attempt.writes.len();
                prop_assert!(is_exact, "{traced:?} {attempt:?}");
            }
        }
        Ok(())
    });
    result.unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn planted_fault_makes_a_history_that_is_not_opaque() {
    use Fault::*;
    for fault in [Validation, Time, Held, Version, Undo, Gate, Sole, Share] {
        let config = Config { cases: 5_000, max_shrink_iters: 0, ..Config::default() };
        assert!(
            check(2..4, &Suicide, Some(fault), config).is_err(),
            "the planted fault was not detected: {fault:?}"
        );
    }
}

/// Creates an attempt; `writes` is `None` for an aborted one.
fn attempt(
    steps: std::ops::Range<usize>,
    reads: &[(usize, u64)],
    writes: Option<&[(usize, u64)]>,
) -> Attempt {
    Attempt {
        begin: steps.start,
        end: steps.end,
        committed: writes.is_some(),
        reads: reads.to_vec(),
        writes: writes.unwrap_or_default().to_vec(),
    }
}

#[test]
fn checker_distinguishes_opaque_histories() {
    let writer = || attempt(0..5, &[], Some(&[(0, 1), (1, 1)]));
    let end = [1, 1, 0, 0];
    let good = |other: Attempt| is_opaque(&[vec![writer()], vec![other]], &end);
    assert!(good(attempt(1..4, &[(0, 0), (1, 0)], None)), "the attempt comes before the writer");
    assert!(
        good(attempt(1..4, &[(0, 1), (1, 1)], Some(&[]))),
        "the attempt comes after the writer"
    );
    assert!(good(attempt(6..9, &[(0, 1), (1, 1)], Some(&[]))));
    assert!(
        !good(attempt(1..4, &[(0, 1), (1, 0)], Some(&[]))),
        "an attempt reads half of a commit"
    );
    assert!(
        !good(attempt(1..4, &[(0, 1), (1, 0)], None)),
        "an aborted attempt reads half of a commit"
    );
    assert!(
        !good(attempt(6..9, &[(0, 0), (1, 0)], Some(&[]))),
        "an attempt misses an earlier commit"
    );
    assert!(!is_opaque(&[vec![writer()]], &[1, 0, 0, 0]), "half of a commit is lost");
    let skew = |read, write| attempt(0..5, &[(0, 0), (1, 0)], Some(&[(read, write)]));
    assert!(
        !is_opaque(&[vec![skew(0, 1)], vec![skew(1, 1)]], &end),
        "each attempt reads a cell that the other one writes"
    );
}
