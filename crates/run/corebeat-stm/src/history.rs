//! Random transactions on threads that take turns, what they saw and wrote, and whether that can be explained.
//!
//! One thread runs at a time, up to its next access of memory, or to where it would pause; a list of numbers says who is next.
//! So a case that fails fails again, and shrinks. What each attempt read and wrote is recorded, of those that came to nothing
//! as well. The history is opaque if there is an order of all attempts, in which those that did not overlap keep theirs, such
//! that each reads what the ones before it that committed have left.

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
    /// Does this, and takes it back.
    Branch(Vec<Op>),
    Irrevocable,
}

#[derive(Debug, Clone)]
struct Plan {
    begins_as_snapshot: bool,
    ops: Vec<Op>,
}

/// What an attempt did, and from which step to which.
#[derive(Debug, Clone)]
struct Attempt {
    begin: usize,
    end: usize,
    committed: bool,
    /// What it read that it had not written.
    reads: Vec<(usize, u64)>,
    /// What its cells held in the end.
    writes: Vec<(usize, u64)>,
}

/// Who runs.
struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    runs: usize,
    is_done: Vec<bool>,
    steps: usize,
    choices: Vec<u8>,
    /// A thread panicked: everybody runs to its end.
    is_broken: bool,
}

/// More steps than any case takes, unless attempts fail for ever.
const STEPS_MAX: usize = 100_000;

impl Turns {
    fn new(threads: usize, choices: Vec<u8>) -> Self {
        let state = State { runs: 0, is_done: vec![false; threads], steps: 0, choices, is_broken: false };
        Turns { state: Mutex::new(state), changed: Condvar::new() }
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
            panic!("attempts fail for ever");
        }
        let ready: Vec<_> = (0..state.is_done.len()).filter(|&thread| !state.is_done[thread]).collect();
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
    /// What this attempt has written.
    own: [Option<u64>; CELLS],
    /// So that no two writes of all threads write the same.
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
        let attempt =
            Attempt { begin: step, end: usize::MAX, committed: false, reads: Vec::new(), writes: Vec::new() };
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
        last.writes = self.own.iter().enumerate().filter_map(|(cell, own)| Some((cell, (*own)?))).collect();
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

/// What each thread's attempts did, and what the cells hold in the end.
fn run(plans: &[Vec<Plan>], choices: &[u8], fault: Option<Fault>) -> (Vec<Vec<Attempt>>, Values) {
    let cells: Arc<[TCell<u64>; CELLS]> = Arc::default();
    let turns = Arc::new(Turns::new(plans.len(), choices.to_vec()));
    let threads: Vec<_> = plans
        .iter()
        .cloned()
        .enumerate()
        .map(|(number, plans)| {
            let (cells, turns) = (cells.clone(), turns.clone());
            let builder = thread::Builder::new().name(number.to_string());
            let thread = builder.spawn(move || {
                test::plant(fault);
                let pass = {
                    let turns = turns.clone();
                    Rc::new(move || turns.pass(number, false))
                };
                test::on_pause(pass.clone());
                turns.wait(number);
                let next = (number as u64 + 1) << 32;
                let recorder = RefCell::new(Recorder { attempts: Vec::new(), own: [None; CELLS], next });
                let result = catch_unwind(AssertUnwindSafe(|| {
                    for plan in &plans {
                        fn closure<'a>(
                            f: impl for<'t> FnMut(&mut Tx<'t, 'a>) -> Result<(), Abort>,
                        ) -> impl for<'t> FnMut(&mut Tx<'t, 'a>) -> Result<(), Abort>
                        {
                            f
                        }
                        let f = closure(|tx| {
                            recorder.borrow_mut().begin(turns.step());
                            carry_out(tx, &cells, &plan.ops, &recorder, &*pass)
                        });
                        if plan.begins_as_snapshot {
                            snapshot(f)
                        } else {
                            atomically(f)
                        }
                        recorder.borrow_mut().commit(turns.step());
                        pass();
                    }
                }));
                if result.is_err() {
                    turns.state.lock().unwrap_or_else(PoisonError::into_inner).is_broken = true;
                }
                turns.pass(number, true);
                result.map(|()| recorder.into_inner().attempts).unwrap_or_else(|why| resume_unwind(why))
            });
            thread.expect("a thread")
        })
        .collect();
    let attempts: Vec<_> = threads.into_iter().map(thread::JoinHandle::join).collect();
    let attempts = attempts.into_iter().map(|a| a.unwrap_or_else(|why| resume_unwind(why))).collect();
    let values = atomically(|tx| {
        let mut values = [0; CELLS];
        for (value, cell) in values.iter_mut().zip(&*cells) {
            *value = tx.read(cell)?;
        }
        Ok(values)
    });
    (attempts, values)
}

