//! Runs: rules applied to a graph, by one thread or in parallel.

use crate::agenda::{Agenda, Left};
use crate::error::Error;
use crate::graph::Graph;
use crate::lock::{LockSet, Locks};
use crate::log::{Entry, Log, evaluation};
use crate::matcher::{Ends, Matcher};
use crate::parallel;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::rewriter::{Rewriter, each_touched};
use crate::rule::{Binding, Rule};
use corebeat_lpel::Runtime;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// How often a rule is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Apply {
    /// To one match. Which one it is depends on the plan, which a graph keeps between runs.
    One,
    /// To all matches of the graph as it is, as far as the matches do not overlap: a node that one
    /// match changes is in no other match.
    All,
    /// Until no match is left.
    #[default]
    Exhaustively,
}

/// How threads work together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// All threads find matches that do not overlap, then one thread changes the graph, and so on:
    /// the cycle of the paper.
    Cycle,
    /// The thread that completes a match changes the graph at once, while other threads match.
    #[default]
    Immediate,
}

/// An order of rules.
#[derive(Debug, Clone)]
pub enum Control {
    /// Applies the rule with this index.
    Rule(usize, Apply),
    /// One after another.
    Sequence(Vec<Control>),
    /// The first of them that changes the graph: a choice by priority.
    First(Vec<Control>),
    /// Again until nothing changes, at most so many times.
    Repeat(Box<Control>, u64),
}

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of threads; 0 counts as 1. With 1 and without a seed, the calling thread runs the
    /// rules without locks.
    pub threads: usize,
    /// Number of the threads that work, at least 1, as it is at the moment: a thread beyond it ends
    /// its part of a pass after a portion of the starting elements, and takes part in the first
    /// pass after the number has grown. For programs whose number of CPUs changes. None stands for
    /// all threads.
    pub workers: Option<Arc<AtomicUsize>>,
    /// How the threads work together.
    pub mode: Mode,
    /// Largest number of rewrites.
    pub max: u64,
    /// Whether the run returns its log.
    pub log: bool,
    /// Runs all tasks on one thread, in an order drawn from this seed.
    pub seed: Option<u64>,
    /// Ends the run early when it becomes true. The graph is consistent.
    pub stop: Option<Arc<AtomicBool>>,
    /// Counts matches and rewrites while the run takes place.
    pub progress: Option<Arc<Progress>>,
    /// Uses tasks and locks also for one thread, to measure their cost.
    pub force_tasks: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            threads: 1,
            workers: None,
            mode: Mode::default(),
            max: u64::MAX,
            log: false,
            seed: None,
            stop: None,
            progress: None,
            force_tasks: false,
        }
    }
}

impl Options {
    pub(crate) fn stop_flag(&self) -> Option<&AtomicBool> {
        self.stop.as_deref()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        // Relaxed: the flag publishes no data.
        self.stop_flag().is_some_and(|stop| stop.load(Relaxed))
    }
}

/// The result of a run.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Outcome {
    /// Number of rewrites.
    pub rewrites: u64,
    /// Number of passes over starting elements: over all of them, or over those that the changes of
    /// the pass before can affect.
    pub passes: u64,
    /// Number of searches at a starting element, in passes that rewrite at once.
    pub searches: u64,
    /// Number of complete matches that other threads prevented.
    pub conflicts: u64,
    /// Whether the run ended with [`Options::max`] rewrites.
    pub reached_max: bool,
    /// Whether [`Options::stop`] was true at the end of the run.
    pub stopped: bool,
    /// The log, if requested.
    pub log: Log,
}

/// Applies a rule until no match is left, at most `max` times, on the calling thread.
///
/// # Errors
/// [`Error::Evaluate`] and [`Error::Rule`], as [`run`].
pub fn apply_exhaustively(graph: &mut Graph, rule: &Rule, max: u64) -> Result<Outcome, Error> {
    let options = Options { max, ..Options::default() };
    run(graph, std::slice::from_ref(rule), &Control::Rule(0, Apply::Exhaustively), &options)
}

