//! Parallel passes: tasks take starting elements from a counter, and search and rewrite there.
//!
//! ```text
//!   starts 0 1 2 3 ... --> task 0: search -> lock -> check again -> rewrite -> unlock
//!                     `--> task 1: search -> lock -> busy: the next pass searches again
//! ```
//!
//! A pass reads a graph that changes. A task may read a list of edges while another task moves its
//! entries, and miss a match: the changes of the pass lead back to its start.
//!
//! A task rewrites at most [`REWRITES_MAX`] matches at a start. Then this start and all new nodes
//! are starts of the next pass, so that all tasks share the matches that one start leads to.

use crate::agenda::Left;
use crate::change::Changes;
use crate::error::Error;
use crate::lock::{LockSet, Locks};
use crate::log::{Entry, evaluation};
use crate::matcher::{Ends, Matcher};
use crate::plan::Plan;
use crate::rewriter::{Rewriter, each_touched};
use crate::rule::{Binding, Rule};
use crate::run::{Apply, Collector, Mode, Options, Run, entry, first_at_start_of};
use crate::schema::NodeType;
use crate::store::{Space, Store};
use crate::value::lock;
use corebeat_lpel::{Builder, Runtime, yield_now};
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Stack of a task in bytes: an expression takes about a kilobyte for each of its levels.
const STACK_SIZE: usize = 1 << 20;
/// Largest number of starts that a task takes at a time.
const CHUNK_MAX: u32 = 256;
/// Number of portions that each task takes, so that no task works much longer than the others.
const PORTIONS: u32 = 32;

/// Builds the runtime of a run.
pub(crate) fn runtime(options: &Options) -> Result<Runtime, Error> {
    let builder = Builder::default().workers(options.threads.max(1));
    let builder = match options.seed {
        Some(seed) => builder.deterministic(seed),
        None => builder,
    };
    builder.build().map_err(|e| Error::Parallel { why: e.to_string() })
}

/// The starts of a pass: those of a list, or nodes of these types, by index in the lists of their
/// types.
pub(crate) struct Starts {
    list: Option<Vec<u32>>,
    types: Vec<(NodeType, u32)>,
    total: u32,
    chunk: u32,
    next: AtomicU32,
    workers: Option<Arc<AtomicUsize>>,
}

impl Starts {
    pub(crate) fn new(
        store: &Store,
        types: &[NodeType],
        list: Option<Vec<u32>>,
        options: &Options,
    ) -> Starts {
        let types: Vec<_> = types.iter().map(|of| (*of, store.member_limit(*of))).collect();
        let all = types.iter().map(|(_, count)| count).sum::<u32>();
        let total = list.as_ref().map_or(all, |list| list.len() as u32);
        let chunk = (total / (options.threads.max(1) as u32 * PORTIONS)).clamp(1, CHUNK_MAX);
        let workers = options.workers.clone();
        Starts { list, types, total, chunk, next: AtomicU32::new(0), workers }
    }

    /// Takes the next portion, unless more tasks than [`Options::workers`] work. The first task
    /// always continues, so all portions are taken.
    pub(crate) fn take(&self, task: usize) -> Option<std::ops::Range<u32>> {
        // Relaxed: the number publishes no data.
        let workers = self.workers.as_ref().map_or(usize::MAX, |workers| workers.load(Relaxed));
        if task >= workers.max(1) {
            return None;
        }
        // Relaxed: the numbers publish no data.
        let from = self.next.fetch_add(self.chunk, Relaxed);
        (from < self.total).then(|| from..self.total.min(from.saturating_add(self.chunk)))
    }

    /// Whether the caller is the first. For a pattern without elements, which has one match.
    pub(crate) fn take_once(&self) -> bool {
        // Relaxed: as in `take`.
        self.next.fetch_add(1, Relaxed) == 0
    }

    pub(crate) fn node(&self, store: &Store, mut index: u32) -> Option<u32> {
        if let Some(list) = &self.list {
            // The node may have been deleted, or have another type.
            let node = list[index as usize];
            let of = store.node_type(node)?;
            return self.types.iter().any(|(own, _)| *own == of).then_some(node);
        }
        for (of, count) in &self.types {
            if index < *count {
                return store.member(*of, index);
            }
            index -= count;
        }
        None
    }
}

/// Data that the tasks of a pass share.
struct Shared {
    store: Store,
    rule: Rule,
    /// Index of the rule, for the log.
    index: usize,
    plan: Arc<Plan>,
    options: Options,
    starts: Starts,
    sequence: u32,
    is_local: bool,
    /// An empty set, which states how tasks record changes.
    changes: Changes,
    /// Number of rewrites of the run.
    rewrites: AtomicU64,
    /// Ends the pass after a fault or at the limit.
    end: AtomicBool,
    /// Held during rewrites with a rule whose facts the locks do not cover.
    exclusive: Mutex<()>,
}