/// Whether there is an order that explains everything.
fn is_opaque(threads: &[Vec<Attempt>], end: &Values) -> bool {
    let mut seen = HashSet::new();
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
            // Who ended before this one began comes first.
            if others_end < attempt.begin || !explained {
                continue;
            }
            let (mut placed, mut values) = (placed.clone(), values);
            placed[thread] += 1;
            if attempt.committed {
                attempt.writes.iter().for_each(|&(cell, value)| values[cell] = value);
            }
            if seen.insert((placed.clone(), values)) {
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
            // What is irrevocable takes nothing back.
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

/// What each thread is to do, and who runs when.
type Case = (Vec<Vec<Plan>>, Vec<u8>);

/// For who sets the manager, which is the process's, or shuts the gate.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check(
    threads: std::ops::Range<usize>,
    manager: &'static dyn ContentionManager,
    fault: Option<Fault>,
    config: Config,
) -> Result<(), TestError<Case>> {
    let _turn = turn();
    contention::set(manager);
    let config = Config { failure_persistence: None, ..config };
    TestRunner::new_with_rng(config, proptest::test_runner::TestRng::deterministic_rng(Default::default()))
        .run(&plans(threads), |(plans, choices)| {
            let (attempts, end) = run(&plans, &choices, fault);
            prop_assert!(is_opaque(&attempts, &end), "{attempts:#?}\n{end:?}");
            Ok(())
        })
}

#[test]
fn random_transactions_of_one_thread_are_as_a_sequence() {
    check(1..2, &Suicide, None, Config::default()).unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn random_history_is_opaque_with_each_manager() {
    let managers: [&'static dyn ContentionManager; 4] = [&Suicide, &Backoff, &Karma, &Greedy];
    for manager in managers {
        check(2..4, manager, None, Config::default()).unwrap_or_else(|why| panic!("{why}"));
    }
}

/// What each thread has told: of each attempt, whether it committed, and how many cells it has written.
fn told(path: &Path) -> BTreeMap<String, Vec<(bool, usize)>> {
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
fn random_history_is_told_as_it_was() {
    let _turn = turn();
    contention::set(&Backoff);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.cbt");
    let config = Config { failure_persistence: None, ..Config::default() };
    let rng = proptest::test_runner::TestRng::deterministic_rng(Default::default());
    let result = TestRunner::new_with_rng(config, rng).run(&plans(2..4), |(plans, choices)| {
        let recorded = Options::default().when_full(WhenFull::Wait).create(&path).unwrap();
        recorded.install().unwrap();
        trace::set(Detail::Full);
        let (threads, end) = run(&plans, &choices, None);
        trace::set(Detail::Off);
        recorded.finish().unwrap();
        prop_assert!(is_opaque(&threads, &end), "{threads:#?}\n{end:?}");
        let told = told(&path);
        for (number, attempts) in threads.iter().enumerate() {
            let told = &told[&number.to_string()];
            prop_assert_eq!(told.len(), attempts.len());
            for (told, attempt) in told.iter().zip(attempts) {
                // What was taken back is told as well.
                let is_told = told.0 == attempt.committed && told.1 >= attempt.writes.len();
                prop_assert!(is_told, "{told:?} {attempt:?}");
            }
        }
        Ok(())
    });
    result.unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn planted_fault_makes_a_history_that_is_not_opaque() {
    use Fault::*;
    for fault in [Validation, Time, Held, Version, Undo, Gate] {
        let config = Config { cases: 5_000, max_shrink_iters: 0, ..Config::default() };
        assert!(check(2..4, &Suicide, Some(fault), config).is_err(), "planted, and not noticed: {fault:?}");
    }
}

/// From a step to a step, what was read, what was written if it was committed.
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
fn checker_tells_good_histories_from_bad_ones() {
    let writer = || attempt(0..5, &[], Some(&[(0, 1), (1, 1)]));
    let end = [1, 1, 0, 0];
    let good = |other: Attempt| is_opaque(&[vec![writer()], vec![other]], &end);
    assert!(good(attempt(1..4, &[(0, 0), (1, 0)], None)), "before it");
    assert!(good(attempt(1..4, &[(0, 1), (1, 1)], Some(&[]))), "after it, and it was at its commit");
    assert!(good(attempt(6..9, &[(0, 1), (1, 1)], Some(&[]))));
    assert!(!good(attempt(1..4, &[(0, 1), (1, 0)], Some(&[]))), "half of it");
    assert!(!good(attempt(1..4, &[(0, 1), (1, 0)], None)), "half of it, and nothing came of it");
    assert!(!good(attempt(6..9, &[(0, 0), (1, 0)], Some(&[]))), "as if it had not been");
    assert!(!is_opaque(&[vec![writer()]], &[1, 0, 0, 0]), "half of it stays");
    let skew = |read, write| attempt(0..5, &[(0, 0), (1, 0)], Some(&[(read, write)]));
    assert!(!is_opaque(&[vec![skew(0, 1)], vec![skew(1, 1)]], &end), "each reads what the other writes");
}