/// Applies rules to a graph.
///
/// # Errors
/// [`Error::Evaluate`] if an expression has no value, or the graph has no room for new elements:
/// the failed application changed nothing, and the changes before it remain. [`Error::Parallel`] if
/// threads cannot be started. [`Error::Rule`] if a rule without a left side is to be applied
/// exhaustively.
///
/// # Panics
/// If the control names a rule that is not in `rules`.
pub fn run(
    graph: &mut Graph,
    rules: &[Rule],
    control: &Control,
    options: &Options,
) -> Result<Outcome, Error> {
    graph.store.fit_to_schema();
    graph.end_unused_recording();
    graph.discard_plans(rules, options.seed.is_some());
    let is_parallel = options.threads > 1 || options.seed.is_some() || options.force_tasks;
    let runtime = match is_parallel {
        true => Some(parallel::runtime(options)?),
        false => None,
    };
    let some_rule_retypes = rules.iter().any(Rule::retypes);
    let logged = if options.log { rules.to_vec() } else { Vec::new() };
    let mut run = Run {
        graph,
        rules,
        current: 0,
        options,
        runtime,
        some_rule_retypes,
        outcome: Outcome { log: Log { rules: logged, ..Log::default() }, ..Outcome::default() },
    };
    run.control(control)?;
    // The last application may have reached a limit.
    run.is_over();
    Ok(run.outcome)
}

impl Rule {
    fn retypes(&self) -> bool {
        self.changes.iter().any(|change| matches!(change, crate::rule::Change::Retype { .. }))
    }
}

pub(crate) struct Run<'a> {
    pub(crate) graph: &'a mut Graph,
    rules: &'a [Rule],
    /// Index of the rule that is applied.
    pub(crate) current: usize,
    pub(crate) options: &'a Options,
    pub(crate) runtime: Option<Runtime>,
    some_rule_retypes: bool,
    pub(crate) outcome: Outcome,
}