/// How often a start is searched again because another task has locked or changed the match.
pub(crate) const REFUSED_MAX: u32 = 8;

/// Largest number of rewrites at one start in one pass.
const REWRITES_MAX: u32 = 64;

/// The results of a task.
#[derive(Default)]
struct Done {
    space: Space,
    entries: Vec<Entry>,
    found: Vec<Box<[u32]>>,
    conflicts: u64,
    searches: u64,
    /// Starts at which the search ended early.
    left: Vec<u32>,
    /// Whether a start has had [`REWRITES_MAX`] rewrites.
    has_more: bool,
    fault: Option<String>,
    /// A fault of a search without locks. It is real if no thread changed the graph meanwhile.
    suspect: Option<String>,
}

/// Runs one pass with all tasks, at some starts or at all.
pub(crate) fn pass(
    run: &mut Run,
    rule: &Rule,
    plan: &Arc<Plan>,
    apply: Apply,
    starts: Option<Vec<u32>>,
) -> Result<Left, Error> {
    let is_cycle = run.options.mode == Mode::Cycle || apply == Apply::All;
    let sequence = run.next_sequence();
    let starts = Starts::new(&run.graph.store, plan.start_types(), starts, run.options);
    let before = run.outcome.rewrites;
    let shared = Arc::new(Shared {
        starts,
        store: std::mem::take(&mut run.graph.store),
        rule: rule.clone(),
        index: run.current,
        plan: plan.clone(),
        options: run.options.clone(),
        sequence,
        is_local: run.is_local(rule),
        changes: run.graph.space.changes.part(),
        rewrites: AtomicU64::new(before),
        end: AtomicBool::new(false),
        exclusive: Mutex::new(()),
    });
    let body = if is_cycle { collect } else { rewrite };
    let results = on_tasks(run.runtime.as_ref(), run.options.threads, &shared, body);
    let shared = Arc::into_inner(shared).expect("the tasks have ended");
    run.graph.store = shared.store;
    let (mut found, mut entries, mut conflicts) = (Vec::new(), Vec::new(), 0);
    let (mut fault, mut suspect, mut lost) = (None, None, None);
    let (mut left, mut has_more) = (Left::default(), false);
    for done in results {
        let done = match done {
            Ok(done) => done,
            Err(why) => {
                run.graph.space.changes.lose();
                lost = lost.or(Some(why));
                continue;
            }
        };
        run.graph.store.absorb(&mut run.graph.space, done.space);
        found.extend(done.found);
        entries.extend(done.entries);
        conflicts += done.conflicts;
        run.outcome.searches += done.searches;
        left.starts.extend(done.left);
        has_more |= done.has_more;
        fault = fault.or(done.fault);
        suspect = suspect.or(done.suspect);
    }
    if has_more {
        left.starts.extend(&run.graph.space.unlisted);
    }
    run.graph.store.settle(&mut run.graph.space);
    run.outcome.conflicts += conflicts;
    run.outcome.rewrites = shared.rewrites.into_inner();
    if run.options.log {
        run.outcome.log.push_all(entries);
    }
    // After the results of the other tasks: the graph has their rewrites.
    if let Some(why) = lost {
        return Err(Error::Parallel { why });
    }
    let is_unchanged = run.outcome.rewrites == before;
    if let Some(fault) = fault.or_else(|| suspect.clone().filter(|_| is_unchanged)) {
        return Err(evaluation(rule, fault));
    }
    if is_cycle {
        // The searches avoided the nodes of the matches that were found.
        left.is_partial = !run.apply_found(rule, plan, found)? || conflicts > 0;
    }
    Ok(left)
}

/// Runs a function on each of some tasks, with the index of the task, and returns their results.
pub(crate) fn on_tasks<S: Send + Sync + 'static, D: Send + 'static>(
    runtime: Option<&Runtime>,
    tasks: usize,
    shared: &Arc<S>,
    body: fn(&S, usize) -> D,
) -> Vec<Result<D, String>> {
    let Some(runtime) = runtime else { return vec![Ok(body(shared, 0))] };
    let scope = runtime.scope();
    let start = |index: usize| {
        let own = shared.clone();
        let task = scope.task().name("rewrite").worker(index).stack_size(STACK_SIZE);
        task.spawn(move || {
            let done = body(&own, index);
            drop(own);
            done
        })
    };
    let handles: Vec<_> = (0..tasks.max(1)).map(start).collect();
    scope.wait();
    let result = |handle: Result<corebeat_lpel::JoinHandle<D>, corebeat_lpel::Error>| {
        let handle = handle.map_err(|e| e.to_string())?;
        handle.join().map_err(|e| e.to_string())
    };
    handles.into_iter().map(result).collect()
}