impl Run<'_> {
    /// Returns whether the graph changed.
    fn control(&mut self, control: &Control) -> Result<bool, Error> {
        match control {
            _ if self.is_over() => Ok(false),
            Control::Rule(index, apply) => {
                let before = self.outcome.rewrites;
                self.rule(*index, *apply)?;
                Ok(self.outcome.rewrites > before)
            }
            Control::Sequence(parts) => {
                let mut changed = false;
                for part in parts {
                    changed |= self.control(part)?;
                }
                Ok(changed)
            }
            Control::First(parts) => {
                for part in parts {
                    if self.control(part)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Control::Repeat(part, times) => {
                let mut changed = false;
                for _ in 0..*times {
                    if !self.control(part)? {
                        break;
                    }
                    changed = true;
                }
                Ok(changed)
            }
        }
    }

    fn rule(&mut self, index: usize, apply: Apply) -> Result<(), Error> {
        let rule = &self.rules[index];
        self.current = index;
        if rule.changes.is_empty() {
            return Ok(());
        }
        if !rule.has_pattern() && apply == Apply::Exhaustively {
            let why = "the rule has no MATCH, so it matches for ever; apply it once".to_owned();
            return Err(Error::Rule { rule: rule.name.clone(), why });
        }
        if apply == Apply::Exhaustively {
            let result = self.exhaust(rule);
            self.graph.end_unused_recording();
            return result;
        }
        let plan = self.graph.plan(rule);
        match &self.runtime {
            _ if apply == Apply::One || !rule.has_pattern() => self.one(rule, &plan)?,
            Some(_) => drop(parallel::pass(self, rule, &plan, apply, None)?),
            None => self.all(rule, &plan)?,
        }
        self.outcome.passes += 1;
        Ok(())
    }

    /// Applies a rule until no match is left.
    fn exhaust(&mut self, rule: &Rule) -> Result<(), Error> {
        let mut agenda = Agenda::default();
        loop {
            let plan = self.graph.plan(rule);
            let starts = agenda.begin(self.graph, &plan);
            let left = match &self.runtime {
                Some(_) => parallel::pass(self, rule, &plan, Apply::Exhaustively, starts)?,
                None => self.pass(rule, &plan, starts)?,
            };
            self.outcome.passes += 1;
            if self.is_over() || agenda.end(self.graph, rule, &plan, left) {
                return Ok(());
            }
        }
    }

    pub(crate) fn is_local(&self, rule: &Rule) -> bool {
        rule.is_local(self.some_rule_retypes)
    }

    /// Whether the limit is reached or the run must stop.
    fn is_over(&mut self) -> bool {
        self.outcome.reached_max = self.outcome.rewrites >= self.options.max;
        self.outcome.stopped = self.options.is_stopped();
        self.outcome.reached_max || self.outcome.stopped
    }

    /// A new sequence number for the locks. All locks are free under it.
    pub(crate) fn next_sequence(&mut self) -> u32 {
        self.graph.sequence = self.graph.sequence.wrapping_add(1);
        if self.graph.sequence == 0 {
            self.graph.store.locks = Default::default();
            self.graph.sequence = 1;
        }
        self.graph.sequence
    }

    /// Applies a rule to the first match, if there is one.
    fn one(&mut self, rule: &Rule, plan: &Plan) -> Result<(), Error> {
        let search = Matcher::new(&self.graph.store, rule, plan).until(self.options.stop_flag());
        let mut first = None;
        let _ = search.search(&mut |binding| take_applicable(&search, binding, &mut first));
        if let Some(fault) = search.take_fault() {
            return Err(evaluation(rule, fault));
        }
        let Some(mut binding) = first else { return Ok(()) };
        let matcher = Matcher::new(&self.graph.store, rule, plan);
        let mut rewriter = Rewriter::default();
        rewriter
            .apply(&matcher, &mut self.graph.space, &mut binding, |_| {})
            .map_err(|fault| evaluation(rule, fault))?;
        self.applied(rule, &binding);
        Ok(())
    }

    /// Counts and logs a rewrite of this thread.
    pub(crate) fn applied(&mut self, rule: &Rule, binding: &Binding) {
        self.graph.store.settle(&mut self.graph.space);
        if self.options.log {
            let entry = entry(self.outcome.rewrites, self.current, rule, binding);
            self.outcome.log.push_all(vec![entry]);
        }
        self.outcome.rewrites += 1;
        if let Some(progress) = &self.options.progress {
            progress.add_rewrites(1);
        }
    }

    /// Searches at some starts, or at all of them and at those that are new, and rewrites each
    /// match that it finds.
    fn pass(&mut self, rule: &Rule, plan: &Plan, starts: Option<Vec<u32>>) -> Result<Left, Error> {
        let mut rewriter = Rewriter::default();
        let filters = Ends::of(plan);
        let moves = self.graph.store.moves;
        let mut rewrites_at = |run: &mut Self, start: u32| {
            let stop = run.options.stop_flag();
            let search = Matcher::new(&run.graph.store, rule, plan).filtered(&filters).until(stop);
            let mut first = None;
            let _ = search
                .search_at(start, &mut |binding| take_applicable(&search, binding, &mut first));
            run.outcome.searches += 1;
            if let Some(fault) = search.take_fault() {
                return Err(evaluation(rule, fault));
            }
            let Some(mut binding) = first else { return Ok(false) };
            let matcher = Matcher::new(&run.graph.store, rule, plan);
            rewriter
                .apply(&matcher, &mut run.graph.space, &mut binding, |_| {})
                .map_err(|fault| evaluation(rule, fault))?;
            run.applied(rule, &binding);
            Ok(true)
        };
        if let Some(starts) = starts {
            for start in starts {
                while !self.is_over()
                    && plan.is_start(&self.graph.store, start)
                    && rewrites_at(self, start)?
                {}
            }
            return Ok(Left::default());
        }
        for of in plan.start_types() {
            let mut index = 0;
            while index < self.graph.store.member_limit(*of) && !self.is_over() {
                let start = self.graph.store.member(*of, index);
                // After a rewrite, the index may have another node.
                let is_rewritten = start.map_or(Ok(false), |start| rewrites_at(self, start))?;
                index += u32::from(!is_rewritten);
            }
        }
        // A node that has moved to the place of a node before it has not been searched.
        Ok(Left { starts: Vec::new(), is_partial: moves != self.graph.store.moves })
    }

    /// The paper's cycle on one thread: finds matches that do not overlap, then applies the rule to
    /// all of them.
    fn all(&mut self, rule: &Rule, plan: &Plan) -> Result<(), Error> {
        let sequence = self.next_sequence();
        let mut found = Vec::new();
        {
            let store = &self.graph.store;
            let locks = Locks { words: &store.locks, sequence };
            let filters = Ends::of(plan);
            let matcher = Matcher::new(store, rule, plan).avoiding(locks).filtered(&filters);
            let matcher = matcher.until(self.options.stop_flag());
            let mut collector = Collector::new(&matcher, locks);
            for of in plan.start_types() {
                for index in 0..store.member_limit(*of) {
                    if self.options.is_stopped() {
                        break;
                    }
                    if let Some(start) = store.member(*of, index) {
                        collector.collect(start, &mut found);
                    }
                }
            }
            if let Some(fault) = matcher.take_fault() {
                return Err(evaluation(rule, fault));
            }
        }
        self.apply_found(rule, plan, found)?;
        Ok(())
    }

    /// Applies a rule to matches that do not overlap. Returns whether there is none.
    pub(crate) fn apply_found(
        &mut self,
        rule: &Rule,
        plan: &Plan,
        found: Vec<Box<[u32]>>,
    ) -> Result<bool, Error> {
        let is_local = self.is_local(rule);
        let mut rewriter = Rewriter::default();
        let mut is_none = true;
        for elements in found {
            if self.outcome.rewrites >= self.options.max || self.options.is_stopped() {
                return Ok(false);
            }
            let mut binding: Binding = [crate::rule::NONE; crate::rule::ELEMENTS_MAX];
            binding[..elements.len()].copy_from_slice(&elements);
            let matcher = Matcher::new(&self.graph.store, rule, plan);
            // The locks do not cover all facts of such a rule: an earlier rewrite may have changed
            // them.
            if !is_local {
                let search = Matcher::new(&self.graph.store, rule, plan);
                let search = search.until(self.options.stop_flag());
                let Some(again) = first_at_start_of(&search, &binding) else { continue };
                binding = again;
            }
            rewriter
                .apply(&matcher, &mut self.graph.space, &mut binding, |_| {})
                .map_err(|fault| evaluation(rule, fault))?;
            self.applied(rule, &binding);
            is_none = false;
        }
        Ok(is_none)
    }
}

pub(crate) fn entry(order: u64, index: usize, rule: &Rule, binding: &Binding) -> Entry {
    Entry { order, rule: index, elements: binding[..rule.slots.len()].into() }
}

/// Keeps the first match to which the rule can be applied.
fn take_applicable(
    matcher: &Matcher,
    binding: &mut Binding,
    first: &mut Option<Binding>,
) -> ControlFlow<()> {
    if !matcher.is_applicable(binding) {
        return ControlFlow::Continue(());
    }
    *first = Some(*binding);
    ControlFlow::Break(())
}

/// The first applicable match with the same start as a former match.
pub(crate) fn first_at_start_of(matcher: &Matcher, former: &Binding) -> Option<Binding> {
    let mut first = None;
    let start = matcher.start_of(former);
    matcher.store.node_type(start)?;
    let _ = matcher.search_at(start, &mut |binding| take_applicable(matcher, binding, &mut first));
    first
}

/// Collects matches that do not overlap, and locks their nodes.
pub(crate) struct Collector<'a> {
    matcher: &'a Matcher<'a>,
    locks: Locks<'a>,
    set: LockSet,
    /// Number of matches that the locks of others prevented.
    pub(crate) conflicts: u64,
}

impl<'a> Collector<'a> {
    pub(crate) fn new(matcher: &'a Matcher<'a>, locks: Locks<'a>) -> Collector<'a> {
        Collector { matcher, locks, set: LockSet::default(), conflicts: 0 }
    }

    /// Collects the matches at a start.
    pub(crate) fn collect(&mut self, start: u32, found: &mut Vec<Box<[u32]>>) {
        if !self.matcher.is_allowed_start(start) {
            return;
        }
        let (store, rule) = (self.matcher.store, self.matcher.rule);
        // The matcher avoids the nodes that a found match changes, so a new search at the same
        // start finds another match. A rule that changes no node of its matches needs one search.
        let search_again = self.matcher.changes_matched_nodes();
        let mut refused = 0;
        loop {
            // A fault ends the search, too.
            let mut is_next = false;
            let _ = self.matcher.search_at(start, &mut |binding| {
                if !self.matcher.is_applicable(binding) {
                    return ControlFlow::Continue(());
                }
                self.set.clear();
                each_touched(store, rule, binding, |node, write| self.set.add(node, write));
                is_next = search_again;
                if self.set.try_lock(&self.locks) {
                    found.push(binding[..rule.slots.len()].into());
                } else {
                    // A new search avoids the locked nodes, which further matches may have, too.
                    self.conflicts += 1;
                    refused += 1;
                    is_next &= refused <= parallel::REFUSED_MAX;
                }
                match is_next {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            if !is_next || !self.matcher.is_allowed_start(start) {
                return;
            }
        }
    }
}