/// The matching phase of the cycle.
fn collect(shared: &Shared, task: usize) -> Done {
    let store = &shared.store;
    let locks = Locks { words: &store.locks, sequence: shared.sequence };
    let filters = Ends::of(&shared.plan);
    let matcher = Matcher::new(store, &shared.rule, &shared.plan)
        .avoiding(locks)
        .filtered(&filters)
        .until(shared.options.stop_flag());
    let mut collector = Collector::new(&matcher, locks);
    let mut done = Done::default();
    while let Some(portion) = shared.starts.take(task) {
        if shared.is_over() {
            break;
        }
        for start in portion.filter_map(|index| shared.starts.node(store, index)) {
            collector.collect(start, &mut done.found);
        }
        shared.interleave();
    }
    done.conflicts = collector.conflicts;
    done.fault = matcher.take_fault();
    done
}

/// A pass with parallel modification.
fn rewrite(shared: &Shared, task: usize) -> Done {
    let store = &shared.store;
    let filters = Ends::of(&shared.plan);
    let search = Matcher::new(store, &shared.rule, &shared.plan)
        .filtered(&filters)
        .until(shared.options.stop_flag());
    // A rewrite that has begun is completed, also if the run must stop.
    let matcher = Matcher::new(store, &shared.rule, &shared.plan);
    let mut worker = Worker {
        shared,
        locks: Locks { words: &store.locks, sequence: shared.sequence },
        set: LockSet::default(),
        rewriter: Rewriter::default(),
        taken: Vec::new(),
        done: Done { space: Space::recording(shared.changes.part()), ..Done::default() },
    };
    while let Some(portion) = shared.starts.take(task) {
        for index in portion {
            let (mut rewritten, mut refused) = (0, 0);
            // The number of a deleted start may belong to a new node, so it is read again.
            while let Some(start) = shared.starts.node(store, index) {
                if shared.is_over() {
                    break;
                }
                let has_more = rewritten == REWRITES_MAX;
                if has_more || refused > REFUSED_MAX {
                    worker.done.has_more |= has_more;
                    worker.done.left.push(start);
                    break;
                }
                match worker.rewrite_at(&search, &matcher, start) {
                    Attempt::Rewritten => rewritten += 1,
                    Attempt::Refused => refused += 1,
                    Attempt::None => break,
                }
            }
        }
        if shared.is_over() {
            break;
        }
        shared.interleave();
    }
    worker.done
}

impl Shared {
    fn is_over(&self) -> bool {
        // Relaxed: the flag publishes no data.
        self.end.load(Relaxed) || self.options.is_stopped()
    }

    /// Lets the other tasks of a deterministic run continue.
    fn interleave(&self) {
        if self.options.seed.is_some() {
            yield_now();
        }
    }

    /// Counts a rewrite, unless the limit is reached.
    fn reserve(&self) -> Option<u64> {
        // Relaxed: conflicting rewrites take their numbers under a common lock.
        let order = self.rewrites.fetch_add(1, Relaxed);
        if order < self.options.max {
            return Some(order);
        }
        self.rewrites.fetch_sub(1, Relaxed);
        self.end.store(true, Relaxed);
        None
    }
}

enum Attempt {
    Rewritten,
    /// Another task has locked or changed the match.
    Refused,
    None,
}

struct Worker<'a> {
    shared: &'a Shared,
    locks: Locks<'a>,
    set: LockSet,
    rewriter: Rewriter,
    /// Memory for the nodes that an application creates.
    taken: Vec<u32>,
    done: Done,
}

impl Worker<'_> {
    /// Searches at a start, and rewrites the first match. A refused match ends the search, because
    /// all further matches may have the elements for which this one was refused.
    fn rewrite_at(&mut self, search: &Matcher, matcher: &Matcher, start: u32) -> Attempt {
        let mut attempt = Attempt::None;
        let _ = search.search_at(start, &mut |binding| {
            if !matcher.is_applicable(binding) {
                return ControlFlow::Continue(());
            }
            self.shared.interleave();
            let result = match self.shared.is_local {
                true => self.rewrite_locked(matcher, binding),
                false => self.rewrite_exclusively(matcher, binding),
            };
            match result {
                Ok(true) => attempt = Attempt::Rewritten,
                Ok(false) => attempt = Attempt::Refused,
                Err(fault) => self.fail(fault),
            }
            ControlFlow::Break(())
        });
        self.done.searches += 1;
        if let Some(fault) = search.take_fault() {
            self.done.suspect.get_or_insert(fault);
            self.done.left.push(start);
        }
        attempt
    }

    /// Locks the nodes of a match, checks the match again, and rewrites it.
    fn rewrite_locked(&mut self, matcher: &Matcher, binding: &mut Binding) -> Result<bool, String> {
        let (store, rule) = (matcher.store, matcher.rule);
        self.set.clear();
        each_touched(store, rule, binding, |node, write| self.set.add(node, write));
        if !self.set.try_lock(&self.locks) {
            self.done.conflicts += 1;
            return Ok(false);
        }
        let result = self.check_and_apply(matcher, binding);
        self.set.unlock(&self.locks);
        result
    }

    fn check_and_apply(
        &mut self,
        matcher: &Matcher,
        binding: &mut Binding,
    ) -> Result<bool, String> {
        // The neighbours of a deleted node may have changed before its lock was taken.
        let mut has_all = true;
        each_touched(matcher.store, matcher.rule, binding, |node, write| {
            has_all &= self.set.has(node, write);
        });
        if !has_all || !matcher.holds(binding)? || !matcher.is_applicable(binding) {
            self.done.conflicts += 1;
            return Ok(false);
        }
        let Some(order) = self.shared.reserve() else { return Ok(false) };
        self.apply(matcher, binding, order)?;
        Ok(true)
    }

    fn apply(
        &mut self,
        matcher: &Matcher,
        binding: &mut Binding,
        order: u64,
    ) -> Result<(), String> {
        let (locks, taken) = (self.locks, RefCell::new(std::mem::take(&mut self.taken)));
        let claim = |node: u32| {
            // Another thread can hold this lock only for a match of a former node of this number.
            // The check under that lock fails, and the thread releases the lock without waiting.
            while !locks.try_lock(node, true) {
                std::thread::yield_now();
            }
            taken.borrow_mut().push(node);
        };
        let applied = self.rewriter.apply(matcher, &mut self.done.space, binding, claim);
        self.taken = taken.into_inner();
        self.taken.drain(..).for_each(|node| self.set.add_taken(node));
        if let Err(fault) = applied {
            // Relaxed: as in `reserve`.
            self.shared.rewrites.fetch_sub(1, Relaxed);
            return Err(fault);
        }
        if self.shared.options.log {
            self.done.entries.push(entry(order, self.shared.index, matcher.rule, binding));
        }
        if let Some(progress) = &self.shared.options.progress {
            progress.add_rewrites(1);
        }
        Ok(())
    }

    /// Rewrites while no other thread does. The match is searched again, because its facts may have
    /// changed.
    fn rewrite_exclusively(&mut self, matcher: &Matcher, former: &Binding) -> Result<bool, String> {
        let _exclusive = lock(&self.shared.exclusive);
        let stop = self.shared.options.stop_flag();
        let again = Matcher::new(matcher.store, matcher.rule, &self.shared.plan).until(stop);
        let found = first_at_start_of(&again, former);
        if let Some(fault) = again.take_fault() {
            return Err(fault);
        }
        let Some(mut binding) = found else {
            self.done.conflicts += 1;
            return Ok(false);
        };
        let Some(order) = self.shared.reserve() else { return Ok(false) };
        self.set.clear();
        let applied = self.apply(matcher, &mut binding, order);
        self.set.unlock(&self.locks);
        applied.map(|()| true)
    }

    fn fail(&mut self, fault: String) {
        self.done.fault.get_or_insert(fault);
        // Relaxed: the flag publishes no data.
        self.shared.end.store(true, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::lock::Locks;
    use crate::{Apply, Control, Graph, Options, parse_rules, run};
    use std::collections::HashMap;

    /// A match that a pass cannot lock is found by the next one, also if nothing has changed.
    #[test]
    fn refused_starts_are_searched_in_the_next_pass() {
        let mut graph = Graph::new();
        let text = "CREATE (:A {x: 1}); MATCH (a:A) WHERE a.x = 1 SET a.x = 2";
        let rules = parse_rules("rules", text, &HashMap::new(), &mut graph).unwrap();
        let options = Options { force_tasks: true, ..Options::default() };
        run(&mut graph, &rules, &Control::Rule(0, Apply::One), &options).unwrap();
        // Locked under the number of the next pass, and free under that of the pass after it.
        let locks = Locks { words: &graph.store.locks, sequence: graph.sequence + 1 };
        assert!(locks.try_lock(0, true));
        let control = Control::Rule(1, Apply::Exhaustively);
        let outcome = run(&mut graph, &rules, &control, &options).unwrap();
        assert!(outcome.conflicts > 0 && outcome.passes > 1, "{outcome:?}");
        assert_eq!(outcome.rewrites, 1);
    }
}
